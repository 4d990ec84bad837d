"""Images by their content: opened and checked once, never re-encoded; and thumbnails."""

import base64
import functools
import hashlib
import io
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray
from PIL import Image

from program.common.errors import ImageError, InputError
from program.common.files import Place, from_base64, is_remote, open_file, path_mend, place_of, readable
from program.common.text import is_chinese
from program.images.decode_worker import decode_bounded
from program.images.decoding import MAX_PIXELS, encode_png
from program.images.detail import Detail
from program.images.refs import HOST, Area, Box, ImageRef, parse_url, reduction, whole_pixels

__all__ = ("HOST", "Box", "ImageRef", "parse_url")

_WEB = re.compile("(?:.*::)?https?:/", re.IGNORECASE)
LARGE = 2**21
"""Pixels of an image that is looked at as it is, full HD among them; more are averaged down where a
caller allows it. Tools take up to 3 KB of memory a pixel, and the images they are calibrated on
have at most 0.4 million."""
LARGEST = 2**23
"""The same for what averages an image down itself: the embedded model, and tools that read the
network as it does."""

ImageSource: TypeAlias = str | PathLike[str] | bytes | Image.Image | NDArray[np.uint8] | ImageRef

_PixelsKey: TypeAlias = tuple[str, int, Area]
"""Content hash, reduction, and the area of the image."""

_BORROWED: ContextVar[set[str] | None] = ContextVar("agentic_iqa_borrowed_images", default=None)

_DECODED_BYTES, _MOST_DECODED = 2**27, 64
"""One image's tools follow each other: the pixels of more images, however small, would only fill
the memory."""


@dataclass(slots=True)
class _Entry:
    ref: ImageRef
    source: Path | bytes
    detail: Detail | None = None
    borrowers: int | None = 0
    """How many blocks of `borrow` use it; None: somebody added it outside any, so it stays."""


class ImageStore:
    """Where the bytes behind references are: files by path, or bytes a caller gave. Thread-safe.

    Bounded memory: decoded images up to 128 MiB, a caller's bytes up to `held_mb`; bytes beyond
    that go to a temporary folder, which is removed when the process ends.
    """

    def __init__(self, *, held_mb: int = 256) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._pixels: LRUCache[_PixelsKey, NDArray[np.uint8]] = LRUCache(
            _DECODED_BYTES, getsizeof=lambda pixels: max(pixels.nbytes, _DECODED_BYTES // _MOST_DECODED)
        )
        self._room = held_mb * 2**20
        self._folder: Path | None = None

    @contextmanager
    def borrow(self) -> Iterator[None]:
        """Forget the images that were added inside the block when it ends, unless others use them.

        For a service: what was sent with a request must not stay. What was added outside any such
        block stays.
        """
        borrowed: set[str] = set()
        token = _BORROWED.set(borrowed)
        try:
            yield
        finally:
            _BORROWED.reset(token)
            with self._lock:
                for digest in borrowed:
                    self._release(digest)

    def add(self, source: ImageSource, *, max_pixels: int = MAX_PIXELS, detailed: bool = False) -> ImageRef:
        """Check an image and return its reference; `detailed`: its `detail` is asked for next.

        A path, the URI of a file elsewhere (s3://, gs://, ...), encoded bytes or a base64 data URI
        (kept as they are), or a PIL image / H x W x 3 uint8 array (stored losslessly as PNG).
        Raises ImageError naming the image when it is missing, empty, truncated, over `max_pixels`,
        of floating-point pixels or not an image.
        """
        if isinstance(source, ImageRef):
            self._entry(source.sha256)
            return source
        if isinstance(source, str) and source[:5].casefold() == "data:":
            try:
                source = from_base64(source)
            except ValueError as error:
                fault = "cannot be read (no base64)"
                raise ImageError(f"image {source[:40]!r}: {fault}; give data:image/...;base64,...") from error
        if isinstance(source, str | PathLike):
            elsewhere = isinstance(source, str) and is_remote(source) and not _WEB.match(source)
            return self._add_file(
                place_of(str(source)) if elsewhere else Path(source), str(source), max_pixels, detailed
            )
        if isinstance(source, bytes | bytearray | memoryview):
            kind, data = "bytes", bytes(source)
        else:
            kind, data = "pixels", encode_png(source)
        name = f"{kind}:{hashlib.sha256(data).hexdigest()[:12]}"
        return self._check(data, data, name, name, max_pixels, detailed)

    def find(self, url: str) -> ImageRef:
        """Return the image behind a reference URL; ImageError when it was never added here."""
        return self._entry(parse_url(url)[0]).ref

    def read(self, ref: ImageRef | str) -> bytes:
        """Return the original bytes; ImageError when the file went away or changed since."""
        digest = ref.sha256 if isinstance(ref, ImageRef) else parse_url(ref)[0]
        source = self._entry(digest).source
        if isinstance(source, bytes):
            return source
        try:
            with open_file(source) as file:
                data = file.read()
        except OSError as error:
            fault = f"cannot be read any more ({error.strerror})"
            raise ImageError(f"image {str(source)!r}: {fault}; restore it") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise ImageError(f"image {str(source)!r}: changed since it was opened; start again with the new file")
        return data

    def pixels(self, ref: ImageRef, box: Box | None = None, *, at_most: int | None = None) -> NDArray[np.uint8]:
        """Decode an image, or a box of it, to H x W x 3 uint8 sRGB, upright, without transparency.

        Read-only; cached. With more than `at_most` pixels it is averaged down by the smallest whole
        factor that suits (see `decoding`). For a box a large image is not decoded as a whole;
        raises ImageError as `whole_pixels` does.
        """
        whole, size = (0, 0, ref.width, ref.height), ref.width * ref.height
        left, top, right, bottom = area = whole if box is None else whole_pixels(box, ref.width, ref.height)
        key = (ref.sha256, reduction(right - left, bottom - top, at_most), area)
        with self._lock:
            pixels = self._pixels.get(key)
        if pixels is not None:
            return pixels
        if area != whole and key[1] == 1 and size <= LARGE:
            pixels = self.pixels(ref)[top:bottom, left:right].copy()
        else:
            pixels = decode_bounded(self.read(ref), ref.name, at_most=at_most, area=area, max_pixels=size).pixels
        return self._remember(key, pixels)

    def detail(self, ref: ImageRef) -> Detail:
        """Measure an image's detail at full size."""
        if known := self._entry(ref.sha256).detail:
            return known
        data, size = self.read(ref), ref.width * ref.height  # it was added for something else first
        return cast("Detail", decode_bounded(data, ref.name, at_most=1, max_pixels=size, detailed=True).detail)

    def crop(self, ref: ImageRef, box: Box) -> ImageRef:
        """Return a box of an image as an image of its own; ImageError as of `whole_pixels`."""
        return self.add(self.pixels(ref, box))

    def same_pixels(self, one: ImageRef, other: ImageRef) -> bool:
        """Return whether two images hold the same pixels, whatever their files."""
        if one.sha256 == other.sha256 or one.size != other.size:
            return one.sha256 == other.sha256
        if not np.array_equal(self.pixels(one, at_most=LARGE), self.pixels(other, at_most=LARGE)):
            return False
        if one.width * one.height <= LARGE:
            return True
        return len({hashlib.sha256(self.pixels(ref).data).digest() for ref in (one, other)}) == 1

    def match_size(self, reference: ImageRef, image: ImageRef, *, resample: bool) -> ImageRef:
        """Return a reference of an image's size: itself, or resampled (Lanczos).

        Raises InputError where the sizes differ and `resample` is False.
        """
        if reference.size == image.size:
            return reference
        if not resample:
            raise InputError(
                f"reference {reference.name!r}: is {reference.size}, image {image.name!r} is {image.size}; "
                "give a reference of the same size, or set tools.resize_reference"
            )
        size = (image.width, image.height)
        pixels = Image.fromarray(self.pixels(reference)).resize(size, Image.Resampling.LANCZOS)
        return self.add(np.asarray(pixels), max_pixels=image.width * image.height)

    def _add_file(self, place: Place, name: str, max_pixels: int, detailed: bool) -> ImageRef:
        try:
            with open_file(place) as file:
                data = file.read()
        except InputError:
            raise
        except IsADirectoryError as error:
            raise ImageError(f"image {name!r}: is a folder; give an image file") from error
        except FileNotFoundError as error:
            mend = "nothing is fetched from a URL: download it first" if _WEB.match(name) else path_mend(name)
            raise ImageError(f"image {name!r}: no such file; {mend}") from error
        except (OSError, ValueError, MemoryError) as error:  # ValueError: a zero byte in the name
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ImageError(f"image {name[:200]!r}: cannot be read ({reason}); check the file") from error
        source = place.resolve() if isinstance(place, Path) else data
        return self._check(data, source, readable(Path(place).name), name, max_pixels, detailed)

    def _check(
        self, data: bytes, source: Path | bytes, name: str, long_name: str, max_pixels: int, detailed: bool
    ) -> ImageRef:  # fmt: skip
        if not data:
            raise ImageError(f"image {long_name!r}: is empty (0 bytes); give a whole image file")
        digest = hashlib.sha256(data).hexdigest()
        ref = self._use(digest, source, max_pixels)
        if ref is None:
            image = decode_bounded(data, long_name, at_most=LARGEST, max_pixels=max_pixels, detailed=detailed)
            width, height = image.width, image.height
            self._remember((digest, reduction(width, height, LARGEST), (0, 0, width, height)), image.pixels)
            ref = self._enter(ImageRef(digest, image.suffix, width, height, name, image.notes), source, image.detail)
        # Two files may hold the same bytes: each is told by its own name.
        if ref.name == name:
            return ref
        return replace(ref, name=name)

    def _entry(self, digest: str) -> _Entry:
        entry = self._entries.get(digest)
        if entry is None:
            raise ImageError(f"image sha256 {digest[:12]}...: not known here; open it with its path or bytes first")
        return entry

    def _use(self, digest: str, source: Path | bytes, max_pixels: int) -> ImageRef | None:
        """Return an image that one more caller uses; None where it is unknown or too large."""
        with self._lock:
            entry = self._entries.get(digest)
            if entry is None or entry.ref.width * entry.ref.height > max_pixels:
                return None
            self._count(entry)
            if isinstance(source, Path) and isinstance(entry.source, Path):
                entry.source = source  # the folder it was seen in before may be gone by now
            return entry.ref

    def _enter(self, ref: ImageRef, source: Path | bytes, detail: Detail | None) -> ImageRef:
        """Add an image for one caller, and return it as the first to add it called it."""
        with self._lock:
            if ref.sha256 not in self._entries:
                self._entries[ref.sha256] = _Entry(ref, self._place(ref.sha256, source), detail)
            entry = self._entries[ref.sha256]
            self._count(entry)
            return entry.ref

    def _count(self, entry: _Entry) -> None:
        borrowed = _BORROWED.get()
        if borrowed is None:
            entry.borrowers = None
        elif entry.borrowers is not None and entry.ref.sha256 not in borrowed:
            entry.borrowers += 1
            borrowed.add(entry.ref.sha256)

    def _place(self, digest: str, source: Path | bytes) -> Path | bytes:
        if isinstance(source, bytes) and len(source) > self._room:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="agentic-iqa-images-"))
                weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            path = self._folder / digest
            path.write_bytes(source)
            return path
        if isinstance(source, bytes):
            self._room -= len(source)
        return source

    def _release(self, digest: str) -> None:
        entry = self._entries[digest]
        if entry.borrowers is not None:
            entry.borrowers -= 1
        if entry.borrowers != 0:
            return
        del self._entries[digest]
        if isinstance(entry.source, bytes):
            self._room += len(entry.source)
        elif self._folder is not None:
            (self._folder / digest).unlink(missing_ok=True)
        for view in [key for key in self._pixels if key[0] == digest]:
            del self._pixels[view]

    def _remember(self, key: _PixelsKey, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        pixels.setflags(write=False)
        with self._lock:
            if pixels.nbytes <= self._pixels.maxsize:
                self._pixels[key] = pixels
        return pixels


IMAGES = ImageStore()
"""The process's one store: references travel through model clients that carry no other context."""


_GRID = (16, 16)
_ALIKE = 0.55
"""Correlation of the grids from which two images show the same. Of 7,140 pairs of CLIVE's train
photographs nine in ten lie below it; of the 24 generated distortions at level 5 none does on four
photographs."""
_LOOKED_AT, _FARTHEST, _LEAST = 512, 32, 32
"""Pixels of the middle that a shift is looked for in, the farthest one, and the least that shows
any."""
_EXPLAINED = 0.8
"""Share of what the two do not have in common that may be left once a shift is taken back."""


@functools.lru_cache(maxsize=1024)
def show_the_same(one: ImageRef, other: ImageRef) -> bool:
    """Return whether two images show the same scene, by a 16 x 16 grid of one of their colours."""
    grids = [
        np.asarray(Image.fromarray(IMAGES.pixels(ref, at_most=LARGE)).resize(_GRID, Image.Resampling.BOX), float)
        for ref in (one, other)
    ]
    channels = [np.reshape([grid[..., channel] for grid in grids], (2, -1)) for channel in range(3)]
    return any(pair.std(axis=1).min() < 1 or np.corrcoef(pair)[0, 1] >= _ALIKE for pair in channels)


@functools.lru_cache(maxsize=1024)
def shift_of(image: ImageRef, reference: ImageRef) -> tuple[int, int]:
    """Return by how many pixels an image lies right of and below its reference; (0, 0): unclear.

    Phase correlation of their middles (Kuglin & Hines 1975; Guizar-Sicairos et al. 2008), in pixels
    as they are judged.
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
    if after <= _EXPLAINED * before:
        return (right, down)
    return (0, 0)


def overlap(shift: tuple[int, int], pixels: NDArray[Any], reference: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what a shifted picture and its reference have in common, pixel by pixel."""
    (right, down), (height, width) = shift, pixels.shape[:2]

    def part(of: NDArray[Any], x: int, y: int) -> NDArray[Any]:
        return of[max(0, y) : height + min(0, y), max(0, x) : width + min(0, x)]

    return part(pixels, right, down), part(reference, -right, -down)


def shift_text(shift: tuple[int, int], query: str = "") -> str:
    """Say by how much an image is shifted against its reference, in the language of a question.

    >>> shift_text((5, -3))
    'shifted by 5 px to the right and 3 px up against its reference'
    """
    right, down = shift
    ways = ["to the right" if right > 0 else "to the left", "down" if down > 0 else "up"]
    chinese = is_chinese(query)
    if chinese:
        ways = ["向右" if right > 0 else "向左", "向下" if down > 0 else "向上"]
    moves = [(way, abs(size)) for way, size in zip(ways, shift, strict=True) if size]
    if chinese:
        return f"相对参考图像移动：{'，'.join(f'{way} {size} 像素' for way, size in moves)}"
    parts = [f"{size} px {way}" for way, size in moves]
    return f"shifted by {' and '.join(parts)} against its reference"


def _middle(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    top, left = (max(0, (side - _LOOKED_AT) // 2) for side in pixels.shape[:2])
    return pixels[top : top + _LOOKED_AT, left : left + _LOOKED_AT]


def small(source: ImageSource, side_px: int) -> Image.Image:
    """Return an image, its longer side at most `side_px`; ImageError as of `IMAGES.add`."""
    picture = Image.fromarray(IMAGES.pixels(IMAGES.add(source), at_most=LARGE))
    picture.thumbnail((side_px, side_px), Image.Resampling.LANCZOS)
    return picture


def thumbnail(source: ImageSource, side_px: int) -> str:
    """Return an image, its longer side at most `side_px`, as a data: URL; or ImageError."""
    return data_url(small(source, side_px), side_px)


def data_url(picture: Image.Image, side_px: int) -> str:
    """Return a picture as a JPEG in a data: URL."""
    picture.thumbnail((side_px, side_px), Image.Resampling.LANCZOS)
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg_of(picture)).decode('ascii')}"


def jpeg_of(picture: Image.Image) -> bytes:
    """Return a picture as a JPEG to look at."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=82)
    return file.getvalue()
