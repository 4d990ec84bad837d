"""Fitting a monotone map from a tool's raw values to human scores."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from program.tools.calibration import HIGHEST, LOWEST, MapParameters, is_identity, logistic
from program.tools.figures import FEWEST

__all__ = ("fit_map",)

RAMP_QUANTILE = 0.95
"""Where the rise to the identity's 5 begins, among the readings of images that differ from their reference."""
ISOTONIC_GAIN = 0.15
"""The logistic is kept unless an isotonic fit's residual is smaller by this much (of 4, the scale's length): steps
follow the levels of generated distortions, and tie what a tool tells apart."""


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
        ramp = (min(float(np.quantile(z, RAMP_QUANTILE)), end - 1e-6), end)
    theta, knots = _fit_logistic(z, scores), _fit_isotonic(z, scores)
    if knots is not None and (theta is None or _gain(theta, knots, z, scores) > ISOTONIC_GAIN):
        steps = tuple((float(x), float(y)) for x, y in knots)
        return MapParameters(kind="isotonic", sign=sign, centre=centre, scale=scale, ramp=ramp, knots=steps)
    if theta is None:
        raise ValueError("calibration: the readings do not rise with the human scores in the tool's direction")
    a, b, s, m, c = map(float, theta)
    return MapParameters(kind="logistic", sign=sign, centre=centre, scale=scale, ramp=ramp, logistic=(a, b, s, m, c))


def _gain(
    theta: NDArray[np.float64], knots: NDArray[np.float64], z: NDArray[np.float64], human: NDArray[np.float64]
) -> float:
    """Return by how much the residual of the steps is smaller than that of the logistic."""
    curve, steps = np.clip(logistic(theta, z), LOWEST, HIGHEST), np.interp(z, knots[:, 0], knots[:, 1])
    return float(np.sqrt(np.mean((curve - human) ** 2)) - np.sqrt(np.mean((steps - human) ** 2)))


def _fit_logistic(z: NDArray[np.float64], human: NDArray[np.float64]) -> NDArray[np.float64] | None:
    from scipy.optimize import least_squares

    low, high = np.percentile(human, [5, 95])
    bounds = ([-50, 0, 0, -50, 0], [50, 50, 50, 50, 50])
    best = None
    for slope in (0.7, 3.0):
        for middle in (-0.5, 0.5):
            start = [low, max(high - low, 0.1), slope, middle, 0.01]
            fit = least_squares(lambda t: logistic(t, z) - human, start, bounds=bounds, max_nfev=400)
            if fit.success and np.all(np.isfinite(fit.x)) and (best is None or fit.cost < best.cost):
                best = fit
    return None if best is None else np.asarray(best.x, float)


def _fit_isotonic(z: NDArray[np.float64], human: NDArray[np.float64]) -> NDArray[np.float64] | None:
    from sklearn.isotonic import IsotonicRegression

    fit = IsotonicRegression(y_min=LOWEST, y_max=HIGHEST, out_of_bounds="clip").fit(z, human)
    knots = np.column_stack([fit.X_thresholds_, fit.y_thresholds_])
    rising = np.concatenate([[True], np.diff(knots[:, 0]) > 0])
    return knots[rising] if rising.sum() >= 2 else None
