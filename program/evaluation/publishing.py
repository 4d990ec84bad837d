"""Where an evaluation goes when it is done: an MLflow run, and the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from data.manifest import Sample
from program.common.settings import Settings
from program.evaluation.charts import charts
from program.evaluation.intervals import Figure
from program.evaluation.metric_table import METRICS
from program.evaluation.page import render
from program.evaluation.record import Environment, EvaluationRecord, environment
from program.evaluation.tables import baseline_tables, figures_table
from program.tracking import RunHandle, Tracker

__all__ = ("log_calibration", "log_evaluation", "log_figures", "log_origin", "record_costs", "record_figures", "show")

_MAX_TABLE_ROWS = 20_000
"""A larger table takes MLflow's UI minutes to show; the checkpoint holds every row."""

_FAILURES_SHOWN = 5


def log_evaluation(
    record: EvaluationRecord, tracker: Tracker, samples: Iterable[Sample], page: Path | None = None
) -> RunHandle:
    """Log params, every figure with its interval, the samples' table, the charts and the report as one MLflow run.

    `page` is the report where it was written already; else one is made from `samples` for the run alone.
    """
    split = record.dataset.split or "all"
    plots = charts(record)
    with tracker.run(f"evaluate {split} seed {record.seed}", {"command": "evaluate"}) as run:
        log_origin(run, record, split)
        run.log_params({"data": record.dataset.model_dump(), "seed": record.seed, **record.context})
        log_figures(run, record_figures(record))
        run.log_metrics(record_costs(record))
        rows = islice(record.rows, _MAX_TABLE_ROWS)
        run.log_table([row.model_dump(mode="json", exclude={"notes"}) for row in rows], "samples")
        for plot_name, plot in plots.items():
            run.log_plot(plot, plot_name)
        run.log_json(record.summary(), "record")
        run.log_text(page.read_text("utf-8") if page else render(record, samples, plots), "report.html")
    return run


def log_calibration(
    tracker: Tracker, settings: Settings, datasets: Sequence[tuple[str, str, str]], result: Mapping[str, Any], out: Path
) -> RunHandle:
    """Log a calibration (or measured strengths) with the datasets (name, hash, split) it was fitted on, as one run."""
    names = " + ".join(name for name, _, _ in datasets)
    with tracker.run(f"calibrate on {names}", {"command": "calibrate"}, result=f"the result is in {str(out)!r}") as run:
        for name, digest, split in datasets:
            run.log_dataset(name, digest, name, split)
        _log_environment(run, environment())
        run.log_params({"tools": settings.tools.model_dump(mode="json"), "seed": settings.seed})
        for tool, fitted in result.get("tools", {}).items():
            known = {k: v for k, v in fitted.items() if isinstance(v, int | float)}
            run.log_metrics({f"{tool}_{key}": float(value) for key, value in known.items()})
        run.log_json(result, "result")
        run.log_file(out)
    return run


def log_origin(run: RunHandle, record: EvaluationRecord, context: str) -> None:
    """Log which data a record is about, and the code and packages that made it."""
    run.log_dataset(record.dataset.name, record.dataset.manifest_sha256 or "unknown", record.dataset.name, context)
    _log_environment(run, record.environment)


def _log_environment(run: RunHandle, here: Environment) -> None:
    tags = {f"version.{name}": version for name, version in here.versions.items()}
    if here.git_commit:
        tags |= {"mlflow.source.git.commit": here.git_commit, "git_dirty": str(here.git_dirty).lower()}
    run.set_tags(tags)


def record_figures(record: EvaluationRecord) -> dict[str, Figure]:
    """Return every figure of a record by its metric's name in MLflow; simpler ways as baseline_WAY_METRIC."""
    figures = record.figures | (record.details.figures if record.details is not None else {})
    for key, way in record.baselines.items():
        prefix = "baseline_" + "".join(c if c.isalnum() else "_" for c in key)
        figures |= {f"{prefix}_{name}": figure for name, figure in way.figures.items() if METRICS[name].card}
    return figures


def log_figures(run: RunHandle, figures: Mapping[str, Figure | None]) -> None:
    """Log figures in one request, each as metrics `name`, `name_low` and `name_high`; None logs nothing."""
    ends: dict[str, float | None] = {}
    for name, figure in figures.items():
        if figure is not None:
            ends |= {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}
    run.log_metrics(ends)


def record_costs(record: EvaluationRecord) -> dict[str, float | None]:
    """Return what a record cost and how it ran, by the metric's name in MLflow."""
    counts = {"failed": record.failed, "wall_seconds": record.wall_seconds, "lm_calls": record.lm_calls,
              "tokens": record.tokens, "cost_usd": record.cost_usd}  # fmt: skip
    rungs = {f"rung_{name.replace(' ', '_')}": share for name, share in record.rung_shares.items()}
    stages = {
        f"{kind}_{stage}": value
        for stage, cost in record.spent_by_stage.items()
        for kind, value in cost
        if value is not None
    }
    return {**counts, **rungs, **stages, **{f"mean_{n}": v for n, v in record.spent_per_sample.items()}, **record.pace}


def show(record: EvaluationRecord, page: Path | None) -> None:
    """Print the tables, what failed and what it cost, and where the report is."""
    console = Console()
    console.print(figures_table(record))
    for table in baseline_tables(record):
        console.print()
        console.print(table)
    for name, error in islice(record.failures(), _FAILURES_SHOWN):
        console.print(f"failed      {name}: {error}", highlight=False, markup=False, soft_wrap=True)
    if record.failed > _FAILURES_SHOWN:
        console.print(f"            and {record.failed - _FAILURES_SHOWN} more, in the report", highlight=False)
    spent = f"{record.lm_calls or 0} model calls, {record.tokens or 0} tokens"
    spent += f", {record.cost_usd:.4f} USD" if record.cost_usd is not None else ""
    console.print(f"\n{len(record.rows)} samples in {record.wall_seconds:.1f} s, {spent}", highlight=False)
    if page is not None:
        console.print(f"report      {page}", highlight=False, soft_wrap=True)
