"""How well the expert agrees with human scores on images it was not fitted on, with n, and what demos add."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from data.kadid import severity_of
from program.evaluation.metrics import calibration_error
from program.expert.answer.findings import reported, severity_word
from program.expert.judge import models, quality
from program.expert.judge.blend import Blend
from program.expert.store import Matrix
from program.expert.training.fitting import SEED, blend_of, normal_scores
from program.expert.training.tables import UNDISTORTED, Table, severities
from program.expert.training.teaching import Judged, without
from signatures.schemas import DISTORTION_CATEGORIES, SEVERITIES

__all__ = ("figures",)


def figures(
    arrays: Mapping[str, NDArray[Any]],
    settings: Mapping[str, Any],
    tables: Mapping[str, Table],
    images: Mapping[str, Judged],
) -> dict[str, Any]:
    """Return agreement on each split of `tables`, with n, and what demos add.

    `tables`: clive, live, quickstart, and distorted clive (`teaching.distorted_images`). `images`: what quality without
    a reference was fitted on, from which photographs are left out.
    """
    clive, live, quickstart = (tables[name] for name in ("clive", "live", "quickstart"))
    wide = {name: value.astype(np.float64) for name, value in arrays.items()}
    single, paired = (models.assembled(kind, wide, settings) for kind in ("nr", "fr"))
    found: dict[str, Any] = {}
    for name, table in tables.items():
        for split in ("validation", "test"):
            chosen = table.split == split
            found[f"{name} {split}, no reference"] = _agreement(
                _means(single, table.vectors[chosen]), table.labels[chosen]
            )
            if name != "clive":
                found[f"{name} {split}, with reference"] = _agreement(
                    _means(paired, table.differences[chosen]), table.labels[chosen]
                )
    found["live all, with reference (train included)"] = _agreement(_means(paired, live.differences), live.labels)
    found |= _left_out(tables, images, settings)
    found["demos from quickstart train, queries from its validation"] = _with_demos(single, quickstart, quickstart)
    found["demos from clive validation, queries the rest of it"] = _with_demos(single, clive, clive, own=True)
    for name in ("quickstart", "distorted clive"):
        for split in ("validation", "test"):
            for kind, model in (("no reference", single), ("with reference", paired)):
                found[f"detection on {name} {split}, {kind}"] = _detection(model, tables[name], kind, split)
    return found


def _means(model: models.QualityModel, vectors: Matrix) -> Matrix:
    return model.regression.project(vectors).mean


def _agreement(predicted: Matrix, truth: Matrix) -> dict[str, Any]:
    """Return SRCC with its 95 % interval (Bonett & Wright 2000), RMSE and n."""
    srcc = float(stats.spearmanr(predicted, truth).statistic)
    reach = 1.96 * np.sqrt((1 + srcc**2 / 2) / (len(truth) - 3))
    return {
        "srcc": round(srcc, 4),
        "interval": [round(float(np.tanh(np.arctanh(srcc) + way * reach)), 3) for way in (-1, 1)],
        "rmse": round(float(np.sqrt(np.mean((predicted - truth) ** 2))), 4), "n": len(truth),
    }  # fmt: skip


def _calibration(blend: Blend, scales: Matrix, vectors: Matrix, labels: Matrix) -> list[tuple[float, float]]:
    """Return for each image the probability of its likeliest level, and whether that is the rounded label (1 or 0)."""
    found = []
    for vector, label in zip(vectors, labels, strict=True):
        seen = blend.project(vector)
        deviation = quality.deviation_of(blend, scales, seen, float(blend.covariance(seen, seen)[0, 0]))
        masses = quality.level_probabilities(float(np.clip(seen.mean[0], 0.6, 5.4)), deviation)
        truth = int(np.clip(np.floor(label + 0.5), 1, 5))
        found.append((max(masses), float(int(np.argmax(masses)) + 1 == truth)))
    return found


def _left_out(
    tables: Mapping[str, Table], images: Mapping[str, Judged], settings: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """Refit five times, each without a fifth of CLIVE train and one of the quickstart's train photographs."""
    clive, quickstart = tables["clive"], tables["quickstart"]
    chosen = np.flatnonzero(clive.split == "train")
    order = np.random.default_rng(SEED).permutation(chosen)
    photographs = np.unique(images["generated"].group)
    predicted, by_photograph, stated = np.zeros(len(clive.labels)), [], []
    for fold, photograph in enumerate(photographs):
        out = order[fold :: len(photographs)]
        others = without(images, np.append(clive.group[out], photograph))
        blend, *_ = blend_of(others, normal_scores(others["photographs"].vectors))
        predicted[out] = blend.project(clive.vectors[out]).mean
        stated += _calibration(blend, np.array(settings["nr"]["error_scales"]), clive.vectors[out], clive.labels[out])
        own = quickstart.group == photograph
        by_photograph.append(_agreement(blend.project(quickstart.vectors[own]).mean, quickstart.labels[own]))
    confidence, right = zip(*stated, strict=True)
    return {
        "clive train, five folds": {
            **_agreement(predicted[chosen], clive.labels[chosen]),
            "level_calibration_error": round(calibration_error(right, confidence), 4),
        },
        "quickstart train, each photograph left out": {
            "srcc": round(float(np.mean([a["srcc"] for a in by_photograph])), 4),
            "srcc_least": min(a["srcc"] for a in by_photograph), "n": sum(int(a["n"]) for a in by_photograph),
        },
    }  # fmt: skip


def _with_demos(model: models.QualityModel, source: Table, target: Table, *, own: bool = False) -> dict[str, Any]:
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
            evidence = quality.weigh(model, quality.look(model, source.vectors[drawn]), source.labels[drawn])
            seen = [quality.look(model, vector) for vector in target.vectors[queries]]
            after = np.array([quality.believe(model, one, evidence).mean for one in seen])
            before = _means(model, target.vectors[queries])
            truth = target.labels[queries]
            gains.append([_agreement(by, truth)[key] for by in (before, after) for key in ("srcc", "rmse")])
        means = np.mean(gains, axis=0).round(4).tolist()
        found[f"{count} demos"] = dict(zip(("srcc_prior", "rmse_prior", "srcc", "rmse"), means, strict=True))
    return found


def _detection(model: models.QualityModel, table: Table, kind: str, split: str) -> dict[str, Any]:
    """F1 per category at the shipped threshold; truth is a mean score below 3.5 under that category's distortion.

    Spatial distortions are left out. Severities are compared with the truth as words (of the strongest category, in the
    expert's steps and in those of KADID-10k's scale) and per category, where it is the truth, as a mean absolute error.
    """
    truths = severities(table)
    chosen = (table.split == split) & (truths[:, 7] == 0)
    seen = quality.look(model, (table.vectors if kind == "no reference" else table.differences)[chosen])
    grades, truth = quality.graded(model, seen), truths[chosen][:, :7]
    names = reported(seen.severities[:, :7], grades)
    scores, errors = {}, {}
    for i, category in enumerate(DISTORTION_CATEGORIES):
        yes, said = truth[:, i] > UNDISTORTED - 3.5, names[:, i]
        # A slight true distortion that is reported counts neither way.
        yes_or_slight = truth[:, i] > 0.1
        hits, false = int((yes & said).sum()), int((said & ~yes_or_slight).sum())
        missed = int((yes & ~said).sum())
        scores[category] = round(2 * hits / max(2 * hits + false + missed, 1), 3)
        own = truth[:, i] > 0
        errors[category] = {"error": round(float(np.abs(grades - truth)[own, i].mean()), 3), "n": int(own.sum())}
    strongest = [SEVERITIES.index(severity_word(float(value))) for value in grades.max(axis=1)]
    own_steps = [SEVERITIES.index(severity_word(float(value))) for value in truth.max(axis=1)]
    scale = [SEVERITIES.index(severity_of(float(label))) for label in table.labels[chosen]]
    return {
        "f1": scores, "macro_f1": round(float(np.mean(list(scores.values()))), 3), "n": int(chosen.sum()),
        "severity_error": errors, "severity_weighted_kappa": _kappa(own_steps, strongest, table.group[chosen]),
        "severity_weighted_kappa_on_its_scale": _kappa(scale, strongest, table.group[chosen]),
    }  # fmt: skip


def _kappa(truth: list[int], found: list[int], group: NDArray[np.str_]) -> dict[str, Any]:
    """Return the quadratic weighted kappa with its 95 % interval (2,000 draws of images within each photograph)."""
    pairs = np.array([truth, found])
    rng, members = np.random.default_rng(SEED), [np.flatnonzero(group == name) for name in np.unique(group)]
    drawn = []
    for _ in range(2000):
        rows = np.concatenate([rng.choice(own, len(own)) for own in members])
        drawn.append(_quadratic(*pairs[:, rows]))
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {"kappa": round(_quadratic(*pairs), 3), "interval": [round(float(low), 3), round(float(high), 3)]}


def _quadratic(truth: NDArray[Any], found: NDArray[Any]) -> float:
    """Return Cohen's kappa with quadratic weights: 1 - squared error over that of chance (Cohen 1968)."""
    chance = np.mean((truth[:, None] - found[None]) ** 2)
    return float(1 - np.mean((truth - found) ** 2) / chance) if chance else 1.0
