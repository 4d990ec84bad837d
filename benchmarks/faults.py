"""First runs that are stopped at any moment, and what the next run makes of it: `python -m benchmarks.faults DIR`.

Each sequence begins in empty folders (cache, MLflow store, program), stops the first run at a moment drawn uniformly
over the time an uninterrupted one takes, by SIGKILL or by Ctrl-C to its whole process group, and runs it again, with
--resume where there is something to resume. The next run must end with exit code 0, the figures and the files of the
uninterrupted one, none of them empty. Commands: evaluate and compile on a small manifest, a folder of images into a
table, a gallery with sidecars beside its photographs, the copying of what it keeps, and the making of a part of the
quickstart data.

DIR keeps a line for each sequence, so that a stopped benchmark goes on; another DIR begins anew.
"""

import argparse
import contextlib
import csv
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from data.manifest import Sample, read_manifest, write_manifest
from data.quickstart import PHOTOGRAPHS, QuickstartPlan, build_quickstart

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = """
compile: {train_scoring: 10, train_mcq: 4, validation_scoring: 10, validation_mcq: 4, rerank: 1}
"""
PLAN = QuickstartPlan(
    photographs=tuple(
        name for split in ("train", "validation", "test")
        for name in islice((name for name, photograph in PHOTOGRAPHS.items() if photograph.split == split), 2)
    ), levels=(1, 3, 5),
)  # fmt: skip
LIMIT_S = 600
CELLS = ("score", "low", "high", "level", "status", "reasoning", "notes", "error")
FIGURES = ("srcc", "plcc", "krcc", "rmse", "accuracy")
GALLERY_CELLS = ("score", "group", "rank", "verdict", "reason", "error")
STORES = {"cache", "mlruns", "dspy"}
"""Folders of a run that belong to no output."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing of the benchmark; exit code 1 where a next run failed or gave other figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=str(__doc__).split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="SIGKILLs for each command")
    parser.add_argument("--interrupts", type=int, default=10, metavar="N", help="Ctrl-Cs for each command")
    parser.add_argument("--commands", default="evaluate,compile,folder,gallery,copy,quickstart", metavar="NAMES")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    # In the background of a shell Ctrl-C is ignored, and children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.yaml").write_text(SETTINGS, "utf-8")
    write_manifest(folder / "manifest.jsonl", _few(build_quickstart(folder / "made", plan=PLAN, progress=False)))
    (folder / "images").mkdir(exist_ok=True)
    for image in sorted(folder.glob("made/quickstart-*/images/*"))[:60]:
        shutil.copy(image, folder / "images")
    log = folder / "sequences.jsonl"
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.is_file() else []
    for command in arguments.commands.split(","):
        past = {(line["signal"], line["number"]): line for line in lines if line["command"] == command}
        usual = past.get(("", 0)) or _noted(log, lines, _usual(command, folder))
        for name, count in (("SIGKILL", arguments.kills), ("SIGINT", arguments.interrupts)):
            for number in range(count):
                if (name, number) not in past:
                    generator = random.Random(f"{arguments.seed} {command} {name} {number}")
                    moment = generator.uniform(0, usual["seconds"])
                    line = _sequence(command, name, moment, folder, usual["figures"])
                    _noted(log, lines, {"command": command, "signal": name, "number": number, **line})
    return _report(lines)


def _few(manifest: Path) -> Iterator[Sample]:
    """Yield the first scoring samples and questions of each split."""
    wanted = Counter({(split, task): count for split in ("train", "validation", "test")
                      for task, count in (("scoring", 10), ("mcq", 4))})  # fmt: skip
    for sample in read_manifest(manifest):
        wanted[sample.split, sample.task] -= 1
        if wanted[sample.split, sample.task] >= 0:
            yield sample


def _words(command: str, folder: Path, run: Path) -> list[str]:
    python = [sys.executable, "-m"]
    if command == "quickstart":
        code = (
            "from pathlib import Path; from benchmarks.faults import PLAN, build_quickstart; "
            f"build_quickstart(Path({str(run / 'cache')!r}), plan=PLAN)"
        )
        return [sys.executable, "-c", code]
    if command == "folder":
        return [*python, "program.assess", str(folder / "images"), "--out", str(run / "table.csv")]
    shared = ["--config", str(folder / "settings.yaml"), "--json"]
    if command in {"gallery", "copy"}:
        flags = ["--xmp", "new"] if command == "gallery" else ["--apply", "copy", "--to", str(run / "kept")]
        return [*python, "program.gallery", str(run / "images"), "--out", str(run / "gallery"), *flags]
    if command == "evaluate":
        return [*python, "program.evaluate", str(folder / "manifest.jsonl"), *shared]
    resume = ["--resume"] if (run / "program" / "candidates.jsonl").is_file() else []
    out = ["--data", str(folder / "manifest.jsonl"), "--out", str(run / "program")]
    return [*python, "program.compile", *out, *shared, *resume]


@contextlib.contextmanager
def _started(command: str, folder: Path, run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process group of its own; its output lies in `run`."""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "AGENTICIQA_CACHE_DIR": str(run / "cache"),
        "AGENTICIQA_MLRUNS_DIR": str(run / "mlruns"), "DSPY_CACHEDIR": str(run / "dspy"),
    }  # fmt: skip
    with (run / "output").open("wb") as output, (run / "errors").open("wb") as errors:
        process = subprocess.Popen(_words(command, folder, run), cwd=ROOT, env=environment, stdout=output,
                                   stderr=errors, start_new_session=True)  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _whole(command: str, folder: Path, run: Path) -> tuple[int, dict[str, Any] | None]:
    """Run a command to its end; return its exit code and what it found. A table that is there is whole."""
    if (run / "table.csv").exists():
        return 0, _figures(command, run)
    with _started(command, folder, run) as process:
        code = process.wait(LIMIT_S)
    return code, _figures(command, run) if code == 0 else None


def _figures(command: str, run: Path) -> dict[str, Any]:
    if command == "quickstart":
        (made,) = (run / "cache").glob("quickstart-*")
        files = sorted(path for path in made.rglob("*") if path.is_file())
        return {str(path.relative_to(made)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    if command == "folder":
        with (run / "table.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        cells = {f"{number} {row['id']}": [row[name] for name in CELLS] for number, row in enumerate(rows)}
        return {**cells, "rows": len(rows)}
    if command in {"gallery", "copy"}:
        return _figures_of_gallery(run)
    found = json.loads((run / "output").read_text("utf-8"))
    records = {"": found} if command == "evaluate" else {name: found[name] for name in ("uncompiled", "compiled")}
    return {f"{name} {figure}".strip(): record[figure] for name, record in records.items() for figure in FIGURES}


def _figures_of_gallery(run: Path) -> dict[str, Any]:
    """Return the table's rows, and the hash of each photograph, sidecar and copy."""
    with (run / "gallery" / "gallery.csv").open(encoding="utf-8", newline="") as file:
        figures: dict[str, Any] = {row["file"]: [row[name] for name in GALLERY_CELLS] for row in csv.DictReader(file)}
    for path in (*run.glob("images/*"), *run.glob("kept/*")):
        figures[str(path.relative_to(run))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return figures


def _files(run: Path) -> dict[str, bool]:
    """Return whether each file of a run's outputs is empty, by its name, hidden ones too."""
    outputs = (path for path in run.rglob("*") if path.relative_to(run).parts[0] not in STORES | {"errors", "output"})
    return {str(path.relative_to(run)): not path.stat().st_size for path in outputs if path.is_file()}


@contextlib.contextmanager
def _fresh(command: str, folder: Path) -> Iterator[Path]:
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    if command in {"gallery", "copy"}:
        shutil.copytree(folder / "images", run / "images")
    yield run


def _usual(command: str, folder: Path) -> dict[str, Any]:
    with _fresh(command, folder) as run:
        started = time.perf_counter()
        code, figures = _whole(command, folder, run)
        if figures is None:
            raise SystemExit(f"{command}: exit code {code} uninterrupted; see {run / 'errors'}")
        seconds = time.perf_counter() - started
        figures["files"] = _files(run)
    return {"command": command, "signal": "", "number": 0, "seconds": seconds, "figures": figures, "fault": None}


def _sequence(command: str, name: str, moment: float, folder: Path, usual: dict[str, Any]) -> dict[str, Any]:
    with _fresh(command, folder) as run:
        with _started(command, folder, run) as process:
            stopped = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                stopped = process.wait(moment)
            if stopped is None:
                os.killpg(process.pid, signal.Signals[name])
                stopped = process.wait(60)
        code, figures = _whole(command, folder, run)
        if figures is not None:
            figures["files"] = _files(run)
        fault = None
        if figures is None:
            fault = f"exit code {code}: {(run / 'errors').read_text('utf-8', 'replace').strip()[-300:]}"
        elif figures != usual:
            fault = f"other figures: {[key for key in {**usual, **figures} if usual.get(key) != figures.get(key)]}"
        elif left := [str(path) for path in run.rglob("*") if path.name.endswith((".tmp", ".partial", "-journal"))]:
            fault = f"left over: {left}"
    return {"moment": round(moment, 3), "stopped": stopped, "fault": fault}


def _noted(log: Path, lines: list[dict[str, Any]], line: dict[str, Any]) -> dict[str, Any]:
    lines.append(line)
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return line


def _report(lines: list[dict[str, Any]]) -> int:
    stops = [line for line in lines if line["signal"]]
    print(f"{'command':12}{'stopped by':12}{'runs':>6}{'ended before':>14}{'next run well':>15}")
    for command, name in dict.fromkeys((line["command"], line["signal"]) for line in stops):
        group = [line for line in stops if (line["command"], line["signal"]) == (command, name)]
        early, well = sum(line["stopped"] == 0 for line in group), sum(line["fault"] is None for line in group)
        print(f"{command:12}{name:12}{len(group):6}{early:14}{well:15}")
    faults = [line for line in stops if line["fault"]]
    print(f"tried {len(stops)}, survived {len(stops) - len(faults)}, failed {len(faults)}")
    for line in faults:
        print(f"{line['command']} {line['signal']} at {line['moment']} s: {line['fault']}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
