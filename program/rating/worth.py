"""What ratings are worth: how well a rater agrees with himself, and what a program learns from the labels."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAST_REPEATS = 40
"""From which the interval says something."""


class Estimate(NamedTuple):
    """A correlation with its 95 % interval."""

    r: float
    low: float
    high: float
    n: int


def self_agreement(first: Sequence[float], second: Sequence[float]) -> Estimate | None:
    """Return Pearson's r of a rater's two answers with Fisher's interval; None where it cannot be told."""
    n = len(first)
    if n < 4 or np.std(first) == 0 or np.std(second) == 0:
        return None
    r = float(np.corrcoef(first, second)[0, 1])
    z, half = math.atanh(min(max(r, -0.9999), 0.9999)), 1.96 / math.sqrt(n - 3)
    return Estimate(r, math.tanh(z - half), math.tanh(z + half), n)


def ceiling(agreement: Estimate) -> Estimate:
    """Return the most that a program can reach: the root of r, with its interval."""
    r, low, high = (math.sqrt(max(value, 0.0)) for value in agreement[:3])
    return Estimate(r, low, high, agreement.n)


def worth_of(features: NDArray[np.float32], labels: Sequence[float], groups: Sequence[str]) -> Estimate | None:
    """Return the SRCC in folds of a quick fit of N x D features to N labels; None where there are too few."""
    return None


def labels_for(gain: float, labels: int, worth: Estimate | None) -> int | None:
    """Return about how many more labels raise SRCC by `gain`; None where nothing can be said yet."""
    return None
