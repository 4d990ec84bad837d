"""Fitting a monotone map from a tool's raw values to human scores."""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from program.tools.maps import HIGHEST, LOWEST, MapParameters, apply_map, is_identity, logistic

__all__ = ("MonotoneMap",)

RAMP_QUANTILE = 0.95
"""Where the rise to the identity's 5 begins, among the readings of images that differ from their reference."""
ISOTONIC_GAIN = 0.15
"""The logistic is kept unless an isotonic fit's residual is smaller by this much (of 4, the scale's length): steps
follow the levels of generated distortions, and tie what a tool tells apart."""
FEWEST = 8
"""Fewer pairs than this fit nothing."""


class MonotoneMap:
    """A monotone map from a tool's raw value to a score 1..5, fitted by least squares.

    The map is the 5-parameter logistic of VQEG (a logistic plus a line) with slopes bound to the tool's direction,
    or an isotonic regression where that fits clearly better. Full reference: the identity maps to 5. The fit leaves
    identities out; from the 95th percentile of the other readings a straight rise to 5 is laid over the map where it
    is higher, so nine tenths of the range stay as fitted.

    >>> raw = np.linspace(20, 45, 40)
    >>> fitted = MonotoneMap(identity=80.0).fit(raw, 1 + 4 / (1 + np.exp(-(raw - 32) / 3)))
    >>> np.round(fitted.predict([-1e6, 32, 80]), 2).tolist()
    [1.0, 3.0, 5.0]
    """

    def __init__(self, *, higher_is_better: bool = True, identity: float | None = None) -> None:
        self.higher_is_better = higher_is_better
        self.identity = identity

    def fit(self, raw: ArrayLike, human: ArrayLike) -> "MonotoneMap":
        """Fit on raw values and human scores (1..5, higher is better), both of shape (n,).

        Raises ValueError for fewer than 8 usable pairs, values that are not finite, or raw values all equal.
        """
        values, scores = np.asarray(raw, float), np.asarray(human, float)
        if values.shape != scores.shape or values.ndim != 1 or not np.all(np.isfinite([values, scores])):
            raise ValueError("calibration: raw values and human scores must be finite and of equal number")
        if self.identity is not None:
            differs = ~is_identity(values, self.identity)
            values, scores = values[differs], scores[differs]
        if len(values) < FEWEST or np.ptp(values) == 0:
            raise ValueError(f"calibration: {len(values)} usable readings, {FEWEST} that are not all equal are needed")
        sign: Literal[-1, 1] = 1 if self.higher_is_better else -1
        centre = float(np.median(values))
        spread = float(np.subtract(*np.percentile(values, [84, 16]))) / 2
        scale = spread or float(np.std(values))
        z = sign * (values - centre) / scale
        kind, numbers = _fit_either(z, scores)
        ramp = None
        if self.identity is not None:
            end = sign * (self.identity - centre) / scale
            start = min(float(np.quantile(z, RAMP_QUANTILE)), end - 1e-6)
            ramp = (start, end)
        self.parameters_ = MapParameters(kind=kind, sign=sign, centre=centre, scale=scale, ramp=ramp, **numbers)
        self.n_ = len(values)
        self.rmse_ = float(np.sqrt(np.mean((self.predict(values) - scores) ** 2)))
        return self

    def predict(self, raw: ArrayLike) -> NDArray[np.float64]:
        """Return scores in 1..5 for finite raw values of any shape; rising in the tool's direction."""
        return apply_map(self.parameters_, raw)


def _fit_either(
    z: NDArray[np.float64], human: NDArray[np.float64]
) -> tuple[Literal["logistic", "isotonic"], dict[str, Any]]:
    theta = _fit_logistic(z, human)
    knots = _fit_isotonic(z, human)
    if knots is None and theta is None:
        raise ValueError("calibration: the readings do not rise with the human scores in the tool's direction")
    if knots is not None:
        steps = np.interp(z, knots[:, 0], knots[:, 1])
        step_error = _rms(steps - human)
        if theta is None or _rms(np.clip(logistic(theta, z), LOWEST, HIGHEST) - human) - step_error > ISOTONIC_GAIN:
            return "isotonic", {"knots": tuple((float(x), float(y)) for x, y in knots)}
    assert theta is not None  # noqa: S101 - told to the type checker; one of the two exists
    return "logistic", {"logistic": tuple(float(v) for v in theta)}


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


def _rms(residual: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(residual**2)))
