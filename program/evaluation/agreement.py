"""How well a rater agrees with himself, and the most that a program can agree with him."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scipy.special import ndtri
from scipy.stats import spearmanr

from data.manifest import Sample
from program.evaluation.intervals import CONFIDENCE
from program.evaluation.record import EvaluationRecord

LEAST_REPEATS = 40
"""From which an interval of a rater's agreement with himself says something."""


class Estimate(NamedTuple):
    """A correlation with its 95 % interval, of so many pictures."""

    r: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        """As sentences say it."""
        return f"{self.r:.2f} [{self.low:.2f}, {self.high:.2f}]"


def self_agreement(first: Sequence[float], second: Sequence[float]) -> Estimate | None:
    """Return Spearman's r of a rater's two ratings of the same pictures, with Fisher's interval.

    None of fewer than four pictures, and where all ratings of one time are the same. The error of Fisher's z is the
    root of 1.06 / (n - 3) (Fieller, Hartley & Pearson 1957).
    """
    n = len(first)
    if n < 4 or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    r = float(spearmanr(first, second).statistic)
    if abs(r) > 1 - 1e-9:  # the z of 1 is infinite
        return Estimate(r, r, r, n)
    half = float(ndtri((1 + CONFIDENCE) / 2)) * math.sqrt(1.06 / (n - 3))
    return Estimate(r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half), n)


def ceiling(agreement: Estimate) -> Estimate:
    """Return the most that a program can agree with one rating of each picture: the root of r, with its interval.

    By classical test theory a rating is what the rater means and chance. Two ratings share what he means alone, so
    their correlation r is the share of the variance that is no chance, and even a program that always gives what he
    means correlates with one rating by the root of r (Spearman 1904, correction for attenuation; Lord & Novick 1968,
    section 3.4). Who remembers his first rating agrees with himself too well: then the true ceiling is lower. An r
    below 0 counts as 0.
    """
    r, low, high = (math.sqrt(max(value, 0.0)) for value in agreement[:3])
    return Estimate(r, low, high, agreement.n)


def agreement_words(both: Sequence[tuple[float, float]]) -> str:
    """Say how well a rater's two scores of the same pictures agree, and the most that a program can reach."""
    if len(both) < LEAST_REPEATS:
        return f"how well you agree with yourself can be told from {LEAST_REPEATS} repeats on; {len(both)} so far"
    own = self_agreement(*zip(*both, strict=True))
    if own is None:
        return f"your {len(both)} repeats all have one score, which tells nothing of your agreement"
    return f"you agree with yourself {own} (r of {own.n} repeats), so {ceiling(own)} is the most"


def ceiling_words(samples: Iterable[Sample], record: EvaluationRecord) -> str:
    """Say what the labels allow a program at most, and what this one has; empty where none was given twice."""
    both = [sample.given_twice for sample in samples if sample.given_twice is not None]
    if not both:
        return ""
    words = agreement_words(both)
    if len(both) < LEAST_REPEATS or record.srcc is None or record.srcc.value is None:
        return words
    return f"{words}; the program has {record.srcc.value:.2f}"
