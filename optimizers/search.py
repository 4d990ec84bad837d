"""What an optimizer works with: candidates, their scores, and what a program believes of samples no demo shows."""

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from optimizers.demos import image_url
from optimizers.examples import ExampleSet, Store
from optimizers.objectives import Objective
from optimizers.student import EvidenceReplay, Student, role_of
from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.agent.saving import program_sha256
from program.agent.state import ToolReadings
from program.agent.summarizer import AnswerPart
from program.common.errors import InputError
from program.common.pool import in_order
from program.common.settings import RecipeSettings
from program.evaluation.metrics import plcc, srcc
from program.fusion import ScoreFusion
from program.lms.limits import BudgetSpent

ALL_ERRORS = 1_000_000
"""Failed runs that an optimizer of DSPy bears with; its default of ten loses every result."""


@dataclass(frozen=True)
class Candidate:
    """A proposed program, and what its search made of it (higher is better; None if it was not searched)."""

    name: str
    program: AgenticIQA
    search_score: float | None = None
    digest: str = ""

    @classmethod
    def of(cls, name: str, student: Student, search_score: float | None = None) -> "Candidate":
        """Return a student as a candidate."""
        return cls(name, student.program, search_score, student.digest())


@dataclass(frozen=True)
class Outcome:
    """One candidate on one example."""

    truth: float | str | None
    predicted: float | str | None
    """None where the run failed."""
    agreement: float
    """The objective's, 0..1."""


@dataclass
class Trial:
    """A candidate that an optimizer tried, with its outcomes so far."""

    program: AgenticIQA
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By example."""
    complete: bool = False

    @property
    def mean(self) -> float:
        """The mean agreement over its outcomes, 0..1."""
        return sum(o.agreement for o in self.outcomes.values()) / len(self.outcomes) if self.outcomes else 0.0


def set_score(outcomes: Sequence[Outcome], kind: str = "rank") -> float:
    """Return how well a set of outcomes agrees with people, -1..1; failed runs count as the worst.

    "rank": for scores the mean of SRCC and PLCC, for answers the accuracy, weighted by their numbers; "mean": the mean
    of the examples' agreement.
    """
    if not outcomes:
        return 0.0
    scores = [o for o in outcomes if isinstance(o.truth, float)]
    if kind == "mean" or 0 < len(scores) < 3:
        return sum(o.agreement for o in outcomes) / len(outcomes)
    total = sum(o.agreement for o in outcomes if not isinstance(o.truth, float))
    used = [o for o in scores if isinstance(o.predicted, float)]
    if len(used) >= 3:
        pair = np.array([o.truth for o in used], dtype=float), np.array([o.predicted for o in used], dtype=float)
        total += float(np.nan_to_num((srcc(*pair) + plcc(*pair)) / 2)) * len(used)
    return total / len(outcomes)


@dataclass
class Search:
    """One optimizer's search: the student (not changed), what it learns from, the outcomes so far. Thread-safe."""

    name: str
    """The optimizer's, before those of its candidates."""
    base: Candidate
    """The best program so far, which the student starts as."""
    names: Sequence[str]
    """The predictors to optimize."""
    train: ExampleSet
    validation: ExampleSet
    scored: Sequence[dspy.Example]
    """What gives a candidate its search score in a recipe that lets a model write; empty for the others."""
    budget: RecipeSettings
    objective: Objective
    kind: str
    """"rank" or "mean"."""
    seed: int
    workers: int
    store: Store
    reflection: dspy.BaseLM | None = None
    """The language model that writes instructions."""
    answer_part: AnswerPart = "whole"
    """How much of an answer a fit asks for."""
    teacher: Student | None = None
    """Whose answers become demos; the student's own without it."""
    log: Callable[[Candidate], None] = lambda candidate: None
    """To be called with each candidate as it gets its search score."""
    logged: Mapping[str, float] = field(default_factory=dict)
    """Search scores by candidate digest, of the compile that is resumed."""
    advance: Callable[[], None] = lambda: None
    note: str = ""
    """A recipe's own words on what it found, for the user."""
    details: str = ""
    """Figures and parameters of what it fitted, for diff.md."""

    def __post_init__(self) -> None:
        self.student = Student(self.base.program, self.names, self.train.gathered, self._enter)
        self.trials: dict[str, Trial] = {}
        """By digest."""
        self.runs = 0
        self._scored_ids = {example.id for example in self.scored}
        self._known: dict[tuple[str, str], Outcome] = {}
        """By example and by the predictors that play a part in it: other demos for questions change no score."""
        self._lock = threading.RLock()

    def candidate_name(self, change: str) -> str:
        """Return the name of a candidate that adds a change to the best program so far."""
        return change if self.base.name == "uncompiled" else f"{self.base.name}+{change}"

    def nothing(self, why: str) -> list[Candidate]:
        """Tell the user why a recipe proposes nothing."""
        self.note = why
        return []

    def metric(self, example: dspy.Example, prediction: Any, trace: Any = None) -> float | bool:
        """Return the objective, 0..1; a verdict while bootstrapping (`trace` given)."""
        assessment, outcome = self._answered(example, prediction)
        return outcome.agreement if trace is None else self.objective.passes(example, assessment)

    def metric_with_feedback(
        self, example: dspy.Example, prediction: Any, trace: Any = None, predictor: str | None = None,
        predictor_trace: Any = None,
    ) -> dspy.Prediction:  # fmt: skip
        """Return the same number, whatever the predictor asked about, with words for that predictor's role.

        DSPy asks about a predictor once the run has been scored: that is no other run.
        """
        assessment, outcome = self._answered(example, prediction, again=predictor is not None)
        words = self.objective.feedback(example, assessment, role_of(predictor) if predictor else None)
        return dspy.Prediction(score=outcome.agreement, feedback=words)

    def score_on(self, student: Student, examples: Sequence[dspy.Example]) -> float:
        """Return a candidate's score on a set of examples, -1..1 (see `set_score`), running it where need be."""
        digest = student.digest()
        if digest in self.logged:
            return self.logged[digest]
        weights = dict(self.objective.weights)
        key = ["score", program_sha256(student.program), student.names, self.kind, weights, examples]
        stored = self.store.get(*key)
        if stored is not None:
            return float(stored)
        by_task = {task: student.digest(task) for task in ("scoring", "mcq")}

        def run(example: dspy.Example) -> Outcome:
            self.advance()
            place = example.id, by_task["scoring" if example.get("answer") is None else "mcq"]
            if place not in self._known:
                self._known[place] = self._add(digest, example, student.assess(**example.inputs()))
            return self._known[place]

        outcomes = in_order(run, examples, workers=self.workers)
        score = set_score(outcomes, self.kind)
        if all(outcome.predicted is not None for outcome in outcomes):
            self.store.put(*key, value=score)
        return score

    def complete_candidates(self, final: Student) -> list[Candidate]:
        """Return every candidate that was run on all scored examples, best first, and the optimizer's own choice."""
        begun = self.student.digest()
        complete = [(digest, trial) for digest, trial in self.trials.items() if trial.complete]
        complete.sort(key=lambda each: -each[1].mean)
        candidates = [
            Candidate(f"{self.name}/{place}", trial.program, trial.mean, digest)
            for place, (digest, trial) in enumerate(complete)
            if digest != begun
        ]
        if final.digest() not in {c.digest for c in candidates} | {begun}:
            candidates.append(Candidate.of(f"{self.name}/final", final))
        return candidates

    def _enter(self, student: Student, digest: str) -> None:
        """Note the program behind a digest, as it is now."""
        with self._lock:
            if digest not in self.trials:
                program = student.program.deepcopy()
                for predictor in program.predictors():
                    predictor.lm = None
                self.trials[digest] = Trial(program)

    def _outcome(self, example: dspy.Example, assessment: Assessment | None) -> Outcome:
        truth = example.get("answer") if example.get("answer") is not None else example.get("quality")
        predicted = assessment.final_answer if assessment is not None and assessment.status != "failed" else None
        return Outcome(truth, predicted, self.objective.score(example, assessment))

    def _add(self, digest: str, example: dspy.Example, assessment: Assessment | None) -> Outcome:
        """Record one run; the candidate is logged once it has run on all scored examples."""
        outcome = self._outcome(example, assessment)
        with self._lock:
            self.runs += 1
            trial = self.trials.get(digest)
            if trial is not None:
                trial.outcomes[example.id] = outcome
                if self._scored_ids and not trial.complete and self._scored_ids <= trial.outcomes.keys():
                    trial.complete = True
                    number = sum(t.complete for t in self.trials.values()) - 1
                    self.log(Candidate(f"{self.name}/{number}", trial.program, trial.mean, digest))
        return outcome

    def _answered(
        self, example: dspy.Example, prediction: Any, *, again: bool = False
    ) -> tuple[Assessment | None, Outcome]:
        answer = prediction if isinstance(prediction, dspy.Prediction) else dspy.Prediction()
        assessment = answer.get("assessment")
        if again:
            return assessment, self._outcome(example, assessment)
        self.advance()
        return assessment, self._add(answer.get("candidate", ""), example, assessment)


def scored_examples(examples: Sequence[dspy.Example], most: int | None, seed: int) -> list[dspy.Example]:
    """Return at most so many of the examples in an order drawn by seed."""
    pool = sorted(examples, key=lambda e: e.id)
    random.Random(seed).shuffle(pool)
    return pool[:most]


logger = logging.getLogger(__name__)

Array = NDArray[np.float64]


class SampleBelief(BaseModel):
    """What the Summarizer fused for one sample, and the people's score of it."""

    sample: str
    """The example's id."""
    tools: list[float]
    levels: dict[int, float] | None
    precisions: list[float] | None
    truth: float

    @classmethod
    def of(cls, example: dspy.Example, answer: Assessment, tools: ToolReadings) -> "SampleBelief":
        """Return of an answer what its score was fused from."""
        return cls(
            sample=example.id,
            tools=tools.scores,
            levels=answer.level_probabilities,
            precisions=tools.precisions,
            truth=example.quality,
        )


class Beliefs(list[SampleBelief]):
    """Of several samples."""

    @property
    def truth(self) -> Array:
        """The people's scores."""
        return np.array([belief.truth for belief in self])

    def fuse(self, fusion: ScoreFusion) -> Array:
        """Return what a fusion makes of them."""
        return np.array([fusion.fuse_scores(b.tools, b.levels, b.precisions) for b in self])


def unseen(program: AgenticIQA, train: Sequence[dspy.Example]) -> list[tuple[AgenticIQA, list[dspy.Example]]]:
    """Return the program without the demos of a photograph, and the scored samples of that photograph, by photograph.

    Photographs that no demo shows go together, with all demos. Demos are left out, and so are the samples of a
    photograph that all demos of a predictor show: without them it believes otherwise.
    """
    groups: dict[str | None, str] = {example.image.url: example.group for example in train}
    in_demos = {image_url(demo) for predictor in program.predictors() for demo in predictor.demos}
    photographs = {groups[url] for url in in_demos if url in groups}
    unseen: dict[str | None, list[dspy.Example]] = {None: []}
    for example in train:
        if example.get("answer") is None and example.image.url not in in_demos:
            unseen.setdefault(example.group if example.group in photographs else None, []).append(example)
    judges = []
    for group, members in unseen.items():
        judge = program.deepcopy()
        for predictor in judge.predictors():
            predictor.demos = [d for d in predictor.demos if group is None or groups.get(image_url(d)) != group]
        still = zip(program.predictors(), judge.predictors(), strict=True)
        if members and all(bool(before.demos) == bool(after.demos) for before, after in still):
            judges.append((judge, members))
    return judges


def beliefs(search: Search, program: AgenticIQA, examples: Sequence[dspy.Example]) -> Beliefs:
    """Return what a program fuses for the examples, on the gathered evidence; one that fails is left out."""
    key = ["beliefs", program_sha256(program), examples]
    stored = search.store.get(*key)
    if stored is not None:
        return Beliefs(map(SampleBelief.model_validate, stored))
    plain = program.deepcopy()
    plain.summarizer.fitted, plain.summarizer.answer_part = None, search.answer_part
    replayed = EvidenceReplay(plain, search.train.gathered)

    def ask(example: dspy.Example) -> SampleBelief | None:
        search.advance()
        try:
            answer = replayed(**example.inputs())
        except BudgetSpent:
            raise
        except InputError as error:
            logger.warning("sample %r left out of the fit: %s", example.id, error)
            return None
        if answer.quality_score is None or answer.state.executor_evidence is None:
            return None
        tools = plain.summarizer.tool_readings(answer.state.evidence, *answer.images)
        return SampleBelief.of(example, answer, tools)

    answers = in_order(ask, examples, workers=search.workers)
    all_beliefs = Beliefs(belief for belief in answers if belief is not None)
    if len(all_beliefs) == len(examples):
        search.store.put(*key, value=[belief.model_dump() for belief in all_beliefs])
    return all_beliefs
