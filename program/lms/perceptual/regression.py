"""Gaussian-process regression on feature vectors: a mean, what is left uncertain, and correction by further examples.

The posterior given training data is itself a Gaussian process; examples seen later (in-context) are conditioned on
in the same way, so none leave the prior, few move it near them and in directions the training data did not settle, many
approach a local regression. Source: Rasmussen & Williams 2006, ch. 2. Pure numpy/scipy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

__all__ = ("Hyper", "Matrix", "Projection", "Regression", "Standard", "radial")

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
    mix: Matrix | None = None
    """F x F, applied last: evens out directions in which features vary together. None: as they are."""

    def apply(self, vectors: Matrix) -> Matrix:
        """Standardise N x F vectors and limit how far one feature can carry."""
        z = np.asarray(np.clip((np.atleast_2d(vectors) - self.centre) / self.spread, -self.clip, self.clip))
        return z if self.mix is None else z @ self.mix


@dataclass(frozen=True, slots=True)
class Projection:
    """N images as a fitted process sees them: all that covariances with other images need of the training data."""

    points: Matrix
    """N x F standardised features."""
    whitened: Matrix
    """N x T: the kernel with the T training images, divided by the factor of their own covariance."""
    mean: Matrix
    """N predictions."""
    novelty: Matrix
    """N shares of the prior variance left undecided: 0 (like the training data) .. 1 (nothing like it)."""

    @classmethod
    def stacked(cls, parts: "Sequence[Projection]") -> "Projection":
        """Join projections on the same process, in order."""
        return cls(
            np.concatenate([p.points for p in parts]), np.concatenate([p.whitened for p in parts]),
            np.concatenate([p.mean for p in parts]), np.concatenate([p.novelty for p in parts]),
        )  # fmt: skip


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
        own = self._kernel(self._inputs, self._inputs) + hyper.noise * np.eye(len(labels))
        self._factor = np.asarray(linalg.cholesky(own, lower=True))
        self._weights = linalg.cho_solve((self._factor, True), np.asarray(labels, dtype=np.float64) - self._mean)

    def _kernel(self, one: Matrix, other: Matrix) -> Matrix:
        share = self.hyper.linear
        return np.asarray((1 - share) * radial(one, other, self.hyper.width) + share * (one @ other.T) / one.shape[1])

    def project(self, vectors: Matrix) -> Projection:
        """Return what N x F raw vectors are to this process: the costly part of every later question."""
        z = self.standard.apply(vectors)
        cross = self._kernel(z, self._inputs)
        whitened = linalg.solve_triangular(self._factor, cross.T, lower=True, check_finite=False).T
        prior = (1 - self.hyper.linear) + self.hyper.linear * (z * z).mean(axis=1)
        novelty = np.clip(1 - (whitened * whitened).sum(axis=1) / prior, 0.0, 1.0)
        return Projection(z, np.ascontiguousarray(whitened), np.asarray(self._mean + cross @ self._weights), novelty)

    def covariance(self, one: Projection, other: Projection) -> Matrix:
        """Return what the training data left undecided between all pairs of rows (posterior covariance)."""
        return np.asarray(self._kernel(one.points, other.points) - one.whitened @ other.whitened.T)
