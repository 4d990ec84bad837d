"""Metrics against scipy and against the definitions written out."""

import itertools
from typing import get_args

import numpy as np
import pytest
from scipy import stats

from program.errors import InputError
from program.evaluation import metrics
from program.evaluation.metrics import METRICS, MetricName, accuracy, krcc, mae, mid_ranks, plcc, rmse, srcc

CORRELATIONS = [(srcc, stats.spearmanr), (plcc, stats.pearsonr), (krcc, stats.kendalltau)]


def _normal(rng, n):
    x = rng.standard_normal(n)
    return x, x + rng.standard_normal(n)


def _tied(rng, n):
    x = rng.integers(1, 6, n).astype(float)
    return x, np.round(x + rng.standard_normal(n))


@pytest.mark.parametrize(("ours", "theirs"), CORRELATIONS)
@pytest.mark.parametrize("n", [2, 3, 10, 101, 70_000])
@pytest.mark.parametrize("draw", [_normal, _tied])
def test_correlation_equals_scipy(ours, theirs, n, draw):
    x, y = draw(np.random.default_rng(n), n)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        x, y = np.arange(n), np.arange(n)[::-1]
    assert ours(x, y) == pytest.approx(theirs(x, y).statistic, rel=1e-10)


@pytest.mark.parametrize("n", [2, 5, 30])
def test_krcc_equals_its_definition_over_pairs(n):
    rng = np.random.default_rng(n)
    x, y = np.append(_tied(rng, n - 1), [[9.0], [9.0]], axis=1)
    pairs = [(np.sign(x[i] - x[j]), np.sign(y[i] - y[j])) for i, j in itertools.combinations(range(n), 2)]
    above = sum(a * b for a, b in pairs)
    below = np.sqrt(sum(a != 0 for a, _ in pairs) * sum(b != 0 for _, b in pairs))
    assert krcc(x, y) == pytest.approx(above / below, rel=1e-10)


@pytest.mark.parametrize("n", [1, 7, 70_000])
def test_mid_ranks_equal_scipy_also_when_all_are_tied(n):
    assert mid_ranks(np.zeros(n)).tolist() == [(n + 1) / 2] * n
    values = np.random.default_rng(0).integers(0, 50, n).astype(float)
    np.testing.assert_allclose(mid_ranks(values), stats.rankdata(values), rtol=1e-12)


@pytest.mark.parametrize("metric", [srcc, plcc, krcc])
@pytest.mark.parametrize("value", [3.0, 0.1, 1e300])
def test_correlation_of_constant_input_is_nan(metric, value):
    assert np.isnan(metric([value] * 7, range(7)))
    assert np.isnan(metric(range(7), [value] * 7))
    assert np.isnan(metric([1.0], [2.0]))
    assert np.isnan(metric([], []))


@pytest.mark.parametrize("metric", [srcc, plcc, krcc])
def test_perfect_correlation_is_exactly_one(metric):
    assert metric(range(5), range(5)) == pytest.approx(1.0, abs=1e-15)
    assert metric(range(5), range(5, 0, -1)) == pytest.approx(-1.0, abs=1e-15)


def test_plcc_holds_at_extreme_scales():
    x, y = _normal(np.random.default_rng(0), 50)
    for scale in (1e300, 1e-300):
        assert plcc(x * scale, y) == pytest.approx(plcc(x, y), rel=1e-10)


def test_errors_equal_numpy_and_vanish_for_equal_input():
    x, y = _normal(np.random.default_rng(1), 1000)
    assert rmse(x, y) == pytest.approx(np.linalg.norm(x - y) / np.sqrt(1000), rel=1e-12)
    assert mae(x, y) == pytest.approx(np.abs(x - y).sum() / 1000, rel=1e-12)
    assert rmse(x, x) == 0.0
    assert mae(x, x) == 0.0
    assert np.isnan(rmse([], []))
    assert np.isnan(mae([], []))


def test_accuracy_counts_equal_answers():
    assert accuracy(["A", "B", "C"], ["A", "C", "C"]) == pytest.approx(2 / 3)
    assert accuracy(np.array(["A", "B"]), np.array(["A", "B"])) == 1.0
    assert np.isnan(accuracy([], []))
    with pytest.raises(InputError, match="2 true and 1 predicted"):
        accuracy(["A", "B"], ["A"])


@pytest.mark.parametrize("metric", [srcc, plcc, krcc, rmse, mae])
def test_unusable_input_is_refused_by_name(metric):
    with pytest.raises(InputError, match=rf"^{metric.__name__}: predicted\[1\] is nan; leave failed samples out"):
        metric([1.0, 2.0], [1.0, np.nan])
    with pytest.raises(InputError, match=r"truth\[0\] is inf"):
        metric([np.inf, 2.0], [1.0, 2.0])
    with pytest.raises(InputError, match="3 true and 2 predicted"):
        metric([1, 2, 3], [1, 2])
    with pytest.raises(InputError, match="not a list of numbers"):
        metric(["a", "b"], [1, 2])
    with pytest.raises(InputError, match=r"shape \(1, 2\)"):
        metric([[1, 2]], [[1, 2]])


@pytest.mark.parametrize("metric", [srcc, plcc, krcc, rmse, mae])
def test_order_of_samples_does_not_matter(metric):
    rng = np.random.default_rng(3)
    x, y = _tied(rng, 200)
    order = rng.permutation(200)
    assert metric(x[order], y[order]) == pytest.approx(metric(x, y), rel=1e-12)


def test_every_metric_is_listed():
    assert set(METRICS) == set(get_args(MetricName))
    assert all(getattr(metrics, name) is function for name, function in METRICS.items())
