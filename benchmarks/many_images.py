"""What judging many images costs: memory and time as they grow, Ray beside threads, kills, shared budgets.

    python -m benchmarks.many_images STEP [--count N] [--folder DIR]

Steps: `rows` (a manifest of N rows and a stand-in program that looks at no pixels), `memory` (N generated images of 64 x
64 and the embedded expert; peaks at a quarter of them and at all), `same` (streamed rows beside rows judged one by one),
`pace` (Ray with 2 workers beside 2 threads, cold), `waiting` (1, 2 and 4 workers on a model server that waits 200 ms),
`kills` (workers and drivers killed within one job), `budget` (never more than N calls over 4 workers). The last four
need the extra [ray]. Each prints one line of JSON. Images are made once and kept in the folder.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from program.agent.loop import AgenticIQA
from program.batch.inputs import gather
from program.batch.rows import BatchRow
from program.batch.running import Question, judge, judge_into
from program.batch.tally import Tally
from program.common.settings import load_settings


class StandIn(AgenticIQA):
    """Answers every question with the same assessment."""

    answer: Any = None

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Return the assessment."""
        return self.answer


def stand_in(image: Path) -> StandIn:
    """Return a program that judged one image and says so of every other."""
    program = StandIn(load_settings())
    program.answer = AgenticIQA.__call__(program, image=str(image))
    return program


def images(folder: Path, count: int) -> Path:
    """Make so many images of 64 x 64 pixels, blocks and noise of several strengths, and return their folder."""
    home = folder / f"images-{count}"
    home.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = home / f"{number:07}.png"
        if not path.exists():
            rng = np.random.default_rng(number)
            blocks = np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((8, 8, 1)))
            noisy = blocks + rng.normal(0, number % 5 * 8, (64, 64, 3))
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path)
    return home


def resident_mb() -> float:
    """Return this process's memory now, in MB."""
    return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * resource.getpagesize() / 1e6


class Watch:
    """The memory at marks of a count of rows."""

    def __init__(self, *marks: int) -> None:
        self.marks, self.seen, self.rows = set(marks), dict[int, float](), 0

    def __call__(self, row: BatchRow) -> None:
        """Count a row."""
        self.rows += 1
        if self.rows in self.marks:
            self.seen[self.rows] = round(resident_mb(), 1)


def rows(folder: Path, count: int) -> dict[str, Any]:
    """Judge a manifest of so many rows with the stand-in."""
    image = images(folder, 1) / "0000000.png"
    manifest = folder / f"rows-{count}.jsonl"
    with manifest.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": f"lab/{n:09}", "image": str(image)}) + "\n" for n in range(count))
    watch, out = Watch(count // 100, count // 4, count // 2, count), folder / f"rows-{count}.parquet"
    began = time.perf_counter()
    judge_into(stand_in(image), gather([str(manifest)]), Question(), out, progress=False, each=watch)
    seconds = time.perf_counter() - began
    written = sum(1 for _ in out.iterdir())
    return {"rows": watch.rows, "ms_a_row": round(1000 * seconds / count, 3), "mb_at": watch.seen, "parts": written}


def memory(folder: Path, count: int) -> dict[str, Any]:
    """Judge so many images with the embedded expert."""
    home, watch = images(folder, count), Watch(count // 20, count // 4, count // 2, count)
    tally, out = Tally(), folder / f"memory-{count}.jsonl"
    began = time.perf_counter()

    def each(row: BatchRow) -> None:
        watch(row)
        tally.add(row)

    judge_into(AgenticIQA(), gather([str(home)]), Question(), out, progress=False, each=each)
    seconds = time.perf_counter() - began
    return {
        "images": watch.rows, "ms_an_image": round(1000 * seconds / count, 1), "mb_at": watch.seen,
        "failed": tally.counts["failed"], "mean_score": tally.mean_score,
    }  # fmt: skip


def same(folder: Path, count: int) -> dict[str, Any]:
    """Compare the streamed table with rows judged one at a time and held in memory."""
    home, out, program = images(folder, count), folder / f"same-{count}.jsonl", AgenticIQA()
    judge_into(program, gather([str(home)]), Question(), out, progress=False)
    held = sorted(judge(program, list(gather([str(home)])), Question(), workers=1, progress=False), key=lambda r: r.id)
    streamed = [BatchRow.model_validate_json(line) for line in out.read_text("utf-8").splitlines()]
    equal = [a.model_copy(update={"seconds": b.seconds}) == b for a, b in zip(held, streamed, strict=True)]
    return {"images": len(equal), "equal": sum(equal)}


STEPS = {step.__name__: step for step in (rows, memory, same)}


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("many-images"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("AGENTICIQA_CACHE_DIR", str(given.folder / "cache"))
    print(json.dumps({"step": given.step, **STEPS[given.step](given.folder, given.count)}))


if __name__ == "__main__":
    main()
