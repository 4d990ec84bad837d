"""What people see of an evaluation when it is done: a page (which fetches nothing and runs no script), the terminal."""

import heapq
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure as Plot
from rich.console import Console

from data.manifest import Sample
from program.common.errors import InputError
from program.common.files import write_whole
from program.evaluation.charts import charts, svg_url
from program.evaluation.intervals import interval
from program.evaluation.metric_table import METRICS
from program.evaluation.pictures import pictures_of
from program.evaluation.record import Baseline, EvaluationRecord
from program.evaluation.row import WORST, LabelledRow
from program.evaluation.tables import baseline_tables, baselines_by_task, figure_lines, figures_table, heading, notes
from signatures.schemas import CATEGORY_WORDS

__all__ = ("check_report_folder", "render", "report_files", "show", "worst", "write_report")

_FEW = 6
"""Images beside the worst misses, of each kind; and those of each kind with maps, which take half a second each."""

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


def worst(rows: Iterable[LabelledRow], task: str) -> list[LabelledRow]:
    """Return the worst misses of a task, worst first; of multiple choice wrong answers, drawn by their ids' hash."""
    missed = ((size, row.id, row) for row in rows if row.task == task and (size := row.miss) is not None)
    return [row for _, _, row in heapq.nlargest(WORST, missed, key=lambda entry: entry[:2])]


def closest(rows: Iterable[LabelledRow]) -> list[LabelledRow]:
    """Return the scores nearest to the labels, nearest first."""
    return heapq.nsmallest(_FEW, (r for r in rows if r.task == "scoring" and r.counts), key=lambda r: (r.miss, r.id))


def moved(rows: Iterable[LabelledRow], earlier: Mapping[str, Any]) -> list[LabelledRow]:
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


def _model_line(record: EvaluationRecord) -> str:
    """Say how well a language model agrees with the labels by itself, and what it weighs; nothing of the expert."""
    weight = record.context.get("model_weight")
    rows = [row for row in record.rows if row.task == "scoring" and "expected_level" in row.beliefs]
    pairs = [(row.truth, row.beliefs["expected_level"]) for row in rows if isinstance(row.truth, float)]
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
