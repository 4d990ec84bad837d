"""Golden records: what the program answers, figures and calls, kept before a change of structure and compared after it.

    python -m benchmarks.golden --write benchmarks/golden.json
    python -m benchmarks.golden --check benchmarks/golden.json
    python -m benchmarks.golden --write benchmarks/golden.json --only surface

Sections: `assessments` (20 photographs, every kind of question, both languages), `evaluation` (two evaluations with
baselines), `compile` (a short seeded one, and what its program answers), `saved` (the program that an earlier version
saved, loaded and asked), `wire` (requests, repeats, budgets and caches against a server on the loopback), `service`
(HTTP) and `surface` (help texts, tools, predictors, signatures). Each runs in a process of its own, with empty caches
and without keys or network, through what is public: commands, `program.AgenticIQA`, `program.load`, `signatures`, HTTP.

`--check` exits with 1 and lists each value that differs: texts, numbers of things and hashes have to be equal, figures
to 1e-6 (of their size, from 1 up). Compare on the machine that wrote the file: another processor's tools read up to
1e-4 otherwise. Times, run names, addresses and folders are left out. A change that is meant is
named where it is made, and its section alone is written anew with `--only`.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ("assessments", "compile", "wire", "evaluation", "surface", "service", "saved")
"""The longest ones first: two are recorded at a time, and `saved` at the end."""
TOLERANCE = 1e-6
SAVED = "program.json"
"""A key of `saved` and the name of its file: the program that is loaded, without the images of its demos."""
SHOWN_CHARS, SHOWN_LINES = 160, 40

Records = dict[str, dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check a file of records; returns 1 where something differs."""
    summary, _, rest = str(__doc__).partition("\n")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden", description=summary, epilog=rest,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", metavar="FILE", type=Path, help="record, and write it")
    action.add_argument("--check", metavar="FILE", type=Path, help="record, and compare with it")
    parser.add_argument("--only", metavar="SECTION", action="append", choices=SECTIONS, help="these sections only")
    parser.add_argument("--data", metavar="DIR", type=Path, help="keep the quickstart images there for the next run")
    parser.add_argument("--all", action="store_true", help=f"list every difference, not the first {SHOWN_LINES}")
    arguments = parser.parse_args(argv)
    file = arguments.write or arguments.check
    known = read(file) if arguments.check or file.exists() else {}
    sections = tuple(s for s in SECTIONS if s in (arguments.only or SECTIONS))
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        records = recorded(sections, known, Path(folder), arguments.data or Path(folder) / "data")
    if arguments.write:
        if not all(records.values()):
            return 1
        write(file, {s: {**known, **records}[s] for s in SECTIONS if s in {**known, **records}})
        return 0
    return report({s: list(differences(known.get(s, {}), records[s])) for s in sections}, everything=arguments.all)


def recorded(sections: Sequence[str], known: Records, folder: Path, data: Path) -> Records:
    """Record the sections, two at a time; `saved` takes its program from `known`, else from this run's compile."""
    images = quickstart(data.resolve())
    records: Records = {}

    def put(section: str) -> None:
        started = time.perf_counter()
        records[section] = record(section, folder / section, images)
        sys.stderr.write(f"{section}: {time.perf_counter() - started:.0f} s\n")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(put, (section for section in sections if section != "saved")))
    document = known.get("saved", {}).get(SAVED) or records.get("compile", {}).get(SAVED)
    records.get("compile", {}).pop(SAVED, None)
    if "saved" in sections:
        if document is None:
            raise SystemExit("error: saved: there is no program yet; record the section compile with it")
        (folder / "saved").mkdir()
        (folder / "saved" / SAVED).write_text(json.dumps(document, ensure_ascii=False), "utf-8")
        put("saved")
        if records["saved"]:
            records["saved"] = {SAVED: document, **records["saved"]}
    return records


def quickstart(data: Path) -> Path:
    """Return the folder of the quickstart images, made by a compile's dry run where it is not there."""
    environment = {**os.environ, "AGENTICIQA_CACHE_DIR": str(data), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "program.compile", "--data", "quickstart", "--dry-run"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return max(data.glob("quickstart-*"), key=lambda path: path.stat().st_mtime)


def record(section: str, folder: Path, images: Path) -> dict[str, Any]:
    """Return one section's values, recorded by a process of its own; none where that fails."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.golden_records", section, str(folder), str(images)]
    if subprocess.run(command, cwd=ROOT, env=environment(folder), check=False).returncode:
        sys.stderr.write(f"error: {section}: could not be recorded\n")
        return {}
    values: dict[str, Any] = json.loads((folder / "record.json").read_text("utf-8"))
    return values


def environment(folder: Path) -> dict[str, str]:
    """Return an environment without keys, settings or caches of the user's, with one thread for each computation."""
    private = ("AGENTICIQA_", "MLFLOW_", "DSPY_", "TORCH_", "HF_", "XDG_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(private) and not k.endswith("_API_KEY")}
    return {
        **kept, "HOME": str(folder), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "100",
        "AGENTICIQA_CACHE_DIR": str(folder / "cache"), "AGENTICIQA_MLRUNS_DIR": str(folder / "mlruns"),
        "DSPY_CACHEDIR": str(folder / "dspy"), "MLFLOW_DISABLE_TELEMETRY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip


def read(file: Path) -> Records:
    """Return the records of a file."""
    sections: Records = json.loads(file.read_text("utf-8"))["sections"]
    return sections


def write(file: Path, records: Records) -> None:
    """Write records, one entry of a section on each line, so that a diff names what changed."""
    parts = []
    for section, entries in records.items():
        lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in entries.items()]
        parts.append(f"{json.dumps(section)}: {{\n" + ",\n".join(lines) + "\n}")
    file.write_text('{"format": 1, "sections": {\n' + ",\n".join(parts) + "\n}}\n", "utf-8")


def differences(known: Any, value: Any, place: str = "") -> Iterator[str]:
    """Yield a line for each place where a value is not as known."""
    if isinstance(known, Mapping) and isinstance(value, Mapping):
        for name in {**known, **value}:
            inner = f"{place}/{name}" if place else str(name)
            if name not in value or name not in known:
                yield f"{inner}: {'gone' if name in known else 'new'}: {_short(known.get(name, value.get(name)))}"
            else:
                yield from differences(known[name], value[name], inner)
    elif isinstance(known, list) and isinstance(value, list) and len(known) == len(value):
        for number, (old, new) in enumerate(zip(known, value, strict=True)):
            yield from differences(old, new, f"{place}[{number}]")
    elif not _equal(known, value):
        yield f"{place}: {_parted(known, value)}"


def report(found: Mapping[str, Sequence[str]], *, everything: bool) -> int:
    """Print the differences by section and return the exit code."""
    for section, lines in found.items():
        print(f"{section}: {f'{len(lines)} differences' if lines else 'equal'}")
        shown = lines if everything else lines[:SHOWN_LINES]
        for line in shown:
            print(f"  {line}")
        if len(shown) < len(lines):
            print(f"  ... and {len(lines) - len(shown)} more (--all)")
    return 1 if any(found.values()) else 0


def _equal(known: Any, value: Any) -> bool:
    if isinstance(known, float) and isinstance(value, float):
        both_nan = math.isnan(known) and math.isnan(value)
        return both_nan or abs(known - value) <= TOLERANCE * max(1.0, abs(known), abs(value))
    return type(known) is type(value) and bool(known == value)


def _parted(known: Any, value: Any) -> str:
    """Show two values, long texts from shortly before where they part."""
    start = 0
    if isinstance(known, str) and isinstance(value, str):
        equal = next((n for n, (a, b) in enumerate(zip(known, value, strict=False)) if a != b), 0)
        start = max(0, equal - SHOWN_CHARS // 4)
        known, value = known[start:], value[start:]
    return f"{'...' if start else ''}{_short(known)} -> {_short(value)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}... ({len(text)} characters)"


if __name__ == "__main__":
    sys.exit(main())
