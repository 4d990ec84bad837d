"""The figures beyond the headline ones, from the rows of an evaluation."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from sys import intern
from typing import Any

import numpy as np

from program.evaluation.intervals import Figure, interval
from program.evaluation.metrics import MetricName, equal_mass_bins, outliers
from program.evaluation.record import Bin, Details, Part
from program.evaluation.rows import Row

__all__ = ("details_of", "nearest_level")

_OVERALL: tuple[MetricName, ...] = (
    "mae", "bias", "pairwise", "plcc_logistic4", "rmse_logistic4", "plcc_logistic5", "rmse_logistic5",
)  # fmt: skip

_MAX_PARTS = 60
"""A field with more values than this names samples, not kinds of them."""


def nearest_level(score: float) -> int:
    """Return the level 1..5 nearest to a score, halves up.

    >>> nearest_level(2.5), nearest_level(0.3), nearest_level(5.4)
    (3, 1, 5)
    """
    return min(5, max(1, math.floor(score + 0.5)))


def details_of(rows: Iterable[Row], *, seed: int = 0) -> Details:
    """Return every further figure with its interval; parts smaller than two samples have none."""
    scoring, mcq = _Columns(), _Columns()
    asked: Counter[tuple[str, str | None]] = Counter()
    for row in rows:
        if row.truth is None or row.task == "open":
            continue
        asked.update([("all", row.task), ("distortion", row.distortion), ("question type", row.question_type)])
        if row.task == "scoring":
            asked["level", _level(row.truth)] += 1
        if row.counts:
            (scoring if row.task == "scoring" else mcq).add(row)
    scoring.sort()
    mcq.sort()
    found: dict[str, Any] = {}
    if scoring.ids:
        truth, predicted, groups = np.array(scoring.truth), np.array(scoring.predicted), scoring.groups
        whole = asked["all", "scoring"]
        found |= {name: interval(name, truth, predicted, groups, seed=seed).of(whole) for name in _OVERALL}
        found |= _outlier_ratio(scoring, whole, seed) | _calibration(scoring, whole, seed)
        levels = [_level(score) for score in scoring.truth]
        kinds = scoring.kinds
        found["by_distortion"] = _parts(scoring, kinds, ("srcc", "rmse", "bias"), "distortion", asked, seed)
        found["by_level"] = _parts(scoring, levels, ("mae", "bias"), "level", asked, seed)
    if mcq.ids:
        found["by_question_type"] = _parts(mcq, mcq.question_types, ("accuracy",), "question type", asked, seed)
        found["confusion"] = _confusion(mcq.truth, mcq.predicted)
        known = [1 / choices for choices in mcq.choices if choices]
        found["chance"] = math.fsum(known) / len(known) if len(known) == len(mcq.ids) else None
    return Details(**found)


def _level(score: Any) -> str:
    return str(nearest_level(float(score)))


class _Columns:
    """What the figures need of the rows, as columns in the order of the ids."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.groups: list[str] = []
        self.truth: list[Any] = []
        self.predicted: list[Any] = []
        self.kinds: list[str | None] = []
        self.question_types: list[str | None] = []
        self.choices: list[int | None] = []
        self.spread: list[float | None] = []
        self.belief: list[tuple[int, float] | None] = []
        """The most probable level and its probability."""

    def add(self, row: Row) -> None:
        self.ids.append(row.id)
        self.groups.append(row.group)
        self.truth.append(row.truth)
        self.predicted.append(row.predicted)
        self.kinds.append(row.distortion and intern(row.distortion))
        self.question_types.append(row.question_type and intern(row.question_type))
        self.choices.append(row.choices)
        self.spread.append(row.mos_std)
        p = row.level_probabilities
        # Of equally probable levels the lowest, as argmax does.
        self.belief.append(max(sorted(p.items()), key=lambda item: item[1]) if p else None)

    def sort(self) -> None:
        order = sorted(range(len(self.ids)), key=self.ids.__getitem__)
        for name, column in vars(self).items():
            setattr(self, name, [column[i] for i in order])


def _outlier_ratio(columns: _Columns, asked: int, seed: int) -> dict[str, Figure]:
    known = [i for i, spread in enumerate(columns.spread) if spread is not None]
    if not known:
        return {}
    truth, predicted, spread = (_taken(c, known) for c in (columns.truth, columns.predicted, columns.spread))
    missed = outliers(truth, predicted, spread)
    # A share like accuracy, with accuracy's interval.
    figure = interval("accuracy", [True] * len(known), missed.tolist(), _taken(columns.groups, known), seed=seed)
    return {"outlier_ratio": figure.of(asked)}


def _calibration(columns: _Columns, asked: int, seed: int) -> dict[str, Any]:
    known = [i for i, belief in enumerate(columns.belief) if belief is not None]
    if not known:
        return {}
    beliefs = _taken(columns.belief, known)
    truth, groups = _taken(columns.truth, known), _taken(columns.groups, known)
    right = np.array([float(level == nearest_level(t)) for (level, _), t in zip(beliefs, truth, strict=True)])
    confidence = np.array([p for _, p in beliefs])
    bins = equal_mass_bins(confidence)
    shown = []
    for number in np.unique(bins):
        inside = np.flatnonzero(bins == number).tolist()
        share = interval("accuracy", [1.0] * len(inside), _taken(right, inside), _taken(groups, inside), seed=seed)
        shown.append(Bin(n=len(inside), confidence=float(confidence[inside].mean()), right=share))
    figure = interval("calibration_error", right, confidence, groups, seed=seed)
    return {"calibration_error": figure.of(asked), "calibration_bins": tuple(shown)}


def _parts(
    columns: _Columns,
    keys: Sequence[str | None],
    metrics: Sequence[MetricName],
    kind: str,
    asked: Mapping[tuple[str, str | None], int],
    seed: int,
) -> dict[str, Part]:
    members: Mapping[str, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        if key is not None:
            members[key].append(i)
    if len(members) > _MAX_PARTS:
        return {}
    parts = {}
    for key, inside in sorted(members.items()):
        truth, predicted, groups = (_taken(c, inside) for c in (columns.truth, columns.predicted, columns.groups))
        whole = asked[kind, key]
        figures = {name: interval(name, truth, predicted, groups, seed=seed).of(whole) for name in metrics}
        parts[key] = Part(n=len(inside), figures=figures)
    return parts


def _confusion(truth: Sequence[str], predicted: Sequence[str]) -> dict[str, dict[str, int]]:
    counts = Counter(zip(truth, predicted, strict=True))
    letters = sorted({*truth, *predicted})
    return {t: {p: counts[t, p] for p in letters} for t in letters}


def _taken(column: Any, places: Sequence[int]) -> list[Any]:
    return [column[i] for i in places]
