"""What a recipe works with, and the metrics it hands to DSPy's optimizers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy

from optimizers.memory import Memory
from optimizers.objectives import Objective
from optimizers.scoring import Ledger, Outcome, set_score
from optimizers.taught import TaughtProgram, role_of
from optimizers.teaching import Course
from program.agent import AgenticIQA
from program.settings import RecipeSettings
from program.state import Assessment

__all__ = ("Bench", "Candidate", "grouped")

GROUP = 8
"""Images in one example of the group-wise objective."""


@dataclass(frozen=True)
class Candidate:
    """A proposed program, and what its search made of it (higher is better; None if it was not searched)."""

    name: str
    program: AgenticIQA
    search_score: float | None = None
    digest: str = ""


@dataclass
class Bench:
    """The student, what it is taught, and the means."""

    student: TaughtProgram
    course: Course
    validation: Sequence[dspy.Example]
    scored: Sequence[dspy.Example]
    """What gives a candidate its search score in a recipe that lets a model write; empty for the others."""
    objective: Objective
    ledger: Ledger
    budget: RecipeSettings
    kind: str
    """"rank", "mean" or "groups"."""
    seed: int
    workers: int
    reflection: dspy.BaseLM | None = None
    teacher: TaughtProgram | None = None
    known: Mapping[str, float] = field(default_factory=dict)
    """Search scores by digest, of a compile that is resumed."""
    memory: Memory = field(default_factory=lambda: Memory(None))
    """What earlier compiles found out."""
    on_candidate: Callable[[Candidate], None] = lambda candidate: None
    advance: Callable[[], None] = lambda: None

    def metric(self, example: dspy.Example, prediction: Any, trace: Any = None) -> float | bool:
        """Return the objective, 0..1; a verdict while bootstrapping (`trace` given)."""
        outcomes = self._outcomes(example, prediction)
        if trace is not None:
            members = example.get("members") or [example]
            return all(self.objective.passes(e, a) for e, (a, _) in zip(members, outcomes, strict=True))
        return self._score(example, [o for _, o in outcomes])

    def metric_with_feedback(
        self, example: dspy.Example, prediction: Any, trace: Any = None, predictor: str | None = None,
        predictor_trace: Any = None,
    ) -> dspy.Prediction:  # fmt: skip
        """Return the same number, whatever the predictor asked about, with words for that predictor's role."""
        outcomes = self._outcomes(example, prediction)
        members = example.get("members") or [example]
        role = role_of(predictor) if predictor else None
        told = sorted(
            ((o.agreement, self.objective.feedback(e, a, role)) for e, (a, o) in zip(members, outcomes, strict=True)),
            key=lambda pair: pair[0],
        )
        score = self._score(example, [o for _, o in outcomes])
        return dspy.Prediction(score=score, feedback="\n".join(words for _, words in told[:3]))

    def _outcomes(self, example: dspy.Example, prediction: Any) -> list[tuple[Assessment | None, Outcome]]:
        self.advance()
        members = example.get("members") or [example]
        answers = prediction.get("members") or [prediction]
        found = []
        for member, answer in zip(members, answers, strict=True):
            assessment = answer.get("assessment") if isinstance(answer, dspy.Prediction) else None
            digest = answer.get("candidate", "") if isinstance(answer, dspy.Prediction) else ""
            found.append((assessment, self.ledger.add(digest, member, assessment)))
        return found

    def _score(self, example: dspy.Example, outcomes: list[Outcome]) -> float:
        if example.get("members") is None:
            return outcomes[0].agreement
        # Half of the way from the worst (-1) to the best correlation is no agreement at all.
        return (1 + set_score(outcomes, "rank")) / 2


def grouped(examples: Sequence[dspy.Example]) -> list[dspy.Example]:
    """Return examples of eight images each, of one task; a group scored as a whole has a rank correlation."""
    found = []
    for asked in (True, False):
        members = [e for e in examples if (e.get("answer") is not None) == asked]
        for start in range(0, len(members) - GROUP + 1, GROUP):
            of_group = members[start : start + GROUP]
            ids = "+".join(e.id for e in of_group)
            found.append(dspy.Example(id=ids, members=of_group).with_inputs("members"))
    return found
