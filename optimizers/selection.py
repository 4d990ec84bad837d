"""Which candidate is recommended: ranked on validation by SRCC and accuracy, never on test."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from optimizers.bench import Candidate
from program.evaluation.record import EvaluationRecord

__all__ = ("Ranked", "Ranking", "validation_score")


PLCC_STEP = 0.005
"""Smaller differences in PLCC decide nothing: RMSE does then."""


@dataclass(frozen=True)
class Ranked:
    """A candidate with its validation record."""

    candidate: Candidate
    record: EvaluationRecord


class Ranking:
    """Candidates in the order of their validation scores; the first one added is the uncompiled program.

    Ties go to the earlier candidate: an optimizer has to show that it helped. A fitted fusion that leaves every rank
    as it was is told from its base by PLCC, in steps of 0.005, then by RMSE.
    """

    def __init__(self, judge: Callable[[Candidate], EvaluationRecord], *, keep: int) -> None:
        self._judge, self._keep = judge, keep
        self._ranked: list[Ranked] = []

    def add(self, proposed: Sequence[Candidate]) -> Ranked:
        """Judge the `keep` best of the proposed candidates by their search score, and return the best one so far."""
        by_search = sorted(proposed, key=lambda c: -(c.search_score if c.search_score is not None else 2.0))
        self._ranked += [Ranked(c, self._judge(c)) for c in by_search[: self._keep]]
        return self.best

    @property
    def uncompiled(self) -> Ranked:
        """The first one."""
        return self._ranked[0]

    @property
    def best(self) -> Ranked:
        """The best one so far."""
        return max(self._ranked, key=lambda r: _order(r.record))

    def table(self) -> dict[str, dict[str, Any]]:
        """Return each candidate's validation score, search score and figures, best first."""
        ordered = sorted(self._ranked, key=lambda r: _order(r.record), reverse=True)
        return {
            r.candidate.name: {
                "score": validation_score(r.record),
                "search": r.candidate.search_score,
                **{str(name): figure.value for name, figure in r.record.figures.items()},
            }
            for r in ordered
        }


def validation_score(record: EvaluationRecord) -> float:
    """Return the mean of SRCC and accuracy, weighted by their numbers of samples; whichever the data has.

    An undefined SRCC (constant answers) counts as 0: such a program orders nothing. So does each failed sample: a
    program must not gain by failing on the hard ones.
    """
    parts = [(f.value, f.n, f.asked or f.n) for f in (record.srcc, record.accuracy) if f is not None]
    total = sum(asked for _, _, asked in parts)
    return sum((value or 0.0) * n for value, n, _ in parts) / total if total else 0.0


def _order(record: EvaluationRecord) -> tuple[float, float, float]:
    plcc = record.plcc.value if record.plcc is not None and record.plcc.value is not None else 0.0
    rmse = record.rmse.value if record.rmse is not None and record.rmse.value is not None else 0.0
    return round(validation_score(record), 6), round(plcc / PLCC_STEP), -rmse
