"""A compile as a run of MLflow: params before it starts, everything it found at its end, a registered version."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from optimizers.compiling import Compiled
from optimizers.job import Job
from optimizers.publishing import log_compile, show
from optimizers.registering import Registered, register_result
from optimizers.repeating import compile_seeds, spread
from program.budget import Budget
from program.errors import InputError
from program.tracking import Tracker, experiment_name
from program.tracking.models import check_name

__all__ = ("Tracked", "check_request", "compile_tracked")


@dataclass(frozen=True)
class Tracked:
    """What a compile ended with, and where MLflow has it."""

    job: Job
    result: Compiled
    results: list[Compiled]
    """Of every seed."""
    registered: Registered | None
    run_id: str
    hint: str
    """How to look at the run."""

    @property
    def failed(self) -> bool:
        """Whether a test sample could not be assessed."""
        return bool(self.result.uncompiled.failed or self.result.compiled.failed)

    def summary(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            **self.result.summary(), "program": str(self.job.out), "repeats": spread(self.results),
            "registered": self.registered.summary() if self.registered else None, "mlflow_run": self.run_id,
        }  # fmt: skip

    def show(self, console: Console) -> None:
        """Print the table, the verdict and where everything is."""
        show(console, self.result, self.results, self.job.out, f"{self.run_id}  ({self.hint})")
        if self.registered:
            console.print(self.registered.line, highlight=False)


def check_request(*, register: str | None, repeat: int, resume: bool, named: bool) -> None:
    """Raise InputError for what cannot be done, before any data is read; `named` says whether a folder was given."""
    if register is not None:
        check_name(register)
    if repeat < 1:
        raise InputError(f"--repeat {repeat}: give 1 or more")
    if resume and not named:
        raise InputError("--resume: give the folder of the compile to go on with as --out DIR")


def compile_tracked(
    job: Job, *, repeat: int = 1, register: str | None = None, console: Console | None = None,
    budget: AbstractContextManager[object] | None = None,
) -> Tracked:  # fmt: skip
    """Compile with `repeat` seeds inside a run of MLflow, and register the program under a name if one is given."""
    tracker = Tracker(job.settings.mlruns_dir, experiment=experiment_name(job.data))
    with tracker.run(f"compile {job.optimizer} seed {job.settings.seed}", {"command": "compile"}) as run:
        limits = (budget.max_calls, budget.max_cost_usd) if isinstance(budget, Budget) else (None, None)
        asked = {"repeat": repeat, "register": register, "max_calls": limits[0], "max_cost_usd": limits[1]}
        run.log_params({**job.params(), **asked})
        with budget or nullcontext():
            result, results = compile_seeds(job, repeat, console=console)
            log_compile(run, result, results)
            registered = register_result(register, job, result, tracker, run) if register else None
    return Tracked(job, result, results, registered, run.run_id, f"{tracker.ui_hint}, then {tracker.runs_url}")
