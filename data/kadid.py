"""KADID-10k's distortions by name, and what people thought, on average, of each at each level.

`kadid_level_means.csv` holds, per distortion and level, the setting of the generator, the mean opinion score over
KADID-10k's 81 references (1..5, higher is better), its standard deviation over those references and their number: a
population mean, not the score of one image. Source: the public labels of KADID-10k (Lin, Hosu, Saupe, QoMEX 2019).
"""

import csv
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import get_args

from signatures.schemas import DistortionCategory, Severity, category_of

__all__ = (
    "CATEGORIES", "DISTORTIONS", "IDENTITIES", "LEVELS", "LIVE_NAMES", "Severity", "category_named", "level_mean",
    "level_means", "level_means_sha256", "severity_of",
)  # fmt: skip

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


@dataclass(frozen=True, slots=True)
class LevelMean:
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
    severities: tuple[Severity, ...] = get_args(Severity)
    return severities[5 - min(5, max(1, math.floor(mos + 0.5)))]


def _table() -> bytes:
    return files("data").joinpath("kadid_level_means.csv").read_bytes()
