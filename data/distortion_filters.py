"""Blurs, sharpening, tone curves and colour distortions, on H x W x 3 images with values 0..1. Lab is CIE L*a*b*, D65.

KADID-10k's own generator is MATLAB code; what its calls do is taken from MATLAB's documentation and rebuilt here on
SciPy. Parameters are those of `kadid_level_means.csv`.
"""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from scipy.interpolate import CubicSpline
from skimage import color

__all__ = (
    "brighten", "change_contrast", "darken", "diffuse_colour", "disk_kernel", "gaussian_blur", "lens_blur",
    "mean_shift", "motion_blur", "motion_kernel", "quantize_colour", "saturate_hsv", "saturate_lab", "sharpen",
    "shift_colour",
)  # fmt: skip

Floats = NDArray[np.float64]


def smooth(values: Floats, sigma: float) -> Floats:
    """Blur each channel as MATLAB's `imgaussfilt` does: kernel cut at 2 sigma, borders replicated."""
    radius = math.ceil(2 * sigma)
    blurred: Floats = ndimage.gaussian_filter(values, sigma, radius=radius, mode="nearest", axes=(0, 1))
    return blurred


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
    lab = to_lab(image)
    lab[..., 0] += amount * (lab[..., 0] - smooth(lab[..., 0], 3.0))
    return from_lab(lab)


def brighten(image: Floats, amount: float, rng: np.random.Generator) -> Floats:
    """Lift the middle tones: two parts of the curve on R, G, B and one part of it on the lightness."""
    middle = 0.5 + amount / 2
    lab = to_lab(image)
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
    bent: Floats = spline(values)
    return np.clip(bent, 0, 1)


def _filter(image: Floats, kernel: Floats) -> Floats:
    # Both kernels are symmetric about their centre, so correlation and convolution agree.
    return np.stack([ndimage.correlate(image[..., c], kernel, mode="reflect") for c in range(3)], axis=-1)


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
    lab = to_lab(image)
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
    rgb: Floats = color.hsv2rgb(hsv)
    return np.clip(rgb, 0, 1)


def saturate_lab(image: Floats, factor: float, rng: np.random.Generator) -> Floats:
    """Multiply a and b by `factor`; 1 changes nothing."""
    lab = to_lab(image)
    lab[..., 1:] *= factor
    return from_lab(lab)


def _unit(values: Floats) -> Floats:
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else np.zeros_like(values)
