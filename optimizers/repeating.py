"""A compile with several seeds: the spread of what it gains, and the program that did best on validation."""

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from optimizers.compiling import Compiled, compile_program
from optimizers.job import Job

__all__ = ("compile_seeds", "spread")


def compile_seeds(job: Job, count: int, *, console: Console | None = None) -> tuple[Compiled, list[Compiled]]:
    """Return the compile that did best on validation, its program in the job's folder, and all of them.

    Seeds go up from the job's; each keeps its own folder beside the job's ("-seed3"). The best one's test figures are
    those of one seed: the spread says what another would give.
    """
    if count == 1:
        result = compile_program(job, console=console)
        return result, [result]
    first = job.settings.seed
    folders = [job.out.with_name(f"{job.out.name}-seed{first + n}") for n in range(count)]
    results = [compile_program(_seeded(job, first + n, folder), console=console) for n, folder in enumerate(folders)]
    best = max(results, key=lambda r: r.validation[r.chosen]["score"])
    if job.out.exists():
        shutil.rmtree(job.out)
    shutil.copytree(best.folder, job.out)
    return best, results


def _seeded(job: Job, seed: int, folder: Path) -> Job:
    """Return the job of one seed; of several that were interrupted, the later ones were not begun."""
    begun = seed == job.settings.seed or (folder / "run.json").is_file()
    return replace(job.seeded(seed, folder), resume=job.resume and begun)


def spread(results: Sequence[Compiled]) -> dict[str, Any]:
    """Return each seed's choice and test gain, with mean, standard deviation and range of the gains by metric."""
    gains: dict[str, list[float]] = {}
    for result in results:
        for name, figure in result.differences.items():
            if figure.value is not None:
                gains.setdefault(str(name), []).append(figure.value)
    return {
        "seeds": [
            {"seed": r.seed, "chosen": r.chosen, "program": str(r.folder),
             "gain": {str(n): f.model_dump(mode="json") for n, f in r.differences.items()}}
            for r in results
        ],
        "gains": {
            name: {
                "mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else None,
                "low": min(values), "high": max(values), "n": len(values),
            }
            for name, values in gains.items()
        },
    }  # fmt: skip
