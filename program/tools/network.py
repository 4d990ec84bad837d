"""A pretrained network's view of pixels: EfficientNet-Lite0, trained to name objects and never on a score of quality.

What is read is how much each of the 8,960 filters of its depthwise convolutions varies over an image and over its
middle, where people look: ridge regression on those orders photographs by quality better than on their means, on what
its blocks give out or on its last layer (docs/tools.md). Images are read at their own size up to 1,024 pixels a side:
quality lives in the pixels.
Sources: `lite0` (the network), Ding et al. 2020 (DISTS), Zhang et al. 2018 (LPIPS).
"""

import functools
import hashlib
import threading
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from cachetools import LRUCache, cached
from numpy.typing import NDArray

from program.tools import lite0

__all__ = (
    "DISTANCES", "SPREADS", "Fit", "blended", "distances", "full_reference", "no_reference", "spreads", "standardised",
)  # fmt: skip

Pixels = NDArray[np.uint8]
SPREADS = 8960
"""Filters of all depthwise convolutions."""
_CLIP = 4.0
"""Standardised spreads are limited to +-this, so that no filter's outlier decides alone."""
_SMALLEST = 32
"""Sides below this are padded by repetition: the deepest maps have one place for 32 x 32 pixels."""
_LARGEST = 1024
"""Longer sides are averaged down to this, as a viewer would: the regressions saw images of about 500 pixels, and 20
megapixels would take 5 GB."""


def _key(*images: Pixels) -> tuple[Any, ...]:
    return tuple((pixels.shape, hashlib.blake2b(np.ascontiguousarray(pixels).data).digest()) for pixels in images)


_SPREADS: LRUCache[tuple[Any, ...], NDArray[np.float32]] = LRUCache(16)
_LOCK = threading.Lock()


@cached(_SPREADS, key=_key, lock=_LOCK)  # the embedded model and the tool read the same image
def spreads(pixels: Pixels) -> NDArray[np.float32]:
    """Return 2 x `SPREADS` standard deviations over H x W x 3 RGB pixels, one for each filter; read-only.

    Those over the whole image, and those over its middle: all but a quarter at each side. Raises ToolError when the
    network is absent or damaged.
    """
    (found,) = lite0.run(_shown(pixels))
    found.setflags(write=False)
    return found


def _stages(pixels: Pixels) -> list[NDArray[np.float32]]:
    """Return what the network's seven stages make of H x W x 3 RGB pixels, each C x h w."""
    found, *ends = lite0.run(_shown(pixels), stages=True)
    found.setflags(write=False)
    with _LOCK:  # who compares two images reads their spreads next
        _SPREADS[_key(pixels)] = found
    return [end.reshape(end.shape[1], -1) for end in ends]


def _shown(pixels: Pixels) -> NDArray[np.float32]:
    """Return pixels as the network is shown them: 1 x 3 x h x w, at a size that it can take."""
    height, width = pixels.shape[:2]
    longer = max(height, width)
    planes: NDArray[Any] = pixels.transpose(2, 0, 1)
    if longer > _LARGEST:
        for axis, side in ((1, height), (2, width)):
            planes = _averaged(planes, max(round(side * _LARGEST / longer), 1), axis)
    down, right = (max(_SMALLEST - side, 0) for side in planes.shape[1:])
    if down or right:
        planes = np.pad(planes, ((0, 0), (0, down), (0, right)), mode="edge")
    x: NDArray[np.float32] = np.subtract(planes[None], np.float32(127), dtype=np.float32, order="C")
    x /= 128
    return x


def _averaged(planes: NDArray[Any], size: int, axis: int) -> NDArray[np.float32]:
    """Return planes averaged down along an axis: of each place, all that it covers, in whole or in part."""
    before = planes.shape[axis]
    edges = np.arange(size + 1) * before
    first, last = edges[:-1] // size, -(-edges[1:] // size)
    # Sums from each first to its last place, and, to be left out, from there to the next first one.
    sums = np.add.reduceat(planes, np.stack([first, last], axis=1).ravel()[:-1], axis=axis, dtype=np.float32)
    shape = [-1 if place == axis else 1 for place in range(planes.ndim)]
    return np.asarray(sums.take(range(0, 2 * size, 2), axis=axis) / (last - first).reshape(shape).astype(np.float32))


def standardised(values: NDArray[Any], centre: NDArray[Any], spread: NDArray[Any]) -> NDArray[Any]:
    """Return values (... x F) less their centre, by their spread, limited to +-`_CLIP`."""
    return np.asarray(np.clip((values - centre) / spread, -_CLIP, _CLIP))


def blended(lines: NDArray[Any], middles: Sequence[float], widths: Sequence[float]) -> NDArray[Any]:
    """Return N scores of N x 4 values: as a photograph, as a distorted image, and two that tell which it is.

    What lowers a score differs between both; one function for both would be worse on each. A distorted image is one for
    both of the latter (-1 .. 1), each above its middle; `widths` are how fast that changes.
    """
    signs = (lines[:, 2:] - np.array(middles)) / np.array(widths)
    share = np.prod(1 / (1 + np.exp(-np.clip(signs, -50, 50))), axis=1)
    return np.asarray((1 - share) * lines[:, 0] + share * lines[:, 1])


class Fit(NamedTuple):
    """Four linear functions of standardised spreads: see `blended`."""

    centre: NDArray[Any]
    spread: NDArray[Any]
    weights: NDArray[Any]
    """F x 4."""
    offset: NDArray[Any]

    def predict(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the N scores of N x F spreads, about 1 (bad) .. 5 (excellent)."""
        lines = standardised(values, self.centre, self.spread) @ self.weights + self.offset
        return blended(lines, _MIDDLES, _WIDTHS)


_MIDDLES, _WIDTHS = (0.0, 0.1), (0.2, 0.2)
"""By the same images as the embedded model's; middles from -0.1 to 0.2 do about as well."""


@functools.cache
def _stored(name: str) -> Fit:
    path = files("program.tools").joinpath(f"lite-{name}.npz")
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        return Fit(**{field: arrays[field] for field in Fit._fields})


def no_reference(pixels: Pixels, fit: str) -> float:
    """Score H x W x 3 RGB pixels as people score photographs: about 1 (bad) .. 5 (excellent).

    `fit` names the regressions (`benchmarks.training.tool`).
    """
    return float(_stored(fit).predict(spreads(pixels).reshape(1, -1))[0])


def full_reference(pixels: Pixels, reference: Pixels) -> float:
    """Return how far two images of H x W x 3 RGB pixels lie apart: 0 (equal) .. about 1.

    1 - similarity of structure (Ding et al. 2020, eq. 4), mean over channels and over three stages: the first, which
    sees the finest detail, and the last two. On LIVE's train and validation pairs and the quickstart's train pairs no
    sum of other terms of DISTS and LPIPS agrees better with people.
    """
    return float(np.mean([_differences(pixels, reference)[stage][0] for stage in (0, -2, -1)]))


DISTANCES = tuple(f"stage{i}_{kind}" for i in range(1, 8) for kind in ("structure", "mean", "change"))
"""Names of `distances`."""


def distances(pixels: Pixels, reference: Pixels) -> list[float]:
    """Return the `DISTANCES` of two images of H x W x 3 RGB pixels, all 0 for equal ones.

    For each stage: 1 - similarity of structure, 1 - similarity of means (Ding et al. 2020, eq. 3 and 4), and the root
    of the squared difference of unit channel vectors (Zhang et al. 2018, LPIPS, unweighted), means over channels.
    """
    return [value for terms in _differences(pixels, reference) for value in terms]


@cached(LRUCache(16), key=_key, lock=threading.Lock())
def _differences(pixels: Pixels, reference: Pixels) -> list[tuple[float, float, float]]:
    return [_terms(*maps) for maps in zip(_stages(pixels), _stages(reference), strict=True)]


def _terms(one: NDArray[np.float32], other: NDArray[np.float32]) -> tuple[float, float, float]:
    """Return how unlike two C x N responses are in structure, in mean and from place to place: 0 for equal ones."""
    mean, mean_other = one.mean(1), other.mean(1)
    apart, apart_other = one - mean[:, None], other - mean_other[:, None]
    joint, varied = _products(apart, apart_other), _products(apart, apart) + _products(apart_other, apart_other)
    structure = ((2 * joint + 1e-3) / (varied + 1e-3)).mean()
    level = ((2 * mean * mean_other + 1e-3) / (mean**2 + mean_other**2 + 1e-3)).mean()
    unit, unit_other = (x / np.sqrt(np.einsum("cn,cn->n", x, x) + np.float32(1e-6)) for x in (one, other))
    change = np.sqrt(((unit - unit_other) ** 2).sum(0).mean())
    return float(1 - structure), float(1 - level), float(change)


def _products(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray((one * other).mean(1))
