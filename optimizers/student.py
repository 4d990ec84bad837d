"""The program as an optimizer sees it: only the predictors that are taught, on evidence that was gathered once."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import dspy
from dspy.utils.exceptions import LMError

from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.agent.resources import Role
from program.agent.state import AssessmentState
from program.common.errors import InputError
from program.images.store import IMAGES
from program.lms.limits import BudgetSpent, wired
from program.lms.metering import metered

__all__ = ("Gathered", "Replayed", "SearchStopped", "Student", "inputs_key", "role_of", "taught_predictors")

logger = logging.getLogger(__name__)

Gathered = dict[str, AssessmentState]
"""Plan and evidence of each sample, by the program's inputs, from one pass of the uncompiled program."""


class SearchStopped(BaseException):
    """Leaves a search through every `except Exception` on the way; says why, as the error behind it does."""


def role_of(predictor: str) -> Role:
    """Return the role that a predictor's name belongs to, as "summarizer" of "summarizer.score"."""
    return cast("Role", predictor.partition(".")[0])


def taught_predictors(program: AgenticIQA, roles: Sequence[str], tasks: Sequence[str]) -> tuple[str, ...]:
    """Return the predictors of these roles that the settings and the data ("scoring", "mcq") put to use."""
    chosen = program.resources.settings.assessment
    used = {"planner.plan", "executor.select_tools"}
    used |= {"executor.detect", "executor.analyse"} if chosen.diagnosis == "separate" else {"executor.diagnose"}
    if "scoring" in tasks:
        used.add("summarizer.score" if program.summarizer.scoring_way() == "probabilities" else "summarizer.classify")
    if "mcq" in tasks:
        used.add("summarizer.answer")
    return tuple(name for name, _ in program.named_predictors() if name in used and role_of(name) in roles)


def inputs_key(inputs: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal inputs of the program or of a predictor: their key in `Gathered`."""
    plain = {name: getattr(value, "url", value) for name, value in inputs.items() if value is not None}
    return json.dumps(plain, sort_keys=True, default=str)


class Replayed:
    """A program whose Summarizer alone runs, on gathered evidence. Thread-safe."""

    def __init__(self, program: AgenticIQA, gathered: Gathered) -> None:
        self.program, self._gathered = program, gathered
        self.resources = program.resources

    def __call__(
        self, image: Any, query: str, reference: Any = None, options: Any = None, regions: Any = None
    ) -> Assessment:
        """Assess one image; in full where no evidence was gathered for it."""
        inputs = {"image": _as_image(image), "query": query, "reference": reference and _as_image(reference),
                  "options": options, "regions": regions}  # fmt: skip
        inputs = {name: value for name, value in inputs.items() if value}
        gathered = self._gathered.get(inputs_key(inputs))
        if gathered is None:
            return self.program(**inputs)
        state = gathered.model_copy()
        if self.program.summarizer.names_distortions(state):
            state.executor_evidence = state.evidence.with_findings(None)
        seen = {name: IMAGES.find(inputs[name].url) for name in ("image", "reference") if name in inputs}
        with metered() as usage, wired(self.resources.settings):
            output = self.program.summarizer(state=state, **seen)
        return Assessment(**dict(output), state=state, usage=usage)


class Student(dspy.Module):
    """Assess an image: plan what to look at, gather evidence from a model and from tools, answer as people would.

    Optimizers see the predictors named in `names` and no other. Where planner and executor are not among them, their
    part is taken from `gathered` instead of being run again: a candidate costs one question a sample. `on_digest` is
    called with the student and each digest made of it.
    """

    def __init__(
        self, program: AgenticIQA, names: Sequence[str], gathered: Gathered | None = None,
        on_digest: "Callable[[Student, str], None] | None" = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.program = program
        self.names = tuple(names)
        self.gathered = gathered if gathered is not None else {}
        self._on_digest = on_digest
        self._lm, self._callbacks = dspy.settings.lm, dspy.settings.callbacks

    def named_parameters(self) -> list[tuple[str, Any]]:
        """Return the taught predictors by name; the others are frozen."""
        return [(name, p) for name, p in self.program.named_parameters() if name in self.names]

    def set_lm(self, lm: dspy.BaseLM) -> None:
        """Give each taught predictor its own role's model, sampled as `lm` is (temperature and rollout)."""
        sampled = {k: v for k, v in lm.kwargs.items() if k in {"rollout_id", "temperature"}}
        for name, predictor in self.named_parameters():
            predictor.lm = self.program.resources.lm(role_of(name)).copy(**sampled)

    def get_lm(self) -> dspy.BaseLM:
        """Return the Summarizer's model, which samples stand for."""
        return self.program.resources.lm("summarizer")

    def forward(self, **inputs: Any) -> dspy.Prediction:
        """Return the assessment (None where it failed) and which candidate gave it."""
        candidate = self.digest()
        assessment = self.assess(**inputs)
        if assessment is None:
            return dspy.Prediction(assessment=None, candidate=candidate)
        return dspy.Prediction(
            final_answer=assessment.final_answer, quality_reasoning=assessment.quality_reasoning,
            status=assessment.status, assessment=assessment, candidate=candidate,
        )  # fmt: skip

    def assess(self, **inputs: Any) -> Assessment | None:
        """Assess one image; None, with a line in the log, where that fails. Raises SearchStopped at a spent budget."""
        replays = all(role_of(name) == "summarizer" for name in self.names)
        program = Replayed(self.program, self.gathered) if replays else self.program
        try:
            # MIPRO and GEPA put a model of their own into DSPy's settings, which would play every role here; and who
            # watches the reflections is not to see these questions.
            with dspy.context(lm=self._lm, callbacks=self._callbacks):
                assessment: Assessment = program(**inputs)
                return assessment
        except BudgetSpent as error:
            raise SearchStopped(error) from error
        except (InputError, LMError) as error:
            logger.log(logging.WARNING if isinstance(error, LMError) else logging.INFO, "a run failed: %s", error)
            return None

    def digest(self, task: str | None = None) -> str:
        """Return the hash of what the predictors are taught: all of them, or those of a task ("scoring", "mcq")."""
        state = {
            name: [p.signature.instructions, [{k: _plain(v) for k, v in dict(demo).items()} for demo in p.demos]]
            for name, p in self.named_parameters()
            # Of the summarizer's predictors one answers questions, the others score.
            if task is None or role_of(name) != "summarizer" or (name == "summarizer.answer") == (task == "mcq")
        }
        if self.program.summarizer.neighbours is not None:
            state["neighbours"] = [self.program.summarizer.neighbours.sha256]
        digest = hashlib.sha256(json.dumps(state, sort_keys=True, default=str).encode()).hexdigest()[:16]
        if task is None and self._on_digest is not None:
            self._on_digest(self, digest)
        return digest

    def __deepcopy__(self, memo: dict[int, Any]) -> "Student":
        copied = Student(self.program.deepcopy(), self.names, self.gathered, self._on_digest)
        copied._lm, copied._callbacks = self._lm, self._callbacks
        memo[id(self)] = copied
        return copied


def _as_image(source: Any) -> dspy.Image:
    return source if isinstance(source, dspy.Image) else dspy.Image(IMAGES.add(source).url)


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value
