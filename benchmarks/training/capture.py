"""What goes wrong when a photograph is taken: motion, defocus, a camera's noise, too much or too little light.

KADID-10k has one blur along the rows of at most 10 pixels and noise that is the same in light and shade; photographs
are smeared by 60 in any direction, and noisiest where they are dark. How much people mind is read off KADID-10k's mean
scores of the nearest kind at the same amount, and carried on beyond its strongest level.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from data.distortions import is_grey
from signatures.schemas import DistortionCategory

__all__ = ("FAULTS", "Fault", "camera_noise", "defocus", "expose", "motion")

Pixels = NDArray[np.uint8]
Curve = tuple[tuple[float, ...], tuple[float, ...]]
_LUMA = np.array([0.299, 0.587, 0.114])


class Fault(NamedTuple):
    """Damaged pixels, and the score (1..5) that each category of the damage would bring an image to."""

    pixels: Pixels
    scores: Mapping[DistortionCategory, float]


Maker = Callable[[Pixels, np.random.Generator], Fault]

_MOTION: Curve = (1, 2, 4, 6, 10, 20, 40, 60), (4.6, 4.1, 2.85, 2.18, 1.67, 1.3, 1.12, 1.05)
_DEFOCUS: Curve = (0.3, 1, 2, 4, 6, 8, 12, 16), (4.6, 3.86, 2.65, 1.76, 1.44, 1.3, 1.15, 1.05)
_NOISE: Curve = (2, 8, 11.4, 14, 18, 25.5, 40), (4.5, 3.89, 3.39, 3.05, 2.7, 2.3, 1.8)
_LIGHTER: Curve = (0, 0.033, 0.067, 0.133, 0.228, 0.314, 0.45), (4.6, 4.5, 4.29, 3.63, 2.7, 1.81, 1.2)
_DARKER: Curve = (0, 0.016, 0.032, 0.064, 0.129, 0.237, 0.35), (4.6, 4.6, 4.53, 4.23, 3.53, 2.22, 1.3)
"""Scores by length, radius and standard deviation in pixels or grey levels, and by the change of mean luma in 0..1."""


def motion(pixels: Pixels, length: float, angle: float) -> Pixels:
    """Smear H x W x 3 pixels along a line of `length` pixels at `angle` radians."""
    reach = int(np.ceil(length / 2))
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    for step in np.linspace(-(length - 1) / 2, (length - 1) / 2, max(int(4 * length), 2)):
        down, across = reach + step * np.sin(angle), reach + step * np.cos(angle)
        top, left = int(down), int(across)
        shares = np.outer((1 - down + top, down - top), (1 - across + left, across - left))
        kernel[top : top + 2, left : left + 2] += shares
    return _convolved(pixels, kernel)


def defocus(pixels: Pixels, radius: float) -> Pixels:
    """Spread every point of H x W x 3 pixels over a disc of `radius` pixels."""
    reach = int(np.ceil(radius))
    rows, columns = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    return _convolved(pixels, np.clip(radius + 0.5 - np.hypot(rows, columns), 0, 1))


def _convolved(pixels: Pixels, kernel: NDArray[np.float64]) -> Pixels:
    reach = kernel.shape[0] // 2
    padded = np.pad(pixels.astype(np.float64), ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    from scipy import signal

    return _rounded(signal.fftconvolve(padded, (kernel / kernel.sum())[..., None], mode="valid", axes=(0, 1)))


def camera_noise(pixels: Pixels, deviation: float, rng: np.random.Generator) -> Pixels:
    """Add noise of about this deviation (grey levels), finer in luma than in colour, less where there is more light."""
    luma = pixels @ _LUMA
    strength = deviation * np.sqrt(1.6 - 1.2 * luma / 255)
    added = np.repeat((strength * rng.standard_normal(luma.shape))[..., None], 3, axis=2)
    if not is_grey(pixels):
        coarse = ndimage.gaussian_filter(rng.standard_normal(pixels.shape), (1.2, 1.2, 0))
        added += 0.6 * strength[..., None] * coarse / coarse.std()
    return _rounded(pixels + added)


def expose(pixels: Pixels, stops: float) -> Pixels:
    """Multiply the light by 2 to the power of `stops`; what passes white is clipped."""
    light = (pixels / 255) ** 2.2 * 2**stops
    return _rounded(255 * np.clip(light, 0, 1) ** (1 / 2.2))


def _rounded(values: NDArray[np.float64]) -> Pixels:
    return np.rint(np.clip(values, 0, 255)).astype(np.uint8)


def _drawn(
    damage: Callable[[Pixels, float, np.random.Generator], Pixels], category: DistortionCategory, curve: Curve,
    least: float, most: float,
) -> Maker:  # fmt: skip
    """Return what makes faults of one kind, small and large ones alike (log-uniform)."""

    def made(pixels: Pixels, rng: np.random.Generator) -> Fault:
        amount = float(np.exp(rng.uniform(np.log(least), np.log(most))))
        return Fault(damage(pixels, amount, rng), {category: float(np.interp(amount, *curve))})

    return made


_noisy = _drawn(camera_noise, "Noise", _NOISE, 4, 40)


def _exposed(least: float, most: float) -> Maker:
    def made(pixels: Pixels, rng: np.random.Generator) -> Fault:
        changed = expose(pixels, rng.uniform(least, most))
        shift = float((changed @ _LUMA).mean() - (pixels @ _LUMA).mean()) / 255
        curve = _LIGHTER if shift > 0 else _DARKER
        return Fault(changed, {"Brightness change": float(np.interp(abs(shift), *curve))})

    return made


def _dim(pixels: Pixels, rng: np.random.Generator) -> Fault:
    """Too little light, with the noise that comes with it."""
    dark = _exposed(-4.0, -1.0)(pixels, rng)
    noisy = _noisy(dark.pixels, rng)
    return Fault(noisy.pixels, {**dark.scores, **noisy.scores})


FAULTS: Mapping[str, Maker] = {
    "motion": _drawn(lambda shown, length, rng: motion(shown, length, rng.uniform(0, np.pi)), "Blurs", _MOTION, 3, 60),
    "defocus": _drawn(lambda shown, radius, _: defocus(shown, radius), "Blurs", _DEFOCUS, 1, 15),
    "camera noise": _noisy, "overexposure": _exposed(0.5, 2.5), "underexposure": _exposed(-4.0, -0.7),
    "low light": _dim,
}  # fmt: skip
"""What makes a fault of random strength."""
