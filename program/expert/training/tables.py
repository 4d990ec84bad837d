"""Images into tables of features, with their labels: human-scored ones and generated ones."""

import functools
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from data.distortions import distort, distortions_for, generator_for, is_grey
from data.kadid import CATEGORIES, IDENTITIES, level_mean
from data.manifest import read_manifest
from data.photographs import LONGEST_SIDE_PX, PHOTOGRAPHS, load_photograph, photograph_bytes
from program.expert.measure.codes import Book
from program.expert.measure.features import measure
from program.expert.measure.reference import compare
from program.expert.store import Matrix
from program.images.store import IMAGES
from signatures.schemas import DISTORTION_CATEGORIES

__all__ = (
    "UNDISTORTED",
    "Table",
    "conditions",
    "cropped",
    "generated_images",
    "generated_table",
    "quickstart_images",
    "scored_images",
    "severities",
    "train_pixels",
)

UNDISTORTED = 4.6
"""KADID-10k's mean score of its identities (mean shift and contrast change at level 3, colour saturation at 1)."""
VIEWS = ((1.0, 1.0, 1.0), *[(0.55, 0.75, 1.0)] * 2, *[(0.7, 0.4, 0.8)] * 3)
"""How each photograph is shown to the detectors: least share kept by a crop, least and most
scale after it (the first: as it is).
Smaller scales matter: a photograph scaled down is sharper without being sharpened."""
GREY_VIEWS = (0,)
"""The views that the detectors also see in greys. One grey photograph among five does not teach enough: on ten CLIVE
train images in greys, distorted (n = 400), the severity words' kappa rises from 0.28 to 0.77 with them."""
_Row = tuple[Matrix, Matrix, float, str, str, str]
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Table:
    """N images: features, differences (zeros without reference), labels 1..5, their split, distortion and content."""

    vectors: Matrix
    differences: Matrix
    labels: Matrix
    split: NDArray[np.str_]
    distortion: NDArray[np.str_]
    group: NDArray[np.str_]

    def count(self, split: str) -> int:
        """Return how many images a split has."""
        return int((self.split == split).sum())

    def only(self, chosen: NDArray[Any]) -> "Table":
        """Return the rows that a mask or indices choose."""
        return Table(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def joined(self, other: "Table") -> "Table":
        """Return the rows of both."""
        return Table(*(np.concatenate([getattr(t, field.name) for t in (self, other)]) for field in fields(self)))


def _table(rows: list[_Row]) -> Table:
    return Table(*(np.array(column) for column in zip(*rows, strict=True)))


def train_pixels(manifest: Path) -> Iterator[Pixels]:
    """Yield the pixels of a manifest's train images."""
    for sample in read_manifest(manifest):
        if sample.split == "train" and sample.quality is not None:
            yield _pixels(sample.image)


def scored_images(manifest: Path, books: Sequence[Book]) -> Table:
    """Measure every image of a manifest that has a human score."""
    rows = []
    for sample in read_manifest(manifest):
        if sample.quality is None:
            continue
        pixels = _pixels(sample.image)
        # Without a reference the row of differences stays zero; nothing reads it.
        reference = _pixels(sample.reference) if sample.reference else pixels[:16, :16]
        difference = compare(pixels, reference).vector if sample.reference else compare(reference, reference).vector
        vector = measure(pixels, books).vector
        rows.append((vector, difference, sample.quality, str(sample.split), str(sample.distortion), str(sample.group)))
    return _table(rows)


def _pixels(path: Path) -> Pixels:
    return IMAGES.pixels(IMAGES.add(path))


@dataclass(frozen=True, slots=True)
class Made:
    """One image to generate: a shown photograph, and what distorts it (level 0: nothing)."""

    photograph: str
    view: int
    distortion: str
    level: int
    grey: bool = False

    def pair(self) -> tuple[Pixels, Pixels]:
        """Return the distorted pixels and the undistorted ones."""
        shown = _shown(self.photograph, self.view, self.grey)
        if self.level == 0:
            return shown, shown
        name = f"{self.photograph}/{self.view}{'/grey' if self.grey else ''}"
        rng = generator_for(name, self.distortion, self.level)
        return distort(shown, self.distortion, self.level, rng), shown


def generated_images(*, grey: bool = False) -> list[Made]:
    """List crops, mirrorings and smaller scales of the quickstart's train photographs under every kind and level.

    `grey`: instead, `GREY_VIEWS` of those in colour, in greys.
    """
    listed = []
    for name, photograph in PHOTOGRAPHS.items():
        if photograph.split != "train" or (grey and is_grey(_shown(name, 0))):
            continue
        for view in GREY_VIEWS if grey else range(len(VIEWS)):
            listed.append(Made(name, view, "none", 0, grey))
            listed += [
                Made(name, view, distortion, level, grey)
                for distortion, level in conditions(_shown(name, view, grey))
            ]  # fmt: skip
    return listed


def conditions(pixels: Pixels) -> list[tuple[str, int]]:
    """Return every distortion and level that changes an image."""
    every = ((distortion, level) for distortion in distortions_for(pixels) for level in range(1, 6))
    return [condition for condition in every if condition not in IDENTITIES]


def cropped(picture: Image.Image, rng: np.random.Generator, least_share: float) -> Image.Image:
    """Cut a random part out of a picture: from `least_share` of both sides to all of it."""
    share = rng.uniform(least_share, 1.0)
    width, height = round(picture.width * share), round(picture.height * share)
    left, top = int(rng.integers(0, picture.width - width + 1)), int(rng.integers(0, picture.height - height + 1))
    return picture.crop((left, top, left + width, top + height))


def generated_table(books: Sequence[Book], *, grey: bool = False) -> Table:
    """Measure `generated_images`; their labels are KADID-10k's mean scores of that distortion and level."""
    rows: list[_Row] = []
    for made in generated_images(grey=grey):
        pixels, shown = made.pair()
        label = level_mean(made.distortion, made.level).mos if made.level else UNDISTORTED
        vector, difference = measure(pixels, books).vector, compare(pixels, shown).vector
        rows.append((vector, difference, label, "train", made.distortion, made.photograph))
    return _table(rows)


@functools.lru_cache(maxsize=8)
def _shown(name: str, number: int, grey: bool = False) -> Pixels:
    """Return one of a photograph's `VIEWS`, the same each time; `grey`: its luma."""
    if grey:
        return np.array(Image.fromarray(_shown(name, number)).convert("L").convert("RGB"))
    if number == 0:
        return load_photograph(name)
    least_share, least_scale, most_scale = VIEWS[number]
    rng = generator_for(name, "view", number)
    with Image.open(io.BytesIO(photograph_bytes(name))) as opened:
        picture = opened.convert("RGB")
    picture = cropped(picture, rng, least_share)
    width, height = picture.size
    if rng.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    scale = min(1.0, LONGEST_SIDE_PX / max(width, height)) * rng.uniform(least_scale, most_scale)
    return np.array(picture.resize((round(width * scale), round(height * scale)), Image.Resampling.LANCZOS))


def quickstart_images(books: Sequence[Book]) -> Table:
    """Measure every distortion and level of the quickstart's photographs."""
    rows: list[_Row] = []
    for name, photograph in PHOTOGRAPHS.items():
        pixels = load_photograph(name)
        for distortion in distortions_for(pixels):
            for level in range(1, 6):
                made = distort(pixels, distortion, level, generator_for(name, distortion, level))
                mos = level_mean(distortion, level).mos
                vector, difference = measure(made, books).vector, compare(made, pixels).vector
                rows.append((vector, difference, mos, str(photograph.split), distortion, name))
    return _table(rows)


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
