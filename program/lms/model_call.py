"""One call of a model, from its admission to its account."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import dspy
from dspy import lm15

from program.lms.budget import current_budget
from program.lms.build import is_embedded
from program.lms.gate import gate_of
from program.lms.history import remember
from program.lms.metering import book
from program.lms.reference_engine import FeatureRefused, cost_usd
from program.lms.streaming import events_of

__all__ = ("ModelCall",)

_DATA_URI = re.compile(r"data:image/[\w.+-]+;base64,")


@dataclass
class _Receipt:
    """What one request came to. As created, it is that of a request that failed."""

    answered: bool = False
    from_cache: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    """None where the price is unknown."""


class ModelCall:
    """The context of one call: every request is charged, admitted, made, priced and booked by itself.

    It takes the place of the LM's engine, below DSPy's cache, so only requests that go out count; whatever is not
    defined here is the engine's. Where DSPy chooses the engine (a user's own LM), that place is out of reach: the
    whole call then counts as one request, and is refunded if the cache answered it.
    """

    def __init__(self, lm: dspy.BaseLM, take_call: Callable[[], bool] | None = None) -> None:
        """Prepare a call of an LM; `take_call` takes one more call from the question's allowance, where it has one."""
        self._lm, self._take_call = lm, take_call
        self._engine: Any = getattr(lm, "engine", None)
        self._gate, self._budget, self._free = gate_of(lm), current_budget(), is_embedded(lm)
        self._keeps_history = not dspy.settings.disable_history
        self._whole_call: _Receipt | None = None
        self._requests, self._answers = 0, 0
        self.answer_text = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @contextmanager
    def prepared_lm(self) -> Iterator[dspy.BaseLM]:
        """Lend a copy of the LM that repeats nothing and whose requests are accounted for here."""
        if hasattr(self._engine, "complete"):
            lm = self._lm.copy(num_retries=0, engine=self)
            lm.update_history = self._note
            try:
                yield lm
            finally:
                if self._answers and not self._requests:
                    book(cached=True)
        else:
            lm = self._lm.copy(num_retries=0)
            lm.update_history = self._note
            with self._request() as self._whole_call:
                yield lm

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request: one attempt, and one more for each feature that the service refuses."""
        attempt = getattr(self._engine, "attempt", self._engine.complete)
        while True:
            try:
                with self._request() as receipt:
                    response: lm15.Response = attempt(request)
                    if isinstance(response, lm15.Response):  # DSPy refuses anything else
                        receipt.answered, receipt.cost_usd = True, cost_usd(self._engine, request, response)
                        receipt.input_tokens = response.usage.input_tokens or 0
                        receipt.output_tokens = response.usage.output_tokens or 0
                    return response
            except FeatureRefused as refusal:
                if self._take_call is not None and not self._take_call():
                    raise refusal.error from None

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """Answer one request as events, accounted for like any other."""
        yield from events_of(self.complete(request))

    @contextmanager
    def _request(self) -> Iterator[_Receipt]:
        """Let one request out once budget and gate allow it, and settle its account however it ends."""
        if self._budget is not None:
            self._budget.charge(free=self._free)
        self._requests += 1
        receipt = _Receipt()
        try:
            with nullcontext() if self._gate is None else self._gate.admitted():
                yield receipt
        finally:
            self._settle(receipt)

    def _settle(self, receipt: _Receipt) -> None:
        tokens = receipt.input_tokens, receipt.output_tokens
        book(cached=receipt.from_cache, input_tokens=tokens[0], output_tokens=tokens[1], cost_usd=receipt.cost_usd)
        if self._gate is not None and receipt.answered and not receipt.from_cache:
            self._gate.spent(sum(tokens))
        if self._budget is None or self._free:
            return
        if receipt.from_cache:
            self._budget.refund()
        else:
            self._budget.settle(receipt.cost_usd if receipt.answered else 0.0, str(self._lm.model))

    def _note(self, entry: dict[str, Any]) -> None:
        """Take what DSPy would note in its histories: they may be off, and hold no images."""
        outputs = entry.get("outputs") or []
        self._answers += 1
        self.answer_text = " ".join(str(o.get("text") if isinstance(o, Mapping) else o) for o in outputs)
        if self._whole_call is not None:
            self._read(entry, self._whole_call)
        if self._keeps_history:
            remember(self._lm, {**entry, "messages": _without_images(entry.get("messages"))})

    def _read(self, entry: Mapping[str, Any], receipt: _Receipt) -> None:
        """Fill in the receipt of a whole call; DSPy notes no tokens for what its cache answered."""
        usage = entry.get("usage") or {}
        receipt.answered = True
        receipt.input_tokens += int(usage.get("prompt_tokens") or usage.get("input_tokens") or 0)
        receipt.output_tokens += int(usage.get("completion_tokens") or usage.get("output_tokens") or 0)
        receipt.from_cache = bool(self._lm.cache) and not receipt.input_tokens + receipt.output_tokens
        if not receipt.from_cache and entry.get("cost") is not None:
            receipt.cost_usd = (receipt.cost_usd or 0.0) + float(entry["cost"])


def _without_images(messages: Any) -> Any:
    """Return messages with inlined images left out: histories hold no base64."""
    if isinstance(messages, list):
        return [_without_images(item) for item in messages]
    if isinstance(messages, dict):
        return {key: _without_images(value) for key, value in messages.items()}
    if isinstance(messages, str) and (uri := _DATA_URI.match(messages)):
        return f"{uri.group()}({len(messages) - uri.end()} characters left out)"
    return messages
