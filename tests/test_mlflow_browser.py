"""MLflow's own page, as docs/tracking.md starts it, on a compile and an evaluation. Skips where there is no browser."""

import json
import os
import urllib.parse
from dataclasses import replace
from pathlib import Path

import pytest

from optimizers import selection
from optimizers.command import compile_tracked
from optimizers.job import prepare_job
from optimizers.recipes import fits
from optimizers.search import Candidate
from program.common.settings import load_settings
from program.evaluate import main as evaluate_command
from program.fusion.scores import FittedFusion
from program.tracking import Tracker, experiment_name
from program.tracking.store import runs_url

COLUMNS = {"agreement", "gain", "chosen", "fusion", "model"}
FUSION = "model alone (no tool has weight), map line"
ROOT = str(Path(__file__).resolve().parents[1])


@pytest.fixture
def store(few_photographs, tmp_path, undrawn, unlogged, coarse, monkeypatch):
    """A compile that takes a fusion, and an evaluation of the uncompiled program; (tracker, their runs)."""

    def proposed(search):
        copy, plain = search.base.program.deepcopy(), search.base.program.resources.fusion
        copy.summarizer.fitted = FittedFusion(
            plain, eta=0.35, model_weight=2.5, curve=[(1, 1.5), (5, 4.5)], kind="line"
        )
        return [Candidate("fusion/fitted", copy)]

    monkeypatch.setattr(fits, "FUSION", replace(fits.FUSION, run=proposed))
    monkeypatch.setattr(selection, "clear_gain", lambda new, old: True)
    settings = load_settings(overrides={"compile": {"baselines": False}})
    compiled = compile_tracked(prepare_job(settings, str(few_photographs), "fusion", tmp_path / "out"))
    assert evaluate_command([str(few_photographs)]) == 0
    tracker = Tracker(settings.mlruns_dir, experiment_name(str(few_photographs)))
    (judged,) = tracker.client.search_runs([tracker.experiment_id], "tags.command = 'evaluate'")
    return tracker, compiled, judged


@pytest.mark.slow
@pytest.mark.spec("issue-44/mlflow-list-with-metrics")
@pytest.mark.skipif(os.name == "nt", reason="process groups differ on Windows")
@pytest.mark.filterwarnings("default")  # MLflow warns of its own types
def test_a_compile_and_an_evaluation_are_listed_and_compared_and_their_traces_open(
    browser, store, started_server, tmp_path
):
    tracker, compiled, judged = store
    assert tracker.ui_hint == "agentic-iqa runs"
    page = browser.new_page(viewport={"width": 1500, "height": 1000})
    page.set_default_timeout(60_000)
    with started_server(
        ["program.runs", "--no-browser"], tmp_path, ready="/health", environment={"PYTHONPATH": ROOT}
    ) as address:
        runs, experiment = [compiled.run.run_id, judged.info.run_id], tracker.experiment_id
        page.goto(runs_url(address, experiment))
        page.get_by_text("compile fusion seed 0").first.wait_for()
        page.get_by_text("Sort: srcc").first.wait_for()
        shown = page.inner_text("body").splitlines()
        assert COLUMNS <= set(shown)
        figure, gain = compiled.result.compiled.srcc, compiled.result.differences["srcc"]
        assert f"SRCC {figure} n={figure.n}" in shown
        assert f"{gain.value_text('+')} {gain.ends_text('+')}" in shown
        assert shown.count("uncompiled") == 1  # the evaluation
        asked = urllib.parse.urlencode({"runs": json.dumps(runs), "experiments": json.dumps([experiment])})
        page.goto(f"{address}/#/compare-runs?{asked.replace('+', '%20')}")
        page.get_by_text("Comparing 2 Runs").first.wait_for()
        page.get_by_text(FUSION).first.wait_for()
        shown = page.inner_text("body")
        assert ["fusion", FUSION] in [line.split("\t")[:2] for line in shown.splitlines()]
        table = shown.partition("\nMetrics\n")[2].partition("\nArtifacts\n")[0].split()
        names = ["accuracy", "failed", "fusion_eta", "fusion_model_weight"]
        assert [name for name in table if name in names] == names
        numbers = [word for word in table if set(word) <= set("0123456789.")]
        assert numbers[4:8] == ["0.35", "1", "2.5", "0.7"]
        for run_id in runs:
            page.goto(f"{address}/#/experiments/{experiment}/runs/{run_id}/traces")
            for column in ("truth", "score", "error"):
                page.get_by_text(column, exact=True).first.wait_for()
        traces = tracker.client.search_traces(
            locations=[experiment], filter_string=f"metadata.`mlflow.sourceRun` = '{runs[0]}'"
        )
        page.goto(
            f"{address}/#/experiments/{experiment}/runs/{runs[0]}/traces?selectedEvaluationId={traces[0].info.trace_id}"
        )
        page.get_by_text("summarizer.score").first.wait_for()
        assert page.locator("img[src^='blob:'], img[src*='attachment']").first.evaluate("i => i.naturalWidth") > 0
        page.goto(f"{address}/#/experiments/{experiment}/runs/{runs[1]}/artifacts/report.html")
        page.frame_locator("iframe").get_by_text("rank agreement").first.wait_for()
    page.close()
