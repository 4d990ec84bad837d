"""How measurements become beliefs, and how good an image is believed to be. Pure numpy/scipy."""

import functools
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from program.expert.store import Matrix, stored_arrays
from program.tools import network
from signatures.schemas import DISTORTION_CATEGORIES, LEVEL_WORDS, DistortionCategory

UNDISTORTED = 4.6
"""KADID-10k's mean score of its identities (mean shift and contrast change at level 3, colour saturation at 1)."""
_ALLOWANCE = 0.2
"""How much more than its quality lacks of `UNDISTORTED` a distortion of an image may cost: both are estimates."""

SEVERITIES = (*DISTORTION_CATEGORIES, "spatial")
"""The seven categories and distortions of place, which are none of them."""
CAUSES: Mapping[str, DistortionCategory] = {
    "motion": "Blurs", "defocus": "Blurs", "overexposure": "Brightness change", "underexposure": "Brightness change"
}  # fmt: skip
"""What a blur or a change of brightness comes from, with its category."""
OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "nr": ("photograph", "distorted", "kind", "altered", *SEVERITIES, *CAUSES), "fr": ("distorted", *SEVERITIES)
}  # fmt: skip
"""What a model gives, without a reference and with one: the score of a photograph judged alone and of an image judged
beside its original, which of the two an image resembles and whether it was distorted, at whatever size it is shown
(-1 .. 1 both), and severities: how far, 0 .. about 3.5, each distortion brings the score down."""
ERRORS_AT = np.linspace(1, 5, 9)
"""Qualities at which the size of errors is kept."""
_GATE_MIDDLES, _GATE_WIDTHS = (0.4, 0.2), (0.1, 0.2)
"""Where "kind" and "altered" begin to speak for the score of a distorted image, and how fast that changes: by folds of
CLIVE's train photographs, of these at half their size and of distorted versions of them, LIVE's train and validation
images, and the order of BIQ2021's train and validation images."""
WIDTHS = (1.0, 0.3)
"""Squared length scales of a kernel's Gaussians, half each: a wide one for what all distortions share, a narrow one for
what sets kinds apart."""


class Standard(NamedTuple):
    """What values are measured by before they are compared: centre, spread, and how much each counts."""

    centre: Matrix
    spread: Matrix
    share: Matrix

    def apply(self, vectors: Matrix) -> Matrix:
        """Return N x F standardised values, each row of length about 1."""
        return np.asarray(network.standardise(np.atleast_2d(vectors), self.centre, self.spread) * self.share)


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
    square = (one * one).sum(axis=1)[:, None] + (other * other).sum(axis=1)[None] - 2 * one @ other.T
    square = np.maximum(square, 0.0)
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
    cells: Matrix
    """N x 9 brightness of the cells of a 3 x 3 grid: what tells photographs apart, whatever was done to them."""
    novelty: Matrix
    """N: how far the measurements lie from those of the training images, 0 (as they do) .. 1."""


class Model(NamedTuple):
    """What was fitted for a kind of images, alone ("nr") or with a reference ("fr"); safe to share between threads."""

    kind: str
    standard: Standard
    views: Matrix
    """F x K."""
    kernel: Kernel
    errors: Matrix
    """Root mean squared error on images left out, at `ERRORS_AT`."""
    reach: Matrix
    """Mean squares of standardised measurements that are usual (novelty 0) and as unusual as can be (1)."""

    def look(self, vectors: Matrix, cells: Matrix | None = None) -> Features:
        """Return what N x F measurements are to this model; `cells` are N x 9, zeros where nobody asks for them."""
        points = self.standard.apply(vectors)
        values = self.kernel.values(points @ self.views)
        first = OUTPUTS[self.kind].index(SEVERITIES[0])
        low, high = self.reach
        novelty = np.clip(((points * points).sum(axis=1) - low) / (high - low), 0, 1)
        quality = quality_of(self.kind, values)
        most = np.clip(UNDISTORTED + _ALLOWANCE - quality, 0.0, 4.0)[:, None]
        severities = np.clip(values[:, first : first + len(SEVERITIES)], 0.0, most)
        cells = np.zeros((len(points), 9)) if cells is None else np.reshape(cells, (len(points), 9))
        return Features(points.astype(np.float32), values, quality, severities, cells, novelty)

    def error(self, quality: Matrix) -> Matrix:
        """Return the root mean squared error of N predictions, linear between those kept."""
        return np.interp(quality, ERRORS_AT, self.errors)


def quality_of(kind: str, values: Matrix) -> Matrix:
    """Return the N scores of a model's N x O outputs; without a reference see `network.blend`."""
    return network.blend(values[:, :4], _GATE_MIDDLES, _GATE_WIDTHS) if kind == "nr" else values[:, 0]


@functools.cache
def load_model(kind: str) -> Model:
    """Return the model for single images ("nr") or for images with a reference ("fr"), from the shipped file."""
    return model_from(kind, stored_arrays())


def model_from(kind: str, arrays: Mapping[str, Any]) -> Model:
    """Build a model from the arrays that ship."""
    own = {name.removeprefix(f"{kind}_"): value for name, value in arrays.items() if name.startswith(f"{kind}_")}
    one, other = (Standard(*(own[f"{of}{name}"] for name in Standard._fields)) for of in ("", "view_"))
    kernel = Kernel(other, own["points"], own["weights"], own["slopes"], own["offset"])
    return Model(kind, one, own["views"], kernel, own["errors"], own["reach"])


LIKENESS, OFFSET, SLOPE = 0.25, 0.2, 0.1
"""What a demo's residual says of another image: as far as both measure alike, of all images, of images the farther
both are from the middle of the scale."""
NOISES = (0.1, 0.2, 0.4)
"""Variances of a label that are tried; the likeliest counts. By folds of BIQ2021's train and validation images."""
PHOTOGRAPH = (1.0, 5.0)
"""What is added to that for versions of one photograph, where demos show many: a constant, and as far as they measure
alike. It says nothing of other photographs. By pairs of the quickstart's photographs left out."""
_VERSIONS = 0.05
"""Share of pairs of demos that show the same photograph from which that counts."""
WORST, BEST = 0.6, 5.4
_DOUBT = 8
"""Demos whose misfit counts as much as the expectation that there is none."""
_EXCHANGES = 4000
"""How often a set of demos is changed while it is chosen. By folds of BIQ2021's train and validation images."""
_WIDEST = 1.2
"""Standard deviation of what is believed of an image unlike all training images: nearly that of a label drawn blindly
from 1..5."""


class Belief(NamedTuple):
    """A quality on 1..5: its mean, standard deviation and how unlike the training images the image is (0..1)."""

    mean: float
    deviation: float
    novelty: float

    def by_word(self) -> dict[str, float]:
        """Return the probability of each level by its word."""
        return dict(zip(LEVEL_WORDS, level_probabilities(self.mean, self.deviation), strict=True))


def level_probabilities(mean: float, deviation: float) -> list[float]:
    """Return the Gaussian mass of each level 1..5 (cut at the half points, the ends open): five numbers, sum 1.

    >>> [round(p, 2) for p in level_probabilities(3.0, 0.5)]
    [0.0, 0.16, 0.68, 0.16, 0.0]
    """
    edges = np.array([-np.inf, 1.5, 2.5, 3.5, 4.5, np.inf])
    masses = np.diff(special.ndtr((edges - mean) / max(deviation, 0.05)))
    masses = np.round(masses / masses.sum(), 6)
    return [float(m) for m in masses / masses.sum()]


class Evidence(NamedTuple):
    """Labelled images worked out as far as no query is needed: made once per set of demos."""

    seen: Features
    versions: bool
    """Whether many of them show the same photographs."""
    noise: float
    """Variance of a label."""
    factor: Matrix
    """N x N lower factor of the residuals' covariance, label noise included."""
    weights: Matrix
    """N: that covariance's inverse times the residuals `label - quality`."""
    misfit: float
    """How far the labels lie from what the others make of them, squared, over what was expected; at least 1."""


def weigh(model: Model, seen: Sequence[Features], labels: Matrix) -> Evidence:
    """Turn images seen by a model, with N labels (1..5), into evidence; N >= 1.

    The labels' noise is the one of `NOISES` under which they are likeliest (Rasmussen & Williams 2006, eq. 5.8).
    """
    joined, pairs = _joined(seen), len(labels) * (len(labels) - 1)
    same = int((_same_photograph(joined, joined) > 0.5).sum()) - len(labels)
    versions = same > 0 and same >= _VERSIONS * pairs
    within = _covariance(joined, joined, versions)
    noise, factor, weights = _settled(within, labels - joined.quality)
    # Each label left out: eq. 5.12, its variance the share of the prior's that is left.
    inverse = np.square(linalg.solve_triangular(factor, np.eye(len(labels)), lower=True)).sum(axis=0)
    expected = model.error(joined.quality) ** 2 / inverse / (np.diag(within) + noise)
    misfits = (weights / inverse) ** 2 / expected
    misfit = float((misfits.sum() + _DOUBT) / (len(labels) + _DOUBT))
    return Evidence(joined, versions, noise, factor, weights, max(1.0, misfit))


def most_telling(seen: Sequence[Features], labels: Matrix, count: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Return the places of `count` < N labelled images that, as demos, bring beliefs nearest to the others' labels.

    Nearest in squared error. A set drawn at random is changed image by image, and a change that lowers the error is
    kept: an exchange algorithm (Fedorov 1972).
    """
    joined, every = _joined(seen), np.arange(len(labels))
    covariance, residuals = _covariance(joined, joined), labels - joined.quality

    def error(chosen: NDArray[np.intp]) -> float:
        others = np.delete(every, chosen)
        _, _, weights = _settled(covariance[np.ix_(chosen, chosen)], residuals[chosen])
        return float(np.square(residuals[others] - covariance[np.ix_(others, chosen)] @ weights).mean())

    chosen = rng.choice(every, count, replace=False)
    least = error(chosen)
    for place, other in zip(rng.integers(count, size=_EXCHANGES), rng.choice(every, _EXCHANGES), strict=True):
        changed = chosen.copy()
        changed[place] = other
        if other not in chosen and (found := error(changed)) < least:
            chosen, least = changed, found
    return tuple(chosen.tolist())


def believe(
    model: Model, seen: Features, evidence: Evidence | None = None, moved: tuple[float, float] = (0.0, 1.0)
) -> Belief:
    """Predict the quality of one image; the residuals of labelled images correct it.

    `moved` is by how many levels a correction moves it, and the share of the error that this leaves.

    They are conditioned on as a Gaussian process (Rasmussen & Williams 2006, sec. 2.7) whose covariance is linear in
    what was measured. The deviation is the error that such predictions have on images left out of the fit, less what
    the evidence settles.
    """
    mean, novelty, settled, misfit = float(seen.quality[0]) + moved[0], float(seen.novelty[0]), 0.0, 1.0
    if evidence is not None:
        across = _covariance(seen, evidence.seen, evidence.versions)[0]
        mean += float(across @ evidence.weights)
        reached = linalg.solve_triangular(evidence.factor, across, lower=True, check_finite=False)
        own = float(_covariance(seen, seen, evidence.versions)[0, 0])
        settled, misfit = float(reached @ reached) / (own + evidence.noise), evidence.misfit
    variance = (1 - min(settled, 1.0)) * (moved[1] * float(model.error(seen.quality)[0])) ** 2 * misfit
    deviation = float(np.sqrt((1 - novelty) * variance + novelty * _WIDEST**2))
    return Belief(round(float(np.clip(mean, WORST, BEST)), 4), round(deviation, 4), round(novelty, 4))


def _joined(seen: Sequence[Features]) -> Features:
    return Features(*(np.concatenate(column) for column in zip(*seen, strict=True)))


def _settled(within: Matrix, residuals: Matrix) -> tuple[float, Matrix, Matrix]:
    """Return the likeliest of `NOISES`, the factor of the covariance with it, and the weights of N residuals."""

    def fitted(noise: float) -> tuple[float, float, Matrix, Matrix]:
        factor = np.asarray(linalg.cholesky(within + noise * np.eye(len(residuals)), lower=True))
        weights = np.asarray(linalg.cho_solve((factor, True), residuals))
        surprise = 0.5 * float(residuals @ weights) + float(np.log(np.diag(factor)).sum())
        return surprise, noise, factor, weights

    _, noise, factor, weights = min(map(fitted, NOISES), key=itemgetter(0))
    return noise, factor, weights


def _covariance(one: Features, other: Features, versions: bool = False) -> Matrix:
    # In double precision: the sum of 18,085 products must not depend on who shares the work.
    products = one.points.astype(float) @ other.points.T.astype(float)
    covariance = LIKENESS * products + OFFSET + SLOPE * np.outer(one.quality - 3, other.quality - 3)
    if versions:
        constant, likeness = PHOTOGRAPH
        covariance += _same_photograph(one, other) * (constant + likeness * products)
    return np.asarray(covariance)


def _same_photograph(one: Features, other: Features) -> Matrix:
    """Return how sure it is that two images show one photograph, 0..1: as far as their cells' brightness correlates."""
    first, second = (seen.cells - seen.cells.mean(axis=1, keepdims=True) for seen in (one, other))
    lengths = np.outer(np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1))
    # A product of covariances is one again: no pair has to be called the same or not.
    return np.asarray((first @ second.T / np.maximum(lengths, 1e-9)) ** 32)
