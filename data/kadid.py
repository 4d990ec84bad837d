"""KADID-10k's figures: what people thought, on average, of each distortion at each level.

`kadid_level_means.csv` holds, per distortion and level, the setting of the generator, the mean
opinion score over KADID-10k's 81 references (1..5, higher is better), its standard deviation over
those references and their number. Source: the public labels of KADID-10k (H. Lin, V. Hosu,
D. Saupe, "KADID-10k: A Large-scale Artificially Distorted IQA Database", QoMEX 2019). They are
population means: the score that an image of this kind gets on average, not the score of one image.
"""

import csv
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Literal

__all__ = ("LEVELS", "LevelMean", "Severity", "level_mean", "level_means", "level_means_sha256", "severity_of")

LEVELS = (1, 2, 3, 4, 5)
"""KADID-10k's distortion levels, in its order (mean shift and contrast change have their mildest in the middle)."""

Severity = Literal["none", "slight", "moderate", "severe", "extreme"]


@dataclass(frozen=True, slots=True)
class LevelMean:
    """One row: the generator's setting and the mean human score of a distortion at a level."""

    parameter: float | None
    """The generator's setting; None where KADID-10k states none (denoise)."""
    mos: float
    """Mean opinion score over the references, 1..5, higher is better."""
    mos_std: float
    """Standard deviation of the images' scores over the references."""
    n_images: int


@cache
def level_means() -> Mapping[tuple[str, int], LevelMean]:
    """Return the table, keyed by distortion and level (1..5)."""
    rows = csv.DictReader(_table().decode("utf-8").splitlines())
    return MappingProxyType({
        (row["distortion"], int(row["level"])): LevelMean(
            float(row["parameter"]) if row["parameter"] else None,
            float(row["mos_mean"]),
            float(row["mos_std_over_images"]),
            int(row["n_images"]),
        )
        for row in rows
    })  # fmt: skip


def level_mean(distortion: str, level: int) -> LevelMean:
    """Return the row of a distortion at a level; KeyError when there is none.

    >>> level_mean("jpeg", 4).parameter, level_mean("jpeg", 4).mos
    (7.0, 1.9454)
    """
    return level_means()[distortion, level]


def level_means_sha256() -> str:
    """Return the SHA-256 of the table's bytes, in hex."""
    return hashlib.sha256(_table()).hexdigest()


def severity_of(mos: float) -> Severity:
    """Return how severe a degradation with this mean score (1..5) is.

    KADID-10k asked on the degradation category rating of ITU-T P.910: 5 imperceptible, 4 perceptible
    but not annoying, 3 slightly annoying, 2 annoying, 1 very annoying. The mean is rounded to the
    nearest of the five (halves up): none, slight, moderate, severe, extreme.

    >>> [severity_of(m) for m in (4.6, 4.49, 3.0, 1.5, 1.49)]
    ['none', 'slight', 'moderate', 'severe', 'extreme']
    """
    bounds: tuple[tuple[float, Severity], ...] = ((4.5, "none"), (3.5, "slight"), (2.5, "moderate"), (1.5, "severe"))
    return next((severity for lowest, severity in bounds if mos >= lowest), "extreme")


def _table() -> bytes:
    return files("data").joinpath("kadid_level_means.csv").read_bytes()
