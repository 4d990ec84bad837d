"""Gaussian-process regression on feature vectors: a mean, what is left uncertain, and correction by further examples.

The posterior given training data is itself a Gaussian process; examples seen later (in-context) are conditioned on
in the same way, so none leave the prior, few move it near them and in directions the training data did not settle, many
approach a local regression. Source: Rasmussen & Williams 2006, ch. 2. Pure numpy/scipy.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

__all__ = ("Examples", "Hyper", "Matrix", "Regression", "Standard", "radial")

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Hyper:
    """How smooth the regression is, in standardised features."""

    width: float
    """Squared length scale of the radial part, per feature."""
    linear: float
    """Share of the linear part, 0..1."""
    noise: float
    """Variance of a label around the function, relative to the prior variance of 1."""
    clip: float
    """Standardised features are limited to +-this."""


@dataclass(frozen=True, slots=True)
class Standard:
    """Centre and spread by which features are standardised."""

    centre: Matrix
    spread: Matrix
    clip: float

    def apply(self, vectors: Matrix) -> Matrix:
        """Standardise N x F vectors and limit how far one feature can carry."""
        return np.asarray(np.clip((np.atleast_2d(vectors) - self.centre) / self.spread, -self.clip, self.clip))


@dataclass(frozen=True)
class Examples:
    """Further labelled cases: N x F raw vectors, N labels, and N x S extra coordinates that may tilt the correction."""

    vectors: Matrix
    labels: Matrix
    extra: Matrix


def radial(one: Matrix, other: Matrix, width: float) -> Matrix:
    """Return exp(-|a - b|^2 / (2 width F)) for all pairs of rows."""
    square = (one * one).sum(axis=1)[:, None] + (other * other).sum(axis=1)[None] - 2 * one @ other.T
    return np.asarray(np.exp(-np.maximum(square, 0.0) / (2 * width * one.shape[1])))


class Regression:
    """A fitted process; immutable after construction, safe to share between threads."""

    def __init__(self, vectors: Matrix, labels: Matrix, standard: Standard, hyper: Hyper) -> None:
        """Fit on N x F raw vectors and N labels."""
        self.hyper, self.standard = hyper, standard
        self._inputs = standard.apply(vectors)
        self._mean = float(np.mean(labels))
        self._factor = linalg.cho_factor(
            self._kernel(self._inputs, self._inputs) + hyper.noise * np.eye(len(labels)), lower=True
        )
        self._weights = linalg.cho_solve(self._factor, np.asarray(labels, dtype=np.float64) - self._mean)

    def _kernel(self, one: Matrix, other: Matrix) -> Matrix:
        share = self.hyper.linear
        return np.asarray((1 - share) * radial(one, other, self.hyper.width) + share * (one @ other.T) / one.shape[1])

    def mean(self, vectors: Matrix) -> Matrix:
        """Predict N x F raw vectors."""
        return np.asarray(
            self._mean + self._kernel(self.standard.apply(vectors), self._inputs) @ self._weights, dtype=np.float64
        )

    def covariance(self, one: Matrix, other: Matrix) -> Matrix:
        """Return what the training data left undecided between all pairs of rows (posterior covariance)."""
        a, b = self.standard.apply(one), self.standard.apply(other)
        left, right = self._kernel(a, self._inputs), self._kernel(b, self._inputs)
        return np.asarray(self._kernel(a, b) - left @ linalg.cho_solve(self._factor, right.T))

    def novelty(self, vectors: Matrix) -> Matrix:
        """Return 0 (like the training data) .. 1 (nothing like it): the undecided share of the prior variance."""
        z = self.standard.apply(vectors)
        left = self._kernel(z, self._inputs)
        prior = (1 - self.hyper.linear) + self.hyper.linear * (z * z).mean(axis=1)
        reduced = (left * linalg.cho_solve(self._factor, left.T).T).sum(axis=1)
        return np.asarray(np.clip(1 - reduced / prior, 0.0, 1.0))
