"""What grows with the number of images, on disk instead of in memory."""

import hashlib
import sqlite3

__all__ = ("Seen", "digest_of", "temporary_database")

_CACHE_KB = 16_384


def temporary_database(*tables: str) -> sqlite3.Connection:
    """Return a database on disk that goes with its connection, and takes 16 MiB of memory at most. One thread's."""
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    database.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
    for table in tables:
        database.execute(table)
    database.execute("BEGIN")
    return database


def digest_of(text: str) -> bytes:
    """Return the 16 bytes that stand for a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Seen:
    """The texts that were added; of each 16 bytes are kept, in a temporary file once there are many. One thread."""

    def __init__(self) -> None:
        self._ids = temporary_database("CREATE TABLE ids (id BLOB PRIMARY KEY) WITHOUT ROWID")

    def add(self, text: str) -> bool:
        """Add a text; tell whether it is new."""
        return self._ids.execute("INSERT OR IGNORE INTO ids VALUES (?)", (digest_of(text),)).rowcount == 1

    def __contains__(self, text: str) -> bool:
        return self._ids.execute("SELECT 1 FROM ids WHERE id = ?", (digest_of(text),)).fetchone() is not None

    def close(self) -> None:
        """Forget them."""
        self._ids.close()
