"""A job over many images as one MLflow run: what was asked, its pace, its failures and what it spent."""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager

from program.batch.tally import Tally
from program.common.settings import Settings
from program.tracking import Tracker, experiment_name

__all__ = ("tracked",)


@contextmanager
def tracked(arguments: argparse.Namespace, settings: Settings, tally: Tally) -> Iterator[None]:
    """Log the job inside the block; a job that ends before its end has a run that failed, with its figures."""
    tracker = Tracker(settings.mlruns_dir, experiment_name(arguments.image[0]))
    tags = {"agentic_iqa.kind": "assess"}
    with tracker.run("assess", tags, result=f"the table is {arguments.out}" if arguments.out else "") as run:
        names = ("engine", "workers", "threads", "gpus", "out", "query", "program", "max_calls", "max_cost",
                 "max_tokens")  # fmt: skip
        run.log_params({"sources": " ".join(arguments.image), **{name: getattr(arguments, name) for name in names}})
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            counts = {name: tally.counts[name] for name in ("images", "scored", "failed", "lm_calls")}
            run.log_metrics(
                {**counts, "cost_usd": tally.cost_usd, "mean_score": tally.mean_score, "seconds": seconds,
                 "images_per_second": tally.counts["images"] / seconds}
            )  # fmt: skip
    if not arguments.json:
        run.show()
