"""Which pictures are of one shot: by the time between them, a perceptual hash, and how they look to the network. Pure.

Two pictures are the farther apart the more of their hashes' 256 bits differ (ImageHash's pHash, Zauner 2010) and the
smaller the cosine of their `appearance` is: a hash tells scenes of a kind apart, the network forgives a moved camera,
and their sum is right more often than either (benchmarks/gallery_bursts.py). No picture joins a group unless it is near
to all others in it (complete linkage).
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Grouping = Literal["auto", "time", "look", "off"]
_BITS = 256
_ALIKE, _IN_A_BURST, _APART = 0.77, 1.0, 0.6
"""Distances up to which two pictures are of one shot: by their look alone, taken within one burst, and at other times
(a copy, another version). On bursts of 60 of CLIVE's train photographs among 200 others."""
_ROWS = 512
_MOST = 4000
"""Pictures that are clustered together: the matrix of their distances takes 128 MB."""


class Pictured(Protocol):
    """What a picture is grouped by."""

    @property
    def bits(self) -> NDArray[np.uint64]:
        """Its hash: four words."""

    @property
    def vector(self) -> NDArray[np.float32]:
        """Its appearance, of length 1."""

    @property
    def time(self) -> datetime | None:
        """When it was taken."""


def bursts(times: Sequence[datetime | None], gap_s: float) -> NDArray[np.intp]:
    """Return for each picture the number of the burst that it was taken in: none is more than `gap_s` after another.

    -1 for one without a time.

    >>> at = datetime(2026, 5, 1)
    >>> bursts([at, None, at.replace(second=2), at.replace(second=9)], 3.0).tolist()
    [0, -1, 0, 1]
    """
    known = [(time, place) for place, time in enumerate(times) if time is not None]
    found = np.full(len(times), -1, dtype=np.intp)
    number, before = -1, None
    for time, place in sorted(known):
        number += before is None or (time - before).total_seconds() > gap_s
        found[place], before = number, time
    return found


def groups_of(pictures: Sequence[Pictured], how: Grouping, gap_s: float) -> list[list[int]]:
    """Return the groups of two pictures and more, as places in `pictures`, in their order."""
    if how == "off" or len(pictures) < 2:
        return []
    burst = bursts([picture.time for picture in pictures], gap_s)
    if how == "time":
        return _members(np.where(burst < 0, -1 - np.arange(len(burst)), burst))
    bits, looks = np.stack([p.bits for p in pictures]), np.stack([p.vector for p in pictures])
    limits = None if how == "look" else burst
    return _members(_labels(bits, looks, limits))


def _members(labels: NDArray[np.intp]) -> list[list[int]]:
    order = np.argsort(labels, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    return sorted(part.tolist() for part in parts if len(part) > 1)


def _labels(bits: NDArray[np.uint64], looks: NDArray[np.float32], burst: NDArray[np.intp] | None) -> NDArray[np.intp]:
    """Return the number of each picture's cluster."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from sklearn.cluster import AgglomerativeClustering

    count = len(bits)
    pairs = [np.concatenate(ends) for ends in zip(*_near(bits, looks, burst), strict=True)]
    linked = coo_array((np.ones(len(pairs[0]), bool), (pairs[0], pairs[1])), shape=(count, count))
    parts = connected_components(linked, directed=False)[1]
    labels, used = np.empty(count, dtype=np.intp), 0
    for part in np.split(np.argsort(parts, kind="stable"), np.cumsum(np.bincount(parts))[:-1]):
        for first in range(0, len(part), _MOST):
            own = part[first : first + _MOST]
            found = np.zeros(len(own), dtype=np.intp)
            if len(own) > 1:
                apart = _apart(bits[own], looks[own], bits[own], looks[own])
                apart /= _limits(None if burst is None else burst[own], None if burst is None else burst[own])
                cluster = AgglomerativeClustering(
                    None, metric="precomputed", linkage="complete", distance_threshold=1.0
                )
                found = cluster.fit_predict(apart)
            labels[own] = found + used
            used += int(found.max()) + 1
    return labels


def _near(
    bits: NDArray[np.uint64], looks: NDArray[np.float32], burst: NDArray[np.intp] | None
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield the places of pictures that are near each other, in blocks of rows: the first, and the second."""
    for start in range(0, len(bits), _ROWS):
        rows = slice(start, start + _ROWS)
        own = None if burst is None else burst[rows]
        near = _apart(bits[rows], looks[rows], bits, looks) < _limits(own, burst)
        first, second = np.nonzero(near)
        yield first + start, second


def _apart(
    bits: NDArray[np.uint64], looks: NDArray[np.float32], bits_: NDArray[np.uint64], looks_: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the N x M distances, 0 .. 3."""
    hashes = np.zeros((len(bits), len(bits_)), np.float32)
    for word in range(bits.shape[1]):
        hashes += np.bitwise_count(bits[:, word, None] ^ bits_[None, :, word])
    return np.asarray(hashes / _BITS + np.maximum(1 - looks @ looks_.T, 0), dtype=np.float32)


def _limits(burst: NDArray[np.intp] | None, other: NDArray[np.intp] | None) -> NDArray[np.float32]:
    """Return the N x M distances up to which two pictures are of one shot, by their bursts; one for all without any."""
    if burst is None or other is None:
        return np.full((1, 1), _ALIKE, np.float32)
    one, two = burst[:, None], other[None]
    limits = np.where(one == two, np.float32(_IN_A_BURST), np.float32(_APART))
    return np.where((one < 0) | (two < 0), np.float32(_ALIKE), limits)
