"""What `python -m program.compile` runs: a compile as a run of MLflow."""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optimizers.compiling import Compile
from optimizers.job import Job
from optimizers.plan import CallPlan
from optimizers.report import Compiled, log_compile, show, step, waiting
from optimizers.selection import label, leading_metric
from program.agent.saving import check_folder, load
from program.common.console import Console
from program.common.errors import InputError
from program.common.files import path_lock
from program.common.keys import redact
from program.evaluation.evaluating import run_samples
from program.evaluation.figures import compare
from program.evaluation.intervals import Figure
from program.evaluation.record import EvaluationRecord
from program.lms.limits import Budget
from program.tracking import RunHandle, Tracker, experiment_name
from program.tracking.models import Version, find_champion, promote, register

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Registered(Version):
    """A new version of a registered program, and whether it leads now; `why` is one line."""

    champion: bool
    why: str


@dataclass(frozen=True)
class Tracked:
    """What a compile ended with, and where MLflow has it."""

    result: Compiled
    registered: Registered | None
    run: RunHandle

    @property
    def failed(self) -> bool:
        """Whether a test sample could not be assessed, or all were on less than usual."""
        return self.result.uncompiled.is_incomplete or self.result.compiled.is_incomplete

    def summary(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        registered = asdict(self.registered) if self.registered else None
        return {**self.result.summary(), "registered": registered, "mlflow_run": self.run.run_id}

    def show(self, console: Console) -> None:
        """Print where MLflow has it; the result was printed before."""
        if self.run.where:
            step(console, "all runs", self.run.where)
        if new := self.registered:
            leads = "champion" if new.champion else "not the champion"
            step(console, "registered", f"{new.uri} ({leads}: {new.why})")


def check_out(out: Path, *, replace: bool) -> None:
    """Raise InputError where a compile's folder holds what it must not replace: a program only with `replace`."""
    if not replace and (out / "program.json").is_file():
        raise InputError(
            f"folder {str(out)!r}: holds a program; give --force to replace it, --resume to continue its "
            "compile, or another --out"
        )
    check_folder(out)


def compile_tracked(
    job: Job, *, register: str | None = None, plan: CallPlan | None = None, progress: Console | None = None,
    console: Console | None = None, budget: AbstractContextManager[object] | None = None,
) -> Tracked:  # fmt: skip
    """Compile inside a run of MLflow, and register the program if a name is given.

    No other compile writes its folder meanwhile. Plan and progress go to one console, the result to the other.
    InputError, before anything is said, asked or written, where another compile has the folder, or there is none to
    resume.
    """
    name, place = f"compile {job.optimizer} seed {job.settings.seed}", f"the result is in {str(job.out)!r}"
    with ExitStack() as held:
        compiling = Compile(job, progress)
        held.enter_context(closing(compiling.log))
        if progress is not None and plan is not None:
            progress.print("\n".join(plan.lines()), highlight=False, markup=False)
        with waiting(progress, "opening the store of MLflow"):
            tracker = Tracker(job.settings.mlruns_dir, experiment=experiment_name(job.data))
            run = held.enter_context(tracker.run(name, {"command": "compile"}, result=place))
        limits = (budget if isinstance(budget, Budget) else Budget()).limits
        run.log_params(job.params())
        run.log_content({**job.all_settings(), "register": register, **limits}, "settings.yaml")
        held.enter_context(budget or nullcontext())
        result = compiling.result(run)
        if console is not None:
            show(console, result, job.out, job.notes)
        with waiting(progress, "recording the run in MLflow"):
            log_compile(run, job, result, name=register)
            registered = _registered(register, job, result.compiled, tracker, run) if register else None
    return Tracked(result, registered, run)


def _registered(name: str, job: Job, record: EvaluationRecord, tracker: Tracker, run: RunHandle) -> Registered | None:
    try:
        return register_compiled(name, job, record, tracker, run)
    except Exception as error:  # border: MLflow, SQLAlchemy, the network and the disk each raise their own kinds
        logger.warning(
            "the program in %r is not registered as %r (%s); once it is corrected, run the same command with --resume",
            str(job.out), name, " ".join(redact(str(error)).split())[:200],
        )  # fmt: skip
        return None


def register_compiled(name: str, job: Job, record: EvaluationRecord, tracker: Tracker, run: RunHandle) -> Registered:
    """Register the program that a run made, whose test record is `record`, and promote it if it beats the champion.

    The uncompiled program is promoted only where nothing else was asked for. Another beats the champion with a paired
    interval above zero, and no more failed samples. The champion is judged now, on the same samples, settings and
    language models: figures of another day or model would not compare.
    """
    data = record.dataset
    tags = {"data": data.name, "manifest_sha256": data.manifest_sha256 or "", "split": data.split or "all"}
    tags |= {f"test_{n}": f"{figure.value:.4f}" for n, figure in record.figures.items() if figure.value is not None}
    # Of compiles that end together, each is compared with the champion that the one before left.
    with nullcontext() if tracker.remote else path_lock(job.settings.mlruns_dir / "champion.lock"):
        before = find_champion(tracker, name)
        version = register(tracker, run, name, tags)
        if record.context.get("program") == "uncompiled" and job.optimizers != ("none",):
            leads, why = False, "the uncompiled program; --optimizer none makes it one"
        else:
            leads, why = _beats(before, job, record) if before is not None else (True, "the first version of its name")
        if leads:
            promote(tracker, version, run)
    return Registered(version.name, version.version, leads, why)


def _beats(champion: Version, job: Job, record: EvaluationRecord) -> tuple[bool, str]:
    """Return whether a test record is better than a champion's, and why."""
    try:
        rival = run_samples(
            load(champion.uri, job.settings), job.splits["test"], workers=job.settings.compile.workers,
            progress=False, seed=job.settings.seed, dataset=record.dataset, label="champion",
        )  # fmt: skip
    except InputError as error:
        return False, f"the champion, version {champion.version}, could not be judged: {error}"
    if record.failed > rival.failed:
        # Only samples that both answered can be paired: a program must not lead by failing on the hard ones.
        failures = f"fails on {record.failed} of {len(record.rows)} test samples"
        return False, f"{failures}, version {champion.version} on {rival.failed}"
    better, why = gain_is_clear(compare(rival.rows, record.rows, seed=job.settings.seed))
    return better, f"{why} against version {champion.version}"


def gain_is_clear(differences: Mapping[str, Figure]) -> tuple[bool, str]:
    """Return whether the 95 % interval of the leading paired gain lies above zero, and the figure."""
    metric = leading_metric(differences)
    figure = differences.get(metric)
    if figure is None or figure.value is None:
        return False, "no test sample that both answered"
    words = figure.ends_text(sign="+") or "with no interval"
    return figure.sign > 0, f"test {label(metric)} {figure.value_text('+')} {words}, n = {figure.n}"
