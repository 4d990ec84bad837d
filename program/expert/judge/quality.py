"""How good an image is believed to be, as level probabilities corrected by demos; how strong each distortion is.

The prior quality model is fitted on human scores of photographs; detectors of the seven distortion categories are
fitted on generated distortions. How much a measured distortion lowers the score is *not* built in beyond what the
prior learnt: that is what demos teach (see `believe`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg, special

from program.expert.judge.blend import Blend, Blended, Prior, Sight
from program.expert.judge.models import QualityModel
from program.expert.judge.regression import Projection, Regression
from program.expert.store import Matrix
from signatures.schemas import LEVEL_WORDS

__all__ = (
    "SCALED_AT",
    "WORST_AND_BEST",
    "Belief",
    "Evidence",
    "Seen",
    "believe",
    "corrected",
    "deviation_of",
    "graded",
    "grades",
    "level_probabilities",
    "look",
    "scale_at",
    "weigh",
)

_POSTERIOR, _OFFSET, _EACH, _STRONGEST, _DEMO_NOISE = 2.0, 0.2, 0.05, 0.3, 0.3
"""Weights of the residual's covariance: what the prior left open, a constant shift, one slope per category and one
shared slope on the strongest distortion, and the demos' label noise. Chosen without any test image, so that 8, 16 and
32 demos raise the agreement in each of four transfers and hardly move it where there is nothing to learn: between
halves of CLIVE train and validation drawn by lot, split by brightness, split by colourfulness, and from the
quickstart's train to its validation photographs."""


WORST_AND_BEST = (0.6, 4.6)
"""What a quality beside an original may be: 4.6 is an undistorted image's (`tables.UNDISTORTED` of the training)."""
SCALED_AT = np.linspace(1, 5, 9)
"""Qualities at which the scale of errors is kept."""


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
class Seen:
    """N images as a model sees them: projected on its regression, and N x 8 severities."""

    projection: Sight
    severities: Matrix

    @classmethod
    def stacked(cls, parts: "Sequence[Seen]") -> "Seen":
        """Join images seen by the same model, in order."""
        sights = [p.projection for p in parts]
        blended = [p for p in sights if isinstance(p, Blended)]
        plain = [p for p in sights if isinstance(p, Projection)]
        joined = Blended.stacked(blended) if blended else Projection.stacked(plain)
        return cls(joined, np.concatenate([p.severities for p in parts]))


@dataclass(frozen=True, slots=True)
class Evidence:
    """Labelled images worked out as far as no query is needed: made once per set of demos."""

    seen: Seen
    factor: Matrix
    """N x N lower factor of the residuals' covariance, label noise included."""
    weights: Matrix
    """N: that covariance's inverse times the residuals `label - prior`."""


def look(model: QualityModel, vectors: Matrix) -> Seen:
    """Return how a model sees N x F raw feature vectors."""
    return Seen(model.regression.project(vectors), model.detector.severities(vectors))


def graded(model: QualityModel, seen: Seen) -> Matrix:
    """Return N x 7 severities of the categories, the strongest judged by detectors and quality regression together.

    What is there is for the detectors to say; this is how strong it is, and what severity words are told from.
    """
    sight = seen.projection
    # A generated image is judged beside its original, as severities are; a photograph's score is not.
    believed = sight.general.mean if isinstance(sight, Blended) else sight.mean
    return grades(seen.severities[:, :7], believed, model.grading)


def grades(severities: Matrix, quality: Matrix, weights: Matrix) -> Matrix:
    """Return N x K severities whose strongest is the weighted sum of what both judges say; others are at most that.

    >>> grades(np.array([[0.5, 2.0, 1.8]]), np.array([3.0]), np.array([0.5, -0.25, 1.25])).tolist()
    [[0.5, 1.5, 1.5]]
    """
    judged = np.column_stack([severities.max(axis=1), np.clip(quality, *WORST_AND_BEST), np.ones(len(severities))])
    strength = np.clip(judged @ weights, 0.0, 4.0)[:, None]
    graded = np.minimum(severities, strength)
    rows, first = np.arange(len(severities)), severities.argmax(axis=1)
    # Where no detector sees anything there is no strongest: nothing is named.
    graded[rows, first] = np.where(severities[rows, first] > 0, strength[:, 0], 0.0)
    return np.asarray(graded)


def weigh(model: QualityModel, seen: Seen, labels: Matrix) -> Evidence:
    """Turn images with N labels (1..5) into evidence; N >= 1."""
    within = _residual_covariance(model, seen, seen) + _DEMO_NOISE * np.eye(len(labels))
    factor = np.asarray(linalg.cholesky(within, lower=True))
    return Evidence(seen, factor, np.asarray(linalg.cho_solve((factor, True), labels - seen.projection.mean)))


def believe(model: QualityModel, seen: Seen, evidence: Evidence | None = None) -> Belief:
    """Predict the quality of one image; evidence corrects the prediction where it was left open.

    The residual `label - prior` of the labelled images is conditioned on as a Gaussian process whose covariance is what
    the prior left undecided, plus, as far as an image is unlike the training images (`novelty`), a constant shift and
    slopes on the detected severities. No evidence: the prior. Source: Rasmussen & Williams 2006, sec. 2.7.
    """
    mean, open_variance = corrected(model, seen, evidence)
    deviation = deviation_of(model.regression, model.error_scales, seen.projection, open_variance)
    return Belief(
        round(float(np.clip(mean, 0.6, 5.4)), 4), round(deviation, 4), round(float(seen.projection.novelty[0]), 4)
    )


def deviation_of(regression: Prior, scales: Matrix, sight: Sight, open_variance: float) -> float:
    """Return the standard deviation of one image's label, of whose quality so much is undecided.

    Label noise and the scale of errors are those at the prior's mean: demos make an image no harder to judge.
    """
    noise, scale = float(regression.noise(sight.mean)[0]), scale_at(scales, float(sight.mean[0]))
    return float(np.sqrt(scale * (open_variance + noise) + float(sight.spread[0])))


def scale_at(scales: Matrix, quality: float) -> float:
    """Return the scale of errors at one quality, linear between those kept."""
    return float(np.interp(quality, SCALED_AT, scales))


def corrected(model: QualityModel, seen: Seen, evidence: Evidence | None) -> tuple[float, float]:
    """Return mean and undecided variance of one image's quality, neither limited nor scaled."""
    own = seen.projection
    mean, open_variance = float(own.mean[0]), float(_undecided(model, own, own)[0, 0])
    if evidence is not None:
        across = _residual_covariance(model, seen, evidence.seen)
        mean += float((across @ evidence.weights)[0])
        reached = linalg.solve_triangular(evidence.factor, across[0], lower=True, check_finite=False)
        whole = float(_residual_covariance(model, seen, seen)[0, 0])
        open_variance *= 1 - min(float(reached @ reached) / max(whole, 1e-9), 1.0)
    return mean, max(open_variance, 0.0)


def _residual_covariance(model: QualityModel, one: Seen, other: Seen) -> Matrix:
    unlike = np.outer(one.projection.novelty, other.projection.novelty)
    left_open = _POSTERIOR * _undecided(model, one.projection, other.projection)
    return np.asarray(left_open + unlike * _tilt(one.severities, other.severities))


def _undecided(model: QualityModel, one: Sight, other: Sight) -> Matrix:
    match model.regression, one, other:
        case Blend() as blend, Blended(), Blended():
            return blend.covariance(one, other)
        case Regression() as plain, Projection(), Projection():
            return plain.covariance(one, other)
    raise TypeError("images seen by another model; look at them with this one")


def _tilt(one: Matrix, other: Matrix) -> Matrix:
    strongest = np.outer(one.max(axis=1), other.max(axis=1))
    return np.asarray(_OFFSET + _EACH * one @ other.T + _STRONGEST * strongest)
