"""From rows to figures: one metric, a whole record, its details, and the difference between two programs."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from pydantic import JsonValue

from program.common.errors import InputError
from program.evaluation.intervals import METRICS, Figure, headline, interval, paired_difference
from program.evaluation.judgements import preference, preference_gain
from program.evaluation.metrics import Values, outliers
from program.evaluation.record import (
    Counts,
    Dataset,
    Details,
    EvaluationRecord,
    LabelledRow,
    PartFigures,
    Task,
    environment,
)
from program.fusion.levels import nearest_level

_MAX_PARTS = 60
"""A field with more values than this names samples, not kinds of them."""

_Inputs = tuple[Sequence[LabelledRow], Values, Values]


def summarize(
    rows: Sequence[LabelledRow],
    *,
    dataset: Dataset | None = None,
    context: Mapping[str, JsonValue] | None = None,
    seed: int = 0,
    wall_seconds: float = 0.0,
) -> EvaluationRecord:
    """Return the record over `rows`; figures are null where no row has such a label."""
    figures = {}
    for name in (*headline("scoring"), *headline("mcq")):
        figure = figure_of(name, rows, seed=seed)
        if figure.asked:
            figures[name] = figure
    return EvaluationRecord(
        dataset=dataset or Dataset(), seed=seed, wall_seconds=wall_seconds, context=dict(context or {}),
        environment=environment(), rows=tuple(rows), **_tally(rows), **figures,
    )  # fmt: skip


def figure_of(name: str, rows: Sequence[LabelledRow], *, seed: int = 0) -> Figure:
    """Return a metric over the rows of its task that have a truth; those that failed are only counted as asked."""
    metric = METRICS[name]
    labelled = [row for row in rows if row.task == metric.task and row.truth is not None]
    if metric.needs == "preferences":
        return preference(labelled)
    # Sorted, so that the order of the data changes no interval.
    used, truth, predicted = _INPUTS[metric.needs](_in_order(labelled))
    return interval(name, truth, predicted, [row.group for row in used], seed=seed).of(len(labelled))


def compare(before: Sequence[LabelledRow], after: Sequence[LabelledRow], *, seed: int = 0) -> dict[str, Figure]:
    """Return `after - before` for every headline metric, over the samples that both programs answered.

    Higher is better for srcc, plcc, krcc, accuracy and preference, lower for rmse. Raises InputError where a sample's
    truth differs between the two.
    """
    others = {row.id: row for row in after if row.counts}
    pairs: defaultdict[str, tuple[list[LabelledRow], list[LabelledRow]]] = defaultdict(lambda: ([], []))
    for row in _in_order(before):
        other = others.get(row.id, row)
        if (row.task, row.truth) != (other.task, other.truth):
            raise InputError(
                f"sample {row.id!r}: its truth is {row.truth!r} in one and {other.truth!r} in the other; "
                "compare two runs over the same manifest"
            )
        if row.id in others:
            pairs[row.task][0].append(row)
            pairs[row.task][1].append(other)
    differences: dict[str, Figure] = {}
    for task in ("scoring", "mcq"):
        (first, truth, old), (second, _, new) = map(_predictions, pairs[task])
        groups = [row.group for row in first]
        for name in headline(task) if first else ():
            if METRICS[name].needs != "preferences":
                differences[name] = paired_difference(name, truth, old, new, groups, seed=seed)
        if (gain := preference_gain(first, second)).n:
            differences["preference"] = gain
    return differences


def details_of(rows: Sequence[LabelledRow], *, seed: int = 0) -> Details:
    """Return every further figure with its interval; parts smaller than two samples have none."""
    fields: dict[str, Any] = {part: _parts(part, rows, seed) for part in _PARTS}
    for name, metric in METRICS.items():
        if not metric.headline and (figure := figure_of(name, rows, seed=seed)).n:
            fields[name] = figure
    choices = [row for row in _in_order(rows) if row.task == "mcq"]
    chances = [1 / row.choices for row in choices if row.choices]
    fields["chance"] = math.fsum(chances) / len(chances) if chances and len(chances) == len(choices) else None
    return Details(**fields)


def _in_order(rows: Iterable[LabelledRow]) -> list[LabelledRow]:
    return sorted((row for row in rows if row.counts), key=attrgetter("id"))


def _predictions(rows: Sequence[LabelledRow]) -> _Inputs:
    truth: list[Any] = [row.truth for row in rows]
    predicted: list[Any] = [row.predicted for row in rows]
    return rows, truth, predicted


def _opinions(rows: Sequence[LabelledRow]) -> _Inputs:
    used = [row for row in rows if row.mos_std is not None]
    _, truth, predicted = _predictions(used)
    return used, [True] * len(used), outliers(truth, predicted, [row.mos_std or 0.0 for row in used]).tolist()


def _intervals(rows: Sequence[LabelledRow]) -> _Inputs:
    used = [row for row in rows if row.score_interval is not None]
    low, high = np.array([row.score_interval for row in used], dtype=float).reshape(-1, 2).T
    truth = np.array([row.truth for row in used], dtype=float)
    return used, np.ones(len(used)), (low <= truth) & (truth <= high)


_INPUTS: Mapping[str, Callable[[Sequence[LabelledRow]], _Inputs]] = {
    "scores": _predictions, "answers": _predictions, "opinions": _opinions, "intervals": _intervals,
}  # fmt: skip
"""What a metric needs of rows that count: the rows that have it, truth and prediction."""


_PARTS: Mapping[str, Callable[[LabelledRow], str | None]] = {
    "by_distortion": lambda row: row.distortion,
    "by_level": lambda row: str(nearest_level(row.truth)) if isinstance(row.truth, float) else None,
    "by_question_type": lambda row: row.question_type,
}
"""What a sample is a part of; None for none."""


def _parts(part: str, rows: Sequence[LabelledRow], seed: int) -> dict[str, PartFigures]:
    names = [name for name, metric in METRICS.items() if part in metric.parts]
    tasks = {METRICS[name].task for name in names}
    members, sizes = defaultdict[str, list[LabelledRow]](list), Counter[str]()
    for row in rows:
        key = _PARTS[part](row)
        if row.truth is not None and key is not None and row.task in tasks:
            members[key].append(row)
            sizes[key] += row.counts
    parts = {}
    for key in sorted(+sizes) if len(+sizes) <= _MAX_PARTS else ():
        figures = {name: figure_of(name, members[key], seed=seed) for name in names}
        parts[key] = PartFigures(n=sizes[key], figures=figures)
    return parts


def _tally(rows: Sequence[LabelledRow]) -> dict[str, Any]:
    """Return the fields of a record that are counts and sums over its rows: samples by task, attempts, costs, pace."""
    attempts = Counter(row.attempt for row in rows if row.attempt and row.status != "failed")
    return {
        "scoring": _counts(rows, "scoring"), "mcq": _counts(rows, "mcq"), "other": _counts(rows, "open"),
        "groups": len({row.group for row in rows}),
        "attempts": dict(sorted(attempts.items())),
        "pace": _pace(rows),
        **_sums(rows),
    }  # fmt: skip


def _counts(rows: Iterable[LabelledRow], task: Task) -> Counts:
    statuses = Counter[str]()
    for row in rows:
        if row.task != task:
            continue
        if row.status == "failed":
            statuses["failed"] += 1
        elif row.counts:
            statuses["used"] += 1
        else:
            statuses["unlabelled"] += 1
    return Counts(asked=statuses.total(), **statuses)


def _sums(rows: Iterable[LabelledRow]) -> dict[str, Any]:
    """Return what was spent over the rows that say; what no row says is left out."""
    sums: dict[str, Any] = {}
    for row in rows:
        for name in ("lm_calls", "tokens", "cost_usd"):
            amount = getattr(row, name)
            if amount is not None:
                sums[name] = sums.get(name, 0) + amount
    return sums


def _pace(rows: Sequence[LabelledRow]) -> dict[str, float]:
    pace: dict[str, float] = {}
    if rows:
        middle, slow = np.percentile([row.seconds for row in rows], (50, 95))
        pace = {"seconds_p50": round(float(middle), 6), "seconds_p95": round(float(slow), 6)}
    known, paid = [], []
    for usage in (row.usage for row in rows if row.usage is not None):
        # An answer from a cache takes no time, but as many tokens as when it was paid for, where they are known.
        if usage.lm_calls or usage.kept_tokens:
            known.append(usage.input_tokens + usage.output_tokens + usage.kept_tokens)
        if usage.lm_calls:
            paid.append(usage.seconds.get("summarizer", 0.0))
    if known:
        pace["tokens_per_image"] = round(sum(known) / len(known), 1)
    if paid:
        pace["model_seconds_per_image"] = round(sum(paid) / len(paid), 3)
    return pace
