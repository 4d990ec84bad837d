"""The expert's measurements: finite on anything, deterministic, and moving the right way."""

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage, stats
from skimage import data as photographs

from program.expert.measure.differences import DIFFERENCE_NAMES, reference_differences
from program.expert.measure.features import FEATURE_NAMES, MAXIMUM_SIDE, measure
from program.expert.measure.naturalness import aggd_of_products, gaussian, ggd_shape, halve, normalise
from tests.pictures import as_jpeg, blurred, noisy

Pixels = NDArray[np.uint8]


@pytest.fixture(scope="module")
def photograph() -> Pixels:
    return np.asarray(photographs.chelsea())


def _values(name: str, images: list[Pixels]) -> list[float]:
    return [measure(image)[0][name] for image in images]


@pytest.mark.parametrize("shape", [(16, 16), (1, 1), (3, 200), (64, 7), (17, 333)])
@pytest.mark.parametrize("kind", ["black", "white", "random", "ramp"])
def test_features_finite_and_bounded_on_degenerate_images(shape: tuple[int, int], kind: str) -> None:
    values = {
        "black": np.zeros(shape), "white": np.full(shape, 255),
        "random": np.random.default_rng(0).integers(0, 256, shape),
        "ramp": np.tile(np.linspace(0, 255, shape[1]), (shape[0], 1)),
    }[kind]  # fmt: skip
    pixels = np.repeat(values.astype(np.uint8)[:, :, None], 3, axis=2)
    for vector in (
        np.array([*measure(pixels)[0].values()]),
        np.array([*reference_differences(pixels, 255 - pixels)[0].values()]),
    ):
        assert np.isfinite(vector).all()
        assert np.abs(vector).max() < 1e3


def test_feature_names_unique_and_as_many_as_values(photograph: Pixels) -> None:
    found, maps = measure(photograph)
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES) == len(found)
    assert len(set(DIFFERENCE_NAMES)) == len(DIFFERENCE_NAMES)
    assert all(np.array(cells).shape == (3, 3) for cells in maps.values())


def test_same_pixels_same_features(photograph: Pixels) -> None:
    np.testing.assert_array_equal(
        np.array([*measure(photograph)[0].values()]), np.array([*measure(photograph.copy())[0].values()])
    )


def test_blur_lowers_sharpness_and_raises_reblur(photograph: Pixels) -> None:
    versions = [photograph, *(blurred(photograph, s) for s in (0.7, 1.5, 3.0, 6.0))]
    assert np.all(np.diff(_values("edge1_p99", versions)) < 0)
    assert np.all(np.diff(_values("reblur_mean", versions)) > 0)
    assert np.all(np.diff(_values("detail_median", versions)) < 0)


def test_noise_raises_noise_and_its_value_is_that_of_the_noise() -> None:
    flat = np.full((128, 128, 3), 128, np.uint8)
    readings = [np.expm1(v) for v in _values("noise_all", [noisy(flat, s) for s in (4.0, 8.0, 16.0)])]
    # Luma weights shrink independent channel noise by sqrt(.299^2 + .587^2 + .114^2) = 0.668.
    np.testing.assert_allclose(readings, [4 * 0.668, 8 * 0.668, 16 * 0.668], rtol=0.05)


def test_compression_raises_blocking_and_a_shifted_grid_does_not(photograph: Pixels) -> None:
    versions = [photograph, *(as_jpeg(photograph, q) for q in (40, 15, 5))]
    readings = _values("blocking", versions)
    assert readings[0] < 0.05 < readings[2] < readings[3]
    shifted = _values("blocking", [as_jpeg(photograph, 5)[3:, 3:]])[0]
    assert shifted < 0.3 * readings[3]


def test_darkening_saturating_and_flattening_are_seen(photograph: Pixels) -> None:
    dark = (photograph * 0.5).astype(np.uint8)
    grey = np.repeat(photograph.mean(axis=2, keepdims=True), 3, axis=2).astype(np.uint8)
    flat = (photograph * 0.3 + 90).astype(np.uint8)
    assert _values("brightness", [dark])[0] == pytest.approx(0.5 * _values("brightness", [photograph])[0], rel=0.03)
    assert _values("colourfulness", [grey])[0] < 0.01 < _values("colourfulness", [photograph])[0]
    assert _values("contrast_rms", [flat])[0] == pytest.approx(0.3 * _values("contrast_rms", [photograph])[0], rel=0.05)


def test_large_images_are_averaged_down() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, MAXIMUM_SIDE * 3, 3), dtype=np.uint8)
    assert np.expm1(measure(pixels)[0]["noise_all"]) < 0.6 * np.expm1(measure(pixels[:, :MAXIMUM_SIDE])[0]["noise_all"])


@pytest.mark.parametrize("shape", [0.5, 1.0, 2.0, 4.0])
def test_ggd_shape_recovers_the_shape_of_drawn_values(shape: float) -> None:
    values = stats.gennorm.rvs(shape, size=200_000, random_state=1)
    assert ggd_shape(np.abs(values).mean() ** 2 / np.mean(values**2)) == pytest.approx(shape, rel=0.03)


def test_normalised_values_match_the_published_formula() -> None:
    plane = np.random.default_rng(0).uniform(0, 255, (40, 50)).astype(np.float32)
    offsets = np.arange(-3, 4)
    taps = np.exp(-(offsets**2) / (2 * (7 / 6) ** 2))
    window = np.outer(taps, taps) / taps.sum() ** 2
    mean = ndimage.correlate(plane.astype(float), window, mode="nearest")
    deviation = np.sqrt(ndimage.correlate((plane - mean) ** 2, window, mode="nearest"))
    found, spread, fine = normalise(plane)
    np.testing.assert_allclose(found, (plane - mean) / (deviation + 1), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(spread, deviation, rtol=1e-4)
    np.testing.assert_allclose(fine, plane - mean, atol=1e-3)


def test_products_of_independent_noise_are_symmetric() -> None:
    values = np.random.default_rng(0).normal(size=(200, 200)).astype(np.float32)
    eta, _, left, right = list(aggd_of_products(values).values())[:4]
    assert abs(eta) < 0.02
    assert left == pytest.approx(right, rel=0.05)


def test_halving_averages_two_by_two() -> None:
    np.testing.assert_array_equal(halve(np.arange(16, dtype=np.float32).reshape(4, 4)), [[2.5, 4.5], [10.5, 12.5]])


def test_identical_images_do_not_differ(photograph: Pixels) -> None:
    assert np.abs(np.array([*reference_differences(photograph, photograph)[0].values()])).max() < 1e-3


def test_differences_name_what_changed(photograph: Pixels) -> None:
    blur, noise = (
        reference_differences(blurred(photograph, 2), photograph)[0],
        reference_differences(noisy(photograph, 15), photograph)[0],
    )
    assert blur["detail_gain"] < -0.5 < 0.2 < noise["detail_gain"]
    assert noise["residual_quiet"] > 2 * blur["residual_quiet"]
    darker = reference_differences((photograph * 0.8).astype(np.uint8), photograph)[0]
    assert darker["brightness_shift"] == pytest.approx(-0.2 * photograph.mean() / 255, rel=0.1)
    assert reference_differences(as_jpeg(photograph, 5), photograph)[0]["blocking_rise"] > 0.3
    losses = [reference_differences(blurred(photograph, s), photograph)[0]["structure_loss1"] for s in (0.7, 1.5, 3, 6)]
    assert np.all(np.diff(losses) > 0)


def test_a_reference_of_another_size_is_fitted(photograph: Pixels) -> None:
    smaller = np.asarray(Image.fromarray(photograph).resize((225, 150), Image.Resampling.BOX))
    assert reference_differences(smaller, photograph)[0]["structure_loss1"] < 0.3


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (70, 5), (129, 200)])
def test_blurring_is_that_of_scipy(size: tuple[int, int]) -> None:
    plane = np.random.default_rng(0).uniform(0, 255, size).astype(np.float32)
    taps = np.exp(-0.5 * (np.arange(-3, 4) / (7 / 6)) ** 2)
    expected = plane.astype(float)
    for axis in (0, 1):
        expected = ndimage.correlate1d(expected, taps / taps.sum(), axis=axis, mode="nearest")
    assert np.abs(gaussian(plane) - expected).max() < 1e-4
