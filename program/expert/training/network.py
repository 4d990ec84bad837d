"""Fit the no-reference tool that reads the pretrained network: `python -m program.expert.training.network`.

Ridge regressions on the network's spreads: of photographs as people took and scored them, of distorted versions of
them, and of which of the two an image is. What lowers a score differs between both; one line for both is worse on each.
What the tool's calibration says of it comes from predictions out of fold: of images it was fitted on it would say too
much.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import linalg, stats

from data.kadid import category_named, level_mean
from program.common.progress import progress
from program.expert.training.fitting import save_arrays
from program.expert.training.tables import UNDISTORTED
from program.expert.training.teaching import pairs
from program.images.store import IMAGES
from program.tools.calibration import Calibration
from program.tools.fitting import fit_tool
from program.tools.models import tensor_of
from program.tools.network import Fit, spreads, standardised
from program.tools.registry import ToolRegistry
from program.tools.survey import Labelled, LabelledSet

__all__ = ("Table", "fit", "main", "out_of_fold")

TOOL = "LiteNR"
DISTORTED = 300, 14, (0.5, 1.5)
"""How many train photographs are distorted, in how many ways each, and at which scales (`teaching.pairs`)."""
NATURAL = {"photographs": 0.2, "live": 1.0, "undistorted": 2.0}
"""Noise of a score in the regression of photographs: its variance relative to the variance that is explained."""
GENERAL = {"photographs": 0.5, "live": 0.2, "undistorted": 0.2, "distorted": 0.2}
"""Likewise in the regression of distorted images, where photographs only keep it in bounds."""
KIND_NOISE = 0.1
"""Likewise of the smaller kind in the regression of which of the two an image is. All chosen by folds of CLIVE's train
and validation photographs and on distorted validation photographs; BIQ2021's train and validation images were ordered
as well by all of them (SRCC .60 to .61)."""
CALIBRATION_EVERY = 7
FOLDS, SEED = 10, 0
Matrix = NDArray[np.float64]


class Table(NamedTuple):
    """N images."""

    spreads: Matrix
    samples: Sequence[Labelled]
    source: NDArray[np.str_]
    """photographs, live, undistorted or distorted."""

    def only(self, rows: NDArray[np.bool_]) -> "Table":
        """Return some rows."""
        chosen = [sample for sample, row in zip(self.samples, rows, strict=True) if row]
        return Table(self.spreads[rows], chosen, self.source[rows])

    @property
    def scores(self) -> Matrix:
        """People's scores."""
        return np.array([sample.human for sample in self.samples])

    @property
    def group(self) -> NDArray[np.str_]:
        """The photograph that each shows."""
        return np.array([str(sample.group) for sample in self.samples])


def fit(table: Table) -> Fit:
    """Fit the three functions (kernel ridge regression with a linear kernel)."""
    taken = table.source == "photographs"
    centre, spread = table.spreads[taken].mean(axis=0), table.spreads[taken].std(axis=0) + 1e-6
    z = standardised(table.spreads, centre, spread) / np.sqrt(len(centre))
    kernel, scores, middle = z @ z.T + 1, table.scores, float(table.scores[taken].mean())

    def weights(noise: Mapping[str, float], targets: Matrix) -> tuple[Matrix, float]:
        rows = np.isin(table.source, list(noise))
        own = kernel[np.ix_(rows, rows)] + np.diag([noise[source] for source in table.source[rows]])
        dual = linalg.solve(own, targets[rows], assume_a="pos")
        return (z[rows].T @ dual) / np.sqrt(len(centre)), float(dual.sum())

    natural, general = (weights(noise, scores - middle) for noise in (NATURAL, GENERAL))
    # Kinds of unequal size count alike: the noise of the larger grows with its size.
    larger = KIND_NOISE * max((~taken).sum() / taken.sum(), 1.0)
    kind = weights(dict.fromkeys(GENERAL, larger) | {"photographs": KIND_NOISE}, np.where(taken, -1.0, 1.0))
    columns = [natural, general, kind]
    offset = np.array([constant for _, constant in columns]) + np.array([middle, middle, 0.0])
    return Fit(centre, spread, np.stack([column for column, _ in columns], axis=1), offset)


def out_of_fold(table: Table) -> Matrix:
    """Predict each score by a fit on the images of other photographs, ten folds drawn by a fixed seed."""
    names = np.unique(table.group)
    number = dict(zip(np.random.default_rng(SEED).permutation(names), range(len(names)), strict=True))
    fold = np.array([number[group] % FOLDS for group in table.group])
    predicted = np.zeros(len(fold))
    for k in range(FOLDS):
        predicted[fold == k] = fit(table.only(fold != k)).predict(table.spreads[fold == k])
    return predicted


def measured(clive: Path, live: Path) -> Table:
    """Measure the train images of both, and distorted versions of CLIVE's."""
    rows, samples, source = [], [], []
    for name, sample, pixels in _images(clive, live):
        rows.append(spreads(tensor_of(pixels, "cpu")))
        samples.append(sample)
        source.append(name)
    return Table(np.array(rows, dtype=np.float64), samples, np.array(source))


def _images(clive: Path, live: Path) -> Iterator[tuple[str, Labelled, NDArray[np.uint8]]]:
    for name, manifest in (("photographs", clive), ("live", live)):
        labelled = LabelledSet.read(str(manifest), "train", Path()).samples
        with progress(f"measuring {name}", len(labelled)) as advance:
            for sample in labelled:
                yield name, sample, IMAGES.pixels(IMAGES.add(sample.image))
                advance()
    photographs, each, scales = DISTORTED
    with progress("measuring distorted photographs", photographs * (each + 1)) as advance:
        for made in pairs(clive, "train", photographs, each, scales):
            label = level_mean(made.distortion, made.level) if made.level else None
            score, deviation = (label.mos, label.mos_std) if label else (UNDISTORTED, 0.0)
            category = category_named(made.distortion)
            yield (
                "distorted" if label else "undistorted",
                Labelled(clive, None, score, made.group, category, False, deviation),
                made.pixels,
            )
            advance()


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, write the tool's arrays and its calibration, and print how it agrees out of fold; exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m program.expert.training.network", description=__doc__)
    parser.add_argument("--data-root", type=Path, required=True, help="folder with clive/ and live/")
    parser.add_argument("--out", type=Path, default=Path("program/tools/lite-r1.npz"))
    parser.add_argument("--calibration", type=Path, default=Path("configs/calibration.json"))
    options = parser.parse_args(argv)
    clive, live = (options.data_root / name / "manifest.jsonl" for name in ("clive", "live"))
    table = measured(clive, live)
    predicted, scores = out_of_fold(table), table.scores
    for source in ("photographs", "live", "distorted"):
        part = table.source == source
        srcc = stats.spearmanr(predicted[part], scores[part]).statistic
        rmse = float(np.sqrt(np.mean((predicted - scores)[part] ** 2)))
        sys.stdout.write(f"{source}, out of fold: SRCC {srcc:.3f}, RMSE {rmse:.3f}, n = {part.sum()}\n")
    final = fit(table)._asdict()
    save_arrays(options.out, {name: array.astype(np.float32) for name, array in final.items()})
    spec = ToolRegistry.load().get(TOOL)
    sets = {name: LabelledSet.read(str(path), "train", Path()) for name, path in (("clive", clive), ("live", live))}
    readings = pd.DataFrame(
        [
            (raw, s.human, s.category, s.authentic, s.label_sd, sets["live" if source == "live" else "clive"].source)
            for raw, s, source in zip(predicted.tolist(), table.samples, table.source, strict=True)
        ],
        columns=["raw", "human", "category", "authentic", "label_sd", "source"],
    )
    # As many distorted images as photographs: else the map to 1..5 would be theirs.
    rows = (table.source != "distorted") | (np.arange(len(readings)) % CALIBRATION_EVERY == 0)
    tool = fit_tool(spec, readings[rows])
    sources = {each.source: each.provenance() for each in sets.values()}
    calibration = Calibration.load(options.calibration).updated({TOOL: tool}, sources)
    options.calibration.write_text(calibration.to_json(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
