"""Scores of candidates: of one run for optimizers that think in examples, of a whole set for those that rank."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy
import numpy as np

from optimizers.objectives import Objective
from optimizers.parallel import in_order
from optimizers.taught import TaughtProgram, role_of
from program.agent import AgenticIQA
from program.evaluation.metrics import plcc, srcc
from program.state import Assessment

__all__ = ("Ledger", "Outcome", "Scored", "run_all", "set_score")


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
class Scored:
    """A candidate with what is known of it so far."""

    digest: str
    program: AgenticIQA
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    reported: bool = False

    @property
    def mean(self) -> float:
        """The mean agreement over its outcomes, 0..1."""
        return sum(o.agreement for o in self.outcomes.values()) / len(self.outcomes) if self.outcomes else 0.0


class Ledger:
    """Every candidate any optimizer tried, by digest, with its outcomes. Thread-safe.

    `expected` examples make a candidate's score whole; `on_scored(candidate)` is called once for each then.
    """

    def __init__(
        self, objective: Objective, expected: Collection[str] = (),
        on_scored: Callable[[Scored], None] = lambda scored: None,
    ) -> None:  # fmt: skip
        self.objective, self._expected, self._on_scored = objective, frozenset(expected), on_scored
        self.candidates: dict[str, Scored] = {}
        self.runs = 0
        self._lock = threading.RLock()

    def knows(self, program: TaughtProgram, digest: str) -> None:
        """Remember the program behind a digest, as it is now."""
        with self._lock:
            if digest not in self.candidates:
                copied = program.program.deepcopy()
                for predictor in copied.predictors():
                    predictor.lm = None
                self.candidates[digest] = Scored(digest, copied)

    def add(self, digest: str, example: dspy.Example, assessment: Assessment | None) -> Outcome:
        """Record one run and return its outcome."""
        outcome = outcome_of(self.objective, example, assessment)
        with self._lock:
            self.runs += 1
            candidate = self.candidates.get(digest)
            if candidate is not None:
                candidate.outcomes[example.id] = outcome
                if self._expected and not candidate.reported and self._expected <= candidate.outcomes.keys():
                    candidate.reported = True
                    self._on_scored(candidate)
        return outcome

    def whole(self) -> list[Scored]:
        """Return the candidates with a whole score, best first."""
        return sorted((c for c in self.candidates.values() if c.reported), key=lambda c: -c.mean)


def outcome_of(objective: Objective, example: dspy.Example, assessment: Assessment | None) -> Outcome:
    """Return the outcome of one run."""
    truth = example.get("answer") if example.get("answer") is not None else example.get("quality")
    failed = assessment is None or assessment.status == "failed"
    predicted = None if failed or assessment is None else assessment.final_answer
    return Outcome(example.id, truth, predicted, objective.score(example, assessment))


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
    answers = [o for o in outcomes if not isinstance(o.truth, float)]
    total = sum(o.agreement for o in answers)
    used = [o for o in scores if isinstance(o.predicted, float)]
    if len(used) >= 3:
        pair = np.array([o.truth for o in used], dtype=float), np.array([o.predicted for o in used], dtype=float)
        agreement = float(np.nan_to_num((srcc(*pair) + plcc(*pair)) / 2))
        total += agreement * len(used)
    return total / len(outcomes)


def run_all(
    program: TaughtProgram, examples: Sequence[dspy.Example], ledger: Ledger, memo: "Memo", *, workers: int
) -> list[Outcome]:
    """Run a candidate over examples and return their outcomes, in order; what the memo knows is not run again."""
    digest = program.digest()
    ledger.knows(program, digest)

    def run(example: dspy.Example) -> Outcome:
        key = memo.key(program, example)
        known = memo.get(key)
        if known is None:
            prediction = program(**example.inputs())
            known = ledger.add(digest, example, prediction.assessment)
            memo.put(key, known)
        return known

    if workers == 1:
        return [run(example) for example in examples]
    return in_order(run, examples, workers=workers)


class Memo:
    """Outcomes by example and by the predictors that play a part in it: other demos for questions change no score."""

    def __init__(self) -> None:
        self._known: dict[str, Outcome] = {}
        self._parts: dict[int, tuple[Any, Any, str]] = {}
        self._lock = threading.Lock()

    def key(self, program: TaughtProgram, example: dspy.Example) -> str:
        """Return what an outcome depends on."""
        parts = []
        for name, predictor in program.named_parameters():
            if role_of(name) == "summarizer" and (name == "summarizer.answer") != (example.get("answer") is not None):
                continue
            parts.append(f"{name} {self._digest(predictor)}")
        return f"{example.id} {'; '.join(parts)}"

    def get(self, key: str) -> Outcome | None:
        """Return the outcome known under a key, or None."""
        return self._known.get(key)

    def put(self, key: str, outcome: Outcome) -> None:
        """Keep an outcome."""
        self._known[key] = outcome

    def _digest(self, predictor: Any) -> str:
        import hashlib
        import json

        with self._lock:
            known = self._parts.get(id(predictor))
            if known is None or known[0] is not predictor.demos or known[1] is not predictor.signature:
                shown = [predictor.signature.instructions, [_shown(demo) for demo in predictor.demos]]
                digest = hashlib.sha256(json.dumps(shown, sort_keys=True, default=str).encode()).hexdigest()[:16]
                known = (predictor.demos, predictor.signature, digest)
                self._parts[id(predictor)] = known
            return known[2]


def _shown(demo: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.model_dump(mode="json") if hasattr(v, "model_dump") else v for k, v in dict(demo).items()}
