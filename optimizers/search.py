"""What an optimizer works with: candidates, their scores, and what a program believes of samples no demo shows."""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import dspy
import numpy as np
from dspy.utils.callback import BaseCallback
from numpy.typing import NDArray

from optimizers.demos import image_url, showable_demos
from optimizers.examples import ExampleSet
from optimizers.learner import LANGUAGE_MODEL, Learner
from optimizers.objectives import Objective
from optimizers.student import EvidenceReplay, Student, role_of
from program.agent.loop import AgenticIQA
from program.agent.saving import program_sha256
from program.agent.summarizer import AnswerPart
from program.common.errors import InputError
from program.common.pool import in_order
from program.common.settings import RecipeSettings
from program.fusion import ScoreFusion
from program.lms.limits import BudgetSpent

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]

ALL_ERRORS = 1_000_000
"""Failed runs that an optimizer of DSPy bears with; its default of ten loses every result."""


@dataclass(frozen=True)
class Candidate:
    """A proposed program, and the mean agreement of its search, 0..1; None if it was not searched."""

    name: str
    program: AgenticIQA
    search_score: float | None = None

    @cached_property
    def digest(self) -> str:
        """The hash of what it learned."""
        return program_sha256(self.program)[:16]


@dataclass(eq=False)
class Search(BaseCallback):
    """One optimizer's search: the student (not changed), what it learns from, the candidates so far.

    As a callback of DSPy it notes each program that an optimizer evaluates on all of `scored`.
    """

    name: str
    """The optimizer's, before those of its candidates."""
    base: Candidate
    """The best program so far, which the student starts as."""
    names: Sequence[str]
    """The predictors to optimize."""
    train: ExampleSet
    validation: ExampleSet
    budget: RecipeSettings
    objective: Objective
    seed: int
    workers: int
    learner: Learner = LANGUAGE_MODEL
    reflection: dspy.BaseLM | None = None
    """The language model that writes instructions."""
    answer_part: AnswerPart = "whole"
    """How much of an answer a fit asks for."""
    teacher: Student | None = None
    """Whose answers become demos; the student's own without it."""
    log: Callable[[Candidate], None] = lambda candidate: None
    """To be called with each candidate as it gets its search score."""
    advance: Callable[[], None] = lambda: None
    note: str = ""
    """A recipe's own words on what it found, for the user."""
    searched: list[Candidate] = field(default_factory=list)
    """What was evaluated, in order; with the program that the search started as, if that was."""

    def __post_init__(self) -> None:
        self.student = Student(self.base.program, self.names, self.train.gathered)
        self.scored = drawn(self.validation.examples, self.budget.search_samples, self.seed)
        """What gives a candidate its search score."""
        self._evaluated: dict[str, Student] = {}

    def candidate_name(self, change: str) -> str:
        """Return the name of a candidate that adds a change to the best program so far."""
        return change if self.base.name == "uncompiled" else f"{self.base.name}+{change}"

    def nothing(self, why: str) -> list[Candidate]:
        """Tell the user why a recipe proposes nothing."""
        self.note = why
        return []

    def metric(self, example: dspy.Example, prediction: Any, trace: Any = None) -> float | bool:
        """Return the objective, 0..1; a verdict while bootstrapping (`trace` given)."""
        self.advance()
        assessment = prediction.get("assessment")
        if trace is None:
            return self.objective.score(example, assessment)
        return self.objective.passes(example, assessment)

    def metric_with_feedback(
        self, example: dspy.Example, prediction: Any, trace: Any = None, predictor: str | None = None,
        predictor_trace: Any = None,
    ) -> dspy.Prediction:  # fmt: skip
        """Return the same number, whatever the predictor asked about, with words for that predictor's role.

        DSPy asks about a predictor once the run has been scored: that is no other run.
        """
        if predictor is None:
            self.advance()
        assessment = prediction.get("assessment")
        words = self.objective.feedback(example, assessment, role_of(predictor) if predictor else None)
        return dspy.Prediction(score=self.objective.score(example, assessment), feedback=words)

    def evaluate(self, student: Student) -> None:
        """Give a student a search score."""
        dspy.Evaluate(
            devset=self.scored, metric=self.metric, num_threads=self.workers, max_errors=ALL_ERRORS
        )(student)  # fmt: skip

    def on_evaluate_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Note what is evaluated on all scored examples, and no other evaluation."""
        if {example.id for example in instance.devset} >= {example.id for example in self.scored}:
            self._evaluated[call_id] = inputs["program"]

    def on_evaluate_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Log a program that is new with its score."""
        student = self._evaluated.pop(call_id, None)
        if student is None or outputs is None:
            return
        program = student.program.deepcopy()
        showable_demos(program)
        candidate = Candidate(f"{self.name}/{len(self.searched)}", program, outputs.score / 100)
        if candidate.digest not in {each.digest for each in self.searched}:
            self.searched.append(candidate)
            self.log(candidate)

    def candidates(self) -> list[Candidate]:
        """Return what was evaluated, best first, without the program that the search started as."""
        found = [each for each in self.searched if each.digest != self.base.digest]
        return sorted(found, key=lambda each: -(each.search_score or 0.0))


def drawn(examples: Sequence[dspy.Example], most: int | None, seed: int) -> list[dspy.Example]:
    """Return at most so many of the examples in an order drawn by seed."""
    pool = sorted(examples, key=lambda e: e.id)
    random.Random(seed).shuffle(pool)
    return pool[:most]


class SampleBelief(NamedTuple):
    """What the Summarizer fused for one sample, and the people's score of it."""

    sample: str
    """The example's id."""
    tools: list[float]
    levels: dict[int, float] | None
    precisions: list[float] | None
    truth: float


class Beliefs(list[SampleBelief]):
    """Of several samples."""

    @property
    def truth(self) -> Array:
        """The people's scores."""
        return np.array([belief.truth for belief in self])

    def fuse(self, fusion: ScoreFusion) -> Array:
        """Return what a fusion makes of them."""
        return np.array([fusion.fuse_scores(b.tools, b.levels, b.precisions) for b in self])


def unseen(search: Search, program: AgenticIQA) -> list[dspy.Example]:
    """Return the scored training samples that validation does not hold and whose photograph no demo shows."""
    held = {example.id for example in search.validation.examples}
    train = [example for example in search.train.examples if example.id not in held]
    in_demos = {image_url(demo) for predictor in program.predictors() for demo in predictor.demos}
    shown = {example.group for example in train if example.image.url in in_demos}
    return [example for example in train if example.get("answer") is None and example.group not in shown]


def beliefs(search: Search, program: AgenticIQA, examples: Sequence[dspy.Example]) -> Beliefs:
    """Return what a program fuses for the examples, on the gathered evidence; one that fails is left out."""
    plain = program.deepcopy()
    plain.summarizer.fitted, plain.summarizer.answer_part = None, search.answer_part
    ask = partial(_belief, search, EvidenceReplay(plain, search.train.gathered))
    return Beliefs(filter(None, in_order(ask, examples, workers=search.workers)))


def _belief(search: Search, replayed: EvidenceReplay, example: dspy.Example) -> SampleBelief | None:
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
    tools = replayed.program.summarizer.tool_readings(answer.state.evidence, *answer.images)
    return SampleBelief(example.id, tools.scores, answer.level_probabilities, tools.precisions, example.quality)
