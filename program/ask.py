"""Every question to a language model goes through `ask`: typed, metered, with one ladder of three calls."""

import functools
import json
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import dspy
from dspy.utils.exceptions import AdapterParseError, LMError, is_retryable_lm_error
from pydantic import BaseModel, ValidationError

from program.backends import ImageLimits
from program.calling import call, encodable, host_of, is_unusable, retry_after_s
from program.errors import InputError
from program.gate import gate_for, single_flight, wire_settings
from program.images import HOST, IMAGES, ImageRef
from program.lms.build import adapter_for, resolves_references
from program.lms.wire_images import encoded_image, limits_for
from program.metering import book
from program.recall import keep, question_key, recall

__all__ = ("RUNGS", "Answer", "ask", "sharing_calls")

logger = logging.getLogger(__name__)

T = TypeVar("T")

RUNGS = ("first call", "second call", "third call")
"""The ladder: as is; asking for JSON only; with an example. Three calls in all, never nested in another retry."""

_IMAGE_MARKER = "<<CUSTOM-TYPE-START-IDENTIFIER>>"
_SHOWN_CHARS = 2000


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What a ladder ended with: a checked value and its rung, or None and the last raw text."""

    value: T | None
    rung: str | None
    raw: str
    errors: tuple[str, ...]
    prediction: dspy.Prediction | None = None


def ask(
    predictor: dspy.Predict,
    inputs: Mapping[str, Any],
    *,
    lm: dspy.BaseLM | None,
    check: Callable[[dspy.Prediction], T],
    example: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
) -> Answer[T]:
    """Ask a model up to three times until `check` accepts its answer.

    Inputs that are None leave the question. The second call adds "Return ONLY valid JSON", the third an example of a
    valid answer. `check` turns a prediction into a value and raises ValueError for one that will not do. `lm` None
    means DSPy's own setting; `config` goes to the model with the question.

    A transport fault (429, 5xx, a lost connection) repeats the call, after the host's Retry-After or a growing wait.
    Ladder and repeats share `wire.attempts` calls, and DSPy's own retries are off, so no question costs more. Raises
    LMError when the last of them met such a fault, or at once for what no repeat mends (a refused key), and
    InputError where the caller's input is at fault: a spent budget, an image that was altered.
    """
    model = predictor.lm or lm or dspy.settings.lm
    present = {name: _clean(value) for name, value in inputs.items() if value is not None}
    signature = _without(predictor.signature, tuple(name for name in inputs if name not in present))
    demos = [demo for demo in predictor.demos if _complete(demo, signature)]
    shown = (demos, present)
    if not resolves_references(model):
        limits = limits_for(str(model.model))
        present = {name: _inlined(value, limits) for name, value in present.items()}
        demos = [_inlined_demo(demo, limits) for demo in demos]
    inlined = None if present is shown[1] else shown[1]
    question: _Question[T] = _Question(predictor, demos, present, model, dict(config or {}), inlined)
    key = question_key(predictor, signature, demos, present, model, question.config)
    if key is None:
        return _climbed(question, signature, shown, check, example)
    answer = _recalled(key, question, check)
    if answer is not None:
        return answer
    with single_flight(key):  # another thread may be asking the same: its answer will do
        answer = _recalled(key, question, check)
        if answer is None:
            answer = _climbed(question, signature, shown, check, example)
            if answer.prediction is not None and answer.rung == RUNGS[0]:
                keep(key, answer.prediction)
        return answer


@dataclass
class _Calls:
    left: int


_SHARED: ContextVar[_Calls | None] = ContextVar("agentic_iqa_calls", default=None)


@contextmanager
def sharing_calls() -> Iterator[None]:
    """Let what is asked inside cost together what one question may: it is one, put in several ways."""
    token = _SHARED.set(_Calls(wire_settings().attempts))
    try:
        yield
    finally:
        _SHARED.reset(token)


@dataclass
class _Question(Generic[T]):
    """What stays the same over a ladder, and how many calls it may still cost."""

    predictor: dspy.Predict
    demos: list[Any]
    inputs: dict[str, Any]
    lm: dspy.BaseLM
    config: dict[str, Any]
    shown: dict[str, Any] | None = None
    """The inputs with references, where those that are sent hold the images themselves."""
    repeats: int = 0

    def __post_init__(self) -> None:
        self.wire = wire_settings()
        self.calls = _SHARED.get() or _Calls(self.wire.attempts)

    def put(self, signature: type[dspy.Signature]) -> dspy.Prediction:
        """Call the model, again after a transport fault as long as calls are left."""
        while True:
            self.calls.left -= 1
            try:
                return call(
                    self.predictor, signature, self.demos, self.inputs, self.lm, self.config, self.shown, self._another
                )  # fmt: skip
            except LMError as error:
                if not is_retryable_lm_error(error) or self.calls.left == 0:
                    raise
                self._wait(error)

    def _another(self) -> bool:
        if self.calls.left == 0:
            return False
        self.calls.left -= 1
        return True

    def _wait(self, error: LMError) -> None:
        hint = retry_after_s(error)
        if hint is not None and hint > self.wire.longest_wait_s:
            raise error
        backoff = self.wire.backoff_s * 2**self.repeats
        # Spread, so that threads which failed together do not return together; it guards nothing.
        wait = hint if hint is not None else min(backoff, self.wire.longest_wait_s) * random.uniform(0.5, 1)
        logger.info("%s; asking again in %.2f s", _line(str(error)), wait)
        self.repeats += 1
        host = host_of(self.lm)
        if hint is not None and host is not None:
            gate_for(host).pause(hint)
        time.sleep(wait)


def _recalled(key: Any, question: _Question[T], check: Callable[[dspy.Prediction], T]) -> Answer[T] | None:
    prediction = recall(key, question.predictor, question.inputs, question.lm)
    if prediction is None:
        return None
    try:
        value = check(prediction)
    except ValueError:  # another check than the one that it passed
        return None
    book(cached=True)
    return Answer(value, RUNGS[0], _raw_text(prediction, key[1]), (), prediction)


def _climbed(
    question: _Question[T],
    signature: type[dspy.Signature],
    shown: tuple[list[Any], dict[str, Any]],
    check: Callable[[dspy.Prediction], T],
    example: Mapping[str, Any],
) -> Answer[T]:
    errors: list[str] = []
    raw = ""
    for number, rung in enumerate(RUNGS):
        if question.calls.left == 0:
            break
        asked = (
            signature if number == 0 else signature.with_instructions(signature.instructions + _hint(number, example))
        )
        _log_prompt(rung, asked, *shown, question.lm)
        try:
            prediction = question.put(asked)
            raw = _raw_text(prediction, asked)
            logger.debug("response (%s): %s", rung, raw[:_SHOWN_CHARS])
            return Answer(check(prediction), rung, raw, tuple(errors), prediction)
        except AdapterParseError as error:
            raw = encodable(str(error.lm_response or "")).strip() or raw
            errors.append(_line(f"not readable: {_reason(error)}"))
        except InputError:  # a spent budget, an image that was altered: no other wording mends it
            raise
        except (ValidationError, ValueError) as error:
            errors.append(_line(str(error)))
        except LMError as error:
            if not is_unusable(error, question.lm):
                raise
            # Log-probabilities may be what cannot be read; the words alone will do.
            question.config = {k: v for k, v in question.config.items() if k not in {"logprobs", "top_logprobs"}}
            errors.append(_line(str(error)))
        logger.warning("%s: the %s gave no usable answer: %s", _name(asked), rung, errors[-1])
    return Answer(None, None, raw, tuple(errors))


@functools.lru_cache(maxsize=256)
def _without(signature: type[dspy.Signature], absent: tuple[str, ...]) -> type[dspy.Signature]:
    """Return the signature without its absent inputs; kept, as building a signature costs milliseconds."""
    for name in absent:
        if name in signature.input_fields:
            signature = signature.delete(name)
    return signature


def _hint(number: int, example: Mapping[str, Any]) -> str:
    hint = "\n\nReturn ONLY valid JSON."
    if number == 1:
        return hint
    return f"{hint} An example of a valid answer:\n{json.dumps(example, ensure_ascii=False)}"


def _clean(value: Any) -> Any:
    """Return an input as it may be sent: references for images, text without DSPy's image marker."""
    if isinstance(value, ImageRef):
        return dspy.Image(value.url)
    if isinstance(value, str):
        # DSPy expands this marker to an image even inside plain text: a question must not be able to fetch one.
        return value.replace(_IMAGE_MARKER, "")
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(name): _clean(item) for name, item in value.items()}
    return value


def _complete(demo: Any, signature: type[dspy.Signature]) -> bool:
    """Return whether a demo answers every output and shows an image wherever the question does."""
    images = [n for n in signature.input_fields if n in {"image", "reference"}]
    return all(demo.get(name) is not None for name in [*signature.output_fields, *images])


def _inlined(value: Any, limits: ImageLimits) -> Any:
    if isinstance(value, list):
        return [_inlined(item, limits) for item in value]
    if isinstance(value, dict):
        return {name: _inlined(item, limits) for name, item in value.items()}
    url = value if isinstance(value, str) else getattr(value, "url", None)
    if isinstance(url, str) and url.startswith(HOST):
        return dspy.Image(encoded_image(IMAGES.find(url), limits).data_uri)
    return value


def _inlined_demo(demo: Any, limits: ImageLimits) -> dict[str, Any]:
    return {name: _inlined(value, limits) if name in {"image", "reference"} else value for name, value in demo.items()}


def _raw_text(prediction: dspy.Prediction, signature: type[dspy.Signature]) -> str:
    fields = {name: prediction.get(name) for name in signature.output_fields}
    return json.dumps(
        fields, ensure_ascii=False, default=lambda v: v.model_dump() if isinstance(v, BaseModel) else str(v)
    )


def _log_prompt(
    rung: str, signature: type[dspy.Signature], demos: list[Any], inputs: dict[str, Any], lm: dspy.BaseLM
) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        messages = adapter_for(lm).format(signature, demos, inputs)
        logger.debug("prompt (%s, %d demos): %s", rung, len(demos), json.dumps(messages, ensure_ascii=False))


def _name(signature: type[dspy.Signature]) -> str:
    return f"question for {', '.join(signature.output_fields)}"


def _reason(error: AdapterParseError) -> str:
    return (error.args[0] if error.args else "").split("\n", 1)[0] or "no JSON object with the asked fields"


def _line(text: str) -> str:
    return " ".join(encodable(text).split())[:300]
