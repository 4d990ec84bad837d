"""The report: one self-contained HTML page of an evaluation. It fetches nothing and runs no script."""

import base64
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure as Plot
from PIL import Image

from program.errors import InputError
from program.evaluation.charts import charts, svg_url
from program.evaluation.intervals import Figure
from program.evaluation.metrics import MetricName
from program.evaluation.misses import worst
from program.evaluation.record import Baseline, EvaluationRecord
from program.evaluation.rows import Row
from program.evaluation.runner import SampleLike
from program.evaluation.tables import NAMES, figure_lines, heading, notes
from program.images import IMAGES, LARGE

__all__ = ("check_report_folder", "render", "write_report")

_THUMBNAIL_PX = 320

_KINDS = {"tool": "one tool", "tools": "tools", "model": "model", "mean": "plain mean", "fusion": "fusion"}
_LADDERS: tuple[tuple[MetricName, tuple[MetricName, ...]], ...] = (
    ("srcc", ("srcc", "plcc", "rmse")), ("accuracy", ("accuracy",)),
)  # fmt: skip
_CAPTIONS = {
    "scatter": "Each point is an image. Above the dashed line people liked it better than the program did.",
    "by_distortion": "How well images of one distortion are ranked; the line is the 95 % interval.",
    "by_level": "Human scores rounded to a level; the line is the 95 % interval.",
    "calibration": "Five bins of about equal size. On the dashed line, stated probabilities hold as often as stated.",
    "by_question_type": "Share of right answers; the line is the 95 % interval.",
    "confusion": "Counts of questions, by the true option and the option answered.",
}


def write_report(
    record: EvaluationRecord, samples: Iterable[SampleLike], folder: Path, plots: Mapping[str, Plot] | None = None
) -> Path:
    """Write `report.html` and `record.json` into a folder and return the page's path.

    `samples` are looked through for the images of the worst misses. Raises InputError where the folder cannot be
    written.
    """
    page = folder / "report.html"
    with _writing(folder):
        _write(folder / "record.json", json.dumps(record.summary(), indent=2, ensure_ascii=False) + "\n")
        _write(page, render(record, samples, plots))
    return page


def check_report_folder(folder: Path) -> None:
    """Make the folder of a report; InputError, before hours of work, where none can be written there."""
    with _writing(folder):
        _write(folder / ".writable", "")
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
    samples: Iterable[SampleLike],
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
        heading=heading(record), record=record, notes=notes(record),
        cards=_cards(record), figures=[_figure_cells(name, figure) for name, figure in figure_lines(record)],
        ladders=_ladders(record), captions=_CAPTIONS,
        charts={name: svg_url(plot) for name, plot in drawn.items()},
        misses={task: [_miss(row, pictures.get(row.id)) for row in rows] for task, rows in missed.items()},
        facts=_facts(record), failures=list(record.failures()), sections=dict(sections or {}),
    )  # fmt: skip


def _cards(record: EvaluationRecord) -> list[dict[str, str]]:
    shown = (
        ("srcc", "rank agreement"), ("plcc", "linear agreement"), ("rmse", "points of 1..5"),
        ("accuracy", "right answers"),
    )  # fmt: skip
    return [
        {**_figure_cells(NAMES[name], figure), "meaning": meaning}
        for name, meaning in shown
        if (figure := getattr(record, name)) is not None
    ]


def _figure_cells(name: str, figure: Figure) -> dict[str, str]:
    return {
        "name": name,
        "value": "undefined" if figure.value is None else f"{figure.value:.3f}",
        "ends": "no interval" if figure.low is None else f"{figure.low:.3f} to {figure.high:.3f}",
        "n": f"{figure.n:,}" + (f" of {figure.asked:,}" if figure.asked is not None else ""),
        "method": figure.method,
    }


def _ladders(record: EvaluationRecord) -> list[dict[str, Any]]:
    """Return the tables of the program against every baseline, each figure with its place on a common axis."""
    found = []
    for metric, columns in _LADDERS:
        own: Figure | None = getattr(record, metric)
        ways = [way for way in record.baselines.values() if getattr(way, metric) is not None]
        if own is None or not ways:
            continue
        ways.sort(key=lambda way: -(getattr(way, metric).value or -2))
        figures = [own, *(getattr(way, metric) for way in ways)]
        ends = [end for f in figures for end in (f.low, f.value) if end is not None]
        floor = math.floor(min([*ends, 0.9]) * 10) / 10
        rows = [_way(None, record, columns, metric, floor), *(_way(way, way, columns, metric, floor) for way in ways)]
        name, named = NAMES[metric].split()[0], [NAMES[c] for c in columns]
        found.append({"metric": name, "columns": named, "rows": rows, "floor": floor})
    return found


def _way(
    way: Baseline | None, holder: Any, columns: tuple[MetricName, ...], metric: MetricName, floor: float
) -> dict[str, Any]:
    figure: Figure = getattr(holder, metric)
    gain = way.gain.get(metric) if way is not None else None
    clear = gain is not None and gain.low is not None and gain.high is not None and (gain.low > 0 or gain.high < 0)
    ends = [max(end, floor) for end in (figure.low, figure.value, figure.high) if end is not None]
    return {
        "label": way.label if way is not None else "program",
        "kind": _KINDS[way.kind] if way is not None else "",
        "own": way is None,
        "n": f"{figure.n:,}",
        "cells": [_figure_cells("", f) if (f := getattr(holder, c)) is not None else None for c in columns],
        "bar": [round(100 * (end - floor) / (1 - floor), 2) for end in ends] if len(ends) == 3 else None,
        "gain": f"{gain.value:+.3f}" if gain is not None and gain.value is not None else "",
        "gain_ends": f"{gain.low:+.3f} to {gain.high:+.3f}" if gain is not None and gain.low is not None else "",
        "verdict": ("better" if (gain.value or 0) > 0 else "worse") if clear and gain is not None else "",
    }


def _miss(row: Row, picture: Mapping[str, Any] | None) -> dict[str, Any]:
    evidence = (row.notes.evidence if row.notes else None) or {}
    return {
        "row": row,
        "picture": picture,
        "error": _difference(row.truth, row.predicted),
        "truth": f"{row.truth:.2f}" if isinstance(row.truth, float) else row.truth,
        "predicted": f"{row.predicted:.2f}" if isinstance(row.predicted, float) else row.predicted,
        "findings": [_tag(f, "severity", "type") for f in _dicts(evidence.get("findings"))],
        "readings": [_reading(r) for r in _dicts(evidence.get("readings"))],
        "reasoning": row.notes.reasoning if row.notes else "",
    }


def _difference(truth: Any, predicted: Any) -> str:
    return f"{predicted - truth:+.2f}" if isinstance(truth, float) and isinstance(predicted, float) else ""


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _tag(item: Mapping[str, Any], *keys: str) -> str:
    region = item.get("region", "Global")
    return " ".join(str(item.get(key, "")) for key in keys) + ("" if region == "Global" else f" in {region}")


def _reading(item: Mapping[str, Any]) -> str:
    score = item.get("score")
    return _tag(item, "tool") + (f" {score:.2f}" if isinstance(score, int | float) else "")


def _facts(record: EvaluationRecord) -> list[tuple[str, str]]:
    context, where = record.context, record.environment
    models = context.get("models")
    tools = context.get("tools")
    distinct = sorted({str(m) for m in models.values()}) if isinstance(models, dict) else []
    counts = [
        f"{kind}: {c.asked:,} asked, {c.used:,} used, {c.failed:,} failed, {c.unlabelled:,} unlabelled"
        for kind, c in (("scoring", record.scoring), ("multiple choice", record.mcq), ("other", record.other))
        if c.asked
    ]
    versions = ", ".join(f"{name} {version}" for name, version in where.versions.items())
    dirty = " (with uncommitted changes)" if where.git_dirty else ""
    cost = f", {record.cost_usd:.4f} USD" if record.cost_usd is not None else ", price unknown or none"
    facts = [
        ("Samples", "; ".join(counts)),
        ("Photographs", f"{record.groups:,}"),
        ("Manifest SHA-256", record.dataset.manifest_sha256 or "none"),
        ("Language model", ", ".join(distinct)),
        ("Scoring mode", str(context.get("scoring_mode", ""))),
        ("Answered on", ", ".join(f"{r}: {n:,} ({record.rung_shares.get(r, 0):.1%})" for r, n in record.rungs.items())),
        ("Program SHA-256", str(context.get("program_sha256", ""))),
        ("Settings SHA-256", str(context.get("settings_sha256", ""))),
        ("Tools", "; ".join(f"{k} ({v})" for k, v in tools.items()) if isinstance(tools, dict) else ""),
        ("Model calls", f"{record.lm_calls or 0:,} calls, {record.tokens or 0:,} tokens{cost}"),
        ("Seed", str(record.seed)),
        ("Wall time", f"{record.wall_seconds:.1f} s"),
        ("Commit", f"{where.git_commit}{dirty}" if where.git_commit else "not a checkout"),
        ("Software", f"Python {where.python} on {where.platform}; {versions}"),
        ("Record schema", str(record.schema_version)),
    ]
    return [(name, value) for name, value in facts if value]


def _pictures(samples: Iterable[SampleLike], wanted: set[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for sample in samples if wanted else ():
        if sample.id in wanted:
            found[sample.id] = {
                "image": _thumbnail(sample.image),
                "reference": _thumbnail(sample.reference) if sample.reference else None,
                "query": sample.query,
                "options": sample.options,
            }
            if len(found) == len(wanted):
                break
    return found


def _thumbnail(path: Path) -> str | None:
    try:
        picture = Image.fromarray(IMAGES.pixels(IMAGES.add(path), at_most=LARGE))
    except InputError:
        return None
    picture.thumbnail((_THUMBNAIL_PX, _THUMBNAIL_PX), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, "utf-8")
    os.replace(partial, path)
