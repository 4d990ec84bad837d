"""MLflow's own page, as docs/tracking.md starts it, on a store of this project. Skips where there is no browser."""

import json
import os
import shlex
import urllib.parse

import pytest

from program.evaluation.intervals import Figure
from program.evaluation.publishing import log_figures
from program.tracking import Tracker


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two finished runs with figures, a fusion ablation, a nested candidate and a report."""
    folder = tmp_path_factory.mktemp("ui")
    tracker = Tracker(folder / "mlruns", "quickstart")
    report = folder / "report.html"
    report.write_text("<!doctype html><h1>Evaluated with care</h1>", encoding="utf-8")
    runs = []
    for name, srcc in (("compile labeled seed 0", 0.71), ("compile random-search seed 0", 0.75)):
        with tracker.run(name, {"command": "compile"}) as run:
            run.log_params({"optimizer": name.split()[1]})
            figure = Figure(value=srcc, low=srcc - 0.05, high=srcc + 0.05, n=240, groups=2, method="m")
            ablation = {"baseline_normalised_fusion_srcc": figure, "baseline_printed_fusion_srcc": figure}
            log_figures(run, {"srcc": figure, **ablation})
            with run.nested("candidate 1") as child:
                child.log_metrics({"search_score": srcc})
            run.log_file(report)
        runs.append(run.run_id)
    return folder, tracker, runs


@pytest.fixture(scope="module")
def page_of(store, started_server):
    """The address of `mlflow ui`, started with the very line that a command prints."""
    folder, tracker, _ = store
    first, *words = shlex.split(tracker.ui_hint)
    assert words[:2] == ["mlflow", "ui"]
    with started_server(words, folder, ready="/health", environment=dict([first.split("=", 1)])) as address:
        yield address


@pytest.mark.skipif(os.name == "nt", reason="process groups differ on Windows")
def test_two_runs_are_compared_and_a_report_opens(browser, page_of, store):
    _, tracker, runs = store
    page = browser.new_page(viewport={"width": 1500, "height": 1000})
    page.set_default_timeout(60_000)
    experiment = tracker.experiment_id
    page.goto(tracker.runs_url.replace("http://127.0.0.1:5000", page_of))
    page.get_by_text("compile random-search seed 0").first.wait_for()
    asked = urllib.parse.urlencode({"runs": json.dumps(runs), "experiments": json.dumps([experiment])})
    page.goto(f"{page_of}/#/compare-runs?{asked.replace('+', '%20')}")
    page.get_by_text("Comparing 2 Runs").first.wait_for()
    page.get_by_text("baseline_normalised_fusion_srcc").first.wait_for()
    shown = page.inner_text("body")
    for words in ("srcc", "0.71", "0.75", "baseline_printed_fusion_srcc", "random-search"):
        assert words in shown
    page.goto(f"{page_of}/#/experiments/{experiment}/runs/{runs[1]}/artifacts/report.html")
    page.frame_locator("iframe").get_by_text("Evaluated with care").wait_for()
    page.close()
