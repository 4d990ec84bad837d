"""How fast a model's host may be asked: calls at once, requests and tokens a minute, and pauses it asked for.

One gate for each host, shared by all threads of the process.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import dspy

from program.common.settings import WireSettings
from program.lms.build import is_embedded

__all__ = ("Gate", "gate_for", "gate_of", "retry_after_s", "wire_settings", "wired")


class Gate:
    """Admits calls to one host; thread-safe. `window_s` is the length of the "minute"."""

    def __init__(self, limits: WireSettings, *, window_s: float = 60.0) -> None:
        self.limits = limits
        self._window_s = window_s
        self._changed = threading.Condition()
        self._in_flight = 0
        self._paused_until = 0.0
        self._starts: deque[float] = deque()
        self._spent: deque[tuple[float, int]] = deque()
        self._tokens = 0
        self._calls, self._known_tokens = 0, 0

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Wait until a call may start, and hold its place until it ends."""
        with self._changed:
            while (wait := self._wait_s(time.monotonic())) is not None:
                self._changed.wait(wait or None)
            self._in_flight += 1
            self._starts.append(time.monotonic())
        try:
            yield
        finally:
            with self._changed:
                self._in_flight -= 1
                self._changed.notify_all()

    def spent(self, tokens: int) -> None:
        """Count the tokens of a call that was answered."""
        with self._changed:
            self._spent.append((time.monotonic(), tokens))
            self._tokens += tokens
            self._calls += 1
            self._known_tokens += tokens

    def pause(self, seconds: float) -> None:
        """Start no call for so many seconds: the host asked for it."""
        with self._changed:
            self._paused_until = max(self._paused_until, time.monotonic() + seconds)

    def _wait_s(self, now: float) -> float | None:
        """Return None when a call may start, the seconds to wait, or 0 to wait for another call's end."""
        while self._starts and self._starts[0] <= now - self._window_s:
            self._starts.popleft()
        while self._spent and self._spent[0][0] <= now - self._window_s:
            self._tokens -= self._spent.popleft()[1]
        if now < self._paused_until:
            return self._paused_until - now
        if self._in_flight >= self.limits.concurrency:
            return 0.0
        requests = self.limits.requests_per_minute
        if requests is not None and len(self._starts) >= requests:
            return max(self._starts[0] + self._window_s - now, 0.001)
        tokens = self.limits.tokens_per_minute
        # What the calls in flight will use is not known yet: each is expected to use the mean so far.
        expected = self._known_tokens / self._calls if self._calls else 0.0
        if tokens is not None and self._tokens + expected * (self._in_flight + 1) > tokens:
            if self._spent:
                return max(self._spent[0][0] + self._window_s - now, 0.001)
            return 0.0 if self._in_flight else None
        return None


_GATES: dict[str, Gate] = {}
_LOCK = threading.Lock()
_WIRE: ContextVar[WireSettings | None] = ContextVar("agentic_iqa_wire", default=None)


@contextmanager
def wired(settings: WireSettings) -> Iterator[None]:
    """Use these settings for every question asked inside the block."""
    token = _WIRE.set(settings)
    try:
        yield
    finally:
        _WIRE.reset(token)


def wire_settings() -> WireSettings:
    """Return the settings in force, the defaults where none are."""
    return _WIRE.get() or WireSettings()


def gate_for(host: str) -> Gate:
    """Return the process's gate for a host, under the limits in force."""
    limits = _WIRE.get()
    with _LOCK:
        gate = _GATES.setdefault(host, Gate(limits or WireSettings()))
        if limits is not None:
            gate.limits = limits
        return gate


def gate_of(lm: dspy.BaseLM) -> Gate | None:
    """Return the gate of an LM's host, by its address or else its provider; None for the embedded expert."""
    if is_embedded(lm):
        return None
    address = str(lm.kwargs.get("api_base") or lm.kwargs.get("base_url") or "")
    return gate_for(urlsplit(address).netloc or str(lm.model).partition("/")[0])


def retry_after_s(error: BaseException) -> float | None:
    """Return the seconds a host asks to wait: as DSPy read them, else (LiteLLM) from the HTTP response behind."""
    cause: BaseException | None = error
    while cause is not None:
        headers = getattr(getattr(cause, "response", None), "headers", None) or {}
        for hint in (getattr(cause, "retry_after", None), headers.get("retry-after")):
            seconds = _seconds(hint)
            if seconds is not None:
                return seconds
        cause = cause.__cause__ or cause.__context__
    return None


def _seconds(hint: Any) -> float | None:
    """Return a Retry-After, seconds or a date, as seconds from now."""
    if hint is None:
        return None
    try:
        seconds = float(hint)
    except (TypeError, ValueError):
        try:
            seconds = parsedate_to_datetime(str(hint)).timestamp() - time.time()
        except (TypeError, ValueError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
