"""Images made small: inside a page, and to tell whether two of them show the same, and in the same place."""

import base64
import functools
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from program.images.store import IMAGES, LARGE, ImageRef, ImageSource

__all__ = ("data_url", "overlap", "shift_of", "show_the_same", "shown_shift", "small", "thumbnail")

_GRID = (16, 16)
_ALIKE = 0.55
"""Correlation of the grids from which two images show the same. Of 7,140 pairs of CLIVE's train photographs nine in ten
lie below it; of the 24 generated distortions at level 5 none does on four photographs."""
_LOOKED_AT, _FARTHEST, _LEAST = 512, 32, 32
"""Pixels of the middle that a shift is looked for in, the farthest one, and the least that shows any."""
_EXPLAINED = 0.8
"""Share of what the two do not have in common that may be left once a shift is taken back."""


@functools.lru_cache(maxsize=1024)
def show_the_same(one: ImageRef, other: ImageRef) -> bool:
    """Return whether two images show the same scene, as a 16 x 16 grid of one of their colours tells; flat ones do."""
    grids = [
        np.asarray(Image.fromarray(IMAGES.pixels(ref, at_most=LARGE)).resize(_GRID, Image.Resampling.BOX), float)
        for ref in (one, other)
    ]
    channels = [np.reshape([grid[..., channel] for grid in grids], (2, -1)) for channel in range(3)]
    return any(pair.std(axis=1).min() < 1 or np.corrcoef(pair)[0, 1] >= _ALIKE for pair in channels)


@functools.lru_cache(maxsize=1024)
def shift_of(image: ImageRef, reference: ImageRef) -> tuple[int, int]:
    """Return by how many pixels an image lies to the right and below its reference; (0, 0) where no shift explains it.

    Phase correlation of their middles (Kuglin & Hines 1975; Guizar-Sicairos et al. 2008), in pixels as they are judged.
    """
    if image.size != reference.size or min(image.width, image.height) < _LEAST or image.sha256 == reference.sha256:
        return 0, 0
    from skimage.registration import phase_cross_correlation

    middles = [_middle(IMAGES.pixels(each, at_most=LARGE)).mean(axis=2) for each in (reference, image)]
    if min(middle.std() for middle in middles) < 1:
        return 0, 0
    fade = np.outer(*map(np.hanning, middles[0].shape))  # else the edges, which stay where they are, are matched
    found = -phase_cross_correlation(*((each - each.mean()) * fade for each in middles), upsample_factor=4)[0]
    down, right = (int(part) for part in np.round(found))
    if np.abs(found - (down, right)).max() > 0.3 or not 0 < max(abs(down), abs(right)) <= _FARTHEST:
        return 0, 0
    moved, still = overlap((right, down), middles[1], middles[0])
    before, after = (1 - np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in ((middles[1], middles[0]), (moved, still)))
    return (right, down) if after <= _EXPLAINED * before else (0, 0)


def overlap(shift: tuple[int, int], pixels: NDArray[Any], reference: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what a shifted picture and its reference have in common, each pixel at its own place."""
    (right, down), (height, width) = shift, pixels.shape[:2]

    def part(of: NDArray[Any], x: int, y: int) -> NDArray[Any]:
        return of[max(0, y) : height + min(0, y), max(0, x) : width + min(0, x)]

    return part(pixels, right, down), part(reference, -right, -down)


def shown_shift(image: ImageRef, reference: ImageRef) -> str:
    """Say by how much an image is shifted against its reference; empty where it is not."""
    shift = shift_of(image, reference)
    ways = (("to the right", "to the left"), ("down", "up"))
    parts = (f"{abs(by)} px {way[by < 0]}" for by, way in zip(shift, ways, strict=True) if by)
    return f"shifted by {' and '.join(parts)} against its reference" if any(shift) else ""


def _middle(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    top, left = (max(0, (side - _LOOKED_AT) // 2) for side in pixels.shape[:2])
    return pixels[top : top + _LOOKED_AT, left : left + _LOOKED_AT]


def small(source: ImageSource, side_px: int) -> Image.Image:
    """Return an image, its longer side at most `side_px`. Raises ImageError as `IMAGES.add` does."""
    picture = Image.fromarray(IMAGES.pixels(IMAGES.add(source), at_most=LARGE))
    picture.thumbnail((side_px, side_px), Image.Resampling.LANCZOS)
    return picture


def thumbnail(source: ImageSource, side_px: int) -> str:
    """Return an image, its longer side at most `side_px`, as a data: URL. Raises ImageError as `IMAGES.add` does."""
    return data_url(small(source, side_px), side_px)


def data_url(picture: Image.Image, side_px: int) -> str:
    """Return a picture as a JPEG in a data: URL."""
    picture.thumbnail((side_px, side_px), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
