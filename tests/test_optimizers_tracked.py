"""What MLflow holds of a compile and of an evaluation of its program; what a compile says of itself meanwhile."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from optimizers import selection
from optimizers.command import compile_tracked
from optimizers.job import prepared
from optimizers.plan import Forecast, call_plan
from optimizers.recipes import fusion
from optimizers.report import CandidateRuns
from optimizers.search import Candidate
from program.agent.loop import AgenticIQA
from program.common.settings import load_settings
from program.compile import main as compile_command
from program.evaluate import main as evaluate_command
from program.fusion.fitted import FittedFusion
from program.tracking.store import open_client

SMALL = {
    "compile": {"rerank": 2, "baselines": False},
    "optimizers": {"embedded": {"random-search": {"demos": 4, "starts": 2, "steps": 2, "search_samples": 40}}},
}


def experiments(client):
    return [experiment.experiment_id for experiment in client.search_experiments()]


@pytest.mark.slow
def test_mlflow_holds_each_candidate_with_what_it_was_taught_as_it_ends(blurred_manifest, tmp_path, monkeypatch):
    settings = load_settings(overrides=SMALL)
    job = prepared(settings, str(blurred_manifest), "random-search", tmp_path / "out")
    seen, scored = [], CandidateRuns.scored

    def counted(self, candidate, best):
        scored(self, candidate, best)
        client, _ = open_client(settings.mlruns_dir)
        seen.append(len(client.search_runs(experiments(client), "tags.step = 'candidate'")))

    monkeypatch.setattr(CandidateRuns, "scored", counted)
    done = compile_tracked(job)
    result = done.result
    assert seen == [2, 3, 4, 5]  # the uncompiled program, then one by one
    client, _ = open_client(settings.mlruns_dir)
    nested = client.search_runs(experiments(client), f"tags.`mlflow.parentRunId` = '{done.run.run_id}'")
    runs = {run.info.run_name: run.data for run in nested}
    assert set(runs) == {name for name, _, _ in result.curve} | set(result.validation)
    for name, score, _ in result.curve:
        assert runs[name].metrics["search/score"] == pytest.approx(score)
        assert int(runs[name].params["demos.summarizer.score"]) > 0
    for name, values in result.validation.items():
        assert runs[name].metrics["validation/srcc"] == pytest.approx(values["srcc"])
    assert runs["uncompiled"].params["demos.summarizer.score"] == "0"
    instructions = AgenticIQA().summarizer.score.signature.instructions
    assert runs["uncompiled"].params["instructions.summarizer.score"] == instructions
    assert [name for name, data in runs.items() if data.tags.get("chosen")] == [result.chosen]
    curve = [m.value for m in client.get_metric_history(done.run.run_id, "search/best_so_far")]
    assert curve == [best for _, _, best in result.curve] == sorted(curve)
    assert len(curve) == 4


@pytest.mark.slow
def test_a_fitted_map_is_the_same_in_parameter_artifact_and_program(blurred_manifest, tmp_path, monkeypatch):
    knots = [[1.0, 1.05], [3.0, 2.5], [5.0, 5.0]]

    def proposed(search):
        copy, plain = search.base.program.deepcopy(), search.base.program.resources.fusion
        copy.summarizer.fitted = FittedFusion(plain, eta=0.5, model_weight=2.0, curve=knots, kind="isotonic")
        return [Candidate("fusion/fitted", copy)]

    monkeypatch.setattr(fusion, "RECIPE", replace(fusion.RECIPE, run=proposed))
    monkeypatch.setattr(selection, "clear_gain", lambda new, old: True)
    settings = load_settings(overrides={"compile": {"baselines": False}})
    done = compile_tracked(prepared(settings, str(blurred_manifest), "fusion", tmp_path / "out"))
    assert done.result.chosen == "fusion/fitted"
    client, _ = open_client(settings.mlruns_dir)
    run = client.get_run(done.run.run_id)
    (candidate,) = client.search_runs([run.info.experiment_id], "tags.chosen = 'true'")
    saved = json.loads((tmp_path / "out" / "program.json").read_text("utf-8"))["fusion"]
    assert saved == {"eta": 0.5, "model_weight": 2.0, "map": "isotonic", "curve": knots}
    artifact = Path(client.download_artifacts(done.run.run_id, "program/program.json", str(tmp_path)))
    assert json.loads(artifact.read_text("utf-8"))["fusion"] == saved

    # An evaluation of the program calls everything the same.
    assert evaluate_command([str(blurred_manifest), "--program", str(tmp_path / "out")]) == 0
    (judged,) = client.search_runs([run.info.experiment_id], "tags.command = 'evaluate'")
    for params in (run.data.params, candidate.data.params, judged.data.params):
        found = {name: json.loads(params[f"fusion.{name}"]) for name in ("eta", "model_weight", "curve")}
        assert {**found, "map": params["fusion.map"]} == saved
        assert params["fusion.tool_weights"] == "reliability"
    shared = run.data.params.keys() & judged.data.params.keys()
    assert {"data.name", "data.split", "program_sha256", "settings.fusion.eta", "models.summarizer"} <= shared
    assert {name for name in shared if run.data.params[name] != judged.data.params[name]} == set()
    tools = {name for name in run.data.params if name.startswith("tools.")}
    assert "tools.PIQE" in tools
    assert tools <= shared
    assert run.data.metrics["agreement/srcc"] == pytest.approx(judged.data.metrics["agreement/srcc"])
    assert all("/" in name for name in run.data.metrics | judged.data.metrics)

    # Both belong to one LoggedModel, whose figures are those of both; the data has its own name.
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert run.outputs.model_outputs[0].model_id == model.model_id
    assert client.get_run(judged.info.run_id).inputs.model_inputs[0].model_id == model.model_id
    assert {m.run_id for m in model.metrics} == {run.info.run_id, judged.info.run_id}
    assert {m.dataset_name for m in model.metrics} == {run.inputs.dataset_inputs[0].dataset.name}
    assert run.data.params["data.name"] == run.inputs.dataset_inputs[0].dataset.name == blurred_manifest.parent.name
    assert run.data.tags["mlflow.note.content"].startswith(done.result.verdict.text)
    for run_id in (run.info.run_id, judged.info.run_id):
        own = f"metadata.`mlflow.sourceRun` = '{run_id}'"
        assert client.search_traces(locations=[run.info.experiment_id], filter_string=own)


def test_a_step_that_is_left_out_is_told_and_so_is_what_to_try_next(blurred_manifest, tmp_path, capsys):
    lines = [json.loads(line) for line in blurred_manifest.read_text("utf-8").splitlines()]
    train = [line["id"] for line in lines if line["split"] == "train" and "mos" in line]
    kept = [line for line in lines if line["id"] not in train[20:]]
    blurred_manifest.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
    (tmp_path / "small.yaml").write_text(json.dumps(SMALL), "utf-8")
    words = ["--data", str(blurred_manifest), "--config", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out")]
    assert compile_command([*words, "--dry-run"]) == 0
    told = "fusion is left out: there are 20 scored training and"
    assert capsys.readouterr().err.count(told) == 1
    assert told in prepared(load_settings(overrides=SMALL), str(blurred_manifest), out=tmp_path / "b").notes[0]
    assert compile_command([*words, "--optimizer", "none"]) == 0
    shown = capsys.readouterr()
    assert "To try next: more labelled training samples" in shown.out
    assert "left out" not in shown.out + shown.err
    assert "0/0" not in shown.err


def test_the_forecast_goes_by_what_the_phases_took(blurred_manifest, tmp_path):
    plan = call_plan(prepared(load_settings(overrides=SMALL), str(blurred_manifest), "random-search", tmp_path / "out"))
    phases = {phase.name: phase.image_s + phase.answer_s for phase in plan.phases}
    assert plan.seconds == pytest.approx(sum(phases.values()), abs=10)
    for speed in (0.1, 1.0, 30.0):  # of a machine, against the one that was measured
        forecast = Forecast(plan)
        assert forecast.after("evidence", speed * phases["evidence"]) is not None
        assert forecast.after("choose on validation", 0.1) is None  # the uncompiled program; there is more to come
        left = forecast.after("random-search", speed * phases["random-search"])
        truth = speed * (phases["choose on validation"] + phases["test"])
        assert truth / 2 <= left <= 2 * truth
