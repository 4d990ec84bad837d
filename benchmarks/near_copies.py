"""Count the test images of which training has a near copy: `python -m benchmarks.near_copies MANIFEST`.

Two images are near copies where their grey thumbnails of 24 x 24 pixels, each less its mean, have a cosine of at least
`ALIKE`. Of 16 such pairs of BIQ2021 with the smallest cosines, 14 show the same scene.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from data.manifest import Sample, read_manifest
from program.gallery.choice import standard_frames

ALIKE = 0.95
_SIDE = 24


def main(argv: Sequence[str] | None = None) -> int:
    """Print the share."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.near_copies", description=str(__doc__).split("\n")[0])
    parser.add_argument("manifest", type=Path)
    samples = list(read_manifest(parser.parse_args(argv).manifest))
    held = [sample for sample in samples if sample.split == "test"]
    others = [sample for sample in samples if sample.split != "test"]
    near = (standard_frames(thumbnails(held)).T @ standard_frames(thumbnails(others))).max(axis=1) >= ALIKE
    print(f"{int(near.sum())} of {len(held)} test images ({100 * near.mean():.1f} %) have a near copy in training")
    return 0


def thumbnails(samples: Sequence[Sample]) -> NDArray[np.float32]:
    """Return the grey thumbnails of N images, 24 x 24 x N."""
    frames = np.empty((_SIDE, _SIDE, len(samples)), np.float32)
    for place, sample in enumerate(samples):
        with Image.open(sample.image) as image:
            image.draft("L", (64, 64))
            frames[..., place] = image.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    return frames


if __name__ == "__main__":
    raise SystemExit(main())
