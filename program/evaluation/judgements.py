"""Which of two images people find better, and how often a program agrees."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy import special

from program.common.text import counted
from program.evaluation.intervals import CONFIDENCE, MIN_GROUPS, Figure, wilson
from program.evaluation.metrics import agreements, mean
from program.evaluation.record import LabelledRow

Pair = tuple[LabelledRow, LabelledRow]
"""The image that more people preferred, and the other."""

_NORMAL = float(special.ndtri((1 + CONFIDENCE) / 2))


def preference(rows: Sequence[LabelledRow]) -> Figure:
    """Return the share of pairs that a program orders as most people do; equal scores earn half a point.

    Pairs without a majority are left out. Its interval is Wilson's for as many independent pairs as would have the
    share's variance. `asked` counts pairs that hold a failed sample, too.
    """
    pairs = _pairs(rows)
    used = [pair for pair in pairs if all(row.counts for row in pair)]
    earned, ends = _earned(used), _Ends.of(used)
    value, size = mean(earned), len(used)
    low = high = float("nan")
    if size > 1:
        # Where all are right or wrong there is no spread to go by: a photograph counts once.
        spread = _variance(earned, ends)
        independent = value * (1 - value) / spread if spread else len(set(chain(*ends.names))) / 2
        low, high = wilson(value, min(size, independent))
    return ends.figure(value, low, high, "Wilson score interval").of(len(pairs))


def preference_gain(before: Sequence[LabelledRow], after: Sequence[LabelledRow]) -> Figure:
    """Return `after - before` of the share with its paired interval, over rows of the same samples that all count."""
    old, new = _pairs(before), _pairs(after)
    change = _earned(new) - _earned(old)
    value, ends = mean(change), _Ends.of(old)
    reach = _NORMAL * math.sqrt(_variance(change, ends)) if len(old) > 1 else float("nan")
    low, high = np.clip([value - reach, value + reach], -1, 1)
    return ends.figure(value, low, high, "paired,")


@dataclass(frozen=True)
class _Ends:
    """What each pair lies between: two photographs, or images where photographs are too few to tell their spread."""

    names: tuple[tuple[str, ...], ...]
    photographs: int
    note: str

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> "_Ends":
        rows = list(chain.from_iterable(pairs))
        groups = {row.group for row in rows}
        few = len(groups) < min(MIN_GROUPS, len({row.id for row in rows}))
        note = f" (descriptive: only {counted(len(groups), 'photograph')})" if few else ""
        names = []
        for first, second in pairs:
            ends = {first.id, second.id} if few else {first.group, second.group}
            names.append(tuple(sorted(ends)))
        return cls(tuple(names), len(groups), note)

    def figure(self, value: float, low: float, high: float, how: str) -> Figure:
        unit = "an image" if self.note else "a photograph"
        method = f"{how} over pairs, those that share {unit} going together{self.note}"
        size, reason = len(self.names), None if self.names else "no pair of images that both got a score"
        return Figure(value=value, low=low, high=high, n=size, groups=self.photographs, method=method, reason=reason)


def _pairs(rows: Sequence[LabelledRow]) -> list[Pair]:
    """Return the pairs with a majority, in the order of their ids, so that the order of the data changes nothing."""
    by_id = {row.id: row for row in rows}
    pairs = []
    for _, row in sorted(by_id.items()):
        for name, votes in sorted((row.preferred_over or {}).items()):
            other = by_id.get(name)
            if other is not None and votes > (other.preferred_over or {}).get(row.id, 0.0):
                pairs.append((row, other))
    return pairs


def _earned(pairs: Sequence[Pair]) -> NDArray[np.float64]:
    gaps = [float(better.predicted or 0) - float(other.predicted or 0) for better, other in pairs]
    return agreements(np.ones(len(gaps)), gaps)


def _variance(values: NDArray[np.float64], ends: _Ends) -> float:
    """Return the variance of the mean of a number for each pair, so that 1.96 deviations reach as far as Student's."""
    by_end: defaultdict[str, float] = defaultdict(float)
    by_both: defaultdict[tuple[str, ...], float] = defaultdict(float)
    left = values - values.mean()
    for value, names in zip(left.tolist(), ends.names, strict=True):
        for name in names:
            by_end[name] += value
        # Pairs of the same two were counted with each of them.
        by_both[names] += value * (len(names) > 1)
    together = sum(v * v for v in by_end.values()) - sum(v * v for v in by_both.values())
    free = max(1, len(by_end) - 2)  # two of them make an independent pair
    widened = max(together * len(by_end) / free, float(left @ left)) / values.size**2
    return float(widened * (special.stdtrit(free, (1 + CONFIDENCE) / 2) / _NORMAL) ** 2)
