"""From tables of measurements to the arrays that ship: ridge regressions, and a kernel regression on their views."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from benchmarks.training.images import Table
from program.common.files import whole_file
from program.expert.judge.quality import CAUSES, ERRORS_AT, OUTPUTS, Kernel, Standard, near, quality_of
from program.expert.store import Matrix
from signatures.schemas import DISTORTION_CATEGORIES

__all__ = (
    "FOLDS", "NOISE", "SEED", "Fitted", "alone", "folds", "kinds_of", "paired", "ridge", "save_arrays",
    "standard_of", "steps_of",
)  # fmt: skip

FOLDS, SEED = 10, 0
FORMULAS = {"nr": 0.2, "fr": 0.8}
"""What the formulas count beside the network's numbers, without a reference and with one."""
NOISE = {
    "photograph": {"photographs": 0.2, "halved": 0.4, "undistorted": 10.0},
    "distorted": {"photographs": 0.5, "live": 0.2, "undistorted": 0.2, "distorted": 0.2},
    # The few images whose scores are people's own, among thousands with the means of others.
    "paired": {"live": 0.02, "undistorted": 0.2, "distorted": 0.2},
    "damage": {"undistorted": 0.2, "distorted": 0.2, "beside": 0.2},
    "kind": {"photographs": 0.1, "live": 1.0, "undistorted": 1.0, "distorted": 1.0},
    "altered": {"photographs": 0.1, "halved": 0.4, "undistorted": 0.4, "live": 1.0, "distorted": 1.0},
}
"""Noise of a label by the source of its image, relative to the variance that is explained; who is not named does not
teach."""
INTACT = {"kind": ("photographs",), "altered": ("photographs", "halved", "undistorted")}
"""What counts as -1 in the two outputs that tell which score to believe; all else is 1."""
FALL = {"rising": (0.05, 0.05), "beside": (0.05, 1.5), "tiles": (0.05, 1.5)}
"""By how much a score has to fall where a distortion gets stronger, and from one part of a photograph to another one,
distorted: by as much as people's mean scores do, within these limits."""
FALL_NOISE, ROUNDS = {"photograph": {"rising": 0.2}, "distorted": {"rising": 0.1, "beside": 0.05, "tiles": 0.05}}, 4
"""The noise of that rule for the scores that keep to it, and how often the steps that break it are looked for."""
OTHER_PEOPLE = 0.35
"""How far other people's scores lie from KADID-10k's, which nearly all pairs have here: by LIVE's."""
KEPT = {"nr": 2500, "fr": 4000}
"""How many training images the kernel regressions keep."""
KERNEL = {"nr": (0.3, 0.1), "fr": (0.3, 0.02)}
"""The share of the line in the kernel, and the noise of a label."""
_CAUSED: Mapping[str, tuple[str, ...]] = {
    "motion": ("motion", "motion_blur"), "defocus": ("defocus", "lens_blur", "gaussian_blur"),
    "overexposure": ("overexposure", "brighten"), "underexposure": ("underexposure", "darken", "low light"),
}  # fmt: skip
"""Names of distortions that say the cause."""


class Steps(NamedTuple):
    """Steps to a stronger distortion, or from one part of a photograph to another one, distorted."""

    weaker: NDArray[np.intp]
    """Places of images, and in `stronger` of what follows them."""
    stronger: NDArray[np.intp]
    fall: Matrix
    """By how much the score has to fall at least."""
    noise: Matrix


def standard_of(values: Matrix, share: Matrix | float = 1.0) -> Standard:
    """Return the centre and spread of N x F values; `share` is how much each counts in a comparison, sum F."""
    count = values.shape[1]
    return Standard(
        values.mean(axis=0), values.std(axis=0) + 1e-6, np.sqrt(np.broadcast_to(share, count) / count).astype(float)
    )


def folds(group: NDArray[np.str_]) -> NDArray[np.intp]:
    """Return the fold of each image: all that show one photograph are in the same, drawn by a fixed seed."""
    names = np.unique(group)
    drawn = dict(zip(np.random.default_rng(SEED).permutation(names), range(len(names)), strict=True))
    return np.array([drawn[name] % FOLDS for name in group])


def products(points: Matrix) -> NDArray[np.float32]:
    """Return the N x N kernel of `ridge` for N x F points; the costliest step, so it is done once."""
    single = points.astype(np.float32)
    return np.asarray(single @ single.T + 1)


def steps_of(table: Table, taken: NDArray[np.bool_], role: str) -> Steps:
    """Return the steps of `images.rising` and `images.beside` that a role keeps to, among the images `taken`."""
    found = []
    for source, noise in FALL_NOISE[role].items():
        rows = np.flatnonzero(taken & (table.source == source))
        series = np.char.add(table.group[rows], table.distortion[rows] if source == "rising" else "")
        _, first, number = np.unique(series, return_index=True, return_inverse=True)
        last = np.flatnonzero(number[1:] == number[:-1]) + 1
        weaker, stronger = rows[last - 1 if source == "rising" else first[number[last]]], rows[last]
        fall = np.clip(table.scores[weaker] - table.scores[stronger], *FALL[source])
        found.append((weaker, stronger, fall, np.full(len(last), noise)))
    return Steps(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def ridge(
    points: Matrix, targets: Mapping[str, Matrix], source: NDArray[np.str_], kernel: NDArray[np.float32],
    taken: NDArray[np.bool_], steps: Steps,
) -> tuple[Matrix, Matrix]:  # fmt: skip
    """Fit lines through the N x F points `taken` for N x K targets of each role of `NOISE`.

    Returns F x sum K weights and the offsets. Kernel ridge regression with a linear kernel (`products`): there are more
    measurements than images. The score of a photograph falls at every step: those that would not are added as
    differences of images.
    """
    weights, offsets = [], []
    for role, target in targets.items():
        noise = NOISE[role]
        rows = np.flatnonzero(taken & np.isin(source, list(noise)))
        middle = target[rows].mean(axis=0)
        own = kernel[np.ix_(rows, rows)]
        own[np.diag_indices_from(own)] += np.array([noise[name] for name in source[rows]], np.float32)
        wanted = (target[rows] - middle).astype(np.float32)
        share = np.zeros((len(points), wanted.shape[1]), np.float32)
        share[rows] = linalg.solve(own, wanted, assume_a="pos")
        if role == "photograph":
            share[:, 0] = _falling(kernel, rows, own, wanted[:, 0], share[:, 0], steps)
        weights.append(points.T @ share)
        offsets.append(middle + share.sum(axis=0))
    return np.hstack(weights), np.concatenate(offsets)


def _falling(
    kernel: NDArray[np.float32], rows: NDArray[np.intp], own: NDArray[np.float32], wanted: NDArray[np.float32],
    share: NDArray[np.float32], steps: Steps,
) -> NDArray[np.float32]:  # fmt: skip
    """Return what each of N images counts in a line that falls at the steps; `share` is that without this rule."""
    moved = kernel[steps.stronger] - kernel[steps.weaker]
    for _ in range(ROUNDS):
        broken = moved @ share > -steps.fall
        weaker, stronger, across = steps.weaker[broken], steps.stronger[broken], moved[broken]
        within = across[:, stronger] - across[:, weaker] + np.diag(steps.noise[broken])
        system = np.block([[own, across[:, rows].T], [across[:, rows], within]])
        dual = linalg.solve(system, np.r_[wanted, -steps.fall[broken]], assume_a="pos", overwrite_a=True)
        share = np.zeros_like(share)
        share[rows] = dual[: len(rows)]
        np.add.at(share, stronger, dual[len(rows) :])
        np.subtract.at(share, weaker, dual[len(rows) :])
    return share


def kernel_fit(
    views: Matrix, targets: Mapping[str, Matrix], source: NDArray[np.str_], standard: Standard, kind: str, steps: Steps
) -> Kernel:
    """Fit N x K views to N x O targets of each role: as much as `KEPT` images can say of all (subset of regressors).

    The score of a distorted image falls at every step, as in `ridge`. Source: Quinonero-Candela & Rasmussen 2005,
    sec. 5.
    """
    linear, noise = KERNEL[kind]
    z = standard.apply(views)
    taught = np.flatnonzero(np.isin(source, [name for role in targets for name in NOISE[role]]))
    chosen = np.sort(np.random.default_rng(SEED).permutation(taught)[: KEPT[kind]])
    points = z[chosen].astype(np.float16).astype(float)  # half precision is what ships
    cross = (1 - linear) * near(z, points) + linear * z @ points.T
    own = (1 - linear) * near(points, points) + linear * points @ points.T + 1e-6 * np.eye(len(points))
    moved = cross[steps.stronger] - cross[steps.weaker]
    weights, offsets = [], []
    for role, target in targets.items():
        rows = np.isin(source, list(NOISE[role]))
        middle = target[rows].mean(axis=0)
        scaled = cross[rows].T / np.array([noise * NOISE[role][name] / 0.2 for name in source[rows]])
        system, wanted = own + scaled @ cross[rows], scaled @ (target[rows] - middle)
        dual = linalg.solve(system, wanted, assume_a="pos")
        for _ in range(ROUNDS if role == "distorted" else 0):
            broken = (moved @ dual)[:, 0] > -steps.fall
            weighed = moved[broken].T / steps.noise[broken]
            dual = linalg.solve(
                system + weighed @ moved[broken], wanted - (weighed @ steps.fall[broken])[:, None], assume_a="pos"
            )
        weights.append(dual)
        offsets.append(middle)
    dual, offset = np.hstack(weights), np.concatenate(offsets)
    return Kernel(standard, points, (1 - linear) * dual, linear * points.T @ dual, offset)


def kinds_of(source: NDArray[np.str_]) -> dict[str, Matrix]:
    """Return N x 1 of each role of `INTACT`: -1 for the sources that it names, 1 for all others."""
    return {role: np.where(np.isin(source, intact), -1.0, 1.0)[:, None] for role, intact in INTACT.items()}


def causes_of(table: Table) -> Matrix:
    """Return N x 4 severities of `CAUSES`: those of their category, where the distortion's name says the cause."""
    first = np.array([name.split(" + ")[0] for name in table.distortion])
    columns = [DISTORTION_CATEGORIES.index(category) for category in CAUSES.values()]
    caused = [np.isin(first, _CAUSED[c]) * table.severities[:, i] for c, i in zip(CAUSES, columns, strict=True)]
    return np.stack(caused, axis=1)


def single_kinds(table: Table) -> Matrix:
    """Return N x T severities by the name of the distortion: what tells distortions of one category apart."""
    single = [name for name in np.unique(table.distortion[table.source == "distorted"]) if " + " not in name]
    return np.stack([(table.distortion == name) * table.severities.max(axis=1) for name in single], axis=1)


class Fitted:
    """What judges images of a kind ("nr" or "fr"), fitted on N of them; `arrays` are what ships."""

    def __init__(
        self, kind: str, table: Table, parts: Sequence[Matrix], read: Mapping[str, Matrix], given: Mapping[str, Matrix]
    ) -> None:
        """Fit views on all images, the kernel regression on views of images left out: such are what it will see.

        `parts` are N x F measurements: those of the network and the formulas. Lines read the targets of each role of
        `read` from them; with a reference, from the network's alone, and the formulas' are views themselves.
        """
        self.kind, self.table, self.whole = kind, table, 0 if kind == "nr" else parts[1].shape[1]
        vectors, shares = np.hstack(parts), shares_of(parts[0].shape[1], parts[1].shape[1], FORMULAS[kind])
        self.usual = table.source == "photographs" if kind == "nr" else np.ones(len(vectors), bool)
        self.standard = standard_of(vectors[self.usual], shares)
        self.points = self.standard.apply(vectors)
        self.fold, self.given = folds(table.group), given
        seen = self.points[:, : vectors.shape[1] - self.whole]
        views, alike = np.zeros((len(seen), sum(target.shape[1] for target in read.values()))), products(seen)
        for taken in (*self._rests(), np.ones(len(seen), bool)):  # the last lines, through all images, are kept
            lines, offset = ridge(seen, read, table.source, alike, taken, steps_of(table, taken, "photograph"))
            views[~taken] = seen[~taken] @ lines + offset
        tiles = table.source == "tiles"  # they teach no line, so the lines through all images may read them
        views[tiles] = seen[tiles] @ lines + offset
        self.lines, self.view_offset = linalg.block_diag(lines, np.eye(self.whole)), np.r_[offset, np.zeros(self.whole)]
        self.views = np.hstack([views, self.points[:, len(lines) :]])
        self.view_standard = standard_of(self.views, shares_of(views.shape[1], self.whole, FORMULAS[kind]))
        self.left_out = np.zeros((len(seen), len(OUTPUTS[kind])))
        for rest in self._rests():
            self.left_out[~rest] = self._kernel(rest).values(self.views[~rest])
        self.quality = quality_of(kind, self.left_out)
        """N scores, each by the images that show other photographs."""

    def _rests(self) -> Iterator[NDArray[np.bool_]]:
        return (self.fold != k for k in range(FOLDS))

    def _kernel(self, rows: NDArray[np.bool_]) -> Kernel:
        targets, place = {role: target[rows] for role, target in self.given.items()}, np.cumsum(rows) - 1
        weaker, stronger, *rule = steps_of(self.table, rows, "distorted")
        fitted = kernel_fit(
            self.views[rows], targets, self.table.source[rows], self.view_standard, self.kind,
            Steps(place[weaker], place[stronger], *rule),
        )  # fmt: skip
        if self.kind == "fr":
            return fitted
        first = np.zeros((self.views.shape[1], 1))
        # The line for photographs passes through as it is.
        first[0] = self.view_standard.spread[0] / self.view_standard.share[0]
        return fitted._replace(
            weights=np.hstack([np.zeros((len(fitted.points), 1)), fitted.weights]),
            slopes=np.hstack([first, fitted.slopes]),
            offset=np.r_[self.view_standard.centre[0], fitted.offset],
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what ships, by the names that `model_from` reads."""
        kernel = self._kernel(np.ones(len(self.views), bool))
        errors = errors_of(self.quality[self.usual], self.table.scores[self.usual])
        reach = np.quantile(np.square(self.points).sum(axis=1), 0.99) * np.array([1.0, 2.0])
        arrays = {
            **self.standard._asdict(), "views": self.lines.astype(np.float16),
            # The kernel regression's standard reads views without their constant.
            **{f"view_{name}": value for name, value in self.view_standard._asdict().items()},
            "view_centre": self.view_standard.centre - self.view_offset,
            "points": kernel.points.astype(np.float16), "weights": kernel.weights, "slopes": kernel.slopes,
            "offset": kernel.offset, "errors": errors if self.kind == "nr" else np.hypot(errors, OTHER_PEOPLE),
            "reach": reach,
        }  # fmt: skip
        return {
            f"{self.kind}_{name}": value if value.dtype == np.float16 else value.astype(np.float32)
            for name, value in arrays.items()
        }


def shares_of(network: int, formulas: int, share: float) -> Matrix:
    """Return how much each of the network's and the formulas' numbers counts, the latter `share` of all; mean 1."""
    count = network + formulas
    if not formulas:
        return np.ones(count)
    return np.asarray(count * np.r_[np.full(network, (1 - share) / network), np.full(formulas, share / formulas)])


def alone(table: Table) -> Fitted:
    """Return what judges images without a reference, fitted on all of a table."""
    score, damage = table.scores[:, None], np.hstack([table.severities, causes_of(table)])
    kinds = kinds_of(table.source)
    read = {"photograph": score, "distorted": score, **kinds, "damage": np.hstack([damage, single_kinds(table)])}
    given = {"distorted": score, **kinds, "damage": damage}
    return Fitted("nr", table, (table.spreads, table.features), read, given)


def paired(table: Table) -> Fitted:
    """Return what judges images with a reference, fitted on those of a table that have one."""
    table = table.only(np.isin(table.source, list(NOISE["paired"])))
    read = {"damage": np.hstack([table.severities, causes_of(table), single_kinds(table)])}
    given = {"paired": table.scores[:, None], "damage": table.severities}
    return Fitted("fr", table, (table.moved, table.differences), read, given)


def errors_of(predicted: Matrix, scores: Matrix) -> Matrix:
    """Return the root mean squared error of predictions near each of `ERRORS_AT`, in part of all (Nadaraya 1964)."""
    near_by = np.exp(-0.5 * ((ERRORS_AT[:, None] - predicted) / 0.4) ** 2)
    square = (predicted - scores) ** 2
    return np.asarray(np.sqrt((near_by @ square + 20 * square.mean()) / (near_by.sum(axis=1) + 20)))


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a compressed npz, whole or not at all; its bytes depend on the arrays alone."""
    with whole_file(path) as partial, partial.open("wb") as stream:
        np.savez_compressed(stream, **arrays)
