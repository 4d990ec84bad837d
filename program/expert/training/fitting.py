"""Tables of features into the expert's arrays and the settings that go with them."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from program.common.files import whole_file
from program.expert.judge import models
from program.expert.judge.blend import Blend, General
from program.expert.judge.regression import Group, Hyper, Regression
from program.expert.judge.standards import NormalScores, Standard
from program.expert.measure.codes import BOOKS, Book
from program.expert.measure.features import FEATURE_NAMES
from program.expert.measure.reference import DIFFERENCE_NAMES
from program.expert.store import Matrix, as_stored
from program.expert.training.codebooks import book_arrays
from program.expert.training.detecting import DETECTOR, GRADING, READ, detector_arrays
from program.expert.training.regressions import error_scales, general_of, quantiles_of, standard_of
from program.expert.training.tables import Table
from program.expert.training.teaching import NATURAL, Judged, Lessons, judged_images
from signatures.schemas import DISTORTION_CATEGORIES

__all__ = ("COMPARED", "PAIRED", "SEED", "blend_of", "fit", "normal_scores", "paired_fit", "save_arrays")

SEED = 7
CODES = next(i for i, name in enumerate(FEATURE_NAMES) if name.startswith("code_"))
"""Where the codebooks' numbers begin."""
_WIDTH = 1.0


_COUNT = len(DIFFERENCE_NAMES)
PAIRED = Hyper(1.0, 0.1, 0.05, 4.0, (Group(0, _COUNT, 1.0, 0.5), Group(0, _COUNT, 0.1, 0.5)))
"""A wide kernel for what all distortions share, a narrow one for what sets kinds apart: how much people mind a change
depends on its kind. Chosen, as the differences were, on LIVE and quickstart validation images, by leaving out one of
the quickstart's train photographs at a time, and on distorted versions of the 80 CLIVE train images people liked best
(3,840 images of content that nothing here was fitted on)."""
COMPARED = 1500
"""How many generated images the regression keeps: all of them would raise agreement by 0.003 and cost start-up time."""


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
    "nr": Hyper(1.5, 0.1, 0.5, 3.0, linear_stop=CODES, power=2.0),
    "general": Hyper(_WIDTH, 0.3, 0.1, 3.0, _groups()),
}  # fmt: skip
"""What reads photographs (nr), photographs and generated distortions (general).

nr: chosen on CLIVE train and validation images by ten folds and by what carries over from one half to the unlike other
half (by brightness, colourfulness, haze and each of four principal components, both ways), and by the order it gives to
BIQ2021's train and validation images, which it is never fitted on: smoother and noisier than the folds alone would have
it. general: by leaving out one of the quickstart's train photographs at a time, with a fifth of CLIVE's.

Photographs' scores are fitted as squares (power 2). Predictions of people's scores are off by 0.6 below 3 and by 0.4
at 4: how bad a bad photograph is has more causes than are measured. In squares the errors are about even, so that bad
photographs no longer outweigh good ones: by folds on CLIVE agreement rises from 0.695 to 0.711, on BIQ2021 from 0.592
to 0.602, each at its best smoothness and noise. Powers of 1.5 to 3 do about as well; above 2 errors on CLIVE grow."""
KEPT = {"generated": 700, "taught": 500}
"""How many images of each kind the general regression keeps, to carry what it learnt from all of them. From all of them
it orders photographs left out better than from as many as fit into the file, and the choice of those kept hardly
matters (SRCC 0.83 to 0.86, from 0.81 to 0.85)."""
SURE = {"nr": {"undistorted": 0.05}, "general": {"live": 0.02}}
"""Variance of labels that count more than others: what nobody distorted; people's 37 scores of LIVE's images, among
10,476 labels that are means over contents or a model's word."""


def blend_of(images: Mapping[str, Judged], scores: NormalScores) -> tuple[Blend, General, Standard]:
    """Fit both regressions and the gate on images by kind; half precision is what ships, so all is fitted on it."""
    rows, labels, noise = _natural_rows(images)
    shown = {kind: as_stored(images[kind].vectors) for kind in KEPT}
    vectors, photographs = np.vstack([rows, *shown.values()]), len(images["photographs"].labels)
    kinds = np.r_[np.full(photographs, -1.0), np.ones(len(vectors) - photographs)]
    rng, kept, start = np.random.default_rng(SEED), [np.arange(len(rows))], len(rows)
    for kind, count in KEPT.items():
        kept.append(start + np.sort(rng.permutation(len(shown[kind]))[:count]))
        start += len(shown[kind])
    standard = _quality_standard(np.vstack([rows[:photographs], *(of_kind[::10] for of_kind in shown.values())]))
    every = np.concatenate([labels, *(images[kind].labels for kind in KEPT)])
    hyper, doubts = QUALITY["general"], _noise(images, "general", (*NATURAL, *KEPT))
    general = general_of(vectors, every, doubts, kinds, np.concatenate(kept), standard, hyper)
    natural = Regression(rows, labels, scores, QUALITY["nr"], noise)
    return Blend(natural, general.regression(standard, hyper), general.gate), general, standard


def _natural_rows(images: Mapping[str, Judged]) -> tuple[Matrix, Matrix, Matrix]:
    """Return features, labels and the labels' variances of what the natural regression is fitted on."""
    rows = as_stored(np.vstack([images[kind].vectors for kind in NATURAL]))
    return rows, np.concatenate([images[kind].labels for kind in NATURAL]), _noise(images, "nr", NATURAL)


def _noise(images: Mapping[str, Judged], regression: str, kinds: Sequence[str]) -> Matrix:
    usual, surer = QUALITY[regression].noise, SURE[regression]
    return np.concatenate([np.full(len(images[kind].labels), surer.get(kind, usual)) for kind in kinds])


def fit(
    clive: Table, live: Table, made: Table, greyed: Table, lesson: Lessons, books: Sequence[Book]
) -> tuple[dict[str, NDArray[Any]], dict[str, Any], dict[str, Judged]]:
    """Return the expert's arrays, the settings that go with them, and what quality without a reference learnt from.

    `made` is what was generated for it; only the detectors without a reference read `greyed`, the same in greys. Of
    `lesson`, distorted natural photographs, the model with a reference says what is there and how good it is.
    """
    natural = clive.vectors[clive.split == "train"]
    arrays, own = paired_fit(live, made)
    found: dict[str, Any] = {"fr": own | _finding("fr")}
    arrays |= detector_arrays("fr", made, natural[:, :READ])
    teacher = models.assembled("fr", {name: value.astype(np.float64) for name, value in arrays.items()}, found)
    images = judged_images(clive, live, made, lesson, teacher)
    single, settings = _without_reference(images)
    found["nr"] = settings | _finding("nr")
    arrays |= single
    arrays |= detector_arrays("nr", made.joined(greyed), natural[:, :READ], lesson.found(teacher))
    stored = {name: value if value.dtype == np.float16 else value.astype(np.float32) for name, value in arrays.items()}
    stored |= {name: value for book in books for name, value in book_arrays(book).items()}
    wide = {name: value.astype(np.float64) for name, value in stored.items()}
    severity = models.assembled("nr", wide, found).detector.severities(natural)[:, :7]
    found["nr"]["quantiles"] = {
        category: [round(float(v), 3) for v in np.percentile(severity[:, i], range(0, 101, 10))]
        for i, category in enumerate(DISTORTION_CATEGORIES)
    }
    return stored, found, images


def _finding(kind: str) -> dict[str, Any]:
    return {"detector": asdict(DETECTOR[kind]), "grading": GRADING[kind]}


def _without_reference(images: Mapping[str, Judged]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    scores = normal_scores(images["photographs"].vectors)
    _, general, standard = blend_of(images, scores)
    rows, labels, noise = _natural_rows(images)
    arrays: dict[str, NDArray[Any]] = {
        "nr_vectors": general.vectors.astype(np.float16), "nr_labels": labels, "nr_noise": noise,
        "nr_quantiles": scores.quantiles, "nr_general_mean": np.array([general.mean]),
        "nr_general_weights": general.weights, "nr_gate": general.gate,
        "nr_general_centre": standard.centre, "nr_general_spread": standard.spread,
    }  # fmt: skip
    # Of photographs alone: the other images show few contents, a tenth of them is known from the rest.
    order = np.random.default_rng(SEED).permutation(len(images["photographs"].labels))
    folds = (order[fold::10] for fold in range(10))
    settings: dict[str, Any] = {
        "quality": asdict(QUALITY["nr"]), "general": asdict(QUALITY["general"]), "natural": len(labels),
        "error_scales": error_scales(rows, labels, folds, scores, QUALITY["nr"], noise),
    }  # fmt: skip
    return arrays, settings


def normal_scores(vectors: Matrix) -> NormalScores:
    """Return the ranks of photographs' features in the single precision that ships."""
    return NormalScores(quantiles_of(vectors).astype(np.float32).astype(np.float64))


def _quality_standard(vectors: Matrix) -> Standard:
    """Standardise each feature; shifts of a codebook share one spread, as the later of them matter less."""
    standard = standard_of(vectors, QUALITY["general"].clip)
    for layout in BOOKS:
        own = [name.startswith(f"code_{layout.name}_shift") for name in FEATURE_NAMES]
        standard.spread[own] = np.sqrt(np.square(standard.spread[own]).mean())
    return standard


def paired_fit(live: Table, made: Table) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return arrays and settings of the regression."""
    vectors, labels, group = _paired_rows(live, made)
    standard = standard_of(vectors, PAIRED.clip)
    arrays: dict[str, NDArray[Any]] = {
        "fr_vectors": vectors.astype(np.float16), "fr_labels": labels,
        "fr_centre": standard.centre, "fr_spread": standard.spread,
    }  # fmt: skip
    photographs = (np.flatnonzero(group == photograph) for photograph in np.unique(group))
    scales = error_scales(vectors, labels, photographs, standard, PAIRED)
    return arrays, {"quality": asdict(PAIRED), "error_scales": scales}


def _paired_rows(live: Table, made: Table) -> tuple[Matrix, Matrix, NDArray[np.str_]]:
    scored = live.only(live.split == "train")
    kept = made.only(np.sort(np.random.default_rng(SEED).permutation(len(made.labels))[:COMPARED]))
    # Half precision is what ships, so the regression is fitted on it.
    vectors = as_stored(np.vstack([scored.differences, kept.differences]))
    return vectors, np.r_[scored.labels, kept.labels], np.r_[scored.group, kept.group]


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a compressed npz whose bytes depend on the arrays alone (no time stamps)."""
    with whole_file(path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(arrays):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(arrays[name]), allow_pickle=False)
            archive.writestr(
                zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), buffer.getvalue(), zipfile.ZIP_DEFLATED
            )
