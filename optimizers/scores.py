"""Candidates and how well they agree with people: on one example, as optimizers think, and on a whole set."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import dspy
import numpy as np

from optimizers.objectives import Objective
from optimizers.store import Store
from optimizers.student import Student
from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.agent.saving import program_sha256
from program.common.pool import in_order
from program.evaluation.metrics import plcc, srcc

__all__ = ("Candidate", "Outcome", "Scores", "Trial", "set_score")


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

    example: str
    truth: float | str | None
    predicted: float | str | None
    """None where the run failed."""
    agreement: float
    """The objective's, 0..1."""


@dataclass
class Trial:
    """A candidate that an optimizer tried, with its outcomes so far."""

    digest: str
    program: AgenticIQA
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By example."""
    complete: bool = False

    @property
    def mean(self) -> float:
        """The mean agreement over its outcomes, 0..1."""
        return sum(o.agreement for o in self.outcomes.values()) / len(self.outcomes) if self.outcomes else 0.0


class Scores:
    """Every candidate of one search with its outcomes; what is known of one is not worked out again. Thread-safe.

    A score is taken from `logged` (by digest: the compile that is resumed) or from `store` (earlier compiles) where
    they have it. `expected` are the examples that make a trial complete; `on_complete` is then called once for it.
    """

    def __init__(
        self, objective: Objective, *, expected: Collection[str] = (),
        on_complete: Callable[[Trial], None] = lambda trial: None, logged: Mapping[str, float] | None = None,
        store: Store | None = None,
    ) -> None:  # fmt: skip
        self.objective, self._expected, self._on_complete = objective, frozenset(expected), on_complete
        self._logged, self._store = logged or {}, store or Store()
        self.trials: dict[str, Trial] = {}
        self.runs = 0
        self._outcomes: dict[tuple[str, str], Outcome] = {}
        """By example and by the predictors that play a part in it: other demos for questions change no score."""
        self._lock = threading.RLock()

    def enter(self, student: Student, digest: str) -> None:
        """Note the program behind a digest, as it is now."""
        with self._lock:
            if digest not in self.trials:
                program = student.program.deepcopy()
                for predictor in program.predictors():
                    predictor.lm = None
                self.trials[digest] = Trial(digest, program)

    def add(self, digest: str, example: dspy.Example, assessment: Assessment | None) -> Outcome:
        """Record one run and return its outcome."""
        truth = example.get("answer") if example.get("answer") is not None else example.get("quality")
        failed = assessment is None or assessment.status == "failed"
        predicted = None if failed or assessment is None else assessment.final_answer
        outcome = Outcome(example.id, truth, predicted, self.objective.score(example, assessment))
        with self._lock:
            self.runs += 1
            trial = self.trials.get(digest)
            if trial is not None:
                trial.outcomes[example.id] = outcome
                if self._expected and not trial.complete and self._expected <= trial.outcomes.keys():
                    trial.complete = True
                    self._on_complete(trial)
        return outcome

    def complete(self) -> list[Trial]:
        """Return the complete trials, best first."""
        return sorted((t for t in self.trials.values() if t.complete), key=lambda t: -t.mean)

    def of_set(self, student: Student, examples: Sequence[dspy.Example], *, kind: str, workers: int) -> float:
        """Return a candidate's score on a set of examples, -1..1 (see `set_score`), running it where need be."""
        digest = student.digest()
        if digest in self._logged:
            return self._logged[digest]
        weights = dict(self.objective.weights)
        key = ["score", program_sha256(student.program), student.names, kind, weights, examples]
        stored = self._store.get(*key)
        if stored is not None:
            return float(stored)
        self.enter(student, digest)

        def run(example: dspy.Example) -> Outcome:
            task = "scoring" if example.get("answer") is None else "mcq"
            place = example.id, student.digest(task)
            if place not in self._outcomes:
                self._outcomes[place] = self.add(digest, example, student(**example.inputs()).assessment)
            return self._outcomes[place]

        outcomes = in_order(run, examples, workers=workers)
        score = set_score(outcomes, "mean" if kind == "mean" else "rank")
        if all(outcome.predicted is not None for outcome in outcomes):
            self._store.put(*key, value=score)
        return score


def set_score(outcomes: Sequence[Outcome], kind: str = "rank") -> float:
    """Return how well a set of outcomes agrees with people, -1..1.

    "rank": for scores the mean of SRCC and PLCC (they rank a set, which a mean of examples cannot), for answers the
    accuracy, weighted by their numbers; "mean": the mean of the examples' agreement. Failed runs count as the worst.
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
