"""Splits by content: a group (a photograph, a scene) is in one split only, and every split spans the scores.

Samples without a group are grouped by their reference, else by their image. Of each group its name and the sum of its
scores are kept, so a manifest of millions of lines streams through.
"""

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from data.manifest import Sample, Split
from program.common.errors import DataError

_Tag = TypeVar("_Tag", bound=Hashable)

FRACTIONS = (0.6, 0.2, 0.2)

_SPLITS: tuple[Split, ...] = get_args(Split)


def group_of(sample: Sample) -> str:
    """Return the sample's group; where it has none, its reference's path, else its image's."""
    return sample.group if sample.group is not None else str(sample.reference or sample.image)


class SplitPlan(NamedTuple):
    """Which split each group belongs to."""

    splits: Mapping[str, Split]
    sha256: str
    """Hash of the assignment: the same groups in the same splits give the same, in whatever order they came."""

    def apply(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the samples with their group's split."""
        for sample in samples:
            yield sample.model_copy(update={"split": self.splits[group_of(sample)]})


class SplitsByKey:
    """The splits that each key, a group's name or a content's hash, was seen in."""

    def __init__(self) -> None:
        self._splits: dict[Hashable, tuple[Split, ...]] = {}

    def enter(self, key: Hashable, split: Split | None) -> tuple[Split, ...]:
        """Return the key's splits, in their order, where it was in others before and is new in this one, else ()."""
        before = self._splits.get(key, ())
        if split is None or split in before:
            return ()
        self._splits[key] = tuple(sorted((*before, split), key=_SPLITS.index))
        return self._splits[key] if before else ()


def plan_splits(
    samples: Iterable[Sample], *, fractions: tuple[float, float, float] = FRACTIONS, seed: int = 0
) -> SplitPlan:
    """Assign each group to train, validation or test in these shares of the number of groups, level by level of score.

    The groups are ordered by their mean quality (1..5; those without a score come first) and cut into runs just long
    enough for every split to have its share; within a run a hash of seed and name decides. The result depends on the
    groups, their scores and the seed alone, not on their order or the machine. Raises DataError when a share is
    negative or all are zero, or when a share above zero would get no group.
    """
    total = sum(fractions)
    if len(fractions) != len(_SPLITS) or not 0 < total < float("inf") or min(fractions) < 0:
        raise DataError(f"split fractions {fractions}: give three numbers from 0, for train, validation and test")
    groups, keys, codes = _assigned(samples, tuple(share / total for share in fractions), seed)
    for code, share in enumerate(fractions):
        if share and code not in codes:
            fault = f"{len(groups)} group(s) leave it none at {share:g}"
            raise DataError(f"split {_SPLITS[code]!r}: {fault}; give more groups or 0")
    order = keys.argsort()
    digest = hashlib.sha256(keys[order].astype("<u8").tobytes() + codes[order].tobytes()).hexdigest()
    return SplitPlan({group: _SPLITS[code] for group, code in zip(groups, codes, strict=True)}, digest)


def plan_folds(samples: Iterable[Sample], count: int, *, seed: int = 0) -> dict[str, int]:
    """Return which of `count` folds, 0 and up, each group belongs to: of about one size, each spanning the scores."""
    groups, _, codes = _assigned(samples, (1 / count,) * count, seed)
    return dict(zip(groups, codes.tolist(), strict=True))


def check_leaks(samples: Iterable[Sample]) -> None:
    """Raise DataError naming a group that is in more than one split; samples without a split do not count."""
    by_group = SplitsByKey()
    for sample in samples:
        if splits := by_group.enter(group_of(sample), sample.split):
            raise DataError(
                f"group {group_of(sample)!r}: is in {' and '.join(splits)}; keep each group in one split (python -m "
                "data.check lists all)"
            )


def check_contents(samples: Iterable[Sample]) -> None:
    """Raise DataError naming an image or reference whose bytes are in two splits; files that are not there pass."""
    by_content = SplitsByKey()
    for path, split, digest in _same_sized((sample, sample.split) for sample in samples if sample.split is not None):
        if splits := by_content.enter(digest, split):
            raise DataError(
                f"image {str(path)!r}: is in {' and '.join(splits)} (by content); keep it in one split (python -m "
                "data.check lists all)"
            )


def joined_by_content(samples: Sequence[Sample]) -> tuple[list[Sample], int]:
    """Return the samples with one group for those whose image or reference has the same bytes, and how many these are.

    Files that are not there are left as they are.
    """
    from scipy.cluster.hierarchy import DisjointSet

    joined = DisjointSet(map(group_of, samples))
    first: dict[bytes, str] = {}
    for _, group, digest in _same_sized((sample, group_of(sample)) for sample in samples):
        joined.merge(first.setdefault(digest, group), group)
    name_of = {
        group: f"content-{_key(min(groups)):016x}" for groups in joined.subsets() if len(groups) > 1 for group in groups
    }
    together = [
        sample.model_copy(update={"group": name_of[group_of(sample)]}) if group_of(sample) in name_of else sample
        for sample in samples
    ]
    return together, sum(group_of(sample) in name_of for sample in samples)


def _same_sized(tagged: Iterable[tuple[Sample, _Tag]]) -> Iterator[tuple[Path, _Tag, bytes]]:
    """Yield path, tag and hash of the images and references that may hold another's bytes under another tag."""
    # Only files of one size may.
    by_size: defaultdict[int, dict[tuple[Path, _Tag], None]] = defaultdict(dict)
    for sample, tag in tagged:
        for path in (sample.image, sample.reference):
            if isinstance(path, Path) and path.is_file():
                by_size[path.stat().st_size][path, tag] = None
    for files in by_size.values():
        tags = {tag for _, tag in files}
        if len(tags) > 1:
            for path, tag in files:
                with path.open("rb") as file:
                    yield path, tag, hashlib.file_digest(file, "sha256").digest()


def _assigned(
    samples: Iterable[Sample], shares: tuple[float, ...], seed: int
) -> tuple[list[str], NDArray[np.uint64], NDArray[np.uint8]]:
    """Return the groups, their keys, and which share (0 and up) each belongs to."""
    groups: dict[str, tuple[float, int]] = {}
    for sample in samples:
        group = group_of(sample)
        total, count = groups.get(group, (0.0, 0))
        groups[group] = (total, count) if sample.quality is None else (total + sample.quality, count + 1)
    keys = np.array([_key(group) for group in groups], dtype=np.uint64)
    sums, counts = np.array(list(groups.values()), dtype=np.float64).reshape(-1, 2).T
    # Sums differ in their last digits with the order of the lines; means to 1e-9 do not.
    means = np.where(counts > 0, np.round(sums / np.maximum(counts, 1), 9), 0.0)
    ranks = _mixed(keys, seed)
    return list(groups), keys, _dealt(np.lexsort((ranks, means)), ranks, shares)


def _key(name: str) -> int:
    """Return 64 bits of a name's hash; two of a million groups share them with probability 3e-8."""
    data = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _mixed(keys: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return a pseudo-random 64-bit number for each key and seed (the finalizer of SplitMix64)."""
    mixed = keys ^ np.uint64(_key(str(seed)))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _dealt(order: NDArray[np.intp], ranks: NDArray[np.uint64], shares: tuple[float, ...]) -> NDArray[np.uint8]:
    """Return the share (0 and up) of each group, dealt run by run along `order`."""
    codes = np.zeros(len(order), dtype=np.uint8)
    run = max(1, round(1 / min(share for share in shares if share)))
    have = [0] * len(shares)
    for start in range(0, len(order), run):
        members = order[start : start + run]
        members = members[np.argsort(ranks[members])]
        want = [share * (start + len(members)) - had for share, had in zip(shares, have, strict=True)]
        sizes = _apportioned(want, len(members))
        codes[members] = np.repeat(np.arange(len(shares), dtype=np.uint8), sizes)
        have = [had + size for had, size in zip(have, sizes, strict=True)]
    return codes


def _apportioned(want: list[float], seats: int) -> list[int]:
    """Return whole numbers >= 0 that sum to `seats`, one at a time to whoever lacks most."""
    seats_of = [0] * len(want)
    for _ in range(seats):
        neediest = max(range(len(want)), key=lambda i: (round(want[i] - seats_of[i], 9), -i))
        seats_of[neediest] += 1
    return seats_of
