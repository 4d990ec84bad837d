"""Gaussian-process regression on feature vectors: a mean, what is left uncertain, and correction by further examples.

The posterior given training data is itself a Gaussian process; examples seen later (in-context) are conditioned on
in the same way, so none leave the prior, few move it near them and in directions the training data did not settle, many
approach a local regression. Source: Rasmussen & Williams 2006, ch. 2. Pure numpy/scipy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from program.expert.judge.standards import NormalScores, Standard, bent, slope, straight
from program.expert.store import Matrix

__all__ = ("Group", "Hyper", "Projection", "Regression", "hyper_of", "radial")


@dataclass(frozen=True, slots=True)
class Group:
    """Features that a kernel compares together."""

    start: int
    stop: int
    width: float
    """Squared length scale of the radial part, per feature."""
    weight: float
    """Share of this group in the whole kernel; the shares of all groups sum to 1."""


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
    groups: tuple[Group, ...] = ()
    """What the radial part sums over; empty: one group of all features, with `width`."""
    linear_stop: int | None = None
    """The linear part reads so many of the first features; None: all."""
    power: float = 1.0
    """Labels are fitted to this power (`standards.bent`); `noise` and the kernel are those of the powers."""

    def kernel(self, one: Matrix, other: Matrix) -> Matrix:
        """Return the prior covariance of all pairs of rows of standardised features; about 1 for equal rows."""
        groups = self.groups or (Group(0, one.shape[1], self.width, 1.0),)
        total = np.zeros((len(one), len(other)))
        for g in groups:
            total += g.weight * radial(one[:, g.start : g.stop], other[:, g.start : g.stop], g.width)
        total *= 1 - self.linear
        if self.linear:
            first, second = one[:, : self.linear_stop], other[:, : self.linear_stop]
            total += self.linear * (first @ second.T) / first.shape[1]
        return total

    def own(self, points: Matrix) -> Matrix:
        """Return the diagonal of `kernel(points, points)`."""
        read = points[:, : self.linear_stop]
        return np.asarray((1 - self.linear) + self.linear * (read * read).mean(axis=1))


def hyper_of(settings: Mapping[str, Any]) -> Hyper:
    """Return the hyperparameters that `dataclasses.asdict` wrote down."""
    return Hyper(**{**settings, "groups": tuple(Group(**group) for group in settings["groups"])})


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
    slope: Matrix
    """N: how much a prediction moves with what is fitted (`standards.slope`); 1 where labels are fitted as they are."""

    @property
    def spread(self) -> Matrix:
        """Further variance of the predictions: none."""
        return np.zeros_like(self.mean)

    @classmethod
    def stacked(cls, parts: "Sequence[Projection]") -> "Projection":
        """Join projections on the same process, in order."""
        names = ("points", "whitened", "mean", "novelty", "slope")
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def radial(one: Matrix, other: Matrix, width: float) -> Matrix:
    """Return exp(-|a - b|^2 / (2 width F)) for all pairs of rows."""
    square = (one * one).sum(axis=1)[:, None] + (other * other).sum(axis=1)[None] - 2 * one @ other.T
    return np.asarray(np.exp(-np.maximum(square, 0.0) / (2 * width * one.shape[1])))


class Regression:
    """A fitted process; immutable after construction, safe to share between threads."""

    def __init__(
        self, vectors: Matrix, labels: Matrix, standard: Standard | NormalScores, hyper: Hyper,
        noise: Matrix | None = None,
    ) -> None:  # fmt: skip
        """Fit on N x F raw vectors and N labels; `noise`: each label's variance, where not all are `hyper.noise`."""
        self._set_out(vectors, standard, hyper, noise)
        fitted = bent(np.asarray(labels, dtype=np.float64), hyper.power)
        self.mean = float(np.mean(fitted))
        self.weights = np.asarray(linalg.cho_solve((self.factor, True), fitted - self.mean))

    def _set_out(
        self, vectors: Matrix, standard: Standard | NormalScores, hyper: Hyper, noise: Matrix | None = None
    ) -> None:  # fmt: skip
        self.hyper, self.standard = hyper, standard
        self._inputs = standard.apply(vectors)
        variances = np.full(len(vectors), hyper.noise) if noise is None else noise
        own = hyper.kernel(self._inputs, self._inputs) + np.diag(variances)
        self.factor = np.asarray(linalg.cholesky(own, lower=True))

    @classmethod
    def kept(
        cls, vectors: Matrix, mean: float, weights: Matrix, standard: Standard | NormalScores, hyper: Hyper
    ) -> "Regression":  # fmt: skip
        """Return a process that was fitted on more images than the N x F raw vectors that were kept.

        `mean` and `weights` are what training found (`sparse_weights`). What is left undecided is the posterior given
        the images kept alone; how far the mean is from that of the whole process is not in it.
        """
        made = cls.__new__(cls)
        made._set_out(vectors, standard, hyper)
        made.mean, made.weights = mean, weights
        return made

    def project(self, vectors: Matrix) -> Projection:
        """Return what N x F raw vectors are to this process: the costly part of every later question."""
        z, cross = self._compared(vectors)
        return self._projected(z, cross)

    def weighed(self, vectors: Matrix, weights: Matrix) -> tuple[Projection, Matrix]:
        """Return the projection of N raw vectors and what `weights` on the T training images give for each.

        That is another function of the same kernel, at no further cost.
        """
        z, cross = self._compared(vectors)
        return self._projected(z, cross), np.asarray(cross @ weights)

    def _compared(self, vectors: Matrix) -> tuple[Matrix, Matrix]:
        z = self.standard.apply(vectors)
        return z, self.hyper.kernel(z, self._inputs)

    def _projected(self, z: Matrix, cross: Matrix) -> Projection:
        whitened = linalg.solve_triangular(self.factor, cross.T, lower=True, check_finite=False).T
        novelty = np.clip(1 - (whitened * whitened).sum(axis=1) / self.hyper.own(z), 0.0, 1.0)
        mean = straight(self.mean + cross @ self.weights, self.hyper.power)
        return Projection(z, np.ascontiguousarray(whitened), mean, novelty, slope(mean, self.hyper.power))

    def noise(self, qualities: Matrix) -> Matrix:
        """Return the variance of labels around N predicted qualities."""
        return np.asarray(self.hyper.noise * slope(qualities, self.hyper.power) ** 2)

    def covariance(self, one: Projection, other: Projection) -> Matrix:
        """Return what the training data left undecided between all pairs of rows (posterior covariance)."""
        left_open = self.hyper.kernel(one.points, other.points) - one.whitened @ other.whitened.T
        return np.asarray(left_open * np.outer(one.slope, other.slope))
