"""What labels change of the expert's reading: a ridge regression on its own numbers. And heatmaps.

The regression is fitted on what labels differ from the reading by, so few labels change little,
and its penalty is the one that makes the labels likeliest: of 60 labels the errors of images left
out are mostly chance. Where these are no better than the reading's, nothing is added. The tools'
mean can take the reading's place. What photographs differ by most is in the reading already, so
there labels change the least.
Labels count half as their ranks: people's lie close together where images are good, and there an
error of a tenth changes the order. A Gaussian kernel beside it gains less than it costs
(docs/log.md).
"""

import base64
import mmap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from scipy.linalg import blas, lapack

from program.common.errors import InputError
from program.expert.judge.faults import STRENGTHS, fault_map, faults_of, place_of
from program.expert.judge.quality import QualityBelief
from program.expert.judge.views import REMEMBERED, View, Viewer
from program.expert.store import Matrix
from program.images.store import IMAGES, ImageRef
from signatures.schemas import CATEGORY_WORDS, DISTORTION_CATEGORIES, FAULTS, DistortionCategory, category_of

TILE, STEP = 1 / 3, 1 / 6
"""Side of a tile and distance to the next, in sides of the image: five by five tiles that overlap
by half."""
_LEAST = 64
"""A tile's least side in pixels; smaller ones are not judged."""
_STRENGTH, _RED = 0.55, (214, 40, 40)
"""Of the red over the worst parts."""


def heatmap(
    image: ImageRef, reference: ImageRef | None = None, distortion: str | None = None, step: float = STEP
) -> Image.Image:
    """Return an image in grey with red where its parts score below 4; of a fault by `fault_map`.

    Raises InputError for a word that names no distortion and no fault.
    """
    if distortion is not None and distortion in FAULTS and reference is None:
        return overlay(image, fault_map(Viewer().view(image), distortion))
    category = category_of(distortion) if distortion else None
    if distortion and category is None:
        known = ", ".join(CATEGORY_WORDS.values())
        raise InputError(f"distortion {distortion!r}: unknown; name one of {known}")
    return overlay(image, quality_map(image, reference, category, step))


def quality_map(
    image: ImageRef, reference: ImageRef | None = None, distortion: DistortionCategory | None = None, step: float = STEP
) -> Matrix:
    """Return the score 1..5 of each tile, row by row: 5 x 5, or 1 x 1 of an image too small.

    Of a `distortion` alone: 4 less what it takes from the score there. `step` is the distance of
    tiles. Where the worst fault of an image alone is, no tile is better than elsewhere.
    """
    viewer = Viewer()

    def score(view: View) -> float:
        return view.prior.mean if distortion is None else 4 - view.severities[distortion]

    if TILE * min(image.width, image.height) < _LEAST:
        return np.array([[score(viewer.view(image, reference))]])
    starts = np.arange(0, 1 - TILE + 1e-9, step)
    scores = np.empty((len(starts), len(starts)))
    width, height = image.width, image.height
    for row, top in enumerate(starts):
        for column, left in enumerate(starts):
            box = (left * width, top * height, (left + TILE) * width, (top + TILE) * height)
            with IMAGES.borrow():
                tile = IMAGES.crop(image, box)
                original = IMAGES.crop(reference, box) if reference else None
                scores[row, column] = score(viewer.part(tile, image, original))
    if reference is None and distortion is None and (cell := _worst_cell(viewer.view(image))) is not None:
        row, column = (round(third / 3 / step) for third in divmod(cell, 3))
        scores[row, column] = scores.min()
    return scores


def _worst_cell(view: View) -> int | None:
    """Return the one of 3 x 3 cells that the worst fault is in, unless it is slight or all over."""
    worst = faults_of(view)[:1]
    if not worst or worst[0].strength == STRENGTHS[0]:
        return None
    return place_of(view, worst[0].fault)


def overlay(image: ImageRef, scores: Matrix) -> Image.Image:
    """Return the image in grey, reddened where the map is low: clear at 4 and above, full at 1."""
    pixels = Image.fromarray(IMAGES.pixels(image))
    loss = np.clip((4.0 - scores) / 3.0, 0.0, 1.0)
    mask = Image.fromarray(np.uint8(255 * _STRENGTH * loss))
    red, grey = Image.new("RGB", pixels.size, _RED), pixels.convert("L").convert("RGB")
    return Image.composite(red, grey, mask.resize(pixels.size, Image.Resampling.BICUBIC))


LIKENESS, OFFSET, SLOPE = 0.25, 0.2, 0.1
"""What a label's difference from the reading says of another image: as far as both measure alike,
of all images, of images the farther both are from the middle of the scale."""
LEFT = 0.01
"""Mean square of what images are moved by, at most, along one direction in which they differ: the
expert was fitted where photographs differ most, and little is left to learn there."""
PENALTIES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0, 2.0, 5.0)
"""Variances of a label that are tried."""
_SURE = 1.0
"""Standard errors by which the squared error has to fall: less is chance. Other labels judge what passes."""
_CHOSEN_ON = 2000
"""Images, drawn by groups, that choose the penalty: the variance of a label is that of any
number."""
_ROWS, _BESIDE = 256, 128
"""Rows that are multiplied at a time, and by how many others: 37 MB and 19 MB."""
_LABELS = np.linspace(1, 5, 81)
_SHOWS, _FEWEST = 0.8, 10
"""Severity from which an image counts as showing a distortion, and the fewest that have a mean."""
_LEAST_ERROR = 0.05
"""Of a corrected score, and deviation of the labels, that a precision is made of."""

Half = NDArray[np.float16]


def _weights_of(value: Any) -> Any:
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), "<f4")
    return value


def _text_of(weights: NDArray[np.float32]) -> str:
    return base64.b64encode(weights.astype("<f4").tobytes()).decode("ascii")


class Correction(BaseModel):
    """What was fitted for images of one kind, and how well it predicts groups left out."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True
    )  # fmt: skip

    labels: int = Field(ge=1)
    penalty: float = Field(gt=0)
    before: float = Field(ge=0)
    """Root mean squared difference of label and reading."""
    after: float = Field(ge=0)
    """The same after the correction, each group left out."""
    expected: float = Field(gt=0)
    """What the expert took that difference for."""
    moves: Mapping[str, tuple[int, float, float]]
    """By distortion: how many of the images show it, and mean and standard deviation of what these
    are moved by."""
    left_out: Mapping[str, float]
    """By hash of each of the images: what it is moved by without the labels of its own group."""
    curve: Sequence[float]
    """What labels of 1, 1.05 .. 5 were fitted as; rising."""
    weights: Annotated[
        NDArray[np.float32], BeforeValidator(_weights_of), PlainSerializer(_text_of)
    ]  # fmt: skip
    """Of what `inputs_of` gives; saved as little-endian numbers of 32 bits, in base64."""
    offset: float
    """Of every image."""
    of_tools: bool
    """Whether it moves the tools' mean; else the expert's own reading."""
    precision: float = Field(ge=0)
    """Of a corrected score as a tool's, 1 / `after`^2 less 1 / variance of the labels; at least
    0."""

    def shift(self, view: View) -> float:
        """Return by how many levels an image's score is moved, never by its own label."""
        if (known := self.left_out.get(view.key[0])) is not None:
            return known
        fitted = view.prior.mean + self.offset + inputs_of(view).astype(float) @ self.weights
        return float(np.interp(fitted, self.curve, _LABELS)) - view.prior.mean


def inputs_of(view: View) -> Half:
    """Return the I numbers that a correction reads: standardised ones, and the reading.

    Their products are the covariance of what two images are moved by.
    """
    reading = np.sqrt(SLOPE) * (view.prior.mean - 3)
    return np.append(np.sqrt(LIKENESS) * view.features.points[0], reading).astype(np.float16)


class Fit(NamedTuple):
    """What N labels tell of other images."""

    weights: Matrix
    """Of the N images: of another one, of its covariance with each."""
    offset: float
    """Of every image."""
    errors: Matrix
    """What each target is missed by, its own group left out."""


class Lesson:
    """What labels say of N images that were read, as a ridge regression learns it."""

    def __init__(
        self, labels: Matrix, readings: Matrix, groups: Sequence[str], *, are_left_by_tools: bool = False
    ) -> None:  # fmt: skip
        """Take N labels (1..5), N readings, and N groups; what tools leave has no ranks of its own."""
        self.labels, self.readings, self.residuals = labels, readings, labels - readings
        self.codes = np.unique(np.array(groups), return_inverse=True)[1]
        self.curve = _LABELS if are_left_by_tools else _curve(labels)  # with ranks those predict worse
        self._targets = np.interp(labels, _LABELS, self.curve) - readings

    def drawn(self, seed: int, count: int) -> NDArray[np.intp]:
        """Return the places of the first `count` images, their groups in random order."""
        order = np.random.default_rng(seed).permutation(self.codes.max() + 1)[self.codes]
        return np.argsort(order, kind="stable")[:count]

    def fitted(self, places: NDArray[np.intp], covariance: Matrix, penalty: float) -> tuple[Fit, Matrix]:
        """Return what the images at M places tell, and what each is moved by without its own group.

        The M x M covariance, of which the lower half counts, is overwritten.
        """
        targets = self._targets[places]
        fit, _ = _solved(covariance, targets, self.codes[places], penalty)
        return fit, self.moves(self.readings[places], targets - fit.errors)

    def moves(self, readings: Matrix, learned: Matrix) -> Matrix:
        """Return by how many levels images of these readings are moved by what was learned of each."""
        return np.asarray(np.interp(readings + learned, self.curve, _LABELS) - readings)

    def penalty(self, places: NDArray[np.intp], covariance: Matrix) -> float | None:
        """Return the penalty that makes the labels likeliest; None where images of other groups gain nothing by it."""
        targets, codes, residuals = self._targets[places], self.codes[places], self.residuals[places]
        likelihoods = [_solved(covariance.copy(order="F"), targets, codes, each)[1] for each in PENALTIES]
        chosen = PENALTIES[int(np.argmax(likelihoods))]
        moved = self.fitted(places, covariance.copy(order="F"), chosen)[1]
        gain = residuals**2 - (residuals - moved) ** 2
        if gain.mean() <= _SURE * gain.std() / np.sqrt(len(gain)):
            return None
        return chosen


class _LabelledImage(NamedTuple):
    sha256: str
    label: float
    reading: float
    deviation: float
    severities: list[float]
    group: str


class Labels:
    """Labelled images of one kind, as far as a correction reads them: 36 KB each."""

    def __init__(self, *, of_tools: bool = False) -> None:
        """Begin with none; `of_tools` where the tools' means are corrected, not readings."""
        self._of_tools = of_tools
        self._images: list[_LabelledImage] = []
        self._inputs: list[Half] = []

    def add(self, view: View, believed: QualityBelief, label: float, group: str) -> None:
        """Add an image, what is believed of it, and its label (1..5)."""
        self._inputs.append(inputs_of(view))
        severities = [view.severities[name] for name in DISTORTION_CATEGORIES]
        reading = view.prior.mean
        # A rubric, or the tools' mean, differs from the plain reading after the correction as well.
        label += reading - believed.mean
        self._images.append(_LabelledImage(view.key[0], label, reading, believed.deviation, severities, group))

    def correction(self, seed: int) -> Correction | None:
        """Fit all that was added; None where an infinite penalty is best.

        A few images, by seed, choose the penalty.
        """
        images = self._images
        if len(images) > REMEMBERED:  # who goes through them again finds none that are left
            Viewer.forget()
        labels = np.array([image.label for image in images])
        readings = np.array([image.reading for image in images])
        lesson = Lesson(labels, readings, [image.group for image in images], are_left_by_tools=self._of_tools)
        few = lesson.drawn(seed, _CHOSEN_ON)
        chosen = lesson.penalty(few, self._covariance(few))
        if chosen is None:
            return None
        every = np.arange(len(images))
        fit, moved = lesson.fitted(every, self._covariance(every), chosen)
        moved, residuals = np.round(moved, 4), lesson.residuals
        after = _root_mean_square(residuals - moved)
        error, deviation = max(after, _LEAST_ERROR), max(float(labels.var()), _LEAST_ERROR**2)
        severities = np.array([image.severities for image in images])
        return Correction(
            labels=len(images), penalty=chosen, before=_root_mean_square(residuals), after=after,
            expected=_root_mean_square(np.array([image.deviation for image in images])),
            moves=_moves(severities, moved),
            left_out=dict(zip([image.sha256 for image in images], moved.tolist(), strict=True)),
            curve=np.round(lesson.curve, 4).tolist(), weights=self._weights(fit.weights), offset=fit.offset,
            of_tools=self._of_tools, precision=max(0.0, 1 / error**2 - 1 / deviation),
        )  # fmt: skip

    def _weights(self, solved: Matrix) -> NDArray[np.float32]:
        """Return the weights of the I numbers, from those of the N images."""
        weights = np.zeros(len(self._inputs[0]))
        for at in range(0, len(solved), _ROWS):
            weights += solved[at : at + _ROWS] @ np.array(self._inputs[at : at + _ROWS], float)
        return np.asarray(weights, np.float32)

    def _covariance(self, places: NDArray[np.intp]) -> Matrix:
        """Return the lower half of the N x N products, in double precision."""
        count = len(places)
        # Numpy asks for pages so large that the untouched upper half would take as much.
        products = np.frombuffer(mmap.mmap(-1, 8 * count**2)).reshape((count, count), order="F")
        for row in range(0, count, _ROWS):
            below = self._read(places[row : row + _ROWS])
            for column in range(0, row + len(below), _BESIDE):
                beside = self._read(places[column : column + _BESIDE])
                products[row : row + _ROWS, column : column + _BESIDE] = below @ beside.T
        return products

    def _read(self, places: NDArray[np.intp]) -> Matrix:
        return np.array([self._inputs[place] for place in places], float)


def _root_mean_square(values: Matrix) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _moves(severities: Matrix, moved: Matrix) -> dict[str, tuple[int, float, float]]:
    """Return what all images and those with each distortion are moved by; nothing of few."""
    shown = dict(zip(DISTORTION_CATEGORIES, (severities >= _SHOWS).T, strict=True))
    moves = {}
    for name, rows in {"all": np.ones(len(moved), bool), **shown}.items():
        own = moved[rows]
        if len(own) >= _FEWEST:
            moves[name] = (len(own), round(float(own.mean()), 3), round(float(own.std()), 3))
    return moves


def _curve(labels: Matrix) -> Matrix:
    """Return what labels of `_LABELS` are fitted as: half themselves, half their ranks, as wide."""
    values, counts = np.unique(labels, return_counts=True)
    ranks = (np.cumsum(counts) - counts / 2) / len(labels) - 0.5
    ranked = np.sqrt(12) * labels.std() * np.interp(_LABELS, values, ranks)
    return np.asarray(_LABELS + labels.mean() + ranked) / 2


def _solved(covariance: Matrix, targets: Matrix, codes: NDArray[np.intp], penalty: float) -> tuple[Fit, float]:
    """Return what N targets tell, and how likely they are.

    The covariance C is overwritten. Expected is s C (C + s)^-1, which is C where that is small and s, `LEFT` of each of
    the N, where it is large, and `OFFSET` o everywhere. Without o the inverse of the labels' covariance is
    A = (1 + (s - q) (C + q)^-1) / (s + p), p the penalty and q = s p / (s + p); with it, A - A 1 1'A / (1 / o + 1'A 1).
    The errors of group g are A_gg^-1 (A t)_g (Rasmussen & Williams 2006, eq. 5.12, for several at once). The likelihood
    is the logarithm's, but for a constant (eq. 5.8).
    """
    count, most = len(targets), LEFT * len(targets)
    scale = most + penalty
    rest = most - most * penalty / scale
    np.einsum("ii->i", covariance)[:] += most * penalty / scale
    factor, _ = lapack.dpotrf(covariance, lower=1, clean=0, overwrite_a=1)
    spread = float(np.log(np.diag(factor)).sum()) + count * np.log(scale) / 2
    inverse, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
    solved, same = (blas.dsymv(1.0, inverse, each, lower=1) for each in (targets, np.ones(count)))
    shared = 1 + rest * same
    total = scale / OFFSET + shared.sum()
    inverse = blas.dsyr(-1 / (rest * total), shared, lower=1, a=inverse, overwrite_a=1)
    offset = float(targets @ shared) / total
    missed = targets + rest * solved - offset * shared
    errors = missed / (1 + rest * np.diag(inverse))
    order = np.argsort(codes, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        if len(members) > 1:
            own = inverse[np.maximum.outer(members, members), np.minimum.outer(members, members)]
            errors[members] = np.linalg.solve(np.eye(len(members)) + rest * own, missed[members])
    spread += np.log(total * OFFSET / scale) / 2
    likelihood = -float(targets @ missed) / scale / 2 - spread
    return Fit(most / scale * (solved - offset * same), offset, errors), likelihood
