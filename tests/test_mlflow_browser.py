"""MLflow's own page, as docs/tracking.md starts it, on a compile and an evaluation. Skips where there is no browser."""

import json
import os
import shlex
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
    _, _, *words = shlex.split(tracker.ui_hint)  # the very line that a command prints
    assert words == ["program.runs"]
    page = browser.new_page(viewport={"width": 1500, "height": 1000})
    page.set_default_timeout(60_000)
    with started_server(
        [*words, "--no-browser"], tmp_path, ready="/health", environment={"PYTHONPATH": ROOT}
    ) as address:
        runs, experiment = [compiled.run.run_id, judged.info.run_id], tracker.experiment_id
        page.goto(tracker.runs_url.replace("http://127.0.0.1:5000", address))
        page.get_by_text("compile fusion seed 0").first.wait_for()
        page.get_by_text("Sort: srcc").first.wait_for()
        shown = page.inner_text("body").split()
        assert {"gain_srcc", "rmse", "srcc"} <= set(shown)
        assert f"{compiled.result.compiled.srcc.value:.4f}"[:5] in page.inner_text("body")
        assert "uncompiled" not in shown  # candidates stay with their compile
        asked = urllib.parse.urlencode({"runs": json.dumps(runs), "experiments": json.dumps([experiment])})
        page.goto(f"{address}/#/compare-runs?{asked.replace('+', '%20')}")
        page.get_by_text("Comparing 2 Runs").first.wait_for()
        page.get_by_text("0.35", exact=True).first.wait_for()
        shown = page.inner_text("body")
        assert ["fusion", "eta 0.35, model weight 2.5, tools reliability, map line"] in [
            line.split("\t")[:2] for line in shown.splitlines()
        ]
        table = shown.partition("\nMetrics\n")[2].partition("\nArtifacts\n")[0].split()
        names = ["accuracy", "failed", "fusion_eta", "fusion_model_weight"]
        assert [name for name in table if name in names] == names
        numbers = [word for word in table if set(word) <= set("0123456789.")]
        assert numbers[4:8] == ["0.35", "1", "2.5", "1"]
        for run_id in runs:
            page.goto(f"{address}/#/experiments/{experiment}/runs/{run_id}/traces")
            page.get_by_text('"truth": ').first.wait_for()
        page.goto(f"{address}/#/experiments/{experiment}/runs/{runs[1]}/artifacts/report.html")
        page.frame_locator("iframe").get_by_text("rank agreement").first.wait_for()
        shown_picture = page.request.get(
            compiled.run.address("misses/01.png").replace("http://127.0.0.1:5000", address)
        )
        assert shown_picture.body().startswith(b"\x89PNG")
    page.close()
