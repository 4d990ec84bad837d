"""What the quickstart compile gains and takes: over seeds, over photographs, and by other standards.

    python benchmarks/quickstart_compile.py [--seeds 3] [--parts seeds,photographs,standards]

| part | what is compiled |
|---|---|
| seeds | the command as it ships, the first seed in an empty cache folder (packages are installed already) |
| photographs | each of the nine left out in turn: it tests, the next two choose, the other six teach |
| standards | three other ones, drawn at random: a weight of 0 .. 2 on each category, a shift of half a level at most |

The command's own interval is over images of its two test photographs; that of the second part, over all nine, speaks of
new ones. Processor seconds hardly depend on what else the machine does; peak memory is the compiling process's own
(maximum resident set).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from data.catalogue import resolve_dataset
from data.quickstart import HouseStandard
from optimizers.compiling import compile_program
from optimizers.job import prepare_job
from optimizers.report import Compiled
from program.common.settings import Settings, load_settings
from program.evaluation.figures import compare, summarize
from program.evaluation.intervals import Figure
from signatures.schemas import DistortionCategory

METRICS = ("srcc", "rmse", "accuracy")


def main() -> None:
    """Run the parts and print a line for each compile."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parts", default="seeds,photographs,standards")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        settings = load_settings(overrides={"cache_dir": str(work / "cache"), "compile": {"baselines": False}})
        for part in arguments.parts.split(","):
            print(f"\n{part}", flush=True)
            if part == "seeds":
                over_seeds(work, arguments.seeds)
            elif part == "photographs":
                over_photographs(work, settings)
            else:
                over_standards(work, settings)


def over_seeds(work: Path, seeds: int) -> None:
    """Run the command with each seed."""
    environment = {**os.environ, "AGENTICIQA_CACHE_DIR": f"{work}/cache", "AGENTICIQA_MLRUNS_DIR": f"{work}/mlruns"}
    for seed in range(seeds):
        started, spent = time.perf_counter(), _processor_seconds()
        command = [sys.executable, "-m", "program.compile", "--json", "--seed", str(seed), "--out", f"{work}/{seed}"]
        done = subprocess.run(
            command, cwd=Path(__file__).parents[1], env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        result = json.loads(done.stdout)
        # ru_maxrss of children is the largest of them so far; kilobytes on Linux.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(
            f"seed {seed}: {time.perf_counter() - started:.0f} s ({_processor_seconds() - spent:.0f} s of processor), "
            f"peak {peak:.2f} GiB, phases {result['seconds']}"
        )
        figures = {name: Figure(**result["difference"][name]) for name in METRICS}
        tell(*({n: result[which][n]["value"] for n in METRICS} for which in ("uncompiled", "compiled")), figures)
        print(f"    {' '.join(result['learned'])}", flush=True)


def over_photographs(work: Path, settings: Settings) -> None:
    """Leave each photograph out in turn, and compare on all of them together."""
    rows = _rows(settings)
    names = sorted({row["group"] for row in rows})
    before, after = [], []
    for place, name in enumerate(names):
        choosing = {names[(place + step) % len(names)] for step in (1, 2)}
        split = {n: "test" if n == name else "validation" if n in choosing else "train" for n in names}
        result = _compiled(work, settings, [{**row, "split": split[row["group"]]} for row in rows])
        before += result.uncompiled.rows
        after += result.compiled.rows
        print(
            f"{name}: SRCC {result.uncompiled.srcc} -> {result.compiled.srcc}, {' '.join(result.learned)}", flush=True
        )
    ends = ({n: summarize(each).figures[n].value for n in METRICS} for each in (before, after))
    tell(*ends, compare(before, after))


def over_standards(work: Path, settings: Settings) -> None:
    """Compile by standards that nobody chose."""
    rows = _rows(settings)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        weights = {c: float(rng.choice([0, 0.5, 1, 1.5, 2])) for c in get_args(DistortionCategory)}
        standard = HouseStandard(weights, shift=float(rng.choice([-0.5, -0.25, 0, 0.25, 0.5])))
        result = _compiled(work, settings, [_scored(row, standard.score) for row in rows])
        told = {name: weight for name, weight in weights.items() if weight != 1}
        print(f"{told}, shift {standard.shift:+g}: {' '.join(result.learned)}")
        ends = ({n: record.figures[n].value for n in METRICS} for record in (result.uncompiled, result.compiled))
        tell(*ends, result.differences)


def tell(
    before: Mapping[str, float | None], after: Mapping[str, float | None], gains: Mapping[Any, Figure]
) -> None:  # fmt: skip
    """Print figures of test before and after with the gain's interval and what that is over."""
    for name in METRICS:
        gain = gains[name]
        print(
            f"    {name}: {before[name]:.3f} -> {after[name]:.3f}, {gain.value_text('+')} {gain.ends_text('+')} "
            f"({gain.n} of {gain.groups} photographs, {gain.method})",
            flush=True,
        )


def _rows(settings: Settings) -> list[dict[str, Any]]:
    manifest = resolve_dataset("quickstart", settings.cache_dir, progress=False)
    rows = [json.loads(line) for line in manifest.read_text("utf-8").splitlines()]
    return [{**row, "image": str((manifest.parent / row["image"]).resolve())} for row in rows]


def _scored(row: Mapping[str, Any], score: Callable[[str, int], float]) -> dict[str, Any]:
    level = (row.get("metadata") or row).get("level")
    return {**row, "mos": score(row["distortion"], level)} if row.get("mos") is not None else dict(row)


def _compiled(work: Path, settings: Settings, rows: list[dict[str, Any]]) -> Compiled:
    data = work / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    with tempfile.TemporaryDirectory(dir=work) as out:
        return compile_program(prepare_job(settings, str(data), out=Path(out) / "program"))


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
