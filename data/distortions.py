"""KADID-10k's distortions at five levels: H x W x 3 uint8 in, the same shape out; and what people thought of each."""

import csv
import hashlib
import io
import math
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from scipy.interpolate import CubicSpline
from skimage import color

from signatures.schemas import SEVERITIES, DistortionCategory, Severity, category_of

LEVELS = (1, 2, 3, 4, 5)
"""KADID-10k's distortion levels, in its order (mean shift and contrast change have their mildest in the middle)."""

_GROUPS: tuple[tuple[DistortionCategory | None, tuple[str, ...]], ...] = (
    ("Blurs", ("gaussian_blur", "lens_blur", "motion_blur")),
    ("Color distortions", ("color_diffusion", "color_shift", "color_quantization", "color_saturation_1",
                           "color_saturation_2")),
    ("Compression", ("jpeg2000", "jpeg")),
    ("Noise", ("white_noise", "color_component_noise", "impulse_noise", "multiplicative_noise")),
    ("Brightness change", ("brighten", "darken", "mean_shift")),
    (None, ("jitter", "non_eccentricity_patch", "pixelate", "quantization", "color_block")),
    ("Sharpness", ("high_sharpen",)),
    ("Contrast", ("contrast_change",)),
)  # fmt: skip

CATEGORIES: Mapping[str, DistortionCategory | None] = {name: category for category, names in _GROUPS for name in names}
"""The agent's category of each distortion that is generated, in KADID-10k's order; it has no word for the spatial ones
(jitter to color block), hence None. KADID-10k's denoise is left out: it is a trained network's (DnCNN), whose weights
are not at hand; another denoiser leaves other traces, for which the human scores would not hold."""

DISTORTIONS: tuple[str, ...] = tuple(CATEGORIES)

IDENTITIES: frozenset[tuple[str, int]] = frozenset({
    ("gaussian_blur", 1), ("motion_blur", 1), ("color_saturation_2", 1), ("mean_shift", 3),
})  # fmt: skip
"""Distortion and level that leave every pixel as it was; their mean scores (4.58 to 4.61) say so too."""

LIVE_NAMES: Mapping[str, str] = {
    "jp2k": "jpeg2000", "wn": "white_noise", "gblur": "gaussian_blur", "fastfading": "jpeg2000_transmission_errors",
}  # fmt: skip
"""LIVE's abbreviations as other datasets write them; its fast fading is TID2013's JPEG 2000 transmission errors."""


class LevelMean(NamedTuple):
    """One row: the generator's setting and the mean human score of a distortion at a level."""

    parameter: float
    mos: float
    """Mean opinion score over the references, 1..5, higher is better."""
    mos_std: float
    """Standard deviation of the images' scores over the references."""


@cache
def level_means() -> Mapping[tuple[str, int], LevelMean]:
    """Return the table, keyed by distortion and level (1..5)."""
    rows = csv.DictReader(_table().decode("utf-8").splitlines())
    return {
        (row["distortion"], int(row["level"])): LevelMean(
            float(row["parameter"]), float(row["mos_mean"]), float(row["mos_std_over_images"])
        )
        for row in rows
        if row["distortion"] in CATEGORIES
    }


def level_mean(distortion: str, level: int) -> LevelMean:
    """Return the row of a distortion at a level; KeyError when there is none."""
    return level_means()[distortion, level]


def level_means_sha256() -> str:
    """Return the SHA-256 of the table's bytes, in hex."""
    return hashlib.sha256(_table()).hexdigest()


def category_named(distortion: str | None) -> DistortionCategory | None:
    """Return the category of a distortion by a dataset's name for it; None for none or one outside the seven."""
    name = LIVE_NAMES.get((distortion or "").casefold(), distortion or "")
    return CATEGORIES[name] if name in CATEGORIES else category_of(name.replace("_", " "))


def severity_of(mos: float) -> Severity:
    """Return how severe a degradation with this mean score (1..5) is, from none to extreme; halves go up.

    KADID-10k asked on the degradation category rating of ITU-T P.910: 5 imperceptible, 4 perceptible but not annoying,
    3 slightly annoying, 2 annoying, 1 very annoying.
    """
    return SEVERITIES[5 - min(5, max(1, math.floor(mos + 0.5)))]


def _table() -> bytes:
    return files("data").joinpath("kadid_level_means.csv").read_bytes()


Floats: TypeAlias = NDArray[np.float64]


def smooth(values: Floats, sigma: float) -> Floats:
    """Blur each channel as MATLAB's `imgaussfilt` does: kernel cut at 2 sigma, borders replicated."""
    return np.asarray(ndimage.gaussian_filter(values, sigma, radius=math.ceil(2 * sigma), mode="nearest", axes=(0, 1)))


def gaussian_blur(image: Floats, sigma: float, rng: np.random.Generator) -> Floats:
    """Blur with a Gaussian of `sigma` pixels; 0.1 changes nothing (its neighbours weigh e^-50)."""
    return smooth(image, sigma)


def lens_blur(image: Floats, radius: float, rng: np.random.Generator) -> Floats:
    """Blur with a disk of `radius` pixels, as a lens out of focus does (`fspecial('disk')`)."""
    return _filter(image, disk_kernel(radius))


def motion_blur(image: Floats, length: float, rng: np.random.Generator) -> Floats:
    """Blur along a line of `length` pixels at a random angle (`fspecial('motion')`); 1 changes nothing."""
    return _filter(image, motion_kernel(length, float(rng.uniform(0, math.pi))))


def disk_kernel(radius: float) -> Floats:
    """Return the share of each pixel that a disk round the centre covers, normalised to sum 1."""
    reach, parts = math.ceil(radius - 0.5), 64
    fine = (np.arange((2 * reach + 1) * parts) + 0.5) / parts - reach - 0.5
    inside = (fine[:, None] ** 2 + fine[None, :] ** 2 <= radius**2).astype(np.float64)
    side = 2 * reach + 1
    kernel: Floats = inside.reshape(side, parts, side, parts).mean(axis=(1, 3))
    return kernel / float(kernel.sum())


def motion_kernel(length: float, angle: float) -> Floats:
    """Return an anti-aliased line: weight 1 - distance to the segment, normalised to sum 1.

    `length` in pixels from end to end (first and last pixel included), `angle` in radians.
    """
    half = (max(1.0, length) - 1) / 2
    reach = math.ceil(half)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1].astype(np.float64)
    along = x * math.cos(angle) - y * math.sin(angle)
    beyond = np.maximum(np.abs(along) - half, 0)
    across = x * math.sin(angle) + y * math.cos(angle)
    kernel: Floats = np.maximum(1 - np.hypot(across, beyond), 0)
    return kernel / float(kernel.sum())


def sharpen(image: Floats, amount: float, rng: np.random.Generator) -> Floats:
    """Over-sharpen the lightness by unsharp masking: L + amount (L - blurred L), radius 3 (`imsharpen`)."""
    lab = color.rgb2lab(image)
    lab[..., 0] += amount * (lab[..., 0] - smooth(lab[..., 0], 3.0))
    return from_lab(lab)


def brighten(image: Floats, amount: float, rng: np.random.Generator) -> Floats:
    """Lift the middle tones: two parts of the curve on R, G, B and one part of it on the lightness."""
    middle = 0.5 + amount / 2
    lab = color.rgb2lab(image)
    lab[..., 0] = 100 * _curve(lab[..., 0] / 100, (0.5,), (middle,))
    return (2 * _curve(image, (0.5,), (middle,)) + from_lab(lab)) / 3


def darken(image: Floats, amount: float, rng: np.random.Generator) -> Floats:
    """Lower the middle tones by a curve on R, G, B."""
    return _curve(image, (0.5,), (0.5 - amount / 2,))


def mean_shift(image: Floats, amount: float, rng: np.random.Generator) -> Floats:
    """Add a constant to every value; what leaves 0..1 is cut off there. 0 changes nothing."""
    return np.clip(image + amount, 0, 1)


def change_contrast(image: Floats, amount: float, rng: np.random.Generator) -> Floats:
    """Bend the tones by an S-curve through (.3, .25 - a/4), (.5, .5), (.7, .75 + a/4); a straight line at a = -0.2."""
    return _curve(image, (0.3, 0.5, 0.7), (0.25 - amount / 4, 0.5, 0.75 + amount / 4))


def _curve(values: Floats, x: tuple[float, ...], y: tuple[float, ...]) -> Floats:
    """Map 0..1 by the cubic (not-a-knot) spline through (0, 0), the given points and (1, 1), cut to 0..1."""
    spline = CubicSpline((0.0, *x, 1.0), (0.0, *y, 1.0), bc_type="not-a-knot")
    return np.asarray(np.clip(spline(values), 0, 1))


def _filter(image: Floats, kernel: Floats) -> Floats:
    # Both kernels are symmetric about their centre, so correlation and convolution agree.
    return np.stack([ndimage.correlate(image[..., c], kernel, mode="reflect") for c in range(3)], axis=-1)


def from_lab(lab: Floats) -> Floats:
    """Convert L*a*b* to sRGB, cut to 0..1; L below 0 (after sharpening) counts as black."""
    # A b too large for its L has no Z >= 0; scikit-image would cut it to Z = 0 as well, with a warning.
    lightness = np.maximum(lab[..., 0], 0)
    highest_b = 200 * (lightness + 16) / 116 - 1e-6
    inside = np.stack([lightness, lab[..., 1], np.minimum(lab[..., 2], highest_b)], axis=-1)
    return np.asarray(np.clip(color.lab2rgb(inside), 0, 1))


def diffuse_colour(image: Floats, amount: float, rng: np.random.Generator) -> Floats:
    """Blur a and b with sigma = 1.5 amount + 2 pixels and multiply them by `amount`; L stays."""
    lab = color.rgb2lab(image)
    lab[..., 1:] = amount * smooth(lab[..., 1:], 1.5 * amount + 2)
    return from_lab(lab)


def shift_colour(image: Floats, amount: float, rng: np.random.Generator) -> Floats:
    """Move the green channel by about `amount` pixels in a random direction, blended in near edges."""
    down, across = np.gradient(color.rgb2gray(image))
    weight = np.clip(_unit(smooth(np.hypot(down, across), 4.0)), 0.1, 1)
    weight = _unit(np.clip(weight, *np.percentile(weight, (1, 99))))
    direction = rng.random(2)
    rows, columns = np.rint(amount * direction / np.linalg.norm(direction)).astype(int)
    moved = ndimage.shift(image[..., 1], (rows, columns), order=0, mode="nearest")
    shifted = image.copy()
    shifted[..., 1] = weight * moved + (1 - weight) * image[..., 1]
    return shifted


def quantize_colour(image: Floats, colours: float, rng: np.random.Generator) -> Floats:
    """Keep `colours` colours of least variance, dithered by Floyd-Steinberg (`rgb2ind`).

    The palette is Pillow's median cut refined by k-means: close to MATLAB's, not equal.
    """
    picture = Image.fromarray(np.rint(image * 255).astype(np.uint8))
    # A quarter of the pixels gives the same palette in a quarter of the time.
    quarter = Image.fromarray(np.asarray(picture)[::2, ::2])
    palette = quarter.quantize(int(colours), method=Image.Quantize.MEDIANCUT, kmeans=1)
    dithered = picture.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)
    return np.asarray(dithered.convert("RGB"), dtype=np.float64) / 255


def saturate_hsv(image: Floats, factor: float, rng: np.random.Generator) -> Floats:
    """Multiply the saturation (HSV) by `factor`; a negative one turns hues into their opposites."""
    hsv = color.rgb2hsv(image)
    hsv[..., 1] *= factor
    return np.asarray(np.clip(color.hsv2rgb(hsv), 0, 1))


def saturate_lab(image: Floats, factor: float, rng: np.random.Generator) -> Floats:
    """Multiply a and b by `factor`; 1 changes nothing."""
    lab = color.rgb2lab(image)
    lab[..., 1:] *= factor
    return from_lab(lab)


def _unit(values: Floats) -> Floats:
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


PATCH_PX = 16
BLOCK_PX = 32

COLOUR_ONLY: frozenset[str] = frozenset(
    {name for name, category in CATEGORIES.items() if category == "Color distortions"}
    | {"color_component_noise", "color_block"}
)
"""Distortions that mean nothing on a greyscale photograph."""


def distortions_for(image: NDArray[np.uint8]) -> tuple[str, ...]:
    """Return the distortions that make sense for H x W x 3 pixels: no colour ones on greyscale."""
    return tuple(d for d in DISTORTIONS if d not in COLOUR_ONLY) if is_grey(image) else DISTORTIONS


def generator_for(*names: str | int) -> np.random.Generator:
    """Return the random generator of what has these names: the same on every machine, whatever the order of work."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


def distort(image: NDArray[np.uint8], distortion: str, level: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Distort H x W x 3 uint8 pixels, at least 64 x 64, as KADID-10k does at this level (1..5).

    The input is not changed. Raises KeyError for an unknown distortion or level.
    """
    parameter = level_mean(distortion, level).parameter
    result = _FUNCTIONS[distortion](image.astype(np.float64) / 255, parameter, rng)
    if distortion not in COLOUR_ONLY and is_grey(image):
        # The way through L*a*b* and back leaves a trace of colour, a step of 1/255 here and there.
        result = np.repeat(result[..., :1], 3, axis=2)
    return np.rint(np.clip(result, 0, 1) * 255).astype(np.uint8)


def is_grey(image: NDArray[Any]) -> bool:
    """Tell whether the three channels of H x W x 3 are equal."""
    return bool(np.array_equal(image[..., 0], image[..., 1]) and np.array_equal(image[..., 0], image[..., 2]))


def white_noise(image: Floats, variance: float, rng: np.random.Generator) -> Floats:
    """Add Gaussian noise of this variance to R, G and B."""
    return np.clip(image + math.sqrt(variance) * rng.standard_normal(_field(image)), 0, 1)


def colour_component_noise(image: Floats, variance: float, rng: np.random.Generator) -> Floats:
    """Add Gaussian noise of this variance to Y, Cb and Cr (ITU-R BT.601)."""
    components = color.rgb2ycbcr(image) / 255
    noisy = np.clip(components + math.sqrt(variance) * rng.standard_normal(image.shape), 0, 1)
    return np.asarray(np.clip(color.ycbcr2rgb(noisy * 255), 0, 1))


def impulse_noise(image: Floats, density: float, rng: np.random.Generator) -> Floats:
    """Set this share of the values to 0 or 1, half each (salt and pepper, per channel)."""
    draw = np.broadcast_to(rng.random(_field(image)), image.shape)
    return np.where(draw < density / 2, 0.0, np.where(draw < density, 1.0, image))


def multiplicative_noise(image: Floats, variance: float, rng: np.random.Generator) -> Floats:
    """Multiply each value by 1 + n, n uniform with mean 0 and this variance (speckle)."""
    reach = math.sqrt(3 * variance)
    return np.clip(image * (1 + rng.uniform(-reach, reach, _field(image))), 0, 1)


def compress_jpeg(image: Floats, quality: float, rng: np.random.Generator) -> Floats:
    """Round-trip through JPEG of this quality, chroma halved both ways (libjpeg's default)."""
    return _through_file(image, format="JPEG", quality=int(quality), subsampling="4:2:0")


def compress_jpeg2000(image: Floats, ratio: float, rng: np.random.Generator) -> Floats:
    """Round-trip through lossy JPEG 2000 at this compression ratio."""
    return _through_file(
        image, format="JPEG2000", quality_mode="rates", quality_layers=[ratio], irreversible=True, no_jp2=True
    )


def jitter(image: Floats, amount: float, rng: np.random.Generator) -> Floats:
    """Move every pixel by Gaussian steps of `amount` pixels, five times over, with bicubic interpolation."""
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]].astype(np.float64)
    moved = image
    for _ in range(5):
        down, across = amount * rng.standard_normal((2, *image.shape[:2]))
        places = np.stack([rows + down, columns + across])
        moved = np.stack(
            [ndimage.map_coordinates(moved[..., c], places, order=3, mode="nearest") for c in range(3)], axis=-1
        )
    return np.clip(moved, 0, 1)


def move_patches(image: Floats, count: float, rng: np.random.Generator) -> Floats:
    """Copy `count` patches of 16 x 16 pixels to a place up to 8 pixels away each way."""
    moved = image.copy()
    height, width = image.shape[:2]
    for _ in range(int(count)):
        top = int(rng.integers(PATCH_PX, height - 2 * PATCH_PX + 1))
        left = int(rng.integers(PATCH_PX, width - 2 * PATCH_PX + 1))
        patch = moved[top : top + PATCH_PX, left : left + PATCH_PX].copy()
        down, across = np.rint((rng.random(2) - 0.5) * PATCH_PX).astype(int)
        moved[top + down : top + down + PATCH_PX, left + across : left + across + PATCH_PX] = patch
    return moved


def pixelate(image: Floats, strength: float, rng: np.random.Generator) -> Floats:
    """Scale by .95 - strength^.6 and back, both to the nearest pixel."""
    height, width = image.shape[:2]
    scale = 0.95 - strength**0.6
    picture = Image.fromarray(np.rint(image * 255).astype(np.uint8))
    small = picture.resize((math.ceil(scale * width), math.ceil(scale * height)), Image.Resampling.NEAREST)
    return np.asarray(small.resize((width, height), Image.Resampling.NEAREST), dtype=np.float64) / 255


def quantize(image: Floats, thresholds: float, rng: np.random.Generator) -> Floats:
    """Round all values to `thresholds` + 1 steps, cut where Otsu's within-class variance is least.

    The cuts t1 .. tn come from weighted k-means over the 256 values (the same sum of squares), started
    from even steps; the steps become 0, t2 .. tn, 1, as in the original.
    """
    from sklearn.cluster import KMeans

    values = np.rint(image * 255).astype(np.uint8)
    counts = np.bincount(values.ravel(), minlength=256)
    used = np.flatnonzero(counts)
    steps = min(int(thresholds) + 1, len(used))
    if steps < 2:
        return image
    start = np.linspace(used[0], used[-1], steps)[:, None]
    means = KMeans(steps, init=start, n_init=1).fit(used[:, None], sample_weight=counts[used]).cluster_centers_
    centres = np.sort(means.ravel()) / 255
    cuts = (centres[:-1] + centres[1:]) / 2
    return np.array([0.0, *cuts[1:], 1.0])[np.digitize(image, cuts)]


def add_colour_blocks(image: Floats, count: float, rng: np.random.Generator) -> Floats:
    """Paint `count` blocks of 32 x 32 pixels at random places in random colours."""
    painted = image.copy()
    height, width = image.shape[:2]
    for _ in range(int(count)):
        top = int(rng.integers(0, height - BLOCK_PX + 1))
        left = int(rng.integers(0, width - BLOCK_PX + 1))
        painted[top : top + BLOCK_PX, left : left + BLOCK_PX] = rng.random(3)
    return painted


def _field(image: Floats) -> tuple[int, int, int]:
    return (image.shape[0], image.shape[1], 1 if is_grey(image) else 3)


def _through_file(image: Floats, **options: Any) -> Floats:
    buffer = io.BytesIO()
    Image.fromarray(np.rint(image * 255).astype(np.uint8)).save(buffer, **options)
    with Image.open(buffer) as decoded:
        return np.asarray(decoded.convert("RGB"), dtype=np.float64) / 255


_FUNCTIONS: Mapping[str, Callable[[Floats, float, np.random.Generator], Floats]] = dict(zip(DISTORTIONS, (
    gaussian_blur, lens_blur, motion_blur, diffuse_colour, shift_colour,
    quantize_colour, saturate_hsv, saturate_lab, compress_jpeg2000, compress_jpeg,
    white_noise, colour_component_noise, impulse_noise, multiplicative_noise, brighten,
    darken, mean_shift, jitter, move_patches, pixelate, quantize,
    add_colour_blocks, sharpen, change_contrast,
), strict=True))  # fmt: skip
"""By name; each takes H x W x 3 values 0..1, the generator's setting and a random generator."""
