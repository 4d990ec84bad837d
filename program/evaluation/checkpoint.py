"""A JSONL file of every finished sample, so that a killed evaluation continues where it stopped."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from program.common.errors import InputError
from program.common.linelog import ResumeLog
from program.evaluation.record import SCHEMA_VERSION, Dataset
from program.evaluation.rows import Row

__all__ = ("Checkpoint", "open_checkpoint")

_MEND = "name another file with --checkpoint, or another cache folder (AGENTICIQA_CACHE_DIR)"


class Checkpoint:
    """Rows of an earlier run, and the log that takes those of this one; without a log it remembers nothing."""

    def __init__(self, log: ResumeLog | None = None) -> None:
        self._log = log
        earlier = log.read(Row.model_validate_json) if log is not None else []
        self._rows = {row.id: row for row in earlier}

    def append(self, row: Row) -> None:
        """Write one finished sample; it survives a kill of the process from here on."""
        if self._log is not None:
            self._log.append(row.line())

    def pop(self, sample_id: str) -> Row | None:
        """Return the row of a sample that an earlier run finished, once."""
        return self._rows.pop(sample_id, None)


@contextmanager
def open_checkpoint(
    path: Path | None, dataset: Dataset, context: Mapping[str, Any], *, resume: bool
) -> Iterator[Checkpoint]:
    """Yield the checkpoint in a file, for one writer at a time; in no file where `path` is None.

    Without `resume` an older file is kept beside the new one as `<name>.previous`, unless another run still writes it.
    Raises InputError for a file that cannot be written, or that belongs to another run.
    """
    if path is None:
        yield Checkpoint()
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"checkpoint {str(path)!r}: cannot be written ({error.strerror}); {_MEND}") from error
    header = {
        "checkpoint": "evaluation",
        "schema_version": SCHEMA_VERSION,
        **dataset.model_dump(mode="json"),
        "context": dict(context),
    }
    if not resume:
        with ResumeLog(path, header, mend=_MEND) as log:  # moved only by who holds its lock
            if not log.empty:
                os.replace(path, path.with_name(f"{path.name}.previous"))
    with ResumeLog(path, header, mend=_MEND) as log:
        yield Checkpoint(log)
