"""Fit the no-reference tool that reads the pretrained network's spreads, and what its calibration says of it.

Four lines through the spreads: the score of a photograph, that of a distorted image, and which of the two an image is.
The calibration comes from predictions out of fold: of images it was fitted on the tool would say too much.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.training import fitting
from benchmarks.training.images import Table
from data.distortions import category_named
from program.evaluation.calibrating import LabelledSet, fit_tool
from program.expert.store import Matrix
from program.tools.calibration import Calibration
from program.tools.network import Fit
from program.tools.registry import ToolRegistry

__all__ = ("fits", "write")

TOOL = "LiteNR"
CALIBRATION_EVERY = 11
"""As many distorted images as photographs: else the map to 1..5 would be theirs."""


def fits(table: Table) -> Iterator[tuple[NDArray[np.bool_], Fit]]:
    """Yield fits of the lines, and which images each has not seen: one for each fold, then one on all images."""
    standard = fitting.standard_of(table.spreads[table.source == "photographs"])
    points, score = standard.apply(table.spreads), table.scores[:, None]
    roles = {"photograph": score, "distorted": score, **fitting.kinds_of(table.source)}
    fold, alike = fitting.folds(table.group), fitting.products(points)
    for k in range(fitting.FOLDS + 1):
        taken = fold != k
        steps = fitting.steps_of(table, taken, "photograph")
        weights, offset = fitting.ridge(points, roles, table.source, alike, taken, steps)
        yield ~taken, Fit(standard.centre, standard.spread, weights * standard.share[:, None], offset)


def write(table: Table, arrays: Path, calibration: Path, clive: Path, live: Path) -> Matrix:
    """Write the tool's arrays and its calibration; returns its predictions out of fold."""
    import pandas as pd

    predicted = np.zeros(len(table.scores))
    for out, fit in fits(table):
        predicted[out] = fit.predict(table.spreads[out])
    fitting.save_arrays(arrays, {name: array.astype(np.float32) for name, array in fit._asdict().items()})
    sets = {name: LabelledSet.read(str(path), "train", Path()) for name, path in (("clive", clive), ("live", live))}
    readings = pd.DataFrame({
        "raw": predicted, "human": table.scores, "category": list(map(category_named, table.distortion)),
        "authentic": table.source == "photographs", "label_sd": table.score_sd,
        "source": [sets["live" if source == "live" else "clive"].source for source in table.source],
    })  # fmt: skip
    sampled = (table.source == "distorted") & (np.arange(len(readings)) % CALIBRATION_EVERY == 0)
    chosen = sampled | np.isin(table.source, ("photographs", "live", "undistorted"))
    tool = fit_tool(ToolRegistry.load().get(TOOL), readings[chosen])
    sources = {each.source: each.provenance() for each in sets.values()}
    known = Calibration.load(calibration).merge({TOOL: tool}, sources)
    calibration.write_text(known.to_json(), encoding="utf-8")
    return predicted
