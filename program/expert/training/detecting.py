"""Fit what finds distortions: the detectors of each category's severity.

Fitted on images generated from the quickstart's train photographs and, without a reference, on what the detector with
one says of distorted natural photographs (`teaching.py`). Of natural photographs no score is used.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from program.expert.judge.regression import Hyper, radial
from program.expert.measure.features import FEATURE_NAMES
from program.expert.store import Matrix, as_stored
from program.expert.training.regressions import sparse_weights, standard_of
from program.expert.training.tables import Table, severities

__all__ = ("DETECTOR", "GRADING", "READ", "detector_arrays")

READ = next(i for i, name in enumerate(FEATURE_NAMES) if name.startswith("local_"))
"""How many features the detectors read. With local sharpness, patterns or codes too they tell contents apart, not
distortions: the F1 on photographs left out one by one falls from 0.74 to 0.69 and less."""
DETECTOR = {"nr": Hyper(0.5, 0.2, 0.03, 5.0), "fr": Hyper(0.7, 0.2, 0.03, 4.0)}
"""Chosen by F1 and kappa on the quickstart's validation photographs, on train photographs left out one by one, and on
distorted versions of CLIVE images on which they were not fitted (fr: as `fitting.PAIRED`; nr: of the 40 validation
images people liked best)."""
GRADING = {"nr": (1.0, -0.4, 1.24), "fr": (0.5, -0.5, 2.3)}
"""Weights of the strongest severity, of the quality (0.6 .. 4.6), and a constant. Without a reference: a severity is
0.4 higher for each level that the quality is below 3.1; with one: the mean of the severity and of how far the quality
is below 4.6, an undistorted image's. Chosen by the words' kappa on the quickstart's validation photographs, on its
train photographs left out of detectors and regression in turn, and on distorted CLIVE validation images (nr) or train
images (fr), on which neither was fitted: the kappa is within 0.02 for weights of 0.3 to 0.5. Least squares on the
photographs left out gives words too strong on images of poor quality."""
CENTRES = {"nr": 1500, "fr": 1000}
EVENING = 0.05
"""Variance added to every direction before natural photographs are evened out."""
_SEED = 7


def detector_arrays(
    kind: str, made: Table, natural: Matrix, taught: tuple[Matrix, Matrix] | None = None
) -> dict[str, NDArray[Any]]:
    """Fit severities on generated images, and on `taught` features and severities, by a sparse Gaussian process.

    Without reference, what varies between natural photographs is evened out by their mean, spread and covariance (no
    score is used): generated images of five photographs say too little of how features vary with what is shown.
    Sparse: subset of regressors (Quinonero-Candela & Rasmussen 2005).
    """
    hyper = DETECTOR[kind]
    vectors, targets = made.vectors if kind == "nr" else made.differences, severities(made)
    if taught is not None:
        vectors, targets = np.vstack([vectors, taught[0]]), np.vstack([targets, taught[1]])
    vectors = vectors[:, :READ]
    basis = np.vstack([vectors[:: max(1, len(vectors) // 300)], natural]) if kind == "nr" else vectors
    standard = standard_of(basis, hyper.clip)
    arrays: dict[str, NDArray[Any]] = {}
    if kind == "nr":
        mix = _evening(standard.apply(natural), standard.apply(vectors))
        standard = replace(standard, mix=mix)
        arrays[f"{kind}_detector_mix"] = mix
    chosen = np.sort(np.random.default_rng(_SEED).choice(len(vectors), min(CENTRES[kind], len(vectors)), replace=False))
    # Half precision is what ships, so the weights are fitted on it.
    shipped = as_stored(vectors[chosen])
    z, centres = standard.apply(vectors), standard.apply(shipped)

    def kernel(one: Matrix, other: Matrix) -> Matrix:
        linear = hyper.linear * (one @ other.T) / one.shape[1]
        return np.asarray((1 - hyper.linear) * radial(one, other, hyper.width) + linear)

    cross = kernel(centres, z)
    offset = targets.mean(axis=0)
    return arrays | {
        f"{kind}_detector_centre": standard.centre, f"{kind}_detector_spread": standard.spread,
        f"{kind}_detector_offset": offset, f"{kind}_detector_centres": shipped.astype(np.float16),
        f"{kind}_detector_weights": sparse_weights(
            cross, kernel(centres, centres), targets - offset, hyper.noise
        ),
    }  # fmt: skip


def _evening(natural: Matrix, seen: Matrix) -> Matrix:
    """Return the F x F whitening of natural photographs, softened, scaled so that `seen` keeps unit variance."""
    values, axes = np.linalg.eigh(np.cov(natural.T))
    mix = (axes / np.sqrt(np.maximum(values, 0.0) + EVENING)) @ axes.T
    return np.asarray(mix * np.sqrt(mix.shape[0] / np.square(seen @ mix).sum(axis=1).mean()))
