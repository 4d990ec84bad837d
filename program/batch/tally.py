"""A batch in figures, counted row by row: of any number of rows a few are kept."""

from collections import Counter
from typing import Any

from program.running.row import Row, verdict

__all__ = ("WORST", "Tally")

WORST = 10
_ERRORS = 1000
"""Errors that a summary names; the table has all."""


class Tally:
    """Counts, mean score, images by level, the worst, the first answers, and those that failed.

    `minimum` and `sure` are the gate's.
    """

    def __init__(self, minimum: float | None = None, sure: float | None = None) -> None:
        self._minimum, self._sure, self._sum = minimum, sure, 0.0
        self.counts: Counter[str] = Counter()
        """Images, scored, answered, failed, lm_calls; below and not sure by the gate."""
        self.levels: Counter[str] = Counter()
        self.cost_usd = 0.0
        self.worst: list[Row] = []
        """The rows with the lowest scores, lowest first; rows without a score are left out."""
        self.answers: list[Row] = []
        self.errors: list[Row] = []

    def add(self, row: Row) -> None:
        """Count a row."""
        failed = row.status in {"error", "failed"}
        answered = row.answer is not None and not failed
        # Whole numbers: an empty Counter takes over what it is given, and "False failed" is no count.
        self.counts.update(images=1, scored=int(row.score is not None), answered=int(answered), failed=int(failed))
        self.counts.update(lm_calls=row.lm_calls or 0)
        self.levels.update([row.level] if row.level else [])
        self.cost_usd += row.cost_usd or 0.0
        if row.score is not None:
            self._add_score(row, row.score)
        if answered and len(self.answers) < WORST:
            self.answers.append(row)
        if failed and len(self.errors) < _ERRORS:
            self.errors.append(row)

    @property
    def mean_score(self) -> float | None:
        """Over the scored rows."""
        return self._sum / self.counts["scored"] if self.counts["scored"] else None

    @property
    def below(self) -> int | None:
        """Scores below the minimum; None without one."""
        return None if self._minimum is None else self.counts["under"]

    def summary(self) -> dict[str, Any]:
        """Return the batch in figures as JSON has them; of the errors the first thousand."""
        return {
            **{name: self.counts[name] for name in ("images", "scored", "answered", "failed")},
            "mean_score": self.mean_score,
            "levels": dict(sorted(self.levels.items())),
            "below_minimum": self.below,
            "worst": [row.model_dump() for row in self.worst],
            "errors": [{"id": row.id, "error": row.error} for row in self.errors],
        }

    def _add_score(self, row: Row, score: float) -> None:
        self._sum += score
        if self._minimum is not None:
            self.counts[verdict(row, self._minimum, self._sure)] += 1
            self.counts["under"] += score < self._minimum
        if len(self.worst) < WORST or (score, row.id) < (self.worst[-1].score, self.worst[-1].id):
            self.worst = sorted([*self.worst, row], key=lambda r: (r.score, r.id))[:WORST]
