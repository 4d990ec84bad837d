"""What MLflow holds of a compile and of an evaluation of its program; what a compile says of itself meanwhile."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from optimizers import selection
from optimizers.command import compile_tracked
from optimizers.job import prepare_job
from optimizers.recipes import fits
from optimizers.search import Candidate
from program.common.settings import load_settings
from program.compile import main as compile_command
from program.evaluate import main as evaluate_command
from program.evaluation.publishing import worst_rows
from program.fusion.scores import FittedFusion
from program.tracking.store import open_client
from signatures.rubric import with_rubric
from tests.scenarios import SMALL_COMPILE

pytestmark = pytest.mark.usefixtures("measured_once", "coarse")

FEW_PARAMS = {
    "data", "data_sha256", "labels", "sizes", "optimizer", "seed", "model", "roles", "chosen", "demos", "rubric",
    "fusion",
}  # fmt: skip
GAINS = {f"gain_{name}" for name in ("srcc", "rmse", "accuracy")}
FEW_METRICS = GAINS | {
    "srcc", "plcc", "rmse", "accuracy", "validation_srcc", "model_srcc", "tools_srcc",
    "best_simple_srcc", "failed", "seconds", "lm_calls", "fusion_eta", "fusion_model_weight", "search_score",
}  # fmt: skip


def experiments(client):
    return [experiment.experiment_id for experiment in client.search_experiments()]


@pytest.mark.slow
def test_mlflow_holds_what_was_searched_and_the_curve_of_the_best_so_far(few_photographs, service_program, tmp_path):
    searched = {"demos": 2, "role_demos": 1, "bootstrapped": 1, "starts": 4, "search_samples": 6}
    settings = load_settings(overrides={**SMALL_COMPILE, "optimizers": {"model": {"random-search": searched}}})
    lm = service_program().resources.lm("summarizer")
    done = compile_tracked(prepare_job(settings, str(few_photographs), "random-search", tmp_path / "out", lm=lm))
    client, _ = open_client(settings.mlruns_dir)
    kept = Path(client.download_artifacts(done.run.run_id, "candidates.jsonl", str(tmp_path)))
    lines = [json.loads(line) for line in kept.read_text("utf-8").splitlines()]
    assert [(line["name"], line["score"]) for line in lines] == [
        (name, pytest.approx(score, abs=1e-6)) for name, score, _ in done.result.curve
    ]
    curve = [m.value for m in client.get_metric_history(done.run.run_id, "search_score")]
    assert curve == pytest.approx([best for _, _, best in done.result.curve], abs=1e-4)
    assert curve == sorted(curve)
    assert len(curve) == 4


@pytest.mark.slow
@pytest.mark.spec("issue-44/mlflow-few-names")
def test_a_fitted_map_is_the_same_in_parameter_artifact_and_program(blurred_manifest, tmp_path, monkeypatch):
    knots = [[1.0, 1.05], [3.0, 2.5], [5.0, 5.0]]

    def proposed(search):
        copy, plain = search.base.program.deepcopy(), search.base.program.resources.fusion
        copy.summarizer.fitted = FittedFusion(plain, eta=0.5, model_weight=2.0, curve=knots, kind="isotonic")
        return [Candidate("fusion/fitted", copy)]

    monkeypatch.setattr(fits, "FUSION", replace(fits.FUSION, run=proposed))
    monkeypatch.setattr(selection, "clear_gain", lambda new, old: True)
    settings = load_settings(overrides={"compile": {"baselines": False}})
    done = compile_tracked(prepare_job(settings, str(blurred_manifest), "fusion", tmp_path / "out"))
    assert done.result.chosen == "fusion/fitted"
    client, _ = open_client(settings.mlruns_dir)
    run = client.get_run(done.run.run_id)
    saved = json.loads((tmp_path / "out" / "program.json").read_text("utf-8"))["fusion"]
    assert saved == {"eta": 0.5, "model_weight": 2.0, "map": "isotonic", "curve": knots}

    # An evaluation of the program calls everything the same.
    assert evaluate_command([str(blurred_manifest), "--program", str(tmp_path / "out")]) == 0
    (judged,) = client.search_runs([run.info.experiment_id], "tags.command = 'evaluate'")
    # None of the tools that read these photographs is reliable enough to have weight.
    for params in (run.data.params, judged.data.params):
        assert params["fusion"] == "model alone (no tool has weight), map isotonic"
    assert run.data.params.keys() == FEW_PARAMS >= judged.data.params.keys() - {"fitted"}
    assert judged.data.params["fitted"] == "none"  # of the test samples
    shared = run.data.params.keys() & judged.data.params.keys()
    assert {name for name in shared if run.data.params[name] != judged.data.params[name]} == {"sizes"}
    assert {"fusion_eta": 0.5, "fusion_model_weight": 2.0}.items() <= run.data.metrics.items()
    for name in ("srcc", "rmse", "accuracy", "model_srcc"):
        assert run.data.metrics[name] == pytest.approx(judged.data.metrics[name])
    assert judged.data.metrics.keys() | GAINS <= run.data.metrics.keys() <= FEW_METRICS

    # What is not in sight stands in the run's files.
    kept = {name: Path(client.download_artifacts(done.run.run_id, name, str(tmp_path)))
            for name in ("result.json", "settings.yaml", "report.html", "diff.md")}  # fmt: skip
    assert json.loads(kept["result.json"].read_text("utf-8"))["verdict"] == done.result.verdict.text
    asked = yaml.safe_load(kept["settings.yaml"].read_text("utf-8"))
    assert (asked["settings"]["fusion"]["eta"], asked["optimizers"]) == (1.0, ["fusion"])

    # The list shows the leading figure and the gain with interval and samples.
    now, gain = done.result.compiled.srcc, done.result.differences["srcc"]
    assert run.data.tags["agreement"] == judged.data.tags["agreement"] == f"SRCC {now} n={now.n}"
    assert run.data.tags["gain"] == f"{gain.value_text('+')} {gain.ends_text('+')}"

    # *Datasets* holds train, validation and test, each once.
    shown = {each.name: each for each in client.search_datasets(experiments(client))}
    data = blurred_manifest.parent.name
    assert set(shown) == {f"{data} train", f"{data} validation", f"{data} test"}
    records = {record.inputs["image"]: record for record in shown[f"{data} test"].records}
    samples = {
        str(sample.image): sample
        for sample in prepare_job(settings, str(blurred_manifest), "fusion", tmp_path / "again").splits["test"]
    }
    assert records.keys() == samples.keys()
    (test,) = [entry.dataset for entry in run.inputs.dataset_inputs if entry.tags[0].value == "test"]
    assert json.loads(test.source) == {"dataset_id": shown[f"{data} test"].dataset_id}

    # Both belong to one LoggedModel, whose figures are those of both; the data has its own name.
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert model.name == "fusion-fitted by fusion"
    assert model.params["fusion"] == run.data.params["fusion"]
    assert run.outputs.model_outputs[0].model_id == model.model_id
    assert client.get_run(judged.info.run_id).inputs.model_inputs[0].model_id == model.model_id
    tests = {each.info.run_name: each for each in client.search_runs(experiments(client), "tags.command = 'test'")}
    assert set(tests) == {"fusion/fitted"}
    assert not any(each.outputs.model_outputs for each in tests.values())
    assert {each.inputs.dataset_inputs[0].dataset.digest for each in tests.values()} == {test.digest}
    tested = tests["fusion/fitted"].info.run_id
    assert {m.run_id for m in model.metrics} == {run.info.run_id, judged.info.run_id, tested}
    assert {m.dataset_name for m in model.metrics} == {run.inputs.dataset_inputs[0].dataset.name}
    digests = [{entry.tags[0].value: entry.dataset.digest for entry in each.inputs.dataset_inputs}
               for each in (run, client.get_run(judged.info.run_id))]  # fmt: skip
    assert list(digests[0]) == ["train", "validation", "test"]
    assert len(set(digests[0].values())) == 3
    assert digests[1] == {"test": digests[0]["test"]}
    assert run.data.params["data"] == run.inputs.dataset_inputs[0].dataset.name == blurred_manifest.parent.name
    said = run.data.tags["mlflow.note.content"]
    assert said.startswith(done.result.verdict.text)
    assert all(sentence in said for sentence in done.result.learned)


@pytest.fixture
def one_sentence(monkeypatch):
    """A recipe that adds one sentence to the Summarizer's instructions, and a choice that takes it."""

    def proposed(search):
        copy = search.base.program.deepcopy()
        predictor = copy.summarizer.score
        predictor.signature = with_rubric_of(predictor.signature, "Blur counts twice as much as usual.")
        return [Candidate("fusion/blur", copy)]

    def with_rubric_of(signature, sentence):
        return signature.with_instructions(with_rubric(signature.instructions, [sentence]))

    monkeypatch.setattr(fits, "FUSION", replace(fits.FUSION, run=proposed))
    monkeypatch.setattr(selection, "clear_gain", lambda new, old: True)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.spec("issue-44/mlflow-prompts-datasets-traces")
@pytest.mark.filterwarnings("default")  # MLflow turns any warning of its own dependencies into a trace that is lost
def test_what_a_compile_learned_is_a_prompt_and_its_worst_misses_are_traces(few_photographs, tmp_path, one_sentence):
    settings = load_settings(overrides={"compile": {"baselines": False}, "tracking": {"traces": 1}})
    job = prepare_job(settings, str(few_photographs), "fusion", tmp_path / "out")
    done = compile_tracked(job, register="blur")
    client, _ = open_client(settings.mlruns_dir)
    run = client.get_run(done.run.run_id)
    assert run.data.params["rubric"] == "Blur counts twice as much as usual."

    prompt = client.get_prompt_version_by_alias("blur.summarizer.score", "champion")
    assert prompt.template == done.result.program.summarizer.score.signature.instructions
    assert prompt.commit_message.endswith("+ Blur counts twice as much as usual.")
    assert prompt.model_config["model_name"] == run.data.params["model"]
    assert {each.name for each in client.search_prompts()} == {"blur.summarizer.score"}  # the expert reads no prompt
    assert "blur.summarizer.score" in run.data.tags["mlflow.linkedPrompts"]

    rows = {row.id: row for row in done.result.compiled.rows}
    wanted = [row for task in ("scoring", "mcq") for row in worst_rows(rows.values(), task)[:1]]
    own = f"metadata.`mlflow.sourceRun` = '{done.run.run_id}'"
    traces = client.search_traces(locations=[run.info.experiment_id], filter_string=own)
    assert {trace.info.tags["sample"] for trace in traces} == {row.id for row in wanted}
    for trace in traces:
        row = rows[trace.info.tags["sample"]]
        answer = round(row.predicted, 3) if row.task == "scoring" else row.predicted
        said = {each.name: each for each in trace.info.assessments}
        assert (said["truth"].value, said["truth"].source.source_type) == (row.truth, "HUMAN")
        assert said["score"].value == answer
        off = round(abs(answer - row.truth), 3) if row.task == "scoring" else 1.0
        assert said["error"].value == pytest.approx(off)
        names = {span.name for span in trace.data.spans}
        assert {"AgenticIQA", "planner", "summarizer"} <= names
        assert not [name for name in names if name.endswith((".forward", "__call__"))]
        (root,) = [span for span in trace.data.spans if span.parent_id is None]
        assert None not in root.inputs.values()
        assert root.inputs["picture"].startswith("mlflow-attachment://")
        written = json.dumps(trace.to_dict(), default=str)
        assert "base64" not in written
        assert "127.0.0.1" not in written


@pytest.mark.usefixtures("undrawn", "untraced")
@pytest.mark.spec("issue-44/mlflow-champion-asked-for")
@pytest.mark.parametrize(("optimizer", "leads"), [("fusion", False), ("none", True)])
def test_the_uncompiled_program_leads_only_where_it_was_asked_for(
    few_photographs, tmp_path, monkeypatch, optimizer, leads, capfd
):
    monkeypatch.setattr(fits, "FUSION", replace(fits.FUSION, run=lambda search: []))
    words = ["--data", str(few_photographs), "--optimizer", optimizer, "--out", str(tmp_path / "out")]
    assert compile_command([*words, "--register", "plain", "--json"]) == 0
    out, err = capfd.readouterr()
    told = json.loads(out)
    assert told["chosen"] == "uncompiled"
    assert (told["registered"]["champion"], told["registered"]["version"]) == (leads, 1)
    assert leads or "--optimizer none" in told["registered"]["why"]
    assert "Warning" not in err


@pytest.mark.usefixtures("undrawn", "unlogged")
def test_a_step_that_is_left_out_is_told_and_so_is_what_to_try_next(blurred_manifest, tmp_path, capsys):
    lines = [json.loads(line) for line in blurred_manifest.read_text("utf-8").splitlines()]
    chosen_by = [line["id"] for line in lines if line["split"] == "validation" and "mos" in line]
    kept = [line for line in lines if line["id"] not in chosen_by[9:]]
    blurred_manifest.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
    (tmp_path / "small.yaml").write_text(json.dumps(SMALL_COMPILE), "utf-8")
    words = ["--data", str(blurred_manifest), "--config", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out")]
    assert compile_command([*words, "--dry-run"]) == 0
    told = "fusion is left out: there are 33 scored training and 9 scored validation samples"
    assert capsys.readouterr().err.count(told) == 1
    job = prepare_job(load_settings(overrides=SMALL_COMPILE), str(blurred_manifest), out=tmp_path / "b")
    assert [told in note for note in job.notes].count(True) == 1
    assert compile_command([*words, "--optimizer", "none"]) == 0
    shown = capsys.readouterr()
    assert "To try next: more labelled training samples" in shown.out
    assert "--optimizer rubric" in shown.out
    assert "--optimizer nearest" not in shown.out  # it learns from answers, and there are too few
    assert "left out" not in shown.out + shown.err
    assert "0/0" not in shown.err
