"""Disk caches that hold plain data only: nothing read from them can run code."""

from pathlib import Path

import diskcache

__all__ = ("open_cache", "use_lm_cache")


def open_cache(folder: Path, *, size_limit_mb: int = 512) -> diskcache.Cache:
    """Open (or make) a bounded JSON cache at `folder`; safe for several threads and processes.

    Keys and values must be JSON-serializable. The least recently stored entries go first
    once `size_limit_mb` MiB are passed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return diskcache.Cache(
        str(folder), disk=diskcache.JSONDisk, size_limit=size_limit_mb * 2**20, disk_compress_level=1
    )


def use_lm_cache(folder: Path) -> None:
    """Let DSPy keep language models' answers under `folder`, unless a cache was configured for it before.

    DSPy stores them as pickles; they are read back in its restricted mode, which makes plain data and the reply types
    of LiteLLM and OpenAI and nothing else. Its own default would unpickle whatever lies there.
    """
    import dspy

    if "cache" not in vars(dspy):
        dspy.configure_cache(disk_cache_dir=str(folder), restrict_pickle=True)
