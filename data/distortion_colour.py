"""Colour distortions, on H x W x 3 images with values 0..1. Lab is CIE L*a*b*, D65."""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from skimage import color

__all__ = (
    "diffuse_colour", "from_lab", "quantize_colour", "saturate_hsv", "saturate_lab", "shift_colour", "to_lab",
)  # fmt: skip

Floats = NDArray[np.float64]


def to_lab(image: Floats) -> Floats:
    """Convert sRGB 0..1 to L*a*b* (L 0..100)."""
    lab: Floats = color.rgb2lab(image)
    return lab


def from_lab(lab: Floats) -> Floats:
    """Convert L*a*b* to sRGB, cut to 0..1; L below 0 (after sharpening) counts as black."""
    # A b too large for its L has no Z >= 0; scikit-image would cut it to Z = 0 as well, with a warning.
    lightness = np.maximum(lab[..., 0], 0)
    highest_b = 200 * (lightness + 16) / 116 - 1e-6
    inside = np.stack([lightness, lab[..., 1], np.minimum(lab[..., 2], highest_b)], axis=-1)
    rgb: Floats = color.lab2rgb(inside)
    return np.clip(rgb, 0, 1)


def diffuse_colour(image: Floats, amount: float, rng: np.random.Generator) -> Floats:
    """Blur a and b with sigma = 1.5 amount + 2 pixels and multiply them by `amount`; L stays."""
    sigma = 1.5 * amount + 2
    lab = to_lab(image)
    radius = math.ceil(2 * sigma)
    lab[..., 1:] = amount * ndimage.gaussian_filter(lab[..., 1:], sigma, radius=radius, mode="nearest", axes=(0, 1))
    return from_lab(lab)


def shift_colour(image: Floats, amount: float, rng: np.random.Generator) -> Floats:
    """Move the green channel by about `amount` pixels in a random direction, blended in near edges."""
    edges = ndimage.gaussian_filter(_gradient(image), 4.0, radius=8, mode="nearest")
    weight = _stretch(np.clip(_unit(edges), 0.1, 1))
    direction = rng.random(2)
    rows, columns = np.rint(amount * direction / np.linalg.norm(direction)).astype(int)
    moved = ndimage.shift(image[..., 1], (rows, columns), order=0, mode="nearest")
    shifted = image.copy()
    shifted[..., 1] = weight * moved + (1 - weight) * image[..., 1]
    return shifted


def quantize_colour(image: Floats, colours: float, rng: np.random.Generator) -> Floats:
    """Keep `colours` colours of least variance, dithered by Floyd-Steinberg (`rgb2ind`).

    The palette is Pillow's median cut refined by k-means, which lowers the same variance that
    MATLAB's palette is cut by; the two palettes are close, not equal.
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
    rgb: Floats = color.hsv2rgb(hsv)
    return np.clip(rgb, 0, 1)


def saturate_lab(image: Floats, factor: float, rng: np.random.Generator) -> Floats:
    """Multiply a and b by `factor`; 1 changes nothing."""
    lab = to_lab(image)
    lab[..., 1:] *= factor
    return from_lab(lab)


def _gradient(image: Floats) -> Floats:
    down, across = np.gradient(color.rgb2gray(image))
    magnitude: Floats = np.hypot(down, across)
    return magnitude


def _unit(values: Floats) -> Floats:
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def _stretch(values: Floats) -> Floats:
    low, high = np.percentile(values, (1, 99))
    return _unit(np.clip(values, low, high))
