"""Where an evaluation goes when it is done: a page (which fetches nothing and runs no script), MLflow, the terminal."""

import heapq
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure as Plot
from rich.console import Console

from data.manifest import Sample
from program.agent.loop import AgenticIQA
from program.agent.taught import taught
from program.common.errors import InputError
from program.common.files import write_whole
from program.common.settings import Settings
from program.evaluation.charts import charts, svg_url
from program.evaluation.intervals import Figure, interval
from program.evaluation.metric_table import METRICS
from program.evaluation.pictures import pictures_of
from program.evaluation.record import WORST, Baseline, Details, Environment, EvaluationRecord, Row, environment
from program.evaluation.tables import baseline_tables, baselines_by_task, figure_lines, figures_table, heading, notes
from program.tracking import RunHandle, Tracker, dataset_name
from signatures.schemas import CATEGORY_WORDS

__all__ = (
    "check_report_folder", "log_calibration", "log_evaluation", "log_figures", "log_origin", "log_program",
    "record_costs", "record_figures", "render", "report_files", "show", "worst", "write_report",
)  # fmt: skip

_FEW = 6
"""Images beside the worst misses, of each kind; and those of each kind with maps, which take half a second each."""

_MAX_TABLE_ROWS = 20_000
"""A larger table takes MLflow's UI minutes to show; the checkpoint holds every row."""

_FAILURES_SHOWN = 5


def write_report(record: EvaluationRecord, samples: Iterable[Sample], folder: Path) -> Path:
    """Write `report.html` and `record.json` into a folder and return the page's path; InputError where it cannot.

    `samples` are looked through for the images of the worst misses.
    """
    page, table = report_files(folder)
    with _writing(folder):
        write_whole(table, json.dumps(record.summary(), indent=2, ensure_ascii=False) + "\n")
        write_whole(page, render(record, samples))
    return page


def report_files(folder: Path) -> tuple[Path, Path]:
    """Return what a report's folder holds: the page and the record."""
    return folder / "report.html", folder / "record.json"


def check_report_folder(folder: Path) -> None:
    """Make the folder of a report; InputError, before hours of work, where none can be written there."""
    with _writing(folder), tempfile.TemporaryFile(dir=folder):
        pass


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        fault = f"cannot be written ({error.strerror})"
        raise InputError(f"report {str(folder)!r}: {fault}; give another folder") from error


def render(
    record: EvaluationRecord,
    samples: Iterable[Sample],
    plots: Mapping[str, Plot] | None = None,
    sections: Mapping[str, str] | None = None,
    before: EvaluationRecord | None = None,
) -> str:
    """Return the page, with further `sections` of plain text by title. What comes from data or a model is escaped.

    `before` is another program's record over the same samples: the page shows whose scores moved most.
    """
    earlier = {row.id: row.predicted for row in before.rows if row.task == "scoring" and row.counts} if before else {}
    shown = {"worst": worst(record.rows, "scoring"), "closest": closest(record.rows),
             "moved": moved(record.rows, earlier), "wrong": worst(record.rows, "mcq")}  # fmt: skip
    mapped = [row for kind in ("worst", "closest", "moved") for row in shown[kind][:_FEW]]
    pictures = pictures_of(samples, {row.id for rows in shown.values() for row in rows}, mapped)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(files("program.evaluation").joinpath("page.html").read_text("utf-8"))
    drawn = charts(record) if plots is None else plots
    return template.render(
        heading=heading(record), record=record, notes=notes(record), metrics=METRICS,
        figures=list(figure_lines(record)),
        ladders=[_ladder(record, ways, columns) for ways, columns in baselines_by_task(record)],
        charts={name: svg_url(plot) for name, plot in drawn.items()},
        shown=shown, earlier=earlier, pictures=pictures, failures=list(record.failures()),
        sections=dict(sections or {}), words=CATEGORY_WORDS,
    )  # fmt: skip


def worst(rows: Iterable[Row], task: str) -> list[Row]:
    """Return the worst misses of a task, worst first; of multiple choice wrong answers, drawn by their ids' hash."""
    missed = ((size, row.id, row) for row in rows if row.task == task and (size := row.miss) is not None)
    return [row for _, _, row in heapq.nlargest(WORST, missed, key=lambda entry: entry[:2])]


def closest(rows: Iterable[Row]) -> list[Row]:
    """Return the scores nearest to the labels, nearest first."""
    return heapq.nsmallest(_FEW, (r for r in rows if r.task == "scoring" and r.counts), key=lambda r: (r.miss, r.id))


def moved(rows: Iterable[Row], earlier: Mapping[str, Any]) -> list[Row]:
    """Return the scores that differ most from an earlier program's (by sample), farthest first."""
    both = [(abs(float(r.predicted) - earlier[r.id]), r.id, r) for r in rows if r.counts and r.id in earlier]  # type: ignore[arg-type]
    return [row for step, _, row in heapq.nlargest(_FEW, both, key=lambda entry: entry[:2]) if step > 0]


def _ladder(record: EvaluationRecord, ways: list[Baseline], columns: list[str]) -> dict[str, Any]:
    """Return the baselines, best first, the metrics to show of them, and where their common axis begins."""
    metric = columns[0]
    ways = sorted(ways, key=lambda way: -(way.figures[metric].value or -2))
    figures = [record.figures[metric], *(way.figures[metric] for way in ways)]
    ends = [end for f in figures for end in (f.low, f.value) if end is not None]
    return {"metric": metric, "columns": columns, "ways": ways, "floor": math.floor(min([*ends, 0.9]) * 10) / 10}


def log_evaluation(
    record: EvaluationRecord, run: RunHandle, program: AgenticIQA, samples: Iterable[Sample], page: Path | None = None
) -> None:
    """Log params, every figure with its interval, the samples' table, the charts and the report of a program's run.

    `page` is the report where it was written already; else one is made from `samples` for the run alone.
    """
    plots = charts(record)
    log_origin(run, record, record.dataset.split or "all")
    run.log_params({"seed": record.seed})
    log_program(run, record, program, made=False)
    log_figures(run, record_figures(record))
    run.log_metrics(record_costs(record))
    rows = islice(record.rows, _MAX_TABLE_ROWS)
    run.log_table([row.model_dump(mode="json", exclude={"notes"}) for row in rows], "samples")
    for plot_name, plot in plots.items():
        run.log_plot(plot, plot_name)
    run.log_json(record.summary(), "record")
    run.log_text(page.read_text("utf-8") if page else render(record, samples, plots), "report.html")
    figures = (f"{METRICS[name].title} {figure}" for name, figure in record.figures.items())
    run.describe(f"{heading(record)}: {', '.join(figures)}")


def log_program(run: RunHandle, record: EvaluationRecord, program: AgenticIQA, *, made: bool) -> None:
    """Log what a record's program was taught and what it ran on, and link the run with it; `made` says who made it."""
    words = taught(program)
    data = {"name": dataset_name(record.dataset.name), "manifest_sha256": record.dataset.manifest_sha256}
    run.log_params({"data": {**data, "split": record.dataset.split}, **record.context, **words})
    name = str(record.context.get("program", "program")).replace("/", "-")
    run.link_model(name, words["program_sha256"], words, made=made)


def log_calibration(
    tracker: Tracker, settings: Settings, datasets: Sequence[tuple[str, str, str]], result: Mapping[str, Any], out: Path
) -> RunHandle:
    """Log a calibration (or measured strengths) with the datasets (name, hash, split) it was fitted on, as one run."""
    names = " + ".join(name for name, _, _ in datasets)
    with tracker.run(f"calibrate on {names}", {"command": "calibrate"}, result=f"the result is in {str(out)!r}") as run:
        for name, digest, split in datasets:
            run.log_dataset(name, digest, name, split)
        _log_environment(run, environment())
        run.log_params({"settings": {"tools": settings.tools.model_dump(mode="json")}, "seed": settings.seed})
        for tool, fitted in result.get("tools", {}).items():
            run.log_metrics({f"{tool}/{k}": v for k, v in fitted.items() if isinstance(v, int | float)})
        run.log_json(result, "result")
        run.log_file(out)
    return run


def log_origin(run: RunHandle, record: EvaluationRecord, context: str) -> None:
    """Log which data a record is about, and the code and packages that made it."""
    name = record.dataset.name
    run.log_dataset(dataset_name(name), record.dataset.manifest_sha256 or "unknown", name, context)
    _log_environment(run, record.environment)


def _log_environment(run: RunHandle, here: Environment) -> None:
    tags = {f"version.{name}": version for name, version in here.versions.items()}
    if here.git_commit:
        tags |= {"mlflow.source.git.commit": here.git_commit, "git_dirty": str(here.git_dirty).lower()}
    run.set_tags(tags)


def record_figures(record: EvaluationRecord) -> dict[str, Figure]:
    """Return every figure of a record by its metric's name in MLflow, which groups them by what is before a slash.

    Headlines are `agreement/METRIC`, others `details/METRIC`, those of simpler ways `baseline_METRIC/WAY`.
    """
    figures = {f"agreement/{name}": figure for name, figure in record.figures.items()}
    figures |= {f"details/{name}": figure for name, figure in (record.details or Details()).figures.items()}
    for key, way in record.baselines.items():
        own = "".join(c if c.isalnum() else "_" for c in key)
        figures |= {f"baseline_{name}/{own}": figure for name, figure in way.figures.items() if METRICS[name].card}
    return figures


def log_figures(run: RunHandle, figures: Mapping[str, Figure]) -> None:
    """Log figures, each as the metric `name`, its interval as `interval/name_low` and `interval/name_high`.

    Of one without a value the tag `undefined.name` says why.
    Those of the program itself (`agreement/`) are its LoggedModel's, too.
    """
    for own in (True, False):
        chosen = {name: figure for name, figure in figures.items() if name.startswith("agreement/") is own}
        ends = {f"interval/{name}_{end}": getattr(f, end) for name, f in chosen.items() for end in ("low", "high")}
        run.log_metrics({**{name: f.value for name, f in chosen.items()}, **ends}, of_model=own)
    run.set_tags({f"undefined.{name}": f.reason or "no samples" for name, f in figures.items() if f.value is None})


def record_costs(record: EvaluationRecord) -> dict[str, float | None]:
    """Return what a record cost and how it ran, by the metric's name in MLflow."""
    names = ("failed", "wall_seconds", "lm_calls", "tokens", "cost_usd")
    rungs = {f"rung/{name.replace(' ', '_')}": share for name, share in record.rung_shares.items()}
    stages = {
        f"stage/{kind}_{stage}": value
        for stage, cost in record.spent_by_stage.items()
        for kind, value in cost
        if value is not None
    }
    spent = {f"per_sample/{name}": value for name, value in (record.spent_per_sample | record.pace).items()}
    return {**{f"whole_run/{name}": getattr(record, name) for name in names}, **rungs, **stages, **spent}


def _model_line(record: EvaluationRecord) -> str:
    """Say how well a language model agrees with the labels by itself, and what it weighs; nothing of the expert."""
    weight = record.context.get("model_weight")
    rows = [row for row in record.rows if row.task == "scoring" and row.expected_level is not None]
    pairs = [(row.truth, row.expected_level) for row in rows if isinstance(row.truth, float)]
    if weight is None or not pairs:
        return ""
    truth, levels = zip(*pairs, strict=True)
    agreement = ", ".join(f"{name.upper()} {interval(name, truth, levels).value_text()}" for name in ("srcc", "rmse"))
    return f"the model alone: {agreement} (n = {len(pairs)}); beside the tools it weighs {weight:g}"


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
    if line := _model_line(record):
        console.print(f"\n{line}", highlight=False)
    spent = f", {record.lm_calls} model calls, {record.tokens or 0} tokens" if record.lm_calls else ""
    spent += f", {record.cost_usd:.4f} USD" if record.cost_usd is not None else ""
    console.print(f"\n{len(record.rows)} samples in {record.wall_seconds:.1f} s{spent}", highlight=False)
    if page is not None:
        console.print(f"report      {page}", highlight=False, soft_wrap=True)
