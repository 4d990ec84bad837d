"""The expert's card: what it was fitted on, how well it agrees with people on images left out, and usual images."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.training.fitting import Fitted
from benchmarks.training.images import Table
from program.evaluation.intervals import interval
from program.expert.answer.findings import reported_categories
from program.expert.judge.quality import OUTPUTS, SEVERITIES, Model
from program.expert.judge.views import COMPOSITES, PROPERTIES, composite, reading
from program.expert.measure.features import FEATURE_NAMES
from program.expert.store import Matrix
from signatures.schemas import DISTORTION_CATEGORIES

__all__ = ("data_card", "detection", "figures", "population")

QUANTILES = tuple(range(0, 101, 5))
"""Percentages at which a property's distribution is kept."""
SLIGHT, PLAIN = 0.1, 1.1
"""Severities above which a distortion can be seen, and from which it has to be found."""
BAD, PRECISION = 2.5, 0.8
"""What a gate has to keep out, and how many of those it keeps out have to be like that."""


def data_card(learned: Table, paired: Table) -> dict[str, str]:
    """Return what was learnt from, without references and with them, in words."""
    count = {source: int((learned.source == source).sum()) for source in np.unique(learned.source)}
    return {
        "quality without reference": f"people's scores of {count['photographs']} CLIVE train images, each also "
        f"at half its size, and {count['live']} of LIVE; KADID-10k's mean scores on {count['distorted']} distorted "
        "versions of CLIVE train photographs",
        "order without reference": f"{count.get('rising', 0)} images of these photographs under distortions that get "
        f"stronger, without labels: both scores have to fall; {count.get('beside', 0)} halves and "
        f"{count.get('tiles', 0)} tiles of them: distorted ones have to score lower than one as it is",
        "quality with reference": "the same without photographs as they were taken, and "
        f"{int((paired.source == 'distorted').sum()) - count['distorted']} more versions with two distortions",
        "distortions": f"the distorted versions and halves, and {count['undistorted']} of the same photographs as they "
        "were; severity is 4.6 less KADID-10k's mean score of that distortion and level, or of the nearest it has",
        "never used": "BIQ2021, KADID-10k's images, validation and test splits (validation chose the settings)",
    }


def figures(
    learned: Table, held: Table, alone: Fitted, paired: Fitted, models: Mapping[str, Model], by_tool: Matrix
) -> dict[str, Any]:
    """Return agreement with people out of fold and on validation images; `by_tool` are the tool's predictions."""
    beside = held.only(held.source != "photographs")
    seen = models["nr"].look(np.hstack([held.spreads, held.features]))
    against = models["fr"].look(np.hstack([beside.moved, beside.differences]))
    judged = {
        "{}, no reference, ten folds": (learned, alone.quality),
        "{}, with reference, ten folds": (paired.table, paired.quality),
        "{} validation, no reference": (held, seen.quality),
        "{} validation, with reference": (beside, against.quality),
        "the tool alone, {}, ten folds": (learned, by_tool),
    }
    found = {
        name.format(source): _agreement(table, table.source == source, quality)
        for name, (table, quality) in judged.items()
        for source in ("photographs", "live", "distorted")
        if source in table.source
    }
    for name, table, severities in (("no", held, seen.severities), ("with", beside, against.severities)):
        rows = np.isin(table.source, ("distorted", "undistorted"))
        told = detection(severities[rows], table.severities[rows], paired=name == "with")
        found[f"detection, validation, {name} reference"] = told
    left_out = ((learned, alone.quality), (held, seen.quality))
    photographs = [np.stack([t.scores, quality])[:, t.source == "photographs"] for t, quality in left_out]
    return found | {
        "interval": _coverage(models["nr"], learned, alone),
        "gate, train left out and validation": _gate(*np.hstack(photographs)),
    }


def _agreement(table: Table, rows: Any, predicted: Matrix) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for metric in ("srcc", "rmse"):
        figure = interval(metric, table.scores[rows], predicted[rows], groups=table.group[rows].tolist())
        found[metric] = [round(float(v), 3) for v in (figure.value, figure.low, figure.high) if v is not None]
    return found | {"n": int(rows.sum())}


def _coverage(model: Model, learned: Table, alone: Fitted) -> dict[str, Any]:
    """Return how often people's score lies within the stated 95 % interval, and how wide that is, out of fold."""
    rows = learned.source == "photographs"
    predicted, scores = alone.quality[rows], learned.scores[rows]
    reach = 1.96 * model.error(predicted)
    inside = np.abs(predicted - scores) <= reach
    return {"covered": round(float(inside.mean()), 3), "width": round(float(2 * reach.mean()), 2), "n": len(scores)}


def _gate(scores: Matrix, predicted: Matrix) -> dict[str, Any]:
    """Return the share of bad photographs below a threshold of the prediction at which `PRECISION` of those below are.

    With a 95 % interval, by a bootstrap over photographs.
    """

    def share(rows: Any) -> float:
        bad = scores[rows][np.argsort(predicted[rows], kind="stable")] < BAD
        hits = np.cumsum(bad)
        enough = hits >= PRECISION * np.arange(1, len(bad) + 1)
        return float(hits[enough].max(initial=0) / bad.sum())

    rng, every = np.random.default_rng(0), np.arange(len(scores))
    draws = [share(rng.choice(every, len(every))) for _ in range(2000)]
    found = [share(every), *np.quantile(draws, [0.025, 0.975])]
    return {"share": [round(float(v), 3) for v in found], "n": int((scores < BAD).sum()), "photographs": len(scores)}


def detection(severities: Matrix, truth: Matrix, *, paired: bool) -> dict[str, Any]:
    """Return F1 by category of N x 8 severities: `PLAIN` ones have to be reported, what nobody sees must not be.

    A slight distortion counts neither way. Images with a distortion of place alone are left out.
    """
    rows = truth[:, 7] == 0
    names, truth = reported_categories(severities[rows][:, :7], paired=paired), truth[rows][:, :7]
    plain, told = truth > PLAIN, names & ((truth > PLAIN) | (truth <= SLIGHT))
    scores = 2 * (plain & told).sum(axis=0) / np.maximum(plain.sum(axis=0) + told.sum(axis=0), 1)
    by_name = dict(zip(DISTORTION_CATEGORIES, scores.round(3).tolist(), strict=True))
    return {"f1": by_name, "macro_f1": round(float(scores.mean()), 3), "n": int(rows.sum())}


def population(learned: Table, alone: Fitted) -> dict[str, Any]:
    """Return the quantiles of every property over photographs, then of every composite's sum; no score is used.

    A photograph's believed quality and severities are those of a fit without it.
    """
    quality, first = alone.quality, OUTPUTS["nr"].index(SEVERITIES[0])
    views: list[Any] = [
        SimpleNamespace(
            measured=dict(zip(FEATURE_NAMES, learned.features[i], strict=True)), prior=SimpleNamespace(mean=quality[i]),
            severities=dict(zip(DISTORTION_CATEGORIES, alone.left_out[i, first:].clip(0, 4), strict=False)),
        )
        for i in np.flatnonzero(learned.source == "photographs")
    ]  # fmt: skip
    known = {name: _quantiles([reading(view, name) for view in views]) for name in PROPERTIES}
    sums = {f"sum of {name}": _quantiles([composite(v, name, known) for v in views]) for name in COMPOSITES}
    return {
        "data": f"{len(views)} train photographs of LIVE In the Wild (Ghadiyaram & Bovik 2015), without their scores",
        "per cent": list(QUANTILES), "quantiles": known | sums,
    }  # fmt: skip


def _quantiles(values: list[float]) -> list[float]:
    return [round(float(q), 4) for q in np.percentile(values, QUANTILES)]
