"""Codebooks of small patches, learnt without any score: k-means, and the principal directions of deviations."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from program.expert.measure.codes import BOOKS, Book, Floats, Layout, patch_rows
from program.expert.measure.features import coded_planes
from program.expert.measure.nss import Plane
from program.expert.training.tables import generated_images, train_pixels

__all__ = ("book_arrays", "learn", "learn_books", "projection_of")

_SEED = 7
_BOOK_EVERY = 12
"""One in so many generated images teaches the codebooks."""


def learn_books(manifests: Sequence[Path]) -> tuple[Book, ...]:
    """Learn the codebooks from train images and generated ones; no score is read."""

    def images() -> Iterator[list[NDArray[np.float32]]]:
        for manifest in manifests:
            yield from (coded_planes(pixels) for pixels in train_pixels(manifest))
        yield from (coded_planes(made.pair()[0]) for made in generated_images()[::_BOOK_EVERY])

    books = []
    for layout in BOOKS:
        book = learn(layout, images(), seed=_SEED)
        projection, mean = projection_of(np.array([book.describe(p)[2] for p in images()]), layout.shifts)
        books.append(replace(book, projection=projection, projected_mean=mean))
    return tuple(books)


def learn(layout: Layout, images: Iterable[Sequence[Plane]], *, seed: int, from_each: int = 300) -> Book:
    """Learn a codebook from the planes of images, by k-means on whitened patches; its projection comes later."""
    rng = np.random.default_rng(seed)
    taken = []
    for planes in images:
        rows = patch_rows(layout, planes)
        taken.append(rows[rng.choice(len(rows), min(from_each, len(rows)), replace=False)])
    patches = np.concatenate(taken).astype(np.float64)
    mean = patches.mean(axis=0)
    values, axes = np.linalg.eigh(np.cov((patches - mean).T))
    largest = np.argsort(values)[::-1][: layout.directions]
    basis = axes[:, largest] / np.sqrt(values[largest] + 1e-3 * values[largest[0]])
    points = (patches - mean) @ basis
    centres = points[rng.choice(len(points), layout.centres, replace=False)]
    for _ in range(30):
        nearest = _distances(points, centres).argmin(axis=1)
        for k in range(layout.centres):
            own = points[nearest == k]
            centres[k] = own.mean(axis=0) if len(own) > 5 else points[rng.integers(len(points))]
    distance = np.sort(_distances(points, centres), axis=1)
    nearest = _distances(points, centres).argmin(axis=1)
    spreads = np.array([points[nearest == k].var(axis=0) if (nearest == k).any() else np.ones(layout.directions)
                        for k in range(layout.centres)]) + 0.05  # fmt: skip
    softness = float(np.float32(np.median(distance[:, 1] - distance[:, 0]) + 1e-3))
    mean32, basis32, centres32, spreads32 = (a.astype(np.float32) for a in (mean, basis, centres, spreads))
    return Book(layout, mean32, basis32, centres32, spreads32, softness)


def _distances(points: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(
        (points**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)[None] - 2 * points @ centres.T, dtype=np.float64
    )


def projection_of(deviations: Floats, shifts: int) -> tuple[Floats, Floats]:
    """Return the principal directions (values x shifts) of N deviations, scaled to unit mean variance, and the mean."""
    centred = deviations.astype(np.float64) - deviations.mean(axis=0, dtype=np.float64)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    # The sign of a singular vector is arbitrary: make its largest entry positive, so that a refit gives the same.
    kept = axes[:shifts]
    kept = kept * np.sign(kept[np.arange(len(kept)), np.abs(kept).argmax(axis=1)])[:, None]
    kept /= np.sqrt(np.square(sizes[:shifts]).mean() / len(deviations))
    # Half precision is what ships, so it is what is fitted with.
    projection = kept.T.astype(np.float16).astype(np.float32)
    return projection, (deviations.mean(axis=0, dtype=np.float64) @ projection.astype(np.float64)).astype(np.float32)


def book_arrays(book: Book) -> dict[str, NDArray[Any]]:
    """Return a book's arrays by the names under which they ship."""
    if book.projection is None or book.projected_mean is None:
        raise ValueError(f"book {book.layout.name!r}: its projection is not learnt yet")
    parts: dict[str, NDArray[Any]] = {
        "mean": book.mean, "basis": book.basis, "centres": book.centres, "spreads": book.spreads,
        "projection": book.projection.astype(np.float16), "projected_mean": book.projected_mean,
        "softness": np.array([book.softness], dtype=np.float32),
    }  # fmt: skip
    return {f"book_{book.layout.name}_{name}": value for name, value in parts.items()}
