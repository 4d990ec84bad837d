"""Splits by content: a group (a photograph, a scene) is in one split only.

A sample without a group is a group of its own, named by its id.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import get_args

from data.errors import DataError
from data.manifest import Sample, Split

__all__ = ("check_leaks", "find_leaks", "group_of", "split_groups", "with_splits")

_SPLITS: tuple[Split, ...] = get_args(Split)


def group_of(sample: Sample) -> str:
    """Return the sample's group, or its id where it has none."""
    return sample.group if sample.group is not None else sample.id


def split_groups(
    groups: Iterable[str], *, fractions: tuple[float, float, float] = (0.6, 0.2, 0.2), seed: int = 0
) -> dict[str, Split]:
    """Assign each group to train, validation or test in these shares of the number of groups.

    The groups are ordered by a hash of seed and name and cut at the rounded shares, so the result depends on
    the set of groups and the seed alone. Raises DataError when a share is negative or all are zero, or when a
    share above zero would get no group.

    >>> sorted(split_groups("abcde").values())
    ['test', 'train', 'train', 'train', 'validation']
    """
    total = sum(fractions)
    if len(fractions) != len(_SPLITS) or min(fractions) < 0 or not 0 < total < float("inf"):
        raise DataError(f"split fractions {fractions}: give three numbers from 0, for train, validation and test")
    ordered = sorted(set(groups), key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    ends = [round(len(ordered) * part / total) for part in accumulate(fractions)]
    starts = [0, *ends[:-1]]
    for split, share, start, end in zip(_SPLITS, fractions, starts, ends, strict=True):
        if share and start == end:
            raise DataError(
                f"split {split!r}: {len(ordered)} group(s) leave it none at {share:g}; give more groups or 0"
            )
    return {
        name: split
        for split, start, end in zip(_SPLITS, starts, ends, strict=True)
        for name in ordered[start:end]
    }  # fmt: skip


def with_splits(samples: Iterable[Sample], assigned: Mapping[str, Split]) -> Iterator[Sample]:
    """Yield the samples with their group's split; DataError for a group that has none."""
    for sample in samples:
        group = group_of(sample)
        if group not in assigned:
            raise DataError(f"sample {sample.id!r}: its group {group!r} has no split; split again with all groups")
        yield sample.model_copy(update={"split": assigned[group]})


def find_leaks(samples: Iterable[Sample]) -> dict[str, tuple[Split, ...]]:
    """Return the groups that are in more than one split, with these splits; samples without a split do not count."""
    seen: dict[str, set[Split]] = {}
    for sample in samples:
        if sample.split is not None:
            seen.setdefault(group_of(sample), set()).add(sample.split)
    return {
        group: tuple(s for s in _SPLITS if s in splits) for group, splits in sorted(seen.items()) if len(splits) > 1
    }


def check_leaks(samples: Iterable[Sample]) -> None:
    """Raise DataError naming a group that is in more than one split."""
    leaks = find_leaks(samples)
    if leaks:
        group, splits = next(iter(leaks.items()))
        more = f" (and {len(leaks) - 1} more)" if len(leaks) > 1 else ""
        raise DataError(f"group {group!r}{more}: is in {' and '.join(splits)}; keep each group in one split")
