"""How good an image is believed to be, as level probabilities corrected by demos; how strong each distortion is.

The prior quality model is fitted on human scores of photographs; detectors of the seven distortion categories are
fitted on generated distortions. How much a measured distortion lowers the score is *not* built in beyond what the
prior learnt: that is what demos teach (see `believe`).
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg, special

from program.lms.perceptual.blend import Blend, Blended, General, Prior, Sight
from program.lms.perceptual.errors import scale_at
from program.lms.perceptual.grading import grades
from program.lms.perceptual.regression import (
    Hyper,
    Matrix,
    Projection,
    Regression,
    hyper_of,
    radial,
)
from program.lms.perceptual.standards import NormalScores, Standard
from program.lms.perceptual.store import stored_arrays, stored_settings
from signatures.schemas import LEVEL_WORDS

__all__ = (
    "Belief",
    "Detector",
    "Evidence",
    "QualityModel",
    "Seen",
    "assembled",
    "believe",
    "corrected",
    "detector_of",
    "deviation_of",
    "graded",
    "level_probabilities",
    "load_model",
    "load_models",
    "look",
    "weigh",
)

_POSTERIOR, _OFFSET, _EACH, _STRONGEST, _DEMO_NOISE = 2.0, 0.2, 0.05, 0.3, 0.3
"""Weights of the residual's covariance: what the prior left open, a constant shift, one slope per category and one
shared slope on the strongest distortion, and the demos' label noise. Chosen without any test image, so that 8, 16 and
32 demos raise the agreement in each of four transfers and hardly move it where there is nothing to learn: between
halves of CLIVE train and validation drawn by lot, split by brightness, split by colourfulness, and from the
quickstart's train to its validation photographs."""


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


class Detector:
    """Severity of each distortion category, 0 (none) .. about 3.5 (extreme), from one feature vector."""

    def __init__(self, centres: Matrix, weights: Matrix, offset: Matrix, standard: Standard, hyper: Hyper) -> None:
        """Take a fitted sparse regression: M x F raw centres, M x K weights, K offsets."""
        self._centres, self._weights, self._offset = standard.apply(centres), weights, offset
        self._standard, self._hyper = standard, hyper

    def severities(self, vectors: Matrix) -> Matrix:
        """Return N x 8 severities: the seven categories in their order, then spatial distortions."""
        z = self._standard.apply(np.atleast_2d(vectors)[:, : len(self._standard.centre)])
        share = self._hyper.linear
        kernel = (1 - share) * radial(z, self._centres, self._hyper.width) + share * z @ self._centres.T / z.shape[1]
        return np.asarray(np.clip(self._offset + kernel @ self._weights, 0.0, 4.0))


@dataclass(frozen=True)
class QualityModel:
    """A prior quality regression with the scale of its errors, and the detector on the same features."""

    regression: Prior
    error_scales: Matrix
    """Squared error on images left out over the variance the regression expected, by quality (`errors.scale_at`)."""
    detector: Detector
    quantiles: Mapping[str, Sequence[float]]
    """Severities at 0, 10 .. 100 % of natural photographs, by category; empty with a reference."""
    grading: Matrix | None = None
    """Weights by which the strongest severity is graded; None: as the detectors have it."""


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
    found = seen.severities[:, :7]
    if model.grading is None:
        return found
    sight = seen.projection
    # A generated image is judged beside its original, as severities are; a photograph's score is not.
    believed = sight.general.mean if isinstance(sight, Blended) else sight.mean
    return grades(found, believed, model.grading)


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


@functools.cache
def load_model(kind: str) -> QualityModel:
    """Return the model for single images ("nr") or for images with a reference ("fr"), from the shipped file."""
    return assembled(kind, stored_arrays(), stored_settings())


def load_models() -> tuple[QualityModel, QualityModel]:
    """Return both models, the one for single images first."""
    return load_model("nr"), load_model("fr")


def assembled(kind: str, arrays: Mapping[str, Matrix], settings: Mapping[str, Any]) -> QualityModel:
    """Build a model ("nr" or "fr") from float64 arrays and the settings that were fitted with them."""
    grading = settings[kind].get("grading")
    return QualityModel(
        _prior(kind, arrays, settings), np.array(settings[kind]["error_scales"], dtype=np.float64),
        detector_of(kind, arrays, hyper_of(settings[kind]["detector"])), settings[kind].get("quantiles", {}),
        None if grading is None else np.array(grading, dtype=np.float64),
    )  # fmt: skip


def detector_of(kind: str, arrays: Mapping[str, Matrix], hyper: Hyper) -> Detector:
    """Build the detector of a kind from its arrays."""
    standard = Standard(
        arrays[f"{kind}_detector_centre"], arrays[f"{kind}_detector_spread"], hyper.clip,
        arrays.get(f"{kind}_detector_mix"),
    )  # fmt: skip
    return Detector(
        arrays[f"{kind}_detector_centres"], arrays[f"{kind}_detector_weights"], arrays[f"{kind}_detector_offset"],
        standard, hyper,
    )  # fmt: skip


def _prior(kind: str, arrays: Mapping[str, Matrix], settings: Mapping[str, Any]) -> Prior:
    own = settings[kind]
    if kind == "fr":
        smooth = hyper_of(own["quality"])
        return Regression(arrays["fr_vectors"], arrays["fr_labels"], _standard("fr", arrays, smooth), smooth)
    vectors, labels = arrays["nr_vectors"], arrays["nr_labels"]
    natural = int(own["natural"])
    scores, hyper = NormalScores(arrays["nr_quantiles"]), hyper_of(own["general"])
    general = General(vectors, float(arrays["nr_general_mean"][0]), arrays["nr_general_weights"], arrays["nr_gate"])
    return Blend(
        Regression(vectors[:natural], labels, scores, hyper_of(own["quality"]), arrays["nr_noise"]),
        general.regression(_standard("nr_general", arrays, hyper), hyper), general.gate,
    )  # fmt: skip


def _standard(name: str, arrays: Mapping[str, Matrix], hyper: Hyper) -> Standard:
    return Standard(arrays[f"{name}_centre"], arrays[f"{name}_spread"], hyper.clip)
