"""One call of one question: admitted by its host's gate and the budget, priced, and never repeated in silence."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from time import time
from typing import Any
from urllib.parse import urlsplit

import dspy
from dspy import lm15
from dspy.utils.exceptions import LMError, LMProviderError, LMUnexpectedError

from program.budget import current_budget
from program.errors import InputError
from program.gate import Gate, gate_for
from program.lms.build import adapter_for, is_embedded, resolves_references
from program.lms.reference_engine import FeatureRefused, cost_usd
from program.lms.unquoting import Unquoting
from program.metering import book

__all__ = ("MAX_TEXT", "breaks_off", "call", "encodable", "host_of", "is_unusable", "retry_after_s")

MAX_TEXT = 8_000
"""Characters kept of a text field: a model that runs away must not fill records and traces."""

_DATA_URI = re.compile(r"data:image/[\w.+-]+;base64,")


def call(
    predictor: dspy.Predict,
    signature: type[dspy.Signature],
    demos: list[Any],
    inputs: dict[str, Any],
    lm: dspy.BaseLM,
    config: Mapping[str, Any],
    shown: Mapping[str, Any] | None = None,
    another: Callable[[], bool] = lambda: True,
) -> dspy.Prediction:
    """Put a question once: DSPy repeats nothing here. `shown` are inputs to trace in place of inlined images.

    A service that turns out to lack a feature is asked again without it, if `another` allows one more call; each is
    admitted, charged and booked for itself.

    Raises BudgetSpent before a call that would pass the budget, ValueError for an answer without all its texts,
    AdapterParseError for one that cannot be read, and LMError when the model gave none.
    """
    # DSPy keeps ten thousand calls with their whole prompts, 30 KB each: only of a user's own LM, who can look there.
    ledger = _Ledger(lm, kept=not dspy.settings.disable_history and not resolves_references(lm))
    admission = _Admission(lm, ledger, another)
    callbacks = dspy.settings.callbacks if is_embedded(lm) else [Unquoting(lm), *dspy.settings.callbacks]
    try:
        with (
            dspy.context(lm=lm, adapter=adapter_for(lm), disable_history=False, callbacks=callbacks),
            admission.of_lm(ledger) as prepared,
        ):
            with _retraced(shown):
                prediction = predictor(signature=signature, demos=demos, lm=prepared, config=dict(config), **inputs)
    except LMError as error:
        # DSPy's engine border rewords whatever passes it; what the caller gave wrong is told as it was.
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise
    finally:
        admission.settle()
    missing = [name for name in signature.output_fields if name not in prediction]
    if missing:
        raise ValueError(f"the model's answer holds no {', '.join(missing)}")
    answered = ledger.text()
    if empty := _null_texts(answered, signature):
        raise ValueError(f"{', '.join(empty)} is null")
    if breaks_off(answered):
        # DSPy mends such an answer with what is there: a list cut short would pass for a whole one.
        raise ValueError("the answer breaks off in the middle")
    for name in signature.output_fields:
        if isinstance(prediction[name], str):
            prediction[name] = _shortened(encodable(prediction[name]))
    return prediction


def host_of(lm: dspy.BaseLM) -> str | None:
    """Return what limits of a host are kept under: an address or a provider; None for the embedded expert."""
    if is_embedded(lm):
        return None
    address = str(lm.kwargs.get("api_base") or lm.kwargs.get("base_url") or "")
    return urlsplit(address).netloc or str(lm.model).partition("/")[0]


def is_unusable(error: LMError, lm: dspy.BaseLM) -> bool:
    """Return whether the model answered, and with something no client can read: another wording may mend it."""
    return type(error) in {LMUnexpectedError, LMProviderError} and not is_embedded(lm)


def retry_after_s(error: BaseException) -> float | None:
    """Return how long the host asks to wait, from the error or from the HTTP response behind it."""
    cause: BaseException | None = error
    while cause is not None:
        headers = getattr(getattr(cause, "response", None), "headers", None) or {}
        for hint in (getattr(cause, "retry_after", None), headers.get("retry-after")):
            seconds = _seconds(hint)
            if seconds is not None:
                return seconds
        cause = cause.__cause__ or cause.__context__
    return None


def encodable(text: str) -> str:
    """Return a text without the lone surrogates that JSON escapes can smuggle in: no UTF-8 holds them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _seconds(hint: Any) -> float | None:
    if hint is None:
        return None
    try:
        seconds = float(hint)
    except (TypeError, ValueError):
        try:
            seconds = parsedate_to_datetime(str(hint)).timestamp() - time()
        except (TypeError, ValueError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


@dataclass
class _Ledger:
    """What DSPy notes of a call: taken from it directly, as its histories may be off."""

    lm: dspy.BaseLM
    kept: bool
    """Whether DSPy's histories are to hold the call too."""
    entries: list[dict[str, Any]] = field(default_factory=list)

    def note(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        if self.kept:
            self.lm.update_history({**entry, "messages": _without_images(entry.get("messages"))})

    def text(self) -> str:
        """Return what the model answered."""
        outputs = self.entries[-1].get("outputs") or [] if self.entries else []
        return " ".join(str(o.get("text") if isinstance(o, Mapping) else o) for o in outputs)

    def usage(self) -> tuple[int, int]:
        """Return the input and output tokens."""
        totals = [entry.get("usage") or {} for entry in self.entries]
        return (
            sum(int(t.get("prompt_tokens") or t.get("input_tokens") or 0) for t in totals),
            sum(int(t.get("completion_tokens") or t.get("output_tokens") or 0) for t in totals),
        )


class _Engine:
    """An engine that asks for admission before each request; everything else is the wrapped one's."""

    def __init__(self, inner: Any, admission: "_Admission") -> None:
        self._inner, self._admission = inner, admission

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request: one attempt, and one for each feature that the service refuses."""
        attempt = getattr(self._inner, "attempt", self._inner.complete)
        while True:
            try:
                with self._admission:
                    response: lm15.Response = attempt(request)
                    self._admission.costs_usd.append(cost_usd(self._inner, request, response))
                return response
            except FeatureRefused as refusal:
                if not self._admission.refused():
                    raise refusal.error from None


class _Admission:
    """A call's way through gate and budget, and what it came to."""

    def __init__(self, lm: dspy.BaseLM, ledger: _Ledger, another: Callable[[], bool]) -> None:
        self._lm, self._ledger, self._another = lm, ledger, another
        host = host_of(lm)
        self._gate: Gate | None = gate_for(host) if host is not None else None
        self._budget = current_budget()
        self._free = is_embedded(lm)
        self._went_out = False
        self.costs_usd: list[float | None] = []
        """What each answered request cost; DSPy does not price those of an engine that it did not make itself."""
        self._around = False
        self._place: Any = None

    def of_lm(self, ledger: _Ledger) -> "_Prepared":
        return _Prepared(self._lm, self, ledger)

    def __enter__(self) -> None:
        if self._budget is not None:
            self._budget.charge(free=self._free)
        self._went_out = True
        if self._gate is not None:
            self._place = self._gate.admitted()
            try:
                self._place.__enter__()
            except BaseException:
                self._place = None
                if not self._around:
                    self._pay(0.0)
                raise

    def __exit__(self, kind: Any, *raised: Any) -> None:
        if self._place is not None:
            self._place.__exit__(kind, *raised)
            self._place = None
        if not self._around:  # else the price comes with what DSPy notes of the call
            self._pay(self.costs_usd[-1] if kind is None else 0.0)

    def refused(self) -> bool:
        """Return whether the call may be made again without what was refused; if so, book the refused one."""
        if not self._another():
            return False
        self._went_out = False  # this one is booked here
        book(cached=False)
        return True

    def settle(self) -> None:
        """Book the call; one that a cache answered costs nothing."""
        tokens, answered = self._ledger.usage(), bool(self._ledger.entries)
        if self._around and answered and self._lm.cache and not any(tokens):
            self._went_out = False
            if self._budget is not None:
                self._budget.refund()
        if not self._went_out:
            if answered:
                book(cached=True)
            return
        costs = [entry.get("cost") for entry in self._ledger.entries] if self._around else self.costs_usd
        known = [cost for cost in costs if cost is not None]
        cost = sum(known) if known else None
        book(cached=False, input_tokens=tokens[0], output_tokens=tokens[1], cost_usd=cost)
        if self._gate is not None and answered:
            self._gate.spent(sum(tokens))
        if self._around:
            self._pay(cost if answered else 0.0)

    def _pay(self, cost_usd: float | None) -> None:
        if self._budget is not None and not self._free:
            self._budget.settle(cost_usd, str(self._lm.model))


class _Prepared:
    """A copy of an LM for one call: it repeats nothing, and tells what it cost whether or not histories are on."""

    def __init__(self, lm: dspy.BaseLM, admission: _Admission, ledger: _Ledger) -> None:
        self._lm, self._admission, self._ledger = lm, admission, ledger

    def __enter__(self) -> dspy.BaseLM:
        engine = getattr(self._lm, "engine", None)
        if hasattr(engine, "complete"):
            copied = self._lm.copy(num_retries=0, engine=_Engine(engine, self._admission))
        else:
            # The engine is chosen inside DSPy, behind its cache: the whole call is admitted, a cached one refunded.
            self._admission._around = True
            self._admission.__enter__()
            copied = self._lm.copy(num_retries=0)
        copied.update_history = self._ledger.note
        return copied

    def __exit__(self, *raised: Any) -> None:
        if self._admission._around:
            self._admission.__exit__(*raised)


@contextmanager
def _retraced(shown: Mapping[str, Any] | None) -> Iterator[None]:
    """Let DSPy's trace hold the shown inputs: optimizers make demos of it, which are saved."""
    trace = dspy.settings.trace
    if shown is None or trace is None:
        yield
        return
    with dspy.context(trace=[]):
        yield
        traced = [(predictor, dict(shown), prediction) for predictor, _, prediction in dspy.settings.trace]
    trace += traced
    del trace[: max(0, len(trace) - dspy.settings.max_trace_size)]


def _without_images(messages: Any) -> Any:
    """Return messages with inlined images left out: histories hold no base64."""
    if isinstance(messages, list):
        return [_without_images(item) for item in messages]
    if isinstance(messages, dict):
        return {key: _without_images(value) for key, value in messages.items()}
    if isinstance(messages, str) and (found := _DATA_URI.match(messages)):
        return f"{found.group()}({len(messages) - found.end()} characters left out)"
    return messages


def _null_texts(answered: str, signature: type[dspy.Signature]) -> list[str]:
    """Name the text fields that a model left null: DSPy hands them on as the word "None"."""
    texts = [name for name, field in signature.output_fields.items() if field.annotation is str]
    return [name for name in texts if re.search(rf'"{name}"\s*:\s*null\b', answered)]


def breaks_off(text: str) -> bool:
    """Return whether a JSON object in a text is opened and not closed.

    >>> breaks_off('{"a": [1, 2'), breaks_off('```json {"a": "}"} ```'), breaks_off("no object")
    (True, False, False)
    """
    start = text.find("{")
    if start < 0 or (text.endswith("}") and text.count("{") == text.count("}")):
        return False
    bare = re.sub(r'"(?:[^"\\]|\\.)*("|\Z)', "", text[start:], flags=re.DOTALL)
    return bare.count("{") > bare.count("}")


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ... ({len(text) - MAX_TEXT} characters left out)"
