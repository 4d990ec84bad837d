"""What each optimizer teaches a simulated student whose skill depends on its instructions and demos.

    python -m benchmarks.optimizers_on_student --work FOLDER [--optimizers 'gepa;mipro'] [--task mcq] [--control]

Everything runs over real HTTP against `tests/student.py` on a loopback server: a simulation, labelled so wherever its
figures stand. Images are the quickstart's, split anew by photograph for every seed (200 train, 100 validation, 400
test scores, and questions); five seeds draw five students. A line for each compile is kept in FOLDER/results.jsonl,
and one that is there is not run again. `--report` prints the table of docs/log.md.
"""

import argparse
import importlib.util
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from data.catalogue import resolve_dataset
from optimizers.compiling import compile_program
from optimizers.job import prepare_job
from optimizers.objectives import Objective
from program.common.settings import load_settings

OPTIMIZERS = ("labeled", "bootstrap", "random-search", "rubric", "rubric,random-search", "mipro", "gepa")
SIZES = {"train": (200, 40), "validation": (100, 40), "test": (400, 120)}
BUDGETS = {
    "gepa": {"metric_calls": 480, "search_samples": 40},
    "mipro": {"demos": 4, "candidates": 6, "trials": 11, "search_samples": 40},
    "random-search": {"demos": 8, "bootstrapped": 4, "starts": 4, "search_samples": 40},
    "labeled": {"demos": 8}, "bootstrap": {"demos": 8, "bootstrapped": 4},
}  # fmt: skip
"""About 480 program runs each, so that gains are compared at equal cost."""
KIND = ("obeys", "optimizer", "roles", "feedback", "task")
"""What makes a line of the table; the control does not obey."""


def of_tests(name: str) -> Any:
    """Load a module of the tests, which are no package."""
    path = Path(__file__).resolve().parents[1] / "tests" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def split_anew(manifest: Path, out: Path, seed: int, task: str) -> Path:
    """Write the quickstart's samples (of one task, or "both") with other splits, drawn by photograph."""
    rows = [json.loads(line) for line in manifest.read_text("utf-8").splitlines()]
    groups = sorted({row["group"] for row in rows})
    rng = random.Random(seed)
    rng.shuffle(groups)
    of = {g: "test" if i < 4 else "validation" if i < 6 else "train" for i, g in enumerate(groups)}
    rng.shuffle(rows)
    lines, taken = [], {}
    for row in rows:
        split, kind = of[row["group"]], int(bool(row.get("options")))
        if task == ("scoring", "mcq")[1 - kind]:
            continue
        taken[split, kind] = taken.get((split, kind), 0) + 1
        if taken[split, kind] <= SIZES[split][kind]:
            image = str((manifest.parent / row["image"]).resolve())
            # The student was measured on people's scores; the quickstart's own ask for a rule that it does not know.
            score = {"mos": row["people_mean"]} if "people_mean" in row else {}
            lines.append(json.dumps({**row, **score, "image": image, "split": split}))
    out.write_text("\n".join(lines) + "\n", "utf-8")
    return out


def compiled(
    work: Path, seed: int, optimizer: str, *, obeys: bool, roles: str, feedback: str, task: str
) -> dict[str, Any]:  # fmt: skip
    """Compile once and return what came of it."""
    loopback, simulation = of_tests("loopback"), of_tests("student")
    settings = load_settings(overrides={
        "seed": seed, "cache_dir": str(work / "cache"), "compile": {"baselines": False, "workers": 4},
        "optimizers": {"model": BUDGETS},
    })  # fmt: skip
    manifest = resolve_dataset("quickstart", settings.cache_dir, progress=False)
    data = split_anew(manifest, work / f"split-{seed}-{task}.jsonl", seed, task)
    student = simulation.Student(seed, obeys=obeys, cache_dir=settings.cache_dir)
    words = Objective.feedback
    if feedback == "bare":
        Objective.feedback = lambda self, example, assessment, role=None: f"{self.score(example, assessment):.2f}"
    try:
        with loopback.Loopback(rules=student.rules, token_probabilities=0, keep=False) as server:
            name = f"openai/{'student' if obeys else 'control'}-{seed}"
            modelled = settings.with_model(name, server.base, {"reflection": f"openai/writer-{seed}-{feedback}"})
            started = time.perf_counter()
            out = work / "programs" / "-".join([name[7:], optimizer, roles, feedback, task]).replace(",", "+")
            job = prepare_job(modelled, str(data), optimizer, out, roles=roles)
            result = compile_program(job)
            stats = server.stats()
    finally:
        Objective.feedback = words
    figures = {
        name: [d.value, d.low, d.high] for name, d in result.differences.items() if name in {"srcc", "rmse", "accuracy"}
    }
    table = result.validation
    gained = table[result.chosen]["score"] - table["uncompiled"]["score"]
    return {
        "seed": seed, "optimizer": optimizer, "obeys": obeys, "roles": roles, "feedback": feedback, "task": task,
        "chosen": result.chosen, "differences": figures, "validation_gain": gained,
        "uncompiled": {n: result.uncompiled.figures[n].value for n in figures},
        "calls": stats["requests"], "tokens": stats["prompt_tokens"] + stats["completion_tokens"],
        "seconds": round(time.perf_counter() - started, 1), "overlooks": sorted(student.overlooks),
        "notes": result.notes,
    }  # fmt: skip


def mean_interval(values: list[float]) -> str:
    """Return the mean of paired gains with its 95 % interval (Student's t over seeds)."""
    from scipy import stats

    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:+.3f}"
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


def report(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table: a line for each optimizer, role, feedback and student."""
    kinds: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(tuple(row[name] for name in KIND), []).append(row)
    head = [*KIND, *"seeds SRCC accuracy RMSE validation calls kilotokens".split()]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for kind, of_kind in sorted(kinds.items(), key=lambda k: (not k[0][0], k[0][1:])):
        gains = [
            mean_interval([row["differences"][name][0] for row in of_kind if name in row["differences"]] or [np.nan])
            for name in ("srcc", "accuracy", "rmse")
        ]
        validation = np.mean([row["validation_gain"] for row in of_kind])
        cost = [np.mean([row[name] for row in of_kind]) for name in ("calls", "tokens")]
        lines.append(
            f"| {' | '.join(map(str, kind))} | {len(of_kind)} | "
            f"{' | '.join(gains)} | {validation:+.3f} | {cost[0]:.0f} | {cost[1] / 1000:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run every compile that is not in the results, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--optimizers", default=";".join(OPTIMIZERS), help="separated by ;")
    parser.add_argument("--roles", default="summarizer")
    parser.add_argument("--feedback", choices=("words", "bare"), default="words")
    parser.add_argument("--task", choices=("both", "scoring", "mcq"), default="both", help="what train and test ask")
    parser.add_argument("--control", action="store_true", help="the student that reads nothing")
    parser.add_argument("--report", action="store_true", help="print the table of what is there")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    log = arguments.work / "results.jsonl"
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []
    if not arguments.report:
        for seed in range(arguments.seeds):
            for optimizer in arguments.optimizers.split(";"):
                about = {"seed": seed, "optimizer": optimizer, "obeys": not arguments.control,
                         "roles": arguments.roles, "feedback": arguments.feedback, "task": arguments.task}  # fmt: skip
                if any(about.items() <= row.items() for row in rows):
                    continue
                row = compiled(arguments.work, **about)
                rows.append(row)
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(
                    json.dumps({k: row[k] for k in ("seed", "optimizer", "chosen", "differences", "seconds")}),
                    flush=True,
                )
    print(report(rows))


if __name__ == "__main__":
    main()
