"""How good an image is believed to be, as level probabilities corrected by demos. Pure numpy/scipy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg, special

from program.expert.judge.model import Model, Seen
from program.expert.store import Matrix
from signatures.schemas import LEVEL_WORDS

__all__ = ("Belief", "Evidence", "believe", "level_probabilities", "weigh")

LIKENESS, OFFSET, SLOPE, NOISE = 0.25, 0.2, 0.1, 0.3
"""What a demo's residual says of another image: as far as both measure alike, of all images, of images the farther
both are from the middle of the scale; and the variance of a label."""
WORST, BEST = 0.6, 5.4
_WIDEST = 1.2
"""Standard deviation of what is believed of an image unlike all training images: nearly that of a label drawn blindly
from 1..5."""


@dataclass(frozen=True, slots=True)
class Belief:
    """A quality on 1..5: its mean, standard deviation and how unlike the training images the image is (0..1)."""

    mean: float
    deviation: float
    novelty: float

    def by_word(self) -> dict[str, float]:
        """Return the probability of each level by its word."""
        return dict(zip(LEVEL_WORDS, level_probabilities(self.mean, self.deviation), strict=True))


def level_probabilities(mean: float, deviation: float) -> list[float]:
    """Return the Gaussian mass of each level 1..5 (cut at the half points, the ends open): five numbers, sum 1.

    >>> [round(p, 2) for p in level_probabilities(3.0, 0.5)]
    [0.0, 0.16, 0.68, 0.16, 0.0]
    """
    edges = np.array([-np.inf, 1.5, 2.5, 3.5, 4.5, np.inf])
    masses = np.diff(special.ndtr((edges - mean) / max(deviation, 0.05)))
    masses = np.round(masses / masses.sum(), 6)
    return [float(m) for m in masses / masses.sum()]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Labelled images worked out as far as no query is needed: made once per set of demos."""

    seen: Seen
    factor: Matrix
    """N x N lower factor of the residuals' covariance, label noise included."""
    weights: Matrix
    """N: that covariance's inverse times the residuals `label - quality`."""


def weigh(seen: Sequence[Seen], labels: Matrix) -> Evidence:
    """Turn images seen by one model, with N labels (1..5), into evidence; N >= 1."""
    joined = Seen(*(np.concatenate(column) for column in zip(*seen, strict=True)))
    within = _covariance(joined, joined) + NOISE * np.eye(len(labels))
    factor = np.asarray(linalg.cholesky(within, lower=True))
    return Evidence(joined, factor, np.asarray(linalg.cho_solve((factor, True), labels - joined.quality)))


def believe(model: Model, seen: Seen, evidence: Evidence | None = None) -> Belief:
    """Predict the quality of one image; the residuals of labelled images correct it.

    They are conditioned on as a Gaussian process (Rasmussen & Williams 2006, sec. 2.7) whose covariance is linear in
    what was measured. The deviation is the error that such predictions have on images left out of the fit, less what
    the evidence settles.
    """
    prior, novelty = float(seen.quality[0]), float(seen.novelty[0])
    mean, settled = prior, 0.0
    if evidence is not None:
        across = _covariance(seen, evidence.seen)[0]
        mean += float(across @ evidence.weights)
        reached = linalg.solve_triangular(evidence.factor, across, lower=True, check_finite=False)
        settled = float(reached @ reached) / (float(_covariance(seen, seen)[0, 0]) + NOISE)
    variance = (1 - min(settled, 1.0)) * float(model.error(seen.quality)[0]) ** 2
    deviation = float(np.sqrt((1 - novelty) * variance + novelty * _WIDEST**2))
    return Belief(round(float(np.clip(mean, WORST, BEST)), 4), round(deviation, 4), round(novelty, 4))


def _covariance(one: Seen, other: Seen) -> Matrix:
    # In double precision: the sum of 9,125 products must not depend on who shares the work.
    alike = LIKENESS * (one.points.astype(float) @ other.points.T.astype(float))
    return np.asarray(alike + OFFSET + SLOPE * np.outer(one.quality - 3, other.quality - 3))
