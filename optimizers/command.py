"""What `python -m program.compile` runs: the compiles of one or several seeds, as one run of MLflow."""

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from optimizers.compile_log import folder_lock
from optimizers.compiling import Compile
from optimizers.job import Job
from optimizers.report import Compiled, log_compile, show, spread
from program.common.errors import InputError
from program.lms.limits import Budget
from program.tracking import RunHandle, Tracker, experiment_name

if TYPE_CHECKING:
    from optimizers.registering import Registered

__all__ = ("Tracked", "check_folders", "check_request", "compile_tracked", "seed_compiles")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tracked:
    """What a compile ended with, and where MLflow has it."""

    job: Job
    result: Compiled
    results: list[Compiled]
    """Of every seed."""
    registered: "Registered | None"
    run_id: str | None
    """None where the store broke."""
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
        """Print where MLflow has it; the result was printed before."""
        if self.run_id:
            console.print(f"MLflow run        {self.run_id}  ({self.hint})", highlight=False)
        if self.registered:
            console.print(self.registered.line, highlight=False)


def check_request(*, register: str | None, repeat: int, resume: bool, named: bool) -> None:
    """Raise InputError for what cannot be done, before any data is read; `named` says whether a folder was given."""
    if register is not None:
        from program.tracking.models import check_name

        check_name(register)
    if repeat < 1:
        raise InputError(f"--repeat {repeat}: give 1 or more")
    if resume and not named:
        raise InputError("--resume: give the folder of the compile to go on with as --out DIR")


def check_folders(out: Path, seed: int, repeat: int) -> None:
    """Raise InputError where a folder of a compile that is begun anew holds a program already."""
    for folder in dict.fromkeys((out, *_seed_folders(out, seed, repeat))):
        if (folder / "program.json").is_file():
            raise InputError(
                f"folder {str(folder)!r}: holds a program; give --force to replace it, --resume to go on with its "
                "compile, or another --out"
            )


@contextmanager
def seed_compiles(job: Job, count: int, *, console: Console | None = None) -> Iterator[list[Compile]]:
    """Yield the compiles of `count` seeds, which go up from the job's; no other compile writes their folders meanwhile.

    Nothing is asked or written yet. Raises InputError where another compile has one of the folders, or where one cannot
    be resumed.
    """
    with ExitStack() as stack:
        if count > 1:
            stack.callback(folder_lock(job.out).remove)
        compiles = []
        for number, folder in enumerate(_seed_folders(job.out, job.settings.seed, count)):
            # Of several seeds that were interrupted, the later ones were not begun.
            resume = job.resume and (number == 0 or (folder / "run.json").is_file())
            seeded = replace(job.seeded(job.settings.seed + number, folder), resume=resume)
            compiles.append(stack.enter_context(closing(Compile(seeded, console))))
        yield compiles


def compile_tracked(
    job: Job, compiles: Sequence[Compile], *, register: str | None = None, console: Console | None = None,
    budget: AbstractContextManager[object] | None = None,
) -> Tracked:  # fmt: skip
    """Run the compiles of a job's seeds inside a run of MLflow, and register the program under a name if one is given.

    The result is saved, and printed on `console`, before it is logged: a store that breaks meanwhile is a warning.
    """
    tracker = Tracker(job.settings.mlruns_dir, experiment=experiment_name(job.data))
    name, place = f"compile {job.optimizer} seed {job.settings.seed}", f"the result is in {str(job.out)!r}"
    with tracker.run(name, {"command": "compile"}, result=place) as run:
        limits = (budget.max_calls, budget.max_cost_usd) if isinstance(budget, Budget) else (None, None)
        request = {"repeat": len(compiles), "register": register, "max_calls": limits[0], "max_cost_usd": limits[1]}
        run.log_params({**job.params(), **request})
        with budget or nullcontext():
            results = [each.result() for each in compiles]
            result = _best(results, job.out)
            if console is not None:
                show(console, result, results, job.out)
            log_compile(run, result, results)
            registered = _registered(register, job, result, tracker, run) if register else None
    return Tracked(job, result, results, registered, run.run_id, f"{tracker.ui_hint}, then {tracker.runs_url}")


def _best(results: Sequence[Compiled], out: Path) -> Compiled:
    """Return the compile that did best on validation, its program in `out`.

    Its test figures are those of one seed: the spread over the results says what another would give.
    """
    best = max(results, key=lambda r: r.validation[r.chosen]["score"])
    if best.folder != out:
        if out.exists():
            shutil.rmtree(out)
        shutil.copytree(best.folder, out)
    return best


def _registered(name: str, job: Job, result: Compiled, tracker: Tracker, run: RunHandle) -> "Registered | None":
    from optimizers.registering import register_result

    try:
        return register_result(name, job, result, tracker, run)
    except Exception as error:  # border: MLflow, SQLAlchemy, the network and the disk each raise their own kinds
        logger.warning(
            "the program in %r is not registered as %r (%s); once that is mended, run the same command with --resume",
            str(job.out), name, " ".join(str(error).split())[:200],
        )  # fmt: skip
        return None


def _seed_folders(out: Path, first: int, count: int) -> list[Path]:
    """Return the folder of each seed from `first` on: of several, each has its own beside `out` ("-seed3")."""
    return [out] if count == 1 else [out.with_name(f"{out.name}-seed{first + n}") for n in range(count)]
