"""A manifest of multiple-choice questions about damage that was done on purpose, so that the right option is known.

    python -m benchmarks.made_questions ../shared/data/biq2021/manifest.jsonl questions

writes questions/manifest.jsonl and its images: `--train`, `--validation` and `--test` questions of five kinds (which
distortion, whether there is a certain one, what the blur comes from, how the exposure is, how strong it is), made of
photographs of the split of that name. A photograph is in one split alone. With `--regions` only one of two boxes is
damaged, and three kinds of questions name a box: which distortion it has, whether it has a certain one (else the other
box has it), and which of the two is worse.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from benchmarks.training.capture import defocus, expose, motion
from data.distortions import CATEGORIES, distort, distortions_for, generator_for, level_mean
from data.manifest import read_manifest
from program.common.pool import progress
from program.images.store import IMAGES

KINDS, SEED = 5, 0
NAMES = {
    "Blurs": "Blur",
    "Noise": "Noise",
    "Compression": "Compression artifacts",
    "Color distortions": "Wrong colours",
}
NOUNS = {
    "Blurs": "blur", "Noise": "noise", "Compression": "compression damage", "Color distortions": "color distortion"
}  # fmt: skip


class Question(NamedTuple):
    """One question about damaged pixels, its options, and the right one's text."""

    pixels: Any
    text: str
    options: Sequence[str]
    right: str
    regions: Mapping[str, tuple[int, int, int, int]] | None = None
    """Boxes in pixels."""


def main(argv: Sequence[str] | None = None) -> int:
    """Write images and manifest."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("manifest", type=Path)
    parser.add_argument("out", type=Path)
    for split, count in (("train", 600), ("validation", 200), ("test", 400)):
        parser.add_argument(f"--{split}", type=int, default=count, metavar="N", help=f"questions (default: {count})")
    parser.add_argument("--regions", action="store_true", help="ask about one of two boxes")
    given = parser.parse_args(argv)
    given.out.mkdir(parents=True, exist_ok=True)
    samples, lines = list(read_manifest(given.manifest)), []
    for split in ("train", "validation", "test"):
        count, rng = getattr(given, split), np.random.default_rng([SEED, len(split)])
        if not count:
            continue
        shown = {s.id: IMAGES.pixels(IMAGES.add(s.image)) for s in samples if s.split == split}
        names = list(shown)
        questions = bank_of_regions(shown, rng, count) if given.regions else bank(shown, rng, count, KINDS)
        with progress(split, count) as advance:
            for number, (_, asked) in enumerate(questions):
                file = f"{split}-{number}.png"
                Image.fromarray(asked.pixels).save(given.out / file)
                options = [str(each) for each in rng.permutation(asked.options)]
                letters = dict(zip("ABCDEF", options, strict=False))
                right = next(letter for letter, text in letters.items() if text == asked.right)
                lines.append({"id": file, "image": file, "query": asked.text, "options": letters, "answer": right,
                              "regions": asked.regions, "group": names[number % len(names)], "split": split,
                              "labels": "made-up"})  # fmt: skip
                advance()
    (given.out / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return 0


def bank(
    shown: Mapping[str, Any], rng: np.random.Generator, count: int, kinds: int = 4
) -> Iterator[tuple[str, Question]]:
    """Yield questions of four or five kinds in turn about visible damage (mean score below 3.5).

    Which distortion and level it is is drawn at random; the fifth kind asks how strong it is.
    """
    for number in range(count):
        name = list(shown)[number % len(shown)]
        pixels = shown[name]
        kind, level = _condition(pixels, rng, 3.5)
        damaged, category = distort(pixels, kind, level, generator_for(name, kind, level)), CATEGORIES[kind]
        match number % kinds:
            case 0:
                text = "Which distortion is most apparent in this image?"
                yield "which", Question(damaged, text, list(NAMES.values()), NAMES[category])
            case 1:
                said = category if rng.random() < 0.5 else str(rng.choice([c for c in NAMES if c != category]))
                text = f"Is there visible {NOUNS[said]} in this image?"
                yield "is there", Question(damaged, text, ["Yes", "No"], "Yes" if said == category else "No")
            case 2:
                moved = bool(rng.random() < 0.5)
                faulty = motion(pixels, 20, rng.uniform(0, np.pi)) if moved else defocus(pixels, 6)
                text = "What is the blur in this image caused by?"
                options = ["Motion of the camera", "Wrong focus"]
                yield "cause", Question(faulty, text, options, options[0] if moved else options[1])
            case 3:
                lit = bool(rng.random() < 0.5)
                text = "How is the exposure of this image?"
                options = ["Overexposed", "Underexposed"]
                right = options[0] if lit else options[1]
                yield "exposure", Question(expose(pixels, 2 if lit else -3), text, options, right)
            case _:
                strong = bool(rng.random() < 0.5)
                text = f"How strong is the {NOUNS[category]} in this image?"
                faulty = distort(pixels, kind, 5 if strong else 1, generator_for(name, kind, 5 if strong else 1))
                yield "how strong", Question(faulty, text, ["Slight", "Strong"], "Strong" if strong else "Slight")


def bank_of_regions(shown: Mapping[str, Any], rng: np.random.Generator, count: int) -> Iterator[tuple[str, Question]]:
    """Yield questions of three kinds in turn about two boxes, one of them damaged (mean score below 2.5)."""
    for number in range(count):
        name = list(shown)[number % len(shown)]
        pixels = shown[name].copy()
        boxes = _two_boxes(pixels, rng)
        hit, clean = rng.permutation(list(boxes))
        left, top, right, bottom = boxes[hit]
        part = pixels[top:bottom, left:right]
        kind, level = _condition(part, rng, 2.5)
        pixels[top:bottom, left:right] = distort(part, kind, level, generator_for(name, kind, level))
        category = CATEGORIES[kind]
        match number % 3:
            case 0:
                text = f"Which distortion is most apparent in the {hit}?"
                yield "which", Question(pixels, text, list(NAMES.values()), NAMES[category], boxes)
            case 1:
                asked = str(rng.choice([hit, clean]))
                text = f"Is there visible {NOUNS[category]} in the {asked}?"
                yield "is there", Question(pixels, text, ["Yes", "No"], "Yes" if asked == hit else "No", boxes)
            case _:
                text = "Which part of this image has the worst quality?"
                yield "worst", Question(pixels, text, [f"The {each}" for each in boxes], f"The {hit}", boxes)


def _two_boxes(pixels: Any, rng: np.random.Generator) -> dict[str, tuple[int, int, int, int]]:
    """Return a box in either half of an image, each a third as wide and as high."""
    height, width = pixels.shape[:2]
    boxes = {}
    for name, start in (("sign", 0), ("face", width // 2)):
        left = start + int(rng.integers(width // 2 - width // 3 + 1))
        top = int(rng.integers(height - height // 3 + 1))
        boxes[name] = (left, top, left + width // 3, top + height // 3)
    return boxes


def _condition(pixels: Any, rng: np.random.Generator, below: float) -> tuple[str, int]:
    """Draw a distortion that can be done to these pixels, and a level that people rate lower than that."""
    conditions = [
        (kind, level) for kind, category in CATEGORIES.items() for level in range(2, 6)
        if category in NAMES and level_mean(kind, level).mos < below
    ]  # fmt: skip
    kind, level = conditions[int(rng.integers(len(conditions)))]
    while kind not in distortions_for(pixels):
        kind, level = conditions[int(rng.integers(len(conditions)))]
    return kind, level


if __name__ == "__main__":
    sys.exit(main())
