"""How fine detail is patterned, and where: binary patterns of the gradient, and statistics of local sharpness.

Sources: Ojala et al. 2002 (rotation-invariant uniform patterns), Li et al. 2016 (patterns of the gradient, weighted by
it), Hou & Zhang 2007 (spectral-residual saliency). Pure numpy/scipy.
"""

import functools

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from program.expert.measure.nss import Plane, halve, tiles

__all__ = ("PATTERNS", "local_sharpness", "patterns", "saliency")

PATTERNS = 10
"""Uniform patterns of 0..8 brighter neighbours, then all the others."""
PATTERN_STEP = 2.0
"""A neighbour counts as larger from this many grey levels a pixel on: below it lies noise."""
_NEIGHBOURS = ((0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0))
_CELL = 16
_SALIENCY_SIDE = 96
_CENTRE_SPREAD = 0.2


@functools.cache
def _pattern_numbers() -> NDArray[np.uint8]:
    numbers = np.zeros(256, np.uint8)
    for code in range(256):
        bits = [(code >> i) & 1 for i in range(8)]
        changes = sum(bits[i] != bits[i - 1] for i in range(8))
        numbers[code] = sum(bits) if changes <= 2 else PATTERNS - 1
    return numbers


def patterns(slope: Plane) -> list[float]:
    """Return the shares (sum 1) of ten patterns of a gradient magnitude, each pixel weighted by its gradient."""
    if min(slope.shape) < 3:
        return [0.0] * PATTERNS
    inner = slope[1:-1, 1:-1]
    height, width = inner.shape
    limit = inner + np.float32(PATTERN_STEP)
    codes = np.zeros(inner.shape, np.uint8)
    for bit, (down, right) in enumerate(_NEIGHBOURS):
        larger = slope[down : down + height, right : right + width] >= limit
        codes += larger.view(np.uint8) * np.uint8(1 << bit)
    sums = np.bincount(_pattern_numbers()[codes].ravel(), inner.ravel(), minlength=PATTERNS)
    return [float(v) for v in sums / max(float(sums.sum()), 1e-6)]


def saliency(luma: Plane) -> Plane:
    """Return what stands out, mean 1, on a plane scaled down to sides near 100 (spectral residual)."""
    small = luma
    while min(small.shape) >= _SALIENCY_SIDE:
        small = halve(small)
    spectrum = fft.fft2(small)
    size = np.log(np.abs(spectrum) + 1e-3)
    unusual = size - ndimage.uniform_filter(size, 3, mode="wrap")
    found = np.abs(fft.ifft2(np.exp(unusual) * spectrum / np.maximum(np.abs(spectrum), 1e-6))) ** 2
    found = ndimage.gaussian_filter(found, 2.5)
    return np.asarray(found / max(float(found.mean()), 1e-12), dtype=np.float32)


def local_sharpness(scales: list[Plane], fines: list[Plane], slopes: list[Plane]) -> dict[str, float]:
    """Pool fine detail, its share and the steepest edge of blocks over three scales: quantiles, and where people look.

    Each map gives its 10th, 50th and 90th percentile, its deviation, and how far its mean weighted by saliency and by
    nearness to the centre lies above the plain one.
    """
    maps = _maps(scales, fines, slopes)
    rows, columns = maps["fine1"].shape
    salient, central = _weights(scales[0], rows, columns)
    names, stack = list(maps), np.array([m[:rows, :columns].ravel() for m in maps.values()])
    quantiles = np.percentile(stack, (10, 50, 90), axis=1)
    mean, deviation = stack.mean(axis=1), stack.std(axis=1)
    parts = {
        "p10": quantiles[0], "p50": quantiles[1], "p90": quantiles[2], "spread": deviation,
        "salient": stack @ salient - mean, "central": stack @ central - mean,
    }  # fmt: skip
    return {
        f"local_{name}_{key}": float(values[i]) for i, name in enumerate(names) for key, values in parts.items()
    }  # fmt: skip


def _maps(scales: list[Plane], fines: list[Plane], slopes: list[Plane]) -> dict[str, Plane]:
    fine, edge, share = [], [], []
    for i, (plane, detail, slope) in enumerate(zip(scales, fines, slopes, strict=True)):
        side = _CELL >> i
        power = np.sqrt(tiles(detail * detail, side).mean(axis=(1, 3)))
        blocks = tiles(plane, side)
        mean = blocks.mean(axis=(1, 3), keepdims=True)
        spread = np.sqrt(np.square(blocks - mean).mean(axis=(1, 3)))
        fine.append(np.log1p(power))
        edge.append(np.log1p(tiles(slope, side).max(axis=(1, 3))))
        share.append(power / (spread + 2.0))
    rows, columns = (min(m.shape[axis] for m in fine) for axis in (0, 1))
    fine, edge = [m[:rows, :columns] for m in fine], [m[:rows, :columns] for m in edge]
    return {
        "fine1": fine[0], "fine2": fine[1], "fine3": fine[2], "edge1": edge[0], "share1": share[0], "share2": share[1],
        "fine_fall12": fine[0] - fine[1], "fine_fall23": fine[1] - fine[2],
        "edge_fall12": edge[0] - edge[1], "edge_fall23": edge[1] - edge[2],
    }  # fmt: skip


def _weights(luma: Plane, rows: int, columns: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the weights of rows x columns blocks by saliency and by nearness to the centre; each sums to 1."""
    small = saliency(luma)
    at_row = np.minimum(((np.arange(rows) + 0.5) * small.shape[0] / rows).astype(int), small.shape[0] - 1)
    at_column = np.minimum(((np.arange(columns) + 0.5) * small.shape[1] / columns).astype(int), small.shape[1] - 1)
    salient = small[np.ix_(at_row, at_column)].ravel()
    down = ((np.arange(rows) + 0.5) / rows - 0.5)[:, None]
    right = ((np.arange(columns) + 0.5) / columns - 0.5)[None]
    central = np.exp(-(down**2 + right**2) / (2 * _CENTRE_SPREAD**2)).ravel()
    return (
        (salient / max(float(salient.sum()), 1e-9)).astype(np.float32),
        (central / central.sum()).astype(np.float32),
    )
