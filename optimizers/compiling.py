"""A compile from data to a saved program: train on train, choose on validation, report on test.

Whatever ends the process, the program's folder holds the best candidate so far (see `optimizers.plan`).
"""

import contextlib
import copy
import io
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError, LMError

from data.manifest import Sample
from optimizers.demos import showable_demos
from optimizers.examples import Evidence, ExampleSet, Store, collect_examples, evidence_on_ray
from optimizers.job import Job, Splits, upside_down
from optimizers.objectives import Objective
from optimizers.plan import CROSSED, CompileLog, call_plan
from optimizers.recipes import Recipe, recipe_named
from optimizers.report import (
    CandidateRuns,
    Compiled,
    advice,
    difference_markdown,
    learned_sentences,
    reasons,
    waiting,
)
from optimizers.search import Candidate, Search, scored_examples
from optimizers.selection import CrossValidation, Ranking, Verdict, kept_verdict, validation_figures, verdict_of
from optimizers.student import EvidenceReplay, Reflections, SearchStopped, optimized_predictors, role_of
from program.agent.loop import AgenticIQA
from program.agent.saving import program_sha256
from program.agent.summarizer import AnswerPart
from program.common.console import Console
from program.common.errors import InputError
from program.common.pool import progress, time_phase
from program.evaluation.evaluating import BaselineAnswers, OtherAnswers, run_samples, with_baselines
from program.evaluation.figures import compare, summarize
from program.evaluation.intervals import Figure
from program.evaluation.publishing import render
from program.evaluation.record import EvaluationRecord, LabelledRow
from program.lms.limits import BudgetSpent
from program.running.runner import without_history
from program.tracking import RunHandle

logger = logging.getLogger(__name__)


class Compile:
    """One compile in progress; no other writes its folder until its log is closed."""

    def __init__(self, job: Job, console: Console | None = None) -> None:
        """Ask and write nothing yet; InputError where another compile has the folder, or it cannot be resumed."""
        self.job, self.console = job, console
        self.program = AgenticIQA(job.settings, lm=job.lm)
        self.store = Store.of(self.program)
        self.progress = partial(progress, shown=console is not None, console=console)
        self.seconds: dict[str, float] = {}
        self.notes = list(job.notes)
        self.details: list[str] = []
        self.runs = 0
        self.reflections = Reflections()
        self.train, self.validation = job.samples("train", job.optimizers), job.samples("validation")
        self.context = job.context(self.program)
        key = job.key(self.program, [*self.train, *self.validation])
        self.plan = call_plan(job)
        self.uncompiled = Candidate("uncompiled", self.program)
        self.others = BaselineAnswers(self.program) if job.settings.compile.baselines else None
        self.tracked = CandidateRuns()
        self.answer_part: AnswerPart = "whole" if job.needs_answers else "decision"
        """How much of an answer is asked for where none is learned from."""
        self.log = CompileLog(job.out, key, resume=job.resume)
        self.log_score, self.known = self._log_score, self.log.scores

    def result(self, run: RunHandle | None = None) -> Compiled:
        """Teach, choose, save and compare, as `compile_program` does, and log candidates to a run."""
        self.tracked = CandidateRuns(run)
        best = f"the best candidate so far is in {str(self.job.out)!r}"
        self.log.begin(self.program)
        with without_history():
            try:
                return _compiled(self)
            except (BudgetSpent, SearchStopped) as stopped:
                raise BudgetSpent(f"{stopped}; {best}, --resume continues") from stopped
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"{best}; continue with --resume and the same --out") from None

    def gather_evidence(self) -> tuple[ExampleSet, ExampleSet]:
        """Gather the evidence of train and validation, once, and return both with their labelled demos."""
        workers, total = self.job.settings.compile.workers, len(self.train) + len(self.validation)
        measured = self.job.measured_ids
        made: dict[str, Evidence | str] = {}
        with time_phase(self.seconds, "evidence"), self.progress("evidence", total) as advance:
            if self.job.cluster is not None:
                missing = [each for each in (*self.train, *self.validation) if self.store.evidence(each) is None]
                make = partial(AgenticIQA, self.job.settings)
                for name, outcome in evidence_on_ray(make, missing, self.job.cluster, measured):
                    made[name] = outcome
                    advance()
            on_train = _asking(self.program, "whole" if self.job.needs_answers else "nothing")
            collect = partial(
                collect_examples, workers=workers, advance=advance, store=self.store, made=made, measured=measured
            )
            train = collect(on_train, self.train)
            validation = collect(_asking(self.program, self.answer_part), self.validation)
        train.gathered.update(validation.gathered)
        self.runs += train.runs + validation.runs
        return train, validation

    def candidates(
        self, recipe: Recipe, base: Candidate, train: ExampleSet, validation: ExampleSet
    ) -> tuple[list[Candidate], str]:
        """Return a recipe's candidates for a student that starts as `base`, and its own words on them."""
        job = self.job
        train = train.of(job.samples("train", [recipe.name]))
        tasks = {"mcq" if e.get("answer") is not None else "scoring" for e in train.examples}
        names = optimized_predictors(base.program, job.roles, sorted(tasks))
        if recipe.teaches == "demos":
            known_traits = base.program.resources.known_traits
            names = tuple(name for name in names if not known_traits(role_of(name)).embedded)
        budget, kind, seed = job.budget(recipe.name), job.settings.compile.objective, job.settings.seed
        scored = scored_examples(validation.examples, budget.search_samples, seed) if recipe.reflects else []
        most = sum(phase.runs for phase in self.plan.phases if phase.name == recipe.name)
        with self.progress(recipe.name, most) as advance:
            search = Search(
                recipe.name, base, names, train, validation, scored, budget,
                Objective(job.settings.optimizers.weights), kind, seed, job.settings.compile.workers, self.store,
                reflection=job.reflection if recipe.reflects else None,
                answer_part=self.answer_part, teacher=job.teacher(names) if recipe.takes_teacher else None,
                log=self.log_score, logged=self.known, advance=advance,
            )  # fmt: skip
            printed, watchers = io.StringIO(), [self.reflections] if recipe.reflects else []
            watched = dspy.context(callbacks=[*dspy.settings.callbacks, *watchers])
            # DSPy's optimizers print their progress; it belongs to the log, not between the lines of a table or JSON.
            with contextlib.redirect_stdout(printed), watched:
                try:
                    candidates = recipe.run(search)
                except (LMError, AdapterParseError):
                    if not self.reflections.failed:
                        raise
                    candidates = search.complete_candidates(search.student)  # what was found until then
        logger.debug("%s: %s", recipe.name, printed.getvalue())
        for candidate in candidates:
            showable_demos(candidate.program)
        self.runs += search.runs
        if search.details:
            self.details.append(search.details)
        return candidates, search.note

    def within(self, splits: Splits) -> "Compile":
        """Return the same compile over other splits of the data: it says, logs and saves nothing."""
        fold = copy.copy(self)
        fold.job, fold.console = replace(self.job, splits=splits, folds=()), None
        fold.train, fold.validation = fold.job.samples("train", fold.job.optimizers), fold.job.samples("validation")
        fold.progress = partial(progress, shown=False)
        fold.seconds, fold.notes, fold.details, fold.runs = {}, [], [], 0
        # A score of the same candidate over other samples is another.
        fold.tracked, fold.known, fold.log_score = CandidateRuns(), {}, lambda candidate: None
        return fold

    def check_direction(self, agreement: Figure | None) -> None:
        """Raise InputError, with no folder left behind, where the labels seem to be upside down."""
        if (fault := upside_down(self.job, agreement)) is not None:
            self.log.withdraw()
            raise InputError(fault)

    def replay_of(self, program: AgenticIQA, examples: ExampleSet) -> AgenticIQA | EvidenceReplay:
        """Return the program on the evidence at hand, which is every candidate's where only answers are optimized."""
        return program if set(self.job.roles) - {"summarizer"} else EvidenceReplay(program, examples.gathered)

    def gains(self, before: EvaluationRecord, after: EvaluationRecord) -> dict[str, Figure]:
        """Return what one record gains over another."""
        return compare(before.rows, after.rows, seed=self.job.settings.seed)

    def _log_score(self, candidate: Candidate) -> None:
        self.log.log_score(candidate)
        self.tracked.log_score(candidate, self.log.curve[-1][2])

    def judge(
        self, name: str, program: AgenticIQA | EvidenceReplay, split: str, others: OtherAnswers | None = None
    ) -> EvaluationRecord:
        """Return a program's record over a split; rows that an earlier compile worked out are not worked out again."""
        settings, dataset = self.job.settings, self.job.dataset
        samples = self.validation if split == "validation" else self.job.splits[split]
        bare, replayed = (program.program, True) if isinstance(program, EvidenceReplay) else (program, False)
        sha256 = program_sha256(bare)
        context = {**self.context, "program": name, "program_sha256": sha256}
        what = [sha256, replayed, others is not None, bare.summarizer.answer_part]
        stored = self.store.rows(what, samples)
        if stored is not None:
            rows, seconds = stored
            return summarize(rows, dataset=dataset, context=context, seed=settings.seed, wall_seconds=seconds)
        failed = self.program.resources.runner.counts["failed"]
        record = run_samples(
            program, samples, workers=settings.compile.workers, progress=self.console is not None, seed=settings.seed,
            dataset=dataset, context=context, label=f"{split}: {name}", others=others,
        )  # fmt: skip
        if self.program.resources.runner.counts["failed"] == failed:
            self.store.put_rows(what, samples, record.rows, record.wall_seconds)
        return record


def _asking(program: AgenticIQA, part: AnswerPart) -> AgenticIQA:
    """Return a copy of a program whose model is asked for so much of an answer."""
    copied: AgenticIQA = program.deepcopy()
    copied.summarizer.answer_part = part
    return copied


def compile_program(job: Job, *, console: Console | None = None) -> Compiled:
    """Teach a program, choose the best candidate on validation, save it, and compare both programs on test.

    Raises BudgetSpent (an InputError) when the budget in force is spent, KeyboardInterrupt with words on Ctrl-C, and
    InputError where another compile has the folder or where it cannot be resumed.
    """
    run = Compile(job, console)
    with closing(run.log):
        return run.result()


def _compiled(run: Compile) -> Compiled:
    job = run.job
    if job.kept is not None:
        before = _tested(run, run.uncompiled, run.others)
        run.check_direction(before.figures.get("srcc"))
        return _reported(run, run.uncompiled, before, before, kept_verdict(job.kept), {})
    train, validation = run.gather_evidence()
    run.check_direction(train.agreement())
    ranking = _ranked(run, train, validation)
    chosen, table = ranking.best.candidate, ranking.table()
    why = "no candidate was better on validation"
    if run.reflections.all_failed:
        why = f"no instruction was written ({run.reflections.note})"
    kept = kept_verdict(why) if ranking.best is ranking.uncompiled else None
    if not job.folds:
        # Saved before the test, so that a kill during it loses nothing.
        run.log.finish(chosen.program, {"chosen": chosen.name, "validation": table})
        if program_sha256(chosen.program) == program_sha256(run.program):
            before = after = _tested(run, chosen, run.others)
        else:
            before, after = _tested(run, run.uncompiled, run.others), _tested(run, chosen)
        verdict = kept or verdict_of(ranking.best.record, ranking.uncompiled.record, run.gains(before, after))
        return _reported(run, chosen, before, after, verdict, table)
    before = _tested(run, run.uncompiled, run.others)
    if kept is not None:
        return _reported(run, chosen, before, before, kept, table)
    after = _crossed(run, train, validation, before, program_sha256(chosen.program))
    crossed = CrossValidation.of(len(job.folds), run.gains(before, after))
    chosen, after = (chosen, after) if crossed.adopted else (run.uncompiled, before)
    return _reported(run, chosen, before, after, crossed.verdict(), table, crossed)


def _ranked(run: Compile, train: ExampleSet, validation: ExampleSet) -> Ranking:
    """Run the recipes in turn, and return their candidates ranked on validation."""

    def judge(candidate: Candidate) -> EvaluationRecord:
        replayed = run.replay_of(_asking(candidate.program, run.answer_part), train)
        record = run.judge(candidate.name, replayed, "validation")
        run.tracked.log_figures(candidate, validation_figures(record))
        return record

    with time_phase(run.seconds, "choose on validation"):
        ranking = Ranking(judge, run.uncompiled, keep=run.job.settings.compile.rerank)
    for recipe in map(recipe_named, run.job.optimizers):
        with time_phase(run.seconds, recipe.name):
            candidates, note = run.candidates(recipe, ranking.best.candidate, train, validation)
        with time_phase(run.seconds, "choose on validation"):
            ranking.add(candidates, clearly=recipe.gains_clearly)
        shortfall = ranking.shortfall(candidates, clearly=recipe.gains_clearly)
        if note or shortfall:
            is_taken = ranking.best.candidate in candidates
            outcome = shortfall or ("better on validation" if is_taken else "not taken: no better on validation")
            run.notes.append("; ".join([note or recipe.name, *([outcome] if candidates else [])]))
    if ranking.equal:
        run.details.append("not judged twice: " + ", ".join(f"{new} is {old}" for new, old in ranking.equal.items()))
    return ranking


def _tested(run: Compile, candidate: Candidate, others: OtherAnswers | None = None) -> EvaluationRecord:
    with time_phase(run.seconds, "test"):
        return run.judge(candidate.name, candidate.program, "test", others)


def _crossed(
    run: Compile, train: ExampleSet, validation: ExampleSet, before: EvaluationRecord, sha256: str
) -> EvaluationRecord:
    """Return the record over all samples, each judged by the program that was compiled on the folds without it."""
    rows: dict[str, LabelledRow] = {}
    with time_phase(run.seconds, CROSSED), run.progress(CROSSED, len(run.job.folds)) as advance:
        for splits in run.job.folds:
            fold = run.within(splits)
            training, held = (train.of(splits[name], validation) for name in ("train", "validation"))
            best = _ranked(fold, training, held).best.candidate
            record = fold.judge(best.name, fold.replay_of(best.program, train), "test")
            rows |= {row.id: row for row in record.rows}
            run.runs += fold.runs
            advance()
    context = {**before.context, "program": "cross-validated", "program_sha256": sha256}
    ordered = [rows[row.id] for row in before.rows]
    seconds = run.seconds[CROSSED]
    return summarize(ordered, dataset=run.job.dataset, context=context, seed=before.seed, wall_seconds=seconds)


def _counted(samples: Iterable[Sample], advance: Callable[[], None]) -> Iterator[Sample]:
    """Yield the samples, and move a progress on with each: who has what it wants asks for no more."""
    for sample in samples:
        advance()
        yield sample


def _reported(
    run: Compile, chosen: Candidate, before: EvaluationRecord, after: EvaluationRecord, verdict: Verdict,
    table: dict[str, dict[str, Any]], crossed: CrossValidation | None = None,
) -> Compiled:  # fmt: skip
    job = run.job
    run.tracked.mark_chosen(chosen.name)
    with waiting(run.console, "working out intervals"):
        differences = run.gains(before, after)
        if job.kept is None and (why := reasons(job, before, differences)) is not None:
            run.notes += [why, advice(job)]
        if run.others is not None:
            # The compiled program's rows hold its own fusion ablation; the tools alone are the same for both.
            before, after = with_baselines(before), with_baselines(after)
    if (failed := run.reflections.note) and failed not in verdict.text:
        run.notes.append(failed)
    result = Compiled(
        program=chosen.program, folder=job.out, chosen=chosen.name, seed=job.settings.seed, uncompiled=before,
        compiled=after, differences=differences, verdict=verdict, validation=table,
        curve=run.log.curve, notes=run.notes, seconds=run.seconds, runs=run.runs,
        difference=difference_markdown(run.program, chosen.program, run.details),
        learned=learned_sentences(run.program, chosen.program), crossed=crossed,
    )  # fmt: skip
    tested = job.splits["test"]
    # The pictures take most of the time of a compile whose evidence is kept.
    with run.progress("report", len(tested)) as advance:
        page = render(after, _counted(tested, advance), sections=result.sections(), before=before)
    run.log.finish(chosen.program, result.summary(), {"diff.md": result.difference, "report.html": page})
    return result
