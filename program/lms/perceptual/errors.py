"""How large a regression's errors are over what it expects of them, by predicted quality. Pure numpy."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from program.lms.perceptual.regression import Hyper, Matrix, Regression
from program.lms.perceptual.standards import NormalScores, Standard

__all__ = ("error_scales", "scale_at")

_AT = np.linspace(1, 5, 9)
_REACH, _SHARED = 0.4, 20
"""Qualities at which the scale is kept, how far around each errors count, and for how many images of the average error
it stands besides. Between good and bad, where people part most, errors are larger than at either end: the levels of
CLIVE's train and validation images (by folds) and of BIQ2021's are likelier so than with one scale for all."""


def error_scales(
    vectors: Matrix, labels: Matrix, parts: Iterable[NDArray[np.intp]], standard: Standard | NormalScores,
    hyper: Hyper, noise: Matrix | None = None,
) -> list[float]:  # fmt: skip
    """Return squared error over expected variance at nine qualities 1..5, each of the parts (row numbers) left out.

    Averages of the images whose predictions lie near. Source: Nadaraya 1964.
    """
    variances = np.full(len(labels), hyper.noise) if noise is None else noise
    predicted: list[Matrix] = []
    ratios: list[Matrix] = []
    for out in parts:
        rest = np.setdiff1d(np.arange(len(labels)), out)
        model = Regression(vectors[rest], labels[rest], standard, hyper, variances[rest])
        seen = model.project(vectors[out])
        expected = np.diag(model.covariance(seen, seen)) + variances[out] * seen.slope**2
        predicted.append(seen.mean)
        ratios.append((seen.mean - labels[out]) ** 2 / expected)
    found = np.concatenate(ratios)
    near = np.exp(-0.5 * ((_AT[:, None] - np.concatenate(predicted)) / _REACH) ** 2)
    scales = (near @ found + _SHARED * found.mean()) / (near.sum(axis=1) + _SHARED)
    return [round(float(scale), 4) for scale in scales]


def scale_at(scales: Matrix, quality: float) -> float:
    """Return the scale at one quality, linear between those kept."""
    return float(np.interp(quality, _AT, scales))
