"""Images as content-addressed references: opened and checked once, never re-encoded.

Everything that is stored, logged or sent inside the program holds
`https://images.invalid/sha256/<hex>.<ext>`; the original bytes are read from `IMAGES`
only where pixels are needed (tools, the embedded backend) or at the wire.
"""

import hashlib
import io
import re
import shutil
import stat
import tempfile
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from program.decoding import MAX_PIXELS, Decoded, decode, reduction, to_rgb
from program.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

__all__ = ("HOST", "IMAGES", "LARGE", "Box", "ImageRef", "ImageSource", "ImageStore", "crop", "parse_url")

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
_WEB = re.compile("https?:/")
LARGE = 2**21
"""Pixels of an image that is looked at as it is, full HD among them; more are averaged down where a caller allows it.
Tools take up to 3 KB of memory a pixel, and the images they are calibrated on have at most 0.4 million."""

Box: TypeAlias = tuple[float, float, float, float]
"""A region in pixels: left, top, right, bottom; right and bottom are outside the region."""
ImageSource: TypeAlias = "str | PathLike[str] | bytes | PILImage | NDArray[np.uint8] | ImageRef"

_Key: TypeAlias = tuple[str, int, tuple[int, int, int, int] | None]
"""Decoded pixels by content hash, reduction, and the area that was cut."""


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


_BORROWED: ContextVar[set[str] | None] = ContextVar("agentic_iqa_borrowed_images", default=None)


_DECODED = 64
"""Decoded images kept at most, however small."""


class ImageStore:
    """Where the bytes behind references are: files by path, or bytes a caller gave. Thread-safe.

    Bounded memory: decoded images up to `decoded_cache_mb`, a caller's bytes up to `held_mb`; the bytes given longest
    ago then go to a temporary folder, which is removed when the process ends.
    """

    def __init__(self, *, decoded_cache_mb: int = 128, held_mb: int = 256) -> None:
        self._lock = threading.Lock()
        self._sources: dict[str, Path | bytes] = {}
        self._refs: dict[str, ImageRef] = {}
        self._seen: dict[tuple[str, int, int], ImageRef] = {}
        self._decoded: OrderedDict[_Key, NDArray[np.uint8]] = OrderedDict()
        self._decoded_limit = decoded_cache_mb * 2**20
        self._held: OrderedDict[str, int] = OrderedDict()
        self._held_limit = held_mb * 2**20
        self._folder: Path | None = None
        self._borrowers: Counter[str] = Counter()

    @contextmanager
    def borrowing(self) -> Iterator[None]:
        """Forget the images added inside the block once it is left, and nobody else borrows them.

        For a service: what was sent with a request must not stay. Images known before (a program's demos) stay.
        """
        mine: set[str] = set()
        token = _BORROWED.set(mine)
        try:
            yield
        finally:
            _BORROWED.reset(token)
            with self._lock:
                for digest in mine:
                    self._release(digest)

    def add(self, source: ImageSource, *, max_pixels: int = MAX_PIXELS) -> ImageRef:
        """Check an image and return its reference.

        A path, encoded bytes (kept as they are), or a PIL image / H x W x 3 uint8 array
        (stored losslessly as PNG). Raises ImageError naming the image when it is missing,
        empty, truncated, over `max_pixels` or not an image.
        """
        if isinstance(source, ImageRef):
            self._require(source.sha256)
            return source
        if isinstance(source, str | PathLike):
            return self._add_path(Path(source), max_pixels)
        if isinstance(source, bytes | bytearray | memoryview):
            data = bytes(source)
            return self._check(data, data, f"bytes:{hashlib.sha256(data).hexdigest()[:12]}", max_pixels)
        data = _to_png(source)
        return self._check(data, data, f"pixels:{hashlib.sha256(data).hexdigest()[:12]}", max_pixels)

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

    def pixels(self, ref: ImageRef, *, at_most: int | None = None) -> NDArray[np.uint8]:
        """Decode to H x W x 3 uint8 sRGB, upright, transparency laid over white. Read-only; cached.

        With more than `at_most` pixels it is averaged down by the smallest whole factor that suits (see `decoding`).
        """
        factor = reduction(ref.width, ref.height, at_most)
        key = (ref.sha256, factor, None)
        kept = self._kept(key)
        if kept is not None:
            return kept
        array = decode(self.read(ref), ref.name, at_most=at_most, max_pixels=ref.width * ref.height).pixels
        self._remember(key, array)
        return array

    def cut(
        self, ref: ImageRef, box: Box, *, minimum_px: int = 1, at_most: int | None = None
    ) -> tuple[NDArray[np.uint8], Box]:
        """Return a box of an image as pixels, and the box used: `crop` without decoding a large image as a whole.

        A box with more than `at_most` pixels is averaged down like an image. Read-only; cached. Raises ImageError as
        `crop` does.
        """
        # A view of one pixel: only the size decides.
        shape = np.broadcast_to(np.zeros(1, np.uint8), (ref.height, ref.width, 3))
        _, used = crop(shape, box, minimum_px=minimum_px)
        left, top, right, bottom = (int(edge) for edge in used)
        area, pixels = (left, top, right, bottom), ref.width * ref.height
        key = (ref.sha256, reduction(right - left, bottom - top, at_most), area)
        array = self._kept(key)
        if array is None:
            if pixels <= LARGE and key[1] == 1:
                array = self.pixels(ref)[top:bottom, left:right].copy()
            else:
                array = decode(self.read(ref), ref.name, at_most=at_most, area=area, max_pixels=pixels).pixels
            self._remember(key, array)
        return array, used

    def cropped(self, ref: ImageRef, box: Box) -> ImageRef:
        """Return a box of an image as an image of its own. Raises ImageError as `crop` does."""
        return self.add(self.cut(ref, box)[0])

    def resized(self, ref: ImageRef, width: int, height: int) -> ImageRef:
        """Return an image resampled (Lanczos) to another size, as an image of its own; itself where the size fits."""
        if (ref.width, ref.height) == (width, height):
            return ref
        from PIL import Image

        pixels = Image.fromarray(self.pixels(ref)).resize((width, height), Image.Resampling.LANCZOS)
        return self.add(np.asarray(pixels), max_pixels=width * height)

    def forget_pixels(self) -> None:
        """Drop what was decoded; every reference stays valid and is decoded anew when it is next looked at."""
        with self._lock:
            self._decoded.clear()

    def _add_path(self, path: Path, max_pixels: int) -> ImageRef:
        name = str(path)
        try:
            facts = path.stat()
            if stat.S_ISDIR(facts.st_mode):
                raise ImageError(f"image {name!r}: is a folder; give an image file")
            if not stat.S_ISREG(facts.st_mode):  # a pipe would be waited for, and could not be read twice
                raise ImageError(f"image {name!r}: is not a plain file; write it to one first")
            resolved = path.resolve()
            key = (str(resolved), facts.st_mtime_ns, facts.st_size)
            known = self._seen.get(key)
            if known is not None and known.width * known.height <= max_pixels:
                self._borrow(known.sha256)
                if known.sha256 in self._sources:
                    self._moved(known.sha256, resolved)
                    return known
            data = path.read_bytes()
        except FileNotFoundError as error:
            mend = "nothing is fetched from a URL: download it first" if _WEB.match(name) else "check the path"
            raise ImageError(f"image {name!r}: no such file; {mend}") from error
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            if isinstance(error, ImageError):
                raise
            reason = getattr(error, "strerror", None) or error
            raise ImageError(f"image {name[:200]!r}: cannot be read ({reason}); check its permissions") from error
        ref = self._check(data, resolved, path.name, max_pixels, shown=name)
        with self._lock:
            self._seen[key] = ref
        return ref

    def _check(
        self, data: bytes, source: Path | bytes, name: str, max_pixels: int, *, shown: str | None = None
    ) -> ImageRef:
        shown = shown or name
        if not data:
            raise ImageError(f"image {shown!r}: is empty (0 bytes); give a whole image file")
        digest = hashlib.sha256(data).hexdigest()
        self._borrow(digest)
        ref = self._refs.get(digest)
        if ref is None or ref.width * ref.height > max_pixels:
            found = decode(data, shown, at_most=LARGE, max_pixels=max_pixels)
            ref = self._new_ref(digest, found, name)
        with self._lock:
            if digest not in self._sources:
                self._sources[digest] = source
                if isinstance(source, bytes):
                    self._hold(digest, len(source))
        if isinstance(source, Path):
            self._moved(digest, source)
        # Two files may hold the same bytes: each is told by its own name.
        return ref if ref.name == name else replace(ref, name=name)

    def _moved(self, digest: str, path: Path) -> None:
        """Read a file's image from where it was seen last: the folder it was seen in before may be gone by now."""
        with self._lock:
            known = self._sources.get(digest)
            if isinstance(known, Path) and known.parent != self._folder:
                self._sources[digest] = path

    def _new_ref(self, digest: str, found: Decoded, name: str) -> ImageRef:
        self._remember((digest, reduction(found.width, found.height, LARGE), None), found.pixels)
        with self._lock:
            return self._refs.setdefault(
                digest, ImageRef(digest, found.suffix, found.width, found.height, name, found.notes)
            )

    def _hold(self, digest: str, size: int) -> None:
        """Count bytes that are kept in memory; over the limit, put those given longest ago into a file."""
        self._held[digest] = size
        while sum(self._held.values()) > self._held_limit and len(self._held) > 1:
            oldest, _ = self._held.popitem(last=False)
            data = self._sources[oldest]
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="agentic-iqa-images-"))
                weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            path = self._folder / oldest
            if isinstance(data, bytes):
                path.write_bytes(data)
            self._sources[oldest] = path

    def _borrow(self, digest: str) -> None:
        """Count the borrower, before looking: another's return must not take the image away meanwhile."""
        mine = _BORROWED.get()
        with self._lock:
            if mine is None:
                self._borrowers.pop(digest, None)  # somebody keeps it: it stays
            elif digest not in mine and (digest in self._borrowers or digest not in self._sources):
                self._borrowers[digest] += 1
                mine.add(digest)

    def _release(self, digest: str) -> None:
        if digest not in self._borrowers:
            return
        self._borrowers[digest] -= 1
        if self._borrowers[digest] > 0:
            return
        source = self._sources.pop(digest, None)
        if isinstance(source, Path) and source.parent == self._folder:
            source.unlink(missing_ok=True)
        self._borrowers.pop(digest)
        self._refs.pop(digest, None)
        self._held.pop(digest, None)
        for key in [key for key in self._decoded if key[0] == digest]:
            del self._decoded[key]
        for seen in [seen for seen, ref in self._seen.items() if ref.sha256 == digest]:
            del self._seen[seen]

    def _require(self, digest: str) -> None:
        if digest not in self._sources:
            raise ImageError(f"image sha256 {digest[:12]}...: not known here; open it with its path or bytes first")

    def _kept(self, key: _Key) -> NDArray[np.uint8] | None:
        with self._lock:
            if key in self._decoded:
                self._decoded.move_to_end(key)
            return self._decoded.get(key)

    def _remember(self, key: _Key, array: NDArray[np.uint8]) -> None:
        array.setflags(write=False)
        if array.nbytes > self._decoded_limit:
            return
        with self._lock:
            self._decoded[key] = array
            # One image's tools follow each other: pixels of many small images would only fill the memory.
            while len(self._decoded) > _DECODED or sum(a.nbytes for a in self._decoded.values()) > self._decoded_limit:
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
    from PIL import Image, ImageOps

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
    upright = ImageOps.exif_transpose(source)
    if upright.mode == "I":
        upright = Image.fromarray(np.clip(np.asarray(upright), 0, 65535).astype(np.uint16))
    elif upright.mode not in {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}:
        upright = Image.fromarray(to_rgb(upright))
    upright.save(buffer, "PNG")
    return buffer.getvalue()
