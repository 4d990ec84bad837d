"""Agreement between a program's scores or answers and people's, as single numbers.

Undefined is `nan`, never 0. Non-finite input is refused, since a failed sample has to be left out and counted, not
averaged in. Figures after a logistic fit use the labels they are judged by: they are for comparison with papers, the
raw ones say what a user of the scores gets. docs/figures.md holds every definition.

A bootstrap resample is a vector of counts over the samples. Most metrics are a closed form in those counts: such a one
is followed by what makes its resampler of truth and prediction, and nothing is sorted again per resample, which takes
4 to 20 times as long (`scipy.stats.rankdata` of 2,000 resamples of 60 to 2,000 samples).
"""

import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cachetools import LRUCache, cached
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from program.common.errors import InputError
from program.evaluation.fits import Parameters, fit_logistic

__all__ = (
    "Resampler", "Values", "accuracy", "after_logistic", "agreements", "bias", "calibration_error", "equal_mass_bins",
    "krcc", "krcc_resampler", "mae", "mean_of", "outliers", "paired_arrays", "pairwise", "pairwise_resampler", "plcc",
    "plcc_resampler", "preference", "rmse", "rmse_resampler", "srcc", "srcc_resampler",
)  # fmt: skip

_Array = NDArray[np.float64]

Values = Sequence[float] | Sequence[str] | NDArray[Any]
"""Numbers for the scoring metrics, answers for accuracy."""

Resampler = Callable[[_Array], _Array]
"""Takes B x n counts of the samples, returns the metric of each of the B resamples (nan where undefined)."""


def srcc(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return Spearman's rank correlation, -1..1, higher is better: Pearson's of the mid-ranks.

    nan for constant input or n < 2. Source: Spearman 1904; ties as in scipy.stats.spearmanr.
    """
    x, y = paired_arrays("srcc", truth, predicted)
    return _pearson(stats.rankdata(x), stats.rankdata(y))


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
    """Return Kendall's rank correlation tau-b, -1..1, higher is better.

    nan for constant input or n < 2. Source: Kendall 1945, Biometrika 33.
    """
    x, y = paired_arrays("krcc", truth, predicted)
    if _undefined(x) or _undefined(y):
        return float("nan")
    return float(stats.kendalltau(x, y).statistic)


def krcc_resampler(truth: Values, predicted: Values) -> Resampler:
    """Return the resampler of KRCC."""
    pairs = _Pairs(*paired_arrays("krcc", truth, predicted))

    def resampler(counts: _Array) -> _Array:
        agreeing, untied_x, untied_y = pairs(counts)
        return _divide(agreeing, np.sqrt(untied_x * untied_y))

    return resampler


def rmse(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return the root mean squared error in the units of the input, lower is better; nan for no samples."""
    x, y = paired_arrays("rmse", truth, predicted)
    return math.sqrt(_mean((y - x) ** 2))


def rmse_resampler(truth: Values, predicted: Values) -> Resampler:
    """Return the resampler of RMSE."""
    square = mean_of(lambda x, y: np.subtract(y, x) ** 2)(truth, predicted)
    return lambda counts: np.sqrt(square(counts))


def mae(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return the mean absolute error in the units of the input, lower is better; nan for no samples."""
    x, y = paired_arrays("mae", truth, predicted)
    return _mean(np.abs(y - x))


def accuracy(truth: Values, predicted: Values) -> float:
    """Return the share of answers equal to the true ones, 0..1, higher is better; nan for no samples."""
    if len(truth) != len(predicted):
        raise InputError(f"accuracy: {len(truth)} true and {len(predicted)} predicted answers; give one for each")
    return _mean(np.equal(truth, predicted))


def bias(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return the mean signed error in the units of the input, above 0 for scored too high; nan for no samples."""
    x, y = paired_arrays("bias", truth, predicted)
    return _mean(y - x)


def pairwise(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return the share of pairs of samples that are put in the right order, 0..1, 0.5 for guessing.

    Pairs tied in truth are left out; those tied in the prediction earn half a point, as a coin would. Equals
    `(1 + Somers' D) / 2` with the truth as the independent variable. nan where no two truths differ.
    Source: Somers 1962, American Sociological Review 27.
    """
    x, y = paired_arrays("pairwise", truth, predicted)
    if _undefined(x):
        return float("nan")
    if _undefined(y):
        return 0.5
    pairs = x.size * (x.size - 1) / 2
    untied_x, untied_y = pairs - _tied_pairs(x), pairs - _tied_pairs(y)
    agreeing = float(stats.kendalltau(x, y).statistic) * np.sqrt(untied_x) * np.sqrt(untied_y)  # C - D
    return float(np.clip((1 + agreeing / untied_x) / 2, 0.0, 1.0))


def pairwise_resampler(truth: Values, predicted: Values) -> Resampler:
    """Return the resampler of the pairwise accuracy."""
    pairs = _Pairs(*paired_arrays("pairwise", truth, predicted))

    def resampler(counts: _Array) -> _Array:
        agreeing, untied_x, _ = pairs(counts)
        return (1 + _divide(agreeing, untied_x)) / 2

    return resampler


def mean_of(each: Callable[[Values, Values], ArrayLike]) -> Callable[[Values, Values], Resampler]:
    """Return what makes the resampler of a metric that is a mean; `each` returns the samples' own numbers."""

    def resampler(truth: Values, predicted: Values) -> Resampler:
        values = np.asarray(each(truth, predicted), dtype=np.float64)
        return lambda counts: np.asarray(counts @ values / counts.sum(axis=1), dtype=np.float64)

    return resampler


def preference(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return the share of given pairs that are put in the right order, 0..1, 0.5 for guessing; see `agreements`."""
    return _mean(agreements(truth, predicted))


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


def calibration_error(right: ArrayLike, confidence: ArrayLike) -> float:
    """Return the expected calibration error of stated confidences, 0..1, lower is better.

    `right` is 1 where the most probable level was the human one, else 0; `confidence` is its probability; the bins are
    five of equal mass. nan for no samples. A calibrated program of n = 100 shows about 0.08, by chance alone.
    Source: Naeini et al. 2015, AAAI (equal-mass bins: Nixon et al. 2019).
    """
    x, y = paired_arrays("calibration_error", right, confidence)
    if not x.size:
        return float("nan")
    bins = equal_mass_bins(y)
    return float(np.abs(np.bincount(bins, x - y)).sum() / x.size)


def after_logistic(
    truth: ArrayLike, predicted: ArrayLike, *, metric: Callable[..., float], parameters: Parameters
) -> float:
    """Return a metric after a logistic curve was fitted to these very samples; see `fit_logistic`."""
    x, y = paired_arrays(f"logistic{parameters}", truth, predicted)
    return metric(x, _fitted(x, y, parameters)(y))


def _key(truth: _Array, predicted: _Array, parameters: Parameters) -> tuple[bytes, int]:
    return hashlib.blake2b(truth.tobytes() + predicted.tobytes(), digest_size=16).digest(), parameters


# The metrics after a logistic are asked for the same resamples, one metric after the other.
_fitted = cached(LRUCache(2048), key=_key, lock=threading.Lock())(fit_logistic)


def equal_mass_bins(values: _Array) -> NDArray[np.intp]:
    """Return each value's bin, 0..4, of about n / 5 members; equal values share one."""
    # By mid-rank, so that the order of the samples decides nothing.
    ceilings = np.ceil(np.asarray(stats.rankdata(values)) * 5 / values.size - 1e-9)
    return np.minimum(ceilings.astype(np.intp), 5) - 1


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


def _mean(values: _Array | NDArray[np.bool_]) -> float:
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


def _tied_pairs(values: _Array) -> float:
    counts = np.unique(values, return_counts=True)[1].astype(np.float64)
    return float(np.sum(counts * (counts - 1) / 2))


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


class _Pairs:
    """Counts pairs of samples by whether both scores order them alike; needs n x n bytes of memory."""

    def __init__(self, x: _Array, y: _Array) -> None:
        self._ranks_x, self._ranks_y = _Ranks(x), _Ranks(y)
        signs = np.sign(x[:, None] - x[None, :]) * np.sign(y[:, None] - y[None, :])
        self._agree = signs.astype(np.float32)  # -1, 0, 1: sums stay exact far beyond any n that fits in memory

    def __call__(self, counts: _Array) -> tuple[_Array, _Array, _Array]:
        """Return concordant minus discordant pairs, and the pairs untied in x and in y."""
        n = counts.sum(axis=1)
        pairs = n * (n - 1) / 2
        agreeing = np.einsum("bi,bi->b", counts.astype(np.float32) @ self._agree, counts) / 2
        return agreeing, pairs - self._ranks_x.ties(counts), pairs - self._ranks_y.ties(counts)


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
