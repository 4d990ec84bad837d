"""What ratings are worth: what a program learns from the labels."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from program.evaluation.agreement import Estimate
from program.evaluation.intervals import Figure, interval
from program.expert import Lesson

LEAST_LABELS = 25
"""From which a fit says something."""
_PENALTY_ON = 500
"""Labels that choose how strongly they count: so many do it in a tenth of a second."""
_SHARES, _DRAWS = (0.25, 0.5), 3
"""Of the labels, in parts of which, drawn so many times, the fit is repeated."""
_CURVE_FROM = 50
"""Labels from which a quarter of them is no mere chance."""
_FARTHEST = 3.0
"""Times as many labels as there are; beyond, the curve tells nothing."""
_STEP = 10
"""Labels still needed are told in tens."""

Array = NDArray[np.float64]


class Worth(NamedTuple):
    """What a quick fit learns of N labels, judged on pictures of other groups than it was fitted on."""

    before: Estimate
    """SRCC of the program without labels, on the same pictures."""
    after: Estimate
    """SRCC of the fit."""
    curve: tuple[tuple[int, float], ...]
    """Labels and SRCC of the fit to parts of the labels and to all, on all pictures; empty where there are few."""


def worth_of(
    inputs: NDArray[np.float16],
    readings: Sequence[float],
    labels: Sequence[float],
    groups: Sequence[str],
    seed: int = 0,
) -> Worth | None:
    """Return what a correction of the program's readings, fitted on labels as `finetune` does it, is worth.

    Takes N x I numbers (`inputs_of` each view), N readings (means of `View.prior`), N labels on 1..5, and N groups.
    None of fewer than 25 labels, and where all are the same. 2,000 labels take about two seconds on a core.
    """
    read, given, names = np.asarray(readings, float), np.asarray(labels, float), np.asarray(groups)
    if len(given) < LEAST_LABELS or np.ptp(given) == 0:
        return None
    single = inputs.astype(np.float32)
    images = _Images(single @ single.T, read, given, names)
    after = images.scores(np.arange(len(given)), seed)
    before = _estimate(interval("srcc", given, read, groups, seed=seed))
    return Worth(before, _estimate(interval("srcc", given, after, groups, seed=seed)), images.curve(after, seed))


def labels_for(gain: float, worth: Worth) -> int | None:
    """Return about how many more labels raise the SRCC of the fit by `gain`; None where that cannot be said.

    The curve is SRCC = a - b / sqrt(labels), by least squares. It says nothing of fewer than 50 labels, where the
    fit may agree with none of them, where more labels did not help yet, and of more than three times as many.
    """
    if not worth.curve or worth.after.low <= 0:
        return None
    counts, values = np.array(worth.curve).T
    slope = -float(np.polyfit(counts**-0.5, values, 1)[0])
    n = worth.after.n
    left = slope / math.sqrt(n) - gain
    if slope <= 0 or left <= 0:
        return None
    more = (slope / left) ** 2 - n
    if more > (_FARTHEST - 1) * n:
        return None
    return max(_STEP, _STEP * round(more / _STEP))


class _Images(NamedTuple):
    """N images with labels."""

    covariance: NDArray[np.float32]
    """N x N, of what images are moved by."""
    readings: Array
    labels: Array
    groups: NDArray[np.str_]

    def scores(self, places: NDArray[np.intp], seed: int) -> Array:
        """Return the N scores of a fit to the labels at some places, each group's without its own labels."""
        lesson = Lesson(self.labels[places], self.readings[places], self.groups[places].tolist())
        own = self.covariance[np.ix_(places, places)].astype(float)
        few = lesson.drawn(seed, _PENALTY_ON)
        penalty = lesson.penalty(few, own[np.ix_(few, few)])
        scores = self.readings.copy()
        if penalty is not None:
            fit, moved = lesson.fitted(np.arange(len(places)), np.asfortranarray(own), penalty)
            learned = self.covariance[:, places].astype(float) @ fit.weights + fit.offset
            scores += lesson.moves(self.readings, learned)
            scores[places] = self.readings[places] + moved
        return scores

    def curve(self, scores: Array, seed: int) -> tuple[tuple[int, float], ...]:
        """Return the points of the learning curve, the last of which is that of all labels and their scores."""
        names = np.unique(self.groups)
        if len(names) < _CURVE_FROM:
            return ()
        points = []
        for share in _SHARES:
            counts, values = [], []
            for draw in range(_DRAWS):
                # The same order for each share: a smaller part lies within a larger one.
                drawn = np.random.default_rng((seed, draw)).permutation(names)[: round(share * len(names))]
                places = np.flatnonzero(np.isin(self.groups, drawn))
                counts.append(len(places))
                values.append(_srcc(self.labels, self.scores(places, seed)))
            points.append((round(float(np.mean(counts))), float(np.mean(values))))
        return (*points, (len(self.labels), _srcc(self.labels, scores)))


def _srcc(labels: Array, scores: Array) -> float:
    return float(np.nan_to_num(spearmanr(labels, scores).statistic))


def _estimate(figure: Figure) -> Estimate:
    value = figure.value or 0.0
    low = figure.low if figure.low is not None else value
    high = figure.high if figure.high is not None else value
    return Estimate(value, low, high, figure.n)
