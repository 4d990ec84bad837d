"""Two regressions in one: photographs as people take them, and images distorted on purpose, told apart by a gate.

What lowers a score differs between the two: a generated distortion of a good photograph is judged beside the original,
a soft snapshot is not. One function for both would be worse on each. Pure numpy/scipy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from program.lms.perceptual.regression import Matrix, Projection, Regression

__all__ = ("Blend", "Blended", "Prior", "Sight", "gate_weights", "share_of")

GATE_MIDDLE, GATE_WIDTH, GATE_MOST = -0.4, 0.1, 0.85
"""Where the gate's value (-1 photograph .. 1 distorted on purpose) gives half of the most that the general regression
gets, how fast its share changes, and that most. Unfamiliar photographs resemble neither kind: the natural regression
keeps a say. Chosen together with the kernels (see `fitting.QUALITY`)."""
UNFAMILIAR = 0.75
"""Variance added per share of novelty: from one half of CLIVE train and validation images to the unlike other half
squared errors are 1.34 times what is expected without it, 0.92 times with it, on BIQ2021's train and validation images
1.66 and 1.16 times, and the expected calibration error of the levels there falls from 0.08 to 0.03 (over five folds of
CLIVE from 0.11 to 0.10: wider than needed)."""


@dataclass(frozen=True, slots=True)
class Blended:
    """N images as both regressions see them."""

    natural: Projection
    general: Projection
    share: Matrix
    """N shares of the general regression, 0..`GATE_MOST`."""
    mean: Matrix
    """N predictions."""
    novelty: Matrix
    """N shares of the prior variance left undecided: 0 (like the training data) .. 1 (nothing like it)."""
    spread: Matrix
    """N variances from not knowing which of the two regressions holds, and whether either does (`UNFAMILIAR`)."""

    @classmethod
    def stacked(cls, parts: "Sequence[Blended]") -> "Blended":
        """Join images seen by the same blend, in order."""
        return cls(
            Projection.stacked([p.natural for p in parts]), Projection.stacked([p.general for p in parts]),
            *(np.concatenate([getattr(p, name) for p in parts]) for name in ("share", "mean", "novelty", "spread")),
        )  # fmt: skip


def share_of(gate: Matrix) -> Matrix:
    """Return the general regression's share for values of the gate, 0..`GATE_MOST`."""
    return np.asarray(GATE_MOST / (1 + np.exp(-np.clip((gate - GATE_MIDDLE) / GATE_WIDTH, -50, 50))))


def gate_weights(regression: Regression, kinds: Matrix, noise: float = 0.1) -> Matrix:
    """Fit the gate on a regression's own training images: kinds -1 photograph, 1 distorted on purpose.

    Classes of unequal size count alike: each image's noise grows with the size of its class.
    """
    counts = {kind: max(int((kinds == kind).sum()), 1) for kind in (-1, 1)}
    variances = np.array([noise * max(counts[int(kind)] / counts[-1], 1.0) for kind in kinds])
    return regression.dual(kinds, variances)


class Blend:
    """A natural and a general regression with their gate; immutable, safe to share between threads."""

    def __init__(self, natural: Regression, general: Regression, gate: Matrix) -> None:
        """Take both regressions and the gate's weights on the general one's training images."""
        self.natural, self.general, self._gate = natural, general, gate

    @property
    def noise(self) -> float:
        """Variance of a label around the function."""
        return self.natural.hyper.noise

    def project(self, vectors: Matrix) -> Blended:
        """Return what N x F raw vectors are to both."""
        natural = self.natural.project(vectors)
        general, gate = self.general.weighed(vectors, self._gate)
        share = share_of(gate)
        rest = 1 - share
        novelty = rest * natural.novelty + share * general.novelty
        doubt = share * rest * (natural.mean - general.mean) ** 2
        mean = rest * natural.mean + share * general.mean
        return Blended(natural, general, share, mean, novelty, doubt + UNFAMILIAR * novelty)

    def covariance(self, one: Blended, other: Blended) -> Matrix:
        """Return what the training data left undecided between all pairs of rows (posterior covariance)."""
        natural = np.outer(1 - one.share, 1 - other.share) * self.natural.covariance(one.natural, other.natural)
        general = np.outer(one.share, other.share) * self.general.covariance(one.general, other.general)
        return np.asarray(natural + general)


Prior = Regression | Blend
Sight = Projection | Blended
