"""Metrics against scipy and against the definitions written out."""

import inspect
import itertools

import numpy as np
import pytest
from scipy import optimize, stats

from program.common.errors import InputError
from program.evaluation import metrics
from program.evaluation.figures import details_of, nearest_level
from program.evaluation.intervals import METRICS
from program.evaluation.metrics import (
    accuracy,
    bias,
    fit_logistic,
    krcc,
    mae,
    outliers,
    plcc,
    rmse,
    srcc,
)
from tests.rows import labelled

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
    functions = {m.function for name, m in METRICS.items() if "logistic" not in name}
    public = {name: f for name, f in vars(metrics).items() if getattr(f, "__module__", "") == metrics.__name__
              and inspect.isfunction(f) and not name.startswith("_") and not name.endswith("_resampler")}  # fmt: skip
    own = {name for name, f in public.items() if f in functions}
    assert all(METRICS[name].function is public[name] for name in own)
    others = {"after_logistic", "agreements", "fit_logistic", "fit_map", "mean", "mean_of",
              "outliers", "paired_arrays"}  # fmt: skip
    assert own == public.keys() - others


def test_every_title_points_towards_the_better_end():
    arrows = {1: "↑", -1: "↓", 0: ""}
    assert {metric.direction for metric in METRICS.values()} == set(arrows)
    for metric in METRICS.values():
        assert "".join(c for c in metric.title if c in "↑↓") == arrows[metric.direction]
        assert metric.task in {"scoring", "mcq"}
        assert not metric.headline or metric.needs in {"scores", "answers", "preferences"}


def _sigmoid(seed, n, noise=0.3):
    rng = np.random.default_rng(seed)
    x = rng.uniform(1, 5, n)
    return 1 + 4 / (1 + np.exp(-(x - 3.2) / 0.4)) + noise * rng.standard_normal(n), x


def _four(x, b1, b2, b3, b4):
    return b2 + (b1 - b2) / (1 + np.exp(-(x - b3) / np.abs(b4)))


@pytest.mark.parametrize("n", [40, 500])
def test_logistic_fit_equals_curve_fit_of_the_formula_as_published(n):
    y, x = _sigmoid(n, n)
    beta, _ = optimize.curve_fit(_four, x, y, p0=(5, 1, 3, 0.5), maxfev=20_000)
    fit = fit_logistic(y, x)
    assert fit.converged
    np.testing.assert_allclose(fit(x), _four(x, *beta), atol=2e-3)
    expected = stats.pearsonr(_four(x, *beta), y).statistic
    assert METRICS["plcc_logistic4"](y, x) == pytest.approx(expected, abs=1e-5)
    left = np.sqrt(np.mean((_four(x, *beta) - y) ** 2))
    assert METRICS["rmse_logistic4"](y, x) == pytest.approx(left, abs=1e-5)


def test_logistic_follows_scale_shift_and_direction():
    y, x = _sigmoid(1, 200)
    value = METRICS["plcc_logistic4"](y, x)
    assert value > plcc(y, x)
    assert METRICS["plcc_logistic4"](y, 1e6 - 1e4 * x) == pytest.approx(value, abs=1e-6)
    assert METRICS["rmse_logistic4"](10 * y, x) == pytest.approx(10 * METRICS["rmse_logistic4"](y, x), rel=1e-6)


@pytest.mark.parametrize("case", ["few", "constant prediction", "constant truth", "no room to search"])
def test_a_line_stands_in_for_a_logistic_that_cannot_be_fitted(monkeypatch, case):
    y, x = _sigmoid(2, 30)
    if case == "few":
        y, x = y[:4], x[:4]
    elif case == "constant prediction":
        x = np.full(30, 2.0)
    elif case == "constant truth":
        y = np.full(30, 2.0)
    else:
        monkeypatch.setattr("program.evaluation.metrics._MAX_CALLS", 2)
    fit = fit_logistic(y, x)
    assert not fit.converged
    expected = np.polyval(np.polyfit(x, y, 1), x) if np.ptp(x) else np.full(30, y.mean())
    np.testing.assert_allclose(fit(x), expected, atol=1e-9)


def test_logistic_of_nothing_is_nan():
    assert np.isnan(METRICS["plcc_logistic4"]([], []))
    assert np.isnan(METRICS["rmse_logistic4"]([], []))


def test_bias_is_signed():
    assert bias([1, 2, 3], [2, 2, 5]) == 1.0
    assert bias([3.0], [1.0]) == -2.0
    assert np.isnan(bias([], []))


def test_outliers_are_beyond_two_deviations_of_the_opinions():
    assert outliers([3, 3, 3], [4.0, 4.01, 1.9], [0.5, 0.5, 0.6]).tolist() == [False, True, False]
    with pytest.raises(InputError, match="1 true and 2 predicted"):
        outliers([3.0], [3.0], [0.1, 0.1])


def _row(i, **more):
    fields = {"id": f"s{i:03}", "group": f"g{i}", "task": "scoring", "status": "ok", **more}
    return labelled(**fields)


@pytest.mark.usefixtures("coarse")
def test_details_agree_with_computing_each_by_hand():
    rng = np.random.default_rng(4)
    truth, noise = rng.uniform(1, 5, 60), rng.standard_normal(60)
    rows = [
        _row(i, truth=truth[i], predicted=float(np.clip(truth[i] + noise[i], 1, 5)), mos_std=0.5,
             distortion="ab"[i % 2], low=2.0 if i else None, high=3.5,
             level_probabilities={1: 0.1, 2: 0.2, 3: 0.4, 4: 0.2, 5: 0.1})
        for i in range(60)
    ]  # fmt: skip
    failed = _row(99, truth=2.0, status="failed", distortion="a")
    details = details_of([*rows, failed])
    predicted = np.array([row.predicted for row in rows])
    assert details.outlier_ratio.value == pytest.approx(np.mean(np.abs(predicted - truth) > 1.0))
    assert details.outlier_ratio.asked == 61
    assert details.by_distortion["a"].figures["srcc"].value == pytest.approx(srcc(truth[::2], predicted[::2]))
    assert (details.by_distortion["a"].n, details.by_distortion["a"].figures["srcc"].asked) == (30, 31)
    levels = np.array([nearest_level(t) for t in truth])
    assert details.by_level["3"].figures["bias"].value == pytest.approx((predicted - truth)[levels == 3].mean())
    assert sum(part.n for part in details.by_level.values()) == 60
    assert details.by_question_type == {}
    assert details.chance is None
    assert details.coverage.value == pytest.approx(np.mean((truth[1:] >= 2) & (truth[1:] <= 3.5)))
    assert details.coverage.n == 59


def test_details_of_choices():
    kinds, truth, said = ("how", "what", None), "ABAB", "ABBB"
    rows = [
        _row(i, task="mcq", truth=truth[i], predicted=said[i], question_type=kinds[i % 3], choices=2 + i % 2)
        for i in range(4)
    ]
    details = details_of(rows)
    assert details.by_question_type["how"].figures["accuracy"].value == 1.0
    assert details.chance == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert details.mae is None
