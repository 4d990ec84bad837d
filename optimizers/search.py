"""What an optimizer works with: candidates, their scores, and the metrics that DSPy's own ones ask of it."""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy
import numpy as np

from optimizers.examples import ExampleSet
from optimizers.objectives import Objective
from optimizers.store import Store
from optimizers.student import Student, role_of
from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.agent.saving import program_sha256
from program.common.pool import in_order
from program.common.settings import RecipeSettings
from program.evaluation.metrics import plcc, srcc

__all__ = ("Candidate", "Outcome", "Search", "Trial", "grouped", "scored_examples", "set_score")

GROUP = 8
"""Images in one example of the group-wise objective."""
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


_Answered = tuple[dspy.Example, Assessment | None, Outcome]
"""A sample, what the program made of it, and how well that agrees."""


@dataclass
class Search:
    """One optimizer's search: the student (not changed), what it is taught with, the outcomes so far. Thread-safe."""

    name: str
    """The optimizer's, before those of its candidates."""
    base: Candidate
    """The best program so far, which the student starts as."""
    names: Sequence[str]
    """The predictors that are taught."""
    train: ExampleSet
    validation: ExampleSet
    scored: Sequence[dspy.Example]
    """What gives a candidate its search score in a recipe that lets a model write; empty for the others."""
    budget: RecipeSettings
    objective: Objective
    kind: str
    """"rank", "mean" or "groups"."""
    seed: int
    workers: int
    store: Store
    reflection: dspy.BaseLM | None = None
    """The language model that writes instructions."""
    teacher: Student | None = None
    """Whose answers become demos; the student's own without it."""
    log: Callable[[Candidate], None] = lambda candidate: None
    """To be called with each candidate as it gets its search score."""
    logged: Mapping[str, float] = field(default_factory=dict)
    """Search scores by candidate digest, of the compile that is resumed."""
    advance: Callable[[], None] = lambda: None
    note: str = ""
    """A recipe's own words on what it found, for the user."""

    def __post_init__(self) -> None:
        self.student = Student(self.base.program, self.names, self.train.gathered, self._enter)
        self.trials: dict[str, Trial] = {}
        """By digest."""
        self.runs = 0
        self._scored_ids = {member.id for e in self.scored for member in e.get("members") or [e]}
        self._known: dict[tuple[str, str], Outcome] = {}
        """By example and by the predictors that play a part in it: other demos for questions change no score."""
        self._lock = threading.RLock()

    def named(self, change: str) -> str:
        """Return the name of a candidate that adds a change to the best program so far."""
        return change if self.base.name == "uncompiled" else f"{self.base.name}+{change}"

    def metric(self, example: dspy.Example, prediction: Any, trace: Any = None) -> float | bool:
        """Return the objective, 0..1; a verdict while bootstrapping (`trace` given)."""
        outcomes = self._outcomes(example, prediction)
        if trace is not None:
            return all(self.objective.passes(member, a) for member, a, _ in outcomes)
        return _score(example, outcomes)

    def metric_with_feedback(
        self, example: dspy.Example, prediction: Any, trace: Any = None, predictor: str | None = None,
        predictor_trace: Any = None,
    ) -> dspy.Prediction:  # fmt: skip
        """Return the same number, whatever the predictor asked about, with words for that predictor's role."""
        outcomes = self._outcomes(example, prediction)
        role = role_of(predictor) if predictor else None
        # The three worst answers of a group say the most.
        worst = sorted(outcomes, key=lambda each: each[2].agreement)[:3]
        words = "\n".join(self.objective.feedback(member, assessment, role) for member, assessment, _ in worst)
        return dspy.Prediction(score=_score(example, outcomes), feedback=words)

    def shuffled_train(self) -> list[dspy.Example]:
        """Return the training examples in a seeded order; groups of them if the objective asks for those."""
        return scored_examples(self.train.examples, None, self.kind, self.seed)

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

    def _add(self, digest: str, example: dspy.Example, assessment: Assessment | None) -> Outcome:
        """Record one run; the candidate is logged once it has run on all scored examples."""
        truth = example.get("answer") if example.get("answer") is not None else example.get("quality")
        predicted = assessment.final_answer if assessment is not None and assessment.status != "failed" else None
        outcome = Outcome(truth, predicted, self.objective.score(example, assessment))
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

    def _outcomes(self, example: dspy.Example, prediction: Any) -> list[_Answered]:
        self.advance()
        members = example.get("members") or [example]
        answers = prediction.get("members") or [prediction]
        outcomes = []
        for member, answer in zip(members, answers, strict=True):
            given = answer if isinstance(answer, dspy.Prediction) else dspy.Prediction()
            assessment = given.get("assessment")
            outcomes.append((member, assessment, self._add(given.get("candidate", ""), member, assessment)))
        return outcomes


def _score(example: dspy.Example, outcomes: list[_Answered]) -> float:
    if example.get("members") is None:
        return outcomes[0][2].agreement
    # Half of the way from the worst (-1) to the best correlation is no agreement at all.
    return (1 + set_score([outcome for _, _, outcome in outcomes])) / 2


def scored_examples(examples: Sequence[dspy.Example], most: int | None, kind: str, seed: int) -> list[dspy.Example]:
    """Return at most so many of the examples in an order drawn by seed; groups of them if the objective wants those."""
    pool = sorted(examples, key=lambda e: e.id)
    random.Random(seed).shuffle(pool)
    return grouped(pool[:most]) if kind == "groups" else pool[:most]


def grouped(examples: Sequence[dspy.Example]) -> list[dspy.Example]:
    """Return examples of eight images each, of one task; a group scored as a whole has a rank correlation."""
    groups = []
    for with_options in (True, False):
        members = [e for e in examples if (e.get("answer") is not None) == with_options]
        for start in range(0, len(members) - GROUP + 1, GROUP):
            of_group = members[start : start + GROUP]
            ids = "+".join(e.id for e in of_group)
            groups.append(dspy.Example(id=ids, members=of_group).with_inputs("members"))
    return groups
