"""Tables of features into the expert's arrays and the settings that go with them."""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from program.lms.perceptual import quality
from program.lms.perceptual.regression import Hyper, Matrix, Regression, Standard, radial
from program.lms.perceptual.tables import Table, severities
from signatures.schemas import DISTORTION_CATEGORIES

__all__ = ("QUALITY", "SEED", "fit", "save_arrays", "scale_aligned")

SEED = 7
QUALITY = {"nr": Hyper(0.7, 0.3, 0.4, 3.0), "fr": Hyper(3.0, 0.3, 0.1, 3.5)}
"""Chosen by ten folds of CLIVE train and by CLIVE validation (nr), LIVE and quickstart validation (fr)."""
DETECTOR = {"nr": Hyper(1.0, 0.2, 0.03, 5.0), "fr": Hyper(0.7, 0.2, 0.03, 5.0)}
"""Chosen by the F1 on the quickstart's validation photographs and on train photographs left out one by one."""
CENTRES = 1000
EVENING = 0.05
"""Variance added to every direction before natural photographs are evened out."""
_SHIFTS, _SCALES = (-0.9, -0.6, -0.3, 0.0), (0.6, 0.8, 1.0)


def fit(clive: Table, live: Table, made: Table, quickstart: Table) -> tuple[dict[str, Matrix], dict[str, Any]]:
    """Return the expert's arrays and the settings that go with them; `made` is for the detectors."""
    c, lv, q = clive.split == "train", live.split == "train", quickstart.split == "train"
    natural = clive.vectors[c]
    standard = _standard(natural, QUALITY["nr"])
    alignment = _alignment(natural, clive.labels[c], live.vectors[lv], live.labels[lv], standard)
    aligned = scale_aligned(live.labels[lv], clive.labels[c], **alignment)
    both = np.vstack([live.differences[lv], quickstart.differences[q]])
    training = {
        "nr": (np.vstack([natural, live.vectors[lv]]), np.r_[clive.labels[c], aligned], standard),
        "fr": (both, np.r_[live.labels[lv], quickstart.labels[q]], _standard(both, QUALITY["fr"])),
    }
    arrays: dict[str, Matrix] = {}
    settings: dict[str, Any] = {}
    for kind, (vectors, labels, scale) in training.items():
        arrays |= {
            f"{kind}_vectors": vectors, f"{kind}_labels": labels,
            f"{kind}_centre": scale.centre, f"{kind}_spread": scale.spread,
        }  # fmt: skip
        arrays |= _detector(kind, made, natural)
        settings[kind] = {
            "quality": asdict(QUALITY[kind]), "detector": asdict(DETECTOR[kind]),
            "error_scale": round(_error_scale(vectors, labels, scale, QUALITY[kind]), 4),
        }  # fmt: skip
    arrays = {name: value.astype(np.float32) for name, value in arrays.items()}
    detector = quality.assembled("nr", {n: a.astype(np.float64) for n, a in arrays.items()}, settings).detector
    found = detector.severities(natural)[:, :7]
    settings["nr"]["live_labels"] = alignment
    settings["nr"]["quantiles"] = {
        category: [round(float(v), 3) for v in np.percentile(found[:, i], range(0, 101, 10))]
        for i, category in enumerate(DISTORTION_CATEGORIES)
    }
    return arrays, settings


def _standard(vectors: Matrix, hyper: Hyper) -> Standard:
    return Standard(vectors.mean(axis=0), vectors.std(axis=0) + 1e-6, hyper.clip)


def scale_aligned(labels: Matrix, to: Matrix, *, shift: float, scale: float) -> Matrix:
    """Bring LIVE's labels to the scale of CLIVE's: their spread times `scale` around CLIVE's mean plus `shift`.

    100 - DMOS compares with the undistorted original, MOS with all that people know: the same number means less there.
    """
    return np.asarray(float(np.mean(to)) + shift + scale * (labels - float(np.mean(labels))))


def _alignment(natural: Matrix, labels: Matrix, more: Matrix, their: Matrix, standard: Standard) -> dict[str, float]:
    """Choose shift and scale of the LIVE labels: least squared error on CLIVE train over ten folds."""
    order = np.random.default_rng(SEED).permutation(len(labels))

    def error(shift: float, scale: float) -> float:
        aligned = scale_aligned(their, labels, shift=shift, scale=scale)
        missed = 0.0
        for fold in range(10):
            out, rest = order[fold::10], np.setdiff1d(order, order[fold::10])
            model = Regression(
                np.vstack([natural[rest], more]), np.r_[labels[rest], aligned], standard, QUALITY["nr"]
            )  # fmt: skip
            missed += float(((model.project(natural[out]).mean - labels[out]) ** 2).sum())
        return missed

    shift, scale = min(((a, b) for a in _SHIFTS for b in _SCALES), key=lambda pair: error(*pair))
    return {"shift": shift, "scale": scale}


def _detector(kind: str, made: Table, natural: Matrix) -> dict[str, Matrix]:
    """Fit severities on generated images by a sparse (subset of regressors) Gaussian process.

    Without reference, what varies between natural photographs is evened out by their mean, spread and covariance (no
    score is used): generated images of five photographs say too little of how features vary with what is shown.
    """
    hyper = DETECTOR[kind]
    vectors = made.vectors if kind == "nr" else made.differences
    targets = severities(made)
    basis = np.vstack([vectors[:: max(1, len(vectors) // 300)], natural]) if kind == "nr" else vectors
    standard = _standard(basis, hyper)
    arrays: dict[str, Matrix] = {}
    if kind == "nr":
        mix = _evening(standard.apply(natural), standard.apply(vectors))
        standard = replace(standard, mix=mix)
        arrays[f"{kind}_detector_mix"] = mix
    z = standard.apply(vectors)
    chosen = np.sort(np.random.default_rng(SEED).choice(len(z), min(CENTRES, len(z)), replace=False))

    def kernel(one: Matrix, other: Matrix) -> Matrix:
        linear = hyper.linear * (one @ other.T) / one.shape[1]
        return np.asarray((1 - hyper.linear) * radial(one, other, hyper.width) + linear)

    cross = kernel(z[chosen], z)
    offset = targets.mean(axis=0)
    system = cross @ cross.T + hyper.noise * kernel(z[chosen], z[chosen]) + 1e-6 * np.eye(len(chosen))
    return arrays | {
        f"{kind}_detector_centre": standard.centre, f"{kind}_detector_spread": standard.spread,
        f"{kind}_detector_offset": offset, f"{kind}_detector_centres": vectors[chosen],
        f"{kind}_detector_weights": np.linalg.solve(system, cross @ (targets - offset)),
    }  # fmt: skip


def _evening(natural: Matrix, seen: Matrix) -> Matrix:
    """Return the F x F whitening of natural photographs, softened, scaled so that `seen` keeps unit variance."""
    values, axes = np.linalg.eigh(np.cov(natural.T))
    mix = (axes / np.sqrt(np.maximum(values, 0.0) + EVENING)) @ axes.T
    return np.asarray(mix * np.sqrt(mix.shape[0] / np.square(seen @ mix).sum(axis=1).mean()))


def _error_scale(vectors: Matrix, labels: Matrix, standard: Standard, hyper: Hyper) -> float:
    """Return the mean of squared error over expected variance, by ten folds."""
    order = np.random.default_rng(SEED).permutation(len(labels))
    ratios = []
    for fold in range(10):
        out, rest = order[fold::10], np.setdiff1d(order, order[fold::10])
        model = Regression(vectors[rest], labels[rest], standard, hyper)
        seen = model.project(vectors[out])
        ratios += list((seen.mean - labels[out]) ** 2 / (np.diag(model.covariance(seen, seen)) + hyper.noise))
    return float(np.mean(ratios))


def save_arrays(path: Path, arrays: Mapping[str, Matrix]) -> None:
    """Write a compressed npz whose bytes depend on the arrays alone (no time stamps)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(arrays):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(arrays[name]), allow_pickle=False)
            archive.writestr(
                zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), buffer.getvalue(), zipfile.ZIP_DEFLATED
            )
