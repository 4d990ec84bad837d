"""How good an image is believed to be, as level probabilities corrected by demos. Pure numpy/scipy."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from program.expert.judge.model import Model, Seen
from program.expert.store import Matrix
from signatures.schemas import LEVEL_WORDS

__all__ = ("Belief", "Evidence", "believe", "level_probabilities", "most_telling", "weigh")

LIKENESS, OFFSET, SLOPE = 0.25, 0.2, 0.1
"""What a demo's residual says of another image: as far as both measure alike, of all images, of images the farther
both are from the middle of the scale."""
NOISES = (0.1, 0.2, 0.4)
"""Variances of a label that are tried; the likeliest counts. By folds of BIQ2021's train and validation images."""
PHOTOGRAPH = (1.0, 5.0)
"""What is added to that for versions of one photograph, where demos show many: a constant, and as far as they measure
alike. It says nothing of other photographs. By pairs of the quickstart's photographs left out."""
_VERSIONS = 0.05
"""Share of pairs of demos that show the same photograph from which that counts."""
WORST, BEST = 0.6, 5.4
_DOUBT = 8
"""Demos whose misfit counts as much as the expectation that there is none."""
_EXCHANGES = 4000
"""How often a set of demos is changed while it is chosen. By folds of BIQ2021's train and validation images."""
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
    versions: bool
    """Whether many of them show the same photographs."""
    noise: float
    """Variance of a label."""
    factor: Matrix
    """N x N lower factor of the residuals' covariance, label noise included."""
    weights: Matrix
    """N: that covariance's inverse times the residuals `label - quality`."""
    misfit: float
    """How far the labels lie from what the others make of them, squared, over what was expected; at least 1."""


def weigh(model: Model, seen: Sequence[Seen], labels: Matrix) -> Evidence:
    """Turn images seen by a model, with N labels (1..5), into evidence; N >= 1.

    The labels' noise is the one of `NOISES` under which they are likeliest (Rasmussen & Williams 2006, eq. 5.8).
    """
    joined, pairs = _joined(seen), len(labels) * (len(labels) - 1)
    same = int((_same_photograph(joined, joined) > 0.5).sum()) - len(labels)
    versions = same > 0 and same >= _VERSIONS * pairs
    within = _covariance(joined, joined, versions)
    noise, factor, weights = _settled(within, labels - joined.quality)
    # Each label left out: eq. 5.12, its variance the share of the prior's that is left.
    inverse = np.square(linalg.solve_triangular(factor, np.eye(len(labels)), lower=True)).sum(axis=0)
    expected = model.error(joined.quality) ** 2 / inverse / (np.diag(within) + noise)
    misfits = (weights / inverse) ** 2 / expected
    misfit = float((misfits.sum() + _DOUBT) / (len(labels) + _DOUBT))
    return Evidence(joined, versions, noise, factor, weights, max(1.0, misfit))


def most_telling(seen: Sequence[Seen], labels: Matrix, count: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Return the places of `count` < N labelled images that, as demos, bring beliefs nearest to the others' labels.

    Nearest in squared error. A set drawn at random is changed image by image, and a change that lowers the error is
    kept: an exchange algorithm (Fedorov 1972).
    """
    joined, every = _joined(seen), np.arange(len(labels))
    covariance, residuals = _covariance(joined, joined), labels - joined.quality

    def error(chosen: NDArray[np.intp]) -> float:
        others = np.delete(every, chosen)
        _, _, weights = _settled(covariance[np.ix_(chosen, chosen)], residuals[chosen])
        return float(np.square(residuals[others] - covariance[np.ix_(others, chosen)] @ weights).mean())

    chosen = rng.choice(every, count, replace=False)
    least = error(chosen)
    for place, other in zip(rng.integers(count, size=_EXCHANGES), rng.choice(every, _EXCHANGES), strict=True):
        changed = chosen.copy()
        changed[place] = other
        if other not in chosen and (found := error(changed)) < least:
            chosen, least = changed, found
    return tuple(chosen.tolist())


def believe(model: Model, seen: Seen, evidence: Evidence | None = None) -> Belief:
    """Predict the quality of one image; the residuals of labelled images correct it.

    They are conditioned on as a Gaussian process (Rasmussen & Williams 2006, sec. 2.7) whose covariance is linear in
    what was measured. The deviation is the error that such predictions have on images left out of the fit, less what
    the evidence settles.
    """
    mean, novelty, settled, misfit = float(seen.quality[0]), float(seen.novelty[0]), 0.0, 1.0
    if evidence is not None:
        across = _covariance(seen, evidence.seen, evidence.versions)[0]
        mean += float(across @ evidence.weights)
        reached = linalg.solve_triangular(evidence.factor, across, lower=True, check_finite=False)
        own = float(_covariance(seen, seen, evidence.versions)[0, 0])
        settled, misfit = float(reached @ reached) / (own + evidence.noise), evidence.misfit
    variance = (1 - min(settled, 1.0)) * float(model.error(seen.quality)[0]) ** 2 * misfit
    deviation = float(np.sqrt((1 - novelty) * variance + novelty * _WIDEST**2))
    return Belief(round(float(np.clip(mean, WORST, BEST)), 4), round(deviation, 4), round(novelty, 4))


def _joined(seen: Sequence[Seen]) -> Seen:
    return Seen(*(np.concatenate(column) for column in zip(*seen, strict=True)))


def _settled(within: Matrix, residuals: Matrix) -> tuple[float, Matrix, Matrix]:
    """Return the likeliest of `NOISES`, the factor of the covariance with it, and the weights of N residuals."""

    def fitted(noise: float) -> tuple[float, float, Matrix, Matrix]:
        factor = np.asarray(linalg.cholesky(within + noise * np.eye(len(residuals)), lower=True))
        weights = np.asarray(linalg.cho_solve((factor, True), residuals))
        surprise = 0.5 * float(residuals @ weights) + float(np.log(np.diag(factor)).sum())
        return surprise, noise, factor, weights

    _, noise, factor, weights = min(map(fitted, NOISES), key=itemgetter(0))
    return noise, factor, weights


def _covariance(one: Seen, other: Seen, versions: bool = False) -> Matrix:
    # In double precision: the sum of 18,085 products must not depend on who shares the work.
    products = one.points.astype(float) @ other.points.T.astype(float)
    covariance = LIKENESS * products + OFFSET + SLOPE * np.outer(one.quality - 3, other.quality - 3)
    if versions:
        constant, likeness = PHOTOGRAPH
        covariance += _same_photograph(one, other) * (constant + likeness * products)
    return np.asarray(covariance)


def _same_photograph(one: Seen, other: Seen) -> Matrix:
    """Return how sure it is that two images show one photograph, 0..1: as far as their cells' brightness correlates."""
    first, second = (seen.cells - seen.cells.mean(axis=1, keepdims=True) for seen in (one, other))
    lengths = np.outer(np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1))
    # A product of covariances is one again: no pair has to be called the same or not.
    return np.asarray((first @ second.T / np.maximum(lengths, 1e-9)) ** 32)
