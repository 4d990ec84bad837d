"""Which candidate is recommended: ranked on validation by SRCC and accuracy, never on test."""

from collections.abc import Callable, Sequence

from data.manifest import Sample
from optimizers.recipes import Candidate
from program.evaluation.record import EvaluationRecord

__all__ = ("rank", "validation_score")


def validation_score(record: EvaluationRecord) -> float:
    """Return the mean of SRCC and accuracy, weighted by their numbers of samples; whichever the data has.

    An undefined SRCC (constant answers) counts as 0: such a program orders nothing.
    """
    parts = [(f.value, f.n) for f in (record.srcc, record.accuracy) if f is not None and f.n]
    total = sum(n for _, n in parts)
    return sum((value or 0.0) * n for value, n in parts) / total if total else 0.0


def rank(
    uncompiled: Candidate,
    proposed: Sequence[Candidate],
    samples: Sequence[Sample],
    *,
    keep: int,
    evaluate: Callable[[Candidate, Sequence[Sample]], EvaluationRecord],
) -> list[tuple[Candidate, EvaluationRecord]]:
    """Return the `keep` best candidates and the uncompiled program with their validation records, best first.

    Ties go to the uncompiled program: an optimizer has to show that it helped.
    """
    by_search = sorted(proposed, key=lambda c: -(c.search_score if c.search_score is not None else 0.0))
    ranked = [(candidate, evaluate(candidate, samples)) for candidate in [uncompiled, *by_search[:keep]]]
    return sorted(ranked, key=lambda pair: -validation_score(pair[1]))
