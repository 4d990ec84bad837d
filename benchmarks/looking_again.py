"""What looking again is worth: how often it acts, and interval, error and order with it and without.

    python -m benchmarks.looking_again answers.jsonl [MANIFEST ...] [--shown 1024] [--photographs 8]

The validation rows of each MANIFEST, never its test rows; and packaged photographs made worse: a tool that fails beside
a reference; a subject blurred before a sharp ground, of 12 megapixels; damage to 5 % of such a picture. The truth there
is people's mean score of the damage (KADID-10k), of a region unknown. `--shown 256`: as if the network saw so many
pixels of a longer side, so that photographs of 500 are judged reduced. A line of the file is one picture, judged
without a second look and with it; one that is there is not worked out again.
"""

import argparse
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from data.distortions import distort, generator_for, level_mean
from data.manifest import read_manifest
from data.quickstart import PHOTOGRAPHS, UNDISTORTED, load_photograph, photograph_bytes
from program import AgenticIQA
from program.common.settings import load_settings
from program.evaluation.intervals import paired_difference
from program.evaluation.metrics import rmse, srcc
from program.images.store import IMAGES
from program.tools import network
from program.tools.registry import Measurement
from program.tools.runner import ToolRunner

WIDTH, HEIGHT, SUBJECT, REGION = 4000, 3000, 1200, 775
BLUR, DAMAGES, LEVELS = "gaussian_blur", ("gaussian_blur", "white_noise", "jpeg"), (3, 4, 5)
WAYS = {"once": {"max_replan_iterations": 0}, "again": {"look_again": True}}


class Case(NamedTuple):
    """One picture to judge."""

    group: str
    name: str
    image: Any
    truth: float | None
    reference: Any = None
    runner: type[ToolRunner] = ToolRunner


class FirstFails(ToolRunner):
    """Tools of which the first that is asked fails."""

    asked: str | None = None

    def measure(self, tool_name: str, *arguments: Any, **named: Any) -> Measurement:
        """Measure, or fail."""
        self.asked = self.asked or tool_name
        if tool_name == self.asked:
            return Measurement(tool=tool_name, error=f"tool {tool_name!r}: made to fail")
        return super().measure(tool_name, *arguments, **named)


def main(argv: Sequence[str] | None = None) -> int:
    """Judge what is missing in the file, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.looking_again", description=str(__doc__).split("\n")[0])
    parser.add_argument("lines", type=Path)
    parser.add_argument("manifests", type=Path, nargs="*")
    parser.add_argument("--shown", type=int, default=network.SHOWN_PX)
    parser.add_argument("--photographs", type=int, default=4)
    given = parser.parse_args(argv)
    network.SHOWN_PX = given.shown
    given.lines.touch()
    lines = [json.loads(line) for line in given.lines.read_text("utf-8").splitlines()]
    programs = {}
    for way, asked in WAYS.items():
        programs[way] = AgenticIQA(load_settings(overrides={"cache": False, "assessment": asked}))
    for case in _cases(given.manifests, given.shown, given.photographs):
        if any((line["group"], line["name"]) == case[:2] for line in lines):
            continue
        line: dict[str, Any] = {"group": case.group, "name": case.name, "truth": case.truth}
        with given.lines.open("a", encoding="utf-8") as file, IMAGES.borrow():
            image = IMAGES.add(case.image).url
            for way, program in programs.items():
                program.resources.__dict__["runner"] = case.runner(program.resources.settings)
                result = program(image=image, reference=case.reference)
                line[way] = {"score": result.rating, "interval": result.score_interval, "looks": result.usage.replans}
            file.write(json.dumps(line) + "\n")
        lines.append(line)
    _show(lines)
    return 0


def _cases(manifests: Sequence[Path], shown: int, photographs: int) -> Iterator[Case]:
    for manifest in manifests:
        for sample in read_manifest(manifest):
            if sample.split == "validation" and sample.quality is not None:
                group = f"{manifest.parent.name} seen at {shown}"
                yield Case(group, sample.id, sample.image, float(sample.quality), sample.reference)
    names = sorted(PHOTOGRAPHS)[:photographs]
    for place, name in enumerate(names):
        small, ground = load_photograph(name), _spread(names[place - 1], WIDTH, HEIGHT)
        subject, middle = _spread(name, SUBJECT, SUBJECT), ((HEIGHT - SUBJECT) // 2, (WIDTH - SUBJECT) // 2)
        yield Case("subject as it is", name, _placed(ground, subject, *middle), UNDISTORTED)
        for level in LEVELS:
            truth, random = level_mean(BLUR, level).mos, generator_for(name, level)
            made, blurred = (distort(pixels, BLUR, level, random) for pixels in (small, subject))
            yield Case("a tool fails", f"{name} {level}", made, truth, small, FirstFails)
            yield Case("subject blurred", f"{name} {level}", _placed(ground, blurred, *middle), truth)
        yield Case("region as it is", name, ground, None)
        damage = DAMAGES[place % len(DAMAGES)]
        for where, (top, left) in {"middle": (HEIGHT // 2 - 387, WIDTH // 2 - 387), "corner": (200, 200)}.items():
            part = ground[top : top + REGION, left : left + REGION]
            made = distort(part, damage, LEVELS[-1], generator_for(name, damage))
            yield Case(f"region of the {where} damaged", f"{name} {damage}", _placed(ground, made, top, left), None)


def _spread(name: str, width: int, height: int) -> np.ndarray:
    """Return a photograph at its own size, mirrored to fill a frame, so that it is sharp everywhere."""
    pixels = np.asarray(Image.open(io.BytesIO(photograph_bytes(name))).convert("RGB"))
    return np.pad(pixels, ((0, height), (0, width), (0, 0)), mode="symmetric")[:height, :width]


def _placed(ground: np.ndarray, part: np.ndarray, top: int, left: int) -> np.ndarray:
    made = ground.copy()
    made[top : top + part.shape[0], left : left + part.shape[1]] = part
    return made


def _show(lines: Sequence[dict[str, Any]]) -> None:
    """Print for each group how often it was looked at again, and the figures without that and with it."""
    for group in dict.fromkeys(line["group"] for line in lines):
        own = [line for line in lines if line["group"] == group]
        truth, scores = [line["truth"] for line in own], {}
        print(f"{group}: acted on {sum(line['again']['looks'] > 0 for line in own)} of {len(own)}")
        for way in WAYS:
            low, high = np.transpose([line[way]["interval"] for line in own])
            scores[way] = np.array([line[way]["score"] for line in own])
            text = f"  {way:6} score {scores[way].mean():.2f}, width {(high - low).mean():.2f}"
            if None not in truth:
                held = ((low <= truth) & (truth <= high)).mean()
                text += f", RMSE {rmse(truth, scores[way]):.3f}, SRCC {srcc(truth, scores[way]):.3f}, held {held:.2f}"
            print(text)
        if None not in truth:
            for metric in ("rmse", "srcc"):
                print(f"  {metric} changes by {paired_difference(metric, truth, scores['once'], scores['again'])}")


if __name__ == "__main__":
    sys.exit(main())
