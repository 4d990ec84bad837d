"""Disk caches that hold JSON only: nothing read from them is ever unpickled."""

from pathlib import Path

import diskcache

__all__ = ("open_cache",)


def open_cache(folder: Path, *, size_limit_mb: int = 512) -> diskcache.Cache:
    """Open (or make) a bounded JSON cache at `folder`; safe for several threads and processes.

    Keys and values must be JSON-serializable. The least recently stored entries go first
    once `size_limit_mb` MiB are passed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return diskcache.Cache(
        str(folder), disk=diskcache.JSONDisk, size_limit=size_limit_mb * 2**20, disk_compress_level=1
    )
