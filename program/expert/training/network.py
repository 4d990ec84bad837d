"""Fit the no-reference tool that reads the pretrained network: `python -m program.expert.training.network`.

Ridge regression of human scores on the network's spreads, of photographs as they were taken and of generated
distortions. What the tool's calibration says of it comes from predictions out of fold: of an image it was fitted on it
would say too much.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, stats

from program.common.progress import progress
from program.expert.training.fitting import save_arrays
from program.images.store import IMAGES
from program.tools.calibration import Calibration
from program.tools.fitting import fit_tool
from program.tools.models import tensor_of
from program.tools.network import CLIP, respond
from program.tools.registry import ToolRegistry
from program.tools.survey import Labelled, LabelledSet

__all__ = ("Fit", "fit", "main", "out_of_fold")

TOOL = "LiteNR"
NOISE, GENERATED_NOISE = 0.2, 1.0
"""Variance of a score around the regression, relative to the variance it explains, of photographs and of generated
distortions. The second are many, alike, and labelled with means over other images."""
FOLDS, SEED = 10, 0


class Fit(NamedTuple):
    """A linear regression on standardised, limited spreads."""

    centre: NDArray[np.float64]
    spread: NDArray[np.float64]
    weights: NDArray[np.float64]
    mean: float

    def predict(self, spreads: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the scores of N x F spreads."""
        return np.asarray(self.mean + _standard(spreads, self.centre, self.spread) @ self.weights)


def _standard(
    spreads: NDArray[np.float64], centre: NDArray[np.float64], spread: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.asarray(np.clip((spreads - centre) / spread, -CLIP, CLIP))


def fit(spreads: NDArray[np.float64], scores: NDArray[np.float64], noise: NDArray[np.float64]) -> Fit:
    """Fit N x F spreads to N scores, each with its own noise (kernel ridge regression, linear kernel)."""
    sure = noise <= noise.min()
    centre, spread = spreads[sure].mean(axis=0), spreads[sure].std(axis=0) + 1e-6
    z = _standard(spreads, centre, spread) / np.sqrt(spreads.shape[1])
    mean = float(scores[sure].mean())
    dual = linalg.solve(z @ z.T + np.diag(noise), scores - mean, assume_a="pos")
    return Fit(centre, spread, (z.T @ dual) / np.sqrt(spreads.shape[1]), mean)


def out_of_fold(
    spreads: NDArray[np.float64], scores: NDArray[np.float64], noise: NDArray[np.float64], groups: Sequence[str]
) -> NDArray[np.float64]:
    """Predict each score by a fit on the images of other photographs, ten folds drawn by a fixed seed."""
    names = np.unique(np.array(groups))
    drawn = dict(zip(np.random.default_rng(SEED).permutation(names), range(len(names)), strict=True))
    fold = np.array([drawn[group] % FOLDS for group in groups])
    predicted = np.zeros(len(scores))
    for k in range(FOLDS):
        out = fold == k
        predicted[out] = fit(spreads[~out], scores[~out], noise[~out]).predict(spreads[out])
    return predicted


def measured(samples: Sequence[Labelled]) -> NDArray[np.float64]:
    """Return the N x F spreads of images."""
    rows = []
    with progress("measuring", len(samples)) as advance:
        for sample in samples:
            rows.append(respond(tensor_of(IMAGES.pixels(IMAGES.add(sample.image)), "cpu")).spreads)
            advance()
    return np.array(rows, dtype=np.float64)


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, write the tool's arrays and its calibration, and print how it agrees out of fold; exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m program.expert.training.network", description=__doc__)
    parser.add_argument("data", nargs="+", help="datasets whose train split is fitted on, as quickstart or a manifest")
    parser.add_argument("--cache", type=Path, default=Path("mlruns/cache"), help="folder for the quickstart images")
    parser.add_argument("--out", type=Path, default=Path("program/tools/lite-r1.npz"))
    parser.add_argument("--calibration", type=Path, default=Path("configs/calibration.json"))
    options = parser.parse_args(argv)
    sets = [LabelledSet.read(name, "train", options.cache) for name in options.data]
    samples = [sample for each in sets for sample in each.samples]
    spreads = measured(samples)
    scores = np.array([sample.human for sample in samples])
    noise = np.array([NOISE if sample.authentic else GENERATED_NOISE for sample in samples])
    groups = [str(sample.group) for sample in samples]
    predicted = out_of_fold(spreads, scores, noise, groups)
    for authentic in (True, False):
        part = np.array([sample.authentic is authentic for sample in samples])
        if part.any():
            srcc = stats.spearmanr(predicted[part], scores[part]).statistic
            sys.stdout.write(f"{'photographs' if authentic else 'generated'}: SRCC {srcc:.3f}, n = {part.sum()}\n")
    final = fit(spreads, scores, noise)
    half = {name: np.asarray(getattr(final, name)).astype(np.float32) for name in ("centre", "spread", "weights")}
    save_arrays(options.out, {**half, "mean": np.array([final.mean], np.float32)})
    spec = ToolRegistry.load().get(TOOL)
    sources = {each.source: each.provenance() for each in sets}
    tool = fit_tool(spec, list(zip(predicted.tolist(), samples, strict=True)), sources=list(sources))
    calibration = Calibration.load(options.calibration).updated({TOOL: tool}, sources)
    options.calibration.write_text(calibration.to_json(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
