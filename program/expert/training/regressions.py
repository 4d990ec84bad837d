"""What is worked out of training images once, so that judging needs only some of them. Pure numpy/scipy."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from program.expert.judge.blend import General
from program.expert.judge.quality import SCALED_AT
from program.expert.judge.regression import Hyper, Regression
from program.expert.judge.standards import NormalScores, Standard, bent, straight
from program.expert.store import Matrix, as_stored

__all__ = ("error_scales", "general_of", "left_out", "quantiles_of", "sparse_weights", "standard_of")

_GATE_NOISE = 0.1
"""Variance of a kind around the gate's function, for the smaller of the two classes."""
_REACH, _SHARED = 0.4, 20
"""How far around a quality errors count for its scale, and for how many images of the average error it stands
besides."""


def standard_of(vectors: Matrix, clip: float) -> Standard:
    """Return the centre and spread of N x F vectors."""
    return Standard(vectors.mean(axis=0), vectors.std(axis=0) + 1e-6, clip)


def quantiles_of(vectors: Matrix) -> Matrix:
    """Return the quantiles of N x F vectors that `NormalScores` reads, Q x F."""
    return np.asarray(np.quantile(as_stored(vectors), special.ndtr(NormalScores.LEVELS), axis=0))


def sparse_weights(cross: Matrix, own: Matrix, targets: Matrix, noise: Matrix | float) -> Matrix:
    """Return M x K weights on M kept images of a process that saw N: as much as they can say of all the labels.

    `cross` is the M x N kernel between both, `own` the M x M kernel of those kept, `targets` N x K (or N) labels less
    their mean, `noise` the variance of each or of all. Source: subset of regressors (Quinonero-Candela & Rasmussen
    2005, sec. 5).
    """
    scaled = cross / noise
    system = own + scaled @ cross.T + 1e-6 * np.eye(len(own))
    return np.asarray(linalg.solve(system, scaled @ targets, assume_a="pos"))


def general_of(
    vectors: Matrix, labels: Matrix, noise: Matrix, kinds: Matrix, kept: NDArray[np.intp], standard: Standard,
    hyper: Hyper,
) -> General:  # fmt: skip
    """Fit both on N x F raw vectors, N labels with their variances and N kinds (-1 judged alone, 1 beside an original).

    Kinds of unequal size count alike in the gate: each image's noise grows with the size of its class.
    """
    z = standard.apply(vectors)
    own, cross = hyper.kernel(z[kept], z[kept]), hyper.kernel(z[kept], z)
    sizes = {kind: max(int((kinds == kind).sum()), 1) for kind in (-1, 1)}
    doubt = np.array([_GATE_NOISE * sizes[int(kind)] / min(sizes.values()) for kind in kinds])
    mean = float(np.mean(labels))
    return General(
        vectors[kept], mean, sparse_weights(cross, own, labels - mean, noise), sparse_weights(cross, own, kinds, doubt)
    )


def error_scales(
    vectors: Matrix, labels: Matrix, parts: Iterable[NDArray[np.intp]], standard: Standard | NormalScores,
    hyper: Hyper, noise: Matrix | None = None,
) -> list[float]:  # fmt: skip
    """Return squared error over expected variance at `SCALED_AT`, each of the parts (row numbers) left out.

    Averages of the images whose predictions lie near. Between good and bad, where people part most, errors are larger
    than at either end: the levels of CLIVE's train and validation images (by folds) and of BIQ2021's are likelier so
    than with one scale for all. Source: Nadaraya 1964.
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
    ratio = np.concatenate(ratios)
    near = np.exp(-0.5 * ((SCALED_AT[:, None] - np.concatenate(predicted)) / _REACH) ** 2)
    scales = (near @ ratio + _SHARED * ratio.mean()) / (near.sum(axis=1) + _SHARED)
    return [round(float(scale), 4) for scale in scales]


def left_out(model: Regression, labels: Matrix) -> Matrix:
    """Return what a fit on all the other training images predicts for each one (Rasmussen & Williams, eq. 5.12).

    `labels` are those it was fitted on. Raises ValueError where only some of the training images were kept.
    """
    if len(labels) != len(model.weights):
        raise ValueError("left_out: only some of the training images were kept; fit on all of them")
    precision = linalg.cho_solve((model.factor, True), np.eye(len(labels)))
    residuals = bent(np.asarray(labels, dtype=np.float64), model.hyper.power) - model.mean
    return straight(model.mean + residuals - model.weights / np.diag(precision), model.hyper.power)
