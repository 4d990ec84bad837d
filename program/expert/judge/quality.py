"""How measurements become beliefs, and how good an image is believed to be. Pure numpy/scipy."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from program.expert.store import Matrix, stored_arrays
from program.tools import network
from signatures.schemas import DISTORTION_CATEGORIES, LEVEL_WORDS, DistortionCategory, ScoreShift

UNDISTORTED = 4.6
"""KADID-10k's mean score of its identities (mean shift and contrast change at level 3, colour
saturation at 1)."""
_ALLOWANCE = 0.2
"""How much more than an image's quality lacks of `UNDISTORTED` a distortion may cost."""

SEVERITIES = (*DISTORTION_CATEGORIES, "spatial")
"""The seven categories and distortions of place, which are none of them."""
CAUSES: Mapping[str, DistortionCategory] = {
    "motion": "Blurs", "defocus": "Blurs",
    "overexposure": "Brightness change", "underexposure": "Brightness change",
}  # fmt: skip
"""What a blur or a change of brightness comes from, with its category."""
OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "nr": ("photograph", "distorted", "kind", "altered", *SEVERITIES, *CAUSES),
    "fr": ("distorted", *SEVERITIES),
}  # fmt: skip
"""What a model gives, without a reference and with one: the score of a photograph judged alone and
of an image judged beside its original, which of the two an image resembles and whether it was
distorted, at whatever size it is shown (-1 .. 1 both), and severities: how far, 0 .. about 3.5,
each distortion brings the score down."""
ERRORS_AT = np.linspace(1, 5, 9)
"""Qualities at which the size of errors is kept."""
_GATE_MIDDLES, _GATE_WIDTHS = (0.4, 0.2), (0.1, 0.2)
"""Where "kind" and "altered" begin to speak for the score of a distorted image, and how fast: by
folds of CLIVE's train photographs, of these at half their size and of distorted versions of them,
LIVE's train and validation images, and the order of BIQ2021's train and validation images."""
WIDTHS = (1.0, 0.3)
"""Squared length scales of a kernel's Gaussians, half each: a wide one for what all distortions
share, a narrow one for what sets kinds apart."""


class Standard(NamedTuple):
    """What values are standardised by: centre, spread, and how much each counts."""

    centre: Matrix
    spread: Matrix
    share: Matrix

    def apply(self, vectors: Matrix) -> Matrix:
        """Return N x F standardised values, each row of length about 1."""
        standard = network.standardise(np.atleast_2d(vectors), self.centre, self.spread)
        return np.asarray(standard * self.share)


class Kernel(NamedTuple):
    """A regression on M kept images: a line, and a sum of Gaussians around them. See `values`."""

    standard: Standard
    points: Matrix
    """M x K standardised views."""
    weights: Matrix
    """M x O."""
    slopes: Matrix
    """K x O."""
    offset: Matrix
    """O."""

    def values(self, views: Matrix) -> Matrix:
        """Return the N x O outputs of N x K views."""
        z = self.standard.apply(views)
        return np.asarray(self.offset + z @ self.slopes + near(z, self.points) @ self.weights)


def near(one: Matrix, other: Matrix) -> Matrix:
    """Return how near N and M standardised rows are: 1 for equal ones, 0 for unlike ones."""
    lengths = (one * one).sum(axis=1)[:, None] + (other * other).sum(axis=1)[None]
    square = np.maximum(lengths - 2 * one @ other.T, 0.0)
    return np.asarray(sum(np.exp(-square / (2 * width)) for width in WIDTHS) / len(WIDTHS))


class Features(NamedTuple):
    """N images as a model sees them."""

    points: Matrix
    """N x F standardised measurements."""
    values: Matrix
    """N x O."""
    quality: Matrix
    """N scores, 1..5."""
    severities: Matrix
    """N x 8, at least 0, and at most what the quality leaves."""
    novelty: Matrix
    """N: how far the measurements lie from those of the training images, 0 (as they do) .. 1."""


class Model(NamedTuple):
    """What was fitted for images alone ("nr") or with a reference ("fr"); thread-safe."""

    kind: str
    standard: Standard
    views: Matrix
    """F x K."""
    kernel: Kernel
    errors: Matrix
    """Root mean squared error on images left out, at `ERRORS_AT`."""
    reach: Matrix
    """Mean squares of standardised measurements that are usual (novelty 0) and as unusual as can
    be (1)."""

    def look(self, vectors: Matrix) -> Features:
        """Return what N x F measurements are to this model."""
        points = self.standard.apply(vectors)
        values = self.kernel.values(points @ self.views)
        first = OUTPUTS[self.kind].index(SEVERITIES[0])
        low, high = self.reach
        novelty = np.clip(((points * points).sum(axis=1) - low) / (high - low), 0, 1)
        quality = quality_of(self.kind, values)
        most = np.clip(UNDISTORTED + _ALLOWANCE - quality, 0.0, 4.0)[:, None]
        severities = np.clip(values[:, first : first + len(SEVERITIES)], 0.0, most)
        return Features(points.astype(np.float32), values, quality, severities, novelty)

    def error(self, quality: Matrix) -> Matrix:
        """Return the root mean squared error of N predictions, linear between those kept."""
        return np.interp(quality, ERRORS_AT, self.errors)


def quality_of(kind: str, values: Matrix) -> Matrix:
    """Return the N scores of a model's N x O outputs; without a reference see `network.blend`."""
    if kind == "fr":
        return values[:, 0]
    return network.blend(values[:, :4], _GATE_MIDDLES, _GATE_WIDTHS)


@functools.cache
def load_model(kind: str) -> Model:
    """Return the shipped model for images alone ("nr") or with a reference ("fr")."""
    return model_from(kind, stored_arrays())


def model_from(kind: str, arrays: Mapping[str, Any]) -> Model:
    """Build a model from the arrays that ship."""

    def own(name: str) -> Matrix:
        return np.asarray(arrays[f"{kind}_{name}"])

    standard = Standard(*map(own, ("centre", "spread", "share")))
    view_standard = Standard(*map(own, ("view_centre", "view_spread", "view_share")))
    kernel = Kernel(view_standard, *map(own, ("points", "weights", "slopes", "offset")))
    return Model(kind, standard, own("views"), kernel, own("errors"), own("reach"))


WORST, BEST = 0.6, 5.4
_WIDEST = 1.2
"""Standard deviation of what is believed of an image unlike all training images: nearly that of a
label drawn blindly from 1..5."""


class QualityBelief(NamedTuple):
    """A quality on 1..5: mean, standard deviation, how unlike training images it is (0..1)."""

    mean: float
    deviation: float
    novelty: float

    @property
    def is_rough(self) -> bool:
        """Whether the image is so unlike the training images that the mean is a rough guess."""
        return self.novelty > 0.5

    def by_word(self) -> dict[str, float]:
        """Return the probability of each level by its word."""
        return dict(zip(LEVEL_WORDS, level_probabilities(self.mean, self.deviation), strict=True))


def level_probabilities(mean: float, deviation: float) -> list[float]:
    """Return the Gaussian mass of each level 1..5, cut at the half points: five numbers, sum 1.

    >>> [round(p, 2) for p in level_probabilities(3.0, 0.5)]
    [0.0, 0.16, 0.68, 0.16, 0.0]
    """
    edges = np.array([-np.inf, 1.5, 2.5, 3.5, 4.5, np.inf])
    masses = np.diff(special.ndtr((edges - mean) / max(deviation, 0.05)))
    masses = np.round(masses / masses.sum(), 6)
    return [float(m) for m in masses / masses.sum()]


UNMOVED = ScoreShift()
"""By no labels."""


def believe(model: Model, features: Features, shift: ScoreShift = UNMOVED) -> QualityBelief:
    """Predict the quality of one image, which labels of others move by a `shift`.

    The deviation is the error that such predictions have on images left out of the fit.
    """
    mean = float(np.clip(float(features.quality[0]) + shift.levels, WORST, BEST))
    novelty = float(features.novelty[0])
    variance = (shift.error_left * float(model.error(features.quality)[0])) ** 2
    deviation = float(np.sqrt((1 - novelty) * variance + novelty * _WIDEST**2))
    return QualityBelief(round(mean, 4), round(deviation, 4), round(novelty, 4))
