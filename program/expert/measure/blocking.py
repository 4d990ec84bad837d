"""Traces of block compression: steps at the borders of 8 x 8 pixel blocks. Pure numpy."""

import numpy as np
from numpy.typing import NDArray

from program.expert.measure.measures import blocks_of
from program.expert.measure.nss import Plane

__all__ = ("blocking", "blocking_map")


def blocking(luma: Plane) -> dict[str, float]:
    """Compare steps across 8-pixel block borders with steps inside: log ratio, 0 is none.

    Source: Wang, Bovik & Evans 2000; the excess over the best other phase keeps regular texture from counting.
    """
    profiles = np.stack([_phase_means(luma, axis) for axis in (0, 1)])
    floors = np.median(profiles, axis=1) + 0.2
    ratios, best = np.log((profiles[:, 7] + 0.2) / floors), np.log((profiles.max(axis=1) + 0.2) / floors)
    return {
        "blocking": float(np.maximum(ratios, 0.0).mean()), "blocking_least": float(ratios.min()),
        "blocking_any_phase": float(best.mean()), "blocking_flat": _flat_share_within(luma),
    }  # fmt: skip


def _phase_means(luma: Plane, axis: int) -> NDArray[np.float64]:
    steps = np.abs(np.diff(luma, axis=axis)).mean(axis=1 - axis)
    if steps.size < 16:
        return np.ones(8)
    return np.array([float(steps[phase::8].mean()) for phase in range(8)])


def _flat_share_within(luma: Plane) -> float:
    """Share of aligned 8 x 8 blocks whose inside is all but constant, as coarse quantisation leaves them."""
    blocks = blocks_of(luma, 8)
    mean = blocks.mean(axis=2)
    usable = (mean > 4) & (mean < 251)
    return float((blocks.std(axis=2)[usable] < 0.6).mean()) if usable.any() else 0.0


def blocking_map(luma: Plane) -> Plane:
    """Return, for each 8 x 8 block, the step at its right border minus the mean step inside."""
    height, width = luma.shape
    if height < 8 or width < 16:
        return np.zeros((1, 1), dtype=np.float32)
    steps = np.abs(np.diff(luma, axis=1))[: height - height % 8]
    columns = (width - 1) // 8
    tiles = steps[:, : columns * 8].reshape(height // 8, 8, columns, 8).mean(axis=1)
    return np.asarray(tiles[:, :, 7] - tiles[:, :, :7].mean(axis=2), dtype=np.float32)
