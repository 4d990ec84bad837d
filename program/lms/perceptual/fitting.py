"""Tables of features into the expert's arrays and the settings that go with them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from program.lms.perceptual import quality
from program.lms.perceptual.blend import Blend, gate_weights
from program.lms.perceptual.codes import BOOKS, Book, learn, projection_of
from program.lms.perceptual.comparing import paired_fit
from program.lms.perceptual.detecting import DETECTOR, READ, detector_arrays
from program.lms.perceptual.features import FEATURE_NAMES, coded_planes
from program.lms.perceptual.grading import GRADING
from program.lms.perceptual.regression import (
    Group,
    Hyper,
    Matrix,
    NormalScores,
    Regression,
    Standard,
    error_scale,
)
from program.lms.perceptual.tables import Table, generated_images, train_pixels
from program.lms.perceptual.teaching import Lessons
from signatures.schemas import DISTORTION_CATEGORIES

__all__ = (
    "SEED", "blend_of", "fit", "learn_books", "natural_rows", "normal_scores", "quality_standard", "scale_aligned",
)  # fmt: skip

SEED = 7
CODES = next(i for i, name in enumerate(FEATURE_NAMES) if name.startswith("code_"))
"""Where the codebooks' numbers begin."""
_WIDTH = 1.5


def _groups() -> tuple[Group, ...]:
    """Return what the general regression's radial kernel compares together.

    Scene statistics with visible properties, local sharpness, patterns, each part of the luma codebook. Colour codes
    tell scenes apart more than qualities and carry over badly: only the linear part reads them.
    """
    groups, start = [], 0
    counts = [(READ, 0.45)]
    for prefix, weight in (("local_", 0.05), ("pattern", 0.1)):
        counts.append((sum(name.startswith(prefix) for name in FEATURE_NAMES), weight))
    luma = BOOKS[0]
    counts += [(count, 0.4 / 3) for count in (luma.centres, luma.centres, luma.shifts)]
    for count, weight in counts:
        groups.append(Group(start, start + count, _WIDTH, weight))
        start += count
    return tuple(groups)


QUALITY = {
    "nr": Hyper(2.0, 0.2, 0.6, 3.0, linear_stop=CODES),
    "general": Hyper(_WIDTH, 0.5, 0.2, 3.0, _groups()),
}  # fmt: skip
"""What reads photographs (nr), photographs and generated distortions (general).

nr: chosen on CLIVE train and validation images by ten folds and by what carries over from one half to the unlike other
half (by brightness, colourfulness, haze and each of four principal components, both ways), and by the order it gives to
BIQ2021's train and validation images, which it is never fitted on: smoother and noisier than the folds alone would have
it. general: by leaving out one of the quickstart's train photographs at a time."""
GENERATED = 1000
"""How many generated images the general regression keeps."""
_BOOK_EVERY = 12
"""One in so many generated images teaches the codebooks."""
_SHIFTS, _SCALES = (-0.9, -0.6, -0.3, 0.0), (0.6, 0.8, 1.0)


def learn_books(manifests: Sequence[Path]) -> tuple[Book, ...]:
    """Learn the codebooks from train images and generated ones; no score is read."""

    def images() -> Iterator[list[NDArray[np.float32]]]:
        for manifest in manifests:
            yield from (coded_planes(pixels) for pixels in train_pixels(manifest))
        yield from (coded_planes(made.pair()[0]) for made in generated_images()[::_BOOK_EVERY])

    books = []
    for layout in BOOKS:
        book = learn(layout, images(), seed=SEED)
        projection, mean = projection_of(np.array([book.describe(p)[2] for p in images()]), layout.shifts)
        books.append(replace(book, projection=projection, projected_mean=mean))
    return tuple(books)


def natural_rows(
    clive: Table, live: Table, settings: Mapping[str, float], chosen: NDArray[np.intp]
) -> tuple[Matrix, Matrix]:
    """Return features and labels of chosen CLIVE images and of LIVE's train images, on CLIVE's scale."""
    lv = live.split == "train"
    aligned = scale_aligned(live.labels[lv], clive.labels[clive.split == "train"], **settings)
    return np.vstack([clive.vectors[chosen], live.vectors[lv]]), np.r_[clive.labels[chosen], aligned]


def blend_of(
    natural: tuple[Matrix, Matrix], photographs: int, generated: tuple[Matrix, Matrix],
    standard: NormalScores, general_standard: Standard,
) -> tuple[Blend, Matrix]:  # fmt: skip
    """Fit both regressions and the gate; the first `photographs` natural rows are photographs, the others LIVE's."""
    vectors, labels = np.vstack([natural[0], generated[0]]), np.r_[natural[1], generated[1]]
    kinds = np.r_[np.full(photographs, -1.0), np.ones(len(labels) - photographs)]
    general = Regression(vectors, labels, general_standard, QUALITY["general"])
    gate = gate_weights(general, kinds)
    return Blend(Regression(*natural, standard, QUALITY["nr"]), general, gate), gate


def fit(
    clive: Table, live: Table, made: Table, greyed: Table, lesson: Lessons, books: Sequence[Book]
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the expert's arrays and the settings that go with them.

    `made` is what was generated for it; only the detectors without a reference read `greyed`, the same in greys, and
    `lesson`, distorted natural photographs of which the detectors with one say what is there.
    """
    arrays, settings = _without_reference(clive, live, made)
    paired, paired_settings = paired_fit(live, made)
    arrays |= paired
    found: dict[str, Any] = {"nr": settings, "fr": paired_settings}
    natural = clive.vectors[clive.split == "train"]
    taught: tuple[Matrix, Matrix] | None = None
    for kind, shown in (("fr", made), ("nr", made.joined(greyed))):
        arrays |= detector_arrays(kind, shown, natural[:, :READ], taught)
        found[kind] |= {"detector": asdict(DETECTOR[kind]), "grading": GRADING[kind]}
        taught = lesson.taught(quality.detector_of(kind, arrays, DETECTOR[kind])) if kind == "fr" else None
    stored = {name: value if value.dtype == np.float16 else value.astype(np.float32) for name, value in arrays.items()}
    stored |= {name: value for book in books for name, value in _book_arrays(book).items()}
    wide = {name: value.astype(np.float64) for name, value in stored.items()}
    severity = quality.assembled("nr", wide, found).detector.severities(natural)[:, :7]
    settings["quantiles"] = {
        category: [round(float(v), 3) for v in np.percentile(severity[:, i], range(0, 101, 10))]
        for i, category in enumerate(DISTORTION_CATEGORIES)
    }
    return stored, found


def _book_arrays(book: Book) -> dict[str, NDArray[Any]]:
    if book.projection is None or book.projected_mean is None:
        raise ValueError(f"book {book.layout.name!r}: its projection is not learnt yet")
    parts: dict[str, NDArray[Any]] = {
        "mean": book.mean, "basis": book.basis, "centres": book.centres, "spreads": book.spreads,
        "projection": book.projection.astype(np.float16), "projected_mean": book.projected_mean,
        "softness": np.array([book.softness], dtype=np.float32),
    }  # fmt: skip
    return {f"book_{book.layout.name}_{name}": value for name, value in parts.items()}


def _without_reference(clive: Table, live: Table, made: Table) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    c, lv = np.flatnonzero(clive.split == "train"), live.split == "train"
    standard = normal_scores(clive.vectors[c])
    alignment = _alignment(clive.vectors[c], clive.labels[c], live.vectors[lv], live.labels[lv], standard)
    natural = natural_rows(clive, live, alignment, c)
    kept = np.sort(np.random.default_rng(SEED).permutation(len(made.labels))[:GENERATED])
    general_standard = quality_standard(np.vstack([clive.vectors[c], made.vectors[kept][::3]]))
    # Half precision is what ships, so the gate is fitted on it.
    generated = made.vectors[kept].astype(np.float16).astype(np.float64), made.labels[kept]
    natural = natural[0].astype(np.float16).astype(np.float64), natural[1]
    _, gate = blend_of(natural, len(c), generated, standard, general_standard)
    arrays = {
        "nr_vectors": np.vstack([natural[0], generated[0]]).astype(np.float16),
        "nr_labels": np.r_[natural[1], generated[1]], "nr_gate": gate,
        "nr_quantiles": standard.quantiles,
        "nr_general_centre": general_standard.centre, "nr_general_spread": general_standard.spread,
    }  # fmt: skip
    order = np.random.default_rng(SEED).permutation(len(natural[1]))
    folds = (order[fold::10] for fold in range(10))
    settings = {
        "quality": asdict(QUALITY["nr"]), "general": asdict(QUALITY["general"]), "natural": len(natural[1]),
        "error_scale": round(error_scale(*natural, folds, standard, QUALITY["nr"]), 4), "live_labels": alignment,
    }  # fmt: skip
    return arrays, settings


def normal_scores(vectors: Matrix) -> NormalScores:
    """Return the ranks of photographs' features in the single precision that ships."""
    return NormalScores(NormalScores.quantiles_of(vectors).astype(np.float32).astype(np.float64))


def quality_standard(vectors: Matrix) -> Standard:
    """Standardise each feature; shifts of a codebook share one spread, as the later of them matter less."""
    standard = Standard.of(vectors, QUALITY["general"].clip)
    for layout in BOOKS:
        own = [name.startswith(f"code_{layout.name}_shift") for name in FEATURE_NAMES]
        standard.spread[own] = np.sqrt(np.square(standard.spread[own]).mean())
    return standard


def scale_aligned(labels: Matrix, to: Matrix, *, shift: float, scale: float) -> Matrix:
    """Bring LIVE's labels to the scale of CLIVE's: their spread times `scale` around CLIVE's mean plus `shift`.

    100 - DMOS compares with the undistorted original, MOS with all that people know: the same number means less there.
    """
    return np.asarray(float(np.mean(to)) + shift + scale * (labels - float(np.mean(labels))))


def _alignment(
    natural: Matrix, labels: Matrix, more: Matrix, their: Matrix, standard: NormalScores
) -> dict[str, float]:
    """Choose shift and scale of the LIVE labels: least squared error on CLIVE train over ten folds."""
    order = np.random.default_rng(SEED).permutation(len(labels))

    def error(shift: float, scale: float) -> float:
        aligned = scale_aligned(their, labels, shift=shift, scale=scale)
        missed = 0.0
        for fold in range(10):
            out, rest = order[fold::10], np.setdiff1d(order, order[fold::10])
            model = Regression(
                np.vstack([natural[rest], more]), np.r_[labels[rest], aligned], standard, QUALITY["nr"]
            )  # fmt: skip
            missed += float(((model.project(natural[out]).mean - labels[out]) ** 2).sum())
        return missed

    shift, scale = min(((a, b) for a in _SHIFTS for b in _SCALES), key=lambda pair: error(*pair))
    return {"shift": shift, "scale": scale}
