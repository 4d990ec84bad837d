"""What looking again is worth: how often it acts, and interval, error and order with it and without.

    python -m benchmarks.looking_again answers.jsonl [MANIFEST ...] [--shown 1024] [--photographs 8]

Made cases, from packaged photographs in a fixed order, each told by people's mean scores of its damage (KADID-10k):
a tool that fails, beside a reference; a subject blurred before a sharp ground, 12 megapixels; a damaged region of 5 %
of such a picture, in the middle and in a corner, told by the difference from the undamaged one alone. Then the
validation rows of each MANIFEST, never its test rows. `--shown 256`: as if the network saw so many pixels of a longer
side, so that photographs of 500 pixels are judged reduced. Each line of the file is one picture, judged with
`assessment.look_again` and without any second look; a line that is there is not worked out again.
"""

import argparse
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from data.distortions import distort, generator_for, level_mean
from data.manifest import read_manifest
from data.quickstart import PHOTOGRAPHS, UNDISTORTED, load_photograph, photograph_bytes
from program import AgenticIQA
from program.common.settings import load_settings
from program.evaluation.metrics import rmse, srcc
from program.images.store import IMAGES
from program.tools import network
from program.tools.registry import Measurement
from program.tools.runner import ToolRunner

Pixels = NDArray[np.uint8]
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
    fails: bool = False


class _FirstFails(ToolRunner):
    """Tools of which the first that is asked fails."""

    asked: str | None = None

    def measure(self, tool_name: str, *arguments: Any, **named: Any) -> Measurement:
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
    parser.add_argument("--photographs", type=int, default=8)
    given = parser.parse_args(argv)
    network.SHOWN_PX = given.shown
    done = {(line["group"], line["name"]) for line in _lines(given.lines)}
    programs = {way: _program(asked) for way, asked in WAYS.items()}
    for case in _cases(given.manifests, given.photographs, given.shown):
        if (case.group, case.name) not in done:
            with given.lines.open("a", encoding="utf-8") as file:
                with IMAGES.borrow():
                    file.write(json.dumps(_judged(case, programs)) + "\n")
    _show(_lines(given.lines))
    return 0


def _program(asked: dict[str, Any]) -> AgenticIQA:
    return AgenticIQA(load_settings(overrides={"cache": False, "assessment": asked}))


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def _cases(manifests: Sequence[Path], photographs: int, shown: int) -> Iterator[Case]:
    for manifest in manifests:
        for sample in read_manifest(manifest):
            if sample.split == "validation" and sample.quality is not None:
                group = f"{manifest.parent.name} seen at {shown}"
                yield Case(group, sample.id, sample.image, float(sample.quality), sample.reference)
    names = sorted(PHOTOGRAPHS)[:photographs]
    for place, name in enumerate(names):
        small = load_photograph(name)
        for level in LEVELS:
            made = distort(small, BLUR, level, generator_for(name, BLUR, level))
            yield Case("a tool fails", f"{name} {level}", made, level_mean(BLUR, level).mos, small, fails=True)
        ground = _spread(names[place - 1], WIDTH, HEIGHT)
        subject = _spread(name, SUBJECT, SUBJECT)
        yield Case("subject as it is", name, _placed(ground, subject, 0.5), UNDISTORTED)
        for level in LEVELS:
            made = distort(subject, BLUR, level, generator_for(name, level))
            truth = level_mean(BLUR, level).mos
            yield Case("subject blurred", f"{name} {level}", _placed(ground, made, 0.5), truth)
        damage = DAMAGES[place % len(DAMAGES)]
        made = distort(subject[:REGION, :REGION], damage, LEVELS[-1], generator_for(name, damage))
        yield Case("region as it is", name, ground, None)
        for where, share in {"middle": 0.5, "corner": 0.1}.items():
            yield Case(f"region damaged, {where}", name, _placed(ground, made, share), None)


def _spread(name: str, width: int, height: int) -> Pixels:
    """Return a photograph at its own size, mirrored to fill a frame, so that it is sharp everywhere."""
    pixels = np.asarray(Image.open(io.BytesIO(photograph_bytes(name))).convert("RGB"))
    down, across = (max(0, wanted - side) for wanted, side in zip((height, width), pixels.shape, strict=False))
    return np.pad(pixels, ((0, down), (0, across), (0, 0)), mode="symmetric")[:height, :width]


def _placed(ground: Pixels, part: Pixels, share: float) -> Pixels:
    """Return a ground with a part of it in its place, its corner at a share of what is left of each side."""
    top, left = (round(share * (whole - own)) for whole, own in zip(ground.shape[:2], part.shape[:2], strict=True))
    made = ground.copy()
    made[top : top + part.shape[0], left : left + part.shape[1]] = part
    return made


def _judged(case: Case, programs: dict[str, AgenticIQA]) -> dict[str, Any]:
    line: dict[str, Any] = {"group": case.group, "name": case.name, "truth": case.truth}
    image = IMAGES.add(case.image).url  # once for both ways: what the second takes is its own
    for way, program in programs.items():
        runner = _FirstFails if case.fails else ToolRunner
        program.resources.__dict__["runner"] = runner(program.resources.settings)
        result = program(image=image, reference=case.reference)
        low, high = result.score_interval
        line[way] = {
            "score": result.quality_score, "width": high - low, "holds": case.truth and low <= case.truth <= high,
            "looks": result.usage.replans, "seconds": result.usage.seconds["total"], "status": result.status,
        }  # fmt: skip
    return line


def _show(lines: Sequence[dict[str, Any]]) -> None:
    """Print a row for each group: without a second look, then with it."""
    for group in dict.fromkeys(line["group"] for line in lines):
        own = [line for line in lines if line["group"] == group]
        acted = sum(line["again"]["looks"] > 0 for line in own)
        print(f"{group}: acted on {acted} of {len(own)}")
        for way in WAYS:
            answers = [line[way] for line in own]
            means = {key: float(np.mean([answer[key] for answer in answers])) for key in ("score", "width", "seconds")}
            text = "  ".join(f"{key} {value:.2f}" for key, value in means.items())
            told = [(line["truth"], line[way]["score"]) for line in own if line["truth"] is not None]
            if told:
                truth, scores = (list(column) for column in zip(*told, strict=True))
                held = np.mean([bool(answer["holds"]) for answer in answers])
                text += f"  RMSE {rmse(truth, scores):.3f}  SRCC {srcc(truth, scores):.3f}  in the interval {held:.2f}"
            degraded = sum(answer["status"] != "ok" for answer in answers)
            print(f"  {way:6} {text}  not ok {degraded}")


if __name__ == "__main__":
    sys.exit(main())
