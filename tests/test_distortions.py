"""The distortions against independent computations of what each one should do."""

import csv
import io
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from skimage import color
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from data.distortions import (
    CATEGORIES,
    COLOUR_ONLY,
    DISTORTIONS,
    IDENTITIES,
    LEVELS,
    disk_kernel,
    distort,
    distortions_for,
    generator_for,
    is_grey,
    level_mean,
    level_means,
    motion_kernel,
    severity_of,
)
from data.quickstart import load_photograph
from tests.pictures import noise

Pixels = NDArray[np.uint8]
SHARED_TABLE = Path(__file__).resolve().parents[2] / "shared" / "data" / "kadid_level_means.csv"


def cropped(name: str) -> Pixels:
    return np.ascontiguousarray(load_photograph(name)[40:296, 60:380])


@pytest.fixture(scope="module")
def photograph() -> Pixels:
    return cropped("chelsea")


@pytest.fixture(scope="module")
def distorted(photograph: Pixels) -> dict[tuple[str, int], Pixels]:
    return {(d, n): distort(photograph, d, n, generator_for("chelsea", d, n)) for d in DISTORTIONS for n in LEVELS}


def make(image: Pixels, name: str, level: int) -> Pixels:
    return distort(image, name, level, generator_for("test", name, level))


def flat(value: int, size: int = 256) -> Pixels:
    return np.full((size, size, 3), value, np.uint8)


def test_every_row_of_the_table_is_generated() -> None:
    assert set(level_means()) == {(d, n) for d in DISTORTIONS for n in LEVELS}


@pytest.mark.skipif(not SHARED_TABLE.is_file(), reason="the shared data folder is not there")
def test_the_table_is_the_published_one() -> None:
    with SHARED_TABLE.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["distortion"] != "denoise"]
        assert len(rows) == len(DISTORTIONS) * len(LEVELS)
        for row in rows:
            mean = level_mean(row["distortion"], int(row["level"]))
            assert (mean.mos, mean.mos_std) == (float(row["mos_mean"]), float(row["mos_std_over_images"]))
            assert mean.parameter == float(row["parameter"])


def test_outputs_have_the_input_shape_and_the_input_is_left_alone(
    photograph: Pixels, distorted: dict[tuple[str, int], Pixels]
) -> None:
    assert {(image.shape, image.dtype) for image in distorted.values()} == {(photograph.shape, np.dtype(np.uint8))}
    np.testing.assert_array_equal(photograph, cropped("chelsea"))


def test_the_same_seed_gives_the_same_pixels_and_another_image_others(photograph: Pixels) -> None:
    for name in ("white_noise", "motion_blur", "color_shift", "jitter", "non_eccentricity_patch", "color_block"):
        first, again = (distort(photograph, name, 4, generator_for("a", name, 4)) for _ in range(2))
        other = distort(photograph, name, 4, generator_for("b", name, 4))
        np.testing.assert_array_equal(first, again)
        assert (first != other).any()


def test_identities_are_exactly_the_stated_ones(photograph: Pixels, distorted: dict[tuple[str, int], Pixels]) -> None:
    same = {key for key, image in distorted.items() if np.array_equal(image, photograph)}
    assert same == IDENTITIES
    assert all(level_mean(d, n).mos > 4.5 for d, n in IDENTITIES)


def test_quality_falls_with_the_level_where_people_say_so(
    photograph: Pixels, distorted: dict[tuple[str, int], Pixels]
) -> None:
    # Where the mean human score falls by more than 0.3 in one step, PSNR must fall too. Patches and blocks lie at
    # random, and saturation below 0 turns hues: there only first and last are compared.
    loose = {"non_eccentricity_patch", "color_block", "color_saturation_1"}
    compared = set()
    for name in DISTORTIONS:
        psnr = {n: _psnr(photograph, distorted[name, n]) for n in LEVELS}
        pairs = [(1, 5)] if name in loose else [(a, b) for a in LEVELS for b in LEVELS]
        if name in {"mean_shift", "contrast_change"}:
            # Levels 1, 2 and 4, 5 go opposite ways.
            pairs = [(a, b) for a, b in pairs if max(a, b) <= 3 or min(a, b) >= 3]
        for a, b in pairs:
            if level_mean(name, a).mos > level_mean(name, b).mos + 0.3:
                assert psnr[a] > psnr[b], (name, a, b)
                compared.add(name)
    assert len(compared) >= 20


def test_similarity_follows_the_human_means_over_all_distortions(
    photograph: Pixels, distorted: dict[tuple[str, int], Pixels]
) -> None:
    ssim = [structural_similarity(photograph, image, channel_axis=2) for image in distorted.values()]
    means = [level_mean(*key).mos for key in distorted]
    ranks = [np.argsort(np.argsort(values)) for values in (ssim, means)]
    # On KADID-10k itself SSIM reaches 0.72; one photograph and level means are no harder.
    assert np.corrcoef(*ranks)[0, 1] > 0.6


def test_gaussian_blur_of_a_step_is_the_error_function() -> None:
    step = flat(40)
    step[:, 128:] = 200
    blurred = make(step, "gaussian_blur", 4)[128, :, 0].astype(float)
    expected = [40 + 160 * 0.5 * (1 + math.erf((x - 127.5) / (2 * math.sqrt(2)))) for x in range(256)]
    # The kernel ends at 2 sigma, which leaves 4.6 % of the mass out.
    assert np.abs(blurred - expected).max() < 0.04 * 160
    assert (np.diff(blurred) >= 0).all()


@pytest.mark.parametrize("radius", [1, 2, 4, 6, 8])
def test_disk_kernel_is_the_area_of_a_disk(radius: int) -> None:
    kernel = disk_kernel(radius)
    assert kernel.shape == (2 * radius + 1, 2 * radius + 1)
    assert kernel.sum() == pytest.approx(1)
    np.testing.assert_allclose(kernel, kernel.T)
    np.testing.assert_allclose(kernel, kernel[::-1, ::-1])
    # A pixel wholly inside weighs one part in pi r^2.
    assert kernel[radius, radius] == pytest.approx(1 / (math.pi * radius**2), rel=0.01)
    # The second moment of a disk is r^2 / 4 along each axis; a pixel adds that of a square, 1/12.
    offsets = np.arange(-radius, radius + 1)
    assert (kernel.sum(axis=0) * offsets**2).sum() == pytest.approx(radius**2 / 4 + 1 / 12, rel=0.02, abs=0.07)


def test_motion_kernels_are_lines_of_their_length_and_angle() -> None:
    for length in (2, 4, 6, 10):
        for degrees in (0, 30, 90, 135, 170):
            kernel = motion_kernel(length, math.radians(degrees))
            assert kernel.sum() == pytest.approx(1)
            np.testing.assert_allclose(kernel, kernel[::-1, ::-1], atol=1e-12)
            reach = kernel.shape[0] // 2
            y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
            moments = np.array([[(kernel * x * x).sum(), (kernel * -x * y).sum()], [0, (kernel * y * y).sum()]])
            moments[1, 0] = moments[0, 1]
            values, vectors = np.linalg.eigh(moments)
            if length > 2:
                angle = math.degrees(math.atan2(vectors[1, 1], vectors[0, 1])) % 180
                assert min(abs(angle - degrees), 180 - abs(angle - degrees)) < 3
            assert values[1] == pytest.approx(length**2 / 12, abs=0.35 + 0.06 * length**2 / 12)
    np.testing.assert_array_equal(motion_kernel(1, 1.0), [[1.0]])
    np.testing.assert_allclose(motion_kernel(4, 0.0)[motion_kernel(4, 0.0) > 0], [1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 8])


@pytest.mark.parametrize("level", LEVELS)
def test_white_noise_has_its_variance(level: int) -> None:
    image = flat(128)
    image[..., 2] = 126
    noise = (make(image, "white_noise", level).astype(float) - image) / 255
    variance = level_mean("white_noise", level).parameter
    # Rounding to 1/255 adds 1/12 of a step squared.
    assert noise.var() == pytest.approx(variance + 1 / 255**2 / 12, rel=0.02)
    assert abs(noise.mean()) < 3 * math.sqrt(variance / noise.size)
    assert abs(np.corrcoef(noise[..., 0].ravel(), noise[..., 1].ravel())[0, 1]) < 0.02


def test_colour_component_noise_has_its_variance_in_each_component() -> None:
    for level in (3, 5):
        noisy = color.rgb2ycbcr(make(flat(128), "color_component_noise", level)) / 255
        variance = level_mean("color_component_noise", level).parameter
        np.testing.assert_allclose(noisy.reshape(-1, 3).var(axis=0), variance, rtol=0.05)


@pytest.mark.parametrize("level", LEVELS)
def test_multiplicative_noise_is_uniform_and_grows_with_the_value(level: int) -> None:
    variance = level_mean("multiplicative_noise", level).parameter
    for value in (60, 120):
        ratio = make(flat(value), "multiplicative_noise", level) / value - 1
        assert ratio.var() == pytest.approx(variance + 1 / value**2 / 12, rel=0.03)
        assert np.abs(ratio).max() <= math.sqrt(3 * variance) + 0.51 / value


@pytest.mark.parametrize("level", LEVELS)
def test_impulse_noise_has_its_density_half_each_way(level: int) -> None:
    image = make(flat(100, 512), "impulse_noise", level)
    density = level_mean("impulse_noise", level).parameter
    spread = 4 * math.sqrt(density / image.size)
    assert (image == 0).mean() == pytest.approx(density / 2, abs=spread)
    assert (image == 255).mean() == pytest.approx(density / 2, abs=spread)
    assert ((image == 0) | (image == 255) | (image == 100)).all()


@pytest.mark.parametrize("level", LEVELS)
def test_jpeg_is_a_round_trip_at_its_quality(photograph: Pixels, level: int) -> None:
    buffer = io.BytesIO()
    quality = int(level_mean("jpeg", level).parameter or 0)
    Image.fromarray(photograph).save(buffer, "JPEG", quality=quality)
    np.testing.assert_array_equal(make(photograph, "jpeg", level), np.asarray(Image.open(buffer).convert("RGB")))


def test_jpeg2000_meets_its_ratio(photograph: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    save = Image.Image.save

    def measured(self: Image.Image, buffer: io.BytesIO, **options: object) -> None:
        save(self, buffer, **options)
        sizes.append(len(buffer.getvalue()))

    monkeypatch.setattr(Image.Image, "save", measured)
    for level in LEVELS:
        make(photograph, "jpeg2000", level)
        assert photograph.size / sizes[-1] == pytest.approx(level_mean("jpeg2000", level).parameter, rel=0.05)


def test_mean_shift_shifts_the_mean() -> None:
    image = np.random.default_rng(0).integers(60, 180, (64, 64, 3), dtype=np.uint8)
    for level in LEVELS:
        moved = make(image, "mean_shift", level).astype(float).mean() - image.mean()
        assert moved == pytest.approx(255 * level_mean("mean_shift", level).parameter, abs=0.5)
    assert make(flat(250), "mean_shift", 1).max() == 255
    assert make(flat(5), "mean_shift", 5).min() == 0


def test_tone_curves_pass_through_their_points() -> None:
    ramp = np.repeat(np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 64, axis=0), 3, axis=2)
    for level in (1, 2, 3, 4):
        middle = 0.5 - level_mean("darken", level).parameter / 2
        # The parabola through (0, 0), (1/2, m), (1, 1) is (2 - 4 m) x^2 + (4 m - 1) x.
        x = np.arange(256) / 255
        expected = np.clip((2 - 4 * middle) * x**2 + (4 * middle - 1) * x, 0, 1) * 255
        assert np.abs(make(ramp, "darken", level)[0, :, 0] - expected).max() <= 0.51
    for level in LEVELS:
        amount = level_mean("contrast_change", level).parameter
        curve = make(ramp, "contrast_change", level)[0, :, 0].astype(float)
        low, high = np.interp((0.3 * 255, 0.7 * 255), np.arange(256), curve) / 255
        assert low == pytest.approx(0.25 - amount / 4, abs=0.004)
        assert high == pytest.approx(0.75 + amount / 4, abs=0.004)
        assert (curve[0], curve[255]) == (0, 255)


def test_brighten_and_darken_go_their_way(photograph: Pixels) -> None:
    for level in LEVELS:
        assert make(photograph, "brighten", level).mean() > photograph.mean()
        assert make(photograph, "darken", level).mean() < photograph.mean()


def test_contrast_at_level_three_is_raised_not_left(photograph: Pixels) -> None:
    spread = [make(photograph, "contrast_change", level).std() for level in LEVELS]
    assert spread[0] > spread[1] > spread[2] > photograph.std() > spread[3] > spread[4]


def test_sharpening_changes_lightness_by_unsharp_masking() -> None:
    step = flat(100)
    step[:, 128:] = 140
    sharp = make(step, "high_sharpen", 1)[128, :, 0].astype(int)
    assert sharp[127] < 100
    assert sharp[128] > 140
    assert sharp[100] == 100
    assert is_grey(make(step, "high_sharpen", 1))


def test_saturation_scales_chroma_and_keeps_lightness(photograph: Pixels) -> None:
    assert is_grey(make(photograph, "color_saturation_1", 4))
    hsv = color.rgb2hsv(photograph)
    halved = color.rgb2hsv(make(photograph, "color_saturation_1", 1))
    strong = hsv[..., 1] > 0.3
    assert np.median(halved[..., 1][strong] / hsv[..., 1][strong]) == pytest.approx(0.4, abs=0.02)
    dull = flat(120)
    dull[..., 0] = 130
    before, after = (color.rgb2lab(image)[0, 0] for image in (dull, make(dull, "color_saturation_2", 2)))
    np.testing.assert_allclose(after[1:], 2 * before[1:], atol=0.6)
    assert after[0] == pytest.approx(before[0], abs=0.4)


def test_colour_diffusion_blurs_colour_and_keeps_lightness() -> None:
    image = flat(120)
    image[:, 128:] = (150, 105, 120)
    before, after = color.rgb2lab(image), color.rgb2lab(make(image, "color_diffusion", 1))
    assert np.abs(after[..., 0] - before[..., 0]).max() < 0.6
    # Gaussian with sigma 3.5, amount 1: half the colour at the border, all of it far away.
    assert after[128, 127:129, 1].mean() == pytest.approx(before[..., 1].max() / 2, abs=0.4)
    assert after[128, 200, 1] == pytest.approx(before[128, 200, 1], abs=0.3)
    # One sigma from the border the step has risen to 84 %, or 86 % with the kernel cut at two sigma.
    assert after[128, 131, 1] / before[128, 200, 1] == pytest.approx(0.86, abs=0.04)


def test_colour_shift_moves_green_only_near_edges(photograph: Pixels) -> None:
    shifted = make(photograph, "color_shift", 5)
    np.testing.assert_array_equal(shifted[..., (0, 2)], photograph[..., (0, 2)])
    image = flat(50)
    image[100:156, 100:156] = 200
    moved = make(image, "color_shift", 5)[..., 1] != 50
    assert moved[90:180, 90:180].any()
    np.testing.assert_array_equal(make(image, "color_shift", 5)[:60], image[:60])


def test_quantizations_leave_that_many_values(photograph: Pixels) -> None:
    for level in LEVELS:
        colours = make(photograph, "color_quantization", level) @ np.array([1 << 16, 1 << 8, 1])
        assert len(np.unique(colours)) <= level_mean("color_quantization", level).parameter
        values = np.unique(make(photograph, "quantization", level))
        assert len(values) <= level_mean("quantization", level).parameter + 1
        assert values[0] == 0
        assert values[-1] == 255
    few = flat(10)
    few[:10] = 90
    assert set(np.unique(make(few, "quantization", 5))) <= {0, 255}
    np.testing.assert_array_equal(make(flat(77), "quantization", 5), flat(77))


def test_quantization_cuts_lower_the_variance_within_classes(photograph: Pixels) -> None:
    levels = photograph.ravel().astype(float)
    shown = make(photograph, "quantization", 5).ravel()
    within = sum(((levels[shown == v] - levels[shown == v].mean()) ** 2).sum() for v in np.unique(shown))
    even = np.digitize(levels, np.linspace(0, 256, 9)[1:-1])
    uniform = sum(((levels[even == v] - levels[even == v].mean()) ** 2).sum() for v in np.unique(even))
    assert within < uniform


def test_pixelation_repeats_pixels(photograph: Pixels) -> None:
    coarse = make(photograph, "pixelate", 5)
    scale = 0.95 - 0.5**0.6
    repeats = (coarse[:, 1:] == coarse[:, :-1]).all(axis=2).all(axis=0).mean()
    assert repeats == pytest.approx(1 - scale, abs=0.02)


def test_blocks_and_patches_touch_only_their_area() -> None:
    ramp = np.stack([np.add.outer(np.arange(256), np.zeros(256))] * 3, axis=2).astype(np.uint8)
    for level in LEVELS:
        count = int(level_mean("color_block", level).parameter or 0)
        changed = (make(ramp, "color_block", level) != ramp).any(axis=2).mean()
        assert 1024 * 0.5 / 256**2 < changed <= count * 1024 / 256**2
    moved = make(ramp, "non_eccentricity_patch", 5).astype(int) - ramp
    # A patch moves by at most 8 pixels, so a ramp of 1 a pixel changes by 8, or more where patches overlap.
    assert np.abs(moved).max() <= 8 * 5
    assert 0.1 < (moved != 0).any(axis=2).mean() < 100 * 256 / 256**2


def test_jitter_keeps_the_mean_and_moves_by_its_amount() -> None:
    ramp = np.stack([np.add.outer(np.zeros(256), np.arange(256))] * 3, axis=2).astype(np.uint8)
    for level in (4, 5):
        moved = make(ramp, "jitter", level)[64:192, 64:192].astype(float) - ramp[64:192, 64:192]
        # Every pass reads a neighbour displaced by a Gaussian step; interpolation blends independent earlier steps.
        amount = level_mean("jitter", level).parameter
        assert abs(moved.mean()) < 0.1
        assert amount < moved.std() < 2.3 * amount


def test_greyscale_stays_grey_and_gets_no_colour_distortion() -> None:
    grey = cropped("camera")
    assert is_grey(grey)
    assert set(distortions_for(grey)) == set(DISTORTIONS) - COLOUR_ONLY
    assert not [d for d in distortions_for(grey) if CATEGORIES[d] == "Color distortions"]
    for name in distortions_for(grey):
        assert is_grey(make(grey, name, 5)), name
    assert distortions_for(load_photograph("coffee")) == DISTORTIONS


def test_the_smallest_image_takes_every_distortion() -> None:
    image = noise(np.random.default_rng(1), 64, 64)
    for name in DISTORTIONS:
        assert make(image, name, 5).shape == image.shape


def test_severity_is_the_nearest_category_of_the_mean() -> None:
    words = ("extreme", "severe", "moderate", "slight", "none")
    for mos in np.arange(1, 5.001, 0.01):
        assert severity_of(float(mos)) == words[min(4, math.floor(mos + 0.5 + 1e-9) - 1)]


def _psnr(reference: Pixels, image: Pixels) -> float:
    return math.inf if np.array_equal(reference, image) else float(peak_signal_noise_ratio(reference, image))
