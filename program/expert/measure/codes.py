"""Small patches of an image described by a codebook that was learnt without any score.

Patches are cleared of their mean and contrast, projected on their principal directions and compared with cluster
centres. An image is how often each centre is near (`share`), how near any patch comes to it (`top`), and how its
patches deviate from it in mean and spread, on the principal directions of that too (`shift`). Sources: Ye et al. 2012
(CORNIA: codebooks and pooling), Xu et al. 2016 (HOSA: higher-order statistics of soft assignments), Coates & Ng 2012
(k-means on whitened patches). Pure numpy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from program.expert.measure.nss import Plane, halve

__all__ = ("BOOKS", "Book", "Layout", "code_names", "patch_rows", "stored_books")

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which patches a book reads and how many numbers it gives."""

    name: str
    halvings: int
    """How often the image is halved first."""
    channels: int
    """1: luma; 3: luma and two opponent colours."""
    directions: int
    """Principal directions of a patch that are kept."""
    patches: int
    """About how many patches of an image are read, on a regular lattice."""
    centres: int = 64
    side: int = 7
    shifts: int = 100
    """Principal directions of the deviations that are kept."""


BOOKS = (Layout("fine", 0, 1, 20, 6000, 96), Layout("colour", 1, 3, 24, 2500))
"""Luma as it is, and colour at half size: chosen by repeated ten folds on CLIVE train and validation images among
patch sides 5, 7, 9 and 11, sizes whole, half and quarter, luma or colour, 64 or 128 centres."""
_FLOOR = 10.0
"""Grey levels added to a patch's own contrast before dividing by it: flat patches stay small."""


def code_names(layout: Layout) -> list[str]:
    """Return the names of the numbers that a book gives, in order."""
    counts = {"share": layout.centres, "top": layout.centres, "shift": layout.shifts}
    return [f"code_{layout.name}_{part}{i}" for part, count in counts.items() for i in range(count)]


@dataclass(frozen=True)
class Book:
    """A learnt codebook; immutable and safe to share between threads."""

    layout: Layout
    mean: Floats
    """Mean patch."""
    basis: Floats
    """Patch values x directions: projects and whitens."""
    centres: Floats
    spreads: Floats
    """Variances of the patches around each centre, as `centres`."""
    softness: float
    """Squared distance by which an assignment falls to 1/e."""
    projection: Floats | None = None
    """Deviations x shifts: their principal directions; None while these are not known."""
    projected_mean: Floats | None = None

    def encode(self, planes: Sequence[Plane]) -> list[float]:
        """Return the numbers of `code_names` for luma and two opponent planes of an image."""
        share, top, deviations = self.describe(planes)
        if self.projection is None or self.projected_mean is None:
            raise ValueError(f"book {self.layout.name!r}: its projection is not learnt yet; use describe")
        return [*share.tolist(), *top.tolist(), *((deviations @ self.projection) - self.projected_mean).tolist()]

    def describe(self, planes: Sequence[Plane]) -> tuple[Floats, Floats, Floats]:
        """Return shares, tops and the normalised deviations (centres x directions x 2 values)."""
        points = self.points(planes)
        count = len(points)
        distance = (self.centres * self.centres).sum(axis=1)[None] - 2 * points @ self.centres.T
        distance -= distance.min(axis=1, keepdims=True)
        weight = np.exp(distance / -self.softness)
        weight /= weight.sum(axis=1, keepdims=True)
        share = weight.mean(axis=0)
        first, second = weight.T @ points / count, weight.T @ (points * points) / count
        mean_off = (first - share[:, None] * self.centres) / np.sqrt(self.spreads)
        around = second - 2 * self.centres * first + share[:, None] * self.centres**2
        spread_off = (around / self.spreads - share[:, None]) / np.sqrt(2)
        deviations = np.concatenate([mean_off.ravel(), spread_off.ravel()])
        deviations = np.sign(deviations) * np.sqrt(np.abs(deviations))
        deviations /= max(float(np.linalg.norm(deviations)), 1e-9)
        return np.sqrt(share), weight.max(axis=0), deviations

    def points(self, planes: Sequence[Plane]) -> Floats:
        """Return the image's patches on the book's directions, patches x directions."""
        return np.asarray((patch_rows(self.layout, planes) - self.mean) @ self.basis, dtype=np.float32)


def patch_rows(layout: Layout, planes: Sequence[Plane]) -> Floats:
    """Return the patches that a book reads, cleared of mean and contrast; patches x values, at least one."""
    parts = []
    for plane in planes[: layout.channels]:
        for _ in range(layout.halvings):
            plane = halve(plane)
        missing = [max(0, layout.side - size) for size in plane.shape]
        if any(missing):
            plane = np.pad(plane, [(0, missing[0]), (0, missing[1])], mode="edge")
        height, width = (size - layout.side for size in plane.shape)
        step = max(1, int((height * width / layout.patches) ** 0.5))
        windows = np.lib.stride_tricks.sliding_window_view(plane, (layout.side, layout.side))[::step, ::step]
        rows = np.array(windows, dtype=np.float32).reshape(-1, layout.side**2)
        rows -= rows.mean(axis=1, keepdims=True)
        contrast = np.sqrt(np.einsum("ij,ij->i", rows, rows) / layout.side**2)
        rows /= (contrast + np.float32(_FLOOR))[:, None]
        parts.append(rows)
    return np.hstack(parts) if len(parts) > 1 else parts[0]


def stored_books(arrays: Mapping[str, NDArray[np.float64]]) -> tuple[Book, ...]:
    """Return the books held in the expert's arrays."""
    books = []
    for layout in BOOKS:
        part = {
            name.removeprefix(f"book_{layout.name}_"): value.astype(np.float32)
            for name, value in arrays.items() if name.startswith(f"book_{layout.name}_")
        }  # fmt: skip
        books.append(
            Book(
                layout, part["mean"], part["basis"], part["centres"], part["spreads"], float(part["softness"][0]),
                part["projection"], part["projected_mean"],
            )
        )  # fmt: skip
    return tuple(books)
