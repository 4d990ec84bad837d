"""What an optimizer works with, and the metrics that DSPy's own ones ask of it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from optimizers.examples import ExampleSet
from optimizers.scores import Candidate, Outcome, Scores, set_score
from optimizers.store import Store
from optimizers.student import Student, role_of
from program.agent.assessment import Assessment
from program.common.settings import RecipeSettings

__all__ = ("Search", "grouped", "scored_examples")

GROUP = 8
"""Images in one example of the group-wise objective."""
ALL_ERRORS = 1_000_000
"""Failed runs that an optimizer of DSPy bears with; its default of ten loses every result."""


@dataclass
class Search:
    """One optimizer's search: the student, what it is taught with, and the means. The student is not changed."""

    base: Candidate
    """The best program so far, which the student starts as."""
    student: Student
    train: ExampleSet
    validation: ExampleSet
    scored: Sequence[dspy.Example]
    """What gives a candidate its search score in a recipe that lets a model write; empty for the others."""
    scores: Scores
    budget: RecipeSettings
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
    advance: Callable[[], None] = lambda: None
    note: str = ""
    """A recipe's own words on what it found, for the user."""

    def metric(self, example: dspy.Example, prediction: Any, trace: Any = None) -> float | bool:
        """Return the objective, 0..1; a verdict while bootstrapping (`trace` given)."""
        outcomes = self._outcomes(example, prediction)
        if trace is not None:
            members = example.get("members") or [example]
            return all(self.scores.objective.passes(e, a) for e, (a, _) in zip(members, outcomes, strict=True))
        return self._score(example, outcomes)

    def metric_with_feedback(
        self, example: dspy.Example, prediction: Any, trace: Any = None, predictor: str | None = None,
        predictor_trace: Any = None,
    ) -> dspy.Prediction:  # fmt: skip
        """Return the same number, whatever the predictor asked about, with words for that predictor's role."""
        outcomes = self._outcomes(example, prediction)
        members = example.get("members") or [example]
        role, feedback = role_of(predictor) if predictor else None, self.scores.objective.feedback
        # The three worst answers of a group say the most.
        worst = sorted(zip(members, outcomes, strict=True), key=lambda pair: pair[1][1].agreement)[:3]
        words = "\n".join(feedback(member, assessment, role) for member, (assessment, _) in worst)
        return dspy.Prediction(score=self._score(example, outcomes), feedback=words)

    def shuffled_train(self) -> list[dspy.Example]:
        """Return the training examples in a seeded order; groups of them if the objective asks for those."""
        shuffled = sorted(self.train.examples, key=lambda e: e.id)
        random.Random(self.seed).shuffle(shuffled)
        return grouped(shuffled) if self.kind == "groups" else shuffled

    def complete_candidates(self, name: str, final: Student) -> list[Candidate]:
        """Return every candidate that was run on all scored examples, best first, and the optimizer's own choice."""
        begun = self.student.digest()
        candidates = [
            Candidate(f"{name}/{place}", trial.program, trial.mean, trial.digest)
            for place, trial in enumerate(self.scores.complete())
            if trial.digest != begun
        ]
        if final.digest() not in {c.digest for c in candidates} | {begun}:
            candidates.append(Candidate.of(f"{name}/final", final))
        return candidates

    def _outcomes(self, example: dspy.Example, prediction: Any) -> list[tuple[Assessment | None, Outcome]]:
        self.advance()
        members = example.get("members") or [example]
        answers = prediction.get("members") or [prediction]
        outcomes = []
        for member, answer in zip(members, answers, strict=True):
            assessment = answer.get("assessment") if isinstance(answer, dspy.Prediction) else None
            digest = answer.get("candidate", "") if isinstance(answer, dspy.Prediction) else ""
            outcomes.append((assessment, self.scores.add(digest, member, assessment)))
        return outcomes

    def _score(self, example: dspy.Example, outcomes: list[tuple[Assessment | None, Outcome]]) -> float:
        if example.get("members") is None:
            return outcomes[0][1].agreement
        # Half of the way from the worst (-1) to the best correlation is no agreement at all.
        return (1 + set_score([outcome for _, outcome in outcomes], "rank")) / 2


def scored_examples(
    examples: Sequence[dspy.Example], budget: RecipeSettings, kind: str, seed: int
) -> list[dspy.Example]:
    """Return what scores each candidate: at most `search_samples` of the examples, drawn by seed; groups if asked."""
    pool = sorted(examples, key=lambda e: e.id)
    random.Random(seed).shuffle(pool)
    chosen = pool[: budget.search_samples]
    return grouped(chosen) if kind == "groups" else chosen


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
