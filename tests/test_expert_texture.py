"""Patterns, local sharpness, codebooks and the blend of two regressions: known responses and invariances."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage
from skimage import data as photographs
from skimage.feature import local_binary_pattern

from program.expert.judge.blend import GATE_MOST, Blend, share_of
from program.expert.judge.regression import Group, Hyper, Regression, hyper_of, radial
from program.expert.judge.standards import Standard
from program.expert.measure.codes import Layout, code_names, patch_rows
from program.expert.measure.features import FEATURE_NAMES, coded_planes, measure
from program.expert.measure.measures import gradient
from program.expert.measure.texture import PATTERN_STEP, local_sharpness, patterns, saliency
from program.expert.training.codebooks import learn, projection_of
from program.expert.training.regressions import general_of, left_out, sparse_weights

SMALL = Layout("small", 0, 1, directions=6, patches=400, centres=8, shifts=5)


@pytest.fixture(scope="module")
def luma() -> NDArray[np.float32]:
    return np.asarray(photographs.camera()[:256, :256], dtype=np.float32)


def test_patterns_match_an_independent_implementation(luma) -> None:
    slope = gradient(luma)
    # Neighbours on the grid (not on a circle), compared with the centre plus the step: shift the centre down by it.
    expected = np.zeros(10)
    for row in range(1, 60):
        for column in range(1, 60):
            near = slope[row - 1 : row + 2, column - 1 : column + 2]
            ring = near.ravel()[[0, 1, 2, 5, 8, 7, 6, 3]] >= near[1, 1] + PATTERN_STEP
            changes = int((ring != np.roll(ring, 1)).sum())
            expected[int(ring.sum()) if changes <= 2 else 9] += near[1, 1]
    np.testing.assert_allclose(patterns(slope[:61, :61]), expected / expected.sum(), rtol=1e-4, atol=1e-6)


def test_patterns_do_not_change_with_turning_or_mirroring(luma) -> None:
    slope = gradient(luma)
    for turned in (np.rot90(slope), slope[:, ::-1], slope[::-1]):
        np.testing.assert_allclose(patterns(np.ascontiguousarray(turned)), patterns(slope), atol=1e-5)
    assert sum(patterns(slope)) == pytest.approx(1)


def test_noise_has_less_uniform_patterns_than_edges(luma) -> None:
    noise = np.random.default_rng(0).normal(128, 20, luma.shape).astype(np.float32)
    assert patterns(gradient(noise))[9] > patterns(gradient(luma))[9] + 0.05
    # The library's own uniform patterns say so too.
    share = [np.mean(local_binary_pattern(p.astype(np.uint8), 8, 1, "uniform") == 9) for p in (noise, luma)]
    assert share[0] > share[1]


def test_saliency_finds_the_odd_one_out() -> None:
    plane = np.tile(np.array([[90, 110], [110, 90]], np.float32), (96, 96))
    plane[120:150, 30:60] = 230
    found = saliency(plane)
    row, column = (
        at / size for at, size in zip(np.unravel_index(found.argmax(), found.shape), found.shape, strict=True)
    )
    assert 0.55 < row < 0.85
    assert 0.1 < column < 0.4
    assert found.mean() == pytest.approx(1, rel=1e-4)


def test_local_sharpness_tells_the_centre_from_the_border(luma) -> None:
    texture = np.random.default_rng(1).normal(128, 30, (256, 256)).astype(np.float32)
    soft = ndimage.gaussian_filter(texture, 3)
    middle = np.zeros((256, 256), bool)
    middle[80:176, 80:176] = True

    def central(plane: NDArray[np.float32]) -> float:
        scales = [plane, plane[::2, ::2], plane[::4, ::4]]
        fines = [p - ndimage.gaussian_filter(p, 1) for p in scales]
        return local_sharpness(scales, fines, [gradient(p) for p in scales])["local_fine1_central"]

    assert central(np.where(middle, texture, soft)) > 0.2 > -0.2 > central(np.where(middle, soft, texture))


def test_patches_do_not_depend_on_brightness_and_little_on_contrast(luma) -> None:
    rows = patch_rows(SMALL, [luma])
    np.testing.assert_allclose(patch_rows(SMALL, [luma + 20]), rows, atol=1e-3)
    assert np.corrcoef(patch_rows(SMALL, [0.8 * luma]).ravel(), rows.ravel())[0, 1] > 0.99
    assert patch_rows(SMALL, [np.zeros((1, 3), np.float32)]).shape[1] == 49


def test_a_codebook_is_the_same_each_time_and_tells_blur_from_noise(luma) -> None:
    noise = luma + np.random.default_rng(2).normal(0, 15, luma.shape).astype(np.float32)
    planes = [[luma], [np.asarray(ndimage.gaussian_filter(luma, 2))], [noise]]
    book, again = (learn(SMALL, planes, seed=3) for _ in range(2))
    np.testing.assert_array_equal(book.centres, again.centres)
    shares = [book.describe(p)[0] for p in planes]
    assert all(float(np.square(s).sum()) == pytest.approx(1, abs=1e-4) for s in shares)
    first, *others = (book.describe(p)[2] for p in planes)
    assert min(float(np.linalg.norm(first - other)) for other in others) > 0.2
    with pytest.raises(ValueError, match="not learnt"):
        book.encode(planes[0])


def test_projected_deviations_keep_distances() -> None:
    deviations = np.random.default_rng(4).normal(size=(6, 40)).astype(np.float32)
    projection, mean = projection_of(deviations, 5)
    found = deviations @ projection - mean
    scale = np.square(found).mean() ** 0.5

    def distances(rows):
        return np.linalg.norm(rows[:, None] - rows[None], axis=2)

    ratio = distances(found)[np.triu_indices(6, 1)] / distances(deviations)[np.triu_indices(6, 1)]
    np.testing.assert_allclose(ratio, ratio[0], rtol=0.01)
    assert scale == pytest.approx(1, rel=0.05)


def test_codes_are_named_and_turn_with_nothing_but_the_image() -> None:
    pixels = np.asarray(photographs.chelsea())
    found = measure(pixels)
    assert [name for name in FEATURE_NAMES if name.startswith("code_small")] == []
    assert len(code_names(SMALL)) == 8 + 8 + 5
    assert found["code_fine_share0"] == measure(pixels.copy())["code_fine_share0"]
    assert len(coded_planes(pixels)) == 3


def test_grouped_kernel_is_the_weighted_sum_and_survives_json() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(4, 5)), rng.normal(size=(3, 5))
    hyper = Hyper(1.0, 0.25, 0.1, 3.0, (Group(0, 2, 0.5, 0.6), Group(2, 5, 2.0, 0.4)))
    smooth = 0.6 * radial(one[:, :2], other[:, :2], 0.5) + 0.4 * radial(one[:, 2:], other[:, 2:], 2.0)
    np.testing.assert_allclose(hyper.kernel(one, other), 0.75 * smooth + 0.25 * one @ other.T / 5)
    np.testing.assert_allclose(hyper.own(one), np.diag(hyper.kernel(one, one)))
    groups = [{"start": g.start, "stop": g.stop, "width": g.width, "weight": g.weight} for g in hyper.groups]
    assert hyper_of({"width": 1.0, "linear": 0.25, "noise": 0.1, "clip": 3.0, "groups": groups}) == hyper


def test_what_is_kept_carries_what_all_images_taught() -> None:
    rng = np.random.default_rng(2)
    seen, query = rng.normal(size=(60, 3)), rng.normal(size=(20, 3))
    labels = np.sin(seen).sum(axis=1) + 3 + rng.normal(0, 0.1, 60)
    standard, hyper = Standard(np.zeros(3), np.ones(3), 9.0), Hyper(1.0, 0.2, 0.05, 9.0)
    noise = np.where(np.arange(60) % 2, 0.02, 0.4)
    whole = Regression(seen, labels, standard, hyper, noise)
    kernel, mean = hyper.kernel(seen, seen), float(labels.mean())

    def kept(rows: np.ndarray) -> Regression:
        weights = sparse_weights(kernel[rows], kernel[np.ix_(rows, rows)], labels - mean, noise)
        return Regression.kept(seen[rows], mean, weights, standard, hyper)

    np.testing.assert_allclose(kept(np.arange(60)).project(query).mean, whole.project(query).mean, atol=1e-3)
    few = np.arange(0, 60, 3)
    alone = Regression(seen[few], labels[few], standard, hyper, noise[few])
    truth = np.sin(query).sum(axis=1) + 3
    errors = [np.abs(one.project(query).mean - truth).mean() for one in (kept(few), alone)]
    assert errors[0] < 0.8 * errors[1]
    everything = Regression(seen, labels, standard, hyper)
    assert (kept(few).project(query).novelty >= everything.project(query).novelty - 1e-9).all()
    with pytest.raises(ValueError, match="only some of the training images were kept"):
        left_out(kept(few), labels)


def test_a_label_that_is_sure_is_followed_closer() -> None:
    vectors, labels = np.array([[0.0], [0.0]]), np.array([2.0, 4.0])
    standard, hyper = Standard(np.zeros(1), np.ones(1), 9.0), Hyper(1.0, 0.0, 0.5, 9.0)
    found = Regression(vectors, labels, standard, hyper, np.array([0.5, 0.1])).project(vectors).mean
    # Two measurements of one value under a N(3, 1) prior: precision-weighted mean of 2 (1/0.5), 4 (1/0.1) and 3 (1).
    np.testing.assert_allclose(found, (2 / 0.5 + 4 / 0.1 + 3) / (1 / 0.5 + 1 / 0.1 + 1))


def test_the_gate_gives_each_kind_its_own_regression_and_strangers_more_doubt() -> None:
    rng = np.random.default_rng(1)
    natural, distorted = rng.normal(-2, 0.3, (30, 4)), rng.normal(2, 0.3, (60, 4))
    standard, hyper = Standard(np.zeros(4), np.ones(4), 9.0), Hyper(1.0, 0.0, 0.1, 9.0)
    both, labels = np.vstack([natural, distorted]), np.r_[np.full(30, 4.0), np.full(60, 2.0)]
    kinds, kept = np.r_[-np.ones(30), np.ones(60)], np.arange(0, 90, 2)
    general = general_of(both, labels, np.full(90, 0.1), kinds, kept, standard, hyper)
    assert len(general.vectors) == len(general.weights) == len(general.gate) == 45
    smooth = general.regression(standard, hyper)
    blend = Blend(Regression(natural, np.full(30, 4.0), standard, hyper), smooth, general.gate)
    seen = blend.project(np.array([[-2.0] * 4, [2.0] * 4]))
    assert seen.share[0] < 0.05 < 0.95 * GATE_MOST < seen.share[1] <= GATE_MOST
    np.testing.assert_allclose(seen.mean, [4, 4 - 2 * GATE_MOST], atol=0.15)
    far = blend.project(np.array([[-2.0, 2.0, -2.0, 2.0]]))
    assert far.novelty[0] > 0.5 > 0.2 > seen.novelty[0]
    disagreement = far.share * (1 - far.share) * (far.natural.mean - far.general.mean) ** 2
    np.testing.assert_allclose(far.spread, disagreement)
    covariance = blend.covariance(seen, seen)
    np.testing.assert_allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > -1e-9
    np.testing.assert_allclose(share_of(np.array([-1e6, 1e6])), [0, GATE_MOST], atol=1e-9)
