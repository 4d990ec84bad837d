"""KADID-10k's distortions at its five levels: H x W x 3 uint8 in, the same shape out.

Sources: H. Lin, V. Hosu, D. Saupe, "KADID-10k", QoMEX 2019 (what each distortion is); the authors' public MATLAB
generator (which functions it calls, with which settings); MATLAB's documentation (what those compute). No code is taken
over. The generator also stretches every result to the full range of values; the paper describes no such step, it would
undo the mean shift, and it is left out. On a greyscale photograph all channels get the same noise.
"""

import hashlib
import io
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from skimage import color

from data import distortion_filters as filters
from data.kadid import CATEGORIES, DISTORTIONS, level_mean

__all__ = ("COLOUR_ONLY", "distort", "distortions_for", "generator_for", "is_grey")

Floats: TypeAlias = NDArray[np.float64]
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
    rgb: Floats = color.ycbcr2rgb(noisy * 255)
    return np.clip(rgb, 0, 1)


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
    filters.gaussian_blur, filters.lens_blur, filters.motion_blur, filters.diffuse_colour, filters.shift_colour,
    filters.quantize_colour, filters.saturate_hsv, filters.saturate_lab, compress_jpeg2000, compress_jpeg,
    white_noise, colour_component_noise, impulse_noise, multiplicative_noise, filters.brighten,
    filters.darken, filters.mean_shift, jitter, move_patches, pixelate, quantize,
    add_colour_blocks, filters.sharpen, filters.change_contrast,
), strict=True))  # fmt: skip
"""By name; each takes H x W x 3 values 0..1, the generator's setting and a random generator."""
