"""Which picture is shown next, which a second time, and what is set apart to choose and to test by."""

import random
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

_SHARE = 10
"""One of so many goes to validation, one to test, and one is shown again."""
_APART = 8
"""Answers between the first time and the second."""


def split_of(groups: Sequence[str], seed: int) -> list[str]:
    """Return the split of each place by its group: a random tenth validation, a tenth test, the rest train."""
    names = list(dict.fromkeys(groups))
    order = random.Random(seed).sample(names, len(names))
    tenth = round(len(names) / _SHARE)
    split = dict.fromkeys(order, "train")
    split |= dict.fromkeys(order[:tenth], "validation") | dict.fromkeys(order[tenth : 2 * tenth], "test")
    return [split[group] for group in groups]


def next_place(
    features: NDArray[np.float32],
    groups: Sequence[str],
    splits: Sequence[str],
    labels: Mapping[int, float],
    predicted: NDArray[np.float64] | None = None,
    width: NDArray[np.float64] | None = None,
    seed: int = 0,
) -> int | None:
    """Return the place to show next, None where all have a label: a random one of a group without a label first."""
    shown = {groups[place] for place in labels}
    order = random.Random(seed).sample(range(len(groups)), len(groups))
    fresh = (place for place in order if place not in labels and groups[place] not in shown)
    return next(fresh, next((place for place in order if place not in labels), None))


def repeats_due(order: Sequence[int], again: Collection[int], seed: int = 0) -> int | None:
    """Return which of what was answered, in this `order`, is to be shown again now, or None.

    A tenth of the answers is shown `again`, each not before eight others came between.
    """
    if len(again) >= len(order) // _SHARE:
        return None
    old = [place for place in order[:-_APART] if place not in again]
    return random.Random(f"{seed} {len(again)}").choice(old) if old else None
