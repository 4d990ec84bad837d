"""Images as content-addressed references: opened and checked once, never re-encoded.

Everything that is stored, logged or sent inside the program holds
`https://images.invalid/sha256/<hex>.<ext>`; the original bytes are read from `IMAGES`
only where pixels are needed (tools, the embedded backend) or at the wire.
"""

import hashlib
import io
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from program.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

__all__ = ("HOST", "IMAGES", "Box", "ImageRef", "ImageSource", "ImageStore", "crop", "parse_url")

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

_SUFFIX_OF_FORMAT = {
    "BMP": ".bmp", "GIF": ".gif", "JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "PPM": ".ppm",
    "TIFF": ".tif", "WEBP": ".webp",
}  # fmt: skip
_URL = re.compile(re.escape(HOST) + r"([0-9a-f]{64})(\.[a-z]+)")
MAX_PIXELS = 120_000_000
"""Larger images are refused before decoding: a decoded one would take over 360 MB."""

Box: TypeAlias = tuple[float, float, float, float]
"""A region in pixels: left, top, right, bottom; right and bottom are outside the region."""
ImageSource: TypeAlias = "str | PathLike[str] | bytes | PILImage | NDArray[np.uint8] | ImageRef"


@dataclass(frozen=True, slots=True)
class ImageRef:
    """A checked image: its content hash, format and size in pixels (as displayed)."""

    sha256: str
    suffix: str
    width: int
    height: int
    name: str
    """What the caller called it: a file name, or the first digits of its hash."""

    @property
    def url(self) -> str:
        """The reference that stands for the image everywhere but at the wire."""
        return f"{HOST}{self.sha256}{self.suffix}"

    @property
    def media_type(self) -> str:
        """The image's MIME type."""
        return MEDIA_TYPES[self.suffix]


class ImageStore:
    """Where the bytes behind references are: files by path, or bytes a caller gave. Thread-safe."""

    def __init__(self, *, decoded_cache_mb: int = 128) -> None:
        self._lock = threading.Lock()
        self._sources: dict[str, Path | bytes] = {}
        self._refs: dict[str, ImageRef] = {}
        self._seen: dict[tuple[str, int, int], ImageRef] = {}
        self._decoded: OrderedDict[str, NDArray[np.uint8]] = OrderedDict()
        self._decoded_limit = decoded_cache_mb * 2**20

    def add(self, source: ImageSource) -> ImageRef:
        """Check an image and return its reference.

        A path, encoded bytes (kept as they are), or a PIL image / H x W x 3 uint8 array
        (stored losslessly as PNG). Raises ImageError naming the image when it is missing,
        empty, truncated, too large or not an image.
        """
        if isinstance(source, ImageRef):
            self._require(source.sha256)
            return source
        if isinstance(source, str | PathLike):
            return self._add_path(Path(source))
        if isinstance(source, bytes | bytearray | memoryview):
            data = bytes(source)
            return self._check(data, data, name=f"bytes:{hashlib.sha256(data).hexdigest()[:12]}")
        data = _to_png(source)
        return self._check(data, data, name=f"pixels:{hashlib.sha256(data).hexdigest()[:12]}")

    def find(self, url: str) -> ImageRef:
        """Return the image behind a reference URL; ImageError when it was never added here."""
        digest, _ = parse_url(url)
        self._require(digest)
        return self._refs[digest]

    def read(self, ref: ImageRef | str) -> bytes:
        """Return the original bytes; ImageError when the file went away or changed since."""
        digest = ref.sha256 if isinstance(ref, ImageRef) else parse_url(ref)[0]
        self._require(digest)
        source = self._sources[digest]
        if isinstance(source, bytes):
            return source
        try:
            data = source.read_bytes()
        except OSError as error:
            raise ImageError(
                f"image {str(source)!r}: cannot be read any more ({error.strerror}); restore it"
            ) from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise ImageError(f"image {str(source)!r}: changed since it was opened; start again with the new file")
        return data

    def pixels(self, ref: ImageRef) -> NDArray[np.uint8]:
        """Decode to H x W x 3 uint8 sRGB, upright, alpha laid over white. Read-only; cached."""
        with self._lock:
            if ref.sha256 in self._decoded:
                self._decoded.move_to_end(ref.sha256)
                return self._decoded[ref.sha256]
        array = _decode(self.read(ref), ref.name)
        self._remember(ref.sha256, array)
        return array

    def _add_path(self, path: Path) -> ImageRef:
        name = str(path)
        try:
            stat = path.stat()
            if path.is_dir():
                raise ImageError(f"image {name!r}: is a folder; give an image file")
            key = (str(path.resolve()), stat.st_mtime_ns, stat.st_size)
            if key in self._seen:
                return self._seen[key]
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise ImageError(f"image {name!r}: no such file; check the path") from error
        except OSError as error:
            raise ImageError(f"image {name!r}: cannot be read ({error.strerror}); check its permissions") from error
        ref = self._check(data, path.resolve(), name=path.name, shown=name)
        with self._lock:
            self._seen[key] = ref
        return ref

    def _check(self, data: bytes, source: Path | bytes, *, name: str, shown: str | None = None) -> ImageRef:
        shown = shown or name
        if not data:
            raise ImageError(f"image {shown!r}: is empty (0 bytes); give a whole image file")
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._refs:
            array, suffix = _decode_checked(data, shown)
            height, width = array.shape[:2]
            self._remember(digest, array)
            ref = ImageRef(digest, suffix, width, height, name)
            with self._lock:
                self._refs.setdefault(digest, ref)
        with self._lock:
            self._sources.setdefault(digest, source)
        return self._refs[digest]

    def _require(self, digest: str) -> None:
        if digest not in self._sources:
            raise ImageError(f"image sha256 {digest[:12]}...: not known here; open it with its path or bytes first")

    def _remember(self, digest: str, array: NDArray[np.uint8]) -> None:
        array.setflags(write=False)
        with self._lock:
            self._decoded[digest] = array
            while sum(a.nbytes for a in self._decoded.values()) > self._decoded_limit and len(self._decoded) > 1:
                self._decoded.popitem(last=False)


IMAGES = ImageStore()
"""The process's one store: references travel through model clients that carry no other context."""


def parse_url(url: str) -> tuple[str, str]:
    """Split a reference URL into its SHA-256 (hex) and suffix; ImageError when it is none."""
    match = _URL.fullmatch(url)
    if match is None or match[2] not in MEDIA_TYPES:
        raise ImageError(f"image reference {url[:80]!r}: not of the form {HOST}<64 hex digits>.<png|jpg|...>")
    return match[1], match[2]


def crop(pixels: NDArray[np.uint8], box: Box, *, minimum_px: int = 1) -> tuple[NDArray[np.uint8], Box]:
    """Cut a box out of H x W x 3 pixels, grown around its centre to at least `minimum_px` a side.

    Returns the crop and the box used, inside the image. Raises ImageError when the box does
    not overlap the image.
    """
    height, width = pixels.shape[:2]
    x0, x1 = _span(box[0], box[2], width, minimum_px)
    y0, y1 = _span(box[1], box[3], height, minimum_px)
    if x1 <= x0 or y1 <= y0:
        raise ImageError(
            f"region {tuple(box)}: lies outside the {width}x{height} image; give x0 < x1 and y0 < y1 within it"
        )
    return pixels[y0:y1, x0:x1], (x0, y0, x1, y1)


def _span(low: float, high: float, size: int, minimum: int) -> tuple[int, int]:
    start, stop = max(0, int(np.floor(min(low, size)))), min(size, int(np.ceil(max(high, 0))))
    if not low < high or start >= stop:
        return 0, 0
    missing = min(minimum, size) - (stop - start)
    if missing > 0:
        start = min(max(0, start - missing // 2), size - (stop - start) - missing)
        stop = start + min(minimum, size)
    return start, stop


def _to_png(source: object) -> bytes:
    from PIL import Image

    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3 or 0 in source.shape:
            raise ImageError(
                f"image array: shape {source.shape}, {source.dtype}; give a non-empty H x W x 3 uint8 array"
            )
        source = Image.fromarray(source)
    if not isinstance(source, Image.Image):
        raise ImageError(
            f"image of type {type(source).__name__}: give a path, bytes, a PIL image or an H x W x 3 uint8 array"
        )
    buffer = io.BytesIO()
    lossless = source if source.mode in {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"} else source.convert("RGB")
    lossless.save(buffer, "PNG")
    return buffer.getvalue()


def _decode(data: bytes, name: str) -> NDArray[np.uint8]:
    return _decode_checked(data, name)[0]


def _decode_checked(data: bytes, name: str) -> tuple[NDArray[np.uint8], str]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.format not in _SUFFIX_OF_FORMAT:
                raise ImageError(f"image {name!r}: format {image.format} is not read here; convert it to PNG")
            if image.width * image.height > MAX_PIXELS:
                raise ImageError(
                    f"image {name!r}: {image.width}x{image.height} is over {MAX_PIXELS // 10**6} megapixels; "
                    "scale it down"
                )
            return _to_rgb(image), _SUFFIX_OF_FORMAT[image.format]
    except UnidentifiedImageError as error:
        raise ImageError(
            f"image {name!r}: not an image that can be read; give a PNG, JPEG, BMP, TIFF or WebP"
        ) from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(f"image {name!r}: damaged or truncated ({error}); get a whole copy") from error


def _to_rgb(image: "PILImage") -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I") or upright.mode == "F":
        values = np.asarray(upright, dtype=np.float64)
        # 16-bit greyscale holds 0..65535; wider modes are scaled by their own maximum.
        top = 65535.0 if upright.mode.startswith("I") else max(float(np.nanmax(values)), 1.0)
        grey = np.clip(np.nan_to_num(values) / top * 255.0 + 0.5, 0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if "A" in upright.getbands() or "transparency" in upright.info:
        rgba = upright.convert("RGBA")
        background = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return np.array(Image.alpha_composite(background, rgba).convert("RGB"))
    return np.array(upright.convert("RGB"))
