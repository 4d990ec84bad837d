"""What was fitted to name the faults of a photograph, and what its outputs mean. Pure numpy/scipy."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from program.expert.store import FAULTS_FILE, Matrix, stored_arrays
from signatures.schemas import FAULTS

OUTPUTS = (*FAULTS, "nothing", "subject sharp", *(f"{name} worst" for name in FAULTS), "meant")
"""What the regression gives: strengths 0 .. 3, whether nothing is wrong, whether the subject is
sharp, which fault is the worst, and whether an effect is meant."""
LIFT = 0.6
"""Levels that people score a picture higher whose effects are surely meant and that surely lacks nothing. It counts
as the square of how probably nothing is wrong."""


class Heads(NamedTuple):
    """What was fitted; T are `OUTPUTS`, F faults."""

    centre: Matrix
    spread: Matrix
    kept: Matrix
    """N x H standardised numbers of the images that teach."""
    width: Matrix
    weights: Matrix
    """N x T."""
    lines: Matrix
    """Of the model's standardised measurements, x T."""
    offset: Matrix
    curves: Matrix
    """3 x 2 x F: slope and offset of the log-odds that a fault is there, at least moderate, and
    strong."""
    clean: Matrix
    """Log-odds that nothing is wrong, of `overall`."""
    sharp: Matrix
    """Slope and offset of the log-odds that the subject is sharp."""
    places: Matrix
    """F x what `cells_of` tells of a cell: log-odds that a fault is in it, if there is one."""

    def values(self, points: Matrix, numbers: Matrix) -> Matrix:
        """Return the N x T outputs of N measured images."""
        z = self.standardise(numbers)
        lengths = (z * z).sum(axis=1)[:, None] + np.einsum("ij,ij->i", self.kept, self.kept)
        near = np.exp(-(lengths - 2 * z @ self.kept.T) / self.width)
        return np.asarray(self.offset + points @ self.lines + near @ self.weights)

    def standardise(self, numbers: Matrix) -> Matrix:
        """Return N x H numbers less their centre, by their spread, within 3."""
        return np.asarray(np.clip((numbers - self.centre) / self.spread, -3, 3))


@functools.cache
def load_heads() -> Heads:
    """Return what ships, read once per process."""
    return heads_from(stored_arrays(FAULTS_FILE))


def heads_from(arrays: Mapping[str, Any]) -> Heads:
    """Build heads from arrays that ship."""
    return Heads(**{name: np.asarray(arrays[name], dtype=float) for name in Heads._fields})


_WORST = slice(OUTPUTS.index("subject sharp") + 1, OUTPUTS.index("meant"))


def likelihoods(heads: Heads, values: Matrix) -> tuple[Matrix, Matrix, float]:
    """Return what an image's T outputs mean.

    3 x F probabilities of each strength or more, how far each fault is the worst, and the
    probability that nothing is wrong.
    """
    there = special.expit(heads.curves[:, 0] * values[: len(FAULTS)] + heads.curves[:, 1])
    nothing = special.expit(overall(values[None])[0] @ heads.clean)
    return np.minimum.accumulate(there, axis=0), values[_WORST], float(nothing)


def overall(values: Matrix) -> Matrix:
    """Return what of N x T outputs says whether anything is wrong at all: N x 6."""
    strengths, (nothing, sharp) = values[:, : len(FAULTS)], values[:, len(FAULTS) :][:, :2].T
    most, ones = strengths.max(axis=1), np.ones(len(values))
    return np.column_stack([strengths.sum(axis=1), most, nothing, sharp, values[:, -1], ones])


def lift_of(values: Matrix) -> float:
    """Return by how many levels what is meant in an image, of T outputs, lifts its score."""
    nothing = likelihoods(load_heads(), values)[2]
    return LIFT * nothing**2 * float(np.clip(values[OUTPUTS.index("meant")], 0, 1))
