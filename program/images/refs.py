"""What stands for an image: a URL with the hash of its bytes; sizes and boxes. Pure."""

import math
import re
from dataclasses import dataclass
from typing import TypeAlias

from program.common.errors import ImageError

HOST = "https://images.invalid/sha256/"
MEDIA_TYPES = {
    ".avif": "image/avif", ".bmp": "image/bmp", ".gif": "image/gif", ".heic": "image/heic", ".jpg": "image/jpeg",
    ".png": "image/png", ".ppm": "image/x-portable-pixmap", ".tif": "image/tiff", ".webp": "image/webp",
}  # fmt: skip
"""Formats that are read, by the suffix used in references."""

SMALLEST = 32
"""Pixels of a shorter side from which sharpness is judged: two of the blocks that detail is
measured in."""

Box: TypeAlias = tuple[float, float, float, float]
"""A region in pixels: left, top, right, bottom; right and bottom are outside the region."""

Area: TypeAlias = tuple[int, int, int, int]
"""The same in whole pixels."""

_URL = re.compile(re.escape(HOST) + r"([0-9a-f]{64})(\.[a-z]+)")


@dataclass(frozen=True, slots=True)
class ImageRef:
    """A checked image: its content hash, format and size in pixels (as displayed)."""

    sha256: str
    suffix: str
    width: int
    height: int
    name: str
    """What the caller called it: a file name, or the first digits of its hash."""
    notes: tuple[str, ...] = ()
    """What was done to it beyond plain decoding: a colour profile applied, transparency laid over
    white, ..."""

    @property
    def url(self) -> str:
        """The reference that stands for the image everywhere but at the wire."""
        return f"{HOST}{self.sha256}{self.suffix}"

    @property
    def size(self) -> str:
        """Width and height in words, as "640x480"."""
        return f"{self.width}x{self.height}"

    @property
    def too_small(self) -> bool:
        """Whether a side is too short to show what people judge by."""
        return min(self.width, self.height) < SMALLEST

    @property
    def media_type(self) -> str:
        """The image's MIME type."""
        return MEDIA_TYPES[self.suffix]


def parse_url(url: str) -> tuple[str, str]:
    """Split a reference URL into its SHA-256 (hex) and suffix; ImageError when it is none."""
    match = _URL.fullmatch(url)
    if match is None or match[2] not in MEDIA_TYPES:
        raise ImageError(f"image reference {url[:80]!r}: not of the form {HOST}<64 hex digits>.<png|jpg|...>")
    return match[1], match[2]


def reduction(width: int, height: int, at_most: int | None) -> int:
    """Return the smallest whole factor by which an image has at most `at_most` pixels (None: any).

    The reduced image is the mean of blocks of f x f pixels; blocks at the right and bottom edge may
    be smaller.
    """
    if at_most is None:
        return 1
    factor = max(1, math.isqrt(width * height // at_most))
    while math.prod(reduced_size(width, height, factor)) > at_most and factor < max(width, height):
        factor += 1
    return factor


def reduced_size(width: int, height: int, factor: int) -> tuple[int, int]:
    """Return width and height after a reduction."""
    return -(-width // factor), -(-height // factor)


def whole_pixels(box: Box, width: int, height: int, *, minimum_px: int = 1) -> Area:
    """Return the pixels of a box inside an image, grown to at least `minimum_px` a side.

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
