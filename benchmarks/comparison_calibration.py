"""Is a comparison as sure as it says? `python -m benchmarks.comparison_calibration MANIFEST [--split S]`.

Judges every image of a split, compares all pairs as `assess A B --compare` does, and prints, for each range of the
stated probability, how often people's mean scores agree, with 95 % intervals from 1,000 resamples of the images (pairs
share images, so they are not resampled themselves). And how many of the intervals of the single scores hold people's.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

from data.manifest import read_manifest
from program import AgenticIQA
from program.agent.comparison import spread, sureness
from program.common.cli import add_settings_flags, run_command, settings_from
from program.evaluation.intervals import wilson
from program.images.store import IMAGES

RANGES = ((0.5, 0.65, "no clear difference"), (0.65, 0.8, "perhaps"), (0.8, 0.95, "probably"), (0.95, 1.01, "clearly"))
RESAMPLES = 1000

Floats = NDArray[np.float64]


def main(argv: list[str] | None = None) -> int:
    """Run the measurement and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comparison_calibration", description=__doc__)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--split", default="validation")
    add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _measure(arguments))


def _measure(arguments: argparse.Namespace) -> int:
    program = AgenticIQA(settings_from(arguments))
    samples = [s for s in read_manifest(arguments.manifest) if s.split == arguments.split and s.quality is not None]
    scores, spreads, intervals = [], [], []
    for sample in samples:
        with IMAGES.borrow():
            result = program(image=sample.image, reference=sample.reference)
            scores.append(float(result.quality_score))
            spreads.append(spread(result))
            intervals.append(result.score_interval)
    human = np.array([sample.quality for sample in samples], dtype=np.float64)
    _show(*_pairs(scores, spreads, human))
    low, high = np.array(intervals).T
    held = int(((low <= human) & (human <= high)).sum())
    ends = "{:.3f} to {:.3f}".format(*wilson(held / len(human), len(human)))
    Console().print(
        f"intervals: {held} of {len(human)} hold people's score, {held / len(human):.3f} ({ends}); "
        f"SRCC {spearmanr(scores, human)[0]:.3f}, mean width {(high - low).mean():.2f}",
        highlight=False,
    )
    return 0


def _pairs(scores: list[float], spreads: list[float], human: Floats) -> tuple[Floats, Floats, Floats]:
    """Return, for every two images, the stated sureness, whether it was right, and whether the pair counts."""
    size = len(scores)
    stated = np.full((size, size), 0.5)
    for i in range(size):
        for j in range(i + 1, size):
            stated[i, j] = sureness([scores[i], scores[j]], [spreads[i], spreads[j]])
    second = human[None, :] > human[:, None]
    counts = np.triu(human[None, :] != human[:, None], 1).astype(np.float64)
    return np.maximum(stated, 1 - stated), np.where(stated >= 0.5, second, ~second).astype(np.float64), counts


def _show(stated: Floats, right: Floats, counts: Floats) -> None:
    rng = np.random.default_rng(0)
    size = len(stated)
    draws = [np.bincount(rng.integers(0, size, size), minlength=size) for _ in range(RESAMPLES)]
    table = Table("", "stated", "pairs", "mean stated", "people agree", "95 % interval", box=None)
    for low, high, word in (*RANGES, (0.5, 1.01, "all")):
        weights = counts * ((stated >= low) & (stated < high))
        if not weights.any():
            continue
        resampled = [np.outer(draw, draw) * weights for draw in draws]
        shares = [(w * right).sum() / w.sum() for w in resampled if w.any()]
        interval = "{:.3f} to {:.3f}".format(*np.percentile(shares, [2.5, 97.5]))
        mean, share = ((weights * values).sum() / weights.sum() for values in (stated, right))
        table.add_row(
            word, f"{low:g} to {min(high, 1):g}", f"{weights.sum():.0f}", f"{mean:.3f}", f"{share:.3f}", interval
        )
    console = Console()
    console.print(f"{size} images")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
