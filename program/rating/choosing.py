"""Which picture is rated next, which a second time, and which are set apart to choose and to test by. Pure."""

import random
from collections.abc import Collection, Sequence

_SHARE = 10
"""One of so many groups is for validation, one for test, and one of so many answers is asked again."""
_APART = 8
"""Answers between the first time and the second."""


def split_of(groups: Sequence[str], seed: int) -> list[str]:
    """Return the split of each picture: that of its group, a random tenth validation, a tenth test, the rest train."""
    names = list(dict.fromkeys(groups))
    random.Random(seed).shuffle(names)
    tenth = round(len(names) / _SHARE)
    splits = dict.fromkeys(names, "train")
    splits |= dict.fromkeys(names[:tenth], "validation") | dict.fromkeys(names[tenth : 2 * tenth], "test")
    return [splits[group] for group in groups]


def next_place(groups: Sequence[str], splits: Sequence[str], rated: Collection[int], seed: int = 0) -> int | None:
    """Return the place of the picture to rate next, a random one; None where all are rated.

    Takes N groups, N splits, and the places that are rated. None of a group is taken before each group has one. A
    tenth of what is rated is of validation, and a tenth of test. To choose by what the pictures show or by doubt of
    their scores saves no labels for sure (docs/log.md).
    """
    done = set(rated)
    shown = {groups[place] for place in done}
    left = [place for place in range(len(groups)) if place not in done]
    fresh = [place for place in left if groups[place] not in shown] or left
    if not fresh:
        return None
    split = _split_due(splits, done, fresh)
    places = [place for place in fresh if splits[place] == split]
    return random.Random(f"{seed} {len(done)}").choice(places)


def _split_due(splits: Sequence[str], rated: Collection[int], left: Sequence[int]) -> str:
    """Return which split the next picture is of, of those left: the first that is behind its share, else train."""
    open_splits = sorted({splits[place] for place in left})
    for split in ("validation", "test"):
        is_behind = sum(splits[place] == split for place in rated) < (len(rated) + 1) // _SHARE
        if is_behind and split in open_splits:
            return split
    if "train" in open_splits:
        return "train"
    return open_splits[0]


def repeats_due(order: Sequence[int], again: Collection[int], seed: int = 0) -> int | None:
    """Return which of the places answered in this `order` is to be shown a second time now, or None.

    A tenth of the answers is shown `again`, each after eight others came between.
    """
    if len(again) >= len(order) // _SHARE:
        return None
    old = [place for place in order[:-_APART] if place not in again]
    if not old:
        return None
    return random.Random(f"{seed} {len(again)}").choice(old)
