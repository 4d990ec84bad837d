"""Files of lines that only grow, for work that may be killed: each is on disk before the next."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeVar

from program.common.errors import InputError
from program.common.files import check_plain, digest_of, lock_file, temporary_database
from program.common.request import Request
from program.running.row import Row

R = TypeVar("R", bound=Row)

_AFRESH = "remove it to start afresh"


class LineLog:
    """Whole lines, but for half a one that a kill left at the end; one writer at a time."""

    def __init__(self, path: Path, *, mend: str, name: str = "") -> None:
        """Open or make the file and its folder, for this writer alone where the system has locks.

        `mend` is what errors tell the user to do, `name` what they call the file where it stands
        for something else. Raises InputError where it cannot be written or another run writes it,
        and for a link or a pipe.
        """
        self.path, self._mend, self._name = path, mend, name or f"file {str(path)!r}"
        check_plain(path, f"file {str(path)!r}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = path.open("ab", buffering=0)
        except OSError as error:
            raise self._fault(error) from error
        try:
            self._lock()
        except BaseException:
            self._file.close()
            raise

    @property
    def empty(self) -> bool:
        """Whether nothing was ever written."""
        return not self.path.stat().st_size

    def lines(self) -> Iterator[bytes]:
        """Yield the whole lines, and cut off half a line behind them, where there are any."""
        whole = 0
        with self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                yield line
        if 0 < whole < self.path.stat().st_size:
            os.truncate(self.path, whole)

    def append(self, line: str) -> None:
        """Write one line, which survives a kill. Raises InputError, on a full disk say."""
        left = memoryview(f"{line}\n".encode())
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._fault(error) from error

    def close(self) -> None:
        """Let another writer in."""
        self._file.close()

    def remove(self) -> None:
        """Remove the file, and let another writer make it again."""
        if os.name == "nt":  # removes no open file
            self.close()
        self.path.unlink(missing_ok=True)
        self.close()

    def _lock(self) -> None:
        try:
            lock_file(self._file, wait=False)
            # Another writer may have removed or renamed the file between its opening and its lock.
            is_alone = os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except (BlockingIOError, FileNotFoundError):
            is_alone = False
        except OSError:  # a file system without locks
            return
        if not is_alone:
            raise InputError(f"{self._name}: another run writes it; wait, or {self._mend}")

    def _fault(self, error: OSError) -> InputError:
        return InputError(f"{self._name}: cannot be written ({error.strerror}); {self._mend}")


_BY_ID = "CREATE TABLE by_id (id BLOB PRIMARY KEY, start INTEGER) WITHOUT ROWID"
_BY_PLACE = "CREATE TABLE by_place (place INTEGER PRIMARY KEY, start INTEGER)"


class Journal(LineLog, Generic[R]):
    """The log of a run: whose work it holds, as one JSON object, then a row on each line.

    Beside each row is what changes when its request does. Rows are found again by their requests'
    ids and read back in the requests' order; where each line starts is kept apart, in a temporary
    file. `first_open` is the first place whose request has no row yet.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], rows: type[R], *, mend: str) -> None:
        """Open or make the file as LineLog does; the first entry of `header` says its kind."""
        super().__init__(path, mend=mend)
        self._header: dict[str, Any] = json.loads(json.dumps(header))
        self._kind, self._value = next(iter(self._header.items()))
        self._rows = rows
        self._index = temporary_database(_BY_ID, _BY_PLACE)
        self._lines = path.open("rb")
        self._ahead: set[int] = set()
        self.first_open = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin_again(self) -> None:
        """Forget what is there. Raises InputError for a file of others."""
        if not self.empty:
            self._parsed(next(self.lines(), None))
            os.truncate(self.path, 0)

    def resume(self) -> int:
        """Take in what an earlier run finished, and return how many requests; call it once, first.

        Requests whose rows have an error, or of which no reply could be read, are tried again.
        Raises InputError for another file, a damaged line, or a log of other work, with the first
        difference.
        """
        start = number = count = 0
        for number, line in enumerate(self.lines(), 1):
            if number == 1:
                self._check(line)
            elif (identity := self._finished(line, number)) is not None:
                values = digest_of(identity), start
                count += self._index.execute("REPLACE INTO by_id VALUES (?, ?)", values).rowcount
            start += len(line)
        if not number:
            self._parsed(None)
            os.truncate(self.path, 0)
            self.append(json.dumps(self._header))
        return count

    def find(self, request: Request, place: int) -> R | None:
        """Return a request's row from before, unless it has changed since; it takes this place."""
        wanted = "SELECT start FROM by_id WHERE id = ?"
        line = self._index.execute(wanted, (digest_of(request.id),)).fetchone()
        if line is None:
            return None
        (start,) = line
        entry = self._at(start)
        if entry["stamp"] not in (None, request.stamp()):
            return None
        self._enter(place, start)
        return self._rows.model_validate(entry["row"])

    def keep(self, request: Request, place: int, row: R) -> None:
        """Write down the row of a request."""
        start = os.fstat(self._lines.fileno()).st_size
        self._write(request.stamp(), row)
        self._enter(place, start)

    def adopt(self, row: R) -> None:
        """Write down a row that another run of the same work left elsewhere, before `resume`."""
        self._write(None, row)

    def rows(self, first: int = 0, most: int = -1) -> Iterator[R]:
        """Yield at most so many rows (-1: all) from one place on, in order."""
        cursor = self._index.cursor()
        wanted = "SELECT start FROM by_place WHERE place >= ? ORDER BY place LIMIT ?"
        for (start,) in cursor.execute(wanted, (first, most)):
            yield self._rows.model_validate(self._at(start)["row"])

    def close(self) -> None:
        """Let another writer in."""
        self._lines.close()
        self._index.close()
        super().close()

    def _finished(self, line: bytes, number: int) -> str | None:
        """Return whose row a line holds; None for one that is to be tried again."""
        try:
            row = self._rows.model_validate(json.loads(line)["row"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            mend = f"{_AFRESH}, or {self._mend}"
            raise InputError(f"{self._name}, line {number}: damaged; {mend}") from error
        if row.status == "error" or row.is_unread:
            return None
        return row.id

    def _write(self, stamp: list[Any] | None, row: R) -> None:
        entry = {"stamp": stamp, "row": row.model_dump(mode="json", exclude_defaults=True)}
        self.append(json.dumps(entry, ensure_ascii=False))

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

    def _parsed(self, line: bytes | None) -> dict[str, Any]:
        """Return the header in the first line, empty for half a one; InputError for another file."""
        if line is None:  # a kill leaves half a header, other files do not
            start = json.dumps({self._kind: self._value})[:-1].encode()
            half = self.path.read_bytes()
            if half.startswith(start) or start.startswith(half):
                return {}
        else:
            with suppress(ValueError, RecursionError):
                other = json.loads(line)
                if isinstance(other, dict) and other.get(self._kind) == self._value:
                    return other
        raise InputError(f"{self._name}: is no {self._value} {self._kind}; {self._mend}")

    def _check(self, line: bytes) -> None:
        other = self._parsed(line)
        mine, theirs = dict(dotted_items(self._header)), dict(dotted_items(other))
        for key in sorted({*mine, *theirs}):
            if mine.get(key) != theirs.get(key):
                difference = f"{key}: {theirs.get(key)!r} there, {mine.get(key)!r} here"
                fault = f"belongs to another run ({difference})"
                raise InputError(f"{self._name}: {fault}; {_AFRESH}, or {self._mend}")


def dotted_items(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings under dotted names; an empty mapping is a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from dotted_items(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
