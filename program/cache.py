"""Disk caches that hold plain data only: nothing read from them can run code, and none of them is needed."""

import functools
import logging
import os
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diskcache

__all__ = ("PlainCache", "can_keep", "use_lm_cache")

logger = logging.getLogger(__name__)

_FAULTS = (OSError, sqlite3.Error, diskcache.Timeout, zlib.error, ValueError)
"""What a folder that is read-only, full, locked or damaged raises; ValueError is JSON that cannot be read."""
_ANSWERS_IN_MEMORY = 10_000
"""DSPy would keep a million, some KB each; those put out are still on disk."""


class PlainCache:
    """JSON values by key in a folder. Where the folder cannot be used there is none: that is said once, and no error.

    Bounded: once `size_limit_mb` MiB are passed, the entries stored longest ago go. Thread-safe, and safe for several
    processes.
    """

    def __init__(self, folder: Path, *, size_limit_mb: int = 512) -> None:
        self._folder = folder
        self._disk: diskcache.Cache | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._disk = diskcache.Cache(
                str(folder), disk=diskcache.JSONDisk, size_limit=size_limit_mb * 2**20, disk_compress_level=1
            )
        except _FAULTS as error:
            _tell(self._folder, error)

    def get(self, key: str) -> Any:
        """Return what is kept under a key, or None."""
        return self._tried(lambda disk: disk.get(key), None)

    def set(self, key: str, value: Any) -> None:
        """Keep a value that is JSON."""
        self._tried(lambda disk: disk.set(key, value), None)

    def __len__(self) -> int:
        return int(self._tried(len, 0))

    def volume(self) -> int:
        """Return the bytes on disk."""
        return int(self._tried(lambda disk: disk.volume(), 0))

    def _tried(self, work: Callable[[diskcache.Cache], Any], otherwise: Any) -> Any:
        if self._disk is None:
            return otherwise
        try:
            return work(self._disk)
        except _FAULTS as error:
            _tell(self._folder, error)
            return otherwise


def use_lm_cache(folder: Path) -> None:
    """Let DSPy keep language models' answers under `folder`, unless a cache was configured for it before.

    DSPy stores them as pickles; they are read back in its restricted mode, which makes plain data and the reply types
    of LiteLLM and OpenAI and nothing else. Its own default would unpickle whatever lies there. Where the folder cannot
    be used they are kept in memory alone.
    """
    import dspy

    if "cache" in vars(dspy):
        return
    options: dict[str, Any] = {"restrict_pickle": True, "memory_max_entries": _ANSWERS_IN_MEMORY}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        dspy.configure_cache(disk_cache_dir=str(folder), **options)
    except _FAULTS as error:
        _tell(folder, error)
        dspy.configure_cache(enable_disk_cache=False, disk_cache_dir=None, **options)


def can_keep(folder: Path) -> bool:
    """Make a folder in the cache; where nothing can be kept there that is said once, and False."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        _tell(folder, error)
        return False
    return True


def _tell(folder: Path, error: Exception) -> None:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    _tell_once(folder.parent, reason)


@functools.cache
def _tell_once(folder: Path, reason: str) -> None:
    logger.warning(
        "cache %r: cannot be used (%s); going on without, everything is worked out anew: mend it, or name another "
        "folder in AGENTICIQA_CACHE_DIR", str(folder), reason,
    )  # fmt: skip
