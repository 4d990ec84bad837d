"""Boxes of an image in whole pixels. Pure."""

import math
from typing import TypeAlias

from program.common.errors import ImageError

__all__ = ("Box", "whole_pixels")

Box: TypeAlias = tuple[float, float, float, float]
"""A region in pixels: left, top, right, bottom; right and bottom are outside the region."""


def whole_pixels(box: Box, width: int, height: int, *, minimum_px: int = 1) -> tuple[int, int, int, int]:
    """Return the pixels of a box inside an image, grown around its centre to at least `minimum_px` a side.

    Raises ImageError when the box does not overlap the image.
    """
    x0, x1 = _span(box[0], box[2], width, minimum_px)
    y0, y1 = _span(box[1], box[3], height, minimum_px)
    if x1 <= x0 or y1 <= y0:
        raise ImageError(
            f"region {tuple(box)}: lies outside the {width}x{height} image; give x0 < x1 and y0 < y1 within it"
        )
    return x0, y0, x1, y1


def _span(low: float, high: float, size: int, minimum: int) -> tuple[int, int]:
    start, stop = max(0, math.floor(min(low, size))), min(size, math.ceil(max(high, 0)))
    if not low < high or start >= stop:
        return 0, 0
    missing = min(minimum, size) - (stop - start)
    if missing > 0:
        start = min(max(0, start - missing // 2), size - (stop - start) - missing)
        stop = start + min(minimum, size)
    return start, stop
