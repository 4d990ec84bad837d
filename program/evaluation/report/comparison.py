"""Two programs side by side: a scatter plot and a comparison table."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Plot
from rich import box
from rich.table import Table

from program.evaluation.intervals import Figure
from program.evaluation.metric_table import METRICS
from program.evaluation.record import EvaluationRecord
from program.evaluation.report.charts import plain
from program.evaluation.report.tables import figure_cell, gain_cell
from program.evaluation.rows import Row

__all__ = ("comparison_table", "scatter_plot")

_COLOURS = (
    "#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#6cc5b0", "#9c6b4e", "#ff8ab7", "#9498a0", "#17becf",
)  # fmt: skip
_INK, _FAINT = "#333333", "#d9d9d9"


def scatter_plot(records: Mapping[str, EvaluationRecord]) -> Plot:
    """Return human score (x) against predicted score (y), one panel per record, both on 1..5.

    `records` maps a panel's title ("uncompiled") to its record. Points are coloured by distortion where there are
    at most ten, else by photograph, else alike. Dashed: perfect agreement; solid: a straight-line fit.
    """
    plot = Plot(figsize=(4.6 * len(records) + 1.4, 5.3), layout="constrained")
    FigureCanvasAgg(plot)
    axes = plot.subplots(1, len(records), squeeze=False, sharex=True, sharey=True)[0]
    scored = {title: _scored(record) for title, record in records.items()}
    colours, by = _colours([row for rows in scored.values() for row in rows])
    for axis, (title, record) in zip(axes, records.items(), strict=True):
        _panel(axis, title, record, scored[title], colours, by)
    axes[0].set_ylabel("predicted score (1 bad … 5 excellent)", color=_INK)
    if len(colours) > 1:
        handles, labels = _legend(axes[0], colours)
        plot.legend(handles, labels, title=by, loc="outside right center", frameon=False, fontsize=9)
    lines, names = axes[0].get_legend_handles_labels()
    plot.legend(lines, names, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    first = next(iter(records.values()), None)
    if first is not None:
        split = f", {first.dataset.split} split" if first.dataset.split else ""
        plot.suptitle(f"Agreement with human scores · {first.dataset.name}{split}", fontsize=13, color=_INK)
    return plot


def comparison_table(
    before: EvaluationRecord,
    after: EvaluationRecord,
    differences: Mapping[str, Figure],
    names: tuple[str, str] = ("uncompiled", "compiled"),
) -> Table:
    """Return one row per figure: both programs, their paired difference, each with its 95 % interval, and n."""
    split = f" · {after.dataset.split} split" if after.dataset.split else ""
    title = f"{after.dataset.name}{split} · 95 % intervals in brackets"
    table = Table(title=title, title_justify="left", box=box.HORIZONTALS, pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in (*names, "difference"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("n\nphotographs", justify="right", no_wrap=True)
    for metric in dict.fromkeys((*before.figures, *after.figures)):
        old, new, change = before.figures.get(metric), after.figures.get(metric), differences.get(metric)
        basis = change or new or old
        size = f"{basis.n}\n{basis.groups}" if basis else ""
        gain = change if change is not None and change.value is not None else None
        table.add_row(METRICS[metric].title, figure_cell(old), figure_cell(new), gain_cell(metric, gain), size)
    table.caption = _note(before, after, differences, names)
    table.caption_justify = "left"
    return table


def _note(
    before: EvaluationRecord, after: EvaluationRecord, differences: Mapping[str, Figure], names: tuple[str, str]
) -> str:
    figures = [*before.figures.values(), *after.figures.values(), *differences.values()]
    lines = [
        f"{name}: {record.failed} of {len(record.rows)} samples failed and are left out"
        for name, record in zip(names, (before, after), strict=True)
        if record.failed
    ]
    few = sorted({figure.groups for figure in figures if figure.descriptive})
    if few:
        lines.append(_descriptive(few))
    return "\n".join(lines)


def _descriptive(groups: Sequence[int]) -> str:
    count = " to ".join(str(count) for count in dict.fromkeys((groups[0], groups[-1])))
    return f"Descriptive intervals: over images, from only {count} photographs; they do not speak of new photographs."


def _scored(record: EvaluationRecord) -> list[Row]:
    return [row for row in record.rows if row.task == "scoring" and row.counts]


def _colours(rows: Sequence[Row]) -> tuple[dict[str, str], str]:
    for by, names in (
        ("distortion", {row.distortion or "" for row in rows}),
        ("photograph", {row.group for row in rows}),
    ):
        if 1 < len(names) <= len(_COLOURS):
            return dict(zip(sorted(names), _COLOURS, strict=False)), by
    return {"": _COLOURS[0]}, ""


def _legend(axis: Axes, colours: Mapping[str, str]) -> tuple[list[Artist], list[str]]:
    handles: list[Artist] = [
        axis.plot([], [], "o", color=colour, markersize=7, markeredgecolor="white")[0] for colour in colours.values()
    ]
    return handles, [plain(name) or "none" for name in colours]


def _panel(
    axis: Axes, title: str, record: EvaluationRecord, rows: Sequence[Row], colours: Mapping[str, str], by: str
) -> None:
    truth = np.array([row.truth for row in rows], dtype=float)
    predicted = np.array([row.predicted for row in rows], dtype=float)
    # A human score may pass its own scale (LIVE's realigned ones do); no point may fall off the picture.
    low, high = min(1.0, truth.min(initial=1)) - 0.1, max(5.0, truth.max(initial=5)) + 0.1
    axis.set(xlim=(low, high), ylim=(0.9, 5.1), aspect="equal", xticks=range(1, 6), yticks=range(1, 6))
    axis.set_axisbelow(True)
    axis.grid(color=_FAINT, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#888888")
    axis.tick_params(colors=_INK, length=0)
    axis.plot([1, 5], [1, 5], linestyle=(0, (4, 3)), color="#888888", linewidth=1, zorder=1, label="perfect agreement")
    keys = [{"distortion": row.distortion or "", "photograph": row.group}.get(by, "") for row in rows]
    size, alpha = (34, 0.85) if len(rows) <= 300 else (14, 0.55) if len(rows) <= 2000 else (5, 0.3)
    axis.scatter(
        truth, predicted, s=size, c=[colours.get(key, _COLOURS[0]) for key in keys], alpha=alpha,
        edgecolors="white", linewidths=0.5 if size > 10 else 0, zorder=2,
    )  # fmt: skip
    if len(rows) > 2 and np.ptp(truth) > 0:
        ends = np.array([truth.min(), truth.max()])
        slope, offset = np.polyfit(truth, predicted, 1)
        axis.plot(ends, slope * ends + offset, color=_INK, linewidth=1.4, zorder=3, label="straight-line fit")
    groups = record.srcc.groups if record.srcc else 0
    basis = f"n = {len(rows)}" + (f" from {groups} photographs" if groups < len(rows) else "")
    failed = f", {record.scoring.failed} failed" if record.scoring.failed else ""
    axis.set_title(title, fontsize=12, fontweight="bold", color=_INK, pad=36)
    figure = "SRCC undefined" if record.srcc is None or record.srcc.value is None else f"SRCC {record.srcc}"
    axis.text(0.5, 1.02, f"{figure}\n{basis}{failed}", transform=axis.transAxes, ha="center", color=_INK, fontsize=10)
    axis.set_xlabel("human score (1 bad … 5 excellent)", color=_INK)
