"""Files that are there whole or not at all, and a lock between processes. Needs the standard library alone."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = (
    "CONFIGS", "keep_private", "lock_file", "locked", "remove_database", "whole_file", "write_whole",
)  # fmt: skip

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
"""What the program ships with, found by its place: a working folder may hold a package `configs` of its own."""


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the path of a new file that takes the name `path` where the block ends well, else goes; or OSError."""
    partial = path.with_name(f".{path.name[:200]}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, whole or not at all; texts as UTF-8, line ends as given. OSError where it cannot be written."""
    with whole_file(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process is in a block of the same path. The file stays; it holds nothing.

    OSError where it cannot be written. Does not wait where the system has no such locks (Windows).
    """
    with path.open("ab") as file:
        lock_file(file, wait=True)
        yield


def keep_private(path: Path) -> None:
    """Let the owner alone read a file, which is made where there is none, or a folder; nothing where that cannot be."""
    with contextlib.suppress(OSError):
        if not path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        elif path.stat().st_mode & 0o077:
            path.chmod(0o700 if path.is_dir() else 0o600)


def remove_database(path: Path) -> None:
    """Remove an SQLite file with what a killed process left beside it, which would be taken for the next one's."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def lock_file(file: IO[bytes], *, wait: bool) -> None:
    """Lock an open file until it is closed, if the system can; OSError where another has it and `wait` is False."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
