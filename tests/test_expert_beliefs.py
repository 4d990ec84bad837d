"""What the embedded expert believes: priors, demos as evidence, and that keeping their projections changes nothing."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import dspy
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from skimage import data as photographs

from program.expert.engine import answer
from program.expert.judge import quality, views
from program.expert.judge.models import load_model
from program.expert.judge.quality import believe, level_probabilities, look, scale_at, weigh
from program.expert.judge.regression import Hyper, Regression, radial
from program.expert.judge.standards import NormalScores, Standard, bent, slope, straight
from program.expert.judge.views import EVIDENCE_SETS, Viewer
from program.expert.store import stored_arrays
from program.expert.training.regressions import error_scales, left_out, quantiles_of
from program.images.store import IMAGES
from signatures.schemas import LEVEL_WORDS
from signatures.summarizer import ScoreQuality

Pixels = NDArray[np.uint8]
PHOTOGRAPH: Pixels = np.asarray(photographs.astronaut())[:384, :384]
QUERY = "Rate the perceptual quality of this image."


def _noisy(sigma: float) -> Pixels:
    noise = np.random.default_rng(5).normal(0, sigma, PHOTOGRAPH.shape)
    return np.asarray(np.clip(PHOTOGRAPH + noise, 0, 255), dtype=np.uint8)


def _image(pixels: Pixels) -> dspy.Image:
    return dspy.Image(IMAGES.add(np.ascontiguousarray(pixels)).url)


def _mean(found: dict) -> float:
    return sum(level * found["quality_probs"][word] for level, word in enumerate(LEVEL_WORDS, 1))


def _score(pixels: Pixels, demos=()) -> float:
    return _mean(answer(ScoreQuality, demos, {"image": _image(pixels), "query": QUERY}))


def _demo(pixels: Pixels, level: int) -> dspy.Example:
    probabilities = {word: float(i == level) for i, word in enumerate(LEVEL_WORDS, 1)}
    return dspy.Example(image=_image(pixels), query=QUERY, quality_probs=probabilities, quality_reasoning="seen")


def test_unlike_images_widen_the_probabilities() -> None:
    single = load_model("nr")
    viewer = Viewer()
    natural = viewer.view(_image(PHOTOGRAPH)).prior
    bars = np.zeros((256, 256, 3), np.uint8)
    bars[::2] = (255, 0, 255)
    strange = viewer.view(_image(bars)).prior
    assert strange.novelty > natural.novelty + 0.2
    assert strange.deviation > natural.deviation * 1.15
    usual = np.median(single.regression.natural.standard.quantiles, axis=0)
    assert look(single, usual[None]).projection.novelty[0] < 0.3


def test_level_probabilities_are_a_distribution_that_widens() -> None:
    narrow, wide = level_probabilities(3.2, 0.3), level_probabilities(3.2, 1.2)
    assert sum(narrow) == pytest.approx(1)
    assert narrow[2] > wide[2]
    assert level_probabilities(9, 0.2)[4] == pytest.approx(1)
    assert level_probabilities(-9, 0.2)[0] == pytest.approx(1)


def test_regression_matches_a_textbook_gaussian_process() -> None:
    rng = np.random.default_rng(0)
    x, y, new = rng.normal(size=(20, 3)), rng.normal(size=20), rng.normal(size=(4, 3))
    hyper = Hyper(width=0.8, linear=0.0, noise=0.2, clip=50.0)
    model = Regression(x, y, Standard(np.zeros(3), np.ones(3), 50.0), hyper)

    def kernel(a, b):
        return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * 0.8 * 3))

    inverse = np.linalg.inv(kernel(x, x) + 0.2 * np.eye(20))
    np.testing.assert_allclose(radial(x, new, 0.8), kernel(x, new), rtol=1e-10)
    seen = model.project(new)
    np.testing.assert_allclose(seen.mean, y.mean() + kernel(new, x) @ inverse @ (y - y.mean()), rtol=1e-8)
    expected = kernel(new, new) - kernel(new, x) @ inverse @ kernel(x, new)
    np.testing.assert_allclose(model.covariance(seen, seen), expected, atol=1e-10)
    np.testing.assert_allclose(seen.novelty, np.diag(expected), atol=1e-10)


def test_normal_scores_are_those_of_the_ranks() -> None:
    rng = np.random.default_rng(4)
    seen = np.round(rng.lognormal(size=(4000, 2)), 2)
    scores = NormalScores(quantiles_of(seen))
    new = seen[:500]
    expected = stats.norm.ppf((stats.rankdata(seen, axis=0)[:500] - 0.5) / len(seen))
    inside = np.abs(expected) < 2.5
    np.testing.assert_allclose(scores.apply(new)[inside], expected[inside], atol=0.08)
    ends = scores.apply(np.array([[-1e9, 1e9], [np.finfo(float).max, 0.0]]))
    np.testing.assert_allclose(np.abs(ends), 2.75, atol=0.06)
    order = np.argsort(new[:, 0], kind="stable")
    assert (np.diff(scores.apply(new)[order, 0]) >= 0).all()


def test_qualities_to_a_power_come_back_and_move_as_their_slope_says() -> None:
    qualities = np.linspace(0.6, 5.4, 25)
    for power in (1.0, 1.5, 2.0, 3.0):
        values = bent(qualities, power)
        np.testing.assert_allclose(straight(values, power), qualities, rtol=1e-12)
        np.testing.assert_allclose(
            slope(qualities, power), (straight(values + 1e-6, power) - qualities) / 1e-6, rtol=1e-4
        )
    assert bent(np.array([4.0]), 2.0)[0] == pytest.approx(16 / 6)
    assert slope(np.array([3.0]), 2.0)[0] == 1
    np.testing.assert_allclose(straight(np.array([-1.0, 0.0]), 2.0), 0.6)


def test_scores_fitted_as_squares_are_a_process_of_the_squares() -> None:
    rng = np.random.default_rng(3)
    x, y, new = rng.normal(size=(20, 3)), rng.uniform(1, 5, 20), rng.normal(size=(4, 3))
    hyper, standard = Hyper(0.8, 0.0, 0.2, 50.0, power=2.0), Standard(np.zeros(3), np.ones(3), 50.0)
    bowed, plain = Regression(x, y, standard, hyper), Regression(x, y**2 / 6, standard, replace(hyper, power=1.0))
    seen, squares = bowed.project(new), plain.project(new)
    np.testing.assert_allclose(seen.mean, np.sqrt(6 * squares.mean), rtol=1e-12)
    np.testing.assert_allclose(seen.novelty, squares.novelty)
    steps = np.diag(3 / seen.mean)
    np.testing.assert_allclose(bowed.covariance(seen, seen), steps @ plain.covariance(squares, squares) @ steps)
    np.testing.assert_allclose(bowed.noise(seen.mean), 0.2 * (3 / seen.mean) ** 2)
    np.testing.assert_allclose(left_out(bowed, y), np.sqrt(6 * left_out(plain, y**2 / 6)))


def test_the_scale_of_errors_follows_the_predicted_quality() -> None:
    rng = np.random.default_rng(4)
    x = rng.uniform(-1.0, 1.0, (600, 1))
    truth = 3 + 1.5 * x[:, 0]
    labels = truth + rng.normal(0, np.where(truth < 3, 0.6, 0.2))
    standard, hyper = Standard(np.zeros(1), np.ones(1), 9.0), Hyper(1.0, 0.5, 0.09, 9.0)
    parts = [np.arange(fold, 600, 5) for fold in range(5)]
    scales = np.array(error_scales(x, labels, parts, standard, hyper))
    assert scale_at(scales, 2.0) == pytest.approx(0.36 / 0.09, rel=0.25)
    assert scale_at(scales, 4.0) == pytest.approx(0.04 / 0.09, rel=0.45)
    assert scale_at(scales, 2.25) == pytest.approx((scales[2] + scales[3]) / 2)
    assert scale_at(scales, 0.7) == scales[0]
    seen = Regression(x, labels, standard, hyper).project(x[:1])
    assert seen.slope[0] == 1


def test_equal_values_share_their_mean_normal_score() -> None:
    half_zero = np.r_[np.zeros(500), np.linspace(1, 2, 500)][:, None]
    scores = NormalScores(quantiles_of(half_zero))
    below = NormalScores.LEVELS[NormalScores.LEVELS < 0]
    assert scores.apply(np.zeros((1, 1)))[0, 0] == pytest.approx(below.mean(), abs=0.06)
    with pytest.raises(ValueError, match=r"quantiles of shape \(3, 1\): expected 45 x F"):
        NormalScores(np.zeros((3, 1)))


def test_leaving_one_out_equals_fitting_without_it() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(12, 4)), rng.normal(size=12)
    standard, hyper = Standard(np.zeros(4), np.ones(4), 9.0), Hyper(1.0, 0.3, 0.2, 9.0, linear_stop=2)
    model, kept = Regression(x, y, standard, hyper), np.arange(12) != 5
    rest = np.linalg.solve(hyper.kernel(x[kept], x[kept]) + 0.2 * np.eye(11), y[kept] - y.mean())
    expected = y.mean() + (hyper.kernel(x[5:6], x[kept]) @ rest)[0]
    assert left_out(model, y)[5] == pytest.approx(expected, abs=1e-10)


def test_many_demos_reduce_the_uncertainty() -> None:
    viewer = Viewer()
    demos = [(viewer.view(_image(_noisy(s))), 2.0) for s in (10, 11, 12, 13, 15, 16)]
    query = viewer.view(_image(_noisy(14)))
    assert query.belief(demos).deviation < query.belief([]).deviation == query.prior.deviation


def _direct(regression, raw, noise=None):
    """Mean, posterior covariance and novelty of a regression by the textbook formulas; `noise`: by label."""
    hyper, train, z = regression.hyper, regression._inputs, regression.standard.apply(raw)
    groups = [(g.start, g.stop, g.width, g.weight) for g in hyper.groups] or [(0, z.shape[1], hyper.width, 1.0)]

    def kernel(a, b):
        smooth = sum(weight * radial(a[:, i:j], b[:, i:j], width) for i, j, width, weight in groups)
        read = slice(0, hyper.linear_stop)
        return (1 - hyper.linear) * smooth + hyper.linear * a[:, read] @ b[:, read].T / a[:, read].shape[1]

    doubt = np.diag(noise) if noise is not None else hyper.noise * np.eye(len(train))
    inverse = np.linalg.inv(kernel(train, train) + doubt)
    known = kernel(z, train) @ inverse @ kernel(train, z)
    mean, open_variance = regression.mean + kernel(z, train) @ regression.weights, kernel(z, z) - known
    if hyper.power != 1:
        assert hyper.power == 2
        # Fitted are q^2 / 6; a small step of that is 3 / q as large a step of q.
        mean = np.sqrt(6 * mean)
        open_variance *= np.outer(3 / mean, 3 / mean)
    return mean, open_variance, 1 - np.diag(known) / np.diag(kernel(z, z))


@pytest.mark.parametrize("paired", [False, True])
def test_beliefs_from_kept_projections_equal_the_direct_formula(paired: bool) -> None:
    model, rng = load_model("fr" if paired else "nr"), np.random.default_rng(2)
    prior = model.regression
    standard = prior.standard if paired else prior.general.standard
    raw = rng.normal(0, 0.9, (9, len(standard.centre))) * standard.spread + standard.centre
    labels = rng.uniform(1, 5, 8)
    if paired:
        mean, left_open, novelty = _direct(prior, raw)
    else:
        mean1, open1, novelty1 = _direct(prior.natural, raw, stored_arrays()["nr_noise"])
        mean2, open2, novelty2 = _direct(prior.general, raw)
        share = prior.project(raw).share
        rest = 1 - share
        assert share.min() < 0.5
        mean, novelty = rest * mean1 + share * mean2, rest * novelty1 + share * novelty2
        left_open = np.outer(rest, rest) * open1 + np.outer(share, share) * open2
    tilt = quality._tilt(model.detector.severities(raw), model.detector.severities(raw))
    residual = quality._POSTERIOR * left_open + np.outer(novelty, novelty) * tilt
    within = residual[1:, 1:] + quality._DEMO_NOISE * np.eye(8)
    gain = np.linalg.solve(within, residual[1:, 0])
    expected = mean[0] + gain @ (labels - mean[1:])
    left = left_open[0, 0] * (1 - min(gain @ residual[1:, 0] / residual[0, 0], 1))

    evidence = weigh(model, look(model, raw[1:]), labels)
    found = quality.corrected(model, look(model, raw[0]), evidence)
    np.testing.assert_allclose(found, (expected, left), rtol=0, atol=1e-9)
    stated = believe(model, look(model, raw[0]), evidence)
    assert stated.mean == pytest.approx(np.clip(expected, 0.6, 5.4), abs=1e-4)


def test_kept_evidence_does_not_mix_demo_sets_or_labels() -> None:
    query = _noisy(14)
    sets = [[_demo(_noisy(13), a), _demo(_noisy(15), b)] for a, b in ((1, 5), (5, 1), (1, 1), (5, 5), (1, 5))]
    scores = [_score(query, demos) for demos in sets]
    assert len(set(scores)) == 4
    assert scores[0] == scores[4]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda demos: _score(query, demos), sets * 8)) == scores * 8


def test_evidence_sets_are_bounded_and_the_oldest_goes_first() -> None:
    demo, sets = Viewer().view(_image(_noisy(13))), views._evidence.cache
    sets.clear()
    found = [views._evidence([(demo, 1 + i / 10)]) for i in range(EVIDENCE_SETS)]
    assert views._evidence([(demo, 1.0)]) is found[0]
    views._evidence([(demo, 5.0)])
    assert len(sets) == EVIDENCE_SETS
    assert views._evidence([(demo, 1.0)]) is found[0]
    assert views._evidence([(demo, 1.1)]) is not found[1]
