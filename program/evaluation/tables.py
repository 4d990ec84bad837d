"""One evaluation on a terminal of 80 columns: its figures, and what the agent adds to simpler ways."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from program.evaluation.intervals import Figure
from program.evaluation.metrics import MetricName
from program.evaluation.record import Baseline, EvaluationRecord

__all__ = ("NAMES", "baseline_tables", "figure_lines", "figures_table", "heading", "notes")

NAMES: dict[str, str] = {
    "srcc": "SRCC ↑",
    "plcc": "PLCC ↑",
    "krcc": "KRCC ↑",
    "rmse": "RMSE ↓",
    "accuracy": "Accuracy ↑",
    "plcc_logistic4": "PLCC ↑ after 4-parameter logistic",
    "plcc_logistic5": "PLCC ↑ after 5-parameter logistic",
    "rmse_logistic4": "RMSE ↓ after 4-parameter logistic",
    "rmse_logistic5": "RMSE ↓ after 5-parameter logistic",
    "mae": "MAE ↓",
    "bias": "Bias, predicted - human",
    "pairwise": "Pairs in the right order ↑",
    "outlier_ratio": "Outliers past 2 sigma of opinions ↓",
    "calibration_error": "Calibration error of levels (ECE) ↓",
}
"""What each figure is called where people read it, in the order of the tables."""

_SHOWN: tuple[MetricName, ...] = ("srcc", "plcc", "rmse")
_COLUMNS = 80
_LABEL = 17
"""Columns of a baseline's name, which takes two lines."""

_FEW = 10
"""Of fewer samples an interval is as much chance as its figure: two in order have an SRCC of 1 [1, 1]."""

_ORDER = ("model", "tools", "mean", "fusion", "tool")


def heading(record: EvaluationRecord) -> str:
    """Return what was evaluated in a few words."""
    return f"{record.dataset.name} · {record.dataset.split or 'all splits'}"


def figure_lines(record: EvaluationRecord) -> Iterator[tuple[str, Figure]]:
    """Yield every overall figure that the data has labels for, under its name for people."""
    for key, name in NAMES.items():
        figure = getattr(record, key, None) or getattr(record.details, key, None)
        if figure is not None:
            yield name, figure
    if record.details:
        for kind, part in record.details.by_question_type.items():
            yield f"Accuracy ↑ of {kind!r} questions", part.figures["accuracy"]


def figures_table(record: EvaluationRecord) -> Table:
    """Return one row per figure: value, 95 % interval, samples used and asked."""
    table = Table(title=heading(record), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right", no_wrap=True)
    table.add_column("used / asked", justify="right", no_wrap=True)
    for name, figure in figure_lines(record):
        value = "undefined" if figure.value is None else f"{figure.value:.3f}"
        table.add_row(name, value, _ends(figure, 3) or "-", f"{figure.n} / {figure.asked}")
    table.caption, table.caption_justify = "\n".join(notes(record)), "left"
    return table


def baseline_tables(record: EvaluationRecord) -> list[Table]:
    """Return the program against every baseline on the same samples, a table for scores and one for answers."""
    tables = []
    kinds: tuple[tuple[tuple[MetricName, ...], MetricName], ...] = ((_SHOWN, "srcc"), (("accuracy",), "accuracy"))
    for metrics, gain in kinds:
        ways = [way for way in record.baselines.values() if getattr(way, gain) is not None]
        if ways and getattr(record, gain) is not None:
            tables.append(_baseline_table(record, ways, metrics, gain))
    return tables


def notes(record: EvaluationRecord) -> list[str]:
    """Return what a reader has to know of the figures: failures, weak intervals, where answers came from."""
    lines = []
    if record.failed:
        lines.append(f"{record.failed} of {len(record.rows)} samples failed; no figure counts them.")
    if any(figure.descriptive for figure in record.figures.values()):
        groups = sorted({figure.groups for figure in record.figures.values()})
        lines.append(f"Only {_photographs(groups[0])}: the intervals are over images and say nothing of new ones.")
    for figure, what in ((record.srcc, "scores"), (record.accuracy, "questions")):
        if figure is not None and figure.n < _FEW:
            lines.append(f"Only {figure.n} {what}: neither figures nor intervals of so few say anything of others.")
    if any(figure.value is None for _, figure in figure_lines(record)):
        lines.append("Undefined: too few samples, or scores that are all the same.")
    for parameters in (4, 5):
        figure = getattr(record.details, f"plcc_logistic{parameters}", None)
        if figure is not None and "line instead" in figure.method:
            lines.append(f"The {parameters}-parameter logistic did not converge: a line was fitted instead.")
    if record.details and record.details.chance is not None:
        lines.append(f"Guessing would get {record.details.chance:.3f} of the questions right.")
    rungs = ", ".join(f"{rung} {share:.0%}" for rung, share in record.rung_shares.items())
    if rungs:
        lines.append(f"Answers were read from: {rungs}.")
    return lines


def _baseline_table(
    record: EvaluationRecord, ways: Sequence[Baseline], metrics: Sequence[MetricName], gain: MetricName
) -> Table:
    basis: Figure = getattr(record, gain)
    digits = 3 if _width(record, ways, metrics, gain) <= _COLUMNS else 2
    title = f"{heading(record)}\nn = {basis.n} of {basis.asked}, {_photographs(basis.groups)}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("", no_wrap=True, min_width=_LABEL)
    for metric in metrics:
        table.add_column(NAMES[metric], justify="right", no_wrap=True)
    table.add_column(f"program\n- this, {NAMES[gain].split()[0]}", justify="right", no_wrap=True)
    own = [_cell(getattr(record, metric), digits) for metric in metrics]
    table.add_row(Text("program", style="bold"), *own, "", end_section=True)
    ordered = sorted(ways, key=lambda way: (_ORDER.index(way.kind), -(_value(way, gain) if way.kind == "tool" else 0)))
    for number, way in enumerate(ordered):
        last = number + 1 == len(ordered) or (ordered[number + 1].kind == "tool") != (way.kind == "tool")
        cells = [_cell(getattr(way, metric), digits) for metric in metrics]
        found = way.gain[gain]
        label = _wrapped(way.label) + (f"\n(n = {found.n})" if found.n != basis.n else "")
        table.add_row(label, *cells, _gain_cell(found, digits), end_section=last)
    table.caption, table.caption_justify = "Brackets: 95 % intervals,\npaired in the last column.", "left"
    return table


def _width(record: EvaluationRecord, ways: Sequence[Baseline], metrics: Sequence[MetricName], gain: MetricName) -> int:
    """Return the columns that a table with three decimals takes."""
    shown = [max(len(_ends(f, 3)) for w in (record, *ways) if (f := getattr(w, m)) is not None) for m in metrics]
    return _LABEL + sum(shown) + len(shown) + 1 + max(len(_ends(way.gain[gain], 3, "+")) for way in ways)


def _photographs(count: int) -> str:
    return f"{count} photograph" + ("s" if count != 1 else "")


def _value(way: Baseline, metric: MetricName) -> float:
    figure: Figure | None = getattr(way, metric)
    return figure.value if figure is not None and figure.value is not None else -2.0


def _wrapped(label: str, width: int = _LABEL) -> str:
    lines = [""]
    for word in label.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _cell(figure: Figure | None, digits: int) -> Text:
    if figure is None:
        return Text("-")
    value = "undefined" if figure.value is None else f"{figure.value:.3f}"
    return Text("\n".join(filter(None, (value, _ends(figure, digits)))))


def _gain_cell(figure: Figure, digits: int) -> Text:
    if figure.value is None:
        return Text("undefined")
    clear = figure.low is not None and figure.high is not None and (figure.low > 0 or figure.high < 0)
    style = ("green" if figure.value > 0 else "red") if clear else ""
    return Text(f"{figure.value:+.3f}\n{_ends(figure, digits, '+')}", style=style)


def _ends(figure: Figure, digits: int, sign: str = "") -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f"[{figure.low:{sign}.{digits}f}, {figure.high:{sign}.{digits}f}]"
