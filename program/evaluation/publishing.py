"""Where an evaluation goes when it is done: an MLflow run, and the terminal."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from program.evaluation.charts import charts
from program.evaluation.environment import Environment, environment
from program.evaluation.intervals import Figure
from program.evaluation.page import write_report
from program.evaluation.record import EvaluationRecord
from program.evaluation.runner import SampleLike
from program.evaluation.tables import baseline_tables, figures_table
from program.settings import Settings
from program.tracking import RunHandle, Tracker, experiment_name

__all__ = ("Logged", "log_calibration", "log_evaluation", "log_origin", "record_costs", "record_figures", "show")

_MAX_TABLE_ROWS = 20_000
"""A larger table takes MLflow's UI minutes to show; the checkpoint holds every row."""

_FAILURES_SHOWN = 5


class Logged:
    """Where an evaluation's MLflow run is found."""

    def __init__(self, run: RunHandle, runs_url: str) -> None:
        self.run_id = run.run_id
        self.hint = f"{run.run_id}  ({run.ui_hint}, then {runs_url})"


def log_evaluation(
    record: EvaluationRecord,
    tracker: Tracker,
    samples: Iterable[SampleLike],
    page: Path | None = None,
) -> Logged:
    """Log params, every figure with its interval, the samples' table, the charts and the report as one MLflow run.

    `page` is the report where it was written already; else one is made from `samples` for the run alone.
    """
    split = record.dataset.split or "all"
    plots = charts(record)
    with tracker.run(f"evaluate {split} seed {record.seed}", {"command": "evaluate"}) as run:
        log_origin(run, record, split)
        run.log_params({"data": record.dataset.model_dump(), "seed": record.seed, **record.context})
        run.log_figures(record_figures(record))
        run.log_metrics(record_costs(record))
        rows = islice(record.rows, _MAX_TABLE_ROWS)
        run.log_table([row.model_dump(mode="json", exclude={"notes"}) for row in rows], "samples")
        for plot_name, plot in plots.items():
            run.log_plot(plot, plot_name)
        run.log_json(record.summary(), "record")
        with tempfile.TemporaryDirectory() as folder:
            run.log_file(page or write_report(record, samples, Path(folder), plots))
    return Logged(run, tracker.runs_url)


def log_calibration(
    settings: Settings, datasets: Sequence[tuple[str, str, str]], result: Mapping[str, Any], out: Path
) -> Logged:
    """Log a calibration (or measured strengths) with the datasets (name, hash, split) it was fitted on, as one run."""
    names = " + ".join(name for name, _, _ in datasets)
    tracker = Tracker(settings.mlruns_dir, experiment_name(datasets[0][0]))
    with tracker.run(f"calibrate on {names}", {"command": "calibrate"}) as run:
        for name, digest, split in datasets:
            run.log_dataset(name, digest, name, split)
        _log_environment(run, environment())
        run.log_params({"tools": settings.tools.model_dump(mode="json"), "seed": settings.seed})
        for tool, fitted in result.get("tools", {}).items():
            known = {k: v for k, v in fitted.items() if isinstance(v, int | float)}
            run.log_metrics({f"{tool}_{key}": float(value) for key, value in known.items()})
        run.log_json(result, "result")
        run.log_file(out)
    return Logged(run, tracker.runs_url)


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
    named: dict[str, Figure] = {str(name): figure for name, figure in record.figures.items()}
    for field in type(record.details).model_fields if record.details is not None else ():
        value = getattr(record.details, field)
        if isinstance(value, Figure):
            named[field] = value
    for key, way in record.baselines.items():
        prefix = "baseline_" + "".join(c if c.isalnum() else "_" for c in key)
        for metric in ("srcc", "plcc", "rmse", "accuracy"):
            figure = getattr(way, metric)
            if figure is not None:
                named[f"{prefix}_{metric}"] = figure
    return named


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


def show(record: EvaluationRecord, page: Path | None, run: Logged) -> None:
    """Print the tables and where the rest is."""
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
    console.print(f"MLflow run  {run.hint}", highlight=False, soft_wrap=True)
