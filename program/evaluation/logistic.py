"""The logistic curve from predicted to human scores that the literature fits before it quotes PLCC and RMSE. Pure.

The fit takes 4 or 5 numbers from the very labels it is then judged by, so its figures are never worse than the raw
ones. They are for comparison with papers; the raw figures say what a user of the scores gets.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

__all__ = ("LogisticFit", "Parameters", "fit_logistic")

Parameters = Literal[4, 5]

_Array = NDArray[np.float64]

_TOLERANCE = 1e-5
"""Relative change of the sum of squares at which a fit has converged: far below any figure's last digit."""

_MAX_CALLS = 300
"""A fit that is not there by then walks along a flat valley."""


@dataclass(frozen=True)
class LogisticFit:
    """A fitted curve: call it with predicted scores to get human ones."""

    parameters: Parameters
    beta: tuple[float, ...]
    """Of the standardised scores: see `fit_logistic`."""
    converged: bool
    """False: the least-squares line stands in for the logistic."""
    centre: tuple[float, float]
    scale: tuple[float, float]

    def __call__(self, predicted: _Array) -> _Array:
        """Return the curve at `predicted`, in the units of the human scores."""
        x = (np.asarray(predicted, dtype=np.float64) - self.centre[0]) / self.scale[0]
        if not self.converged:
            y = self.beta[0] * x + self.beta[1]
        else:
            y = _four(x, *self.beta) if self.parameters == 4 else _five(x, *self.beta)
        return np.asarray(self.centre[1] + self.scale[1] * y, dtype=np.float64)


def fit_logistic(truth: _Array, predicted: _Array, parameters: Parameters = 4) -> LogisticFit:
    """Fit human scores as a logistic function of predicted ones by least squares (Levenberg-Marquardt).

    | parameters | curve | source |
    |---|---|---|
    | 4 | `b2 + (b1 - b2) / (1 + exp(-(x - b3) / |b4|))` | VQEG 2000, FR-TV phase I |
    | 5 | `b1 (1/2 - 1/(1 + exp(b2 (x - b3)))) + b4 x + b5` | Sheikh, Sabir & Bovik 2006 |

    Both scores are standardised first (mean 0, deviation 1; s is the sign of their correlation). Start values:
    (4) the highest and the lowest truth (swapped when s < 0), 0, 1/2; (5) s times the range of the truth, 1, 0, 0, 0.
    With no more samples than parameters, constant input, or no convergence in 300 evaluations, the least-squares
    line is returned and `converged` is False.
    """
    y, x = np.asarray(truth, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    centre = (float(x.mean()), float(y.mean())) if x.size else (0.0, 0.0)
    scale = (float(x.std()) or 1.0, float(y.std()) or 1.0) if x.size else (1.0, 1.0)
    x, y = (x - centre[0]) / scale[0], (y - centre[1]) / scale[1]
    slope = float(np.mean(x * y)) if x.size else 0.0
    line = LogisticFit(parameters, (slope, 0.0), False, centre, scale)
    if x.size <= parameters or np.ptp(x) == 0 or np.ptp(y) == 0:
        return line
    top, bottom = (y.max(), y.min()) if slope >= 0 else (y.min(), y.max())
    start = (top, bottom, 0.0, 0.5) if parameters == 4 else (top - bottom, 1.0, 0.0, 0.0, 0.0)
    curve, slopes = (_four, _four_slopes) if parameters == 4 else (_five, _five_slopes)
    with np.errstate(all="ignore"):  # a wild step of the search overflows; it is judged below
        # What curve_fit runs inside; curve_fit would also warn of a covariance that nobody asks for here.
        beta, _, _, _, code = optimize.leastsq(
            lambda b: curve(x, *b) - y, start, Dfun=lambda b: slopes(x, *b), full_output=True, maxfev=_MAX_CALLS,
            ftol=_TOLERANCE, xtol=_TOLERANCE,
        )  # fmt: skip
        left = float(np.sum((curve(x, *beta) - y) ** 2))
    # A 4-parameter curve can lose to the line by a hair, never by much: then the search went astray.
    good = code in {1, 2, 3, 4} and left <= 1.02 * float(np.sum((slope * x - y) ** 2))
    return LogisticFit(parameters, tuple(map(float, beta)), True, centre, scale) if good else line


def _four(x: _Array, b1: float, b2: float, b3: float, b4: float) -> _Array:
    return np.asarray(b2 + (b1 - b2) * special.expit((x - b3) / _width(b4)), dtype=np.float64)


def _four_slopes(x: _Array, b1: float, b2: float, b3: float, b4: float) -> _Array:
    width = _width(b4)
    z = (x - b3) / width
    s = special.expit(z)
    steep = (b1 - b2) * s * (1 - s)
    return np.stack([s, 1 - s, -steep / width, -steep * z / width * np.sign(b4 or 1.0)], axis=1)


def _five(x: _Array, b1: float, b2: float, b3: float, b4: float, b5: float) -> _Array:
    return np.asarray(b1 * (special.expit(b2 * (x - b3)) - 0.5) + b4 * x + b5, dtype=np.float64)


def _five_slopes(x: _Array, b1: float, b2: float, b3: float, b4: float, b5: float) -> _Array:
    s = special.expit(b2 * (x - b3))
    steep = b1 * s * (1 - s)
    return np.stack([s - 0.5, steep * (x - b3), -steep * b2, x, np.ones_like(x)], axis=1)


def _width(b4: float) -> float:
    return max(abs(b4), 1e-9)
