"""Which of two images people preferred, and whether a program's scores agree, with 95 % intervals.

Pairs that share an image (or a photograph) are not independent. The variance of a share over pairs is that of a mean
whose terms go together where they share a photograph; pairs without one in common add as independent ones do.
Source: Aronow, Samii & Assenova 2015, Political Analysis 23 (dyadic cluster-robust variance).
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from program.evaluation.intervals import CONFIDENCE, Figure, wilson
from program.evaluation.metrics import agreements
from program.evaluation.record import Row

__all__ = ("preference", "preference_gain")

Pair = tuple[Row, Row]
"""The image that more people preferred, and the other."""

_NORMAL = float(special.ndtri((1 + CONFIDENCE) / 2))
_METHOD = "over pairs, those that share a photograph going together"


def preference(rows: Sequence[Row]) -> Figure:
    """Return the share of pairs that a program orders as most people do; equal scores earn half a point.

    Pairs without a majority are left out. Its interval is Wilson's for as many independent pairs as would have the
    share's variance. `asked` counts pairs that hold a failed sample, too.
    """
    pairs = _pairs(rows)
    used = [pair for pair in pairs if all(row.counts for row in pair)]
    earned = _earned(used)
    value, size, count = _mean(earned), len(used), _photographs(used)
    low = high = float("nan")
    if size > 1:
        # Where all are right or wrong there is no spread to go by: a photograph counts once.
        spread = _variance(earned, used)
        independent = value * (1 - value) / spread * _narrower(count) if spread else count / 2
        low, high = wilson(value, min(size, independent))
    method = f"Wilson score interval {_METHOD}"
    return Figure(value=value, low=low, high=high, n=size, groups=count, method=method).of(len(pairs))


def preference_gain(before: Sequence[Row], after: Sequence[Row]) -> Figure:
    """Return `after - before` of the share with its paired interval, over rows of the same samples that all count."""
    old, new = _pairs(before), _pairs(after)
    change = _earned(new) - _earned(old)
    value, count = _mean(change), _photographs(old)
    reach = float("nan")
    if len(old) > 1:
        reach = _NORMAL * math.sqrt(_variance(change, old) / _narrower(count))
    ends = np.clip([value - reach, value + reach], -1, 1)
    return Figure(value=value, low=ends[0], high=ends[1], n=len(old), groups=count, method=f"paired, {_METHOD}")


def _pairs(rows: Sequence[Row]) -> list[Pair]:
    """Return the pairs with a majority, in the order of their ids, so that the order of the data changes nothing."""
    by_id = {row.id: row for row in rows}
    return [
        (row, other)
        for _, row in sorted(by_id.items())
        for name, votes in sorted((row.preferred_over or {}).items())
        if (other := by_id.get(name)) is not None and votes > (other.preferred_over or {}).get(row.id, 0.0)
    ]


def _earned(pairs: Sequence[Pair]) -> NDArray[np.float64]:
    gaps = [float(better.predicted or 0) - float(other.predicted or 0) for better, other in pairs]
    return agreements(np.ones(len(gaps)), gaps)


def _variance(values: NDArray[np.float64], pairs: Sequence[Pair]) -> float:
    """Return the variance of the mean of a number for each pair."""
    by_photograph: defaultdict[str, float] = defaultdict(float)
    by_both: defaultdict[tuple[str, ...], float] = defaultdict(float)
    left = values - values.mean()
    for value, pair in zip(left.tolist(), pairs, strict=True):
        ends = tuple(sorted({row.group for row in pair}))
        for end in ends:
            by_photograph[end] += value
        # Pairs of the same two photographs were counted with each of them.
        by_both[ends] += value * (len(ends) > 1)
    together = sum(v * v for v in by_photograph.values()) - sum(v * v for v in by_both.values())
    together *= len(by_photograph) / max(1, len(by_photograph) - 2)  # two of them make an independent pair
    return max(together, float(left @ left)) / len(pairs) ** 2


def _narrower(photographs: int) -> float:
    """Return by how much a normal variance falls short of Student's with so many photographs, 0..1."""
    return float((_NORMAL / special.stdtrit(max(1, photographs - 2), (1 + CONFIDENCE) / 2)) ** 2)


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if values.size else float("nan")


def _photographs(pairs: Sequence[Pair]) -> int:
    return len({row.group for pair in pairs for row in pair})
