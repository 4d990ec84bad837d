"""The program as an optimizer sees it: only the predictors that are taught, with the evidence gathered once."""

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import dspy
from dspy.utils.exceptions import LMError

from data.manifest import Sample
from program.agent import DEFAULT_QUERY, AgenticIQA
from program.budget import BudgetSpent
from program.errors import InputError
from program.gate import wired
from program.images import IMAGES
from program.metering import metered
from program.resources import Role
from program.state import Assessment, AssessmentState

__all__ = ("ROLES", "GatheredEvidence", "Replayed", "SearchStopped", "TaughtProgram", "role_of", "taught_predictors")

logger = logging.getLogger(__name__)

ROLES = ("planner", "executor", "summarizer")


class SearchStopped(BaseException):
    """Leaves a search through every `except Exception` on the way; `reason` is the error to report."""

    def __init__(self, reason: InputError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def role_of(predictor: str) -> Role:
    """Return the role that a predictor's name belongs to.

    >>> role_of("summarizer.score")
    'summarizer'
    """
    return cast("Role", predictor.partition(".")[0])


def taught_predictors(program: AgenticIQA, roles: Sequence[str], tasks: Sequence[str]) -> tuple[str, ...]:
    """Return the predictors of these roles that the settings and the data ("scoring", "mcq") put to use."""
    chosen = program.resources.settings.assessment
    used = {"planner.plan", "executor.select_tools"}
    used |= {"executor.diagnose"} if chosen.diagnosis == "merged" else {"executor.detect", "executor.analyse"}
    if "scoring" in tasks:
        used.add("summarizer.score" if chosen.scoring == "probabilities" else "summarizer.classify")
    if "mcq" in tasks:
        used.add("summarizer.answer")
    return tuple(name for name, _ in program.named_predictors() if name in used and role_of(name) in roles)


class GatheredEvidence:
    """Plan and evidence of every sample, from one pass of the uncompiled program; shared by all candidates."""

    def __init__(self) -> None:
        self._states: dict[str, AssessmentState] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "GatheredEvidence":
        return self

    def __len__(self) -> int:
        return len(self._states)

    def put(self, inputs: Mapping[str, Any], state: AssessmentState) -> None:
        """Keep a finished state for these inputs of the program."""
        self._states[_key(inputs)] = state

    def get(self, inputs: Mapping[str, Any]) -> AssessmentState | None:
        """Return the state gathered for these inputs, or None."""
        return self._states.get(_key(inputs))

    def join(self, other: "GatheredEvidence") -> None:
        """Take over what another pass gathered."""
        self._states |= other._states


class TaughtProgram(dspy.Module):
    """Assess an image: plan what to look at, gather evidence from a model and from tools, answer as people would.

    Optimizers see the predictors named in `names` and no other. Where planner and executor are not among them, their
    part is taken from `gathered` instead of being run again: a candidate costs one question a sample.
    """

    def __init__(
        self, program: AgenticIQA, names: Sequence[str], gathered: GatheredEvidence | None = None,
        watch: "Callable[[TaughtProgram, str], None] | None" = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.program = program
        self.names = tuple(names)
        self.gathered = gathered
        self._watch = watch
        self._lm = dspy.settings.lm
        self._lock = threading.Lock()
        self._known: tuple[list[Any], str] | None = None

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

    def forward(self, members: Sequence[dspy.Example] = (), **inputs: Any) -> dspy.Prediction:
        """Return a prediction that holds the assessment (None where it failed) and which candidate gave it.

        With `members` (a group of examples), one prediction that holds theirs.
        """
        if members:
            return dspy.Prediction(members=[self(**member.inputs()) for member in members], candidate=self.digest())
        candidate = self.digest()
        try:
            # MIPRO and GEPA put a model of their own into DSPy's settings, which would play every role here.
            with dspy.context(lm=self._lm):
                assessment = self._assess(inputs)
        except BudgetSpent as error:
            raise SearchStopped(error) from error
        except InputError as error:
            logger.info("a run failed: %s", error)
            return dspy.Prediction(assessment=None, candidate=candidate, error=str(error))
        except LMError as error:
            logger.warning("a run failed: %s", error)
            return dspy.Prediction(assessment=None, candidate=candidate, error=str(error))
        return dspy.Prediction(
            final_answer=assessment.final_answer, quality_reasoning=assessment.quality_reasoning,
            status=assessment.status, assessment=assessment, candidate=candidate,
        )  # fmt: skip

    def digest(self) -> str:
        """Return what tells this candidate from others: the taught predictors' instructions and demos."""
        parts = [part for _, p in self.named_parameters() for part in (p.signature, p.demos, len(p.demos))]
        with self._lock:
            if self._known is not None and _same(self._known[0], parts):
                return self._known[1]
            digest = state_digest(self)
            self._known = parts, digest
        if self._watch is not None:
            self._watch(self, digest)
        return digest

    def __deepcopy__(self, memo: dict[int, Any]) -> "TaughtProgram":
        copied = TaughtProgram(self.program.deepcopy(), self.names, self.gathered, self._watch)
        copied._lm = self._lm
        memo[id(self)] = copied
        return copied

    def _assess(self, inputs: Mapping[str, Any]) -> Assessment:
        state = self.gathered.get(inputs) if self.gathered is not None else None
        if state is None or any(role_of(name) != "summarizer" for name in self.names):
            return self.program(**inputs)  # type: ignore[no-any-return]
        return _summarized(self.program, state, inputs)


class Replayed:
    """A program on gathered evidence: its Summarizer runs, planner and executor are remembered. Thread-safe."""

    def __init__(self, program: AgenticIQA, gathered: GatheredEvidence) -> None:
        self.program, self._gathered = program, gathered
        self.resources = program.resources

    def __call__(
        self, image: Any, query: str, reference: Any = None, options: Any = None, regions: Any = None
    ) -> Assessment:
        """Assess one image; in full where no evidence was gathered for it."""
        inputs: dict[str, Any] = {"image": dspy.Image(IMAGES.add(image).url), "query": query}
        if reference is not None:
            inputs["reference"] = dspy.Image(IMAGES.add(reference).url)
        if options:
            inputs["options"] = options
        if regions:
            inputs["regions"] = regions
        state = self._gathered.get(inputs)
        if state is None:
            return self.program(**inputs)  # type: ignore[no-any-return]
        return _summarized(self.program, state, inputs)

    def on(self, sample: Sample) -> Assessment:
        """Assess a sample."""
        reference = str(sample.reference) if sample.reference else None
        return self(str(sample.image), sample.query or DEFAULT_QUERY, reference, sample.options, sample.regions)


def _summarized(program: AgenticIQA, state: AssessmentState, inputs: Mapping[str, Any]) -> Assessment:
    reference = inputs.get("reference")
    with metered() as usage, wired(program.resources.settings.wire):
        output = program.summarizer(
            state=state, image=IMAGES.find(inputs["image"].url),
            reference=IMAGES.find(reference.url) if reference is not None else None,
        )  # fmt: skip
    return Assessment(**dict(output), state=state, usage=usage)


def state_digest(program: TaughtProgram) -> str:
    """Return a hash of the taught predictors' instructions and demos."""
    import hashlib

    shown = {
        name: [p.signature.instructions, [{k: _plain(v) for k, v in dict(demo).items()} for demo in p.demos]]
        for name, p in program.named_parameters()
    }
    return hashlib.sha256(json.dumps(shown, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(
        a == b if isinstance(a, int) else a is b for a, b in zip(one, other, strict=True)
    )


def _key(inputs: Mapping[str, Any]) -> str:
    shown = {k: getattr(v, "url", v) for k, v in inputs.items() if v is not None}
    return json.dumps(shown, sort_keys=True, default=str)
