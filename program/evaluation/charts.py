"""Evaluations drawn: tables for a terminal of 80 columns, and figures of how predictions lie to the labels."""

import base64
import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from program.common.text import counted
from program.evaluation.intervals import FEW, METRICS, Figure, headline
from program.evaluation.record import Baseline, Details, EvaluationRecord, LabelledRow

if TYPE_CHECKING:  # drawing is imported where something is drawn: tables need none of it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Plot

_LABEL = 14
"""Columns of a baseline's name, so that the figures beside it fit into 80."""

_ORDER = ("uncompiled", "model", "tools", "mean", "fusion", "tool")

_STYLES = {"better": "green", "worse": "red"}
"""Of what a difference says."""


def heading(record: EvaluationRecord) -> str:
    """Return what was evaluated in a few words."""
    mark = " · fitted on these" if record.is_of_fitted else ""
    return f"{record.dataset.name} · {record.dataset.split or 'all splits'}{mark}"


def figure_lines(record: EvaluationRecord) -> Iterator[tuple[str, Figure]]:
    """Yield every overall figure that the data has labels for, under its name for people."""
    details = record.details or Details()
    figures = record.figures | details.figures
    for name, metric in METRICS.items():
        if name in figures:
            yield metric.title, figures[name]
    for kind, part in details.by_question_type.items():
        yield f"Accuracy ↑ of {kind!r} questions", part.figures["accuracy"]


def figures_table(record: EvaluationRecord) -> Table:
    """Return one row per figure: value, 95 % interval, samples used and asked."""
    table = Table(title=heading(record), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("", no_wrap=True)
    has_ends = any(figure.ends_text() for _, figure in figure_lines(record))
    for column in ("value", *(["95 % interval"] if has_ends else []), "used / asked"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, figure in figure_lines(record):
        ends = [figure.ends_text() or "-"] if has_ends else []
        mark = "*" if record.is_of_fitted else ""
        table.add_row(f"{name}{mark}", figure.value_text(), *ends, f"{figure.n} / {figure.asked}")
    table.caption, table.caption_justify = "\n".join(notes(record)), "left"
    return table


def baseline_tables(record: EvaluationRecord) -> Iterator[Table]:
    """Yield the program against every baseline on the same samples, a table for scores and one for answers."""
    for ways, columns in baselines_by_task(record):
        metric = columns[0]
        basis = record.figures[metric]
        title = f"{heading(record)}\nn = {basis.n} of {basis.asked}, {counted(basis.groups, 'photograph')}"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
        table.add_column("", width=_LABEL, overflow="fold")
        for name in columns:
            table.add_column(METRICS[name].title, justify="right", no_wrap=True)
        table.add_column(f"program\n- this, {METRICS[metric].title.split()[0]}", justify="right", no_wrap=True)
        own = [figure_cell(record.figures.get(name)) for name in columns]
        table.add_row(Text("program", style="bold"), *own, "", end_section=True)
        values = {way.label: way.figures[metric].value or -2.0 for way in ways if way.kind == "tool"}
        ordered = sorted(ways, key=lambda way: (_ORDER.index(way.kind), -values.get(way.label, 0.0)))
        for number, way in enumerate(ordered):
            last = number + 1 == len(ordered) or (ordered[number + 1].kind == "tool") != (way.kind == "tool")
            gain = way.gain[metric]
            label = way.label + (f"\n(n = {gain.n})" if gain.n != basis.n else "")
            cells = [figure_cell(way.figures.get(name)) for name in columns]
            cells.append(figure_cell(gain, "+", _STYLES.get(gain_words(metric, gain), "")))
            table.add_row(label, *cells, end_section=last)
        table.caption, table.caption_justify = "Brackets: 95 % intervals,\npaired in the last column.", "left"
        yield table


def baselines_by_task(record: EvaluationRecord) -> Iterator[tuple[list[Baseline], list[str]]]:
    """Yield the baselines of scores and those of answers, where there are such, with the metrics to show of them."""
    for columns in (headline("scoring", cards=True), headline("mcq", cards=True)):
        ways = [way for way in record.baselines.values() if columns[0] in way.figures]
        if ways and columns[0] in record.figures:
            yield ways, columns


def comparison_table(before: EvaluationRecord, after: EvaluationRecord, differences: Mapping[str, Figure]) -> Table:
    """Return one row per figure that a word says: both programs, and their paired difference with its interval."""
    dataset = after.dataset
    title = dataset.name
    if dataset.split:
        title += f", {dataset.split} split"
    table = Table(
        title=title, title_justify="left", box=box.HORIZONTALS, pad_edge=False, padding=(0, 1, 0, 0),
        caption_justify="left",
    )  # fmt: skip
    table.add_column("", no_wrap=True)
    for column in ("before", "after"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("difference")
    same = before.context.get("program_sha256") == after.context.get("program_sha256") is not None
    for name, metric in METRICS.items():
        old, new = before.figures.get(name), after.figures.get(name)
        if metric.word and (old is not None or new is not None):
            gain = Text("same program") if same else _gain_text(name, differences.get(name))
            table.add_row(metric.word, _value_cell(old), _value_cell(new), gain)
    seconds = [record.pace.get("model_seconds_per_image") for record in (before, after)]
    tokens = [record.pace.get("tokens_per_image") for record in (before, after)]
    for word, costs, form in (("tokens an image", tokens, ",.0f"), ("seconds an image", seconds, ".2f")):
        if any(costs):
            table.add_row(word, *("-" if cost is None else format(cost, form) for cost in costs), "")
    if same:
        differences = {}
    lines = _lines_below(before, after, list(differences.values()), with_seconds=any(seconds))
    table.caption = "\n".join(lines)
    return table


def _lines_below(
    before: EvaluationRecord, after: EvaluationRecord, gains: Sequence[Figure], *, with_seconds: bool
) -> list[str]:
    """Return what a reader has to know of a comparison."""
    counts, groups = [], 0
    for figure, what in ((before.srcc, "score"), (before.accuracy, "question")):
        if figure is not None:
            counts.append(counted(figure.n, what))
            groups = max(groups, figure.groups)
    labels = f"labels by {after.dataset.judge}"
    if after.dataset.judge != "people":
        labels += ", which is made up: they say nothing of people"
    lines = [f"{' and '.join(counts)} of {counted(groups, 'photograph')}; {labels}."]
    lines += _interval_lines(gains)
    if with_seconds:
        lines.append("Seconds are those of the model's calls; - where all answers came from the cache.")
    figures = []
    for name, record in (("before", before), ("after", after)):
        if record.failed:
            lines.append(f"{name}: {record.failed} of {len(record.rows)} samples failed and are left out")
        figures += [(METRICS[each].word, figure) for each, figure in record.figures.items()]
    lines += undefined_lines((word, figure) for word, figure in figures if word)
    return [*lines, *_too_few(before)]


def _value_cell(figure: Figure | None) -> str:
    return "-" if figure is None else figure.value_text()


def _interval_lines(gains: Sequence[Figure]) -> Iterator[str]:
    """Yield what the brackets are, where there are any, and of what they speak."""
    if not any(gain.ends_text() for gain in gains):
        return
    few = [gain.groups for gain in gains if gain.descriptive]
    if few:
        over = f"over images of only {counted(min(few), 'photograph')}"
        yield f"Brackets: 95 % intervals, {over}: they do not speak of new photographs."
    else:
        yield "Brackets: 95 % intervals."


def gain_words(metric: str, gain: Figure) -> str:
    """Say a difference: which way it goes, where that is sure."""
    if gain.low == gain.high == gain.value == 0:
        return "the same"
    if not gain.ends_text():
        return "no interval"
    return {1: "better", 0: "no sure difference", -1: "worse"}[gain.sign * METRICS[metric].direction]


def _gain_text(metric: str, gain: Figure | None) -> Text:
    if gain is None or gain.value is None:
        return Text("-" if gain is None else "undefined")
    words = gain_words(metric, gain)
    shown = words if words == "the same" else f"{gain.value_text('+')} {gain.ends_text('+')} {words}".replace("  ", " ")
    return Text(shown, _STYLES.get(words, ""))


def notes(record: EvaluationRecord) -> list[str]:
    """Return what a reader has to know of the figures: failures, weak intervals, where answers came from."""
    lines = list(_fitted_lines(record))
    if record.dataset.judge != "people":
        lines.append(f"Labels are by {record.dataset.judge}, which is made up: they say nothing of people.")
    if record.failed:
        lines.append(f"{record.failed} of {len(record.rows)} samples failed; no figure counts them.")
    if any(figure.descriptive for figure in record.figures.values()):
        groups = min(figure.groups for figure in record.figures.values())
        few = counted(groups, "photograph")
        lines.append(f"Only {few}: the intervals are over images and say nothing of new ones.")
    lines += _too_few(record)
    lines += undefined_lines(figure_lines(record))
    if any("line instead" in figure.method for _, figure in figure_lines(record)):
        lines.append("A logistic that did not converge was fitted as a line instead.")
    if record.details and record.details.chance is not None:
        lines.append(f"Guessing would get {record.details.chance:.3f} of the questions right.")
    if record.srcc is not None and record.srcc.sign < 0:
        lines.append(
            "Scores run against the labels: check whether high or low labels are the good ones "
            '(--lower-is-better, "higher_is_better" in the rows).'
        )
    lines += _superfluous(record)
    attempts = ", ".join(f"{name} {count / len(record.rows):.0%}" for name, count in record.attempts.items())
    if attempts:
        lines.append(f"Answers were read from: {attempts}.")
    return lines


def _fitted_lines(record: EvaluationRecord) -> Iterator[str]:
    """Yield what became of the samples that the program was fitted on, and which split this is."""
    fitted = record.fitted
    if fitted is None:
        return
    rows = len(record.rows)
    by_group = f", {fitted.by_group} of them by their group" if fitted.by_group else ""
    whose = f"samples that the program was fitted or chosen on{by_group}"
    if fitted.drawn:
        yield f"No split in the data: these are the {record.dataset.split} samples of the program's compile."
    if fitted.left_out:
        asked = rows + fitted.samples
        yield f"Left out: {fitted.samples} of {asked} {whose} (--include-fitted counts them)."
    elif record.is_of_fitted:
        known = f"the program was fitted or chosen on all {rows} samples"
        yield f"* fitted on these: {known}; the figures say nothing of others."
    elif fitted.samples:
        yield f"Counted: {fitted.samples} of {rows} {whose}; the figures flatter it."


def undefined_lines(figures: Iterable[tuple[str, Figure]]) -> list[str]:
    """Return a line for every reason why some of the figures, given under their names for people, have no value."""
    names: dict[str, list[str]] = {}
    for name, figure in figures:
        if figure.value is None:
            names.setdefault(figure.reason or "no samples", []).append(name.replace(" ↑", "").replace(" ↓", ""))
    return [f"Undefined, as {reason}: {', '.join(dict.fromkeys(each))}." for reason, each in names.items()]


def _too_few(record: EvaluationRecord) -> Iterator[str]:
    for figure, what in ((record.srcc, "score"), (record.accuracy, "question")):
        if figure is not None and figure.n < FEW:
            yield f"Only {counted(figure.n, what)}: neither figures nor intervals of so few say anything of others."


def _superfluous(record: EvaluationRecord) -> Iterator[str]:
    """Yield a line for scores and for answers where the model alone, or the tools alone, are surely not worse."""
    for ways, (metric, *_) in baselines_by_task(record):
        # With the embedded expert the model's level is the program's own answer: that is no other way.
        others = [way for way in ways if gain_words(metric, way.gain[metric]) != "the same"]
        parts = [way for way in others if way.kind in {"model", "tools"}]
        best = max(parts, key=lambda way: way.figures[metric].value or -2.0, default=None)
        if best is not None and best.gain[metric].sign < 1:
            name, gain = METRICS[metric].title.split()[0], best.gain[metric]
            yield f"{name}: no sure gain over {best.label!r} ({gain.value_text('+')} {gain.ends_text('+')})."


def figure_cell(figure: Figure | None, sign: str = "", style: str = "") -> Text:
    """Return a figure with its interval on a line of its own, so that tables fit 80 columns."""
    return Text("-" if figure is None else f"{figure.value_text(sign)}\n{figure.ends_text(sign)}".rstrip(), style)


BLUE, INK, FAINT, SOFT = "#3b6fd4", "#1f2933", "#e3e8ee", "#6b7785"

_COLOURS = (
    "#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#6cc5b0", "#9c6b4e", "#ff8ab7", "#9498a0", "#17becf",
)  # fmt: skip

_TITLE = 45
"""Characters in a line of a scatter plot's title, for each of its panels."""
_MAX_POINTS = 1500


def scatter_svg(records: Mapping[str, EvaluationRecord]) -> str:
    """Return a `scatter_plot` as the text of an SVG file; empty where the first record has no scores."""
    first = next(iter(records.values()))
    if first.srcc is None or not first.srcc.n:
        return ""
    import matplotlib

    out = io.BytesIO()
    # Glyphs as paths: the page looks alike whatever fonts a machine has. The salt makes equal charts equal bytes.
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "agentic-iqa"}):
        scatter_plot(records).savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue().decode("utf-8")


def svg_url(chart: str) -> str:
    """Return an SVG as a data URL; inside an image element it can run and fetch nothing."""
    return "data:image/svg+xml;base64," + base64.b64encode(chart.encode()).decode("ascii")


def plain(text: str) -> str:
    """Return a name from the data as a chart can draw it: short, no formula signs, no glyph the font lacks."""
    return _drawable(text if len(text) <= 28 else text[:27] + ".")


def _drawable(text: str) -> str:
    return text.encode("latin-1", "replace").decode("latin-1").replace("$", r"\$")


def scatter_plot(records: Mapping[str, EvaluationRecord]) -> "Plot":
    """Return the labels (x) against predicted scores (y), one panel per record, both on 1..5.

    `records` maps a panel's title ("uncompiled") to its record. Points are coloured by distortion where there are
    at most ten. Dashed: perfect agreement; solid: a straight-line fit.
    """
    from matplotlib.figure import Figure as Plot

    plot = Plot(figsize=(4.6 * len(records) + 1.4, 5.3), layout="constrained")
    axes = plot.subplots(1, len(records), squeeze=False, sharex=True, sharey=True)[0]
    scored = {title: [r for r in record.rows if r.task == "scoring" and r.counts] for title, record in records.items()}
    kinds = sorted({row.distortion or "" for rows in scored.values() for row in rows})
    is_coloured = 1 < len(kinds) <= len(_COLOURS)
    colours = dict(zip(kinds, _COLOURS if is_coloured else [BLUE] * len(kinds), strict=False))
    for axis, (title, record) in zip(axes, records.items(), strict=True):
        _panel(axis, title, record, scored[title], colours)
    axes[0].set_ylabel("predicted score (1 bad … 5 excellent)")
    if is_coloured:
        points = [axes[0].plot([], [], "o", color=colour, markeredgecolor="white")[0] for colour in colours.values()]
        names = [plain(name) or "none" for name in colours]
        plot.legend(points, names, title="distortion", loc="outside right center", frameon=False, fontsize=9)
    lines, names = axes[0].get_legend_handles_labels()
    plot.legend(lines, names, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    first = next(iter(records.values()))
    title = f"Agreement with {first.dataset.judge}\n{textwrap.fill(heading(first), _TITLE * len(records))}"
    plot.suptitle(_drawable(title), fontsize=13, color=INK)
    return plot


def _panel(
    axis: "Axes", title: str, record: EvaluationRecord, rows: Sequence[LabelledRow], colours: Mapping[str, str]
) -> None:
    truth, predicted = np.array([(row.truth, row.predicted) for row in rows], dtype=float).reshape(-1, 2).T
    # A label may pass its own scale (LIVE's realigned ones do); no point may fall off the picture.
    low, high = min(1.0, truth.min(initial=1)) - 0.1, max(5.0, truth.max(initial=5)) + 0.1
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#9aa5b1")
    axis.tick_params(colors=INK, length=0)
    axis.xaxis.label.set_color(INK)
    axis.yaxis.label.set_color(INK)
    axis.set(xlim=(low, high), ylim=(0.9, 5.1), aspect="equal", xticks=range(1, 6), yticks=range(1, 6))
    axis.grid(color=FAINT, linewidth=0.8)
    axis.plot([1, 5], [1, 5], color=SOFT, linewidth=1, linestyle=(0, (4, 3)), label="perfect agreement", zorder=1)
    axis.scatter(
        truth, predicted, s=30 if len(rows) <= 300 else 8, c=[colours[row.distortion or ""] for row in rows],
        alpha=0.6, linewidths=0, zorder=2, rasterized=len(rows) > _MAX_POINTS,
    )  # fmt: skip
    if len(rows) > 2 and np.ptp(truth) > 0:
        ends = np.array([truth.min(), truth.max()])
        slope, offset = np.polyfit(truth, predicted, 1)
        axis.plot(ends, slope * ends + offset, color=INK, linewidth=1.4, zorder=3, label="straight-line fit")
    groups = record.srcc.groups if record.srcc else 0
    basis = f"n = {len(rows)}" + (f" from {groups} photographs" if groups < len(rows) else "")
    failed = f", {record.scoring.failed} failed" if record.scoring.failed else ""
    axis.set_title(title, fontsize=12, fontweight="bold", color=INK, pad=36)
    figure = "SRCC undefined" if record.srcc is None or record.srcc.value is None else f"SRCC {record.srcc}"
    axis.text(0.5, 1.02, f"{figure}\n{basis}{failed}", transform=axis.transAxes, ha="center", color=INK, fontsize=10)
    axis.set_xlabel(f"score by {record.dataset.judge} (1 bad … 5 excellent)")
