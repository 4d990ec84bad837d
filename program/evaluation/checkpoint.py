"""A JSONL file that remembers every finished sample, so that a killed evaluation continues where it stopped."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import ValidationError

from program.errors import InputError
from program.evaluation.record import SCHEMA_VERSION, Dataset
from program.evaluation.rows import Row
from program.linelog import LineLog

__all__ = ("Checkpoint",)

_MEND = "name another file with --checkpoint, or another cache folder (AGENTICIQA_CACHE_DIR)"


class Checkpoint:
    """Rows on disk: a header line that says whose they are, then one line per sample.

    Without a path it remembers nothing. One writer at a time. Without `resume` an existing file is kept
    beside the new one as `<name>.previous`.
    """

    def __init__(
        self, path: Path | None, dataset: Dataset, context: Mapping[str, Any], *, resume: bool = False
    ) -> None:
        self._path = path
        self._header = {
            "checkpoint": "evaluation",
            "schema_version": SCHEMA_VERSION,
            **dataset.model_dump(mode="json"),
            "context": json.loads(json.dumps(dict(context))),
        }
        self._log: LineLog | None = None
        self._resume = resume
        self._done: dict[str, bytes] = {}
        """Rows of an earlier run as they were written, by sample id."""

    def __enter__(self) -> "Checkpoint":
        if self._path is None:
            return self
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if not self._resume and self._path.exists():
                os.replace(self._path, self._path.with_name(self._path.name + ".previous"))
        except OSError as error:
            fault = f"cannot be written ({error.strerror})"
            raise InputError(f"checkpoint {str(self._path)!r}: {fault}; {_MEND}") from error
        self._log = LineLog(self._path, mend=_MEND)
        try:
            self._read(self._log)
        except BaseException:
            self._log.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._log is not None:
            self._log.close()

    def append(self, row: Row) -> None:
        """Write one finished sample; it survives a kill of the process from here on."""
        if self._log is not None:
            self._log.append(row.line().decode("utf-8"))

    def pop(self, sample_id: str) -> Row | None:
        """Return the row of a sample that an earlier run finished, once."""
        line = self._done.pop(sample_id, None)
        return None if line is None else Row.model_validate_json(line)

    def _read(self, log: LineLog) -> None:
        if log.empty:
            log.append(json.dumps(self._header))
            return
        number = 0
        for number, line in enumerate(log.lines(), 1):
            if number == 1:
                self._check_header(line)
            else:
                self._done[self._id(line, number)] = line
        if not number:  # no whole line: not a file of ours
            self._check_header(b"")

    def _id(self, line: bytes, number: int) -> str:
        try:
            return Row.model_validate_json(line).id
        except ValidationError:
            raise InputError(
                f"checkpoint {str(self._path)!r}, line {number}: not a sample's row; "
                "remove that line, or start afresh without resuming"
            ) from None

    def _check_header(self, line: bytes) -> None:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("checkpoint") != "evaluation":
            raise InputError(f"checkpoint {str(self._path)!r} is not an evaluation's checkpoint; name another file")
        mine, theirs = _flat(self._header), _flat(found)
        for key in sorted({*mine, *theirs}):
            if mine.get(key) != theirs.get(key):
                raise InputError(
                    f"checkpoint {str(self._path)!r} belongs to another run ({key}: {theirs.get(key)!r} there, "
                    f"{mine.get(key)!r} here); name another file, or start afresh without resuming"
                )


def _flat(header: Mapping[str, Any]) -> dict[str, Any]:
    context = header.get("context") or {}
    return {key: value for key, value in header.items() if key != "context"} | {
        f"context.{key}": value for key, value in context.items()
    }
