"""How large the house is, and how much of it one piece of work crosses: `python -m benchmarks.house`.

Python lines, files and functions are those of git's files outside tests/ and benchmarks/, as they stand. A function's
lines are counted with its docstring and without; one inside another counts for both. Loose modules are `program/*.py`
beside `__init__.py` and the doors.

Files crossed are the distinct files under program/, optimizers/, data/, signatures/ and configs/ in which a Python
function (lambda, comprehension) is called, in any thread, as `sys.setprofile` and `threading.setprofile` see it: for
the third assessment of one photograph by the embedded expert, its readings in the cache; and for the third time that
the Planner is asked one question of it. A small compile is a whole process of `python -m program.compile` on 24 made
images; its files are counted with those of which only the module's body ran, and without them. What a photograph shows
decides which of the expert's files it crosses: one without visible distortion crosses a few less.

`--times` adds the median of 5 processes from start to a cached result, in seconds.
"""

import argparse
import ast
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.resources import files as files_of
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("program", "optimizers", "data", "signatures", "configs")
DOORS = ("compile", "evaluate", "assess", "calibrate", "doctor", "runs", "serve")
RUNS = 5
SHORT = {
    "compile": {"train_scoring": 8, "train_mcq": 2, "validation_scoring": 6, "validation_mcq": 2, "rerank": 1},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the measures."""
    summary, _, rest = str(__doc__).partition("\n")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=summary, epilog=rest,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON, with the names of the files")
    parser.add_argument("--times", action="store_true", help="also seconds to a cached result")
    parser.add_argument("--part", choices=("crossed", "compiled"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.part:
        json.dump(crossed() if arguments.part == "crossed" else compiled(), sys.stdout)
        return 0
    measures = {**sizes(), **in_process("crossed"), **in_process("compiled")}
    if arguments.times:
        measures["seconds from start to a cached result"] = cached_seconds()
    if arguments.json:
        print(json.dumps(measures, indent=1))
    else:
        for name, value in measures.items():
            print(f"{name}: {len(value) if isinstance(value, list) else value}")
    return 0


# Sizes


def sizes() -> dict[str, Any]:
    """Return lines, the 90th percentiles of file and function lines, and the loose modules."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S607
    names = [name for name in listed.stdout.split() if name.partition("/")[0] not in {"tests", "benchmarks"}]
    texts = {name: (ROOT / name).read_text("utf-8") for name in names if (ROOT / name).is_file()}
    lines = {name: text.count("\n") for name, text in texts.items()}
    functions = [lengths for text in texts.values() for lengths in function_lines(text)]
    whole, bare = ([lengths[n] for lengths in functions] for n in (0, 1))
    loose = [name for name in names if name.startswith("program/") and name.count("/") == 1]
    return {
        "Python lines outside tests and benchmarks": sum(lines.values()),
        "of them in program, optimizers, data, signatures and configs":
            sum(count for name, count in lines.items() if name.partition("/")[0] in ROOMS),
        "Python files": len(lines),
        "p90 file lines": ninth_decile(list(lines.values())),
        "longest file": max(lines.values()),
        "functions": len(functions),
        "p90 function lines": ninth_decile(whole),
        "p90 function lines without docstring": ninth_decile(bare),
        "longest function without docstring": max(bare),
        "loose modules in program/": [name for name in loose if Path(name).stem not in {*DOORS, "__init__"}],
    }  # fmt: skip


def function_lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield each function's lines, with its docstring and without."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            documented = ast.get_docstring(node, clean=False) is not None
            docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
            whole = (node.end_lineno or 0) - node.lineno + 1
            yield whole, whole - docstring


def ninth_decile(values: Sequence[int]) -> float:
    """Return the 90th percentile, inclusive.

    >>> ninth_decile(range(11))
    9.0
    """
    return round(statistics.quantiles(values, n=10, method="inclusive")[-1], 1)


# Files crossed


@contextmanager
def calls() -> Iterator[set[CodeType]]:
    """Collect the code of every Python function that is called inside the block, in any thread that starts there."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield codes
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def files(codes: set[CodeType], *, bodies: bool = False) -> list[str]:
    """Return the files of the house that hold the codes; with `bodies` those of modules count as well."""
    rooms = tuple(str(ROOT / room) + os.sep for room in ROOMS)
    names = {code.co_filename for code in codes if bodies or code.co_name != "<module>"}
    return sorted(os.path.relpath(name, ROOT) for name in names if name.startswith(rooms))


def crossed() -> dict[str, list[str]]:
    """Return the files that a warm assessment crosses, and a repeated question to the Planner."""
    from program import AgenticIQA

    iqa, image = AgenticIQA(), photograph()
    asked: list[dict[str, Any]] = []
    planned = iqa.planner.forward
    # What the program asks its Planner is what is asked of it here.
    iqa.planner.forward = lambda **inputs: asked.append(inputs) or planned(**inputs)
    iqa(image=image)
    del iqa.planner.forward
    work: dict[str, Callable[[], object]] = {
        "files a warm assessment crosses": lambda: iqa(image=image),
        "files a text question to the Planner crosses": lambda: iqa.planner(**asked[0]),
    }
    counted = {}
    for name, call in work.items():
        call()
        with calls() as codes:
            call()
        counted[name] = files(codes)
    return counted


def compiled() -> dict[str, list[str]]:
    """Return the files of a small compile, run in this process."""
    folder = Path(os.environ["HOME"])
    lines = []
    for number, image in enumerate(made_images(folder, 24)):
        split, level = ("train", "validation", "test")[number % 3], number % 4
        shared = {"image": image, "group": str(number), "split": split}
        lines.append({"id": f"s{number}", "mos": 4.8 - 1.2 * level, **shared})
        question = {"query": "Is the image blurry?", "options": {"A": "Yes", "B": "No"}}
        lines += [{"id": f"q{number}", **question, "answer": "AB"[level < 2], **shared}] * (number % 4 < 2)
    manifest, config = folder / "manifest.jsonl", folder / "short.yaml"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    config.write_text(json.dumps(SHORT), "utf-8")  # JSON is YAML
    sys.argv = ["compile", "--data", str(manifest), "--config", str(config), "--out", str(folder / "program"), "--json"]
    try:
        with open(os.devnull, "w", encoding="utf-8") as nothing, redirect_stdout(nothing), calls() as codes:
            runpy.run_module("program.compile", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    return {"files a small compile runs": files(codes, bodies=True), "of them not only imported": files(codes)}


def photograph() -> str:
    """Return the path of a photograph that scikit-image ships."""
    return str(files_of("skimage").joinpath("data", "chelsea.png"))


def made_images(folder: Path, count: int) -> list[str]:
    """Write seeded images of coarse blocks, each fourth sharp and the others ever more blurred; returns their paths."""
    import numpy as np
    from PIL import Image

    rng, paths = np.random.default_rng(0), []
    for number in range(count):
        pixels = np.kron(rng.integers(0, 256, (24, 32, 3)), np.ones((8, 8, 1))).astype(np.uint8)
        scale = number % 4
        picture = Image.fromarray(pixels).resize((256 >> scale, 192 >> scale)).resize((256, 192))
        paths.append(str(folder / f"{number}.png"))
        picture.save(paths[-1])
    return paths


# Processes


def in_process(part: str) -> dict[str, Any]:
    """Return a part's figures, from a process with empty caches."""
    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        command = [sys.executable, "-m", "benchmarks.house", "--part", part]
        done = subprocess.run(command, cwd=ROOT, env=environment(folder), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def cached_seconds() -> float:
    """Return the median seconds of `python -m program.assess` on an image whose readings are in the cache."""
    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        command = [sys.executable, "-m", "program.assess", photograph()]
        seconds = []
        for _ in range(RUNS + 1):
            started = time.perf_counter()
            subprocess.run(command, cwd=ROOT, env=environment(folder), check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - started)
    return round(statistics.median(seconds[1:]), 2)


def environment(folder: str) -> dict[str, str]:
    """Return an environment with caches in a folder, and without keys or settings of the user's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AGENTICIQA_", "MLFLOW_")) and k[-4:] != "_KEY"}
    return {
        **kept, "HOME": folder, "PYTHONPATH": str(ROOT), "AGENTICIQA_CACHE_DIR": f"{folder}/cache",
        "AGENTICIQA_MLRUNS_DIR": f"{folder}/mlruns", "DSPY_CACHEDIR": f"{folder}/dspy", "TQDM_DISABLE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
