"""The rows of a batch that is being judged, on disk: found again by their items' ids, read back in the items' order."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from program.batch.inputs import Item
from program.batch.rows import BatchRow
from program.common.linelog import ResumeLog
from program.common.seen import digest_of, temporary_database

__all__ = ("Journal",)

_BY_ID = "CREATE TABLE by_id (id BLOB PRIMARY KEY, start INTEGER) WITHOUT ROWID"
_BY_PLACE = "CREATE TABLE by_place (place INTEGER PRIMARY KEY, start INTEGER)"


class Journal(ResumeLog):
    """A log with a row and its image's stamp on each line; where each line starts is kept apart, in a temporary file.

    `first_open` is the first place whose item has no row yet.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], *, mend: str) -> None:
        super().__init__(path, header, mend=mend)
        self._index = temporary_database(_BY_ID, _BY_PLACE)
        self._lines = path.open("rb")
        self._ahead: set[int] = set()
        self.first_open = 0

    def resume(self) -> int:
        """Take in what an earlier run judged, and return for how many images that is; call it once, first."""
        # Lines are read from here on only where they are whole: the first one is checked before any other is used.
        start, count = len(self._lines.readline()), 0
        for length, identity, status in self.scan(_entry):
            digest = digest_of(identity)
            if status != "error":
                count += self._index.execute("REPLACE INTO by_id VALUES (?, ?)", (digest, start)).rowcount
            start += length
        return count

    def find(self, item: Item, place: int) -> BatchRow | None:
        """Return the row of an item that was judged before, unless its image has changed since; it takes this place."""
        found = self._index.execute("SELECT start FROM by_id WHERE id = ?", (digest_of(item.id),)).fetchone()
        if found is None:
            return None
        entry = self._at(found[0])
        if entry["stamp"] not in (None, _stamp(item)):
            return None
        self._enter(place, found[0])
        return BatchRow.model_validate(entry["row"])

    def keep(self, item: Item, place: int, row: BatchRow) -> None:
        """Write down the row of an item."""
        start = os.fstat(self._lines.fileno()).st_size
        self.append(json.dumps({"stamp": _stamp(item), "row": row.model_dump()}, ensure_ascii=False))
        self._enter(place, start)

    def adopt(self, row: BatchRow) -> None:
        """Write down a row that another run of the same work left elsewhere, before `resume`."""
        self.append(json.dumps({"stamp": None, "row": row.model_dump()}, ensure_ascii=False))

    def rows(self, first: int = 0, most: int = -1) -> Iterator[BatchRow]:
        """Yield at most so many rows (-1: all) from one place on, in order."""
        cursor = self._index.cursor()
        wanted = "SELECT start FROM by_place WHERE place >= ? ORDER BY place LIMIT ?"
        for (start,) in cursor.execute(wanted, (first, most)):
            yield BatchRow.model_validate(self._at(start)["row"])

    def close(self) -> None:
        """Let another writer in."""
        self._lines.close()
        self._index.close()
        super().close()

    def _at(self, start: int) -> dict[str, Any]:
        self._lines.seek(start)
        entry: dict[str, Any] = json.loads(self._lines.readline())
        return entry

    def _enter(self, place: int, start: int) -> None:
        self._index.execute("REPLACE INTO by_place VALUES (?, ?)", (place, start))
        self._ahead.add(place)
        while self.first_open in self._ahead:
            self._ahead.remove(self.first_open)
            self.first_open += 1


def _entry(line: bytes) -> tuple[int, str, str]:
    entry = json.loads(line)
    row = BatchRow.model_validate(entry["row"])
    return len(line), row.id, row.status


def _stamp(item: Item) -> list[int]:
    """Return what changes when an image or its reference does: sizes and times in ns; zeros where there is no file."""
    stamp: list[int] = []
    for place in (item.image, item.reference):
        try:
            facts = place.stat() if isinstance(place, Path) else None
        except (OSError, ValueError):  # ValueError: a name that no file can have
            facts = None
        stamp += [facts.st_size, facts.st_mtime_ns] if facts else [0, 0]
    return stamp
