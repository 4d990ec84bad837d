"""Readings on disk: a tool that measured an image once is not run on it again."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from program.common.cache import PlainCache
from program.images.decoding import READING_RULES
from program.images.store import Box

__all__ = ("CacheState", "ReadingKey", "ReadingsCache")


@dataclass(frozen=True, slots=True)
class ReadingKey:
    """Everything a raw value depends on. Calibration is not among it: it is applied afterwards."""

    tool: str
    """pyiqa's name."""
    version: str
    """pyiqa's version."""
    parameters: str | None
    """SHA-256 of the parameter file."""
    image: str
    """SHA-256 of the image's bytes; likewise the reference's."""
    reference: str | None
    box: Box | None
    """The pixels measured, or None for the whole image."""
    factor: int = 1
    """By how much the image was averaged down."""
    device: str = "cpu"
    threads: int = 1

    def text(self) -> str:
        """Return the key as one line, stable across processes."""
        box = ",".join(f"{v:g}" for v in self.box) if self.box else "-"
        how = f"{READING_RULES}/{self.factor}/{self.device}/{self.threads}"
        return f"{self.tool}|{self.version}|{self.parameters or '-'}|{self.image}|{self.reference or '-'}|{box}|{how}"


class CacheState(NamedTuple):
    """What a cache on disk holds, over all processes that ever wrote to it."""

    entries: int
    size_mb: float
    limit_mb: int


class ReadingsCache:
    """Readings by key; safe with several threads and processes. Without a folder it keeps nothing.

    Over `size_limit_mb` on disk, the readings stored longest ago go.
    """

    def __init__(self, folder: Path | None, *, size_limit_mb: int = 512) -> None:
        self._limit_mb = size_limit_mb
        self._cache = PlainCache(folder, size_limit_mb=size_limit_mb) if folder is not None else None

    @property
    def state(self) -> CacheState | None:
        """How full it is, or None where nothing is kept."""
        if self._cache is None:
            return None
        return CacheState(len(self._cache), round(self._cache.volume() / 2**20, 3), self._limit_mb)

    def get(self, key: ReadingKey) -> float | None:
        """Return a stored raw value, or None."""
        stored = self._cache.get(key.text()) if self._cache is not None else None
        return float(stored[0]) if stored is not None else None

    def put(self, key: ReadingKey, raw: float) -> None:
        """Store a raw value; JSON keeps the float exactly."""
        if self._cache is not None:
            # A list, as earlier files hold the seconds beside the value.
            self._cache.set(key.text(), [raw])
