"""How much detail, noise and clipped light a picture has at its full size, tile by tile. Pure numpy and Pillow.

For pictures of one scene: what they show is the same, so what differs is how well it was caught.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ("SCALES", "Detail", "detail_of")

SCALES = 6
"""Sizes that detail is measured at: as it is, a half, a quarter, ..."""
_TILES = 16
"""Along the longer side: a tile shows the same part of a scene at whatever size."""
_LEAST = 8
"""Pixels of a tile's side below which a scale says nothing."""
_SHARP, _FLAT = 90, 5
"""Percentiles of the tiles: the sharpest part is what was focused on, the flattest shows noise alone."""
_SAMPLED = 2**20
"""Pixels that clipped light is counted on."""
_WHITE, _BLACK = 254, 2
_UNIT = 0.01
"""Mean square of a difference, of 255, that counts as no detail."""


class Detail(NamedTuple):
    """What one picture's pixels say of how it was taken."""

    sharp: tuple[float, ...]
    """Per scale: log2 of the mean square difference of neighbours in the sharpest tiles, less that of the flattest."""
    noise: float
    """Mean square difference of neighbours in the flattest tiles, of 255, at full size."""
    light: float
    """Mean brightness, 0..1."""
    clipped_high: float
    """Share of pixels with a channel at its upper end, 0..1."""
    clipped_low: float
    """Share of pixels that are black, 0..1."""


def detail_of(pixels: NDArray[np.uint8]) -> Detail:
    """Measure H x W x 3 uint8 sRGB pixels at their own size."""
    step = max(1, int(np.ceil(np.sqrt(pixels.shape[0] * pixels.shape[1] / _SAMPLED))))
    sampled = pixels[::step, ::step]
    red, green, blue = (sampled[..., channel] for channel in range(3))
    top = np.maximum(np.maximum(red, green), blue)
    energies = _energies(pixels, max(1, -(-max(pixels.shape[:2]) // _TILES)))
    levels = [np.percentile(found, (_SHARP, _FLAT)) for found in energies]
    sharp = [round(float(np.log2(max(high - flat, _UNIT))), 3) for high, flat in levels]
    noise = round(float(levels[0][1]), 3) if levels else 0.0
    light = float(np.asarray(Image.fromarray(np.ascontiguousarray(sampled)).convert("L")).mean()) / 255
    return Detail(
        tuple(sharp), noise, round(light, 4), round(float((top >= _WHITE).mean()), 5),
        round(float((top <= _BLACK).mean()), 5),
    )  # fmt: skip


def _energies(pixels: NDArray[np.uint8], tile: int) -> list[NDArray[np.float64]]:
    """Return per scale the mean square difference of neighbours in each tile; the middle half of its rows is read."""
    found: list[list[NDArray[np.float64]]] = []
    for top in range(0, max(pixels.shape[0] - tile, 0) + 1, tile):
        picture, side = Image.fromarray(pixels[top + tile // 4 : top + tile - tile // 4]).convert("L"), tile
        for scale in range(SCALES):
            if side < _LEAST or min(picture.size) < 2:
                break
            if scale == len(found):
                found.append([])
            found[scale].append(_across(np.asarray(picture, dtype=np.int16), side))
            picture, side = picture.reduce(2), side // 2
    return [np.concatenate(tiles) for tiles in found]


def _across(strip: NDArray[np.int16], tile: int) -> NDArray[np.float64]:
    """Return the mean square difference in each whole tile along a strip; in the whole of a shorter one."""
    across, down = np.diff(strip, axis=1)[:-1], np.diff(strip, axis=0)[:, :-1]
    columns = np.einsum("ij,ij->j", across, across, dtype=np.float64) + np.einsum(
        "ij,ij->j", down, down, dtype=np.float64
    )
    whole = max(len(columns) // tile, 1)
    width = min(tile, len(columns))
    return np.asarray(columns[: whole * width].reshape(whole, width).sum(axis=1) / (2.0 * width * len(down)))
