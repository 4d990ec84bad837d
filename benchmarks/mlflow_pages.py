"""Pictures of MLflow's pages for docs/tracking.md: `python -m benchmarks.mlflow_pages --mlruns DIR [--out DIR]`.

Photographs the list of runs, the comparison of the best compile and the worst, the best run, its traces and one trace,
the evaluation runs and the prompts, as headless Chromium shows them of a store that holds such runs. Needs playwright
and Chromium; look at the pictures afterwards.
"""

import argparse
import contextlib
import io
import json
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PORT = 5057
SIZE = {"width": 1440, "height": 640}
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip


def main() -> int:
    """Write the pictures."""
    summary, _, rest = str(__doc__).partition("\n")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mlflow_pages", description=summary, epilog=rest)
    parser.add_argument("--mlruns", type=Path, default=Path("mlruns"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    arguments = parser.parse_args()
    with served(arguments.mlruns) as listed, page_of_chromium() as page:
        for name, address, words in addresses(arguments.mlruns, listed):
            page.goto("about:blank")
            page.goto(address)
            for word in words:
                page.get_by_text(word).first.wait_for()
            page.wait_for_timeout(4000)  # what it draws after its data came
            if name == "list":
                page.get_by_label("Hide banner").click()
            if name == "compare":
                page.get_by_text("Visualizations").first.click()
                page.get_by_text("Parameters", exact=True).first.scroll_into_view_if_needed()
                page.mouse.wheel(0, 500)
            if name == "trace":  # of whoever made the data
                page.add_style_tag(content="img {filter: blur(5px)}")
            page.wait_for_timeout(1500)
            taken = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            taken.quantize(64).save(arguments.out / f"mlflow-{name}.png", optimize=True)
            print(f"mlflow-{name}.png  {address}")
    return 0


@contextlib.contextmanager
def served(store: Path) -> Iterator[str]:
    """Serve a store as `make runs` does; yields the address of the list."""
    command = [sys.executable, "-m", "program.runs", str(store), "--port", str(PORT), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            yield str(server.stdout and server.stdout.readline()).split()[2]
        finally:
            server.terminate()


@contextlib.contextmanager
def page_of_chromium() -> Iterator[Any]:
    """Yield an empty page of a headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=[*FLAGS])
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(60_000)
        # MLflow's assistant opens by itself the first time.
        page.add_init_script(
            "localStorage['mlflow.assistant.fab.autoOpenedOnFirstLoad_v1'] = 'true';"
            "localStorage['mlflow.assistant.panelOpen_v1'] = 'false'"
        )
        yield page
        browser.close()


def addresses(store: Path, listed: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each picture's name, the page's address, and the words to wait for."""
    from program.tracking.store import open_client

    client, _ = open_client(store)
    base, _, rest = listed.partition("/#/experiments/")
    experiment = rest.partition("/")[0]
    compiles = "tags.command = 'compile' AND metrics.srcc > -1"
    runs = client.search_runs([experiment], compiles, order_by=["metrics.srcc DESC"])
    names = [run.info.run_id for run in (runs[0], runs[-1])]
    yield "list", listed, ["compile"]
    asked = urllib.parse.urlencode({"runs": json.dumps(names), "experiments": json.dumps([experiment])})
    yield "compare", f"{base}/#/compare-runs?{asked.replace('+', '%20')}", ["Comparing 2 Runs"]
    run = f"{base}/#/experiments/{experiment}/runs/{names[0]}"
    yield "run", run, ["gain_srcc"]
    yield "traces", f"{run}/traces", ["sample "]
    own = f"metadata.`mlflow.sourceRun` = '{names[0]}'"
    (trace, *_) = client.search_traces(locations=[experiment], filter_string=own)
    yield "trace", f"{run}/traces?selectedEvaluationId={trace.info.trace_id}", ["planner.plan"]
    yield "evaluations", f"{base}/#/experiments/{experiment}/evaluation-runs", ["uncompiled"]
    if client.search_prompts(f"experiment_id = '{experiment}'"):  # the embedded expert may have learned none
        yield "prompts", f"{base}/#/experiments/{experiment}/prompts", ["summarizer"]


if __name__ == "__main__":
    sys.exit(main())
