"""Metrics of many weighted versions of the same samples at once.

A bootstrap resample is a vector of counts over the samples. Most metrics are a closed form in those counts, so nothing
is sorted again per resample. The functions take truth and prediction and return the Resampler of one metric.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from program.evaluation.metrics import Values, paired_arrays

__all__ = ("Resampler", "bootstrap", "mean_of", "pearson", "right_order", "root_mean_square", "spearman", "tau")

_Array = NDArray[np.float64]

Resampler = Callable[[_Array], _Array]
"""Takes B x n counts, returns the metric of each of the B resamples (nan where undefined)."""


def spearman(truth: Values, predicted: Values) -> Resampler:
    """Return the resampler of SRCC."""
    ranks_x, ranks_y = map(_Ranks, paired_arrays("srcc", truth, predicted))
    return lambda counts: _correlation(counts, ranks_x(counts), ranks_y(counts))


def pearson(truth: Values, predicted: Values) -> Resampler:
    """Return the resampler of PLCC."""
    x, y = paired_arrays("plcc", truth, predicted)
    centred_x, centred_y = (x - x.mean())[None, :], (y - y.mean())[None, :]
    return lambda counts: _correlation(counts, centred_x, centred_y)


def tau(truth: Values, predicted: Values) -> Resampler:
    """Return the resampler of KRCC."""
    pairs = _Pairs(*paired_arrays("krcc", truth, predicted))

    def resampler(counts: _Array) -> _Array:
        agreeing, untied_x, untied_y = pairs(counts)
        return _divide(agreeing, np.sqrt(untied_x * untied_y))

    return resampler


def right_order(truth: Values, predicted: Values) -> Resampler:
    """Return the resampler of the pairwise accuracy."""
    pairs = _Pairs(*paired_arrays("pairwise", truth, predicted))

    def resampler(counts: _Array) -> _Array:
        agreeing, untied_x, _ = pairs(counts)
        return (1 + _divide(agreeing, untied_x)) / 2

    return resampler


def mean_of(each: Callable[[Values, Values], ArrayLike]) -> Callable[[Values, Values], Resampler]:
    """Return what makes the resampler of a metric that is a mean; `each` returns the samples' own numbers.

    >>> share = mean_of(np.equal)(["A", "B", "B"], ["A", "A", "B"])
    >>> share(np.array([[1.0, 1.0, 1.0], [0.0, 3.0, 1.0]])).round(6).tolist()
    [0.666667, 0.25]
    """

    def resampler(truth: Values, predicted: Values) -> Resampler:
        values = np.asarray(each(truth, predicted), dtype=np.float64)
        return lambda counts: np.asarray(counts @ values / counts.sum(axis=1), dtype=np.float64)

    return resampler


def root_mean_square(truth: Values, predicted: Values) -> Resampler:
    """Return the resampler of RMSE."""
    square = mean_of(lambda x, y: np.subtract(y, x) ** 2)(truth, predicted)
    return lambda counts: np.sqrt(square(counts))


def bootstrap(resamplers: Sequence[Resampler], size: int, seed: int, resamples: int) -> _Array:
    """Return each resampler's values over the same `resamples` random resamples of `size` samples, a row each.

    >>> draws = bootstrap([mean_of(np.equal)([1, 2], [1, 4])], 2, seed=0, resamples=1500)
    >>> draws.shape, sorted(set(draws[0].tolist()))
    ((1, 1500), [0.0, 0.5, 1.0])
    """
    rng = np.random.default_rng(seed)
    batch = max(1, min(resamples, 2_000_000 // size))  # keeps a batch's matrices near 16 MB each
    rows = []
    for start in range(0, resamples, batch):
        height = min(batch, resamples - start)
        drawn = rng.integers(size, size=(height, size)) + size * np.arange(height)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=height * size).reshape(height, size).astype(np.float64)
        rows.append(np.stack([resampler(counts) for resampler in resamplers]))
    return np.concatenate(rows, axis=1)


class _Ranks:
    """Mid-ranks of the repeated samples, centred on their mean, from counts alone."""

    def __init__(self, values: _Array) -> None:
        self._order = np.argsort(values, kind="stable")
        ordered = values[self._order]
        self._starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        self._place = np.empty(values.size, dtype=np.intp)
        self._place[self._order] = np.cumsum(np.append(False, ordered[1:] != ordered[:-1]))

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
