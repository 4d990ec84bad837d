"""Disk caches that hold plain data: nothing read from them runs code, and none is needed."""

import contextlib
import functools
import json
import logging
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from program.common.errors import one_line
from program.common.files import keep_private, remove_database
from program.common.keys import without_keys

if TYPE_CHECKING:
    from dspy.clients import Cache

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_FAULTS = (OSError, sqlite3.Error, zlib.error, ValueError, RecursionError)
"""What a folder that is read-only, full, locked or damaged raises; ValueError is broken JSON."""
_ANSWERS_IN_MEMORY = 10_000
"""DSPy would keep a million, some KB each; those put out are still on disk."""
_TABLE = "CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, value BLOB NOT NULL)"
"""Name it again with other columns."""
_SIZE = (
    "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
)
_PATIENCE_S = 10.0
"""How long another process may hold the file."""


class PlainCache:
    """JSON values by key in a folder; none, and no error, where the folder cannot be used.

    Bounded: over `size_limit_mb` MiB the entries stored longest ago go. A connection lasts for one
    operation, so threads, processes and forks need no care, and a kill loses nothing that was
    stored. A damaged file is made again.
    """

    def __init__(self, folder: Path, *, size_limit_mb: int = 512) -> None:
        self._file: Path | None = folder / "cache.db"
        self._limit, self._private = size_limit_mb * 2**20, False
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._file = None
            _tell(folder, error)

    def get(self, key: str) -> Any:
        """Return what is stored under a key, or None."""
        return self.get_all([key]).get(key)

    def get_all(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return what is stored under some keys, by key; nothing of those that have none."""

        def read(database: sqlite3.Connection) -> dict[str, Any]:
            found = {}
            for key in keys:
                row = database.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
                if row:
                    found[key] = json.loads(zlib.decompress(row[0]))
            return found

        return self._tried(read, {})

    def set(self, key: str, value: Any) -> None:
        """Store a value that is JSON."""
        self.set_all({key: value})

    def set_all(self, values: Mapping[str, Any]) -> None:
        """Store values that are JSON, by key."""
        rows = [(key, _packed(value)) for key, value in values.items()]

        def write(database: sqlite3.Connection) -> None:
            database.execute("BEGIN IMMEDIATE")
            database.executemany("REPLACE INTO entries (key, value) VALUES (?, ?)", rows)
            while database.execute(_SIZE).fetchone()[0] > self._limit:
                (first,) = database.execute("SELECT min(id) FROM entries").fetchone()
                (last,) = database.execute("SELECT max(id) FROM entries").fetchone()
                if first is None:
                    break
                database.execute("DELETE FROM entries WHERE id <= ?", (first + (last - first) // 32,))
            database.execute("COMMIT")

        self._tried(write, None)

    def __len__(self) -> int:
        return self._tried(lambda database: int(database.execute("SELECT count(*) FROM entries").fetchone()[0]), 0)

    def _tried(self, work: Callable[[sqlite3.Connection], _T], otherwise: _T) -> _T:
        if self._file is None:
            return otherwise
        try:
            if not self._private:
                keep_private(self._file)
                self._private = True
            with contextlib.closing(sqlite3.connect(self._file, timeout=_PATIENCE_S, isolation_level=None)) as database:
                # Not waiting for the disk is much faster. A kill loses nothing by it; a power cut may damage the file.
                database.execute("PRAGMA synchronous = OFF")
                database.execute(_TABLE)
                return work(database)
        except _FAULTS as error:
            self._mend(self._file, error)
            return otherwise

    def _mend(self, file: Path, error: Exception) -> None:
        """Remove a damaged file; say anything else, and wait no second time for a locked one."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the bits above are detail
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            with contextlib.suppress(OSError):
                remove_database(file)
                self._private = False
                logger.warning("cache %r: was damaged (%s); a new one is started", str(file.parent), error)
                return
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}:
            self._file = None
        _tell(file.parent, error)


def _packed(value: Any) -> bytes:
    # Numbers hold nothing that repeats: to look for it takes three times as long and saves no room.
    packer = zlib.compressobj(1, strategy=zlib.Z_HUFFMAN_ONLY)
    return packer.compress(json.dumps(value).encode()) + packer.flush()


@functools.cache
def _answer_cache() -> type["Cache"]:
    """Return the class of the program's own cache of DSPy's; to define it loads DSPy, slowly."""
    from dspy.clients import Cache

    class AnswerCache(Cache):
        """Answers of language models, without the keys that a service repeats."""

        def put(self, request: dict[str, Any], value: Any, *ignored: Any, **options: Any) -> None:
            """Keep an answer."""
            super().put(request, without_keys(value), *ignored, **options)

        def cache_key(self, request: dict[str, Any], *ignored: Any, **options: Any) -> str:
            """Return the key of an answer, and note it where somebody wants to."""
            key: str = super().cache_key(request, *ignored, **options)
            if (noted := _NOTED.get()) is not None:
                noted.append(key)
            return key

        def forget(self, key: str) -> None:
            """Remove an answer."""
            self.memory_cache.pop(key, None)
            if self.enable_disk_cache:
                self.disk_cache.delete(key)

    return AnswerCache


_NOTED: ContextVar[list[str] | None] = ContextVar("noted_answers", default=None)


@contextmanager
def noted_answers() -> Iterator[list[str]]:
    """Collect the keys of the models' answers that are looked up or kept inside the block."""
    keys: list[str] = []
    token = _NOTED.set(keys)
    try:
        yield keys
    finally:
        _NOTED.reset(token)


def forget_answers(keys: Iterable[str]) -> None:
    """Let models be asked again for these answers, as they could not be read; a user's own cache keeps them."""
    import dspy

    forget = getattr(vars(dspy).get("cache"), "forget", None)
    if forget is not None:
        for key in keys:
            forget(key)


def use_lm_cache(folder: Path) -> None:
    """Let DSPy keep models' answers under `folder`, unless a cache was configured before.

    The cache is one as DSPy's documentation has users write them. It stores pickles; they are read
    back in DSPy's restricted mode, which makes plain data and the reply types of LiteLLM and OpenAI
    and nothing else. DSPy's own default would unpickle whatever lies there. Where the folder cannot
    be used answers are kept in memory alone.
    """
    import dspy
    from dspy.clients import DISK_CACHE_LIMIT

    if "cache" in vars(dspy):
        return
    AnswerCache: Any = _answer_cache()  # noqa: N806 (a class)
    options = {"enable_memory_cache": True, "memory_max_entries": _ANSWERS_IN_MEMORY, "restrict_pickle": True}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        keep_private(folder)
        cache = AnswerCache(True, disk_cache_dir=str(folder), disk_size_limit_bytes=DISK_CACHE_LIMIT, **options)
    except _FAULTS as error:
        _tell(folder, error)
        cache = AnswerCache(False, disk_cache_dir=None, **options)
    dspy.cache = cache


def _tell(folder: Path, error: Exception) -> None:
    _tell_once(folder.parent, getattr(error, "strerror", None) or one_line(error))


@functools.cache
def _tell_once(folder: Path, reason: str) -> None:
    mend = "everything is worked out again: check its permissions, or set AGENTICIQA_CACHE_DIR to another"
    logger.warning("cache %r: cannot be used (%s) and is left out; %s", str(folder), reason, mend)
