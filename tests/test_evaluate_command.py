"""`python -m program.evaluate` as a shell and as Python sees it: reports, failures, MLflow."""

import json
from pathlib import Path

import pytest
import yaml
from PIL import Image

import program.evaluation
from program import evaluate
from program.agent.loop import AgenticIQA
from program.common.errors import InputError
from program.common.settings import load_settings
from program.evaluation.evaluating import samples_of
from program.evaluation.record import EvaluationRecord
from tests.scenarios import SECRET, judged_photographs, write_lines

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mlruns")


pytestmark = pytest.mark.usefixtures("coarse", "untraced", "measured_once")


@pytest.fixture(autouse=True)
def _one_store(store: Path, _hermetic: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTICIQA_MLRUNS_DIR", str(store))  # making one takes MLflow seconds


@pytest.fixture
def own_cache(tmp_path: Path, measured_once: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that no other test has used."""
    monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return judged_photographs(tmp_path)


def _record(capsys, *arguments):
    code = evaluate.main([*map(str, arguments), "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out)


def test_the_record_holds_baselines_and_details(scenario):
    evaluation = scenario("evaluation")
    assert evaluation.code == 0
    record = evaluation.json("report/record.json")
    assert record["schema_version"] == 2
    assert record["dataset"]["name"] == "some/manifest.jsonl"
    assert record["dataset"]["split"] == "test"
    assert len(record["dataset"]["manifest_sha256"]) == 64
    assert record["scoring"] == {"asked": 20, "used": 20, "failed": 0, "unlabelled": 0}
    for name in ("srcc", "plcc", "krcc", "rmse", "accuracy"):
        assert {"value", "low", "high", "n", "asked"} <= record[name].keys()
    details = record["details"]
    assert set(details["by_distortion"]) == {"d0", "d1", "d2", "d3"}
    assert details["by_question_type"]["yes-or-no"]["n"] == record["mcq"]["used"] == 5
    assert details["outlier_ratio"]["n"] == 20
    assert details["plcc_logistic4"]["value"] >= abs(record["plcc"]["value"]) - 0.02
    ways = {"PIQE", "all tools", "model only"}
    assert ways <= set(record["baselines"])
    assert record["baselines"]["model only"]["gain"]["srcc"]["n"] == 20
    context = record["context"]
    assert len(context["settings_sha256"]) == len(context["program_sha256"]) == 64
    assert set(context["models"]) == {"planner", "executor", "summarizer"}
    assert context["scoring_mode"] == "auto"
    assert "pyiqa" in context["tools"]["PIQE"]
    assert sum(record["attempts"].values()) == 25
    assert record["lm_calls"] == 0  # the expert is free
    assert "rows" not in record
    assert str(evaluation.folder) not in json.dumps(record)


def test_a_run_is_logged_to_mlflow_with_figures_table_charts_and_report(scenario):
    evaluation = scenario("evaluation")
    record, (run,) = evaluation.json("report/record.json"), evaluation.runs
    assert run["metrics"]["srcc"] == pytest.approx(record["srcc"]["value"], abs=1e-4)
    figures = "SRCC {value:.3f} [{low:.3f}, {high:.3f}] n={n}".format(**record["srcc"])
    assert (run["name"], run["tags"]["agreement"]) == ("uncompiled", figures)
    assert run["params"]["sizes"].startswith("test ")
    assert run["params"]["seed"] == "7"
    assert run["params"]["fitted"] == "unknown"  # of a program that no compile made
    folder = evaluation.folder / "mlruns" / "artifacts" / run["id"] / "artifacts"
    kept = json.loads((folder / "result.json").read_text("utf-8"))
    assert kept["details"]["plcc_logistic4"] == record["details"]["plcc_logistic4"]
    asked = yaml.safe_load((folder / "settings.yaml").read_text("utf-8"))
    assert asked["settings_sha256"] == record["context"]["settings_sha256"]
    logged = {"report.html", "samples.json", "scatter.svg"}
    assert logged <= set(run["artifacts"])


def test_terminal_output_fits_80_columns(scenario, transcript):
    evaluation = scenario("evaluation")
    tables = evaluation.out.partition("samples in")[0]
    assert "…" not in tables
    assert max(map(len, tables.splitlines())) <= 80
    assert (evaluation.folder / "report" / "report.html").stat().st_size > 50_000
    transcript(evaluation)


@pytest.mark.usefixtures("untracked")
def test_figures_are_printed_though_the_report_cannot_be_written(manifest, tmp_path, capsys, monkeypatch):
    def full(*_: object) -> None:
        raise InputError("report: cannot be written (No space left on device); give another folder")

    monkeypatch.setattr("program.evaluation.publishing.write_report", full)
    assert evaluate.main([str(manifest), "--report", str(tmp_path / "report")]) == 2
    printed = capsys.readouterr()
    assert "SRCC" in printed.out
    assert "No space left" in printed.err


def test_failed_samples_end_in_exit_code_1_and_are_counted(scenario):
    failures = scenario("failures")
    record = failures.json("report/record.json")
    assert failures.code == 1
    assert record["scoring"] == {"asked": 20, "used": 13, "failed": 7, "unlabelled": 0}
    assert (record["srcc"]["n"], record["srcc"]["asked"]) == (13, 20)
    assert record["details"]["by_distortion"]["d1"]["figures"]["srcc"]["asked"] == 5


def test_failed_samples_are_named_with_their_reason_wherever_the_figures_are(scenario, transcript):
    failures = scenario("failures")
    transcript(failures)  # five of them, and how many more
    record = failures.json("report/record.json")
    assert [f["id"] for f in record["failures"]] == ["s8", "q8", "s9", "s10", "s11", "s12", "q12", "s13", "s14"]
    page = (failures.folder / "report" / "report.html").read_text("utf-8")
    assert page.index("Failed samples") < page.index("<td>q12</td><td>image")
    files = (failures.folder / "mlruns" / "artifacts" / failures.runs[0]["id"]).rglob("*")
    logged = {path.name: path.read_text("utf-8") for path in files if path.suffix in {".json", ".html"}}
    assert '"id": "q12"' in logged["result.json"].partition('"failures"')[2]
    assert "<td>q12</td>" in logged["report.html"]
    for text in (failures.out, page, json.dumps(record), *logged.values()):
        assert SECRET not in text


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_where_no_image_is_found_one_line_says_so_in_place_of_figures(manifest, tmp_path, capsys, flags):
    for image in tmp_path.glob("*.png"):
        image.unlink()
    assert evaluate.main([str(manifest), *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last.startswith(
        f"error: manifest {str(manifest)!r}: none of the 25 samples could be judged; the first: image"
    )
    assert last.endswith("4.png': no such file; check the path")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{manifest}", "--split", "train"], "no sample in split 'train'; give --split test or validation or all"),
        (["{manifest}", "--workers", "0"], "workers: 0 is too few"),
        (["{manifest}", "--report", "{manifest}"], "cannot be written"),
        (["nothing.jsonl"], "neither a known name nor a file"),
    ],
)
def test_what_cannot_run_is_one_line_and_exit_code_2(manifest, capsys, arguments, message):
    assert evaluate.main([a.format(manifest=manifest) for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err.splitlines()[-1]
    assert captured.err.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"mos": 3}, {"mos": 99}], 'line 2: "mos" is 99, far outside 1..5; correct it or "mos_range"'),
        ([{"MOS": 3}], 'line 1: "MOS" is no key; did you mean "mos"?'),
        (
            [{}, {}],
            "no sample of split 'test' has a label; "
            'give "mos" (another column: --columns mos=NAME), or "options" with an "answer"',
        ),
        ([{"options": {"A": "x", "B": "y"}}], "has a label; give"),
        ([{"mos": 3, "group": "g"}, {"mos": 2, "group": "g", "split": "train"}], "group 'g': is in train and test"),
    ],
    ids=["range", "key", "none", "answer", "leak"],
)
def test_labels_that_cannot_be_used_are_refused_before_anything_runs(tmp_path, store, capsys, rows, message):
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    lines = [{"id": str(n), "image": "a.png", "split": "test", **row} for n, row in enumerate(rows)]
    file = write_lines(tmp_path / "m.jsonl", lines)
    before = sorted(store.rglob("*"))
    assert evaluate.main([str(file)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err
    assert sorted(store.rglob("*")) == before


@pytest.mark.usefixtures("undrawn", "untracked", "answers_on_disk")
def test_without_a_usable_cache_an_evaluation_goes_on_and_says_so(manifest, tmp_path, capsys, caplog, monkeypatch):
    (tmp_path / "file").write_text("no folder", "utf-8")
    monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    code, record = _record(capsys, manifest, "--split", "validation")
    assert (code, record["scoring"]["used"]) == (0, 4)
    assert "everything is worked out again" in caplog.text


def test_over_all_splits_a_leak_is_no_fault(tmp_path):
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    shared = {"image": "a.png", "mos": 3, "group": "g"}
    file = write_lines(tmp_path / "m.jsonl", [{"id": split, "split": split, **shared} for split in ("train", "test")])
    assert len(samples_of(file, load_settings(), None)) == 2


@pytest.mark.usefixtures("undrawn")
def test_python_gets_the_same_record_as_the_command(scenario):
    evaluation = scenario("evaluation")
    manifest, printed = evaluation.folder / "some" / "manifest.jsonl", evaluation.json("report/record.json")
    iqa = AgenticIQA(load_settings(overrides={"seed": 7}))
    record = program.evaluation.evaluate(iqa, manifest, progress=False)
    assert isinstance(record, EvaluationRecord)
    assert record.srcc.value == pytest.approx(printed["srcc"]["value"])
    assert record.details.model_dump(mode="json") == printed["details"]
    listed = program.evaluation.evaluate(iqa, list(samples_of(manifest, load_settings())), progress=False)
    assert listed.figures == record.figures
    assert listed.dataset.manifest_sha256 is None
