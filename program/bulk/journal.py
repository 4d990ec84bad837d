"""A file beside the output that remembers every judged image, so that a killed batch goes on where it stopped."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import ValidationError

from program.bulk.rows import BatchRow
from program.errors import InputError
from program.linelog import LineLog

__all__ = ("Journal", "is_begun")


def is_begun(out: Path) -> bool:
    """Tell whether a run into this output was stopped before its end, so that the same command goes on."""
    return _beside(out).exists()


class Journal:
    """JSON lines: whose they are, then a row and its image's stamp each. One writer at a time; `finish` removes it."""

    def __init__(self, out: Path, context: Mapping[str, Any]) -> None:
        self.path = _beside(out)
        self._header = {"journal": "batch", "context": dict(context)}
        self.done: dict[str, tuple[list[int], BatchRow]] = {}
        """What an earlier run finished, by item id: the image's stamp and the row."""
        self._log: LineLog | None = None

    def __enter__(self) -> "Journal":
        self._log = LineLog(self.path, mend="give another --out")
        try:
            number = 0
            for number, line in enumerate(self._log.lines(), 1):
                if number == 1:
                    self._check(line)
                else:
                    self._remember(line)
            if not number:
                self._log.clear()
                self._line(self._header)
        except BaseException:
            self._log.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._log is not None:
            self._log.close()

    def append(self, stamp: list[int], row: BatchRow) -> None:
        """Remember one row; it survives a kill of the process from here on."""
        self._line({"stamp": stamp, "row": row.model_dump()})

    def finish(self) -> None:
        """Remove the journal: the output holds everything."""
        self.__exit__(None, None, None)
        self.path.unlink(missing_ok=True)

    def _line(self, content: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.append(json.dumps(content, ensure_ascii=False))

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


def _beside(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")
