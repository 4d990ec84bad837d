"""An evaluation of images that the program was fitted or chosen on: counted, left out, or marked; and drawn splits."""

import json
import shutil
from pathlib import Path

import pytest

from program import evaluate
from program.agent.labels import FittedOn
from program.agent.saving import load
from program.common.errors import InputError
from program.common.settings import load_settings
from program.evaluation import evaluating
from program.evaluation.evaluating import samples_of
from tests.scenarios import SMALL_COMPILE, blurred, write_lines

pytestmark = pytest.mark.usefixtures("coarse", "undrawn", "untracked", "untraced", "measured_once")


@pytest.fixture
def taught(scenario) -> Path:
    """A compile's folder: 40 photographs to train, 16 to choose and 16 to test, a quarter with a question too."""
    return scenario("taught").folder


@pytest.fixture
def rows(taught: Path) -> list[dict]:
    lines = (taught / "made-up.jsonl").read_text("utf-8").splitlines()
    return [{**row, "image": str(taught / row["image"])} for row in map(json.loads, lines) if "mos" in row]


@pytest.fixture(autouse=True)
def logged(monkeypatch: pytest.MonkeyPatch) -> list:
    """The records of evaluations, which are not logged."""
    records = []
    monkeypatch.setattr("program.evaluation.publishing.log_evaluation", lambda record, *_: records.append(record))
    return records


def _record(capsys, manifest, program, *flags):
    code = evaluate.main([str(manifest), "--program", str(program), "--json", *flags])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def test_samples_that_the_program_was_fitted_or_chosen_on_are_left_out_and_counted(
    taught, rows, tmp_path, capsys, logged
):
    manifest = write_lines(tmp_path / "m.jsonl", rows)
    record = _record(capsys, manifest, taught / "taught", "--split", "all")
    assert record["scoring"]["asked"] == record["srcc"]["n"] == 16
    assert record["fitted"] == {"samples": 56, "by_group": 0, "left_out": True, "drawn": False}
    whole = _record(capsys, manifest, taught / "taught", "--split", "all", "--include-fitted")
    assert whole["srcc"]["n"] == 72
    assert whole["fitted"] == {"samples": 56, "by_group": 0, "left_out": False, "drawn": False}
    assert _record(capsys, manifest, taught / "taught")["fitted"]["samples"] == 0
    assert [str(record.fitted) for record in logged] == ["56 left out", "56 counted", "none"]
    assert sum(row.columns()["fitted"] for row in logged[1].rows) == 56


def test_a_line_says_how_many_are_left_out_and_how_to_include_them(taught, rows, tmp_path, capsys):
    manifest = write_lines(tmp_path / "m.jsonl", rows)
    assert evaluate.main([str(manifest), "--program", str(taught / "taught"), "--split", "all"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    left_out = "Left out: 56 of 72 samples that the program was fitted or chosen on"
    assert f"{left_out} (--include-fitted counts them)" in said


def test_where_nothing_else_is_left_every_figure_is_marked(taught, rows, tmp_path, capsys):
    manifest = write_lines(tmp_path / "m.jsonl", rows)
    record = _record(capsys, manifest, taught / "taught", "--split", "train")
    assert record["fitted"] == {"samples": 40, "by_group": 0, "left_out": False, "drawn": False}
    assert record["scoring"]["used"] == 40
    assert evaluate.main([str(manifest), "--program", str(taught / "taught"), "--split", "train"]) == 0
    said = capsys.readouterr().out
    assert "m.jsonl · train · fitted on these" in said
    assert {"SRCC ↑*", "RMSE ↓*", "MAE ↓*"} <= {line.split("  ")[0].strip() for line in said.splitlines()}
    assert "* fitted on these: the program was fitted or chosen on all 40 samples" in " ".join(said.split())
    assert max(map(len, said.partition("samples in")[0].splitlines())) <= 80


def test_the_split_that_a_compile_knows_is_found_again_in_a_table_without_one(taught, rows, tmp_path, capsys):
    plain = [{key: row[key] for key in ("image", "mos")} for row in rows]
    manifest = write_lines(tmp_path / "scores.jsonl", plain)
    record = _record(capsys, manifest, taught / "taught")
    assert (record["dataset"]["split"], record["scoring"]["asked"]) == ("test", 16)
    assert record["fitted"] == {"samples": 0, "by_group": 0, "left_out": False, "drawn": True}
    given = _record(capsys, write_lines(tmp_path / "m.jsonl", rows), taught / "taught")
    assert given["srcc"]["value"] == record["srcc"]["value"]
    assert _record(capsys, manifest, taught / "taught", "--split", "validation")["srcc"]["n"] == 16
    others = write_lines(tmp_path / "others.jsonl", [{**row, "image": __file__} for row in plain[:1]])
    assert evaluate.main([str(others), "--program", str(taught / "taught")]) == 2
    assert "no sample in split 'test'; give --split all" in capsys.readouterr().err


@pytest.mark.slow
def test_the_rows_that_a_compile_drew_for_its_test_are_those_evaluated(tmp_path, capsys):
    from program import compile as compiles

    rows = [{**row, "mos": round(1 + (row["mos"] - 1) ** 2 / 4, 2)} for row in blurred(tmp_path, 104)]
    scores = tmp_path / "scores.csv"
    scores.write_text("image,mos\n" + "".join(f"{row['image']},{min(5, row['mos'])}\n" for row in rows), "utf-8")
    (tmp_path / "small.yaml").write_text(json.dumps(SMALL_COMPILE), "utf-8")
    flags = ["--config", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "mine"), "--json"]
    assert compiles.main(["--data", str(scores), *flags]) == 0
    compiled = json.loads(capsys.readouterr().out)["compiled"]
    record = _record(capsys, scores, tmp_path / "mine")
    assert record["fitted"] == {"samples": 0, "by_group": 0, "left_out": False, "drawn": True}
    assert record["srcc"] == compiled["srcc"]
    everything = _record(capsys, scores, tmp_path / "mine", "--split", "all")
    assert everything["srcc"] == compiled["srcc"]
    assert everything["fitted"]["samples"] == 104 - compiled["srcc"]["n"]


def test_images_of_a_fitted_group_or_reference_count_as_fitted(taught, rows, tmp_path, capsys):
    test = [row for row in rows if row["split"] == "test"]
    (tmp_path / "some.png").write_bytes(Path(rows[0]["image"]).read_bytes())
    test[0]["group"] = rows[1]["group"]
    test[1]["reference"] = str(tmp_path / "some.png")
    # Of another data set, which calls its references the same: TID2013 and KADID-10k do.
    test[2] |= {"reference": test[2]["image"], "group": rows[1]["group"]}
    manifest = write_lines(tmp_path / "m.jsonl", test)
    record = _record(capsys, manifest, taught / "taught", "--split", "all")
    assert record["fitted"] == {"samples": 2, "by_group": 2, "left_out": True, "drawn": False}
    assert record["srcc"]["n"] == 14


def test_a_group_of_another_table_with_the_same_name_is_no_fitted_one(taught, rows, tmp_path, capsys, encoded):
    others = []
    for number, row in enumerate(rows[:3]):
        (tmp_path / f"{number}.png").write_bytes(encoded(900 + number))
        others.append({"image": f"{number}.png", "mos": number + 2, "group": row["group"]})
    manifest = write_lines(tmp_path / "others.jsonl", others)
    record = _record(capsys, manifest, taught / "taught", "--split", "all")
    assert record["fitted"] == {"samples": 0, "by_group": 0, "left_out": False, "drawn": False}
    assert record["scoring"]["asked"] == 3
    # Beside one of the photographs that it knows, in its group, the same names are the same groups.
    manifest = write_lines(tmp_path / "more.jsonl", [rows[0], *others])
    record = _record(capsys, manifest, taught / "taught", "--split", "all", "--include-fitted")
    assert record["fitted"] == {"samples": 4, "by_group": 3, "left_out": False, "drawn": False}


def test_a_program_without_that_file_is_evaluated_without_a_claim(taught, rows, tmp_path, capsys):
    old = Path(shutil.copytree(taught / "taught", tmp_path / "old"))
    document = json.loads((old / "program.json").read_text("utf-8"))
    del document["fitted_on"]
    (old / "program.json").write_text(json.dumps(document), "utf-8")
    record = _record(capsys, write_lines(tmp_path / "m.jsonl", rows), old, "--split", "train")
    assert record["fitted"] is None
    assert record["srcc"]["n"] == 40


def test_python_gets_the_marks_and_a_saved_copy_keeps_them(taught, rows, tmp_path):
    from data.manifest import read_manifest
    from program.agent.saving import save
    from program.evaluation import evaluate as evaluated

    manifest = write_lines(tmp_path / "m.jsonl", rows)
    iqa = load(save(load(taught / "taught"), tmp_path / "copy"))
    assert evaluated(iqa, manifest, split=None, progress=False).fitted.left_out
    record = evaluated(iqa, [sample for sample in read_manifest(manifest) if sample.split != "train"], progress=False)
    assert record.fitted.samples == sum(row.fitted for row in record.rows) == 16
    assert record.srcc.n == 32
    document = json.loads((tmp_path / "copy" / "program.json").read_text("utf-8"))
    document["fitted_on"]["train"]["images"] = 5
    (tmp_path / "copy" / "program.json").write_text(json.dumps(document), "utf-8")
    with pytest.raises(InputError, match=r"program.json cannot be read .*fitted_on.train.images"):
        load(tmp_path / "copy")


def test_the_uncompiled_program_is_the_first_baseline_of_a_compiled_one(taught, rows, tmp_path, capsys):
    manifest = write_lines(tmp_path / "m.jsonl", rows)
    record = _record(capsys, manifest, taught / "taught", "--baselines")
    first, way = next(iter(record["baselines"].items()))
    compiled = json.loads((taught / "taught" / "program.json").read_text("utf-8"))["record"]
    assert first == "uncompiled"
    assert way["srcc"]["value"] == pytest.approx(compiled["uncompiled"]["srcc"]["value"], abs=1e-5)
    assert way["gain"]["rmse"]["value"] == pytest.approx(compiled["difference"]["rmse"]["value"], abs=1e-5)
    assert evaluate.main([str(manifest), "--program", str(taught / "taught"), "--baselines"]) == 0
    said = capsys.readouterr().out
    assert said.index("uncompiled") < said.index("model only")
    assert evaluate.main([str(manifest), "--baselines", "--json"]) == 0
    assert "uncompiled" not in json.loads(capsys.readouterr().out)["baselines"]


@pytest.mark.parametrize("split", [None, "validation", "test"])
def test_the_samples_of_a_manifest_are_read_once_before_an_evaluation(tmp_path, monkeypatch, split) -> None:
    path = tmp_path / "manifest.jsonl"
    rows = [{"id": str(n), "image": f"{n}.png", "mos": 1 + n, "split": ("validation", "test")[n % 2]} for n in range(4)]
    write_lines(path, rows)
    passes, read = [], evaluating.read_manifest
    monkeypatch.setattr(evaluating, "read_manifest", lambda *given: passes.append(given) or read(*given))
    fitted_on = FittedOn.of({name: list(read(path)) for name in ("train", "validation", "test")})
    assert len(samples_of(path, load_settings(), split, fitted_on=fitted_on)) == (4 if split is None else 2)
    assert len(passes) == 1
