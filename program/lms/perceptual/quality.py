"""How good an image is believed to be, as level probabilities corrected by demos; how strong each distortion is.

The prior quality model is fitted on human scores of photographs; detectors of the seven distortion categories are
fitted on generated distortions. How much a measured distortion lowers the score is *not* built in beyond what the
prior learnt: that is what demos teach (see `believe`).
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from scipy import special

from program.lms.perceptual.regression import Examples, Hyper, Matrix, Regression, Standard, radial
from signatures.schemas import DISTORTION_CATEGORIES, LEVEL_WORDS, DistortionCategory

__all__ = (
    "MODEL_FILE",
    "PROVENANCE_FILE",
    "Belief",
    "Detector",
    "QualityModel",
    "assembled",
    "believe",
    "level_probabilities",
    "load_models",
)

MODEL_FILE = "expert-r1.npz"
PROVENANCE_FILE = "expert-r1.json"
_POSTERIOR, _OFFSET, _EACH, _STRONGEST, _DEMO_NOISE = 2.0, 0.2, 0.1, 2.0, 0.3
"""Weights of the residual's covariance: what the prior left open, a constant shift, one slope per category and one
shared slope on the strongest distortion, and the demos' label noise. Chosen on the quickstart's train photographs
(demos) and validation photographs (queries), and by cross-validation on CLIVE train."""


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
        z = self._standard.apply(vectors)
        share = self._hyper.linear
        kernel = (1 - share) * radial(z, self._centres, self._hyper.width) + share * z @ self._centres.T / z.shape[1]
        return np.asarray(np.clip(self._offset + kernel @ self._weights, 0.0, 4.0))

    def named(self, vector: Matrix) -> dict[DistortionCategory, float]:
        """Return one vector's severities by category."""
        values = self.severities(vector)[0]
        return dict(zip(DISTORTION_CATEGORIES, (float(v) for v in values[:7]), strict=True))


@dataclass(frozen=True)
class QualityModel:
    """A prior quality regression with the scale of its errors, and the detector on the same features."""

    regression: Regression
    error_scale: float
    """Squared error found in cross-validation over the variance the regression expected."""
    detector: Detector
    quantiles: Mapping[str, Sequence[float]]
    """Severities at 0, 10 .. 100 % of natural photographs, by category; empty with a reference."""


def believe(model: QualityModel, vector: Matrix, examples: Examples | None = None) -> Belief:
    """Predict one image's quality; examples correct the prediction where it was left open.

    The residual `label - prior` of the examples is conditioned on as a Gaussian process whose covariance is what the
    prior left undecided, plus, as far as an image is unlike the training images (`novelty`), a constant shift and
    slopes on the detected severities. No examples: the prior. Source: Rasmussen & Williams 2006, sec. 2.7.
    """
    query = np.atleast_2d(vector)
    regression = model.regression
    prior = float(regression.mean(query)[0])
    novelty = float(regression.novelty(query)[0])
    open_variance = float(regression.covariance(query, query)[0, 0])
    if examples is not None and len(examples.labels):
        severity = model.detector.severities(query)
        others = examples.vectors
        unlike = regression.novelty(others)
        across = _POSTERIOR * regression.covariance(query, others) + novelty * unlike[None] * _tilt(
            severity, examples.extra
        )
        within = _POSTERIOR * regression.covariance(others, others) + np.outer(unlike, unlike) * _tilt(
            examples.extra, examples.extra
        )
        noisy = within + _DEMO_NOISE * np.eye(len(unlike))
        gain = np.linalg.solve(noisy, across.T).T
        prior += float((gain @ (examples.labels - regression.mean(others)))[0])
        own = _POSTERIOR * open_variance + novelty**2 * float(_tilt(severity, severity)[0, 0])
        explained = float((gain @ across.T)[0, 0]) / max(own, 1e-9)
        open_variance *= 1 - min(max(explained, 0.0), 1.0)
    variance = model.error_scale * (max(open_variance, 0.0) + regression.hyper.noise)
    return Belief(round(float(np.clip(prior, 0.6, 5.4)), 4), round(float(np.sqrt(variance)), 4), round(novelty, 4))


def _tilt(one: Matrix, other: Matrix) -> Matrix:
    strongest = np.outer(one.max(axis=1), other.max(axis=1))
    return np.asarray(_OFFSET + _EACH * one @ other.T + _STRONGEST * strongest)


@functools.cache
def load_models() -> tuple[QualityModel, QualityModel]:
    """Return the model for single images and the one for images with a reference, from the shipped file."""
    folder = files("program.lms.perceptual")
    provenance = json.loads(folder.joinpath(PROVENANCE_FILE).read_text(encoding="utf-8"))
    with folder.joinpath(MODEL_FILE).open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        arrays = {name: stored[name].astype(np.float64) for name in stored.files}
    return assembled("nr", arrays, provenance["settings"]), assembled("fr", arrays, provenance["settings"])


def assembled(kind: str, arrays: Mapping[str, Matrix], settings: Mapping[str, Any]) -> QualityModel:
    """Build a model ("nr" or "fr") from float64 arrays and the settings that were fitted with them."""
    hyper, detector_hyper = Hyper(**settings[kind]["quality"]), Hyper(**settings[kind]["detector"])
    standard = Standard(arrays[f"{kind}_centre"], arrays[f"{kind}_spread"], hyper.clip)
    detector_standard = Standard(
        arrays[f"{kind}_detector_centre"], arrays[f"{kind}_detector_spread"], detector_hyper.clip
    )
    return QualityModel(
        Regression(arrays[f"{kind}_vectors"], arrays[f"{kind}_labels"], standard, hyper),
        float(settings[kind]["error_scale"]),
        Detector(
            arrays[f"{kind}_detector_centres"], arrays[f"{kind}_detector_weights"], arrays[f"{kind}_detector_offset"],
            detector_standard, detector_hyper,
        ),
        settings[kind].get("quantiles", {}),
    )  # fmt: skip
