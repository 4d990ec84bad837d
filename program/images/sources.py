"""Where the original bytes of images are, and who uses them: files by path, or bytes a caller gave."""

import hashlib
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from program.common.errors import ImageError
from program.images.refs import ImageRef

__all__ = ("Source", "Sources")

Source = Path | bytes

_BORROWED: ContextVar[set[str] | None] = ContextVar("agentic_iqa_borrowed_images", default=None)


@dataclass(slots=True)
class _Entry:
    ref: ImageRef
    source: Source
    borrowers: int | None = 0
    """How many blocks of `borrowing` use it; None: somebody added it outside any, so it stays."""


class Sources:
    """Images by the hash of their bytes. Thread-safe.

    A caller's bytes stay in memory up to `held_mb`; those beyond go to a temporary folder, which is removed when the
    process ends. `forget` is called with the hash of each image that goes.
    """

    def __init__(self, held_mb: int, forget: Callable[[str], None]) -> None:
        self._forget = forget
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._room = held_mb * 2**20
        self._folder: Path | None = None

    @contextmanager
    def borrowing(self) -> Iterator[None]:
        """Forget the images that were added inside the block when it ends, except those that others still use."""
        borrowed: set[str] = set()
        token = _BORROWED.set(borrowed)
        try:
            yield
        finally:
            _BORROWED.reset(token)
            with self._lock:
                for digest in borrowed:
                    self._release(digest)

    def use(self, digest: str, source: Source, max_pixels: int) -> ImageRef | None:
        """Return an image that one more caller uses; None where it is not known or has more than `max_pixels`."""
        with self._lock:
            entry = self._entries.get(digest)
            if entry is None or entry.ref.width * entry.ref.height > max_pixels:
                return None
            self._count(entry)
            if isinstance(source, Path) and isinstance(entry.source, Path) and not self._is_ours(entry.source):
                entry.source = source  # the folder it was seen in before may be gone by now
            return entry.ref

    def enter(self, ref: ImageRef, source: Source) -> ImageRef:
        """Add an image for one caller, and return it as the first to add it called it."""
        with self._lock:
            if ref.sha256 not in self._entries:
                self._entries[ref.sha256] = _Entry(ref, self._place(ref.sha256, source))
            entry = self._entries[ref.sha256]
            self._count(entry)
            return entry.ref

    def find(self, digest: str) -> ImageRef:
        """Return an image that is known; ImageError for others."""
        return self._entry(digest).ref

    def read(self, digest: str) -> bytes:
        """Return the original bytes; ImageError when the file went away or changed since."""
        source = self._entry(digest).source
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

    def _entry(self, digest: str) -> _Entry:
        entry = self._entries.get(digest)
        if entry is None:
            raise ImageError(f"image sha256 {digest[:12]}...: not known here; open it with its path or bytes first")
        return entry

    def _count(self, entry: _Entry) -> None:
        borrowed = _BORROWED.get()
        if borrowed is None:
            entry.borrowers = None
        elif entry.borrowers is not None and entry.ref.sha256 not in borrowed:
            entry.borrowers += 1
            borrowed.add(entry.ref.sha256)

    def _place(self, digest: str, source: Source) -> Source:
        if isinstance(source, Path):
            return source
        if len(source) <= self._room:
            self._room -= len(source)
            return source
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="agentic-iqa-images-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        path = self._folder / digest
        path.write_bytes(source)
        return path

    def _is_ours(self, path: Path) -> bool:
        return path.parent == self._folder

    def _release(self, digest: str) -> None:
        entry = self._entries[digest]
        if entry.borrowers is None:
            return
        entry.borrowers -= 1
        if entry.borrowers:
            return
        del self._entries[digest]
        if isinstance(entry.source, bytes):
            self._room += len(entry.source)
        elif self._is_ours(entry.source):
            entry.source.unlink(missing_ok=True)
        self._forget(digest)
