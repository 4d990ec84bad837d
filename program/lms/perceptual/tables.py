"""Images into tables of features, with their labels: human-scored ones and generated ones."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from data.distortions import CATEGORIES, IDENTITIES, distort, distortions_for, generator_for
from data.kadid import level_mean
from data.manifest import read_manifest
from data.photographs import LONGEST_SIDE_PX, PHOTOGRAPHS, load_photograph, photograph_bytes
from program.images import IMAGES
from program.lms.perceptual.features import measure
from program.lms.perceptual.reference import compare
from program.lms.perceptual.regression import Matrix
from signatures.schemas import DISTORTION_CATEGORIES

__all__ = ("UNDISTORTED", "Table", "generated_images", "quickstart_images", "scored_images", "severities")

UNDISTORTED = 4.6
"""KADID-10k's mean score of its identities (mean shift and contrast change at level 3, colour saturation at 1)."""
VIEWS = ((1.0, 1.0, 1.0), *[(0.55, 0.75, 1.0)] * 2, *[(0.7, 0.4, 0.8)] * 3)
"""How each photograph is shown to the detectors: least share kept by a crop, least and most
scale after it (the first: as it is).
Smaller scales matter: a photograph scaled down is sharper without being sharpened."""
_Row = tuple[Matrix, Matrix, float, str, str]


@dataclass(frozen=True)
class Table:
    """N images: features, differences (zeros without reference), labels 1..5, their split, distortion and level."""

    vectors: Matrix
    differences: Matrix
    labels: Matrix
    split: NDArray[np.str_]
    distortion: NDArray[np.str_]

    def count(self, split: str) -> int:
        """Return how many images a split has."""
        return int((self.split == split).sum())


def _table(rows: list[_Row]) -> Table:
    vectors, differences, labels, split, distortion = zip(*rows, strict=True)
    return Table(np.array(vectors), np.array(differences), np.array(labels), np.array(split), np.array(distortion))


def scored_images(manifest: Path) -> Table:
    """Measure every image of a manifest that has a human score."""
    rows = []
    for sample in read_manifest(manifest):
        if sample.quality is None:
            continue
        pixels = _pixels(sample.image)
        # Without a reference the row of differences stays zero; nothing reads it.
        reference = _pixels(sample.reference) if sample.reference else pixels[:16, :16]
        difference = compare(pixels, reference).vector if sample.reference else compare(reference, reference).vector
        rows.append((measure(pixels).vector, difference, sample.quality, str(sample.split), str(sample.distortion)))
    return _table(rows)


def _pixels(path: Path) -> NDArray[np.uint8]:
    return IMAGES.pixels(IMAGES.add(path))


def generated_images() -> Table:
    """Distort crops, mirrorings and smaller scales of the quickstart's train photographs, every kind and level."""
    rows: list[_Row] = []
    for name, photograph in PHOTOGRAPHS.items():
        if photograph.split == "train":
            for number in range(len(VIEWS)):
                rows += _versions(_shown(name, number), f"{name}/{number}")
    return _table(rows)


def _versions(pixels: NDArray[np.uint8], name: str) -> Iterator[_Row]:
    yield measure(pixels).vector, compare(pixels, pixels).vector, UNDISTORTED, "train", "none"
    for distortion in distortions_for(pixels):
        for level in range(1, 6):
            if (distortion, level) not in IDENTITIES:
                yield _distorted(pixels, name, distortion, level, split="train")


def _shown(name: str, number: int) -> NDArray[np.uint8]:
    """Return one of a photograph's `VIEWS`, the same each time."""
    if number == 0:
        return load_photograph(name)[0]
    least_share, least_scale, most_scale = VIEWS[number]
    rng = generator_for(name, "view", number)
    with Image.open(io.BytesIO(photograph_bytes(name))) as opened:
        picture = opened.convert("RGB")
    share = rng.uniform(least_share, 1.0)
    width, height = round(picture.width * share), round(picture.height * share)
    left, top = int(rng.integers(0, picture.width - width + 1)), int(rng.integers(0, picture.height - height + 1))
    picture = picture.crop((left, top, left + width, top + height))
    if rng.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    scale = min(1.0, LONGEST_SIDE_PX / max(width, height)) * rng.uniform(least_scale, most_scale)
    return np.array(picture.resize((round(width * scale), round(height * scale)), Image.Resampling.LANCZOS))


def quickstart_images() -> Table:
    """Measure every distortion and level of the quickstart's photographs."""
    rows: list[_Row] = []
    for name, photograph in PHOTOGRAPHS.items():
        pixels, _ = load_photograph(name)
        for distortion in distortions_for(pixels):
            rows += [_distorted(pixels, name, distortion, i, split=photograph.split) for i in range(1, 6)]
    return _table(rows)


def _distorted(pixels: NDArray[np.uint8], name: str, distortion: str, level: int, *, split: str) -> _Row:
    made = distort(pixels, distortion, level, generator_for(name, distortion, level))
    mos = level_mean(distortion, level).mos
    return measure(made).vector, compare(made, pixels).vector, mos, split, distortion


def severities(table: Table) -> Matrix:
    """Return N x 8: how far the mean score of an image's distortion is below `UNDISTORTED`, in its category's column.

    Columns are the seven categories in their order, then spatial distortions.
    """
    targets = np.zeros((len(table.labels), 8))
    for row, (distortion, mos) in enumerate(zip(table.distortion, table.labels, strict=True)):
        if distortion in CATEGORIES:
            category = CATEGORIES[str(distortion)]
            column = DISTORTION_CATEGORIES.index(category) if category else 7
            targets[row, column] = max(UNDISTORTED - mos, 0.0)
    return targets
