"""KADID-10k's distortions at its five levels: H x W x 3 uint8 in, the same shape out.

Sources: H. Lin, V. Hosu, D. Saupe, "KADID-10k", QoMEX 2019 (what each distortion is, and its group);
the authors' public MATLAB generator (which functions it calls, with which settings); MATLAB's
documentation (what those functions compute). Rebuilt here on SciPy, scikit-image and Pillow, no code
taken over. The generator also stretches every result to the full range of values; the paper
describes no such step, it would undo the mean shift, and it is left out.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from data import distortion_filters as filters
from data import distortion_noise as noise
from data.kadid import CATEGORIES, DISTORTIONS, level_mean

__all__ = ("COLOUR_ONLY", "distort", "distortions_for", "generator_for")

_Function: TypeAlias = Callable[[NDArray[np.float64], float, np.random.Generator], NDArray[np.float64]]

_FUNCTIONS: Mapping[str, _Function] = dict(zip(DISTORTIONS, (
    filters.gaussian_blur, filters.lens_blur, filters.motion_blur, filters.diffuse_colour, filters.shift_colour,
    filters.quantize_colour, filters.saturate_hsv, filters.saturate_lab, noise.compress_jpeg2000, noise.compress_jpeg,
    noise.white_noise, noise.colour_component_noise, noise.impulse_noise, noise.multiplicative_noise, filters.brighten,
    filters.darken, filters.mean_shift, noise.jitter, noise.move_patches, noise.pixelate, noise.quantize,
    noise.add_colour_blocks, filters.sharpen, filters.change_contrast,
), strict=True))  # fmt: skip

COLOUR_ONLY: frozenset[str] = frozenset(
    {name for name, category in CATEGORIES.items() if category == "Color distortions"}
    | {"color_component_noise", "color_block"}
)
"""Distortions that mean nothing on a greyscale photograph."""


def distortions_for(image: NDArray[np.uint8]) -> tuple[str, ...]:
    """Return the distortions that make sense for H x W x 3 pixels: no colour ones on greyscale."""
    return tuple(d for d in DISTORTIONS if d not in COLOUR_ONLY) if noise.is_grey(image) else DISTORTIONS


def generator_for(name: str, distortion: str, level: int) -> np.random.Generator:
    """Return the random generator of one distorted image: the same on every machine, whatever the order of work."""
    digest = hashlib.sha256(f"{name}/{distortion}/{level}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


def distort(image: NDArray[np.uint8], distortion: str, level: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Distort H x W x 3 uint8 pixels, at least 64 x 64, as KADID-10k does at this level (1..5).

    The input is not changed. Raises KeyError for an unknown distortion or level.
    """
    parameter = level_mean(distortion, level).parameter
    result = _FUNCTIONS[distortion](image.astype(np.float64) / 255, parameter, rng)
    if distortion not in COLOUR_ONLY and noise.is_grey(image):
        # The way through L*a*b* and back leaves a trace of colour, a step of 1/255 here and there.
        result = np.repeat(result[..., :1], 3, axis=2)
    return np.rint(np.clip(result, 0, 1) * 255).astype(np.uint8)
