"""What an assessment's model calls cost, by stage: each request is charged, admitted, priced and booked here."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import dspy
from dspy import lm15
from dspy.streaming import StatusMessage, StatusMessageProvider

from program.common.backends import StageUsage, Usage, WireImage
from program.lms.dspy_private import estimated_cost_usd, events_of, remember, sync_send_to_stream
from program.lms.limits import current_budget, gate_of
from program.lms.traits import known_traits

_USAGE: ContextVar[Usage | None] = ContextVar("agentic_iqa_usage", default=None)
_STAGE: ContextVar[str | None] = ContextVar("agentic_iqa_stage", default=None)
_DOING = {
    "planner": "reading the question",
    "executor": "looking for distortions",
    "tools": "measuring",
    "summarizer": "answering",
}


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
    """Book the wall time, and the calls, of what runs inside under a stage; `dspy.streamify` tells of it."""
    started = time.perf_counter()
    _announce(name)
    token = _STAGE.set(name)
    try:
        yield
    finally:
        _STAGE.reset(token)
        usage = _USAGE.get()
        if usage is not None:
            usage.seconds[name] = usage.seconds.get(name, 0.0) + time.perf_counter() - started


def _announce(name: str) -> None:
    stream = dspy.settings.send_stream
    if stream is None:
        return
    providers = [getattr(callback, "status_message_provider", None) for callback in dspy.settings.callbacks]
    if all(type(p) in {type(None), StatusMessageProvider} for p in providers):  # else the user's own decides
        sync_send_to_stream(stream, StatusMessage(f"{name}: {_DOING[name]}"))


@dataclass
class _Receipt:
    """What one request came to. As created, it is that of a request that failed."""

    answered: bool = False
    from_cache: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    """None where the price is unknown."""


def _book(receipt: _Receipt) -> None:
    """Count one call in the collecting usage, as a whole and for its stage."""
    usage, name = _USAGE.get(), _STAGE.get()
    if usage is None:
        return
    of_stage = [] if name is None else [usage.stages.setdefault(name, StageUsage())]
    for entry in (usage, *of_stage):
        entry.lm_calls += not receipt.from_cache
        entry.lm_cache_hits += receipt.from_cache
        entry.input_tokens += receipt.input_tokens
        entry.output_tokens += receipt.output_tokens
        if receipt.cost_usd is not None:
            entry.cost_usd = (entry.cost_usd or 0.0) + receipt.cost_usd


def book_kept_answer(lm: dspy.BaseLM) -> None:
    """Count a question whose answer was kept; a free one is not counted."""
    if not known_traits(lm).is_free:
        _book(_Receipt(from_cache=True))


def note_image(image: WireImage) -> None:
    """Record an image that goes over the wire, once for each way it is sent."""
    usage = _USAGE.get()
    if usage is not None and all((i.sha256, i.change) != (image.sha256, image.change) for i in usage.wire_images):
        usage.wire_images.append(image)


def note_change(note: str) -> None:
    """Record, once, what a service was sent otherwise than asked."""
    usage = _USAGE.get()
    if usage is not None and note not in usage.wire_notes:
        usage.wire_notes.append(note)


class FeatureRefused(Exception):  # noqa: N818 - it says what happened
    """A service lacks a feature of the request; the same request, sent again, goes without it. Holds the error."""

    def __init__(self, error: lm15.LM15Error) -> None:
        super().__init__(str(error))
        self.error = error


class ModelCall:
    """The context of one call: every request is charged, admitted, made, priced and booked by itself.

    It takes the place of the LM's engine, below DSPy's cache, so only requests that go out count. Where DSPy chooses
    the engine (a user's own LM), the whole call counts as one request, and is refunded if the cache answered it.
    """

    def __init__(self, lm: dspy.BaseLM, take_call: Callable[[], bool] = lambda: True) -> None:
        """Prepare a call of an LM; `take_call` takes one more call from the question's allowance."""
        self._lm, self._take_call, self._free = lm, take_call, known_traits(lm).is_free
        self._engine: Any = getattr(lm, "engine", None)
        self._gate = None if self._free else gate_of(lm)
        self._budget = None if self._free else current_budget()
        self._keeps_history = not dspy.settings.disable_history
        self._whole_call: _Receipt | None = None
        self._requests, self._answers = 0, 0
        self.answer_text = ""
        self.is_cut = False
        """Whether the last answer ended for want of tokens."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @contextmanager
    def prepared_lm(self) -> Iterator[dspy.BaseLM]:
        """Lend a copy of the LM that repeats nothing and whose requests are accounted for here."""
        own_engine = hasattr(self._engine, "complete")
        lm = self._lm.copy(num_retries=0, **({"engine": self} if own_engine else {}))
        lm.update_history = self._note
        if not own_engine:
            with self._request() as self._whole_call:
                yield lm
            return
        try:
            yield lm
        finally:
            if self._answers and not self._requests and not self._free:
                _book(_Receipt(from_cache=True))

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request: one attempt, and one more for each feature that the service refuses."""
        attempt = getattr(self._engine, "attempt", self._engine.complete)
        while True:
            try:
                with self._request() as receipt:
                    response: lm15.Response = attempt(request)
                    if isinstance(response, lm15.Response):  # DSPy refuses anything else
                        receipt.answered, receipt.cost_usd = True, self._cost_usd(request, response)
                        receipt.input_tokens = response.usage.input_tokens or 0
                        receipt.output_tokens = response.usage.output_tokens or 0
                        self.is_cut = response.finish_reason == "length"
                    return response
            except FeatureRefused as refusal:
                if not self._take_call():
                    raise refusal.error from None

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """Answer one request as events, accounted for like any other."""
        yield from events_of(self.complete(request))

    def _cost_usd(self, request: lm15.Request, response: lm15.Response) -> float | None:
        """Return what an answer cost by DSPy's price list, which DSPy itself does not apply to engines like these."""
        if self._free:
            return None
        priced_as = getattr(self._engine, "priced_as", None)
        provider, model = priced_as or (None, request.model)
        return estimated_cost_usd(response, provider=provider, model=model, request=request)

    @contextmanager
    def _request(self) -> Iterator[_Receipt]:
        """Let one request out once budget and gate allow it, and settle its account however it ends."""
        if self._budget is not None:
            self._budget.charge()
        self._requests += 1
        receipt = _Receipt()
        try:
            with nullcontext() if self._gate is None else self._gate.admitted():
                yield receipt
        finally:
            self._settle(receipt)

    def _settle(self, receipt: _Receipt) -> None:
        if not self._free:
            _book(receipt)
        if self._gate is not None and receipt.answered and not receipt.from_cache:
            self._gate.spent(receipt.input_tokens + receipt.output_tokens)
        if self._budget is None:
            return
        if receipt.from_cache:
            self._budget.refund()
        else:
            tokens = receipt.input_tokens + receipt.output_tokens
            spent = (receipt.cost_usd, tokens or None) if receipt.answered else (0.0, 0)
            self._budget.settle(*spent, str(self._lm.model))

    def _note(self, entry: dict[str, Any]) -> None:
        """Take what DSPy would note in its histories: they may be off, and hold no images."""
        outputs = entry.get("outputs") or []
        self._answers += 1
        self.answer_text = " ".join(str(o.get("text") if isinstance(o, Mapping) else o) for o in outputs)
        if self._whole_call is not None:
            self._read(entry, self._whole_call)
        if self._keeps_history:
            remember(self._lm, entry)

    def _read(self, entry: Mapping[str, Any], receipt: _Receipt) -> None:
        """Fill in the receipt of a whole call; DSPy notes no tokens for what its cache answered."""
        usage = entry.get("usage") or {}
        receipt.answered = True
        receipt.input_tokens += int(usage.get("prompt_tokens") or usage.get("input_tokens") or 0)
        receipt.output_tokens += int(usage.get("completion_tokens") or usage.get("output_tokens") or 0)
        receipt.from_cache = bool(self._lm.cache) and not receipt.input_tokens + receipt.output_tokens
        if not receipt.from_cache and entry.get("cost") is not None:
            receipt.cost_usd = (receipt.cost_usd or 0.0) + float(entry["cost"])
