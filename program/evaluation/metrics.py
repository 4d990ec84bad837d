"""Agreement between a program's scores or answers and people's, and the curves that are fitted to people's scores."""

import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy  # its statistics and searches load late: to serve needs neither
from cachetools import LRUCache, cached
from numpy.typing import ArrayLike, NDArray
from scipy import special

from program.common.errors import InputError
from program.tools.calibration import FEWEST, HIGHEST, LOWEST, MapParameters, is_identity, logistic

_Array = NDArray[np.float64]

PARAMETERS = 4
"""Of the logistic: it passes through as many points, whatever they are."""
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


def fit_logistic(truth: _Array, predicted: _Array) -> LogisticFit:
    """Fit human scores as a logistic function of predicted ones by least squares (Levenberg-Marquardt).

    The curve is `b2 + (b1 - b2) / (1 + exp(-(x - b3) / |b4|))` of standardised scores (VQEG 2000, FR-TV phase I). With
    no more than four samples, constant input, or no convergence in 300 evaluations, the least-squares line is returned
    and `converged` is False.
    """
    y, x = np.asarray(truth, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    centre = (float(x.mean()), float(y.mean())) if x.size else (0.0, 0.0)
    scale = (float(x.std()) or 1.0, float(y.std()) or 1.0) if x.size else (1.0, 1.0)
    x, y = (x - centre[0]) / scale[0], (y - centre[1]) / scale[1]
    slope = float(np.mean(x * y)) if x.size else 0.0
    line = LogisticFit(lambda z: slope * z, centre, scale, converged=False)
    if x.size <= PARAMETERS or np.ptp(x) == 0 or np.ptp(y) == 0:
        return line
    top, bottom = (y.max(), y.min()) if slope >= 0 else (y.min(), y.max())
    with np.errstate(all="ignore"):  # a wild step of the search overflows; it is judged below
        # What curve_fit runs inside; curve_fit would also warn of a covariance that nobody asks for here.
        beta, _, _, _, code = scipy.optimize.leastsq(
            lambda b: _curve(x, *b) - y, (top, bottom, 0.0, 0.5), Dfun=lambda b: _slopes(x, *b), full_output=True,
            col_deriv=True, maxfev=_MAX_CALLS, ftol=_TOLERANCE, xtol=_TOLERANCE,
        )  # fmt: skip
        left = float(np.sum((_curve(x, *beta) - y) ** 2))
    # The curve can lose to the line by a hair, never by much: then the search went astray.
    good = code in {1, 2, 3, 4} and left <= 1.02 * float(np.sum((slope * x - y) ** 2))
    return LogisticFit(lambda z: _curve(z, *beta), centre, scale) if good else line


def _curve(x: _Array, b1: float, b2: float, b3: float, b4: float) -> _Array:
    return np.asarray(b2 + (b1 - b2) * special.expit((x - b3) / _width(b4)), dtype=np.float64)


def _slopes(x: _Array, b1: float, b2: float, b3: float, b4: float) -> _Array:
    width = _width(b4)
    z = (x - b3) / width
    s = special.expit(z)
    steep = (b1 - b2) * s * (1 - s)
    return np.array([s, 1 - s, -steep / width, -steep * z / width * np.sign(b4 or 1.0)])


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
            fit = scipy.optimize.least_squares(lambda t: logistic(t, z) - human, start, bounds=bounds, max_nfev=400)
            if fit.success and np.all(np.isfinite(fit.x)) and (best is None or fit.cost < best.cost):
                best = fit
    return None if best is None else np.asarray(best.x, float)


def _fit_isotonic(z: _Array, human: _Array) -> _Array | None:
    from sklearn.isotonic import IsotonicRegression

    fit = IsotonicRegression(y_min=LOWEST, y_max=HIGHEST, out_of_bounds="clip").fit(z, human)
    knots = np.column_stack([fit.X_thresholds_, fit.y_thresholds_])
    rising = np.concatenate([[True], np.diff(knots[:, 0]) > 0])
    return knots[rising] if rising.sum() >= 2 else None


Values = Sequence[float] | Sequence[str] | NDArray[Any]
"""Numbers for the scoring metrics, answers for accuracy."""

Resampler = Callable[[_Array], _Array]
"""Takes B x n counts of the samples, returns the metric of each of the B resamples (nan where undefined)."""


def srcc(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return Spearman's rank correlation, -1..1, higher is better: Pearson's of the mid-ranks.

    nan for constant input or n < 2. Source: Spearman 1904; ties as in scipy.stats.spearmanr.
    """
    x, y = paired_arrays("srcc", truth, predicted)
    return _pearson(scipy.stats.rankdata(x), scipy.stats.rankdata(y))


def srcc_resampler(truth: Values, predicted: Values) -> Resampler:
    """Return the resampler of SRCC."""
    ranks_x, ranks_y = map(_Ranks, paired_arrays("srcc", truth, predicted))
    return lambda counts: _correlation(counts, ranks_x(counts), ranks_y(counts))


def plcc(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return Pearson's linear correlation, -1..1, higher is better; nan for constant input or n < 2."""
    return _pearson(*paired_arrays("plcc", truth, predicted))


def plcc_resampler(truth: Values, predicted: Values) -> Resampler:
    """Return the resampler of PLCC."""
    x, y = paired_arrays("plcc", truth, predicted)
    centred_x, centred_y = (x - x.mean())[None, :], (y - y.mean())[None, :]
    return lambda counts: _correlation(counts, centred_x, centred_y)


def krcc(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return Kendall's tau-b (1945, Biometrika 33), -1..1, higher is better; nan for constant input or n < 2."""
    x, y = paired_arrays("krcc", truth, predicted)
    if _undefined(x) or _undefined(y):
        return float("nan")
    return float(scipy.stats.kendalltau(x, y).statistic)


def rmse(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return the root mean squared error in the units of the input, lower is better; nan for no samples."""
    x, y = paired_arrays("rmse", truth, predicted)
    return math.sqrt(mean((y - x) ** 2))


def rmse_resampler(truth: Values, predicted: Values) -> Resampler:
    """Return the resampler of RMSE."""
    square = mean_of(lambda x, y: np.subtract(y, x) ** 2)(truth, predicted)
    return lambda counts: np.sqrt(square(counts))


def mae(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return the mean absolute error in the units of the input, lower is better; nan for no samples."""
    x, y = paired_arrays("mae", truth, predicted)
    return mean(np.abs(y - x))


def accuracy(truth: Values, predicted: Values) -> float:
    """Return the share of answers equal to the true ones, 0..1, higher is better; nan for no samples."""
    if len(truth) != len(predicted):
        raise InputError(f"accuracy: {len(truth)} true and {len(predicted)} predicted answers; give one for each")
    return mean(np.equal(truth, predicted))


def bias(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return the mean signed error in the units of the input, above 0 for scored too high; nan for no samples."""
    x, y = paired_arrays("bias", truth, predicted)
    return mean(y - x)


def mean_of(each: Callable[[Values, Values], ArrayLike]) -> Callable[[Values, Values], Resampler]:
    """Return what makes the resampler of a metric that is a mean; `each` returns the samples' own numbers."""

    def resampler(truth: Values, predicted: Values) -> Resampler:
        values = np.asarray(each(truth, predicted), dtype=np.float64)
        return lambda counts: np.asarray(counts @ values / counts.sum(axis=1), dtype=np.float64)

    return resampler


def preference(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return the share of given pairs that are put in the right order, 0..1, 0.5 for guessing; see `agreements`."""
    return mean(agreements(truth, predicted))


def agreements(truth: ArrayLike, predicted: ArrayLike) -> _Array:
    """Return 1 for each pair put in the right order, 0 for a wrong one, 0.5 for a predicted tie.

    Both inputs hold the first image's score minus the second's; of the truth, which may not be 0, the sign counts.

    >>> agreements([1.0, -1.0, 1.0], [0.3, 0.2, 0.0]).tolist()
    [1.0, 0.0, 0.5]
    """
    x, y = paired_arrays("preference", truth, predicted)
    return np.asarray((1 + np.sign(x) * np.sign(y)) / 2, dtype=np.float64)


def outliers(truth: ArrayLike, predicted: ArrayLike, spread: ArrayLike) -> NDArray[np.bool_]:
    """Return which predictions miss the mean opinion by more than two standard deviations of the opinions.

    Their mean is the outlier ratio. Source: VQEG 2000, FR-TV phase I (2 sigma of the raters' scores; its phase II uses
    the mean's standard error instead).
    """
    x, y = paired_arrays("outlier ratio", truth, predicted)
    _, s = paired_arrays("outlier ratio", truth, spread)
    return np.asarray(np.abs(y - x) > 2 * s)


def after_logistic(truth: ArrayLike, predicted: ArrayLike, *, metric: Callable[..., float]) -> float:
    """Return a metric after a logistic curve was fitted to these very samples; see `fit_logistic`."""
    x, y = paired_arrays("logistic", truth, predicted)
    return metric(x, _fitted(x, y)(y))


def _key(truth: _Array, predicted: _Array) -> bytes:
    return hashlib.blake2b(truth.tobytes() + predicted.tobytes(), digest_size=16).digest()


# The metrics after a logistic are asked for the same resamples, one metric after the other.
_fitted = cached(LRUCache(2048), key=_key, lock=threading.Lock())(fit_logistic)


def paired_arrays(name: str, truth: ArrayLike, predicted: ArrayLike) -> tuple[_Array, _Array]:
    """Return both inputs as equally long, finite float64 vectors; InputError says what is wrong with them."""
    x, y = _vector(name, "truth", truth), _vector(name, "predicted", predicted)
    if x.size != y.size:
        raise InputError(f"{name}: {x.size} true and {y.size} predicted values; give one prediction for each")
    return x, y


def _vector(name: str, role: str, values: ArrayLike) -> _Array:
    try:
        vector = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {role} is not a list of numbers ({error}); give floats") from None
    if vector.ndim != 1:
        raise InputError(f"{name}: {role} has shape {vector.shape}; give one flat list of numbers")
    bad = np.flatnonzero(~np.isfinite(vector))
    if bad.size:
        raise InputError(f"{name}: {role}[{bad[0]}] is {vector[bad[0]]}; leave failed samples out and count them")
    return vector


def mean(values: _Array | NDArray[np.bool_]) -> float:
    """Return the mean; nan of nothing."""
    return float(np.mean(values)) if values.size else float("nan")


def _undefined(values: _Array) -> bool:
    return values.size < 2 or bool(values.min() == values.max())


def _pearson(x: _Array, y: _Array) -> float:
    if _undefined(x) or _undefined(y):
        return float("nan")
    return float(np.clip(np.dot(_unit(x), _unit(y)), -1.0, 1.0))


def _unit(values: _Array) -> _Array:
    scaled = values / np.abs(values).max()  # so that neither the mean nor the squares overflow
    centred = scaled - scaled.mean()
    centred /= np.abs(centred).max()
    return np.asarray(centred / np.linalg.norm(centred), dtype=np.float64)


def krcc_resampler(truth: Values, predicted: Values) -> Resampler:
    """Return the resampler of KRCC, which needs n x n bytes of memory."""
    x, y = paired_arrays("krcc", truth, predicted)
    ranks_x, ranks_y = _Ranks(x), _Ranks(y)
    signs = np.sign(x[:, None] - x[None, :]) * np.sign(y[:, None] - y[None, :])
    agree = signs.astype(np.float32)  # -1, 0, 1: sums stay exact far beyond any n that fits in memory

    def resampled(counts: _Array) -> _Array:
        n = counts.sum(axis=1)
        pairs = n * (n - 1) / 2
        agreeing = np.einsum("bi,bi->b", counts.astype(np.float32) @ agree, counts) / 2
        untied = (pairs - ranks_x.ties(counts)) * (pairs - ranks_y.ties(counts))
        return _divide(agreeing, np.sqrt(untied))

    return resampled


class _Ranks:
    """Mid-ranks of the repeated samples, centred on their mean, from counts alone."""

    def __init__(self, values: _Array) -> None:
        _, self._place, sizes = np.unique(values, return_inverse=True, return_counts=True)
        self._order = np.argsort(values, kind="stable")
        self._starts = np.cumsum(sizes) - sizes

    def __call__(self, counts: _Array) -> _Array:
        level = np.add.reduceat(counts[:, self._order], self._starts, axis=1)
        # A value met m times after c smaller ones has mid-rank c + (m + 1)/2, and the mean rank is (n + 1)/2.
        ranks = np.cumsum(level, axis=1) - level / 2
        ranks -= counts.sum(axis=1, keepdims=True) / 2
        return ranks[:, self._place]

    def ties(self, counts: _Array) -> _Array:
        """Return the number of tied pairs in each resample."""
        level = np.add.reduceat(counts[:, self._order], self._starts, axis=1)
        return np.asarray((level * (level - 1) / 2).sum(axis=1), dtype=np.float64)


def _correlation(counts: _Array, x: _Array, y: _Array) -> _Array:
    """Return Pearson's r of each row; x and y are B x n or 1 x n, near mean zero over all samples."""
    n = counts.sum(axis=1, keepdims=True)
    x = x - np.sum(counts * x, axis=1, keepdims=True) / n
    y = y - np.sum(counts * y, axis=1, keepdims=True) / n
    weighted = counts * x
    spread_x, spread_y = np.einsum("bi,bi->b", weighted, x), np.einsum("bi,bi,bi->b", counts, y, y)
    together = np.einsum("bi,bi->b", weighted, y)
    # What rounding leaves of a constant resample is no spread.
    flat = (spread_x <= 1e-24 * np.max(x**2) * n[:, 0]) | (spread_y <= 1e-24 * np.max(y**2) * n[:, 0])
    return np.where(flat, np.nan, np.clip(_divide(together, np.sqrt(spread_x * spread_y)), -1.0, 1.0))


def _divide(above: _Array, below: _Array) -> _Array:
    return np.asarray(np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0), dtype=np.float64)
