"""A compile from data to a saved program: train on train, choose on validation, report on test.

Whatever ends the process, the program's folder holds the best candidate so far (see `optimizers.plan`).
"""

import contextlib
import io
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError, LMError

from data.manifest import Sample
from optimizers.demos import showable_demos
from optimizers.examples import ExampleSet, collect_examples
from optimizers.job import Job, upside_down
from optimizers.objectives import Objective
from optimizers.plan import CROSSED, CompileLog, call_plan
from optimizers.recipes import Recipe, recipe_named
from optimizers.report import (
    Compiled,
    advice,
    difference_markdown,
    learned_sentences,
    reasons,
    waiting,
)
from optimizers.search import Candidate, Search
from optimizers.selection import (
    IN_FOLDS,
    VALIDATION,
    CrossValidation,
    Ranking,
    Verdict,
    kept_verdict,
    verdict_of,
)
from optimizers.student import EvidenceReplay, Reflections, SearchStopped, optimized_predictors
from program.agent.labels import FittedOn
from program.agent.loop import AgenticIQA
from program.agent.saving import program_sha256
from program.agent.summarizer import AnswerPart
from program.common.console import Console
from program.common.errors import InputError
from program.common.pool import in_order, progress, time_phase
from program.evaluation.agreement import ceiling_words
from program.evaluation.baselines import BaselineAnswers, with_baselines
from program.evaluation.evaluating import Evaluating, OtherAnswers, run_samples
from program.evaluation.figures import compare, summarize
from program.evaluation.intervals import Figure
from program.evaluation.publishing import render
from program.evaluation.record import EvaluationRecord, LabelledRow
from program.lms.limits import BudgetSpent
from program.running.runner import without_history
from program.tracking import RunHandle

logger = logging.getLogger(__name__)


def compile_program(job: Job, *, console: Console | None = None) -> Compiled:
    """Teach a program, choose the best candidate on validation, save it, and compare both programs on test.

    Raises BudgetSpent (an InputError) when the budget in force is spent, KeyboardInterrupt with words on Ctrl-C, and
    InputError where another compile has the folder, or there is none to resume.
    """
    run = Compile(job, console)
    with closing(run.log):
        return run.result()


@dataclass
class Round:
    """A search over one division of the data: the recipes in turn, their candidates ranked on validation."""

    job: Job
    program: AgenticIQA
    """The uncompiled one."""
    reflections: Reflections
    folds: Sequence["Round"] = ()
    """Searches without a part of the labels each; they judge candidates in place of validation."""
    console: Console | None = None
    """Where progress goes, if anywhere."""
    most_runs: Mapping[str, int] = field(default_factory=dict)
    """Of each recipe, for its progress."""
    log_score: Callable[[Candidate], None] = lambda candidate: None
    notes: list[str] = field(default_factory=list)
    """For the user, of what the recipes found."""
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.validation = self.job.samples("validation")
        self.versions = {"uncompiled": Candidate("uncompiled", self.program)}
        """As a fold, its own candidates by the names that the search over all labels gives them."""
        self.context = self.job.context(self.program)

    @classmethod
    def of(cls, job: Job, program: AgenticIQA, reflections: Reflections, **shown: Any) -> "Round":
        """Return the search of a job, in folds where few labels choose."""
        folds: list[Round] = []
        if job.is_chosen_in_folds:
            job, divisions = job.in_choice_folds()
            folds = [cls(division, program, reflections) for division in divisions]
        return cls(job, program, reflections, folds, **shown)

    def search(self, train: ExampleSet, validation: ExampleSet) -> Ranking:
        """Return the candidates of all recipes, ranked."""
        if self.folds:
            train = train.of(self.job.splits["train"], validation)

        def judge(candidate: Candidate) -> EvaluationRecord:
            if self.folds:
                return self._judged_in_folds(candidate.name, train)
            asked = asking(candidate.program, self.job.answer_part)
            return self.judge(candidate.name, self.replayed(asked, train), self.validation, "validation")

        with time_phase(self.seconds, "choose on validation"):
            where = IN_FOLDS if self.folds else VALIDATION
            uncompiled, keep = self.versions["uncompiled"], self.job.settings.compile.rerank
            ranking = Ranking(judge, uncompiled, keep=keep, where=where)
        for recipe in map(recipe_named, self.job.optimizers):
            with time_phase(self.seconds, recipe.name):
                base = ranking.best.candidate
                candidates, note = self._candidates(recipe, base, train, validation)
                self._propose_in_folds(recipe, base, candidates, train)
            with time_phase(self.seconds, "choose on validation"):
                outcome = ranking.add(candidates, clearly=recipe.teaches == "fusion")
            if candidates:
                self.notes.append(f"{note}; {outcome}" if note else f"{recipe.name}: {outcome}")
            elif note:
                self.notes.append(note)
        return ranking

    def _propose_in_folds(
        self, recipe: Recipe, base: Candidate, candidates: Sequence[Candidate], examples: ExampleSet
    ) -> None:
        """Let each fold have a version of its own of these candidates; what it cannot fit stays as it was.

        Evidence is fitted once: what it says of an image never goes by the labels of the image's own group.
        """
        if recipe.teaches == "evidence":
            for fold in self.folds:
                fold.versions |= {candidate.name: candidate for candidate in candidates}
            return
        if not candidates or not self.folds:
            return
        name, is_shown = f"{recipe.name} in folds", self.console is not None
        with progress(name, len(self.folds), shown=is_shown, console=self.console) as advance:
            for fold in self.folds:
                held_back = examples.of(fold.validation)
                own, _ = fold._candidates(recipe, fold.versions[base.name], examples, held_back)
                fold.versions |= {candidate.name: candidate for candidate in own}
                for candidate in candidates:
                    fold.versions.setdefault(candidate.name, replace(fold.versions[base.name], name=candidate.name))
                advance()

    def _judged_in_folds(self, name: str, examples: ExampleSet) -> EvaluationRecord:
        """Return the record of a candidate over all labels, each judged by the version that was fitted without it."""
        rows: list[LabelledRow] = []
        for fold in self.folds:
            version = asking(fold.versions[name].program, self.job.answer_part)
            judge = Evaluating(fold.replayed(version, examples))
            rows += in_order(judge, fold.job.splits["test"], workers=self.job.settings.compile.workers)
        return summarize(rows, dataset=self.job.dataset, context=self.context, seed=self.job.settings.seed)

    def _candidates(
        self, recipe: Recipe, base: Candidate, train: ExampleSet, validation: ExampleSet
    ) -> tuple[list[Candidate], str]:
        """Return a recipe's candidates for a student that starts as `base`, and its own words on them."""
        job = self.job
        train = train.of(job.samples("train", [recipe.name]))
        tasks = {"mcq" if e.get("answer") is not None else "scoring" for e in train.examples}
        names = optimized_predictors(base.program, job.roles, tasks, train.asked)
        most = self.most_runs.get(recipe.name, 0)
        with progress(recipe.name, most, console=self.console) as advance:
            search = Search(
                recipe.name, base, names, train, validation, job.budget(recipe.name),
                Objective(job.settings.optimizers.weights), job.settings.seed, job.settings.compile.workers,
                learner=job.learner, reflection=job.reflection if recipe.reflects else None,
                answer_part=job.answer_part, teacher=job.teacher(names) if recipe.bootstraps else None,
                log=self.log_score, advance=advance,
            )  # fmt: skip
            printed, watchers = io.StringIO(), [search, *([self.reflections] if recipe.reflects else [])]
            watched = dspy.context(callbacks=[*dspy.settings.callbacks, *watchers])
            # DSPy's optimizers print their progress; it belongs to the log, not between the lines of a table or JSON.
            with contextlib.redirect_stdout(printed), watched:
                try:
                    candidates = recipe.run(search)
                except (LMError, AdapterParseError):
                    if not self.reflections.failed:
                        raise
                    candidates = search.candidates()  # what was found until then
        logger.debug("%s: %s", recipe.name, printed.getvalue())
        for candidate in candidates:
            showable_demos(candidate.program)
        return candidates, search.note

    def replayed(self, program: AgenticIQA, examples: ExampleSet) -> AgenticIQA | EvidenceReplay:
        """Return the program on the evidence at hand, which is every candidate's where only answers are optimized."""
        if self.job.roles == ("summarizer",):
            return EvidenceReplay(program, examples.gathered)
        return program

    def judge(
        self, name: str, program: AgenticIQA | EvidenceReplay, samples: list[Sample], split: str,
        others: OtherAnswers | None = None,
    ) -> EvaluationRecord:  # fmt: skip
        """Return a program's record over samples."""
        bare = program.program if isinstance(program, EvidenceReplay) else program
        return run_samples(
            program, samples, workers=self.job.settings.compile.workers, progress=self.console is not None,
            seed=self.job.settings.seed, dataset=self.job.dataset, label=f"{split}: {name}", others=others,
            context={**self.context, "program": name, "program_sha256": program_sha256(bare)},
        )  # fmt: skip


class Compile:
    """One compile in progress; no other writes its folder until its log is closed."""

    def __init__(self, job: Job, console: Console | None = None) -> None:
        """Ask and write nothing yet; InputError where another compile has the folder, or there is none to resume."""
        self.job, self.console = job, console
        self.program = AgenticIQA(job.settings, lm=job.lm)
        self.train, self.validation = job.samples("train", job.optimizers), job.samples("validation")
        self.log = CompileLog(job.out, resume=job.resume)
        self._run: RunHandle | None = None
        self.whole = Round.of(
            job, self.program, Reflections(), console=console, log_score=self._log_score,
            most_runs={phase.name: phase.runs for phase in call_plan(job).phases}, notes=list(job.notes),
        )  # fmt: skip
        self.seconds = self.whole.seconds
        self.progress = partial(progress, shown=console is not None, console=console)

    def result(self, run: RunHandle | None = None) -> Compiled:
        """Teach, choose, save and compare, as `compile_program` does; a run gets the curve of the best so far."""
        self._run = run
        best = f"the best candidate so far is in {str(self.job.out)!r}"
        self.log.begin(self.program)
        with without_history():
            try:
                return self._compiled()
            except (BudgetSpent, SearchStopped) as stopped:
                raise BudgetSpent(f"{stopped}; {best}, --resume continues") from stopped
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"{best}; continue with --resume and the same --out") from None

    def _compiled(self) -> Compiled:
        job, uncompiled = self.job, Candidate("uncompiled", self.program)
        if job.kept is not None:
            before = self._tested(uncompiled, baselines=True)
            self._check_direction(before.figures.get("srcc"))
            return self._reported(uncompiled, before, before, kept_verdict(job.kept), {})
        train, validation = self._evidence()
        self._check_direction(train.agreement())
        ranking = self.whole.search(train, validation)
        chosen, table = ranking.best.candidate, ranking.table()
        self._mark(chosen)
        kept = self._why_kept(ranking.where) if ranking.best is ranking.uncompiled else None
        if job.folds:
            before = self._tested(uncompiled, baselines=True)
            if kept is not None:
                return self._reported(chosen, before, before, kept, table)
            after = self._crossed(train, validation, before, program_sha256(chosen.program))
            gains = self._gains(before, after)
            crossed = CrossValidation.of(len(job.folds), before, after, gains)
            if not crossed.adopted:
                return self._reported(uncompiled, before, before, crossed.verdict(), table, crossed=crossed)
            return self._reported(chosen, before, after, crossed.verdict(), table, gains, crossed)
        # Saved before the test, so that a kill during it loses nothing.
        self.log.finish(chosen.program, {"chosen": chosen.name, "validation": table})
        before = self._tested(uncompiled, baselines=True)
        if kept is not None:
            return self._reported(chosen, before, before, kept, table)
        after = self._tested(chosen)
        gains = self._gains(before, after)
        verdict = verdict_of(ranking.best.record, ranking.uncompiled.record, gains, ranking.where)
        return self._reported(chosen, before, after, verdict, table, gains)

    def _evidence(self) -> tuple[ExampleSet, ExampleSet]:
        """Gather the evidence of train and validation, once, and return both with their labelled demos."""
        job, total = self.job, len(self.train) + len(self.validation)
        with time_phase(self.seconds, "evidence"), self.progress("evidence", total) as advance:
            workers = job.settings.compile.workers
            collect = partial(collect_examples, workers=workers, advance=advance, measured=job.measured_ids)
            train = collect(asking(self.program, "whole" if job.needs_answers else "nothing"), self.train)
            validation = collect(asking(self.program, job.answer_part), self.validation)
        train.gathered.update(validation.gathered)
        return train, validation

    def _check_direction(self, agreement: Figure | None) -> None:
        """Raise InputError, with no folder left behind, where the labels seem to be upside down."""
        if (fault := upside_down(self.job, agreement)) is not None:
            self.log.withdraw()
            raise InputError(fault)

    def _why_kept(self, where: str) -> Verdict:
        if self.whole.reflections.all_failed:
            return kept_verdict(f"no instruction was written ({self.whole.reflections.note})")
        return kept_verdict(f"no candidate was better {where}")

    def _tested(self, candidate: Candidate, *, baselines: bool = False) -> EvaluationRecord:
        others = BaselineAnswers(self.program) if baselines and self.job.settings.compile.baselines else None
        with time_phase(self.seconds, "test"):
            return self.whole.judge(candidate.name, candidate.program, self.job.splits["test"], "test", others)

    def _crossed(
        self, train: ExampleSet, validation: ExampleSet, before: EvaluationRecord, sha256: str
    ) -> EvaluationRecord:
        """Return the record over all samples, each judged by the program compiled on the folds without it."""
        rows: dict[str, LabelledRow] = {}
        with time_phase(self.seconds, CROSSED), self.progress(CROSSED, len(self.job.folds)) as advance:
            for splits in self.job.folds:
                fold = Round.of(replace(self.job, splits=splits, folds=()), self.program, self.whole.reflections)
                training, held = (train.of(splits[name], validation) for name in ("train", "validation"))
                best = fold.search(training, held).best.candidate
                record = fold.judge(best.name, fold.replayed(best.program, train), splits["test"], "test")
                rows |= {row.id: row for row in record.rows}
                advance()
        context = {**before.context, "program": "cross-validated", "program_sha256": sha256}
        ordered = [rows[row.id] for row in before.rows]
        seconds = self.seconds[CROSSED]
        return summarize(ordered, dataset=self.job.dataset, context=context, seed=before.seed, wall_seconds=seconds)

    def _gains(self, before: EvaluationRecord, after: EvaluationRecord) -> dict[str, Figure]:
        with waiting(self.console, "working out intervals"):
            return compare(before.rows, after.rows, seed=self.job.settings.seed)

    @cached_property
    def _fitted_on(self) -> FittedOn:
        """What candidates are fitted, chosen and tested on."""
        return FittedOn.of({"train": self.train, "validation": self.validation, "test": self.job.splits["test"]})

    def _mark(self, candidate: Candidate) -> None:
        """Let a candidate's program know what it was fitted on, which the uncompiled one was not."""
        if candidate.program is not self.program:
            candidate.program.fitted_on = self._fitted_on

    def _log_score(self, candidate: Candidate) -> None:
        self._mark(candidate)
        self.log.log_score(candidate)
        if self._run is not None:
            _, _, best = self.log.curve[-1]
            self._run.log_metrics({"search_score": best}, step=len(self.log.curve) - 1)

    def _reported(
        self, chosen: Candidate, before: EvaluationRecord, after: EvaluationRecord, verdict: Verdict,
        table: dict[str, dict[str, Any]], gains: dict[str, Figure] | None = None,
        crossed: CrossValidation | None = None,
    ) -> Compiled:  # fmt: skip
        job, notes = self.job, self.whole.notes
        differences = self._gains(before, after) if gains is None else gains
        with waiting(self.console, "working out intervals"):
            labelled = {sample.id: sample for split in job.splits.values() for sample in split}
            if most := ceiling_words(labelled.values(), after):
                notes.append(most)
            if job.kept is None and (why := reasons(job, before, differences)) is not None:
                notes += [why, advice(job)]
            if job.settings.compile.baselines:
                # The compiled program's rows hold its own fusion ablation; the tools alone are the same for both.
                before, after = with_baselines(before), with_baselines(after)
        if (failed := self.whole.reflections.note) and failed not in verdict.text:
            notes.append(failed)
        result = Compiled(
            program=chosen.program, folder=job.out, chosen=chosen.name, seed=job.settings.seed, uncompiled=before,
            compiled=after, differences=differences, verdict=verdict, validation=table,
            curve=self.log.curve, notes=notes, seconds=self.seconds,
            difference=difference_markdown(self.program, chosen.program),
            learned=learned_sentences(self.program, chosen.program), crossed=crossed,
        )  # fmt: skip
        with waiting(self.console, "drawing the report"):
            tested = job.splits["test"]
            page = render(after, tested, sections=result.changed(), opening=result.gained())
        self.log.finish(chosen.program, result.summary(), {"diff.md": result.difference, "report.html": page})
        return result


def asking(program: AgenticIQA, part: AnswerPart) -> AgenticIQA:
    """Return a copy of a program whose model is asked for so much of an answer."""
    copied: AgenticIQA = program.deepcopy()
    copied.summarizer.answer_part = part
    return copied
