"""KADID-10k's distortions at its five levels: H x W x 3 uint8 in, the same shape out.

Sources: H. Lin, V. Hosu, D. Saupe, "KADID-10k", QoMEX 2019 (what each distortion is, and its group);
the authors' public MATLAB generator (which functions it calls, with which settings); MATLAB's
documentation (what those functions compute). Rebuilt here on SciPy, scikit-image and Pillow, no code
taken over. The generator also stretches every result to the full range of values; the paper
describes no such step, it would undo the mean shift, and it is left out.
"""

import hashlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from data import distortion_colour as colour
from data import distortion_filters as filters
from data import distortion_noise as noise
from data.kadid import LEVELS, level_mean
from program.common.errors import DataError, did_you_mean
from signatures.schemas import DistortionCategory, category_of

__all__ = (
    "CATEGORIES", "COLOUR_ONLY", "DISTORTIONS", "EXCLUDED", "IDENTITIES", "LIVE_NAMES", "category_named",
    "check_distortion", "distort", "distortions_for", "generator_for",
)  # fmt: skip

_Function: TypeAlias = Callable[[NDArray[np.float64], float, np.random.Generator], NDArray[np.float64]]

_FUNCTIONS: Mapping[str, tuple[_Function, DistortionCategory | None]] = MappingProxyType({
    "gaussian_blur": (filters.gaussian_blur, "Blurs"),
    "lens_blur": (filters.lens_blur, "Blurs"),
    "motion_blur": (filters.motion_blur, "Blurs"),
    "color_diffusion": (colour.diffuse_colour, "Color distortions"),
    "color_shift": (colour.shift_colour, "Color distortions"),
    "color_quantization": (colour.quantize_colour, "Color distortions"),
    "color_saturation_1": (colour.saturate_hsv, "Color distortions"),
    "color_saturation_2": (colour.saturate_lab, "Color distortions"),
    "jpeg2000": (noise.compress_jpeg2000, "Compression"),
    "jpeg": (noise.compress_jpeg, "Compression"),
    "white_noise": (noise.white_noise, "Noise"),
    "color_component_noise": (noise.colour_component_noise, "Noise"),
    "impulse_noise": (noise.impulse_noise, "Noise"),
    "multiplicative_noise": (noise.multiplicative_noise, "Noise"),
    "brighten": (filters.brighten, "Brightness change"),
    "darken": (filters.darken, "Brightness change"),
    "mean_shift": (filters.mean_shift, "Brightness change"),
    "jitter": (noise.jitter, None),
    "non_eccentricity_patch": (noise.move_patches, None),
    "pixelate": (noise.pixelate, None),
    "quantization": (noise.quantize, None),
    "color_block": (noise.add_colour_blocks, None),
    "high_sharpen": (filters.sharpen, "Sharpness"),
    "contrast_change": (filters.change_contrast, "Contrast"),
})  # fmt: skip

DISTORTIONS: tuple[str, ...] = tuple(_FUNCTIONS)
"""Names of the distortions that are generated, in KADID-10k's order."""

CATEGORIES: Mapping[str, DistortionCategory | None] = MappingProxyType(
    {name: group for name, (_, group) in _FUNCTIONS.items()}
)
"""The agent's category of each distortion. KADID-10k's groups are blurs, color distortions, compression, noise,
brightness change, spatial distortions (jitter to color block), and sharpness and contrast, which the agent's
vocabulary parts in two; it has no word for the spatial ones, hence None."""

EXCLUDED: Mapping[str, str] = MappingProxyType({
    "denoise": "made in KADID-10k by a trained network (DnCNN) on noisy input, whose weights are not at hand; another "
    "denoiser leaves other traces, for which the human scores would not hold",
})  # fmt: skip
"""Distortions of KADID-10k that are left out, and why."""

IDENTITIES: frozenset[tuple[str, int]] = frozenset({
    ("gaussian_blur", 1), ("motion_blur", 1), ("color_saturation_2", 1), ("mean_shift", 3),
})  # fmt: skip
"""Distortion and level that leave every pixel as it was; their mean scores (4.58 to 4.61) say so too."""

COLOUR_ONLY: frozenset[str] = frozenset(
    {name for name, category in CATEGORIES.items() if category == "Color distortions"}
    | {"color_component_noise", "color_block"}
)
"""Distortions that mean nothing on a greyscale photograph."""

LIVE_NAMES: Mapping[str, str] = MappingProxyType({
    "jp2k": "jpeg2000", "wn": "white_noise", "gblur": "gaussian_blur", "fastfading": "jpeg2000_transmission_errors",
})  # fmt: skip
"""LIVE's abbreviations as other datasets write them; its fast fading is TID2013's JPEG 2000 transmission errors."""

SMALLEST_SIDE_PX = 64


def category_named(distortion: str | None) -> DistortionCategory | None:
    """Return the category of a distortion by a dataset's name for it; None for no distortion or one outside the seven.

    >>> category_named("wn"), category_named("mean_shift"), category_named("authentic")
    ('Noise', 'Brightness change', None)
    """
    name = LIVE_NAMES.get((distortion or "").casefold(), distortion or "")
    return CATEGORIES[name] if name in CATEGORIES else category_of(name.replace("_", " "))


def distortions_for(image: NDArray[np.uint8]) -> tuple[str, ...]:
    """Return the distortions that make sense for H x W x 3 pixels: no colour ones on greyscale."""
    return tuple(d for d in DISTORTIONS if d not in COLOUR_ONLY) if noise.is_grey(image) else DISTORTIONS


def generator_for(name: str, distortion: str, level: int) -> np.random.Generator:
    """Return the random generator of one distorted image: the same on every machine, whatever the order of work."""
    digest = hashlib.sha256(f"{name}/{distortion}/{level}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


def distort(image: NDArray[np.uint8], distortion: str, level: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Distort H x W x 3 uint8 pixels as KADID-10k does at this level (1..5).

    The input is not changed. Raises DataError for an unknown or excluded distortion, a level outside 1..5,
    or an image that is not H x W x 3 uint8 of at least 64 x 64 pixels.
    """
    check_distortion(distortion)
    if level not in LEVELS:
        raise DataError(f"distortion level {level!r}: KADID-10k has levels 1 to 5; give one of them")
    _check(image)
    parameter = level_mean(distortion, level).parameter
    if parameter is None:
        raise DataError(
            f"distortion {distortion!r} level {level}: the table states no setting; restore data/kadid_level_means.csv"
        )
    result = _FUNCTIONS[distortion][0](image.astype(np.float64) / 255, parameter, rng)
    if distortion not in COLOUR_ONLY and noise.is_grey(image):
        # The way through L*a*b* and back leaves a trace of colour, a step of 1/255 here and there.
        result = np.repeat(result[..., :1], 3, axis=2)
    return np.rint(np.clip(result, 0, 1) * 255).astype(np.uint8)


def check_distortion(distortion: str) -> None:
    """Raise DataError, with the mend, when a distortion is unknown or left out."""
    if distortion in _FUNCTIONS:
        return
    if distortion in EXCLUDED:
        raise DataError(f"distortion {distortion!r}: is left out ({EXCLUDED[distortion]}); choose another")
    raise DataError(f"distortion {distortion!r}: is not known{did_you_mean(distortion, DISTORTIONS)}")


def _check(image: NDArray[Any]) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or min(image.shape[:2]) < SMALLEST_SIDE_PX:
        raise DataError(
            f"image of shape {image.shape}, {image.dtype}: distortions need H x W x 3 uint8 of at least "
            f"{SMALLEST_SIDE_PX} x {SMALLEST_SIDE_PX} pixels; convert or enlarge it"
        )
