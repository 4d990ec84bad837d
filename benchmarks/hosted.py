"""What a hosted language model gains by compiling, on people's scores: one command, from the price to a report.

    python benchmarks/hosted.py tid2013.jsonl bid.jsonl --lm openai/gpt-4o --max-cost 25
    python benchmarks/hosted.py clive/manifest.jsonl --lm openai/NAME --api-base URL --max-calls 9000

For each manifest (default: every dataset of configs/datasets.yaml that lies here prepared, as NAME.jsonl or
NAME/manifest.jsonl): the program uncompiled and compiled with the default recipe, the model alone, the tools alone and
both fused, on the same samples of the test split. The plan and its price come first, then a question (`--yes` answers
it). The limits hold over all manifests and over repeats of the command: what was spent is written into the folder.
The same command goes on where it was stopped; answers had before cost nothing. OUT/report.md is to be published.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from program.common.cli import (
    EXIT_PROBLEMS,
    Parser,
    add_budget_flags,
    add_settings_flags,
    run_command,
    settings_from,
    whole_number,
)

KEPT = "what was finished is kept; the same command goes on"
SHOWN = ("srcc", "plcc", "krcc", "rmse", "accuracy")


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = Parser(description="What a hosted model gains by compiling: plan, price, figures, report.")
    parser.add_argument("data", nargs="*", metavar="MANIFEST", help="default: the prepared datasets of this folder")
    parser.add_argument("--optimizer", metavar="NAME[,NAME]", help="recipe (default: as python -m program.compile)")
    parser.add_argument(
        "--test-samples", type=whole_number(1), metavar="N", help="at most so many of each task, by seed"
    )
    parser.add_argument("--out", type=Path, default=Path("hosted"), metavar="DIR", help="default: hosted")
    parser.add_argument("--yes", action="store_true", help="do not ask before the first call")
    parser.add_argument("--dry-run", action="store_true", help="print plan and price, and end")
    add_settings_flags(parser)
    add_budget_flags(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: benchmark(arguments), kept=KEPT)


def benchmark(arguments: argparse.Namespace) -> int:
    """Plan, ask, compile manifest by manifest within the limits, and write the report."""
    from program.common.errors import InputError

    if arguments.max_cost is arguments.max_calls is arguments.max_tokens is None:
        raise InputError("--max-cost: give the most dollars to spend, or --max-calls where the price is unknown")
    jobs = {folder: job for folder, job in jobs_of(arguments) if not is_done(folder, job)}
    ledger = Ledger(arguments.out / "spent.json")
    print("\n".join(plan_lines(jobs, ledger, arguments)))
    if arguments.dry_run:
        return 0
    if jobs and not arguments.yes and input("Go on? [y/N] ").strip().casefold() not in {"y", "yes"}:
        return EXIT_PROBLEMS
    try:
        for folder, job in jobs.items():
            compiled(folder, job, ledger, arguments)
    finally:
        report = arguments.out / "report.md"
        if results := [json.loads(path.read_text("utf-8")) for path in sorted(arguments.out.glob("*/result.json"))]:
            report.write_text("\n".join(report_lines(results, ledger)), "utf-8")
            print(f"report      {report}")
    return 0


def jobs_of(arguments: argparse.Namespace) -> Iterator[tuple[Path, Any]]:
    """Yield the folder and the compile of each manifest, every one of them checked."""
    from data.catalogue import catalogue
    from optimizers.examples import choose_samples
    from optimizers.job import prepare_job
    from program.common.errors import InputError
    from program.tracking import dataset_name

    settings = settings_from(arguments)
    here = [path for name in catalogue() for path in (Path(f"{name}.jsonl"), Path(name, "manifest.jsonl"))]
    data = arguments.data or [str(path) for path in here if path.is_file()]
    if not data:
        raise InputError("data: no manifest is given and no prepared dataset is here; python -m data.prepare makes one")
    for each in data:
        folder = arguments.out / dataset_name(each)
        begun = (folder / "program" / "candidates.jsonl").is_file()
        job = prepare_job(settings, each, arguments.optimizer, folder / "program", resume=begun)
        if (most := arguments.test_samples) is not None:
            drawn = choose_samples(job.splits["test"], scoring=most, mcq=most, seed=settings.seed)
            job = replace(job, splits={**job.splits, "test": drawn})
        yield folder, job


def asked(job: Any) -> dict[str, Any]:
    """Return what a result depends on, as it is written beside it."""
    models = job.settings.models.model_dump(mode="json")
    sizes = {name: len(members) for name, members in job.splits.items()}
    return {"manifest_sha256": job.dataset.manifest_sha256, "optimizers": [*job.optimizers], "models": models,
            "seed": job.settings.seed, "samples": sizes}  # fmt: skip


def is_done(folder: Path, job: Any) -> bool:
    """Return whether a folder holds this job's result. InputError where it holds another's."""
    from program.common.errors import InputError

    if not (folder / "result.json").is_file():
        return False
    there, here = json.loads((folder / "result.json").read_text("utf-8"))["asked"], asked(job)
    if changed := [name for name in here if there.get(name) != here[name]]:
        raise InputError(
            f"folder {str(folder)!r}: holds a result with another {', '.join(changed)}; give another --out"
        )
    return True


class Ledger:
    """Calls, dollars and tokens spent by all runs of one folder, and the limits that stopped the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        known = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        self.spent: dict[str, float] = {name: known.get(name, 0) for name in ("calls", "cost_usd", "tokens")}
        self._stopped = known.get("stopped")

    def __str__(self) -> str:
        return f"{self.spent['calls']} calls, {self.spent['tokens']} tokens and {self.spent['cost_usd']:.4f} USD"

    @contextmanager
    def spending(self, arguments: argparse.Namespace) -> Iterator[Any]:
        """Yield the budget that is left of the limits, and write down what was used of it. BudgetSpent for none."""
        from program.lms.limits import Budget, BudgetSpent

        limits = {"calls": arguments.max_calls, "cost_usd": arguments.max_cost, "tokens": arguments.max_tokens}
        if self._stopped == limits:  # a new budget would not know yet what a call costs
            raise BudgetSpent(f"budget: {self} are spent; allow more")
        left: dict[str, Any] = {f"max_{name}": limit and limit - self.spent[name] for name, limit in limits.items()}
        budget, self._stopped = Budget(**left), None
        try:
            yield budget
        except BudgetSpent:
            self._stopped = limits
            raise
        finally:
            self.spent = {name: spent + getattr(budget, name) for name, spent in self.spent.items()}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps({**self.spent, "stopped": self._stopped}), "utf-8")


def plan_lines(jobs: dict[Path, Any], ledger: Ledger, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield what is to be done and what it costs, manifest by manifest and in all."""
    from optimizers.plan import call_plan
    from program.common.errors import InputError

    plans = {folder: call_plan(job) for folder, job in jobs.items()}
    if (
        arguments.max_cost
        and arguments.max_calls is None
        and any(plan.paid and plan.cost_usd is None for plan in plans.values())
    ):
        raise InputError("--max-cost: the price of this model is unknown, so no cost limit can hold; give --max-calls")
    for folder, plan in plans.items():
        sizes = ", ".join(f"{len(members)} {name}" for name, members in jobs[folder].splits.items())
        yield f"\n{folder.name}: {sizes}; {', '.join(jobs[folder].optimizers)}"
        yield from plan.lines()
    costs = [plan.cost_usd for plan in plans.values()]
    price = "price unknown" if None in costs else f"about {sum(c or 0.0 for c in costs):.2f} USD"
    calls = sum(plan.expected_calls for plan in plans.values())
    limits = [f"{arguments.max_cost:g} USD"] if arguments.max_cost is not None else []
    limits += [f"{arguments.max_calls} calls"] if arguments.max_calls is not None else []
    limits += [f"{arguments.max_tokens} tokens"] if arguments.max_tokens is not None else []
    yield f"\n{len(jobs)} compile(s) to do: about {calls:,} calls, {price}"
    yield f"limit {' and '.join(limits)}; {ledger} are spent already\n"


def compiled(folder: Path, job: Any, ledger: "Ledger", arguments: argparse.Namespace) -> None:
    """Compile one manifest within what is left, and write its result."""
    from rich.console import Console

    from optimizers.command import compile_tracked

    console = Console(stderr=True, soft_wrap=True)
    with ledger.spending(arguments) as budget:
        done = compile_tracked(job, progress=console, console=Console(soft_wrap=True), budget=budget)
    done.show(Console(soft_wrap=True))
    result = {**done.summary(), "name": folder.name, "asked": asked(job)}
    (folder / "result.json").write_text(json.dumps(result, indent=1), "utf-8")


def report_lines(results: list[dict[str, Any]], ledger: Ledger) -> Iterator[str]:
    """Yield the report in Markdown."""
    from program.evaluation.intervals import Figure
    from program.evaluation.record import EvaluationRecord

    yield "# A hosted model, uncompiled and compiled\n"
    yield f"Test splits, 95 % intervals in brackets; {ledger} in all.\n"
    counted = {"failures", "degraded"}  # from the rows, which are not there
    for result in results:
        before, after = (
            EvaluationRecord.model_validate({k: v for k, v in result[name].items() if k not in counted})
            for name in ("uncompiled", "compiled")
        )
        columns = [name for name in SHOWN if name in before.figures]
        yield f"## {result['name']}\n"
        yield f"| | {' | '.join(name.upper() if name != 'accuracy' else name for name in columns)} | n |"
        yield f"|---|{'---|' * len(columns)}---|"
        yield table_row("compiled: tools and model fused", after.figures, columns)
        yield table_row("uncompiled: tools and model fused", before.figures, columns)
        gains = {name: Figure.model_validate(figure) for name, figure in result["difference"].items()}
        yield table_row("gain, paired", gains, columns)
        for way in before.baselines.values():
            yield table_row(way.label, way.figures, columns)
        words = [result["verdict"], *(f"{note[:1].upper()}{note[1:]}." for note in result["notes"])]
        yield f"\n{' '.join(words)}\n"
        yield from (f"- {fact}" for fact in facts(result, before))
        yield ""


def table_row(label: str, figures: Any, columns: list[str]) -> str:
    """Return one way to answer as a row: each figure with its interval, and on how many samples."""
    cells = [str(figures[name]) if name in figures else "" for name in columns]
    sizes = "/".join(dict.fromkeys(str(figures[name].n) for name in columns if name in figures))
    return f"| {label} | {' | '.join(cells)} | {sizes} |"


def facts(result: dict[str, Any], record: Any) -> Iterator[str]:
    """Yield what a reader needs to repeat it."""
    context, here = record.context, record.environment
    yield f"models {', '.join(f'{role} {name}' for role, name in context['models'].items())}"
    yield f"manifest SHA-256 {record.dataset.manifest_sha256}, seed {result['seed']}, {record.groups} photographs"
    failed = result["compiled"]["scoring"]["failed"] + result["compiled"]["mcq"]["failed"]
    yield f"failed samples: {record.failed} uncompiled, {failed} compiled"
    yield f"commit {here.git_commit}{' (altered)' if here.git_dirty else ''}, Python {here.python}, " + ", ".join(
        f"{name} {version}" for name, version in here.versions.items()
    )
    yield f"seconds {', '.join(f'{phase} {value:.0f}' for phase, value in result['seconds'].items())}"
    yield f"MLflow run {result['mlflow_run']}"


if __name__ == "__main__":
    sys.exit(main())
