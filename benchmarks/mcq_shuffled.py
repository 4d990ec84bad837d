"""Multiple choice with the right images and with other questions' images: what is owed to looking.

    python -m benchmarks.mcq_shuffled ../shared/data/clive/mcq.jsonl [--split test] [--shuffles 10] [--program DIR]

A program that answers from the wording alone scores the same on both. Each shuffle gives every question the image of
another content; accuracies come with 95 % Wilson intervals, the difference with a bootstrap over questions.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.manifest import Sample, read_manifest
from data.splits import group_of
from program import AgenticIQA, load
from program.evaluation.intervals import wilson

RESAMPLES = 4000


def main(argv: Sequence[str] | None = None) -> int:
    """Answer every question on its own image and on shuffled ones; print both accuracies and their difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--shuffles", type=int, default=10)
    parser.add_argument("--program", type=Path, help="a compiled program's folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    samples = [s for s in read_manifest(given.manifest) if s.options and s.answer and s.split == given.split]
    program = load(given.program) if given.program else AgenticIQA()
    rng = np.random.default_rng(given.seed)
    right = np.array([_is_right(program, s, s.image) for s in samples], dtype=float)
    wrong = np.array(
        [
            [_is_right(program, s, samples[i].image) for s, i in zip(samples, _deranged(samples, rng), strict=True)]
            for _ in range(given.shuffles)
        ],
        dtype=float,
    ).mean(axis=0)
    drawn = rng.integers(0, len(samples), (RESAMPLES, len(samples)))
    low, high = np.percentile((right - wrong)[drawn].mean(axis=1), (2.5, 97.5))
    interval = wilson(float(right.mean()), len(right))
    figures = {
        "n": len(samples),
        "accuracy": {"value": float(right.mean()), "low": interval[0], "high": interval[1]},
        "shuffled": {"value": float(wrong.mean()), "shuffles": given.shuffles},
        "difference": {"value": float((right - wrong).mean()), "low": float(low), "high": float(high)},
        "chance": float(np.mean([1 / len(s.options or "") for s in samples])),
    }
    sys.stdout.write((json.dumps(figures) if given.json else _told(figures)) + "\n")
    return 0


def _is_right(program: AgenticIQA, sample: Sample, image: Path) -> bool:
    found = program(image=image, query=sample.query, options=sample.options)
    return bool(found.final_answer == sample.answer)


def _deranged(samples: Sequence[Sample], rng: np.random.Generator) -> list[int]:
    """Return for each question another question's number, of another content wherever there is one."""
    order = rng.permutation(len(samples))
    groups = [group_of(s) for s in samples]
    for step in range(1, len(samples)):
        turned = np.roll(order, step)
        if all(groups[a] != groups[b] for a, b in zip(order, turned, strict=True)):
            break
    return [int(b) for _, b in sorted(zip(order, turned, strict=True))]


def _told(figures: dict[str, Any]) -> str:
    a, d = figures["accuracy"], figures["difference"]
    return (
        f"n = {figures['n']}: accuracy {a['value']:.3f} [{a['low']:.3f}, {a['high']:.3f}], on shuffled images "
        f"{figures['shuffled']['value']:.3f} ({figures['shuffled']['shuffles']} times), difference {d['value']:+.3f} "
        f"[{d['low']:+.3f}, {d['high']:+.3f}]; chance {figures['chance']:.3f}"
    )


if __name__ == "__main__":
    sys.exit(main())
