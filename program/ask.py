"""Every question to a language model goes through `ask`: typed, metered, with one ladder of three calls."""

import functools
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import dspy
from dspy.utils.exceptions import AdapterParseError
from pydantic import BaseModel, ValidationError

from program.backends import ImageLimits
from program.images import HOST, IMAGES, ImageRef
from program.lms.build import adapter_for, resolves_references
from program.lms.wire_images import encoded_image, limits_for, recording
from program.state import Usage

__all__ = ("RUNGS", "Answer", "ask", "metered", "stage")

logger = logging.getLogger(__name__)

T = TypeVar("T")

RUNGS = ("first call", "second call", "third call")
"""The ladder: as is; asking for JSON only; with an example. Three calls in all, never nested in another retry."""

_IMAGE_MARKER = "<<CUSTOM-TYPE-START-IDENTIFIER>>"
_SHOWN_CHARS = 2000

_USAGE: ContextVar[Usage | None] = ContextVar("agentic_iqa_usage", default=None)


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What a ladder ended with: a checked value and its rung, or None and the last raw text."""

    value: T | None
    rung: str | None
    raw: str
    errors: tuple[str, ...]
    prediction: dspy.Prediction | None = None


@contextmanager
def metered() -> Iterator[Usage]:
    """Collect what the questions asked inside cost."""
    usage = Usage()
    token = _USAGE.set(usage)
    started = time.perf_counter()
    try:
        with recording(usage.wire_images, usage.wire_notes):
            yield usage
    finally:
        usage.seconds["total"] = time.perf_counter() - started
        _USAGE.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Add the wall time of a stage to the collecting usage."""
    started = time.perf_counter()
    try:
        yield
    finally:
        usage = _USAGE.get()
        if usage is not None:
            usage.seconds[name] = usage.seconds.get(name, 0.0) + time.perf_counter() - started


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
    means DSPy's own setting; `config` goes to the model with the question. Transport errors are not caught here:
    DSPy has retried them already.
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
    errors: list[str] = []
    raw = ""
    for number, rung in enumerate(RUNGS):
        asked = (
            signature if number == 0 else signature.with_instructions(signature.instructions + _hint(number, example))
        )
        _log_prompt(rung, asked, *shown, model)
        try:
            prediction = _call(predictor, asked, demos, present, model, config or {})
            raw = _raw_text(prediction, asked)
            logger.debug("response (%s): %s", rung, raw[:_SHOWN_CHARS])
            return Answer(check(prediction), rung, raw, tuple(errors), prediction)
        except AdapterParseError as error:
            raw = _encodable(str(error.lm_response or "")).strip() or raw
            errors.append(_line(f"not readable: {_reason(error)}"))
        except (ValidationError, ValueError) as error:
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


def _call(
    predictor: dspy.Predict,
    signature: type[dspy.Signature],
    demos: list[Any],
    inputs: dict[str, Any],
    lm: dspy.BaseLM,
    config: Mapping[str, Any],
) -> dspy.Prediction:
    usage = _USAGE.get()
    # DSPy writes what a call cost into the history of every module that called, and nowhere else.
    ledger = SimpleNamespace(history=[])
    callers = [*(dspy.settings.caller_modules or []), ledger]
    with dspy.context(lm=lm, adapter=adapter_for(lm), caller_modules=callers), dspy.track_usage() as tracker:
        try:
            prediction = predictor(signature=signature, demos=demos, lm=lm, config=dict(config), **inputs)
        finally:
            if usage is not None:
                _count(usage, tracker, [entry.get("cost") for entry in ledger.history])
    if empty := _null_texts(ledger.history, signature):
        raise ValueError(f"{', '.join(empty)} is null")
    for name in signature.output_fields:
        if isinstance(prediction[name], str):
            prediction[name] = _encodable(prediction[name])
    return prediction


def _null_texts(history: Sequence[Mapping[str, Any]], signature: type[dspy.Signature]) -> list[str]:
    """Name the text fields that a model left null: DSPy hands them on as the word "None"."""
    outputs = history[-1].get("outputs") or [] if history else []
    answered = " ".join(str(o.get("text") if isinstance(o, Mapping) else o) for o in outputs)
    texts = [name for name, field in signature.output_fields.items() if field.annotation is str]
    return [name for name in texts if re.search(rf'"{name}"\s*:\s*null\b', answered)]


def _count(usage: Usage, tracker: Any, costs: Sequence[float | None]) -> None:
    usage.lm_calls += 1
    totals = list(tracker.get_total_tokens().values())
    if not totals:
        usage.lm_cache_hits += 1
    for total in totals:
        usage.input_tokens += int(total.get("prompt_tokens") or total.get("input_tokens") or 0)
        usage.output_tokens += int(total.get("completion_tokens") or total.get("output_tokens") or 0)
    known = [cost for cost in costs if cost is not None] if totals else []
    if known:
        usage.cost_usd = (usage.cost_usd or 0.0) + sum(known)


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
    return value


def _complete(demo: Any, signature: type[dspy.Signature]) -> bool:
    """Return whether a demo answers every output and shows an image wherever the question does."""
    images = [n for n in signature.input_fields if n in {"image", "reference"}]
    return all(demo.get(name) is not None for name in [*signature.output_fields, *images])


def _inlined(value: Any, limits: ImageLimits) -> Any:
    if isinstance(value, list):
        return [_inlined(item, limits) for item in value]
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
    return " ".join(_encodable(text).split())[:300]


def _encodable(text: str) -> str:
    """Return a text without the lone surrogates that JSON escapes can smuggle in: no UTF-8 holds them."""
    return text.encode("utf-8", "replace").decode("utf-8")
