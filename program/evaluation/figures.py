"""From rows to figures: one metric, a whole record, its details, and the difference between two programs."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import JsonValue

from program.common.errors import InputError
from program.evaluation.environment import environment
from program.evaluation.intervals import Figure, interval, paired_difference
from program.evaluation.metric_table import METRICS, headline
from program.evaluation.metrics import Values, equal_mass_bins, outliers
from program.evaluation.record import Bin, Dataset, Details, EvaluationRecord, Part
from program.evaluation.rows import Row
from program.evaluation.tally import tally

__all__ = ("compare", "details_of", "nearest_level", "summarize")

_MAX_PARTS = 60
"""A field with more values than this names samples, not kinds of them."""

_Inputs = tuple[Sequence[Row], Values, Values]


def summarize(
    rows: Sequence[Row],
    *,
    dataset: Dataset | None = None,
    context: Mapping[str, JsonValue] | None = None,
    seed: int = 0,
    wall_seconds: float = 0.0,
) -> EvaluationRecord:
    """Return the record over `rows`; figures are null where no row has such a label."""
    names = [*headline("scoring"), *headline("mcq")]
    figures = {name: figure for name in names if (figure := figure_of(name, rows, seed=seed)).asked}
    return EvaluationRecord(
        dataset=dataset or Dataset(), seed=seed, wall_seconds=wall_seconds, context=dict(context or {}),
        environment=environment(), rows=tuple(rows), **tally(rows), **figures,
    )  # fmt: skip


def figure_of(name: str, rows: Sequence[Row], *, seed: int = 0) -> Figure:
    """Return a metric over the rows of its task that have a truth; those that failed are only counted as asked."""
    metric = METRICS[name]
    labelled = [row for row in rows if row.task == metric.task and row.truth is not None]
    # Sorted, so that the order of the data changes no interval.
    used, truth, predicted = _INPUTS[metric.needs](sorted((r for r in labelled if r.counts), key=_id))
    return interval(name, truth, predicted, [row.group for row in used], seed=seed).of(len(labelled))


def compare(before: Sequence[Row], after: Sequence[Row], *, seed: int = 0) -> dict[str, Figure]:
    """Return `after - before` for every headline metric, over the samples that both programs answered.

    Higher is better for srcc, plcc, krcc and accuracy, lower for rmse. Raises InputError where a sample's truth
    differs between the two.
    """
    others = {row.id: row for row in after if row.counts}
    pairs = sorted(((row, others[row.id]) for row in before if row.counts and row.id in others), key=lambda p: p[0].id)
    for first, second in pairs:
        if (first.task, first.truth) != (second.task, second.truth):
            raise InputError(
                f"sample {first.id!r}: its truth is {first.truth!r} in one and {second.truth!r} in the other; "
                "compare two runs over the same manifest"
            )
    differences: dict[str, Figure] = {}
    for task in ("scoring", "mcq"):
        chosen = [pair for pair in pairs if pair[0].task == task]
        if chosen:
            used, truth, old = _predictions([first for first, _ in chosen])
            _, _, new = _predictions([second for _, second in chosen])
            groups = [row.group for row in used]
            differences |= {n: paired_difference(n, truth, old, new, groups, seed=seed) for n in headline(task)}
    return differences


def details_of(rows: Sequence[Row], *, seed: int = 0) -> Details:
    """Return every further figure with its interval; parts smaller than two samples have none."""
    names = [name for name, metric in METRICS.items() if not metric.headline]
    fields: dict[str, Any] = {name: f for name in names if (f := figure_of(name, rows, seed=seed)).n}
    fields |= {part: _parts(part, rows, seed) for part in _PARTS}
    used = sorted((row for row in rows if row.counts), key=_id)
    fields["calibration_bins"] = _calibration_bins(used, seed)
    choices = [row for row in used if row.task == "mcq"]
    fields["confusion"] = _confusion(choices)
    chances = [1 / row.choices for row in choices if row.choices]
    fields["chance"] = math.fsum(chances) / len(chances) if chances and len(chances) == len(choices) else None
    return Details(**fields)


def nearest_level(score: float) -> int:
    """Return the level 1..5 nearest to a score, halves up.

    >>> nearest_level(2.5), nearest_level(0.3), nearest_level(5.4)
    (3, 1, 5)
    """
    return min(5, max(1, math.floor(score + 0.5)))


def _id(row: Row) -> str:
    return row.id


def _predictions(rows: Sequence[Row]) -> _Inputs:
    truth: list[Any] = [row.truth for row in rows]
    predicted: list[Any] = [row.predicted for row in rows]
    return rows, truth, predicted


def _levels(rows: Sequence[Row]) -> _Inputs:
    used = [row for row in rows if row.level_probabilities]
    # Of equally probable levels the lowest, as argmax does.
    beliefs = [max(sorted((row.level_probabilities or {}).items()), key=lambda item: item[1]) for row in used]
    levels = [nearest_level(float(row.truth or 0)) for row in used]
    right = np.array([float(belief[0] == level) for belief, level in zip(beliefs, levels, strict=True)])
    return used, right, np.array([probability for _, probability in beliefs])


def _opinions(rows: Sequence[Row]) -> _Inputs:
    used = [row for row in rows if row.mos_std is not None]
    truth, predicted, spread = ([getattr(row, name) for row in used] for name in ("truth", "predicted", "mos_std"))
    return used, [True] * len(used), outliers(truth, predicted, spread).tolist()


_INPUTS: Mapping[str, Callable[[Sequence[Row]], _Inputs]] = {
    "scores": _predictions, "answers": _predictions, "levels": _levels, "opinions": _opinions,
}  # fmt: skip
"""What a metric needs of rows that count: the rows that have it, truth and prediction."""


def _calibration_bins(used: Sequence[Row], seed: int) -> tuple[Bin, ...]:
    rows, right, confidence = _levels([row for row in used if row.task == "scoring"])
    right, confidence = np.asarray(right), np.asarray(confidence)
    bins = equal_mass_bins(confidence) if rows else np.array([], dtype=np.intp)
    result = []
    for number in np.unique(bins):
        inside = np.flatnonzero(bins == number)
        groups = [rows[i].group for i in inside.tolist()]
        share = interval("accuracy", [1.0] * inside.size, right[inside].tolist(), groups, seed=seed)
        result.append(Bin(n=inside.size, confidence=float(confidence[inside].mean()), right=share))
    return tuple(result)


_PARTS: Mapping[str, Callable[[Row], str | None]] = {
    "by_distortion": lambda row: row.distortion,
    "by_level": lambda row: str(nearest_level(row.truth)) if isinstance(row.truth, float) else None,
    "by_question_type": lambda row: row.question_type,
}
"""What a sample is a part of; None for none."""


def _parts(part: str, rows: Sequence[Row], seed: int) -> dict[str, Part]:
    names = [name for name, metric in METRICS.items() if part in metric.parts]
    members: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        key = _PARTS[part](row)
        if row.truth is not None and key is not None and any(METRICS[name].task == row.task for name in names):
            members[key].append(row)
    sizes = {key: sum(row.counts for row in inside) for key, inside in sorted(members.items())}
    sizes = {key: size for key, size in sizes.items() if size}
    if len(sizes) > _MAX_PARTS:
        return {}
    return {
        key: Part(n=size, figures={name: figure_of(name, members[key], seed=seed) for name in names})
        for key, size in sizes.items()
    }


def _confusion(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    counts = Counter((str(row.truth), str(row.predicted)) for row in rows)
    letters = sorted({letter for pair in counts for letter in pair})
    return {t: {p: counts[t, p] for p in letters} for t in letters} if counts else {}
