"""What features and labels are measured by before a regression compares them. Pure numpy/scipy."""

from dataclasses import dataclass

import numpy as np

from program.expert.store import Matrix, as_stored

__all__ = ("NormalScores", "Standard", "bent", "slope", "straight")

_MIDDLE, _LEAST = 3.0, 0.6
"""The middle of the scale of qualities; the least quality that is told apart from still worse ones."""


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


class NormalScores:
    """Features by their rank among photographs: where a value lies in their distribution, as a normal deviate.

    One feature's outliers then carry no further than another's. Values count in half precision, in which the training
    images are stored: a finer rank would tell the same value apart from itself. Source: van der Waerden scores
    (Conover 1999, sec. 5.10).
    """

    LEVELS = np.linspace(-2.75, 2.75, 45)
    """Normal deviates of the quantiles that are kept; values outside get the first or the last."""

    def __init__(self, quantiles: Matrix) -> None:
        """Take Q x F quantiles at `LEVELS`, as training writes them; equal ones share their mean deviate."""
        if quantiles.ndim != 2 or len(quantiles) != len(self.LEVELS):
            raise ValueError(f"quantiles of shape {quantiles.shape}: expected {len(self.LEVELS)} x F")
        self.quantiles = quantiles
        self._scores = np.empty_like(quantiles)
        for j, column in enumerate(quantiles.T):
            _, group = np.unique(column, return_inverse=True)
            self._scores[:, j] = (np.bincount(group, self.LEVELS) / np.bincount(group))[group]

    def apply(self, vectors: Matrix) -> Matrix:
        """Return N x F normal deviates, linear between quantiles."""
        rows = as_stored(np.atleast_2d(vectors))
        features = np.arange(rows.shape[1])
        found = np.empty(rows.shape)
        for i, row in enumerate(rows):
            above = (self.quantiles <= row).sum(axis=0)
            upper, lower = np.minimum(above, len(self.LEVELS) - 1), np.maximum(above - 1, 0)
            low, high = self.quantiles[lower, features], self.quantiles[upper, features]
            share = np.where(high > low, (row - low) / np.where(high > low, high - low, 1.0), 0.0)
            start, end = self._scores[lower, features], self._scores[upper, features]
            found[i] = start + np.clip(share, 0.0, 1.0) * (end - start)
        return found


def bent(qualities: Matrix, power: float) -> Matrix:
    """Return N qualities to a power, scaled so that a step in the middle of the scale (3) stays as it is.

    With a power above 1 steps between good images count more than steps between bad ones. Source: Snelson, Rasmussen &
    Ghahramani 2004 (warped Gaussian processes).
    """
    if power == 1:
        return qualities
    return np.asarray(_MIDDLE / power * (qualities / _MIDDLE) ** power)


def straight(values: Matrix, power: float) -> Matrix:
    """Return the qualities that `bent` gives these N values for; 0.6 for all that lie below its value."""
    if power == 1:
        return values
    lowest = bent(np.array(_LEAST), power)
    return np.asarray(_MIDDLE * (np.maximum(values, lowest) * power / _MIDDLE) ** (1 / power))


def slope(qualities: Matrix, power: float) -> Matrix:
    """Return how much N qualities move with their bent values: one over the derivative of `bent`."""
    return np.asarray((_MIDDLE / np.maximum(qualities, _LEAST)) ** (power - 1))
