"""Does a region's rating, and the map of an image, show which half of it is damaged?

    python -m benchmarks.halves ../shared/data/clive/manifest.jsonl [--split validation]

Of the 40 photographs of a split that people liked best, one half each is damaged as KADID-10k does at levels 3 to 5
(blur, motion, noise, darkening in turn). Printed: how often the damaged half, asked for by its name and box, scores
below the other and by .8 or more, and how often it is the worse half of the 5 x 5 map. Through `AgenticIQA`; the map's
numbers from the function behind `heatmap`.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data.distortions import distort, generator_for
from data.manifest import read_manifest
from program import AgenticIQA
from program.common.pool import progress
from program.evaluation.intervals import wilson
from program.expert.judge.learning import quality_map
from program.images.store import IMAGES

PHOTOGRAPHS, CLEARLY = 40, 0.8
KINDS = ("gaussian_blur", "motion_blur", "white_noise", "darken")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the shares with their 95 % intervals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.halves", description=str(__doc__).partition("\n")[0])
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--split", default="validation")
    arguments = parser.parse_args(argv)
    samples = [s for s in read_manifest(arguments.manifest) if s.split == arguments.split and s.quality is not None]
    samples = sorted(samples, key=lambda sample: -(sample.quality or 0.0))[:PHOTOGRAPHS]
    program = AgenticIQA()
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with progress("photographs", len(samples)) as advance:
        for i, sample in enumerate(samples):
            kind, level, sign = KINDS[i % len(KINDS)], 3 + i % 3, 1 if i % 2 else -1  # 1: the left half is damaged
            with IMAGES.borrow():
                pixels = np.array(IMAGES.pixels(IMAGES.add(sample.image)))
                middle = pixels.shape[1] // 2
                half = slice(None, middle) if sign > 0 else slice(middle, None)
                pixels[:, half] = distort(pixels, kind, level, generator_for(sample.id, kind, level))[:, half]
                height, width = pixels.shape[:2]
                boxes = {"left side": (0, 0, middle, height), "right side": (middle, 0, width, height)}
                image = IMAGES.add(pixels)
                left, right = (
                    float(
                        program(
                            image=image, query=f"Rate the quality of the {name}.", regions={name: box}
                        ).quality_score
                    )
                    for name, box in boxes.items()
                )
                scores = quality_map(image)
            rows[kind].append((sign * (right - left), sign * float(scores[:, 3:].mean() - scores[:, :2].mean())))
            advance()
    rows["all"] = [pair for kind in KINDS for pair in rows[kind]]
    for kind, pairs in rows.items():
        regions, maps = np.array(pairs).T
        shares = {"lower": regions > 0, f"lower by {CLEARLY}": regions >= CLEARLY, "worse half of the map": maps > 0}
        words = [f"{name} {held.sum()} of {len(held)} {_ends(held)}" for name, held in shares.items()]
        sys.stdout.write(f"{kind}: {'; '.join(words)}\n")
    return 0


def _ends(held: np.ndarray) -> str:
    low, high = wilson(float(held.mean()), len(held))
    return f"[{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
