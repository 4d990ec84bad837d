"""Intervals: closed-form resampling against plain repetition, and coverage by simulation."""

import numpy as np
import pytest
from scipy import stats

from program.common.errors import InputError
from program.evaluation import intervals
from program.evaluation.intervals import METRICS, Figure, bootstrap, interval, paired_difference, wilson

NUMERIC = ("srcc", "plcc", "krcc", "rmse", "mae")
FURTHER = ("bias", "plcc_logistic4", "rmse_logistic4")


def _scores(seed, n, noise=1.0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n)
    return x, x + noise * rng.standard_normal(n)


@pytest.mark.parametrize("metric", NUMERIC + FURTHER)
@pytest.mark.parametrize("tied", [False, True])
def test_counted_resamples_equal_repeated_samples(metric, tied):
    x, y = _scores(0, 25)
    if tied:
        x, y = np.round(x), np.round(y)
    counts = np.random.default_rng(1).multinomial(25, np.full(25, 1 / 25), size=40).astype(float)
    expected = [METRICS[metric](np.repeat(x, row.astype(int)), np.repeat(y, row.astype(int))) for row in counts]
    np.testing.assert_allclose(METRICS[metric].resampler(x, y)(counts), expected, rtol=1e-6, atol=1e-9)


def test_an_interval_says_that_the_logistic_did_not_converge(monkeypatch):
    x, y = _scores(0, 30)
    monkeypatch.setattr(intervals, "_SLOW_RESAMPLES", 20)
    assert interval("plcc_logistic4", x, y).method == "bootstrap over images"
    monkeypatch.setattr("program.evaluation.metrics._MAX_CALLS", 2)
    note = "; a line instead of the logistic, which did not converge"
    assert interval("plcc_logistic4", x, y).method.endswith(note)
    assert interval("plcc", x, y).method == "bootstrap over images"


def covered(hits, low: float = 0.92, high: float = 0.98) -> bool:
    """Return whether a share of hits is within limits for 250 draws; of few draws the lower one is two points lower."""
    return low - (0.02 if len(hits) < 150 else 0) <= np.mean(hits) <= (high if len(hits) >= 150 else 1)


@pytest.mark.parametrize("draws", [30, pytest.param(150, marks=pytest.mark.slow)])
def test_fitted_intervals_cover_the_truth(monkeypatch, draws):
    monkeypatch.setattr(intervals, "_SLOW_RESAMPLES", 100)
    hits = []
    for x, y, seed in _normal_draws(100, 0.7, 80 * draws // 150):  # 100 fits a draw take a while
        figure = interval("plcc_logistic4", x, y, seed=seed)
        hits.append(figure.low <= 0.7 <= figure.high)
    # A fit to the judged labels flatters: a little under the nominal rate, as the docs say.
    assert covered(hits, 0.86, 0.99)


def test_counted_accuracy_equals_repeated_answers():
    counts = np.array([[3.0, 0.0, 1.0], [0.0, 4.0, 0.0]])
    assert METRICS["accuracy"].resampler(["A", "B", "C"], ["A", "A", "A"])(counts).tolist() == [0.75, 0.0]


@pytest.mark.parametrize("metric", ["srcc", "plcc", "krcc"])
def test_a_resample_of_one_value_has_no_correlation(metric):
    x, y = _scores(0, 4)
    assert np.isnan(METRICS[metric].resampler(x, y)(np.array([[0.0, 4.0, 0.0, 0.0]]))[0])


@pytest.mark.parametrize("resamples", [1, 1500, 2001])
@pytest.mark.parametrize("size", [5, 3000])
def test_bootstrap_draws_exactly_as_many_resamples_as_asked(resamples, size):
    x, y = _scores(0, size)
    assert bootstrap([METRICS["mae"].resampler(x, y)], size, 0, resamples).shape == (1, resamples)


def _normal_draws(n, rho, draws):
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal(n)
        yield x, rho * x + np.sqrt(1 - rho**2) * rng.standard_normal(n), seed


def _hits(monkeypatch, metric, draws, n=100, rho=0.7):
    monkeypatch.setattr(intervals, "_RESAMPLES", 400)
    truth = {"srcc": 6 / np.pi * np.arcsin(rho / 2), "plcc": rho}[metric]
    figures = (interval(metric, x, y, seed=seed) for x, y, seed in _normal_draws(n, rho, draws))
    return [figure.low <= truth <= figure.high for figure in figures]


@pytest.mark.parametrize("metric", ["srcc", "plcc"])
def test_bootstrap_covers_the_truth(monkeypatch, metric):
    assert covered(_hits(monkeypatch, metric, 250))


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["srcc", "plcc"])
def test_bootstrap_covers_the_truth_at_its_nominal_rate(monkeypatch, metric):
    assert 0.93 <= np.mean(_hits(monkeypatch, metric, 1000)) <= 0.97


@pytest.mark.parametrize("wrong", ["standard error divided by sqrt(B) again", "90 % quantiles"])
def test_a_wrong_interval_fails_the_coverage_check(monkeypatch, wrong):
    def too_narrow(values):
        middle, spread = np.mean(values), np.std(values)
        return middle - 1.96 * spread / np.sqrt(values.size), middle + 1.96 * spread / np.sqrt(values.size)

    def other_level(values):
        return np.quantile(values, 0.05), np.quantile(values, 0.95)

    monkeypatch.setattr(intervals, "_percentiles", too_narrow if "sqrt" in wrong else other_level)
    assert not covered(_hits(monkeypatch, "plcc", 250))


@pytest.mark.parametrize("metric", ["bias", "rmse", "plcc"])
def test_an_interval_reaches_as_far_below_its_figure_as_above(metric, rng):
    truth = rng.uniform(1, 5, 400)
    figure = interval(metric, truth, truth + rng.normal(0, 0.8, 400))
    assert figure.high - figure.value == pytest.approx(figure.value - figure.low, rel=0.3)


def _grouped(rng, groups, each):
    """Samples whose groups shift both the scores and the errors; SRCC over them has a known large-sample value."""
    codes = np.repeat(np.arange(groups), each)
    x = 0.44 * rng.standard_normal(groups)[codes] + 0.9 * rng.standard_normal(codes.size)
    return codes, x, x + 0.5 * rng.standard_normal(groups)[codes] + 0.6 * rng.standard_normal(codes.size)


@pytest.mark.parametrize("draws", [60, pytest.param(250, marks=pytest.mark.slow)])
def test_jackknife_over_groups_covers_where_the_image_bootstrap_does_not(monkeypatch, draws):
    monkeypatch.setattr(intervals, "_RESAMPLES", 200)
    _, x, y = _grouped(np.random.default_rng(9), 40_000, 5)
    truth = METRICS["srcc"](x, y)
    rng, grouped, naive = np.random.default_rng(1), [], []
    for _ in range(draws):
        codes, x, y = _grouped(rng, 40, 10)
        figure = interval("srcc", x, y, codes)
        assert figure.method == "jackknife over photographs on Fisher's z"
        grouped.append(figure.low <= truth <= figure.high)
        figure = interval("srcc", x, y)
        naive.append(figure.low <= truth <= figure.high)
    assert covered(grouped)
    assert np.mean(naive) < 0.9


def test_jackknife_equals_its_formula_written_out():
    codes, x, y = _grouped(np.random.default_rng(0), 12, 4)
    figure = interval("plcc", x, y, codes)
    left = np.arctanh([stats.pearsonr(x[codes != g], y[codes != g]).statistic for g in range(12)])
    error = np.sqrt(11 / 12 * np.sum((left - left.mean()) ** 2))
    ends = np.tanh(np.arctanh(figure.value) + stats.t.ppf([0.025, 0.975], 11) * error)
    assert (figure.low, figure.high) == pytest.approx(tuple(ends), rel=1e-9)
    plain = interval("rmse", x, y, codes)
    left = np.array([METRICS["rmse"](x[codes != g], y[codes != g]) for g in range(12)])
    error = np.sqrt(11 / 12 * np.sum((left - left.mean()) ** 2))
    assert plain.high - plain.value == pytest.approx(stats.t.ppf(0.975, 11) * error, rel=1e-9)


@pytest.mark.parametrize("draws", [80, pytest.param(300, marks=pytest.mark.slow)])
def test_paired_difference_covers_and_is_narrower_than_an_unpaired_one(monkeypatch, draws):
    monkeypatch.setattr(intervals, "_RESAMPLES", 400)
    rng = np.random.default_rng(5)
    x = rng.standard_normal(100_000)
    shared = x + 0.6 * rng.standard_normal(x.size)
    truth = METRICS["srcc"](x, shared + 0.5 * rng.standard_normal(x.size)) - METRICS["srcc"](x, shared)
    hits, narrower = [], []
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal(100)
        old = x + 0.6 * rng.standard_normal(100)
        new = old + 0.5 * rng.standard_normal(100)
        figure = paired_difference("srcc", x, old, new, seed=seed)
        hits.append(figure.low <= truth <= figure.high)
        one = interval("srcc", x, new, seed=seed)
        narrower.append(figure.high - figure.low < np.sqrt(2) * (one.high - one.low))
    assert covered(hits)
    assert np.mean(narrower) > 0.9


@pytest.mark.parametrize("metric", NUMERIC)
@pytest.mark.parametrize("groups", [None, [i % 3 for i in range(40)], [i % 10 for i in range(40)]])
def test_paired_difference_of_equal_programs_is_zero(metric, groups):
    x, y = _scores(0, 40)
    figure = paired_difference(metric, x, y, y, groups)
    assert (figure.value, figure.low, figure.high) == (0.0, 0.0, 0.0)


def test_paired_difference_is_after_minus_before_and_sees_a_clear_improvement():
    x, bad = _scores(0, 120, noise=2.0)
    good = _scores(0, 120, noise=0.5)[1]
    figure = paired_difference("srcc", x, bad, good)
    assert figure.value == pytest.approx(METRICS["srcc"](x, good) - METRICS["srcc"](x, bad))
    assert figure.low > 0
    assert paired_difference("rmse", x, bad, good).high < 0
    assert figure.method == "paired bootstrap over images"
    jackknife = paired_difference("srcc", x, bad, good, [i // 8 for i in range(120)])
    assert jackknife.method == "paired jackknife over photographs"
    assert jackknife.low > 0


@pytest.mark.parametrize(
    ("groups", "method", "count"),
    [
        (None, "bootstrap over images", 40),
        (list(range(40)), "bootstrap over images", 40),
        ([i % 8 for i in range(40)], "jackknife over photographs on Fisher's z", 8),
        ([i % 7 for i in range(40)], "bootstrap over images (descriptive: only 7 photographs)", 7),
        ([0] * 40, "bootstrap over images (descriptive: only 1 photograph)", 1),
    ],
)
def test_rule_follows_the_groups(groups, method, count):
    figure = interval("srcc", *_scores(0, 40), groups)
    assert (figure.method, figure.groups, figure.n) == (method, count, 40)
    assert figure.descriptive == ("descriptive" in method)


def test_large_sets_use_blocks_with_the_same_width():
    x, y = _scores(0, 2100)
    blocks = interval("krcc", x, y)
    assert "200 blocks of images" in blocks.method
    whole = bootstrap([METRICS["krcc"].resampler(x, y)], 2100, 0, 150)[0]
    assert (blocks.high - blocks.low) / 2 == pytest.approx(1.96 * whole.std(), rel=0.25)
    many = interval("plcc", *_scores(1, 4000), [i // 2 for i in range(4000)])
    assert many.method == "jackknife over 200 blocks of photographs on Fisher's z"
    assert many.groups == 2000
    plain = interval("plcc", *_scores(1, 4000))
    assert (many.high - many.low) == pytest.approx(plain.high - plain.low, rel=0.25)
    few = interval("krcc", x, y, [i % 3 for i in range(2100)])
    assert few.method == "jackknife over 200 blocks of images on Fisher's z (descriptive: only 3 photographs)"


def test_wilson_equals_scipy_and_covers_near_one():
    for right in (0, 7, 30):
        expected = stats.binomtest(right, 30).proportion_ci(method="wilson")
        assert wilson(right / 30, 30) == pytest.approx((expected.low, expected.high), rel=1e-10, abs=1e-12)
    rng = np.random.default_rng(0)
    ends = [wilson(rng.binomial(30, 0.97) / 30, 30) for _ in range(2000)]
    assert 0.93 <= np.mean([low <= 0.97 <= high for low, high in ends]) <= 0.97


def test_all_right_answers_still_have_an_interval():
    figure = interval("accuracy", ["A"] * 20, ["A"] * 20)
    assert figure.value == 1.0
    assert figure.low == pytest.approx(0.839, abs=1e-3)
    grouped = interval("accuracy", ["A"] * 40, ["A"] * 40, [i % 10 for i in range(40)])
    assert grouped.low == pytest.approx(wilson(1.0, 10)[0])
    some = interval("accuracy", ["A"] * 40, ["A"] * 30 + ["B"] * 10, [i % 10 for i in range(40)])
    assert some.method == "jackknife over photographs"


@pytest.mark.parametrize("metric", NUMERIC)
def test_undefined_figures_are_none_and_never_zero(metric):
    empty = interval(metric, [], [])
    assert (empty.value, empty.low, empty.high, empty.n, empty.groups) == (None, None, None, 0, 0)
    one = interval(metric, [1.0], [2.0])
    assert one.low is None
    if metric in {"srcc", "plcc", "krcc"}:
        constant = interval(metric, [1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
        assert (constant.value, constant.low, constant.n) == (None, None, 3)
        assert paired_difference(metric, [1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [1.0, 2.0, 3.0]).value is None


@pytest.mark.parametrize("metric", ["srcc", "plcc", "krcc"])
@pytest.mark.parametrize("groups", [None, [i % 10 for i in range(40)]])
def test_intervals_stay_within_the_metric_bounds(metric, groups):
    x = np.arange(40.0)
    perfect = interval(metric, x, x, groups)
    assert (perfect.low, perfect.value, perfect.high) == pytest.approx((1.0, 1.0, 1.0), abs=1e-12)
    assert perfect.high <= 1
    near = interval(metric, *_scores(0, 40, noise=0.02), groups)
    assert -1 <= near.low <= near.high <= 1


def test_same_seed_same_interval_other_seed_another():
    x, y = _scores(0, 60)
    assert interval("srcc", x, y, seed=4) == interval("srcc", x, y, seed=4)
    assert interval("srcc", x, y, seed=4) != interval("srcc", x, y, seed=5)


def test_wrong_number_of_groups_is_refused():
    with pytest.raises(InputError, match="2 names for 3 samples"):
        interval("srcc", [1, 2, 3], [1, 2, 3], ["a", "b"])


def test_figure_round_trips_and_reads_well():
    figure = interval("srcc", *_scores(0, 30))
    assert Figure.model_validate_json(figure.model_dump_json()) == figure
    assert {"value", "low", "high", "n"} <= figure.model_dump().keys()
    assert str(Figure(value=0.5, low=0.25, high=0.75, n=9, groups=9, method="m")) == "0.500 [0.250, 0.750]"
    undefined = Figure(value=float("nan"), low=float("nan"), high=None, n=3, groups=3, method="m")
    assert '"value":null' in undefined.model_dump_json()
    assert Figure.model_validate_json(undefined.model_dump_json()) == undefined
    assert str(undefined) == "undefined (n=3)"
