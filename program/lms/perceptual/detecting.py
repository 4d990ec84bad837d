"""Fit what finds distortions: detectors of each category's severity, and how their word is weighed with the quality's.

Only images generated from the quickstart's train photographs are fitted on; natural photographs give their means,
spreads and covariance, no score.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from program.lms.perceptual.features import FEATURE_NAMES
from program.lms.perceptual.grading import grading_weights
from program.lms.perceptual.quality import detector_of
from program.lms.perceptual.regression import Hyper, Matrix, Standard, radial
from program.lms.perceptual.tables import Table, severities

__all__ = ("DETECTOR", "READ", "detector_arrays", "grading")

READ = next(i for i, name in enumerate(FEATURE_NAMES) if name.startswith("local_"))
"""How many features the detectors read. With local sharpness, patterns or codes too they tell contents apart, not
distortions: the F1 on photographs left out one by one falls from 0.74 to 0.69 and less."""
DETECTOR = {"nr": Hyper(0.7, 0.2, 0.3, 5.0), "fr": Hyper(0.7, 0.2, 0.03, 4.0)}
"""Chosen by F1 and kappa on the quickstart's validation photographs, on train photographs left out one by one, and on
distorted versions of CLIVE train images, on which nothing here was fitted (see `comparing.PAIRED`)."""
CENTRES = 1000
EVENING = 0.05
"""Variance added to every direction before natural photographs are evened out."""
_SEED = 7


def detector_arrays(kind: str, made: Table, natural: Matrix) -> dict[str, NDArray[Any]]:
    """Fit severities on generated images by a sparse (subset of regressors) Gaussian process.

    Without reference, what varies between natural photographs is evened out by their mean, spread and covariance (no
    score is used): generated images of five photographs say too little of how features vary with what is shown.
    """
    hyper = DETECTOR[kind]
    vectors = made.vectors[:, :READ] if kind == "nr" else made.differences
    targets = severities(made)
    basis = np.vstack([vectors[:: max(1, len(vectors) // 300)], natural]) if kind == "nr" else vectors
    standard = Standard(basis.mean(axis=0), basis.std(axis=0) + 1e-6, hyper.clip)
    arrays: dict[str, NDArray[Any]] = {}
    if kind == "nr":
        mix = _evening(standard.apply(natural), standard.apply(vectors))
        standard = replace(standard, mix=mix)
        arrays[f"{kind}_detector_mix"] = mix
    chosen = np.sort(np.random.default_rng(_SEED).choice(len(vectors), min(CENTRES, len(vectors)), replace=False))
    # Half precision is what ships, so the weights are fitted on it.
    shipped = vectors[chosen].astype(np.float16)
    z, centres = standard.apply(vectors), standard.apply(shipped.astype(np.float64))

    def kernel(one: Matrix, other: Matrix) -> Matrix:
        linear = hyper.linear * (one @ other.T) / one.shape[1]
        return np.asarray((1 - hyper.linear) * radial(one, other, hyper.width) + linear)

    cross = kernel(centres, z)
    offset = targets.mean(axis=0)
    system = cross @ cross.T + hyper.noise * kernel(centres, centres) + 1e-6 * np.eye(len(chosen))
    return arrays | {
        f"{kind}_detector_centre": standard.centre, f"{kind}_detector_spread": standard.spread,
        f"{kind}_detector_offset": offset, f"{kind}_detector_centres": shipped,
        f"{kind}_detector_weights": np.linalg.solve(system, cross @ (targets - offset)),
    }  # fmt: skip


def _evening(natural: Matrix, seen: Matrix) -> Matrix:
    """Return the F x F whitening of natural photographs, softened, scaled so that `seen` keeps unit variance."""
    values, axes = np.linalg.eigh(np.cov(natural.T))
    mix = (axes / np.sqrt(np.maximum(values, 0.0) + EVENING)) @ axes.T
    return np.asarray(mix * np.sqrt(mix.shape[0] / np.square(seen @ mix).sum(axis=1).mean()))


def grading(
    kind: str, shown: Table, quickstart: Table, natural: Matrix, believed: Callable[[str, Matrix], Matrix]
) -> list[float]:
    """Return the weights of `program.lms.perceptual.grading`, fitted on photographs left out in turn.

    Detectors are refitted on what is `shown` of the other photographs; `believed` does so for the quality regression:
    it takes a photograph's name and N x F rows of it and returns N means of a fit without that photograph. Spatial
    distortions have none of the categories and are not fitted on.
    """
    truth = severities(quickstart)
    found, believing, true = [], [], []
    for photograph in np.unique(shown.group):
        own: NDArray[np.bool_] = (quickstart.group == photograph) & (truth[:, 7] == 0)
        rows = (quickstart.vectors if kind == "nr" else quickstart.differences)[own]
        arrays = detector_arrays(kind, shown.only(shown.group != photograph), natural)
        found.append(detector_of(kind, arrays, DETECTOR[kind]).severities(rows)[:, :7])
        believing.append(believed(str(photograph), rows))
        true.append(truth[own, :7].max(axis=1))
    weights = grading_weights(np.vstack(found), np.concatenate(believing), np.concatenate(true))
    return [round(float(weight), 4) for weight in weights]
