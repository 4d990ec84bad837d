"""The worst misses of a run: only they keep the program's reasoning and evidence."""

import hashlib
import heapq
from collections.abc import Iterable

from program.evaluation.rows import Row

__all__ = ("WORST", "Misses", "worst")

WORST = 12


class Misses:
    """Tells, row by row, whether it is among the worst so far; of n rows in random order about 12 ln n are."""

    def __init__(self, keep: int = WORST) -> None:
        self._keep = keep
        self._heaps: dict[str, list[tuple[float, str]]] = {}

    def trimmed(self, row: Row) -> Row:
        """Return the row, without its notes unless it is among the worst of its task so far."""
        size = _size(row)
        if size is None:
            return row.model_copy(update={"notes": None}) if row.notes is not None else row
        heap = self._heaps.setdefault(row.task, [])
        entry = (size, row.id)
        if len(heap) < self._keep:
            heapq.heappush(heap, entry)
            return row
        dropped = heapq.heappushpop(heap, entry)
        return row.model_copy(update={"notes": None}) if dropped == entry else row


def worst(rows: Iterable[Row], task: str, keep: int = WORST) -> list[Row]:
    """Return the worst misses of a task, worst first.

    Scores: the largest absolute errors. Multiple choice: wrong answers, drawn by a hash of their ids, as none is
    worse than another.
    """
    missed = ((size, row.id, row) for row in rows if row.task == task and (size := _size(row)) is not None)
    return [row for _, _, row in heapq.nlargest(keep, missed, key=lambda entry: entry[:2])]


def _size(row: Row) -> float | None:
    """Return how bad a miss is, or None for none."""
    if not row.counts or row.predicted is None:
        return None
    if row.task == "scoring" and not isinstance(row.truth, str) and not isinstance(row.predicted, str):
        return abs(float(row.predicted) - float(row.truth or 0.0))
    if row.task == "mcq" and row.predicted != row.truth:
        return int.from_bytes(hashlib.blake2b(row.id.encode(), digest_size=4).digest(), "big") / 2**32
    return None
