"""Evaluations on a terminal of 80 columns: figures, what the agent adds to simpler ways, two programs compared."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from program.evaluation.intervals import FEW, Figure
from program.evaluation.metric_table import METRICS, headline
from program.evaluation.record import Baseline, EvaluationRecord

__all__ = ("baseline_tables", "baselines_by_task", "comparison_table", "figure_lines", "figures_table",
           "gain_words", "heading", "notes")  # fmt: skip

_LABEL = 14
"""Columns of a baseline's name, so that the figures beside it fit into 80."""

_ORDER = ("model", "tools", "mean", "fusion", "tool")


def heading(record: EvaluationRecord) -> str:
    """Return what was evaluated in a few words."""
    return f"{record.dataset.name} · {record.dataset.split or 'all splits'}"


def figure_lines(record: EvaluationRecord) -> Iterator[tuple[str, Figure]]:
    """Yield every overall figure that the data has labels for, under its name for people."""
    figures = record.figures | (record.details.figures if record.details else {})
    yield from ((metric.title, figures[name]) for name, metric in METRICS.items() if name in figures)
    if record.details:
        for kind, part in record.details.by_question_type.items():
            yield f"Accuracy ↑ of {kind!r} questions", part.figures["accuracy"]


def figures_table(record: EvaluationRecord) -> Table:
    """Return one row per figure: value, 95 % interval, samples used and asked."""
    table = Table(title=heading(record), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("", no_wrap=True)
    told = any(figure.ends_text() for _, figure in figure_lines(record))
    for column in ("value", *(["95 % interval"] if told else []), "used / asked"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, figure in figure_lines(record):
        ends = [figure.ends_text() or "-"] if told else []
        table.add_row(name, figure.value_text(), *ends, f"{figure.n} / {figure.asked}")
    table.caption, table.caption_justify = "\n".join(notes(record)), "left"
    return table


def baseline_tables(record: EvaluationRecord) -> list[Table]:
    """Return the program against every baseline on the same samples, a table for scores and one for answers."""
    return [_baseline_table(record, ways, columns) for ways, columns in baselines_by_task(record)]


def baselines_by_task(record: EvaluationRecord) -> Iterator[tuple[list[Baseline], list[str]]]:
    """Yield the baselines of scores and those of answers, where there are such, with the metrics to show of them."""
    for columns in (headline("scoring", cards=True), headline("mcq", cards=True)):
        ways = [way for way in record.baselines.values() if columns[0] in way.figures]
        if ways and columns[0] in record.figures:
            yield ways, columns


def comparison_table(before: EvaluationRecord, after: EvaluationRecord, differences: Mapping[str, Figure]) -> Table:
    """Return one row per figure that a word says: both programs, and their paired difference with its interval."""
    dataset, counted = after.dataset, [("score", before.srcc), ("question", before.accuracy)]
    title = f"{dataset.name}{f', {dataset.split} split' if dataset.split else ''}"
    table = Table(title=title, title_justify="left", box=box.HORIZONTALS, pad_edge=False, caption_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("before", "after"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("difference", no_wrap=True)
    same = before.context.get("program_sha256") == after.context.get("program_sha256") is not None
    for name in (name for name, metric in METRICS.items() if metric.word):
        old, new = before.figures.get(name), after.figures.get(name)
        if old is not None or new is not None:
            cells = ("-" if figure is None else figure.value_text() for figure in (old, new))
            gain = Text("same program") if same else _gain_text(name, differences.get(name))
            table.add_row(METRICS[name].word, *cells, gain)
    for cost, word in (
        ("tokens_per_image", "tokens an image"),
        ("model_seconds_per_image", "model's seconds an image"),
    ):
        spent = [record.pace.get(cost) for record in (before, after)]
        if any(spent):
            table.add_row(word, *("-" if each is None else f"{each:.3g}" for each in spent), "")
    counts = [f"{figure.n} {what}{'s' * (figure.n != 1)}" for what, figure in counted if figure]
    groups = max((figure.groups for _, figure in counted if figure), default=0)
    made_up = ", which is made up: they say nothing of people" if dataset.judge != "people" else ""
    table.caption = "\n".join([
        f"{' and '.join(counts)} of {_photographs(groups)}; labels by {dataset.judge}{made_up}.",
        *_intervals_told([] if same else list(differences.values())),
        *(f"{name}: {record.failed} of {len(record.rows)} samples failed and are left out"
          for name, record in (("before", before), ("after", after)) if record.failed),
        *undefined((METRICS[name].word, f) for each in (before, after) for name, f in each.figures.items()
                   if METRICS[name].word),
        *_too_few(before),
    ])  # fmt: skip
    return table


def _intervals_told(gains: Sequence[Figure]) -> Iterator[str]:
    """Yield what the brackets are, where there are any, and of what they speak."""
    few = [gain.groups for gain in gains if gain.descriptive]
    if any(gain.ends_text() for gain in gains):
        over = f", over images of only {_photographs(min(few))}: they do not speak of new photographs" if few else ""
        yield f"Brackets: 95 % intervals{over}."


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
    return Text(shown, {"better": "green", "worse": "red"}.get(words, ""))


def notes(record: EvaluationRecord) -> list[str]:
    """Return what a reader has to know of the figures: failures, weak intervals, where answers came from."""
    lines = []
    if record.dataset.judge != "people":
        lines.append(f"Labels are by {record.dataset.judge}, which is made up: they say nothing of people.")
    if record.failed:
        lines.append(f"{record.failed} of {len(record.rows)} samples failed; no figure counts them.")
    if any(figure.descriptive for figure in record.figures.values()):
        groups = sorted({figure.groups for figure in record.figures.values()})
        lines.append(f"Only {_photographs(groups[0])}: the intervals are over images and say nothing of new ones.")
    lines += _too_few(record)
    lines += undefined(figure_lines(record))
    if any("line instead" in figure.method for _, figure in figure_lines(record)):
        lines.append("A logistic that did not converge was fitted as a line instead.")
    if record.details and record.details.chance is not None:
        lines.append(f"Guessing would get {record.details.chance:.3f} of the questions right.")
    lines += _superfluous(record)
    rungs = ", ".join(f"{rung} {share:.0%}" for rung, share in record.rung_shares.items())
    if rungs:
        lines.append(f"Answers were read from: {rungs}.")
    return lines


def undefined(figures: Iterable[tuple[str, Figure]]) -> list[str]:
    """Return a line for every reason why some of the figures, given under their names for people, have no value."""
    names: dict[str, list[str]] = {}
    for name, figure in figures:
        if figure.value is None:
            names.setdefault(figure.reason or "no samples", []).append(name.replace(" ↑", "").replace(" ↓", ""))
    return [f"Undefined, as {reason}: {', '.join(dict.fromkeys(each))}." for reason, each in names.items()]


def _too_few(record: EvaluationRecord) -> Iterator[str]:
    for figure, what in ((record.srcc, "score"), (record.accuracy, "question")):
        if figure is not None and figure.n < FEW:
            told = f"Only {figure.n} {what}{'s' * (figure.n != 1)}"
            yield f"{told}: neither figures nor intervals of so few say anything of others."


def _superfluous(record: EvaluationRecord) -> Iterator[str]:
    """Yield a line for scores and for answers where the model alone, or the tools alone, are surely not worse."""
    for ways, (metric, *_) in baselines_by_task(record):
        parts = [way for way in ways if way.kind in {"model", "tools"}]
        best = max(parts, key=lambda way: way.figures[metric].value or -2.0, default=None)
        if best is not None and best.gain[metric].sign < 1:
            name, gain = METRICS[metric].title.split()[0], best.gain[metric]
            yield f"{name}: no sure gain over {best.label!r} ({gain.value_text('+')} {gain.ends_text('+')})."


def figure_cell(figure: Figure | None, sign: str = "", style: str = "") -> Text:
    """Return a figure with its interval on a line of its own, so that tables fit 80 columns."""
    return Text("-" if figure is None else f"{figure.value_text(sign)}\n{figure.ends_text(sign)}".rstrip(), style)


def gain_cell(metric: str, gain: Figure | None) -> Text:
    """Return a difference, green where it is surely for the better and red where surely for the worse."""
    better = 0 if gain is None else gain.sign * METRICS[metric].direction
    return figure_cell(gain, "+", {1: "green", 0: "", -1: "red"}[better])


def _baseline_table(record: EvaluationRecord, ways: Sequence[Baseline], columns: Sequence[str]) -> Table:
    metric = columns[0]
    basis = record.figures[metric]
    title = f"{heading(record)}\nn = {basis.n} of {basis.asked}, {_photographs(basis.groups)}"
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
        table.add_row(label, *cells, gain_cell(metric, gain), end_section=last)
    table.caption, table.caption_justify = "Brackets: 95 % intervals,\npaired in the last column.", "left"
    return table


def _photographs(count: int) -> str:
    return f"{count} photograph" + ("s" if count != 1 else "")
