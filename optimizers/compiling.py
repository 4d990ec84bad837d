"""A compile from data to a saved program: teach on train, choose on validation, report on test."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from data.manifest import Sample, manifest_sha256, read_manifest
from data.quickstart import resolve_dataset
from data.splits import check_leaks
from optimizers.recipes import Candidate, candidates, check_optimizer
from optimizers.selection import rank, validation_score
from optimizers.teaching import choose_samples, taught_examples, to_example
from program.agent import AgenticIQA
from program.errors import InputError
from program.evaluation.intervals import Figure
from program.evaluation.metrics import MetricName
from program.evaluation.record import Dataset, EvaluationRecord, compare
from program.evaluation.runner import evaluate
from program.saving import check_folder, program_sha256, save
from program.settings import Settings

__all__ = ("Compiled", "Job", "compile_program", "prepared")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """What to compile: settings, the data by split, the optimizer, and where the program goes."""

    settings: Settings
    data: str
    optimizer: str
    out: Path
    dataset: Dataset
    splits: dict[str, list[Sample]]

    def params(self) -> dict[str, Any]:
        """Return what identifies and repeats this compile, for the MLflow run."""
        shown = self.settings.model_dump(mode="json", exclude={"cache_dir", "mlruns_dir", "programs_dir"})
        return {
            "data": self.data,
            "manifest_sha256": self.dataset.manifest_sha256,
            "optimizer": self.optimizer,
            "samples": {name: len(samples) for name, samples in self.splits.items()},
            **shown,
        }


@dataclass(frozen=True)
class Compiled:
    """What a compile ended with; `chosen` is "uncompiled" where no candidate was better on validation."""

    folder: Path
    chosen: str
    uncompiled: EvaluationRecord
    compiled: EvaluationRecord
    differences: dict[MetricName, Figure]
    validation: dict[str, dict[str, Any]]
    """Every ranked program: its validation figures and score, best first."""
    seconds: dict[str, float]

    def summary(self) -> dict[str, Any]:
        """Return what `--json` prints: figures as {"value", "low", "high", "n", ...}, without per-sample rows."""
        return {
            "program": str(self.folder),
            "chosen": self.chosen,
            "uncompiled": self.uncompiled.summary(),
            "compiled": self.compiled.summary(),
            "difference": {name: figure.model_dump(mode="json") for name, figure in self.differences.items()},
            "validation": self.validation,
            "seconds": self.seconds,
        }


def prepared(settings: Settings, data: str, optimizer: str, out: Path, *, console: Console | None = None) -> Job:
    """Return the job with its data read and checked; raises InputError or DataError for what cannot be used.

    Nothing is asked of a model, and `out` is refused here if a program cannot be saved there.
    """
    check_optimizer(optimizer)
    check_folder(out)
    manifest = resolve_dataset(data, settings.cache_dir, progress=console is not None)
    dataset = Dataset(name=data, manifest_sha256=manifest_sha256(manifest), split="test")
    return Job(settings, data, optimizer, out, dataset, _splits(manifest))


def compile_program(job: Job, *, lm: dspy.BaseLM | None = None, console: Console | None = None) -> Compiled:
    """Teach a program, choose the best candidate on validation, save it, and compare both programs on test."""
    settings, chosen, splits = job.settings, job.settings.compile, job.splits
    train = choose_samples(splits["train"], scoring=chosen.train_scoring, mcq=chosen.train_mcq, seed=settings.seed)
    validation = choose_samples(
        splits["validation"], scoring=chosen.validation_scoring, mcq=chosen.validation_mcq, seed=settings.seed
    )
    program = AgenticIQA(settings, lm=lm)
    seconds: dict[str, float] = {}

    def judged(candidate: Candidate, samples: Sequence[Sample], label: str) -> EvaluationRecord:
        return evaluate(
            candidate.program, samples, workers=chosen.workers, progress=console is not None, seed=settings.seed,
            dataset=job.dataset, context=_context(candidate, job, lm), label=label,
        )  # fmt: skip

    # The history of prompts and the trace would grow by every demo of every call.
    with dspy.context(disable_history=True, trace=None):
        uncompiled = Candidate("uncompiled", program)
        with _timed(seconds, "teach"), _progress(console, "evidence", len(train)) as advance:
            examples = taught_examples(program, train, workers=chosen.workers, advance=advance)
        with _timed(seconds, "search"), _progress(console, f"{job.optimizer}", _runs(job, validation)) as advance:
            proposed = candidates(
                job.optimizer, program, examples, [to_example(s) for s in validation],
                settings=chosen, seed=settings.seed, advance=advance,
            )  # fmt: skip
        with _timed(seconds, "rank"):
            ranked = rank(
                uncompiled, proposed, validation, keep=chosen.rerank,
                evaluate=lambda c, s: judged(c, s, f"validation: {c.name}"),
            )  # fmt: skip
        best = ranked[0][0]
        # Saved before the test, so that a kill during it loses no candidate.
        save(best.program, job.out, record={"chosen": best.name, "validation": _ranking(ranked)})
        with _timed(seconds, "test"):
            before = judged(uncompiled, splits["test"], "test: uncompiled")
            after = before if best is uncompiled else judged(best, splits["test"], f"test: {best.name}")
    differences = compare(before.rows, after.rows, seed=settings.seed)
    result = Compiled(
        folder=job.out,
        chosen=best.name,
        uncompiled=before,
        compiled=after,
        differences=differences,
        validation=_ranking(ranked),
        seconds=seconds,
    )
    save(best.program, job.out, record=result.summary())
    return result


def _splits(manifest: Path) -> dict[str, list[Sample]]:
    splits: dict[str, list[Sample]] = {"train": [], "validation": [], "test": []}
    samples = list(read_manifest(manifest))
    check_leaks(samples)
    for sample in samples:
        if sample.split is not None and sample.task != "open":
            splits[sample.split].append(sample)
    empty = [name for name, members in splits.items() if not members]
    if empty:
        raise InputError(
            f"manifest {str(manifest)!r}: no labelled sample in split {', '.join(empty)}; "
            'give every sample a "split" of train, validation or test'
        )
    return splits


def _context(candidate: Candidate, job: Job, lm: dspy.BaseLM | None) -> dict[str, Any]:
    models = {role: candidate.program.resources.lm(role).model for role in ("planner", "executor", "summarizer")}
    return {
        "program": candidate.name,
        "program_sha256": program_sha256(candidate.program),
        "models": models,
        "optimizer": job.optimizer,
        "settings": job.settings.model_dump(mode="json", exclude={"cache_dir", "mlruns_dir", "programs_dir"}),
    }


def _ranking(ranked: Sequence[tuple[Candidate, EvaluationRecord]]) -> dict[str, dict[str, Any]]:
    return {c.name: {"score": validation_score(r), "search": c.search_score, **_values(r)} for c, r in ranked}


def _values(record: EvaluationRecord) -> dict[str, float | None]:
    return {str(name): figure.value for name, figure in record.figures.items()}


def _runs(job: Job, validation: Sequence[Sample]) -> int | None:
    """Return about how many program runs a search takes; None where that is not known."""
    if job.optimizer != "random-search":
        return None
    settings = job.settings.compile
    return (settings.candidate_programs + 3) * len(
        validation
    ) + settings.candidate_programs * settings.max_bootstrapped_demos


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[phase] = round(time.perf_counter() - started, 2)


@contextmanager
def _progress(console: Console | None, label: str, total: int | None) -> Iterator[Callable[[], None]]:
    if console is None:
        yield lambda: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)
        bar.update(task, total=bar.tasks[0].completed)
