"""What DSPy's users expect of a module: batches, event loops, models, a saved state."""

import functools
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import dspy
from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from program.agent.assessment import Assessment
from program.agent.labels import FittedOn
from program.agent.resources import ROLES, Resources
from program.common.errors import InputError, ModelError, first_fault
from program.common.keys import redact
from program.common.pool import in_order
from program.common.request import ARGUMENTS
from program.images.store import IMAGES


class StrictPart(BaseModel):
    """Of a program's file: no unknown key, as DSPy sets each as an attribute (`config`: an address)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class _FieldState(StrictPart):
    prefix: str
    description: str


class _SignatureState(StrictPart):
    instructions: str
    fields: list[_FieldState]


class _PredictorState(StrictPart):
    traces: list[JsonValue]
    train: list[JsonValue]
    demos: list[dict[str, JsonValue]]
    signature: _SignatureState
    lm: None
    """Settings and environment alone name language models."""


_PREDICTORS = TypeAdapter(dict[str, _PredictorState])


def predictors_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state's predictors, beside which DSPy's own files hold versions."""
    return {name: part for name, part in state.items() if name != "metadata"}


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value in hex."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


logger = logging.getLogger(__name__)

_ERROR_LENGTH = 300


@dataclass(frozen=True)
class FailedSample:
    """A sample without an assessment, and why."""

    index: int
    """Its place among the samples."""
    error: str
    """One line."""
    exception: Exception = field(repr=False, compare=False)
    status: Literal["failed"] = "failed"


class ProgramModule(dspy.Module):
    """A program on shared resources; its `forward` assesses one image."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.resources = resources
        self.fitted_on: FittedOn | None = None
        """The samples that a compile used, where it says so."""
        self._hidden: tuple[tuple[str, ...] | None, frozenset[str]] | None = None
        """The models for which that holds (None: for any) and the predictors that are never asked."""

    async def aforward(self, *arguments: Any, **named: Any) -> Assessment:
        """Assess one image without blocking the event loop, with the arguments of a plain call.

        At most `dspy.settings.async_max_workers` run at once, each in a thread. A cancelled call
        goes on to its end, unheard.
        """
        run = dspy.asyncify(functools.partial(type(self).forward, self))
        assessment: Assessment = await run(*arguments, **named)
        return assessment

    def batch(
        self, examples: Iterable[Any], workers: int = 8, **options: Any
    ) -> "list[Assessment | FailedSample] | Any":
        """Assess many samples with `workers` threads; a failed one becomes a `FailedSample`.

        A sample is an image, a mapping of the call's arguments or an object with them as attributes
        (`dspy.Example`). They may be a stream, of which two per worker are read ahead; results come
        in their order. `dspy.context` and a `Budget` hold inside. InputError for less than a
        worker. With an option of `dspy.Module.batch` it does and returns what that does.
        """
        if options:
            return super().batch(examples, **options)
        if workers < 1:
            raise InputError(f"workers: {workers} is too few; give 1 or more")
        return in_order(self._assessed, enumerate(examples), workers=workers)

    def _assessed(self, placed: tuple[int, Any]) -> Assessment | FailedSample:
        index, sample = placed
        try:
            # Arrays given and crops made would pile up over a stream of any length; DSPy's history
            # is the caller's.
            with IMAGES.borrow():
                result: Assessment = self(**_arguments(sample))
                return result
        except Exception as error:  # the sample border: one bad sample must not end the batch
            words = " ".join(redact(str(error)).split())
            logger.warning("sample %d failed: %s", index, words)
            return FailedSample(index, f"{type(error).__name__}: {words}"[:_ERROR_LENGTH], error)

    def predictors_used_by(self, examples: Iterable[dspy.Example]) -> Self:
        """Return a copy that shows optimizers only the predictors which these examples ask.

        It runs each example once. Optimizers spend on each predictor that they see:
        `dspy.GEPA(...).compile(iqa.predictors_used_by(trainset[:4]), ...)`.
        """
        copied: Self = self.deepcopy()
        asked: set[int] = set()
        for example in examples:
            with dspy.context(trace=[]):
                copied(**example.inputs())
                asked |= {id(predictor) for predictor, _, _ in dspy.settings.trace}
        named = copied.named_parameters()
        copied._hidden = None, frozenset(name for name, each in named if id(each) not in asked)
        return copied

    def named_predictors(self) -> list[tuple[str, dspy.Predict]]:
        """Return what an optimizer may change: what can be asked, or those of `predictors_used_by`.

        `named_parameters` returns all. A service that was never asked what its model can do is
        asked now; raises EndpointError where that fails.
        """
        named: list[tuple[str, dspy.Predict]] = super().named_predictors()
        lms = [self.resources.own_lm(role) for role in ROLES] + [predictor.lm for _, predictor in named]
        models = tuple(str(getattr(lm, "model", "")) for lm in lms)
        if self._hidden is None or self._hidden[0] not in {None, models}:
            self._hidden = models, self.never_asked()
        shown = []
        for name, predictor in named:
            of_a_role = ".".join(name.split(".")[:2])  # a `dspy.ChainOfThought` holds one of its own
            if of_a_role not in self._hidden[1] and name not in self._hidden[1]:
                shown.append((name, predictor))
        return shown

    def never_asked(self) -> frozenset[str]:
        """Return the predictors that nothing asks, by name."""
        return frozenset()

    def __repr__(self) -> str:
        return "\n".join(f"{name} = {predictor}" for name, predictor in self.named_parameters())

    def get_lm(self) -> dspy.BaseLM:
        """Return the model that plays every role. ModelError where they are played by several."""
        if (chosen := super().get_lm()) is not None:
            return chosen
        lms = [self.resources.own_lm(role) for role in ROLES]
        models = dict.fromkeys(str(lm.model) for lm in lms)
        if len(models) > 1:
            fault = f"the roles are played by {', '.join(models)}"
            raise ModelError(f"{fault}: choose one with set_lm(dspy.LM(...))")
        return lms[-1]

    def load_state(self, state: Mapping[str, Any], *, allow_unsafe_lm_state: bool = False) -> None:
        """Take over the demos and instructions that a state holds.

        Models, addresses and keys come from settings and environment alone: InputError for a state
        that names a language model or anything else, whatever `allow_unsafe_lm_state` says.
        """
        for name, _ in self.named_parameters():
            if name not in state:
                raise InputError(f"state: has no predictor {name!r}; compile again")
        try:
            _PREDICTORS.validate_python(predictors_in(state))
        except ValidationError as error:
            fault = first_fault(error, "the file")
            raise InputError(f"state: {fault}; remove it, or compile again") from error
        super().load_state(state)
        self._hidden = None  # demos tell in which way scores are asked for


def _arguments(sample: Any) -> dict[str, Any]:
    """Return the program's arguments for a sample given in any of the three ways."""
    if isinstance(sample, Mapping):
        return dict(sample)
    if hasattr(sample, "mode") or not hasattr(sample, "image"):  # PIL's images have a mode
        return {"image": sample}
    values = {name: getattr(sample, name, None) for name in ARGUMENTS}
    return {name: value for name, value in values.items() if value is not None}
