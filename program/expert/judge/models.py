"""What the shipped arrays hold: a regression of quality and a detector of distortions, alone and with a reference.

The regression is fitted on human scores of photographs; detectors of the seven distortion categories are fitted on
generated distortions.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from program.expert.judge.blend import Blend, General, Prior
from program.expert.judge.regression import Hyper, Regression, hyper_of, radial
from program.expert.judge.standards import NormalScores, Standard
from program.expert.store import Matrix, stored_arrays, stored_settings

__all__ = ("Detector", "QualityModel", "assembled", "detector_of", "load_model")


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
    """Squared error on images left out over the variance the regression expected, by quality (`quality.scale_at`)."""
    detector: Detector
    quantiles: Mapping[str, Sequence[float]]
    """Severities at 0, 10 .. 100 % of natural photographs, by category; empty with a reference."""
    grading: Matrix
    """Weights by which the strongest severity is graded (`quality.grades`)."""


@functools.cache
def load_model(kind: str) -> QualityModel:
    """Return the model for single images ("nr") or for images with a reference ("fr"), from the shipped file."""
    return assembled(kind, stored_arrays(), stored_settings())


def assembled(kind: str, arrays: Mapping[str, Matrix], settings: Mapping[str, Any]) -> QualityModel:
    """Build a model ("nr" or "fr") from float64 arrays and the settings that were fitted with them."""
    return QualityModel(
        _prior(kind, arrays, settings), np.array(settings[kind]["error_scales"], dtype=np.float64),
        detector_of(kind, arrays, hyper_of(settings[kind]["detector"])), settings[kind].get("quantiles", {}),
        np.array(settings[kind]["grading"], dtype=np.float64),
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
