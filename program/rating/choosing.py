"""Which picture is rated next, which a second time, and which are set apart to choose and to test by. Pure."""

import random
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

_SHARE = 10
"""One of so many groups is for validation, one for test, and one of so many answers is asked again."""
_APART = 8
"""Answers between the first time and the second."""
_NOISE = 0.3
"""Variance of a label, of what two usual pictures differ by: the same as fits choose of some hundred labels."""

Array = NDArray[np.float64]


def split_of(groups: Sequence[str], seed: int) -> list[str]:
    """Return the split of each picture: that of its group, a random tenth validation, a tenth test, the rest train."""
    names = list(dict.fromkeys(groups))
    random.Random(seed).shuffle(names)
    tenth = round(len(names) / _SHARE)
    splits = dict.fromkeys(names, "train")
    splits |= dict.fromkeys(names[:tenth], "validation") | dict.fromkeys(names[tenth : 2 * tenth], "test")
    return [splits[group] for group in groups]


def next_place(
    features: NDArray[np.float32], groups: Sequence[str], splits: Sequence[str], rated: Collection[int], seed: int = 0
) -> int | None:
    """Return the place of the picture to rate next; None where all are rated.

    Takes N x D features (`likeness` of views), N groups, N splits, and the places that are rated. None of a group is
    taken before each group has one. A tenth of what is rated is of validation, and a tenth of test, at random. Of
    train that picture is taken whose label leaves the least doubt of all pictures (see `doubt_removed`).
    """
    done = set(rated)
    shown = {groups[place] for place in done}
    left = [place for place in range(len(groups)) if place not in done]
    fresh = [place for place in left if groups[place] not in shown] or left
    if not fresh:
        return None
    split = _split_due(splits, done, fresh)
    places = [place for place in fresh if splits[place] == split]
    if split != "train":
        return random.Random(f"{seed} {len(done)}").choice(places)
    return places[int(np.argmax(doubt_removed(features, sorted(done))[places]))]


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


def doubt_removed(features: NDArray[np.float32], rated: Sequence[int]) -> Array:
    """Return by how much a label of each of N pictures would lower the mean variance of what is predicted of all.

    That of a Gaussian process with the products of the N x D features as its covariance, after the labels of the M
    places that are rated: sum_j c(i, j)^2 / (c(i, i) + noise) / N. It is large where many pictures lie and none of
    them has a label, and does not depend on the labels themselves (Cohn 1996; Yu, Bi & Tresp 2006).
    """
    centred = features - features.mean(axis=0)
    usual = max(float(np.sqrt(np.mean(np.sum(centred**2, axis=1)))), 1e-9)
    read = np.column_stack([centred / usual, np.ones(len(centred))]).astype(np.float32)
    of_rated = read[list(rated)].astype(float)
    covariance = np.linalg.inv(np.eye(read.shape[1]) + of_rated.T @ of_rated / _NOISE)
    shared_by_all = covariance @ (read.T @ read) @ covariance / len(read)
    variances = np.sum(read @ covariance.astype(np.float32) * read, axis=1)
    shared = np.sum(read @ shared_by_all.astype(np.float32) * read, axis=1)
    return np.asarray(shared / (variances + _NOISE), float)


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
