"""The report: one self-contained HTML page of an evaluation. It fetches nothing and runs no script."""

import base64
import heapq
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure as Plot
from PIL import Image

from data.manifest import Sample
from program.common.errors import InputError
from program.common.files import write_whole
from program.evaluation.charts import charts, svg_url
from program.evaluation.intervals import Figure
from program.evaluation.metric_table import METRICS
from program.evaluation.record import WORST, Baseline, EvaluationRecord, Row
from program.evaluation.tables import baselines_by_task, figure_lines, heading, notes
from program.images.store import IMAGES, LARGE

__all__ = ("check_report_folder", "render", "worst", "write_report")

_THUMBNAIL_PX = 320

_KINDS = {"tool": "one tool", "tools": "tools", "model": "model", "mean": "plain mean", "fusion": "fusion"}
_CAPTIONS = {
    "scatter": "Each point is an image. Below the dashed line people liked it better than the program did.",
    "by_distortion": "How well images of one distortion are ranked; the line is the 95 % interval.",
    "by_level": "Human scores rounded to a level; the line is the 95 % interval.",
    "calibration": "Five bins of about equal size. On the dashed line, stated probabilities hold as often as stated.",
    "by_question_type": "Share of right answers; the line is the 95 % interval.",
    "confusion": "Counts of questions, by the true option and the option answered.",
}


def write_report(
    record: EvaluationRecord, samples: Iterable[Sample], folder: Path, plots: Mapping[str, Plot] | None = None
) -> Path:
    """Write `report.html` and `record.json` into a folder and return the page's path.

    `samples` are looked through for the images of the worst misses. Raises InputError where the folder cannot be
    written.
    """
    page = folder / "report.html"
    with _writing(folder):
        write_whole(folder / "record.json", json.dumps(record.summary(), indent=2, ensure_ascii=False) + "\n")
        write_whole(page, render(record, samples, plots))
    return page


def check_report_folder(folder: Path) -> None:
    """Make the folder of a report; InputError, before hours of work, where none can be written there."""
    with _writing(folder):
        write_whole(folder / ".writable", "")
        (folder / ".writable").unlink()


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
) -> str:
    """Return the page, with further `sections` of plain text by title. What comes from data or a model is escaped."""
    missed = {task: worst(record.rows, task) for task in ("scoring", "mcq")}
    pictures = _pictures(samples, {row.id for rows in missed.values() for row in rows})
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(files("program.evaluation").joinpath("page.html").read_text("utf-8"))
    drawn = charts(record) if plots is None else plots
    return template.render(
        heading=heading(record), record=record, notes=notes(record), metrics=METRICS,
        figures=list(figure_lines(record)),
        ladders=[_ladder(record, ways, columns) for ways, columns in baselines_by_task(record)],
        kinds=_KINDS, captions=_CAPTIONS, charts={name: svg_url(plot) for name, plot in drawn.items()},
        misses=missed, pictures=pictures, failures=list(record.failures()), sections=dict(sections or {}),
    )  # fmt: skip


def worst(rows: Iterable[Row], task: str) -> list[Row]:
    """Return the worst misses of a task, worst first; of multiple choice wrong answers, drawn by their ids' hash."""
    missed = ((size, row.id, row) for row in rows if row.task == task and (size := row.miss) is not None)
    return [row for _, _, row in heapq.nlargest(WORST, missed, key=lambda entry: entry[:2])]


def _ladder(record: EvaluationRecord, ways: list[Baseline], columns: list[str]) -> dict[str, Any]:
    """Return the table of the program against every baseline, each figure with its place on a common axis."""
    metric = columns[0]
    ways = sorted(ways, key=lambda way: -(way.figures[metric].value or -2))
    figures = [record.figures[metric], *(way.figures[metric] for way in ways)]
    ends = [end for f in figures for end in (f.low, f.value) if end is not None]
    floor = math.floor(min([*ends, 0.9]) * 10) / 10
    rows = [
        {"way": None if holder is record else holder, "figures": holder.figures, "bar": _bar(figure, floor)}
        for holder, figure in zip((record, *ways), figures, strict=True)
    ]
    return {"metric": metric, "columns": columns, "rows": rows, "floor": floor}


def _bar(figure: Figure, floor: float) -> list[float] | None:
    """Return where low end, value and high end lie between `floor` and 1, in percent; None without an interval."""
    if figure.low is None or figure.value is None or figure.high is None:
        return None
    return [round(100 * (max(end, floor) - floor) / (1 - floor), 2) for end in (figure.low, figure.value, figure.high)]


def _pictures(samples: Iterable[Sample], wanted: set[str]) -> dict[str, dict[str, Any]]:
    pictures: dict[str, dict[str, Any]] = {}
    for sample in samples if wanted else ():
        if sample.id in wanted:
            pictures[sample.id] = {
                "image": _thumbnail(sample.image),
                "reference": _thumbnail(sample.reference) if sample.reference else None,
                "query": sample.query,
                "options": sample.options,
            }
            if len(pictures) == len(wanted):
                break
    return pictures


def _thumbnail(path: Path) -> str | None:
    try:
        picture = Image.fromarray(IMAGES.pixels(IMAGES.add(path), at_most=LARGE))
    except InputError:
        return None
    picture.thumbnail((_THUMBNAIL_PX, _THUMBNAIL_PX), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")
