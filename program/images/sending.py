"""Images as services take them: converted and scaled where they have to be."""

import base64
import io
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cachetools import LRUCache, cached
from numpy.typing import NDArray

from program.common.backends import ImageLimits, WireImage
from program.common.errors import ImageError
from program.images.store import IMAGES, ImageRef

CACHE_MB = 24
"""Most memory that encoded images may take; every demo travels with every call, so they are kept
for a while."""

_FORMATS = {".jpg": "jpeg", ".tif": "tiff"}
"""The others are called as their suffix."""
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MARGIN = 0.95
"""A scaled picture that is still too large is scaled again, this much below what its size calls
for."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image as it goes over the wire."""

    data: str
    """Base64."""
    media_type: str
    record: WireImage

    @property
    def data_uri(self) -> str:
        """The image as a data URI."""
        return f"data:{self.media_type};base64,{self.data}"


def limits_of_request(refs: Sequence[ImageRef], limits: ImageLimits) -> ImageLimits:
    """Return what each image of a request may be, so that all together are what is taken."""
    found: dict[str, int] = {}
    if len(refs) > limits.many and limits.max_side_px_of_many is not None:
        found["max_side_px"] = min(limits.max_side_px_of_many, limits.max_side_px or limits.max_side_px_of_many)
    if limits.max_request_bytes is not None and len(refs) > 1:
        share = limits.max_request_bytes // len(refs)
        if sum(len(IMAGES.read(ref)) for ref in refs) > limits.max_request_bytes:
            found["max_bytes"] = max(10_000, min(share, limits.max_bytes or share))
    if found:
        return limits.model_copy(update=found)
    return limits


@cached(LRUCache(CACHE_MB * 2**20, lambda image: len(image.data)), lock=threading.Lock())
def encode(ref: ImageRef, limits: ImageLimits) -> EncodedImage:
    """Return an image as a service takes it; ImageError where no picture of it fits."""
    data, media_type, size = IMAGES.read(ref), ref.media_type, (ref.width, ref.height)
    kind, changes = _FORMATS.get(ref.suffix, ref.suffix[1:]), []
    if kind not in limits.formats:
        changes.append(f"{kind} as png")
    elif _is_grey16(data):
        # Many services read 16-bit grey as 8-bit by cutting it off, which shows them a white picture.
        changes.append("16-bit grey as 8-bit png")
    if changes or _over(limits, max(size), len(data)):
        media_type = "image/png"
        data, size = _fitted(IMAGES.pixels(ref), limits, ref.name)
        if size != (ref.width, ref.height):
            changes.append(f"scaled from {ref.width}x{ref.height} to {size[0]}x{size[1]}")
        changes = changes or [f"{kind} as png, which is smaller"]
    record = WireImage(
        sha256=ref.sha256, name=ref.name, media_type=media_type, width=size[0], height=size[1], size_bytes=len(data),
        change=", ".join(changes) or None,
    )  # fmt: skip
    return EncodedImage(base64.b64encode(data).decode("ascii"), media_type, record)


def _is_grey16(data: bytes) -> bool:
    """Return whether a PNG's header (size, bit depth, colour type) says 16-bit greyscale."""
    return data.startswith(_PNG_SIGNATURE) and len(data) > 25 and data[24] == 16 and data[25] in {0, 4}


def _over(limits: ImageLimits, side: int, size: int) -> bool:
    too_wide = limits.max_side_px is not None and side > limits.max_side_px
    return too_wide or (limits.max_bytes is not None and size > limits.max_bytes)


def _fitted(pixels: NDArray[np.uint8], limits: ImageLimits, name: str) -> tuple[bytes, tuple[int, int]]:
    """Return a PNG of H x W x 3 pixels within the limits, as large as fits, and its size."""
    from PIL import Image

    whole = Image.fromarray(pixels)
    longest = max(whole.size)
    side = min(longest, limits.max_side_px or longest)
    while True:
        size = (max(1, round(whole.width * side / longest)), max(1, round(whole.height * side / longest)))
        # From the whole picture each time: scaling twice would blur twice.
        picture = whole if size == whole.size else whole.resize(size, Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        data = buffer.getvalue()
        if not _over(limits, side, len(data)):
            return data, size
        if side == 1:
            raise ImageError(f"image {name!r}: no picture of it fits {limits.max_bytes} bytes; raise max_bytes")
        fitting = side * ((limits.max_bytes or len(data)) / len(data)) ** 0.5 * _MARGIN
        side = max(1, min(int(fitting), side - 1))
