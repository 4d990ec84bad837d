"""Ask a language model: every question goes through `ask`, typed, metered, in at most three wordings.

The first is perhaps tried once for its first field alone.
Text-only questions (plan, tool choice) are the same for many images. They are asked once, and then
looked up: to form a prompt and parse an answer, even one of its cache, takes DSPy milliseconds.
"""

import copy
import functools
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Generic, TypeVar, get_args
from weakref import WeakKeyDictionary

import dspy
from cachetools import LRUCache
from dspy.utils.exceptions import AdapterParseError, LMError, LMProviderError, LMUnexpectedError
from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import to_jsonable_python

from program.common.errors import InputError
from program.common.keys import strip_bytes
from program.common.pool import single_flight
from program.images.store import IMAGES, ImageRef
from program.lms.adapter import adapter_for
from program.lms.call import (
    CallAllowance,
    Question,
    add_to_trace,
    beginning_of,
    book_kept_answer,
    encodable,
    put,
)
from program.lms.dspy_private import CUSTOM_TYPE_START_IDENTIFIER
from program.lms.limits import image_limits_of, settings_in_force
from program.lms.reference_engine import inline
from program.lms.servers import served
from program.lms.traits import ModelTraits, traits_of
from signatures.forms import FACTS, QuestionForm, kept, with_facts, with_steps

logger = logging.getLogger(__name__)

T = TypeVar("T")
Check = Callable[[dspy.Prediction], T]
"""Turns a prediction into a value; raises ValueError for one that will not do."""

ATTEMPTS = ("first call", "second call", "third call")
"""As is; asking for JSON only; with an example. Never nested in another retry."""

_LOGGED_CHARS = 2000


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What a question ended with: a checked value and its attempt, or neither."""

    value: T | None
    attempt: str | None
    raw: str
    """The last text, where no answer was accepted."""
    errors: tuple[str, ...]
    prediction: dspy.Prediction | None = None


def ask(
    predictor: dspy.Module,
    inputs: Mapping[str, Any],
    form: QuestionForm,
    check: Check[T],
    *,
    lm: dspy.BaseLM | None = None,
    config: Mapping[str, Any] | None = None,
    calls: CallAllowance | None = None,
    wordings: int | None = None,
) -> Answer[T]:
    """Ask a model in up to three wordings (or `wordings`, if fewer) until `check` accepts its answer.

    `predictor` is a `dspy.Predict` or `dspy.ChainOfThought`. Inputs that are None leave the
    question, and images where the model reads none; `FACTS` reach the embedded expert alone, and no
    trace. `lm` None means DSPy's own setting. `calls` is shared by questions that are one, put in
    several ways.

    A transport fault (429, 5xx, a lost connection) repeats the call; all share `wire.attempts`
    calls. Raises LMError when the last of them met such a fault, or at once for what no repeat
    mends (a refused key), and InputError for a spent budget, an altered image or a foreign
    predictor.
    """
    predict, asked = _predict_of(predictor, form)
    lm = served(predict.lm or lm or dspy.settings.lm, settings_in_force())
    question = _question(predict, _readable(asked, form), inputs, lm, calls or CallAllowance())
    question.config = dict(config or {})
    traits = question.traits
    if traits.takes_references and not traits.thinks:
        question.max_tokens = form.max_tokens
    # Without a schema an answer may begin with anything, and would be paid for twice.
    can_be_cut = traits.takes_schema and not traits.thinks and _is_ours(traits)
    if form.decisive_field is not None and can_be_cut:
        question.first_field_only = next(iter(question.signature.output_fields)) == form.decisive_field
    key = _key(question)
    if key is None:
        return _asked_until_accepted(question, asked, check, form.example, wordings)
    with single_flight(key):  # another thread may be asking the same
        answer = _recalled(key, question, check)
        if answer is None:
            answer = _asked_until_accepted(question, asked, check, form.example, wordings)
            _keep(key, question, answer)
        return answer


def _question(
    predictor: dspy.Predict,
    asked: type[dspy.Signature],
    inputs: Mapping[str, Any],
    lm: dspy.BaseLM,
    calls: CallAllowance,
) -> Question:
    """Return a question as it is sent: without what is absent, and images that are not read."""
    traits = traits_of(lm)
    facts: dict[str, Any] = {}
    given: dict[str, Any] = {}
    for name, value in inputs.items():
        if name in FACTS and value is not None:
            facts[name] = clean(value)
        elif value is not None:
            given[name] = clean(value)
    sent = dict(given)
    if traits.reads_images is False:
        sent = {name: value for name, value in given.items() if not _shows(value)}
    own_adapter = traits.adapter or dspy.settings.adapter
    if isinstance(own_adapter, dspy.TwoStepAdapter) and any(map(_shows, sent.values())):
        mend = "use dspy.ChatAdapter, JSONAdapter or XMLAdapter"
        raise InputError(f"adapter: dspy.TwoStepAdapter sends no images, only their addresses; {mend}")
    absent = tuple(name for name in inputs if name not in sent)
    signature = _without(asked, absent)
    signature = with_steps(signature)
    demos = [with_references(demo) for demo in complete_demos(predictor.demos, signature)]
    if not traits.takes_references:
        limits = image_limits_of(lm)
        sent = inline(sent, limits)
        demos = [inline(dict(demo), limits) for demo in demos]
    if traits.embedded:
        signature = with_facts(signature, tuple(facts))
        sent |= facts
    # The trace names images that are not read, too: a demo made of it has to show one.
    return Question(predictor, signature, demos, sent, given, lm, traits, calls)


_MOST_ANSWERS = 1024
_FIXED_ANSWERS: LRUCache[str, dict[str, Any]] = LRUCache(_MOST_ANSWERS)
"""Of the embedded expert to text-only questions: to ask for DSPy's cache would make it on disk."""
_ANSWERS: WeakKeyDictionary[Any, LRUCache[str, dict[str, Any]]] = WeakKeyDictionary()
"""Of others, for each cache of DSPy's."""
_ANSWERS_LOCK = threading.Lock()


def _answers_to(question: Question) -> LRUCache[str, dict[str, Any]]:
    if question.traits.embedded:
        return _FIXED_ANSWERS
    return _ANSWERS.setdefault(dspy.cache, LRUCache(_MOST_ANSWERS))


def _key(question: Question) -> str | None:
    """Return what a text-only question is known by; None where nothing is to be kept."""
    lm = question.lm
    is_in_cache = lm.cache and (dspy.cache.enable_memory_cache or dspy.cache.enable_disk_cache)
    if not is_in_cache and not question.traits.embedded:
        return None
    # Answers with token probabilities are large: DSPy's own cache keeps those.
    if _shows(question.inputs) or question.config.get("logprobs") or not _is_ours(question.traits):
        return None
    parts = (
        _text_of(question.signature), lm.model, getattr(lm, "model_type", None), lm.kwargs, question.inputs,
        question.demos, question.config, question.predictor.config, question.first_field_only,
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()


_text_of: Callable[[Any], str] = kept(repr)
"""A signature as text: two threads may each have built the same one, and classes are not equal."""


def _keep(key: str, question: Question, answer: Answer[Any]) -> None:
    """Keep the answer to a question that was understood as it is."""
    if answer.prediction is None or answer.attempt != ATTEMPTS[0]:
        return
    fields = {name: answer.prediction[name] for name in question.signature.output_fields}
    with _ANSWERS_LOCK:
        _answers_to(question)[key] = copy.deepcopy(fields)


def _recalled(key: str, question: Question, check: Check[T]) -> Answer[T] | None:
    """Return the answer kept for a question, traced as DSPy does; None where somebody watches."""
    if _is_watched(question):
        return None
    with _ANSWERS_LOCK:
        fields = copy.deepcopy(_answers_to(question).get(key))
    if fields is None:
        return None
    prediction = dspy.Prediction.from_completions([fields], question.signature)
    add_to_trace(question, prediction)
    try:
        value = check(prediction)
    except ValueError:  # another check than the one that it passed
        return None
    if not question.traits.embedded:
        book_kept_answer()
    return Answer(value, ATTEMPTS[0], "", (), prediction)


def _is_watched(question: Question) -> bool:
    """Return whether callbacks (MLflow's spans), a stream or a debug log watch a question."""
    if dspy.settings.send_stream is not None or logger.isEnabledFor(logging.DEBUG):
        return True
    if not question.traits.takes_references:
        return True
    watched = (dspy.settings, question.lm, question.predictor, adapter_for(question.lm))
    return any(getattr(each, "callbacks", None) for each in watched)


def _asked_until_accepted(
    question: Question,
    asked: type[dspy.Signature],
    check: Check[T],
    example: Mapping[str, Any],
    wordings: int | None,
) -> Answer[T]:
    """Put a question until its answer passes the check, or no call is left."""
    errors: list[str] = []
    raw = ""
    for attempt, signature, adapter in islice(_wordings(question, asked, example), wordings):
        if question.calls.left == 0:
            break
        prediction: dspy.Prediction | None = None
        try:
            with dspy.context(adapter=adapter):
                _log_prompt(attempt, signature, question)
                prediction = put(question, signature)
            _log_answer(attempt, signature, prediction)
            return Answer(check(prediction), attempt, "", tuple(errors), prediction)
        except InputError:  # a spent budget, an image that was altered: no other wording mends it
            raise
        except AdapterParseError as error:
            raw = encodable(str(error.lm_response or "")).strip() or raw
            reason = str(error.args[0]).partition("\n")[0] if error.args else ""
            errors.append(beginning_of(f"not readable: {reason or 'no JSON object with the asked fields'}"))
        except (ValueError, LMError) as error:  # pydantic's are ValueErrors
            if isinstance(error, LMError):
                _raise_if_final(error, question)
            if prediction is not None:
                raw = _raw_text(prediction, signature)
            errors.append(beginning_of(str(error)))
        fields = list(question.signature.output_fields)
        logger.warning("question for %s: %s gave no usable answer: %s", fields, attempt, errors[-1])
        question.first_field_only = False
        if question.calls.will_do is not None and question.calls.will_do(raw):
            break
    return Answer(None, None, raw, tuple(errors))


def _wordings(
    question: Question, asked: type[dspy.Signature], example: Mapping[str, Any]
) -> Iterator[tuple[str, Any, dspy.Adapter | None]]:
    """Yield each attempt at a question, with its signature and its adapter."""
    # Absent inputs too where the adapter is the user's: `dspy.Refine` knows a predictor by it.
    as_it_is = question.signature if _is_ours(question.traits) else asked
    adapter = dspy.settings.adapter
    if getattr(adapter, "use_json_adapter_fallback", False):  # it would ask a second time by itself
        adapter = copy.copy(adapter)
        adapter.use_json_adapter_fallback = False
    if question.first_field_only:
        yield ATTEMPTS[0], as_it_is, adapter  # it is asked in full where that fails
    yield ATTEMPTS[0], as_it_is, adapter
    # As DSPy's own adapters do, the model is asked for JSON where its answer could not be read.
    hint = "\n\nReturn ONLY valid JSON."
    yield ATTEMPTS[1], _with_addition(question.signature, hint), None
    shown = dict.fromkeys(asked.output_fields.keys() - example.keys(), "...") | dict(example)
    hint += f" An example of a valid answer:\n{json.dumps(shown, ensure_ascii=False)}"
    yield ATTEMPTS[2], _with_addition(question.signature, hint), None


def _raise_if_final(error: LMError, question: Question) -> None:
    """Raise the error of a call unless the model may answer another one."""
    if question.first_field_only and question.calls.left:  # asked in full
        return
    # What no client can read another wording may mend.
    if question.traits.embedded or type(error) not in {LMUnexpectedError, LMProviderError}:
        raise error
    # Log-probabilities may be what cannot be read; the words alone will do.
    question.config.pop("logprobs", None)
    question.config.pop("top_logprobs", None)


def _is_ours(traits: ModelTraits) -> bool:
    """Return whether a model is asked in JSON, not through an adapter in DSPy's settings."""
    return traits.adapter is not None or dspy.settings.adapter is None


@kept
def _with_addition(signature: type[dspy.Signature], addition: str) -> Any:
    """Return a signature with longer instructions, the same each time: prompts are kept by it."""
    return signature.with_instructions(signature.instructions + addition)


def _predict_of(predictor: dspy.Module, form: QuestionForm) -> tuple[dspy.Predict, type[dspy.Signature]]:
    """Return what asks the model, of a `dspy.ChainOfThought` too, and what it asks for."""
    predict = predictor.predict if isinstance(predictor, dspy.ChainOfThought) else predictor
    wanted = f"a question for {', '.join(form.example)}"
    if not isinstance(predict, dspy.Predict):
        kind = type(predictor).__name__
        raise InputError(f"a dspy.{kind} cannot put {wanted}: give a Predict or ChainOfThought")
    asked = form.shape(predict.signature)
    outputs = asked.output_fields
    missing = [name for name in form.example if name not in outputs]
    if missing:
        lacking = ", ".join(missing)
        raise InputError(f"{wanted} has a signature without {lacking}: build on the one in `signatures`")
    return predict, asked


def _readable(asked: type[dspy.Signature], form: QuestionForm) -> type[dspy.Signature]:
    """Return a signature of which the outputs that a user added may stay unanswered."""
    added = (name for name in asked.output_fields if name not in {*form.example, "reasoning"})
    return _optional(asked, tuple(added))


@kept
def _optional(signature: type[dspy.Signature], names: tuple[str, ...]) -> type[dspy.Signature]:
    for name in names:
        annotation = signature.output_fields[name].annotation
        readable = Annotated[annotation, WrapValidator(_read_or_none)]  # type: ignore[valid-type]  # known at run time
        signature = signature.with_updated_fields(name, type_=readable | None)
    return signature


def _read_or_none(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    try:
        return read(value)
    except ValidationError:
        return None


def _shows(value: Any) -> bool:
    """Return whether an input is an image, or holds several."""
    if isinstance(value, dict):
        return any(map(_shows, value.values()))
    return isinstance(value, dspy.Image)


@kept
def _without(signature: type[dspy.Signature], absent: tuple[str, ...]) -> type[dspy.Signature]:
    """Return the signature without its absent inputs; kept, as to build one takes milliseconds."""
    for name in absent:
        if name in signature.input_fields:
            signature = signature.delete(name)
    return signature


def _raw_text(prediction: dspy.Prediction, signature: type[dspy.Signature]) -> str:
    fields = {name: prediction.get(name) for name in signature.output_fields}
    return json.dumps(to_jsonable_python(fields, fallback=str), ensure_ascii=False)


def _log_prompt(attempt: str, signature: type[dspy.Signature], question: Question) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        messages = adapter_for(question.lm).format(signature, question.demos, question.traced_inputs)
        text = json.dumps(strip_bytes(messages), ensure_ascii=False)
        logger.debug("prompt (%s, %d demos): %s", attempt, len(question.demos), text)


def _log_answer(attempt: str, signature: type[dspy.Signature], prediction: dspy.Prediction) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("response (%s): %s", attempt, _raw_text(prediction, signature)[:_LOGGED_CHARS])


def clean(value: Any) -> Any:
    """Return an input as it may be sent: images as references, text without DSPy's image marker."""
    if isinstance(value, ImageRef):
        return dspy.Image(value.url)
    if isinstance(value, str):
        # DSPy expands this marker to an image even inside plain text: no question may fetch one.
        return value.replace(CUSTOM_TYPE_START_IDENTIFIER, "")
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(name): clean(item) for name, item in value.items()}
    return value


def complete_demos(demos: Sequence[Any], signature: type[dspy.Signature]) -> list[Any]:
    """Return the demos that answer every output and show an image wherever the question does.

    An output that may stay unanswered may do so in a demo, too. Which outputs demos lack is said
    once.
    """
    if not demos:
        return []
    images = {"image", "reference"} & signature.input_fields.keys()
    outputs = signature.output_fields
    optional = {name for name in outputs if type(None) in get_args(outputs[name].annotation)}
    complete = []
    for demo in demos:
        lacking = [name for name in outputs if demo.get(name) is None]
        is_shown = optional.issuperset(lacking)
        if lacking:
            _warn_of_demos(tuple(outputs), tuple(lacking), is_shown=is_shown)
        if is_shown and all(demo.get(name) is not None for name in images):
            complete.append(demo)
    return complete


@functools.cache
def _warn_of_demos(outputs: tuple[str, ...], lacking: tuple[str, ...], *, is_shown: bool) -> None:
    question, fields = ", ".join(outputs), ", ".join(lacking)
    fate = "shown without it" if is_shown else "left out"
    logger.warning("question for %s: demos that lack %s are %s; compile again", question, fields, fate)


def with_references(demo: Any) -> Any:
    """Return a demo with references in place of images that are given as data URIs."""
    for name in ("image", "reference"):
        url = getattr(demo.get(name), "url", demo.get(name))
        if isinstance(url, str) and url.startswith("data:"):
            demo = {**demo, name: dspy.Image(IMAGES.add(url).url)}
    return demo
