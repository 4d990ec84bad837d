"""The images that teach: photographs that people scored, and distorted versions of them, measured once.

Distorted versions show what lowers a score: KADID-10k's distortions at its levels, the faults of `capture`, and two
distortions at once. Their scores are KADID-10k's mean scores.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.training.capture import FAULTS
from data.distortions import CATEGORIES, IDENTITIES, distort, distortions_for, generator_for, level_mean
from data.manifest import read_manifest
from program.common.pool import in_order
from program.expert.judge.quality import UNDISTORTED
from program.expert.measure.differences import DIFFERENCE_NAMES, reference_differences
from program.expert.measure.features import measure, resample
from program.expert.store import Matrix
from program.images.store import IMAGES
from program.tools import network
from signatures.schemas import DISTORTION_CATEGORIES

__all__ = ("Example", "Table", "beside", "distorted", "halved", "joined", "measured", "rising", "scored")

GREY_EVERY = 6
"""One in so many photographs is shown in greys."""
_LEAST_SHARE, _SCALES = 0.7, (0.5, 1.5)
"""A view is a crop of at least this share of both sides, at a scale drawn from these (above 1 it is 1): half of the
views are at native size. A photograph scaled down is sharper without being sharpened."""
KINDS = {"kadid": 14, "capture": 6, "pair": 4}
"""How many distorted versions of each kind a photograph is shown in."""
SERIES = 4
"""How many distortions of each photograph are shown at rising levels."""
BESIDE = 3
"""How many distorted parts of each photograph are shown beside one as it is."""
PAIRS = {"kadid": 0, "capture": 0, "pair": 10}
"""The same of a second view, which teaches to tell two distortions at once where there is a reference."""
Pixels = NDArray[np.uint8]


class Example(NamedTuple):
    """One image to learn from."""

    pixels: Pixels
    reference: Pixels | None
    score: float
    """1..5."""
    severities: tuple[float, ...]
    """Of the seven categories in their order, then spatial distortions: how far they bring the score below 4.6; zeros
    where nobody knows."""
    source: str
    """photographs, halved (these at half their size), live, undistorted, distorted, rising, beside or tiles."""
    group: str
    """The photograph that it shows."""
    split: str
    distortion: str
    score_sd: float = 0.0
    """Where `score` is a mean over other images: how far one of them lies from it (standard deviation)."""


class Table(NamedTuple):
    """N images as measured."""

    spreads: Matrix
    """The network's over the whole image, then over its middle."""
    features: Matrix
    moved: Matrix
    """How far the spreads over the whole image lie from the reference's; zeros without one, as `differences`."""
    differences: Matrix
    scores: Matrix
    severities: Matrix
    """N x 8."""
    source: NDArray[np.str_]
    group: NDArray[np.str_]
    split: NDArray[np.str_]
    distortion: NDArray[np.str_]
    score_sd: Matrix

    def only(self, rows: NDArray[np.bool_]) -> "Table":
        """Return the rows of a mask."""
        return Table(**{name: column[rows] for name, column in self._asdict().items()})


def joined(tables: Sequence[Table]) -> Table:
    """Return the rows of all."""
    return Table(*(np.concatenate(columns) for columns in zip(*tables, strict=True)))


def measured(examples: Sequence[Example]) -> Table:
    """Return examples with what the expert reads of each; the network's in half precision, as caches do."""
    rows = in_order(_read, examples, workers=os.cpu_count() or 1)
    given = (np.array([getattr(example, name) for example in examples]) for name in Example._fields[2:])
    return Table(*(np.array(column) for column in zip(*rows, strict=True)), *given)


def _read(example: Example) -> tuple[NDArray[np.float16], Matrix, NDArray[np.float16], Matrix]:
    vector = np.array([*measure(example.pixels)[0].values()])
    if example.reference is None:
        spreads = _spreads(example.pixels)
        return spreads.ravel(), vector, np.zeros_like(spreads[0]), np.zeros(len(DIFFERENCE_NAMES))
    differences = np.array(
        [*reference_differences(example.pixels, example.reference)[0].values()]
    )  # its pass of the network reads both spreads
    spreads = _spreads(example.pixels)
    moved = spreads[0] - _spreads(resample(example.reference, example.pixels))[0]
    return spreads.ravel(), vector, moved, differences


def _spreads(pixels: Pixels) -> NDArray[np.float16]:
    return network.spreads(pixels).astype(np.float16)


def scored(manifest: Path) -> Iterator[Example]:
    """Yield the images of a manifest that people scored."""
    for sample in read_manifest(manifest):
        if sample.quality is None:
            continue
        reference = _pixels(Path(sample.reference)) if sample.reference else None
        yield Example(
            _pixels(Path(sample.image)), reference, sample.quality, (0.0,) * 8,
            "live" if reference is not None else "photographs",
            str(sample.group), str(sample.split), str(sample.distortion),
        )  # fmt: skip


def halved(manifest: Path) -> Iterator[Example]:
    """Yield the train photographs of a manifest that people scored at half their size, with the same scores.

    A fit on both sizes orders photographs of other sets better (docs/log.md).
    """
    for whole in scored(manifest):
        if whole.split == "train" and whole.reference is None:
            height, width = whole.pixels.shape[:2]
            half = Image.fromarray(whole.pixels).resize((round(width / 2), round(height / 2)), Image.Resampling.LANCZOS)
            yield whole._replace(pixels=np.array(half), source="halved")


def distorted(
    manifest: Path, split: str, photographs: int, kinds: Mapping[str, int] = KINDS, view: int = 0
) -> Iterator[Example]:
    """Yield the photographs of a split that people liked best, each in one view: as it is, then distorted.

    `view` is the number of the crop that is drawn.
    """
    for number, (group, path) in enumerate(_liked(manifest, split)[:photographs]):
        name = f"{manifest.parent.name}/{group}"
        rng = generator_for(name, "view", view)
        shown = _seen(_pixels(path), rng, grey=number % GREY_EVERY == GREY_EVERY // 2)

        def example(pixels: Pixels, parts: Mapping[Any, float], distortion: str, score_sd: float = 0.0) -> Example:
            drop = float(np.sqrt(sum((UNDISTORTED - score) ** 2 for score in parts.values())))
            source = "distorted" if parts else "undistorted"
            return Example(
                pixels, shown, max(UNDISTORTED - drop, 1.0), severities(parts), source,  # noqa: B023
                group, split, distortion, score_sd,  # noqa: B023
            )  # fmt: skip

        yield example(shown, {}, "none")
        conditions = [(d, n) for d in distortions_for(shown) for n in range(1, 6) if (d, n) not in IDENTITIES]
        drawn = [conditions[i] for i in rng.permutation(len(conditions))]
        for distortion, level in drawn[: kinds["kadid"]]:
            pixels = distort(shown, distortion, level, generator_for(name, distortion, level))
            label = level_mean(distortion, level)
            yield example(pixels, {CATEGORIES[distortion]: min(label.mos, UNDISTORTED)}, distortion, label.mos_std)
        for fault in islice(cycle(FAULTS), kinds["capture"]):
            made = FAULTS[fault](shown, rng)
            yield example(made.pixels, made.scores, fault)
        for i in range(kinds["pair"]):
            distortion, level = drawn[-1 - i]
            fault = list(FAULTS)[int(rng.integers(len(FAULTS)))]
            made = FAULTS[fault](shown, rng)
            category = CATEGORIES[distortion]
            if category in made.scores:
                continue
            pixels = distort(made.pixels, distortion, level, generator_for(name, distortion, level))
            parts: dict[Any, float] = {**made.scores, category: min(level_mean(distortion, level).mos, UNDISTORTED)}
            yield example(pixels, parts, f"{fault} + {distortion}")


def rising(manifest: Path, photographs: int) -> Iterator[Example]:
    """Yield series of a distortion that gets stronger, of the train photographs people liked best.

    From level 2, or the one that people mind least, to 5; images that follow each other and show the same are a step.
    """
    for number, (group, path) in enumerate(_liked(manifest, "train")[:photographs]):
        name, shown = f"{manifest.parent.name}/{group}", _pixels(path)
        kinds = distortions_for(shown)
        for distortion in (kinds[(number + i * 6) % len(kinds)] for i in range(SERIES)):
            scores = {level: level_mean(distortion, level).mos for level in range(2, 6)}
            for level in range(max(scores, key=scores.__getitem__), 6):
                pixels = distort(shown, distortion, level, generator_for(name, distortion, level))
                yield Example(pixels, None, scores[level], (0.0,) * 8, "rising", group, "train", distortion)


def beside(manifest: Path, photographs: int) -> Iterator[Example]:
    """Yield parts of the train photographs people liked best: one as it is, then others that are plainly distorted.

    First halves of a photograph, then tiles of a ninth of it that lie in these. So a fit learns that damage weighs more
    than what else differs from part to part of a picture.
    """
    for number, (group, path) in enumerate(_liked(manifest, "train")[:photographs]):
        name, shown = f"{manifest.parent.name}/{group}", _pixels(path)
        kinds = [kind for kind in distortions_for(shown) if CATEGORIES[kind]]
        for shift, source in enumerate(("beside", "tiles")):
            rng = generator_for(name, "beside", shift)
            axis, damaged = int(rng.integers(2)), int(rng.integers(2))

            def part(pixels: Pixels, which: int) -> Pixels:
                half = np.array_split(pixels, 2, axis=axis)[which]  # noqa: B023
                return np.ascontiguousarray(half if source == "beside" else _ninth(half, pixels.shape, rng))  # noqa: B023

            sound = part(shown, 1 - damaged)
            yield Example(sound, None, UNDISTORTED, (0.0,) * 8, source, group, "train", "none")
            for distortion in (kinds[(number + 3 * shift + i * 6) % len(kinds)] for i in range(BESIDE)):
                level = int(rng.integers(3, 6))
                if (distortion, level) in IDENTITIES:
                    continue
                pixels = distort(shown, distortion, level, generator_for(name, distortion, level))
                label = level_mean(distortion, level)
                score = min(label.mos, UNDISTORTED)
                drops = severities({CATEGORIES[distortion]: score})
                worse = part(pixels, damaged)
                yield Example(worse, None, score, drops, source, group, "train", distortion, label.mos_std)


def _ninth(half: Pixels, shape: tuple[int, ...], rng: np.random.Generator) -> Pixels:
    """Return a tile of a third of both sides of an image, drawn from a half of it."""
    height, width = (side // 3 for side in shape[:2])
    top, left = (int(rng.integers(half.shape[i] - side + 1)) for i, side in ((0, height), (1, width)))
    return half[top : top + height, left : left + width]


def severities(parts: Mapping[str | None, float]) -> tuple[float, ...]:
    """Return the eight severities of an image from the score that each category would bring it to."""
    scores = (parts.get(category, UNDISTORTED) for category in (*DISTORTION_CATEGORIES, None))
    return tuple(max(UNDISTORTED - score, 0.0) for score in scores)


def _liked(manifest: Path, split: str) -> list[tuple[str, Path]]:
    """Return group and file of the photographs of a split, those people liked best first."""
    found = {
        str(sample.group): (sample.quality, Path(sample.image))
        for sample in read_manifest(manifest)
        if sample.split == split and sample.quality is not None
    }
    return [(group, found[group][1]) for group in sorted(found, key=lambda group: -found[group][0])]


def _pixels(path: Path) -> Pixels:
    return IMAGES.pixels(IMAGES.add(path))


def _seen(pixels: Pixels, rng: np.random.Generator, *, grey: bool) -> Pixels:
    picture = Image.fromarray(pixels)
    share, scale = rng.uniform(_LEAST_SHARE, 1.0), min(rng.uniform(*_SCALES), 1.0)
    width, height = round(picture.width * share), round(picture.height * share)
    left, top = int(rng.integers(0, picture.width - width + 1)), int(rng.integers(0, picture.height - height + 1))
    picture = picture.crop((left, top, left + width, top + height))
    picture = picture.resize((round(width * scale), round(height * scale)), Image.Resampling.LANCZOS)
    return np.array(picture.convert("L").convert("RGB") if grey else picture)
