"""A compile from data to a saved program: teach on train, choose on validation, report on test."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
from rich.console import Console

from data.manifest import Sample
from optimizers.bench import Bench, Candidate
from optimizers.difference import difference_markdown
from optimizers.job import Job
from optimizers.journal import Journal
from optimizers.memory import Memory
from optimizers.objectives import Objective
from optimizers.progress import progress, timed
from optimizers.recipes import REFLECTING, candidates
from optimizers.reflecting import search_examples
from optimizers.scoring import Ledger, Scored
from optimizers.selection import Ranked, Ranking, validation_score
from optimizers.taught import Replayed, SearchStopped, TaughtProgram, taught_predictors
from optimizers.teaching import Course, choose_samples, course_of
from optimizers.tuning import tuned
from optimizers.verdict import Verdict, verdict_of
from program.agent import AgenticIQA
from program.budget import BudgetSpent
from program.evaluation.baselines import Beside, with_baselines
from program.evaluation.intervals import Figure
from program.evaluation.metrics import MetricName
from program.evaluation.page import render
from program.evaluation.record import Baseline, EvaluationRecord, compare, summarize
from program.evaluation.runner import evaluate
from program.saving import program_sha256

__all__ = ("Compiled", "compile_program")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compiled:
    """What a compile ended with; `chosen` is "uncompiled" where no candidate was better on validation."""

    folder: Path
    chosen: str
    seed: int
    uncompiled: EvaluationRecord
    compiled: EvaluationRecord
    differences: dict[MetricName, Figure]
    baseline: Baseline | None
    """The best single tool or model on the test samples; the choice favours it."""
    verdict: Verdict
    validation: dict[str, dict[str, Any]]
    """Every ranked program: its validation figures and score, best first."""
    curve: list[tuple[str, float, float]]
    """Candidate, its search score and the best so far, in order."""
    notes: list[str]
    difference: str
    """What changed against the uncompiled program, as Markdown."""
    seconds: dict[str, float]
    runs: int
    """Program runs of the search."""

    def summary(self) -> dict[str, Any]:
        """Return what `--json` prints: figures as {"value", "low", "high", "n", ...}, without per-sample rows."""
        return {
            "program": str(self.folder),
            "chosen": self.chosen,
            "seed": self.seed,
            "uncompiled": self.uncompiled.summary(),
            "compiled": self.compiled.summary(),
            "difference": {name: figure.model_dump(mode="json") for name, figure in self.differences.items()},
            "baseline": self.baseline.model_dump(mode="json") if self.baseline else None,
            "verdict": self.verdict.text,
            "helped": self.verdict.helped,
            "validation": self.validation,
            "notes": self.notes,
            "seconds": self.seconds,
            "runs": self.runs,
        }


class _Compile:
    """One compile in progress."""

    def __init__(self, job: Job, console: Console | None) -> None:
        self.job, self.console = job, console
        self.program = AgenticIQA(job.settings, lm=job.lm)
        self.memory = Memory.of(self.program)
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = []
        self.runs = 0
        chosen, seed = job.settings.compile, job.settings.seed
        self.train = choose_samples(job.splits["train"], scoring=chosen.train_scoring, mcq=chosen.train_mcq, seed=seed)
        self.validation = choose_samples(
            job.splits["validation"], scoring=chosen.validation_scoring, mcq=chosen.validation_mcq, seed=seed
        )
        self.journal = Journal(job.out, job.key(self.program, [*self.train, *self.validation]), self.program,
                               resume=job.resume)  # fmt: skip

    def taught(self) -> tuple[Course, Course]:
        """Gather the evidence of train and validation, once, and return both with their lessons."""
        workers, total = self.job.settings.compile.workers, len(self.train) + len(self.validation)
        with timed(self.seconds, "evidence"), progress(self.console, "evidence", total) as advance:
            train, validation = (
                course_of(self.program, samples, workers=workers, advance=advance, memory=self.memory)
                for samples in (self.train, self.validation)
            )
        train.gathered.join(validation.gathered)
        self.runs += total - self.memory.recalled
        return train, validation

    def searched(self, name: str, base: AgenticIQA, train: Course, validation: Course) -> list[Candidate]:
        """Return a recipe's candidates for a student that starts at `base`."""
        job = self.job
        tasks = {"mcq" if e.get("answer") is not None else "scoring" for e in train.examples}
        names = taught_predictors(base, job.roles, sorted(tasks))
        budget, kind, seed = job.budget(name), job.settings.compile.objective, job.settings.seed
        # SIMBA makes demos of what it scores, so that may not be what candidates are chosen on.
        pool = train if name == "simba" else validation
        scored_on = search_examples(pool.examples, budget, kind, seed) if name in REFLECTING else []
        expected = {member.id for e in scored_on for member in e.get("members") or [e]}
        ledger = Ledger(
            Objective(job.settings.optimizers.weights), expected, lambda scored: self._log_scored(name, scored)
        )
        student = TaughtProgram(base, names, train.gathered, watch=ledger.knows)
        with progress(self.console, name, None) as advance:
            bench = Bench(
                student, train, validation.examples, scored_on, ledger.objective, ledger, budget, kind, seed,
                job.settings.compile.workers, reflection=job.reflection if name in REFLECTING else None,
                teacher=job.teacher(names), known=self.journal.known,
                memory=self.memory, on_candidate=self._log_candidate, advance=advance,
            )  # fmt: skip
            found = candidates(name, bench)
        self.runs += ledger.runs
        return found

    def replayed(self, program: AgenticIQA, course: Course) -> AgenticIQA | Replayed:
        """Return what answers as `program` does: on the evidence at hand where only the Summarizer is taught."""
        return program if set(self.job.roles) - {"summarizer"} else Replayed(program, course.gathered)

    def _log_candidate(self, candidate: Candidate) -> None:
        if candidate.search_score is not None:
            demos = {n: len(p.demos) for n, p in candidate.program.named_predictors() if p.demos}
            self.journal.scored(
                candidate.name, candidate.digest, candidate.search_score, candidate.program, demos=demos
            )

    def _log_scored(self, name: str, scored: Scored) -> None:
        self._log_candidate(Candidate(f"{name}/{len(self.journal.curve)}", scored.program, scored.mean, scored.digest))

    def judged(
        self, program: AgenticIQA | Replayed, samples: Sequence[Sample], label: str, beside: Beside | None = None
    ) -> EvaluationRecord:
        """Return a program's record over samples; rows that an earlier compile worked out are not worked out again."""
        settings, context = self.job.settings, {"program": label}
        bare, replayed = (program.program, True) if isinstance(program, Replayed) else (program, False)
        what = [program_sha256(bare), replayed, beside is not None]
        known = self.memory.rows(what, samples)
        if known is not None:
            rows, seconds = known
            return summarize(rows, dataset=self.job.dataset, context=context, seed=settings.seed, wall_seconds=seconds)
        failed = self.program.resources.runner.counts.failed
        record = evaluate(
            program, samples, workers=settings.compile.workers, progress=self.console is not None, seed=settings.seed,
            dataset=self.job.dataset, context=context, label=label, beside=beside,
        )  # fmt: skip
        if self.program.resources.runner.counts.failed == failed:
            self.memory.keep_rows(what, samples, record.rows, record.wall_seconds)
        return record


def compile_program(job: Job, *, console: Console | None = None) -> Compiled:
    """Teach a program, choose the best candidate on validation, save it, and compare both programs on test.

    Whatever ends it early leaves the best candidate so far and the log in the folder. Raises BudgetSpent (an
    InputError) when the budget in force is spent, and KeyboardInterrupt with words on Ctrl-C.
    """
    kept = f"the best candidate so far is in {str(job.out)!r}"
    # The history of prompts and the trace would grow by every demo of every call.
    with dspy.context(disable_history=True, trace=None):
        try:
            return _compiled(_Compile(job, console))
        except (BudgetSpent, SearchStopped) as stopped:
            raise BudgetSpent(f"{stopped}; {kept}, --resume goes on") from stopped
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{kept}; go on with --resume and the same --out") from None


def _compiled(run: _Compile) -> Compiled:
    job = run.job
    train, validation = run.taught()
    ranking = Ranking(
        lambda c: run.judged(run.replayed(c.program, train), run.validation, f"validation: {c.name}"),
        keep=job.settings.compile.rerank,
    )
    with timed(run.seconds, "choose"):
        best = ranking.add([Candidate("uncompiled", run.program)])
    for name in job.optimizers:
        with timed(run.seconds, name):
            if name == "fusion":
                proposed, note = tuned(
                    best.candidate, lambda p: Replayed(p, train.gathered), run.train, run.validation,
                    workers=job.settings.compile.workers, memory=run.memory,
                )  # fmt: skip
            else:
                proposed, note = run.searched(name, best.candidate.program, train, validation), ""
        with timed(run.seconds, "choose"):
            best = ranking.add(proposed, clearly=name == "fusion")
        if note:
            run.notes.append("; ".join(filter(None, (note, ranking.shortfall(proposed)))))
    run.journal.note("chosen", name=best.candidate.name, validation=validation_score(best.record))
    return _reported(run, ranking, best)


def _reported(run: _Compile, ranking: Ranking, best: Ranked) -> Compiled:
    job, splits = run.job, run.job.splits
    chosen = best.candidate
    # Saved before the test, so that a kill during it loses nothing.
    table = ranking.table()
    run.journal.finished(chosen.program, {"chosen": chosen.name, "validation": table}, {})
    with timed(run.seconds, "test"):
        beside = Beside(run.program) if job.settings.compile.baselines else None
        before = run.judged(run.program, splits["test"], "test: uncompiled", beside)
        same = program_sha256(chosen.program) == program_sha256(run.program)
        after = before if same else run.judged(chosen.program, splits["test"], f"test: {chosen.name}")
    context = job.context(run.program)
    before, after = (
        r.model_copy(update={"context": {**context, "program": n, "program_sha256": program_sha256(p)}})
        for r, n, p in ((before, "uncompiled", run.program), (after, chosen.name, chosen.program))
    )
    differences = compare(before.rows, after.rows, seed=job.settings.seed)
    if beside is not None:
        # The compiled program's rows hold its own fusion ablation; the tools alone are the same for both.
        before, after = with_baselines(before), with_baselines(after)
    verdict = verdict_of(chosen.name, best.record, ranking.uncompiled.record, differences, before)
    result = Compiled(
        folder=job.out, chosen=chosen.name, seed=job.settings.seed, uncompiled=before, compiled=after,
        differences=differences, baseline=verdict.baseline, verdict=verdict, validation=table,
        curve=run.journal.curve, notes=run.notes, seconds=run.seconds, runs=run.runs,
        difference=difference_markdown(run.program, chosen.program),
    )  # fmt: skip
    page = render(after, splits["test"], sections=_sections(result))
    run.journal.finished(chosen.program, result.summary(), {"diff.md": result.difference, "report.html": page})
    return result


def _sections(result: Compiled) -> dict[str, str]:
    before, gained = result.uncompiled.figures, result.differences
    lines = [f"{name}: {before[name]} -> {result.compiled.figures[name]}, gain {gained[name]}" for name in gained]
    best = result.baseline
    if best is not None:
        lines.append(f"best single tool or model: {best.label}, {best.srcc or best.accuracy}")
    ranked = [f"{v['score']:.4f}  {name}" for name, v in result.validation.items()]
    return {
        "What compiling gained": "\n".join([result.verdict.text, *lines, *result.notes]),
        "Candidates on validation": "\n".join(ranked),
        "What compiling changed": result.difference,
    }
