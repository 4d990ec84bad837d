"""Is damage to a fifth of a picture named, and its place, where nobody gave a box?

    python -m benchmarks.fifths [--longest 1800]

Each packaged photograph as it is, and with a fifth of its area (at a place drawn by a seed) damaged by noise,
compression, blur, motion, over- or underexposure; with `--longest` the photographs are enlarged first, so that they are
scaled down before they are measured. Printed for each damage: how often its fault is named, how often at a place that
touches the damage, and how many undamaged photographs are said to have it. Through `AgenticIQA`.
"""

import argparse
import io
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.training.capture import camera_noise, defocus, expose, motion
from data.distortions import distort
from data.quickstart import PHOTOGRAPHS, photograph_bytes
from program import AgenticIQA
from program.images.store import IMAGES

SHARE = 0.2
DAMAGES = {
    "noise": ("noise", lambda part, rng: camera_noise(part, 18, rng)),
    "compression": ("compression", lambda part, rng: distort(part, "jpeg", 5, rng)),
    "defocus": ("blur", lambda part, rng: defocus(part, max(part.shape) / 60)),
    "motion": ("blur", lambda part, rng: motion(part, max(part.shape) / 20, rng.uniform(0, 180))),
    "overexposure": ("bright|highlights", lambda part, rng: expose(part, 2.0)),
    "underexposure": ("dark|shadows", lambda part, rng: expose(part, -2.5)),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the counts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fifths", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--longest", type=int, metavar="PIXELS", help="enlarge the photographs to this longer side")
    longest = parser.parse_args(argv).longest
    program, counts = AgenticIQA(), {name: [0, 0, 0, 0] for name in DAMAGES}
    for number, photograph in enumerate(PHOTOGRAPHS):
        picture = Image.open(io.BytesIO(photograph_bytes(photograph))).convert("RGB")
        if longest:
            scale = longest / max(picture.size)
            picture = picture.resize([round(side * scale) for side in picture.size], Image.Resampling.LANCZOS)
        pixels = np.asarray(picture)
        undamaged = _faults(program, pixels)
        for kind, (name, (words, damage)) in enumerate(DAMAGES.items()):
            before = re.search(words, undamaged) is not None
            damaged, cells = _damaged(pixels, damage, np.random.default_rng([number, kind]))
            said = [part for part in _faults(program, damaged).split(";") if re.search(words, part)]
            count = counts[name]
            count[0] += bool(said)
            count[1] += any(_cell_in(part) in cells for part in said)
            count[2] += before
            count[3] += bool(said) and not before
    for name, (named, placed, before, new) in counts.items():
        of = len(PHOTOGRAPHS)
        sys.stdout.write(f"{name}: named {named} of {of}, placed {placed}; undamaged {before} of {of}; new {new}\n")
    return 0


def _damaged(pixels: Any, damage: Any, rng: np.random.Generator) -> tuple[Any, set[tuple[int, int]]]:
    """Return pixels with a fifth of them damaged, and the cells of 3 x 3 that it covers by a third or more."""
    damaged, covered = pixels.copy(), np.zeros(pixels.shape[:2], bool)
    height, width = (int(side * SHARE**0.5) for side in covered.shape)
    top, left = (
        int(rng.integers(0, whole - side + 1)) for whole, side in zip(covered.shape, (height, width), strict=True)
    )
    part = np.s_[top : top + height, left : left + width]
    damaged[part], covered[part] = damage(np.ascontiguousarray(pixels[part]), rng), True
    cells = set()
    for row, band in enumerate(np.array_split(covered, 3)):
        for column, cell in enumerate(np.array_split(band, 3, axis=1)):
            if cell.mean() >= 1 / 3:
                cells.add((row, column))
    return damaged, cells


def _faults(program: AgenticIQA, pixels: Any) -> str:
    with IMAGES.borrow():
        return program(image=pixels).summary.lower()


def _cell_in(text: str) -> tuple[int, int] | None:
    """Return the row and column that a fault's words name, or None."""
    if not re.search(r"upper|lower|top|bottom|left|right|centre", text):
        return None
    row, column = 1, 1
    if re.search(r"upper|\btop", text):
        row = 0
    elif re.search(r"lower|bottom", text):
        row = 2
    if "left" in text:
        column = 0
    elif "right" in text:
        column = 2
    return row, column


if __name__ == "__main__":
    sys.exit(main())
