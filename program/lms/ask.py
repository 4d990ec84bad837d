"""Every question to a language model goes through `ask`: typed, metered, with one ladder of three calls."""

import copy
import functools
import json
import logging
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import dspy
from dspy.utils.exceptions import AdapterParseError, LMError, is_retryable_lm_error
from pydantic import BaseModel, ValidationError

from program.common.errors import InputError
from program.common.pool import single_flight
from program.lms.build import adapter_for, resolves_references
from program.lms.call import CallAllowance, Question, call, encodable, is_unusable
from program.lms.gate import gate_of, retry_after_s, wire_settings
from program.lms.metering import book
from program.lms.recall import keep, question_key, recall
from program.lms.values import clean, inline, inline_demo, is_complete, with_references
from program.lms.wire_images import limits_for

__all__ = ("RUNGS", "Answer", "ask", "sharing_calls")

logger = logging.getLogger(__name__)

T = TypeVar("T")

RUNGS = ("first call", "second call", "third call")
"""The ladder: as is; asking for JSON only; with an example. Three calls in all, never nested in another retry."""

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
    predictor: dspy.Module,
    inputs: Mapping[str, Any],
    *,
    lm: dspy.BaseLM | None,
    check: Callable[[dspy.Prediction], T],
    example: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
) -> Answer[T]:
    """Ask a model up to three times until `check` accepts its answer.

    `predictor` is a `dspy.Predict` or `dspy.ChainOfThought`. Inputs that are None leave the question. The first call
    goes through the adapter in DSPy's settings, if there is one; the second adds "Return ONLY valid JSON", the third an
    example of a valid answer. `check` turns a prediction into a value and raises ValueError for one that will not do.
    `lm` None means DSPy's own setting; `config` goes to the model with the question.

    A transport fault (429, 5xx, a lost connection) repeats the call, after the host's Retry-After or a growing wait.
    Ladder and repeats share `wire.attempts` calls, and DSPy's own retries are off, so no question costs more. Raises
    LMError when the last of them met such a fault, or at once for what no repeat mends (a refused key), and
    InputError where the caller's input is at fault: a spent budget, an image that was altered, a foreign predictor.
    """
    predictor = _predict_of(predictor, example)
    example = dict.fromkeys(predictor.signature.output_fields.keys() - example.keys(), "...") | dict(example)
    model = predictor.lm or lm or dspy.settings.lm
    present = {name: clean(value) for name, value in inputs.items() if value is not None}
    signature = _without(predictor.signature, tuple(name for name in inputs if name not in present))
    demos = [with_references(demo) for demo in predictor.demos if is_complete(demo, signature)]
    shown = (demos, present)
    if not resolves_references(model):
        limits = limits_for(str(model.model))
        present = {name: inline(value, limits) for name, value in present.items()}
        demos = [inline_demo(demo, limits) for demo in demos]
    question = Question(
        predictor, demos, present, model, dict(config or {}), None if present is shown[1] else shown[1],
        _SHARED.get() or CallAllowance(wire_settings().attempts),
    )  # fmt: skip
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


_SHARED: ContextVar[CallAllowance | None] = ContextVar("agentic_iqa_calls", default=None)


@contextmanager
def sharing_calls() -> Iterator[None]:
    """Let what is asked inside cost together what one question may: it is one, put in several ways."""
    token = _SHARED.set(CallAllowance(wire_settings().attempts))
    try:
        yield
    finally:
        _SHARED.reset(token)


def _put(question: Question, signature: type[dspy.Signature]) -> dspy.Prediction:
    """Call the model, again after a transport fault as long as calls are left."""
    while True:
        question.calls.take()
        try:
            return call(question, signature)
        except LMError as error:
            if not is_retryable_lm_error(error) or question.calls.left == 0:
                raise
            _wait(error, question)


def _wait(error: LMError, question: Question) -> None:
    """Wait for as long as the host asks, or longer with every repeat; raise the error where that is too long."""
    wire, hint, gate = wire_settings(), retry_after_s(error), gate_of(question.lm)
    if hint is not None and hint > wire.longest_wait_s:
        raise error
    backoff = min(wire.backoff_s * 2**question.repeats, wire.longest_wait_s)
    question.repeats += 1
    # Spread, so that threads which failed together do not return together; it guards nothing.
    seconds = hint if hint is not None else backoff * random.uniform(0.5, 1)
    logger.info("%s; asking again in %.2f s", _line(str(error)), seconds)
    if hint is not None and gate is not None:
        gate.pause(hint)
    time.sleep(seconds)


def _recalled(key: Any, question: Question, check: Callable[[dspy.Prediction], T]) -> Answer[T] | None:
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
    question: Question,
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
        # As DSPy's own adapters do, the model is asked for JSON where its answer could not be read.
        adapter = _asking_once(dspy.settings.adapter) if number == 0 else None
        if number > 0:
            asked = signature.with_instructions(signature.instructions + _hint(number, example))
        elif adapter is not None and adapter_for(question.lm) is dspy.settings.adapter:
            asked = question.predictor.signature  # with the absent inputs: `dspy.Refine` knows a predictor by it
        else:
            asked = signature
        try:
            with dspy.context(adapter=adapter):
                _log_prompt(rung, asked, *shown, question.lm)
                prediction = _put(question, asked)
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


def _predict_of(predictor: dspy.Module, needed: Collection[str]) -> dspy.Predict:
    """Return what asks the model: the predictor itself, or the one inside a `dspy.ChainOfThought`."""
    predict = predictor.predict if isinstance(predictor, dspy.ChainOfThought) else predictor
    wanted = f"a question for {', '.join(needed)}"
    if not isinstance(predict, dspy.Predict):
        raise InputError(
            f"a dspy.{type(predictor).__name__} cannot put {wanted}: give a dspy.Predict or ChainOfThought"
        )
    if missing := [name for name in needed if name not in predict.signature.output_fields]:
        raise InputError(f"{wanted} has a signature without {', '.join(missing)}: build on the one in `signatures`")
    return predict


def _asking_once(adapter: dspy.Adapter | None) -> dspy.Adapter | None:
    """Return an adapter that asks no second time by itself: the ladder does, and counts its calls."""
    if adapter is not None and getattr(adapter, "use_json_adapter_fallback", False):
        adapter = copy.copy(adapter)
        adapter.use_json_adapter_fallback = False
    return adapter


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
