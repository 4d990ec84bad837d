"""Distorted photographs that teach the expert without a reference: the one with a reference says what is there.

Five photographs under every distortion say too little of how features vary with what is shown. Human-scored photographs
of a train split, distorted in the same ways, show many contents; what is there, and how good it is beside the
undistorted one, is said by the model that sees that one too and is nearly always right.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from data.distortions import distort, generator_for
from data.kadid import level_mean
from data.manifest import read_manifest
from program.expert.judge.models import QualityModel
from program.expert.judge.quality import WORST_AND_BEST
from program.expert.measure.codes import Book
from program.expert.measure.features import measure
from program.expert.measure.reference import compare
from program.expert.store import Matrix
from program.expert.training.tables import Table, conditions, cropped
from program.images.store import IMAGES

__all__ = ("NATURAL", "Judged", "Lessons", "distorted_images", "judged_images", "lessons", "pairs", "without")

PHOTOGRAPHS = 150
"""How many of the train images people liked best: what is wrong with an image from the start is not taught. With 80 the
agreement on distorted CLIVE validation images is lower (SRCC 0.68, not 0.71), with all 300 the detectors find less."""
EACH = 48
"""How many distortions and levels each is shown under, beside itself."""
HELD = 40, 24
"""How many photographs of another split, and distortions and levels of each, the figures are worked out on."""
GREY_EVERY = 6
"""One in so many is shown in greys."""
NATURAL = ("photographs", "live", "undistorted")
"""What the natural regression reads: photographs as people take them, LIVE's distorted ones, and what nobody distorted.

LIVE's and KADID-10k's people judged beside an original, CLIVE's alone; their scales are taken as one. Bringing LIVE's
down to where it hurts CLIVE's least changes agreement there by less than 0.003 and lowers it on BIQ2021's train and
validation images by 0.008. The 30 undistorted images raise it there by 0.02: CLIVE's photographs, by phones, show
little of how good a picture may be."""
_LEAST_SHARE, _SCALES = 0.7, (0.5, 0.9)
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Lessons:
    """N images: what is measured without a reference, and against it."""

    vectors: Matrix
    """N x F features."""
    differences: Matrix
    """N x D."""
    group: NDArray[np.str_]
    """The photograph that each shows."""
    distorted: NDArray[np.bool_]

    def found(self, teacher: QualityModel) -> tuple[Matrix, Matrix]:
        """Return the features and the N x 8 severities that a model with a reference reads."""
        return self.vectors, teacher.detector.severities(self.differences)

    def judged(self, teacher: QualityModel) -> tuple[Matrix, Matrix, NDArray[np.str_]]:
        """Return features, qualities (1..5) by a model with a reference, and photographs of the distorted images."""
        believed = teacher.regression.project(self.differences[self.distorted]).mean
        return self.vectors[self.distorted], np.clip(believed, *WORST_AND_BEST), self.group[self.distorted]


def lessons(manifest: Path, books: Sequence[Book]) -> Lessons:
    """Measure the pairs of a manifest."""
    rows = [
        (measure(seen.pixels, books).vector, compare(seen.pixels, seen.shown).vector, seen.group, seen.level > 0)
        for seen in pairs(manifest, "train", PHOTOGRAPHS, EACH)
    ]
    return Lessons(*(np.array(column) for column in zip(*rows, strict=True)))


def distorted_images(manifest: Path, books: Sequence[Book], split: str) -> Table:
    """Measure distorted images of a split that teaches nothing; labels are KADID-10k's means of each distortion."""
    rows = [
        (
            measure(seen.pixels, books).vector, compare(seen.pixels, seen.shown).vector,
            level_mean(seen.distortion, seen.level).mos, split, seen.distortion, seen.group,
        )
        for seen in pairs(manifest, split, *HELD) if seen.level
    ]  # fmt: skip
    return Table(*(np.array(column) for column in zip(*rows, strict=True)))


@dataclass(frozen=True, slots=True)
class Pair:
    """A photograph under one distortion, and as it is; level 0 of "none": both are the same."""

    group: str
    distortion: str
    level: int
    pixels: Pixels
    shown: Pixels


def pairs(
    manifest: Path, split: str, photographs: int, each: int, scales: tuple[float, float] = _SCALES
) -> Iterator[Pair]:  # fmt: skip
    """Yield the images of a split that people liked best, each in one crop and scale: as it is, then distorted.

    A scale is drawn from `scales`; above 1 it is 1.
    """
    scored: Mapping[str, tuple[float, Path]] = {
        str(sample.group): (sample.quality, sample.image)
        for sample in read_manifest(manifest)
        if sample.split == split and sample.quality is not None
    }
    liked = sorted(scored, key=lambda group: -scored[group][0])[:photographs]
    for number, group in enumerate(liked):
        name = f"{manifest.parent.name}/{group}"
        rng = generator_for(name, "view", 0)
        shown = _seen(
            IMAGES.pixels(IMAGES.add(scored[group][1])), rng, scales, grey=number % GREY_EVERY == GREY_EVERY // 2
        )
        kinds = conditions(shown)
        yield Pair(group, "none", 0, shown, shown)
        for index in np.sort(rng.permutation(len(kinds))[:each]):
            distortion, level = kinds[index]
            made = distort(shown, distortion, level, generator_for(name, distortion, level))
            yield Pair(group, distortion, level, made, shown)


def _seen(pixels: Pixels, rng: np.random.Generator, scales: tuple[float, float], *, grey: bool) -> Pixels:
    picture = cropped(Image.fromarray(pixels), rng, _LEAST_SHARE)
    scale = min(rng.uniform(*scales), 1.0)
    picture = picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.LANCZOS)
    return np.array(picture.convert("L").convert("RGB") if grey else picture)


@dataclass(frozen=True)
class Judged:
    """N images with features, qualities 1..5, and the photograph each shows."""

    vectors: Matrix
    labels: Matrix
    group: NDArray[np.str_]

    def only(self, chosen: NDArray[np.bool_]) -> "Judged":
        """Return the rows of a mask."""
        return Judged(self.vectors[chosen], self.labels[chosen], self.group[chosen])


def judged_images(
    clive: Table, live: Table, made: Table, lesson: Lessons, teacher: QualityModel
) -> dict[str, Judged]:  # fmt: skip
    """Return the train images by kind: `NATURAL`, "generated", and "taught" by the model with a reference."""
    scored = {"photographs": clive.only(clive.split == "train"), "live": live.only(live.split == "train")}
    plain = made.distortion == "none"
    scored |= {"undistorted": made.only(plain), "generated": made.only(~plain)}
    found = {kind: Judged(table.vectors, table.labels, table.group) for kind, table in scored.items()}
    return found | {"taught": Judged(*lesson.judged(teacher))}


def without(images: Mapping[str, Judged], photographs: NDArray[np.str_]) -> dict[str, Judged]:
    """Return the images that show none of some photographs."""
    return {kind: judged.only(~np.isin(judged.group, photographs)) for kind, judged in images.items()}
