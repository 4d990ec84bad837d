"""What `train` does: images into tables of features, tables into the expert's arrays, arrays into held-out figures."""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import stats

from data.distortions import CATEGORIES, IDENTITIES, distort, distortions_for, generator_for
from data.kadid import level_mean
from data.manifest import Sample, read_manifest
from data.photographs import LONGEST_SIDE_PX, PHOTOGRAPHS, load_photograph
from program.images import IMAGES
from program.lms.perceptual import quality
from program.lms.perceptual.features import measure
from program.lms.perceptual.reference import compare
from program.lms.perceptual.regression import Examples, Hyper, Matrix, Regression, Standard, radial
from signatures.schemas import DISTORTION_CATEGORIES

__all__ = ("Table", "figures", "fit", "generated_images", "quickstart_images", "save_arrays", "scored_images")

UNDISTORTED = 4.6
"""KADID-10k's mean score of its identities (mean shift and contrast change at level 3, colour saturation at 1)."""
SOURCES, PER_SOURCE, SEED = 60, 26, 7
QUALITY = {"nr": Hyper(0.7, 0.15, 0.3, 5.0), "fr": Hyper(3.0, 0.3, 0.1, 3.5)}
DETECTOR = {"nr": Hyper(0.7, 0.2, 0.1, 5.0), "fr": Hyper(0.7, 0.2, 0.1, 5.0)}
CENTRES = 500


@dataclass(frozen=True)
class Table:
    """N images: features, differences (zeros without reference), labels 1..5, their split, distortion and level."""

    vectors: Matrix
    differences: Matrix
    labels: Matrix
    split: NDArray[np.str_]
    distortion: NDArray[np.str_]

    def count(self, split: str) -> int:
        """Return how many images a split has."""
        return int((self.split == split).sum())


def _table(rows: list[tuple[Matrix, Matrix, float, str, str]]) -> Table:
    vectors, differences, labels, split, distortion = zip(*rows, strict=True)
    return Table(np.array(vectors), np.array(differences), np.array(labels), np.array(split), np.array(distortion))


def scored_images(manifest: Path) -> Table:
    """Measure every image of a manifest that has a human score."""
    rows = []
    for sample in read_manifest(manifest):
        if sample.quality is None:
            continue
        pixels = _pixels(sample.image)
        # Without a reference the row of differences stays zero; nothing reads it.
        reference = _pixels(sample.reference) if sample.reference else pixels[:16, :16]
        difference = compare(pixels, reference).vector if sample.reference else compare(reference, reference).vector
        rows.append((measure(pixels).vector, difference, sample.quality, str(sample.split), str(sample.distortion)))
    return _table(rows)


def _pixels(path: Path) -> NDArray[np.uint8]:
    return IMAGES.pixels(IMAGES.add(path))


def generated_images(clive_manifest: Path) -> Table:
    """Distort the best-scored CLIVE train photographs and the LIVE train references, at random levels."""
    train = [s for s in read_manifest(clive_manifest) if s.split == "train"]
    best: list[Sample] = sorted(train, key=lambda s: (-(s.quality or 0.0), s.id))[:SOURCES]
    live = read_manifest(clive_manifest.parent.parent / "live" / "manifest.jsonl")
    references = sorted({s.reference for s in live if s.split == "train" and s.reference})
    sources = [(s.id, s.image) for s in best] + [(r.stem, r) for r in references]
    rng = np.random.default_rng(SEED)
    rows = []
    for name, path in sources:
        pixels = _small(_pixels(path))
        rows.append((measure(pixels).vector, compare(pixels, pixels).vector, UNDISTORTED, "train", "none"))
        every = [(d, i) for d in distortions_for(pixels) for i in range(1, 6) if (d, i) not in IDENTITIES]
        chosen = rng.permutation(len(every))[:PER_SOURCE]
        rows += [_distorted(pixels, name, *every[i], split="train") for i in chosen]
    return _table(rows)


def quickstart_images() -> Table:
    """Measure every distortion and level of the quickstart's photographs."""
    rows = []
    for name, photograph in PHOTOGRAPHS.items():
        pixels, _ = load_photograph(name)
        for distortion in distortions_for(pixels):
            rows += [_distorted(pixels, name, distortion, i, split=photograph.split) for i in range(1, 6)]
    return _table(rows)


def _distorted(
    pixels: NDArray[np.uint8], name: str, distortion: str, level: int, *, split: str
) -> tuple[Matrix, Matrix, float, str, str]:
    made = distort(pixels, distortion, level, generator_for(name, distortion, level))
    mos = level_mean(distortion, level).mos
    return measure(made).vector, compare(made, pixels).vector, mos, split, distortion


def _small(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    scale = min(1.0, LONGEST_SIDE_PX / max(pixels.shape[:2]))
    size = (round(pixels.shape[1] * scale), round(pixels.shape[0] * scale))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))


def fit(clive: Table, live: Table, made: Table, quickstart: Table) -> tuple[dict[str, Matrix], dict[str, Any]]:
    """Return the expert's arrays and the settings that go with them."""
    c, lv, q = clive.split == "train", live.split == "train", quickstart.split == "train"
    training = {
        "nr": (np.vstack([clive.vectors[c], live.vectors[lv]]), np.r_[clive.labels[c], live.labels[lv]]),
        "fr": (
            np.vstack([live.differences[lv], quickstart.differences[q]]),
            np.r_[live.labels[lv], quickstart.labels[q]],
        ),
    }
    arrays: dict[str, Matrix] = {}
    settings: dict[str, Any] = {}
    for kind, (vectors, labels) in training.items():
        basis = clive.vectors[c] if kind == "nr" else vectors
        centre, spread = basis.mean(axis=0), basis.std(axis=0) + 1e-6
        arrays |= {
            f"{kind}_vectors": vectors,
            f"{kind}_labels": labels,
            f"{kind}_centre": centre,
            f"{kind}_spread": spread,
        }
        arrays |= _detector(kind, made)
        standard = Standard(centre, spread, QUALITY[kind].clip)
        settings[kind] = {
            "quality": asdict(QUALITY[kind]), "detector": asdict(DETECTOR[kind]),
            "error_scale": round(_error_scale(vectors, labels, standard, QUALITY[kind]), 4),
        }  # fmt: skip
    arrays = {name: value.astype(np.float32) for name, value in arrays.items()}
    detector = quality.assembled("nr", {n: a.astype(np.float64) for n, a in arrays.items()}, settings).detector
    severities = detector.severities(clive.vectors[c])[:, :7]
    settings["nr"]["quantiles"] = {
        category: [round(float(v), 3) for v in np.percentile(severities[:, i], range(0, 101, 10))]
        for i, category in enumerate(DISTORTION_CATEGORIES)
    }
    return arrays, settings


def _detector(kind: str, made: Table) -> dict[str, Matrix]:
    """Fit severities on generated images by a sparse (subset of regressors) Gaussian process."""
    hyper = DETECTOR[kind]
    vectors = made.vectors if kind == "nr" else made.differences
    targets = _severities(made)
    centre, spread = vectors.mean(axis=0), vectors.std(axis=0) + 1e-6
    z = Standard(centre, spread, hyper.clip).apply(vectors)
    chosen = np.sort(np.random.default_rng(SEED).choice(len(z), min(CENTRES, len(z)), replace=False))

    def kernel(one: Matrix, other: Matrix) -> Matrix:
        linear = hyper.linear * (one @ other.T) / one.shape[1]
        return np.asarray((1 - hyper.linear) * radial(one, other, hyper.width) + linear)

    cross = kernel(z[chosen], z)
    offset = targets.mean(axis=0)
    system = cross @ cross.T + hyper.noise * kernel(z[chosen], z[chosen]) + 1e-6 * np.eye(len(chosen))
    return {
        f"{kind}_detector_centre": centre, f"{kind}_detector_spread": spread, f"{kind}_detector_offset": offset,
        f"{kind}_detector_centres": vectors[chosen],
        f"{kind}_detector_weights": np.linalg.solve(system, cross @ (targets - offset)),
    }  # fmt: skip


def _severities(table: Table) -> Matrix:
    targets = np.zeros((len(table.labels), 8))
    for row, (distortion, mos) in enumerate(zip(table.distortion, table.labels, strict=True)):
        if distortion in CATEGORIES:
            category = CATEGORIES[str(distortion)]
            column = DISTORTION_CATEGORIES.index(category) if category else 7
            targets[row, column] = max(UNDISTORTED - mos, 0.0)
    return targets


def _error_scale(vectors: Matrix, labels: Matrix, standard: Standard, hyper: Hyper) -> float:
    """Return the mean of squared error over expected variance, by ten folds."""
    order = np.random.default_rng(SEED).permutation(len(labels))
    ratios = []
    for fold in range(10):
        out, rest = order[fold::10], np.setdiff1d(order, order[fold::10])
        model = Regression(vectors[rest], labels[rest], standard, hyper)
        expected = np.diag(model.covariance(vectors[out], vectors[out])) + hyper.noise
        ratios += list((model.mean(vectors[out]) - labels[out]) ** 2 / expected)
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


def figures(
    arrays: Mapping[str, Matrix], settings: Mapping[str, Any], clive: Table, live: Table, quickstart: Table
) -> dict[str, Any]:
    """Return agreement on each split, with n, and what demos add on data not used for fitting."""
    wide = {name: value.astype(np.float64) for name, value in arrays.items()}
    single, paired = (quality.assembled(kind, wide, settings) for kind in ("nr", "fr"))
    found: dict[str, Any] = {}
    for name, table in (("clive", clive), ("live", live), ("quickstart", quickstart)):
        for split in ("validation", "test"):
            chosen = table.split == split
            found[f"{name} {split}, no reference"] = _agreement(
                single.regression.mean(table.vectors[chosen]), table.labels[chosen]
            )
            if name != "clive":
                found[f"{name} {split}, with reference"] = _agreement(
                    paired.regression.mean(table.differences[chosen]), table.labels[chosen]
                )
    found["live all, with reference (train included)"] = _agreement(
        paired.regression.mean(live.differences), live.labels
    )
    found["clive train, ten folds"] = _folds(clive, live)
    found["demos from quickstart train, queries from its validation"] = _with_demos(single, quickstart, quickstart)
    found["demos from clive validation, queries the rest of it"] = _with_demos(single, clive, clive, own=True)
    for kind, model in (("no reference", single), ("with reference", paired)):
        found[f"detection on quickstart test, {kind}"] = _detection(model, quickstart, kind)
    return found


def _agreement(predicted: Matrix, truth: Matrix) -> dict[str, float]:
    return {
        "srcc": round(float(stats.spearmanr(predicted, truth).statistic), 4),
        "rmse": round(float(np.sqrt(np.mean((predicted - truth) ** 2))), 4),
        "n": len(truth),
    }


def _folds(clive: Table, live: Table) -> dict[str, float]:
    chosen, others = np.flatnonzero(clive.split == "train"), np.flatnonzero(live.split == "train")
    order = np.random.default_rng(SEED).permutation(chosen)
    centre, spread = clive.vectors[chosen].mean(axis=0), clive.vectors[chosen].std(axis=0) + 1e-6
    standard = Standard(centre, spread, QUALITY["nr"].clip)
    predicted = np.zeros(len(clive.labels))
    for fold in range(10):
        out, rest = order[fold::10], np.setdiff1d(order, order[fold::10])
        vectors = np.vstack([clive.vectors[rest], live.vectors[others]])
        model = Regression(vectors, np.r_[clive.labels[rest], live.labels[others]], standard, QUALITY["nr"])
        predicted[out] = model.mean(clive.vectors[out])
    return _agreement(predicted[chosen], clive.labels[chosen])


def _with_demos(model: quality.QualityModel, source: Table, target: Table, *, own: bool = False) -> dict[str, Any]:
    """Mean SRCC and RMSE over 20 random draws of 4, 8 and 16 demos, beside the prior's on the same queries."""
    rng = np.random.default_rng(SEED)
    pool = np.flatnonzero(source.split == ("validation" if own else "train"))
    every = np.flatnonzero(target.split == "validation")
    found: dict[str, Any] = {}
    for count in (4, 8, 16):
        gains = []
        for _ in range(20):
            drawn = rng.choice(pool, count, replace=False)
            queries = np.setdiff1d(every, drawn) if own else every
            examples = Examples(
                source.vectors[drawn], source.labels[drawn], model.detector.severities(source.vectors[drawn])
            )
            after = np.array([quality.believe(model, v, examples).mean for v in target.vectors[queries]])
            before = model.regression.mean(target.vectors[queries])
            truth = target.labels[queries]
            gains.append([*list(_agreement(before, truth).values())[:2], *list(_agreement(after, truth).values())[:2]])
        means = np.mean(gains, axis=0).round(4).tolist()
        found[f"{count} demos"] = dict(zip(("srcc_prior", "rmse_prior", "srcc", "rmse"), means, strict=True))
    return found


def _detection(model: quality.QualityModel, table: Table, kind: str) -> dict[str, Any]:
    """F1 per category at the shipped threshold; truth is a mean score below 3.5 under that category's distortion."""
    from program.lms.perceptual.findings import PRESENT

    chosen = table.split == "test"
    vectors = table.vectors if kind == "no reference" else table.differences
    found = model.detector.severities(vectors[chosen])[:, :7]
    truth = _severities(table)[chosen][:, :7]
    scores = {}
    for i, category in enumerate(DISTORTION_CATEGORIES):
        yes, said = truth[:, i] > UNDISTORTED - 3.5, found[:, i] >= PRESENT
        # A slight true distortion that is reported counts neither way.
        yes_or_slight = truth[:, i] > 0.1
        hits, false = int((yes & said).sum()), int((said & ~yes_or_slight).sum())
        missed = int((yes & ~said).sum())
        scores[category] = round(2 * hits / max(2 * hits + false + missed, 1), 3)
    return {"f1": scores, "macro_f1": round(float(np.mean(list(scores.values()))), 3), "n": int(chosen.sum())}
