"""A file of lines that only grows, for work that may be killed: every line is on disk before the next is begun."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from program.errors import InputError

__all__ = ("LineLog",)


class LineLog:
    """Whole lines, but for half a one that a kill left at the end. One writer at a time where the system has locks."""

    def __init__(self, path: Path, *, mend: str) -> None:
        """Open or make the file, for this writer alone. `mend` is what errors tell the user to do.

        Raises InputError where it cannot be written or another process writes it.
        """
        self.path, self._mend = path, mend
        try:
            self._file: IO[bytes] = path.open("ab", buffering=0)
        except OSError as error:
            raise self._fault(error) from error
        try:
            self._lock()
        except BaseException:
            self.close()
            raise

    @property
    def empty(self) -> bool:
        """Whether nothing was ever written."""
        return not self.path.stat().st_size

    def lines(self) -> Iterator[bytes]:
        """Yield the whole lines that are there; half a line behind them is cut off in the end.

        Without any whole line nothing is cut: it may be a file of another kind.
        """
        whole = 0
        with self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                yield line
        if 0 < whole < self.path.stat().st_size:
            os.truncate(self.path, whole)

    def clear(self) -> None:
        """Begin anew."""
        os.truncate(self.path, 0)

    def append(self, line: str) -> None:
        """Write one line; it survives a kill of the process from here on. Raises InputError, on a full disk say."""
        left = memoryview(f"{line}\n".encode())
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._fault(error) from error

    def close(self) -> None:
        """Let another writer in."""
        self._file.close()

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"file {str(self.path)!r}: another run writes it; wait, or {self._mend}") from error

    def _fault(self, error: OSError) -> InputError:
        return InputError(f"file {str(self.path)!r}: cannot be written ({error.strerror}); {self._mend}")
