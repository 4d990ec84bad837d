"""A file beside the output that remembers every judged image, so that a killed batch goes on where it stopped."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from program.batch.rows import BatchRow
from program.common.linelog import ResumeLog

__all__ = ("Journal", "is_begun")


def is_begun(out: Path) -> bool:
    """Tell whether a run into this output was stopped before its end, so that the same command goes on."""
    return _beside(out).exists()


class Journal(ResumeLog):
    """JSON lines: whose they are, then a row and its image's stamp each. One writer at a time; `finish` removes it."""

    def __init__(self, out: Path, context: Mapping[str, Any]) -> None:
        super().__init__(_beside(out), {"journal": "batch", "context": dict(context)}, mend="give another --out")
        self.done = {row.id: (stamp, row) for stamp, row in self.read(_entry)}
        """What an earlier run finished, by item id: the image's stamp and the row."""

    def add(self, stamp: list[int], row: BatchRow) -> None:
        """Remember one row; it survives a kill of the process from here on."""
        self.append(json.dumps({"stamp": stamp, "row": row.model_dump()}, ensure_ascii=False))

    def finish(self) -> None:
        """Remove the journal: the output holds everything."""
        self.remove()


def _entry(line: bytes) -> tuple[list[int], BatchRow]:
    entry = json.loads(line)
    return list(entry["stamp"]), BatchRow.model_validate(entry["row"])


def _beside(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")
