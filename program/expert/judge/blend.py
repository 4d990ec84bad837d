"""Two regressions in one: photographs judged alone, and images judged beside an original, told apart by a gate.

What lowers a score differs between the two: a generated distortion of a good photograph is judged beside the original
(as is the original itself), a soft snapshot is not. One function for both would be worse on each. Pure numpy/scipy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from program.expert.judge.regression import Hyper, Projection, Regression
from program.expert.judge.standards import Standard
from program.expert.store import Matrix

__all__ = ("Blend", "Blended", "General", "Prior", "Sight", "share_of")

GATE_MIDDLE, GATE_WIDTH, GATE_MOST = 0.1, 0.1, 0.85
"""Where the gate's value (-1 judged alone .. 1 beside an original) gives half of the most that the general regression
gets, how fast its share changes, and that most. Unfamiliar photographs resemble neither kind: the natural regression
keeps a say. Chosen together with the kernels (see `fitting.QUALITY`)."""


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
    """N variances from not knowing which of the two regressions holds."""

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


@dataclass(frozen=True, slots=True)
class General:
    """What the general regression and the gate learnt from many images, as weights on the M of them that are kept."""

    vectors: Matrix
    """M x F raw vectors."""
    mean: float
    weights: Matrix
    """M."""
    gate: Matrix
    """M."""

    def regression(self, standard: Standard, hyper: Hyper) -> Regression:
        """Return the regression, standardised and smoothed as it was fitted."""
        return Regression.kept(self.vectors, self.mean, self.weights, standard, hyper)


class Blend:
    """A natural and a general regression with their gate; immutable, safe to share between threads."""

    def __init__(self, natural: Regression, general: Regression, gate: Matrix) -> None:
        """Take both regressions and the gate's weights on the images that the general one keeps."""
        self.natural, self.general, self._gate = natural, general, gate

    def noise(self, qualities: Matrix) -> Matrix:
        """Return the variance of labels around N predicted qualities, as people judge photographs."""
        return self.natural.noise(qualities)

    def project(self, vectors: Matrix) -> Blended:
        """Return what N x F raw vectors are to both."""
        natural = self.natural.project(vectors)
        general, gate = self.general.weighed(vectors, self._gate)
        share = share_of(gate)
        rest = 1 - share
        novelty = rest * natural.novelty + share * general.novelty
        doubt = share * rest * (natural.mean - general.mean) ** 2
        mean = rest * natural.mean + share * general.mean
        return Blended(natural, general, share, mean, novelty, doubt)

    def covariance(self, one: Blended, other: Blended) -> Matrix:
        """Return what the training data left undecided between all pairs of rows (posterior covariance)."""
        natural = np.outer(1 - one.share, 1 - other.share) * self.natural.covariance(one.natural, other.natural)
        general = np.outer(one.share, other.share) * self.general.covariance(one.general, other.general)
        return np.asarray(natural + general)


Prior = Regression | Blend
Sight = Projection | Blended
