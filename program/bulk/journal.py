"""A file beside the output that remembers every judged image, so that a killed batch goes on where it stopped."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from pydantic import ValidationError

from program.bulk.rows import BatchRow
from program.errors import InputError

__all__ = ("Journal",)


class Journal:
    """JSON lines: whose they are, then a row and its image's stamp each; flushed at once, so a kill loses none.

    One writer at a time, held by a lock where the system has one. `finish` removes it.
    """

    def __init__(self, out: Path, context: Mapping[str, Any]) -> None:
        self.path = out.with_name(f"{out.name}.partial")
        self._header = {"journal": "batch", "context": dict(context)}
        self.done: dict[str, tuple[list[int], BatchRow]] = {}
        """What an earlier run finished, by item id: the image's stamp and the row."""
        self._file: IO[str] | None = None

    def __enter__(self) -> "Journal":
        try:
            self._file = self.path.open("a+", encoding="utf-8", newline="\n")
        except OSError as error:
            fault = f"cannot be written ({error.strerror})"
            raise InputError(f"file {str(self.path)!r}: {fault}; give another --out") from error
        try:
            self._lock()
            if self.path.stat().st_size:
                self._read()
            if not self.path.stat().st_size:
                self._line(self._header)
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def append(self, stamp: list[int], row: BatchRow) -> None:
        """Remember one row; it survives a kill of the process from here on."""
        self._line({"stamp": stamp, "row": row.model_dump()})

    def finish(self) -> None:
        """Remove the journal: the output holds everything."""
        self.__exit__(None, None, None)
        self.path.unlink(missing_ok=True)

    def _line(self, content: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(content, ensure_ascii=False) + "\n")
            self._file.flush()

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows
            return
        if self._file is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"file {str(self.path)!r}: another run writes it; wait, or give another --out") from error

    def _read(self) -> None:
        whole = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file):
                if not line.endswith(b"\n"):  # a kill can leave half a line at the end
                    break
                whole += len(line)
                if number == 0:
                    self._check(line)
                else:
                    self._remember(line)
        if whole < self.path.stat().st_size:
            os.truncate(self.path, whole)

    def _check(self, line: bytes) -> None:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if found != json.loads(json.dumps(self._header)):
            raise InputError(
                f"file {str(self.path)!r}: was begun with another program, model, question or settings; remove it to "
                "start afresh, or give another --out"
            )

    def _remember(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            row = BatchRow.model_validate(entry["row"])
            self.done[row.id] = (list(entry["stamp"]), row)
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise InputError(f"file {str(self.path)!r}: damaged; remove it to start afresh") from error
