"""How much detail, noise and clipped light a picture has, tile by tile. Pure.

For pictures of one scene: what they show is the same, so what differs is how well it was caught. Of
each tile the middle half of its rows is read.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SCALES = 6
"""Sizes that detail is measured at: as it is, a half, a quarter, ..."""
_TILES = 16
"""Along the longer side: a tile shows the same part of a scene at whatever size."""
_LEAST = 8
"""Pixels of a tile's side below which a scale says nothing."""
_SHARP, _FLAT = 90, 5
"""Percentiles of the tiles: the sharpest part is what was focused on, the flattest shows noise
alone."""
_SAMPLED = 2**20
"""Pixels that clipped light is counted on."""
_WHITE, _BLACK = 254, 2
_UNIT = 0.01
"""Mean square of a difference, of 255, that counts as no detail."""
_NEAR = 0.25
"""Of the sides, around the middle. In 160 of CLIVE's train photographs with boxed subjects the tile
lies in the box in 90 %, the middle in 92 %; but 4 % of a picture is sharper than the tile, and 34 %
than the middle."""


class Detail(NamedTuple):
    """What one picture's pixels say of how it was taken."""

    sharp: tuple[float, ...]
    """Per scale: log2 of the mean square difference of neighbours in the sharpest tiles, less that
    of the flattest."""
    noise: float
    """Mean square difference of neighbours in the flattest tiles, of 255, at full size."""
    light: float
    """Mean brightness, 0..1."""
    clipped_high: float
    """Share of pixels with a channel at its upper end, 0..1."""
    clipped_low: float
    """Share of pixels that are black, 0..1."""
    focus: tuple[float, float]
    """Where to look first, as shares of width and height: the sharpest tile near the middle."""


def detail_of(width: int, height: int, rows: Callable[[int, int], NDArray[np.uint8]]) -> Detail:
    """Measure a picture at its own size; `rows` gives rows from first to last, uint8 sRGB."""
    step = max(1, int(np.ceil(np.sqrt(height * width / _SAMPLED))))
    tile = max(1, -(-max(width, height) // _TILES))
    parts: list[NDArray[np.uint8]] = []
    energies: list[list[NDArray[np.float64]]] = [[] for _ in range(SCALES)]
    for top in range(0, height, tile):
        strip = rows(top, min(top + tile, height))
        parts.append(strip[-top % step :: step, ::step].copy())
        if len(strip) == tile or not top:
            for found, energy in zip(energies, _energies(strip[tile // 4 : tile - tile // 4], tile), strict=False):
                found.append(energy)
    sampled = np.concatenate(parts)
    brightest = sampled.max(axis=2)
    levels = [np.percentile(np.concatenate(found), (_SHARP, _FLAT)) for found in energies if found]
    sharp = [round(float(np.log2(max(high - flat, _UNIT))), 3) for high, flat in levels]
    noise = round(float(levels[0][1]), 3) if levels else 0.0
    focus = _focus(np.array(energies[1] or energies[0])) if levels else (0.5, 0.5)
    light = float(np.asarray(Image.fromarray(sampled).convert("L")).mean()) / 255
    return Detail(
        tuple(sharp), noise, round(light, 4), round(float((brightest >= _WHITE).mean()), 5),
        round(float((brightest <= _BLACK).mean()), 5), focus,
    )  # fmt: skip


def _focus(energy: NDArray[np.float64]) -> tuple[float, float]:
    """Return where rows x columns tiles are the sharpest, the nearer to the middle the likelier."""
    down, across = ((np.arange(count) + 0.5) / count for count in energy.shape)
    near = np.exp(-((across - 0.5) ** 2 + (down[:, None] - 0.5) ** 2) / (2 * _NEAR**2))
    row, column = np.unravel_index((np.sqrt(energy) * near).argmax(), energy.shape)
    return round(float(across[column]), 3), round(float(down[row]), 3)


def _energies(strip: NDArray[np.uint8], tile: int) -> Iterator[NDArray[np.float64]]:
    """Yield per scale the mean square difference of neighbours in each tile along a strip."""
    picture, side = Image.fromarray(strip).convert("L"), tile
    for _ in range(SCALES):
        if side < _LEAST or min(picture.size) < 2:
            return
        yield _across(np.asarray(picture, dtype=np.int16), side)
        picture, side = picture.reduce(2), side // 2


def _across(strip: NDArray[np.int16], tile: int) -> NDArray[np.float64]:
    """Return the mean square difference in each whole tile along a strip; of a short one in all."""
    across, down = np.diff(strip, axis=1)[:-1], np.diff(strip, axis=0)[:, :-1]
    powers = [np.einsum("ij,ij->j", each, each, dtype=np.float64) for each in (across, down)]
    columns = powers[0] + powers[1]
    whole = max(len(columns) // tile, 1)
    width = min(tile, len(columns))
    return np.asarray(columns[: whole * width].reshape(whole, width).sum(axis=1) / (2.0 * width * len(down)))
