"""What the program says of photographs that were damaged on purpose, beside what was done to them.

    python -m benchmarks.made_faults ../shared/data/clive/manifest.jsonl [--split validation] [--questions 1000]

On the 40 photographs of a split that people liked best: blur by motion and defocus from 9 pixels on that is found, and
undamaged photographs that are called blurred; steps of a stronger distortion (from the second level) that raise the
score by more than .05, without a reference and with one; and questions about the damage with options, whose answers are
known: which damage it is, whether there is a certain one, whether the blur comes from motion, how strong it is.
Everything through `AgenticIQA`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.made_questions import bank
from benchmarks.training.capture import camera_noise, defocus, expose, motion
from data.distortions import IDENTITIES, distort, distortions_for, generator_for
from data.manifest import read_manifest
from program import AgenticIQA
from program.common.pool import progress
from program.evaluation.intervals import wilson
from program.images.store import IMAGES

PHOTOGRAPHS, SEED, RISE = 40, 0, 0.05
SERIES: dict[str, Sequence[Callable[..., Any]]] = {
    "motion": [partial(motion, length=length, angle=0.6) for length in (6, 12, 24, 48)],
    "defocus": [partial(defocus, radius=radius) for radius in (2, 4, 8, 14)],
    "camera noise": [partial(camera_noise, deviation=d, rng=np.random.default_rng(1)) for d in (8, 14, 24, 40)],
    "underexposure": [partial(expose, stops=-stops) for stops in (1, 2, 3, 4)],
    "overexposure": [partial(expose, stops=stops) for stops in (0.7, 1.2, 1.7, 2.4)],
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--split", default="validation")
    parser.add_argument("--questions", type=int, default=1000)
    given = parser.parse_args(argv)
    scored = [s for s in read_manifest(given.manifest) if s.split == given.split and s.quality is not None]
    liked = sorted(scored, key=lambda s: -(s.quality or 0))[:PHOTOGRAPHS]
    shown = {s.id: IMAGES.pixels(IMAGES.add(s.image)) for s in liked}
    program = AgenticIQA()
    figures = {"photographs": len(shown), "blur": _blur(program, shown)}
    figures |= {"steps": _steps(program, shown), "steps with a reference": _steps(program, shown, with_reference=True)}
    figures["questions"] = _questions(program, shown, given.questions)
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    return 0


def _share(right: Sequence[bool]) -> dict[str, Any]:
    share = float(np.mean(right))
    return {"share": round(share, 3), "interval": [round(v, 3) for v in wilson(share, len(right))], "n": len(right)}


def _blur(program: AgenticIQA, shown: dict[str, Any]) -> dict[str, Any]:
    def blurred(pixels: Any) -> bool:
        answer = program(image=pixels, query="Is this image blurry?", options=["Yes", "No"])
        return bool(answer.final_answer == "A")

    rng, found = np.random.default_rng(SEED), {"motion": [], "defocus": []}
    with progress("blur", len(shown)) as advance:
        for pixels in shown.values():
            for length in (9, 15, 25, 40, 60):
                found["motion"].append(blurred(motion(pixels, length, rng.uniform(0, np.pi))))
            for radius in (4.5, 7, 12):
                found["defocus"].append(blurred(defocus(pixels, radius)))
            advance()
        plain = [blurred(pixels) for pixels in shown.values()]
    return {
        **{f"{name} found": _share(each) for name, each in found.items()},
        "undamaged called blurred": _share(plain),
    }


def _steps(program: AgenticIQA, shown: dict[str, Any], *, with_reference: bool = False) -> dict[str, Any]:
    """Return the share of steps of a stronger distortion, from the second level on, that raise the score."""
    rises = []
    with progress("steps", len(shown)) as advance:
        for number, (name, pixels) in enumerate(shown.items()):
            kinds = [*distortions_for(pixels), *SERIES]
            for kind in (kinds[(number + i * 6) % len(kinds)] for i in range(5)):
                made = (
                    [fault(pixels) for fault in SERIES[kind]] if kind in SERIES
                    else [distort(pixels, kind, n, generator_for(name, kind, n)) for n in _rising(kind)]
                )  # fmt: skip
                reference = pixels if with_reference else None
                scores = [program(image=each, reference=reference).final_answer for each in made]
                rises += [after > before + RISE for before, after in pairwise(scores)]
            advance()
    return _share(rises)


def _rising(kind: str) -> list[int]:
    """Return the levels from the second on that people mind more and more."""
    levels = [level for level in range(2, 6) if (kind, level) not in IDENTITIES]
    return levels if kind not in {"mean_shift", "contrast_change", "color_saturation_1"} else levels[-2:]


def _questions(program: AgenticIQA, shown: dict[str, Any], count: int) -> dict[str, Any]:
    rng, right, kinds = np.random.default_rng(SEED), [], []
    with progress("questions", count) as advance:
        for kind, asked in bank(shown, rng, count):
            order = rng.permutation(len(asked.options))
            options = [asked.options[i] for i in order]
            answer = program(image=asked.pixels, query=asked.text, options=options)
            letter = str(answer.final_answer)
            right.append(letter in "ABCDEF" and options["ABCDEF".index(letter)] == asked.right)
            kinds.append(kind)
            advance()
    by_kind = {
        kind: _share([r for r, k in zip(right, kinds, strict=True) if k == kind]) for kind in dict.fromkeys(kinds)
    }
    return {"all": _share(right), **by_kind}


if __name__ == "__main__":
    sys.exit(main())
