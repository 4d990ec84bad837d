"""One call of one question: its answer is checked, and each of its requests booked."""

import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import dspy
from dspy import lm15
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import AdapterParseError, LMError, is_retryable_lm_error

from program.common.backends import StageUsage, Usage, WireImage
from program.common.errors import InputError
from program.common.keys import keys_among, keys_named_after, scrub, strip_bytes, usable_options, use_keys, without_keys
from program.common.text import answer_span, breaks_off, ends_in_thought
from program.lms.adapter import adapter_for, events_of
from program.lms.dspy_private import estimated_cost_usd, retry_after_s
from program.lms.limits import Budget, current_budget, gate_of, settings_in_force
from program.lms.replies import NO_ANSWER
from program.lms.traits import ModelTraits, known_traits, own_record

logger = logging.getLogger(__name__)

_USAGE: ContextVar[Usage | None] = ContextVar("agentic_iqa_usage", default=None)
_STAGE: ContextVar[str | None] = ContextVar("agentic_iqa_stage", default=None)


@contextmanager
def meter() -> Iterator[Usage]:
    """Collect what the questions asked inside cost."""
    usage = Usage()
    token = _USAGE.set(usage)
    started = time.perf_counter()
    try:
        yield usage
    finally:
        usage.seconds["total"] = time.perf_counter() - started
        _USAGE.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Book time and calls of what runs inside under a stage."""
    started = time.perf_counter()
    token = _STAGE.set(name)
    try:
        yield
    finally:
        _STAGE.reset(token)
        usage = _USAGE.get()
        if usage is not None:
            usage.seconds[name] = usage.seconds.get(name, 0.0) + time.perf_counter() - started


@dataclass
class _Receipt:
    """What one request came to; as created, one that failed."""

    answered: bool = False
    from_cache: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    kept_tokens: int = 0
    """Of an answer that a cache gave."""
    cost_usd: float | None = None
    """None where the price is unknown."""

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


def _book(receipt: _Receipt) -> None:
    """Count one call in the collecting usage, as a whole and for its stage."""
    usage, name = _USAGE.get(), _STAGE.get()
    if usage is None:
        return
    usage.kept_tokens += receipt.kept_tokens
    entries: list[Usage | StageUsage] = [usage]
    if name is not None:
        entries.append(usage.stages.setdefault(name, StageUsage()))
    for entry in entries:
        entry.lm_calls += not receipt.from_cache
        entry.lm_cache_hits += receipt.from_cache
        entry.input_tokens += receipt.input_tokens
        entry.output_tokens += receipt.output_tokens
        if receipt.cost_usd is not None:
            entry.cost_usd = (entry.cost_usd or 0.0) + receipt.cost_usd


def book_kept_answer() -> None:
    """Count a question whose answer was kept."""
    _book(_Receipt(from_cache=True))


def note_image(image: WireImage) -> None:
    """Record an image that goes over the wire, once for each way it is sent."""
    usage = _USAGE.get()
    if usage is None:
        return
    noted = {(each.sha256, each.change) for each in usage.wire_images}
    if (image.sha256, image.change) not in noted:
        usage.wire_images.append(image)


def note_change(note: str) -> None:
    """Record, once, what a service was sent otherwise than asked."""
    usage = _USAGE.get()
    if usage is not None and note not in usage.wire_notes:
        usage.wire_notes.append(note)


class FeatureRefused(Exception):  # noqa: N818 - it says what happened
    """A service lacks a feature of the request, which goes without it when sent again."""

    def __init__(self, error: lm15.LM15Error) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class CallAllowance:
    """How many calls of a model a question may still cost: at first `wire.attempts`."""

    left: int = field(default_factory=lambda: settings_in_force().wire.attempts)
    will_do: Callable[[str], object] | None = None
    """Whether an answer that cannot be read ends the question, by its text; None: no answer does."""

    def take(self) -> bool:
        """Take one call; False where none is left."""
        if self.left == 0:
            return False
        self.left -= 1
        return True


_CAPABILITIES = (
    "supports_response_schema", "supports_function_calling", "supports_reasoning", "supported_params",
)  # fmt: skip
"""What DSPy asks of each engine, several times a call."""


class ModelCall:
    """One call, in place of the LM's engine: each request is charged, admitted, made and booked.

    It stands below DSPy's cache, so only requests that go out count. Where DSPy chooses the engine
    (a user's own LM), the whole call counts as one, and is refunded if the cache answered it.
    `calls` is what the question may still cost; without it DSPy warns of an answer that is cut.
    """

    def __init__(self, lm: dspy.BaseLM, calls: CallAllowance | None = None) -> None:
        self._lm, self._calls = lm, calls
        self._engine: Any = getattr(lm, "engine", None)
        for name in _CAPABILITIES:
            if hasattr(self._engine, name):
                setattr(self, name, getattr(self._engine, name))
        self._traits = known_traits(lm)
        self._embedded = self._traits.embedded
        self._budget = current_budget()
        self._keeps_history = not dspy.settings.disable_history
        self._whole_call: _Receipt | None = None
        self._requests, self._answers, self._answered_tokens = 0, 0, 0
        self.answer_text = ""
        self.is_cut = False
        """Whether the last answer ended for want of tokens."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @contextmanager
    def prepared_lm(self) -> Iterator[dspy.BaseLM]:
        """Lend a copy of the LM that repeats nothing and whose requests are booked here."""
        own_engine = hasattr(self._engine, "complete")
        if not own_engine and "api_key" not in self._lm.kwargs:
            use_keys(keys_named_after(str(self._lm.model).partition("/")[0]))
        options = usable_options(self._lm.kwargs, f"dspy.LM({self._lm.model!r})")
        if own_engine:
            options["engine"] = self
        lm = self._lm.copy(num_retries=0, **options)
        lm.update_history = self._note
        if not own_engine:
            with self._request() as self._whole_call:
                yield lm
            return
        try:
            yield lm
        finally:
            if self._answers and not self._requests and not self._embedded:
                _book(_Receipt(from_cache=True, kept_tokens=self._answered_tokens))

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request: in one attempt, and one more for each feature that is refused."""
        while True:
            try:
                with self._request() as receipt:
                    return self._attempt(request, receipt)
            except FeatureRefused as refusal:
                if self._calls is not None and not self._calls.take():
                    raise refusal.error from None

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """Answer one request as events, accounted for like any other."""
        yield from events_of(self.complete(request))

    def _attempt(self, request: lm15.Request, receipt: _Receipt) -> lm15.Response:
        attempt = getattr(self._engine, "attempt", self._engine.complete)
        response: lm15.Response = attempt(request)
        if not isinstance(response, lm15.Response):  # DSPy refuses it
            return response
        receipt.answered = True
        if not self._embedded:
            # DSPy applies its list to its own engines alone.
            connection = getattr(self._engine, "connection", None)
            provider, model = getattr(connection, "priced_as", None) or (None, request.model)
            receipt.cost_usd = estimated_cost_usd(response, provider=provider, model=model, request=request)
        receipt.input_tokens = response.usage.input_tokens or 0
        receipt.output_tokens = response.usage.output_tokens or 0
        self.is_cut = response.finish_reason == "length"
        if self.is_cut and self._calls is not None:
            return replace(response, finish_reason="stop")
        return _with_text(response)

    @contextmanager
    def _request(self) -> Iterator[_Receipt]:
        """Let one request out once budget and gate allow it; settle its account however it ends."""
        receipt = _Receipt()
        if self._embedded:
            self._requests += 1
            yield receipt
            return
        gate = gate_of(self._lm)
        if self._budget is not None:
            self._budget.charge()
        self._requests += 1
        try:
            with gate.admit():
                yield receipt
        finally:
            _book(receipt)
            if self._budget is not None:
                self._settle(self._budget, receipt)

    def _settle(self, budget: Budget, receipt: _Receipt) -> None:
        model = str(self._lm.model)
        if receipt.from_cache:
            budget.refund()
        elif receipt.answered:
            budget.settle(receipt.cost_usd, receipt.tokens or None, model)
        else:
            budget.settle(0.0, 0, model)

    def _note(self, entry: dict[str, Any]) -> None:
        """Take what DSPy would note in its histories: they may be off, and hold no images."""
        if self._whole_call is not None:
            self._read(entry, self._whole_call)
            secrets = keys_among(self._lm.kwargs)  # a service may repeat them
            if entry.get("outputs"):
                entry["outputs"][:] = without_keys(entry["outputs"], secrets)  # DSPy hands out this list
            for name in ("response", "response_model"):
                entry[name] = without_keys(entry.get(name), secrets)
        self._answers += 1
        texts = []
        for output in entry.get("outputs") or []:
            text = output.get("text") if isinstance(output, Mapping) else output
            texts.append(str(text or ""))
        self.answer_text = " ".join(texts)
        response = entry.get("response")
        if isinstance(response, lm15.Response):  # of one that its cache gave DSPy counts no tokens
            usage = response.usage
            self._answered_tokens += (usage.input_tokens or 0) + (usage.output_tokens or 0)
            self.is_cut |= response.finish_reason == "length"
        if self._keeps_history:
            self._remember(entry)

    def _read(self, entry: Mapping[str, Any], receipt: _Receipt) -> None:
        """Fill in the receipt of a whole call; DSPy notes no tokens for what its cache answered."""
        usage = entry.get("usage") or {}
        receipt.answered = True
        receipt.input_tokens += int(usage.get("prompt_tokens") or usage.get("input_tokens") or 0)
        receipt.output_tokens += int(usage.get("completion_tokens") or usage.get("output_tokens") or 0)
        receipt.from_cache = bool(self._lm.cache) and not receipt.tokens
        if not receipt.from_cache and entry.get("cost") is not None:
            receipt.cost_usd = (receipt.cost_usd or 0.0) + float(entry["cost"])

    def _remember(self, entry: dict[str, Any]) -> None:
        """Add the call to DSPy's histories, without images that a user's own LM was sent inline."""
        if not self._traits.takes_references:
            entry = {**entry, "messages": strip_bytes(entry.get("messages"))}
        self._lm.update_history(entry)


def _with_text(response: lm15.Response) -> lm15.Response:
    """Return a response with its thoughts as text where a reasoning parser put the answer there."""
    text = ""
    for part in response.message.parts:
        if isinstance(part, lm15.ThinkingPart):
            text += part.text
        elif not isinstance(part, lm15.TextPart) or part.text.strip():
            return response
    text = text.strip()
    if response.finish_reason != "stop" or not text:
        return response
    if len(text.split()) > 1:  # what is more than a word may be a thought
        text = f"<think>{text}</think>"
    message = replace(response.message, parts=(lm15.TextPart(text=text),))
    return replace(response, message=message)


MAX_TEXT = 8_000
"""Characters kept of a text field: a model that runs away must not fill records and traces."""
TOKENS_TO_THINK = 8192
"""Of an answer together with the thoughts before it, unless a model is set to take more."""
MAX_TOKENS_OF_FIRST_FIELD = 16
"""Of an answer that is cut after it; a level or a letter in JSON takes 7 to 13."""


@dataclass
class Question:
    """What all calls of a question share."""

    predictor: dspy.Predict
    signature: type[dspy.Signature]
    """Inputs that there are and outputs that are asked for; a call may word it otherwise."""
    demos: list[Any]
    inputs: dict[str, Any]
    """As they are sent: without images that are not read."""
    traced_inputs: dict[str, Any]
    """As DSPy's trace holds them, images as references."""
    lm: dspy.BaseLM
    traits: ModelTraits
    """What was known of the model as it was asked."""
    calls: CallAllowance
    config: dict[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    """That the answer may take; None: as the model is set."""
    repeats: int = 0
    """Calls made again after a transport fault."""
    first_field_only: bool = False
    """Whether the answer is cut after its first field."""


class _ThoughtCut(ValueError):  # noqa: N818 - it says what happened
    """A model was cut off while it thought; from now on it may take more tokens."""


def put(question: Question, signature: type[dspy.Signature]) -> dspy.Prediction:
    """Call the model, again after a transport fault or a cut thought, while calls are left.

    Raises BudgetSpent before a call that would pass the budget, ValueError for an answer that is
    cut or lacks a field, AdapterParseError for one that cannot be read, and LMError for none.
    """
    while True:
        question.calls.take()
        try:
            return _call(question, signature)
        except _ThoughtCut as cut:
            if question.calls.left == 0:
                raise
            logger.info("%s: %s", question.lm.model, cut)
        except LMError as error:
            if not is_retryable_lm_error(error) or question.calls.left == 0:
                raise
            if error.status == NO_ANSWER and question.repeats:
                raise
            _wait(error, question)


def _wait(error: LMError, question: Question) -> None:
    """Wait as the host asks, or longer with every repeat; raise the error if too long."""
    wire, hint = settings_in_force().wire, retry_after_s(error)
    backoff = min(wire.backoff_s * 2**question.repeats, wire.longest_wait_s)
    question.repeats += 1
    if hint is None:
        # Spread, so that threads which failed together do not return together; it guards nothing.
        seconds = backoff * random.uniform(0.5, 1)
    elif hint > wire.longest_wait_s:
        raise error
    else:
        seconds = hint
        gate_of(question.lm).pause(hint)
    logger.info("%s; asking again in %.2f s", beginning_of(str(error)), seconds)
    time.sleep(seconds)


def _call(question: Question, signature: type[dspy.Signature]) -> dspy.Prediction:
    """Put a question once: DSPy repeats nothing here."""
    model_call, limit = ModelCall(question.lm, question.calls), _most_tokens(question)
    try:
        prediction = _predicted(question, signature, model_call, limit)
    except AdapterParseError:
        if model_call.is_cut:  # what is cut off need not be readable
            _raise_cut(question, limit, model_call.answer_text)
        raise
    for name in signature.output_fields:
        if isinstance(prediction.get(name), str):
            prediction[name] = _shortened(prediction[name])
    add_to_trace(question, prediction)
    if question.first_field_only or question.traits.embedded:  # the expert's answers are whole
        return prediction
    if model_call.is_cut:
        _raise_cut(question, limit, model_call.answer_text)
    missing = [name for name in signature.output_fields if name not in prediction]
    if missing:
        raise ValueError(f"the model's answer holds no {', '.join(missing)}")
    _refuse_unusable(model_call.answer_text, signature.output_fields)
    return prediction


def _predicted(
    question: Question, signature: type[dspy.Signature], model_call: ModelCall, limit: int | None
) -> dspy.Prediction:
    """Return what the model answers in so many tokens, as the adapter reads it."""
    lm, config = question.lm, dict(question.config)
    if limit != lm.kwargs.get("max_tokens"):
        config["max_tokens"] = limit
    adapter = adapter_for(lm, first_field_only=question.first_field_only)
    callbacks = list(dspy.settings.callbacks)
    # Our engines clear their errors themselves, and a callback costs 0.5 ms a call.
    if not question.traits.takes_references:
        callbacks.insert(0, KeyScrubber(lm))
    settings = {"lm": lm, "adapter": adapter, "callbacks": callbacks, "trace": None}
    try:
        with dspy.context(**settings, disable_history=False), model_call.prepared_lm() as prepared:
            prediction: dspy.Prediction = question.predictor(
                signature=signature, demos=question.demos, lm=prepared, config=config, **question.inputs
            )
    except LMError as error:
        # DSPy rewords every error that passes through an engine: the caller's own mistakes are not.
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise
    return prediction


def _shortened(text: str) -> str:
    """Return an answer's text, without what no UTF-8 holds; of a long one the beginning."""
    text = encodable(text)
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]} ... ({len(text) - MAX_TEXT} characters left out)"


def _raise_cut(question: Question, limit: int | None, text: str) -> None:
    """Raise ValueError for an answer that was cut off, and allow the next one more."""
    if ends_in_thought(text):
        _raise_thought_cut(question, limit)
    if question.first_field_only:
        return
    if question.max_tokens is not None:
        question.max_tokens *= 2
    where = f" at {limit} tokens" if limit else ""
    raise ValueError(f"the answer was cut off{where}")


def _raise_thought_cut(question: Question, limit: int | None) -> NoReturn:
    """Raise _ThoughtCut where the model may take more tokens from now on, else end the question."""
    own_record(question.lm).learn(thinks=True)
    question.first_field_only = False
    more = _most_tokens(question)
    if more == limit:
        question.calls.left = 0  # no other wording mends it
        raise ValueError(f"the model's thoughts were cut off at {limit} tokens; allow more with max_tokens")
    raise _ThoughtCut(f"the model's thoughts were cut off; it may take {more} tokens from now on")


def _most_tokens(question: Question) -> int | None:
    """Return how many tokens the next answer may take; None: as many as the service allows."""
    most: int | None = question.lm.kwargs.get("max_tokens")
    if question.traits.embedded:
        return most
    traits = own_record(question.lm).traits
    if traits.thinks:
        context = traits.context_tokens or 2 * TOKENS_TO_THINK
        return max(most or 0, min(TOKENS_TO_THINK, context // 2))
    if most is None:
        return None
    if question.first_field_only:
        return min(most, MAX_TOKENS_OF_FIRST_FIELD)
    return min(most, question.max_tokens or most)


def add_to_trace(question: Question, prediction: dspy.Prediction) -> None:
    """Add a question to DSPy's trace, without log-probabilities: optimizers quote traces whole."""
    trace = dspy.settings.trace
    if trace is None:
        return
    if "logprobs" in prediction:
        fields = {name: value for name, value in prediction.items() if name != "logprobs"}
        prediction = dspy.Prediction(**fields)
    trace.append((question.predictor, dict(question.traced_inputs), prediction))
    del trace[: max(0, len(trace) - dspy.settings.max_trace_size)]


def _refuse_unusable(text: str, outputs: Mapping[str, Any]) -> None:
    """Raise ValueError where an answer's JSON breaks off or leaves a text field null."""
    start, stop = answer_span(text, outputs)
    text = text[start:stop]
    texts = [name for name, output in outputs.items() if output.annotation is str]
    # DSPy hands a null on as the word "None".
    nulls = [name for name in texts if re.search(rf'"{name}"\s*:\s*null\b', text)]
    if nulls:
        raise ValueError(f"{', '.join(nulls)} is null")
    if breaks_off(text):
        # DSPy mends such an answer with what is there: a list cut short would pass for a whole one.
        raise ValueError("the answer breaks off in the middle")


def encodable(text: str) -> str:
    """Return a text without lone surrogates, which JSON escapes can hold and no UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def beginning_of(text: str) -> str:
    """Return the beginning of a text on one line, for records and logs."""
    return " ".join(encodable(text).split())[:300]


class KeyScrubber(BaseCallback):
    """Takes keys out of an LM's errors; put before all callbacks that record those."""

    def __init__(self, lm: dspy.BaseLM) -> None:
        self._secrets = keys_among(lm.kwargs)

    def on_lm_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        """Clear the error of a call that failed, as it leaves the LM."""
        if exception is not None:
            scrub(exception, self._secrets)
