"""What ratings are worth: agreement with oneself, the ceiling, a fit in folds, and how many labels more."""

import math

import numpy as np
import pytest
from scipy import stats

from program.evaluation.agreement import Estimate, ceiling, self_agreement
from program.rating.worth import Worth, labels_for, worth_of

N = 120


def _rated(n, *, learnable, seed=0):
    """Return inputs, readings, labels and groups; what the readings lack lies in the first input, or nowhere."""
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((n, 12)) / 4
    readings = 3 + 0.4 * rng.standard_normal(n)
    missing = 4 * inputs[:, 0] if learnable else np.zeros(n)
    labels = np.clip(np.round(readings + missing + 0.4 * rng.standard_normal(n)), 1, 5)
    return inputs.astype(np.float16), readings, labels, [str(i) for i in range(n)]


def test_self_agreement_is_spearmans_r_with_an_interval_on_fishers_z():
    rng = np.random.default_rng(1)
    first = rng.integers(1, 6, 40)
    second = np.clip(first + rng.integers(-1, 2, 40), 1, 5)
    own = self_agreement(first, second)
    expected = stats.pearsonr(stats.rankdata(first), stats.rankdata(second)).statistic
    assert own.r == pytest.approx(expected)
    half = stats.norm.ppf(0.975) * math.sqrt(1.06 / 37)
    assert (math.atanh(own.r) - math.atanh(own.low)) == pytest.approx(half)
    assert (math.atanh(own.high) - math.atanh(own.r)) == pytest.approx(half)
    assert own.n == 40


def test_ratings_that_do_not_vary_tell_no_agreement():
    assert self_agreement([3, 3, 3, 3, 3], [1, 2, 3, 4, 5]) is None
    assert self_agreement([1, 2, 3], [1, 2, 3]) is None
    assert self_agreement([1, 2, 3, 4], [1, 2, 3, 4]) == Estimate(1, 1, 1, 4)


def test_no_program_passes_the_ceiling_and_one_that_knows_what_is_meant_reaches_it():
    rng = np.random.default_rng(2)
    meant = rng.standard_normal(20_000)
    first, second = (meant + 0.6 * rng.standard_normal(20_000) for _ in range(2))
    most = ceiling(self_agreement(first, second))
    assert most.r == pytest.approx(stats.spearmanr(meant, first).statistic, abs=0.01)
    assert ceiling(Estimate(-0.2, -0.5, 0.25, 40)) == Estimate(0, 0, 0.5, 40)


def test_a_fit_is_worth_what_it_predicts_of_other_groups():
    inputs, readings, labels, groups = _rated(N, learnable=True)
    worth = worth_of(inputs, readings, labels, groups)
    assert worth.before.r == pytest.approx(stats.spearmanr(readings, labels).statistic)
    assert worth.before.high < worth.after.low <= worth.after.r <= worth.after.high
    assert [count for count, _ in worth.curve] == [30, 60, 120]
    assert worth.curve[-1][1] == pytest.approx(worth.after.r)


def test_labels_of_the_same_group_predict_nothing():
    _, readings, labels, names = _rated(24, learnable=False, seed=3)
    inputs = np.random.default_rng(4).standard_normal((24, 400)) / 20
    twice = [np.concatenate([each, each]) for each in (inputs, readings, labels)]
    worth = worth_of(*twice, names * 2)
    assert worth.after.r <= worth.before.r + 0.01
    assert worth_of(*twice, [str(i) for i in range(48)]).after.r > worth.before.r + 0.05


def test_few_labels_or_equal_ones_say_nothing():
    inputs, readings, labels, groups = _rated(24, learnable=True)
    assert worth_of(inputs, readings, labels, groups) is None
    inputs, readings, labels, groups = _rated(30, learnable=True)
    assert worth_of(inputs, readings, np.full(30, 3.0), groups) is None
    assert worth_of(inputs, readings, labels, groups).curve == ()


def test_labels_needed_follow_the_curve_and_are_not_told_beyond_it():
    def worth(points):
        n, r = points[-1]
        return Worth(Estimate(0.6, 0.5, 0.7, n), Estimate(r, r - 0.1, r + 0.1, n), points)

    def curve(n, slope):
        return tuple((count, 0.9 - slope / math.sqrt(count)) for count in (n // 4, n // 2, n))

    # .9 - 1 / sqrt(100) = .8, and .9 - 1 / sqrt(156.25) = .82
    assert labels_for(0.02, worth(curve(100, 1.0))) == 60
    assert labels_for(0.09, worth(curve(100, 1.0))) is None  # 10,000 labels
    assert labels_for(0.2, worth(curve(100, 1.0))) is None  # above .9
    assert labels_for(0.02, worth(curve(100, -1.0))) is None  # more labels did not help
    assert labels_for(0.02, worth(curve(100, 1.0))._replace(curve=())) is None
    unsure = worth(curve(100, 1.0))._replace(after=Estimate(0.11, -0.07, 0.29, 100))
    assert labels_for(0.02, unsure) is None  # labels at random
