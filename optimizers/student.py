"""The program as an optimizer sees it: the predictors to optimize, and the model that writes their instructions."""

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import dspy
from dspy import lm15
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import AdapterParseError, LMError

from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.agent.resources import Role
from program.agent.state import AssessmentState
from program.common.errors import InputError
from program.common.keys import redact
from program.images.store import IMAGES
from program.lms.call import ModelCall, beginning_of, meter
from program.lms.limits import BudgetSpent, wire_scope
from program.lms.traits import ModelTraits, traits_of

logger = logging.getLogger(__name__)

EvidenceByInput = dict[str, AssessmentState]
"""Plan and evidence of each sample, by the program's inputs, from one pass of the uncompiled program."""


class SearchStopped(BaseException):
    """Leaves a search through every `except Exception` on the way; says why, as the error behind it does."""


def role_of(predictor: str) -> Role:
    """Return the role that a predictor's name belongs to, as "summarizer" of "summarizer.score"."""
    return cast("Role", predictor.partition(".")[0])


def optimized_predictors(
    program: AgenticIQA, roles: Sequence[str], tasks: Collection[str], asked: Iterable[str]
) -> tuple[str, ...]:
    """Return the predictors of these roles that are put to use: what samples of these tasks ("scoring", "mcq") `asked`.

    Of the Summarizer's those that an answer to keep asks, as a fit needs none.
    """
    used = {name for name in asked if role_of(name) != "summarizer"}
    if "scoring" in tasks:
        used.add("summarizer.score" if program.summarizer.scoring_way() == "probabilities" else "summarizer.classify")
    if "mcq" in tasks:
        used.add("summarizer.answer")
    return tuple(name for name, _ in program.named_parameters() if name in used and role_of(name) in roles)


def inputs_key(inputs: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal inputs of the program or of a predictor: their key in `EvidenceByInput`."""
    plain = {name: getattr(value, "url", value) for name, value in inputs.items() if value is not None}
    return json.dumps(plain, sort_keys=True, default=str)


class EvidenceReplay:
    """A program whose Summarizer alone runs, on gathered evidence. Thread-safe."""

    def __init__(self, program: AgenticIQA, gathered: EvidenceByInput) -> None:
        self.program, self._gathered = program, gathered
        self.resources = program.resources

    def __call__(self, **arguments: Any) -> Assessment:
        """Assess one image; in full where no evidence was gathered for it."""
        images: dict[str, dspy.Image] = {}
        for name in ("image", "reference"):
            shown = arguments.get(name)
            if isinstance(shown, dspy.Image):
                images[name] = shown
            elif shown:
                images[name] = dspy.Image(IMAGES.add(shown).url)
        inputs = {name: value for name, value in {**arguments, **images}.items() if value}
        gathered = self._gathered.get(inputs_key(inputs))
        if gathered is None:
            return self.program(**inputs)
        state = gathered.model_copy()
        if self.program.summarizer.names_distortions(state):
            state.executor_evidence = state.evidence.with_findings(None)
        image = IMAGES.find(images["image"].url)
        reference = IMAGES.find(images["reference"].url) if "reference" in images else None
        with meter() as usage, wire_scope(self.resources.settings):
            answer = self.program.summarizer(state=state, image=image, reference=reference)
        return Assessment.of(answer, state, usage, (image, reference))


class Student(dspy.Module):
    """A program of which optimizers see the predictors named in `names` and no other.

    Where planner and executor are not among them, their part is taken from `gathered` instead of being run again: a
    candidate costs one question a sample.
    """

    def __init__(self, program: AgenticIQA, names: Sequence[str], gathered: EvidenceByInput | None = None) -> None:
        super().__init__()
        self.program, self.names, self.gathered = program, tuple(names), gathered or {}
        self._lm, self._callbacks = dspy.settings.lm, dspy.settings.callbacks

    def named_parameters(self) -> list[tuple[str, Any]]:
        """Return the optimized predictors by name; the others are frozen."""
        return [(name, p) for name, p in self.program.named_parameters() if name in self.names]

    def forward(self, **inputs: Any) -> dspy.Prediction:
        """Return the answer with the assessment; the latter alone, None, where it failed."""
        assessment = self._assess(**inputs)
        if assessment is None:
            return dspy.Prediction(assessment=None)
        return dspy.Prediction(
            final_answer=assessment.final_answer, quality_reasoning=assessment.quality_reasoning,
            status=assessment.status, assessment=assessment,
        )  # fmt: skip

    def _assess(self, **inputs: Any) -> Assessment | None:
        """Assess one image; None, with a line in the log, where that fails. Raises SearchStopped at a spent budget."""
        replays = all(role_of(name) == "summarizer" for name in self.names)
        program = EvidenceReplay(self.program, self.gathered) if replays else self.program
        try:
            # MIPRO and GEPA put a model of their own into DSPy's settings, which would play every role here; and who
            # watches the reflections is not to see these questions.
            with dspy.context(lm=self._lm, callbacks=self._callbacks):
                return program(**inputs)
        except BudgetSpent as error:
            raise SearchStopped(error) from error
        except (InputError, LMError) as error:
            logger.log(logging.WARNING if isinstance(error, LMError) else logging.INFO, "a run failed: %s", error)
            return None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Student":
        copied = Student(self.program.deepcopy(), self.names, self.gathered)
        copied._lm, copied._callbacks = self._lm, self._callbacks
        memo[id(self)] = copied
        return copied


def metered_lm(lm: dspy.BaseLM) -> dspy.BaseLM:
    """Return a copy of an LM whose calls count in the budget and fit the model; without an engine, itself."""
    return lm.copy(engine=_ReflectionEngine(lm)) if hasattr(getattr(lm, "engine", None), "complete") else lm


class _ReflectionEngine:
    """Charges each request before it goes out. It sits below DSPy's cache, so answers from there are free."""

    def __init__(self, lm: dspy.BaseLM) -> None:
        self._lm = lm

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._lm.engine, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_ReflectionEngine":
        return self

    def complete(self, request: lm15.Request) -> Any:
        try:
            return ModelCall(self._lm).complete(_fitted(request, traits_of(self._lm)))
        except BudgetSpent as error:  # optimizers swallow errors of this model and go on
            raise SearchStopped(error) from error


def _fitted(request: lm15.Request, traits: ModelTraits) -> lm15.Request:
    """Return a request with a word for each image where the model sees none, and with room for the question."""
    if traits.reads_images is False:
        messages = tuple(replace(message, parts=(_in_words(message),)) for message in request.messages)
        request = replace(request, messages=messages)
    if traits.context_tokens is not None and request.config.max_tokens is not None:
        reply = min(request.config.max_tokens, traits.context_tokens // 4)
        request = replace(request, config=replace(request.config, max_tokens=reply))
    return request


def _in_words(message: lm15.Message) -> lm15.TextPart:
    """Return a message as one text, which every server takes."""
    return lm15.TextPart("".join(getattr(part, "text", None) or "[image]" for part in message.parts))


class Reflections(BaseCallback):
    """Counts the questions that optimizers ask of the model that writes, and why some got no answer.

    They are all the questions it is told of: the program's own are asked without it (see `Student`).
    """

    def __init__(self) -> None:
        self.asked = 0
        self.failed: Counter[str] = Counter()
        """By reason."""
        self._open: set[str] = set()

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Count a question."""
        if isinstance(instance, dspy.Predict):
            self.asked += 1
            self._open.add(call_id)

    def on_module_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:
        """Note why a question got no answer."""
        if call_id in self._open and isinstance(exception, Exception):
            fault = "the reply could not be read"
            if not isinstance(exception, AdapterParseError):
                fault = beginning_of(redact(str(exception))).rstrip(".")
            self.failed[fault] += 1
        self._open.discard(call_id)

    @property
    def all_failed(self) -> bool:
        """Whether there were some, and none was answered."""
        return 0 < self.asked == self.failed.total()

    @property
    def note(self) -> str:
        """How many failed and the most frequent reason, or nothing."""
        if not self.failed:
            return ""
        (reason, _), *_ = self.failed.most_common(1)
        return f"{self.failed.total()} of {self.asked} reflections failed: {reason}"
