"""Curves fitted to people's scores: the logistics of the literature, and monotone maps from tools' raw values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from program.tools.calibration import HIGHEST, LOWEST, MapParameters, is_identity, logistic
from program.tools.registry import FEWEST

__all__ = ("LogisticFit", "Parameters", "fit_logistic", "fit_map")

Parameters = Literal[4, 5]

_Array = NDArray[np.float64]

_TOLERANCE, _MAX_CALLS = 1e-5, 300
"""Relative change of the sum of squares at which a logistic fit has converged: far below any figure's last digit. One
that is not there by so many evaluations walks along a flat valley."""
_RAMP_QUANTILE = 0.95
"""Where the rise to the identity's 5 begins, among the readings of images that differ from their reference."""
_ISOTONIC_GAIN = 0.15
"""The logistic is kept unless an isotonic fit's residual is smaller by this much (of 4, the scale's length): steps
follow the levels of generated distortions, and tie what a tool tells apart."""


@dataclass(frozen=True)
class LogisticFit:
    """A fitted curve: call it with predicted scores to get human ones."""

    curve: Callable[[_Array], _Array]
    """From standardised predictions to standardised human scores."""
    centre: tuple[float, float]
    """Means of the predicted and the human scores; likewise `scale` their deviations."""
    scale: tuple[float, float]
    converged: bool = True
    """False: the least-squares line stands in for the logistic."""

    def __call__(self, predicted: _Array) -> _Array:
        """Return the curve at `predicted`, in the units of the human scores."""
        x = (np.asarray(predicted, dtype=np.float64) - self.centre[0]) / self.scale[0]
        return np.asarray(self.centre[1] + self.scale[1] * self.curve(x), dtype=np.float64)


def fit_logistic(truth: _Array, predicted: _Array, parameters: Parameters = 4) -> LogisticFit:
    """Fit human scores as a logistic function of predicted ones by least squares (Levenberg-Marquardt).

    | parameters | curve | source |
    |---|---|---|
    | 4 | `b2 + (b1 - b2) / (1 + exp(-(x - b3) / |b4|))` | VQEG 2000, FR-TV phase I |
    | 5 | `b1 (1/2 - 1/(1 + exp(b2 (x - b3)))) + b4 x + b5` | Sheikh, Sabir & Bovik 2006 |

    Both scores are standardised first (mean 0, deviation 1). With no more samples than parameters, constant input, or
    no convergence in 300 evaluations, the least-squares line is returned and `converged` is False.
    """
    y, x = np.asarray(truth, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    centre = (float(x.mean()), float(y.mean())) if x.size else (0.0, 0.0)
    scale = (float(x.std()) or 1.0, float(y.std()) or 1.0) if x.size else (1.0, 1.0)
    x, y = (x - centre[0]) / scale[0], (y - centre[1]) / scale[1]
    slope = float(np.mean(x * y)) if x.size else 0.0
    line = LogisticFit(lambda z: slope * z, centre, scale, converged=False)
    if x.size <= parameters or np.ptp(x) == 0 or np.ptp(y) == 0:
        return line
    top, bottom = (y.max(), y.min()) if slope >= 0 else (y.min(), y.max())
    start = (top, bottom, 0.0, 0.5) if parameters == 4 else (top - bottom, 1.0, 0.0, 0.0, 0.0)
    curve, slopes = (_four, _four_slopes) if parameters == 4 else (_five, _five_slopes)
    with np.errstate(all="ignore"):  # a wild step of the search overflows; it is judged below
        # What curve_fit runs inside; curve_fit would also warn of a covariance that nobody asks for here.
        beta, _, _, _, code = optimize.leastsq(
            lambda b: curve(x, *b) - y, start, Dfun=lambda b: slopes(x, *b), full_output=True, col_deriv=True,
            maxfev=_MAX_CALLS, ftol=_TOLERANCE, xtol=_TOLERANCE,
        )  # fmt: skip
        left = float(np.sum((curve(x, *beta) - y) ** 2))
    # A 4-parameter curve can lose to the line by a hair, never by much: then the search went astray.
    good = code in {1, 2, 3, 4} and left <= 1.02 * float(np.sum((slope * x - y) ** 2))
    return LogisticFit(lambda z: curve(z, *beta), centre, scale) if good else line


def _four(x: _Array, b1: float, b2: float, b3: float, b4: float) -> _Array:
    return np.asarray(b2 + (b1 - b2) * special.expit((x - b3) / _width(b4)), dtype=np.float64)


def _four_slopes(x: _Array, b1: float, b2: float, b3: float, b4: float) -> _Array:
    width = _width(b4)
    z = (x - b3) / width
    s = special.expit(z)
    steep = (b1 - b2) * s * (1 - s)
    return np.array([s, 1 - s, -steep / width, -steep * z / width * np.sign(b4 or 1.0)])


def _five(x: _Array, b1: float, b2: float, b3: float, b4: float, b5: float) -> _Array:
    return np.asarray(b1 * (special.expit(b2 * (x - b3)) - 0.5) + b4 * x + b5, dtype=np.float64)


def _five_slopes(x: _Array, b1: float, b2: float, b3: float, b4: float, b5: float) -> _Array:
    s = special.expit(b2 * (x - b3))
    steep = b1 * s * (1 - s)
    return np.array([s - 0.5, steep * (x - b3), -steep * b2, x, np.ones(x.size)])


def _width(b4: float) -> float:
    return max(abs(b4), 1e-9)


def fit_map(
    raw: ArrayLike, human: ArrayLike, *, higher_is_better: bool = True, identity: float | None = None
) -> MapParameters:
    """Fit a monotone map on raw values and human scores (1..5, higher is better), both of shape (n,).

    The map is the 5-parameter logistic of VQEG (a logistic plus a line) with slopes bound to the tool's direction,
    or an isotonic regression where that fits clearly better. Full reference: the identity maps to 5. The fit leaves
    identities out; from the 95th percentile of the other readings a straight rise to 5 is laid over the map where it
    is higher, so nine tenths of the range stay as fitted.

    Raises ValueError for fewer than 8 usable pairs, values that are not finite, or raw values all equal.

    >>> raw = np.linspace(20, 45, 40)
    >>> fitted = fit_map(raw, 1 + 4 / (1 + np.exp(-(raw - 32) / 3)), identity=80.0)
    >>> fitted.kind, fitted.sign
    ('logistic', 1)
    """
    values, scores = np.asarray(raw, float), np.asarray(human, float)
    if values.shape != scores.shape or values.ndim != 1 or not np.all(np.isfinite([values, scores])):
        raise ValueError("calibration: raw values and human scores must be finite and of equal number")
    differs = ~is_identity(values, identity)
    values, scores = values[differs], scores[differs]
    if len(values) < FEWEST or np.ptp(values) == 0:
        raise ValueError(f"calibration: {len(values)} usable readings, {FEWEST} that are not all equal are needed")
    sign: Literal[-1, 1] = 1 if higher_is_better else -1
    centre = float(np.median(values))
    spread = float(np.subtract(*np.percentile(values, [84, 16]))) / 2
    scale = spread or float(np.std(values))
    z = sign * (values - centre) / scale
    ramp = None
    if identity is not None:
        end = sign * (identity - centre) / scale
        ramp = (min(float(np.quantile(z, _RAMP_QUANTILE)), end - 1e-6), end)
    theta, knots = _bound_logistic(z, scores), _fit_isotonic(z, scores)
    if knots is not None and (theta is None or _gain(theta, knots, z, scores) > _ISOTONIC_GAIN):
        steps = tuple((float(x), float(y)) for x, y in knots)
        return MapParameters(kind="isotonic", sign=sign, centre=centre, scale=scale, ramp=ramp, knots=steps)
    if theta is None:
        raise ValueError("calibration: the readings do not rise with the human scores in the tool's direction")
    a, b, s, m, c = map(float, theta)
    return MapParameters(kind="logistic", sign=sign, centre=centre, scale=scale, ramp=ramp, logistic=(a, b, s, m, c))


def _gain(theta: _Array, knots: _Array, z: _Array, human: _Array) -> float:
    """Return by how much the residual of the steps is smaller than that of the logistic."""
    curve, steps = np.clip(logistic(theta, z), LOWEST, HIGHEST), np.interp(z, knots[:, 0], knots[:, 1])
    return float(np.sqrt(np.mean((curve - human) ** 2)) - np.sqrt(np.mean((steps - human) ** 2)))


def _bound_logistic(z: _Array, human: _Array) -> _Array | None:
    low, high = np.percentile(human, [5, 95])
    bounds = ([-50, 0, 0, -50, 0], [50, 50, 50, 50, 50])
    best = None
    for slope in (0.7, 3.0):
        for middle in (-0.5, 0.5):
            start = [low, max(high - low, 0.1), slope, middle, 0.01]
            fit = optimize.least_squares(lambda t: logistic(t, z) - human, start, bounds=bounds, max_nfev=400)
            if fit.success and np.all(np.isfinite(fit.x)) and (best is None or fit.cost < best.cost):
                best = fit
    return None if best is None else np.asarray(best.x, float)


def _fit_isotonic(z: _Array, human: _Array) -> _Array | None:
    from sklearn.isotonic import IsotonicRegression

    fit = IsotonicRegression(y_min=LOWEST, y_max=HIGHEST, out_of_bounds="clip").fit(z, human)
    knots = np.column_stack([fit.X_thresholds_, fit.y_thresholds_])
    rising = np.concatenate([[True], np.diff(knots[:, 0]) > 0])
    return knots[rising] if rising.sum() >= 2 else None
