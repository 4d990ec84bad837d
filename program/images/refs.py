"""What stands for an image everywhere but at the wire: a URL that holds the hash of its bytes. Pure."""

import re
from dataclasses import dataclass

from program.common.errors import ImageError

__all__ = ("HOST", "ImageRef", "parse_url")

HOST = "https://images.invalid/sha256/"
MEDIA_TYPES = {
    ".bmp": "image/bmp",
    ".gif": "image/gif",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".ppm": "image/x-portable-pixmap",
    ".tif": "image/tiff",
    ".webp": "image/webp",
}
"""Formats that are read, by the suffix used in references."""

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
    """What was done to it beyond plain decoding: a colour profile applied, transparency laid over white, ..."""

    @property
    def url(self) -> str:
        """The reference that stands for the image everywhere but at the wire."""
        return f"{HOST}{self.sha256}{self.suffix}"

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
