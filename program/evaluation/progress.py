"""What the progress of an evaluation says beside its count: rate, failures and a running SRCC."""

import time
from array import array

from program.evaluation.metrics import srcc
from program.evaluation.rows import Row

__all__ = ("RunningFacts",)


class RunningFacts:
    """Counts finished samples; the SRCC is recomputed only as the samples grow by a tenth."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._fresh = self._failed = 0
        self._truth, self._predicted = array("d"), array("d")
        self._next_srcc, self._srcc = 10, float("nan")

    def add(self, row: Row, *, fresh: bool) -> str:
        """Count one finished sample and return the facts; `fresh` ones were run now and count for the rate."""
        self._fresh += fresh
        self._failed += row.status == "failed"
        if row.counts and isinstance(row.truth, float) and isinstance(row.predicted, float):
            self._truth.append(row.truth)
            self._predicted.append(row.predicted)
            if len(self._truth) >= self._next_srcc:
                self._next_srcc = int(self._next_srcc * 1.1) + 1
                self._srcc = srcc(self._truth[:], self._predicted[:])  # copies, as an exported array could not grow
        seconds = time.perf_counter() - self._started
        parts = [f"{self._fresh / seconds:.1f}/s" if seconds > 0 else ""]
        if self._failed:
            parts.append(f"{self._failed} failed")
        if self._srcc == self._srcc:
            parts.append(f"SRCC {self._srcc:.3f}")
        return " · ".join(filter(None, parts))
