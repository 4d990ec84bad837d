"""How fast a model's host may be asked: calls at once, requests and tokens a minute, and pauses it asked for.

One gate for each host, shared by all threads of the process.
"""

import threading
import time
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pydantic import BaseModel, ConfigDict, Field

__all__ = ("Gate", "WireSettings", "gate_for", "single_flight", "wire_settings", "wired")


class WireSettings(BaseModel):
    """How models are asked over the network."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    attempts: int = Field(6, ge=3)
    """Calls one question may cost in all: the ladder's three and the repeats after transport faults share it."""
    concurrency: int = Field(64, ge=1)
    """Calls to one host at the same time, over all threads."""
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)
    """Input and output tokens as the host counts them; both limits hold for every host on its own."""
    backoff_s: float = Field(0.5, gt=0)
    """First wait after a transport fault, doubled each time; a host's Retry-After goes before it."""
    longest_wait_s: float = Field(60.0, gt=0)
    """A host that asks for a longer pause is not waited for: the question fails with its answer."""


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
            while True:
                wait = self._wait_s(time.monotonic())
                if wait is None:
                    break
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
        """Start no call for so long: the host asked for it."""
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
        # What the calls in flight will take is not known yet; the mean so far stands for it.
        expected = self._known_tokens / self._calls if self._calls else 0.0
        if tokens is not None and self._tokens + expected * (self._in_flight + 1) > tokens:
            if self._spent:
                return max(self._spent[0][0] + self._window_s - now, 0.001)
            return 0.0 if self._in_flight else None
        return None


_GATES: dict[str, Gate] = {}
_FLIGHTS: dict[Hashable, tuple[threading.Lock, list[None]]] = {}
_LOCK = threading.Lock()
_WIRE: ContextVar[WireSettings | None] = ContextVar("agentic_iqa_wire", default=None)


@contextmanager
def wired(settings: WireSettings) -> Iterator[None]:
    """Ask under these settings inside."""
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


@contextmanager
def single_flight(key: Hashable) -> Iterator[None]:
    """Let one thread at a time ask the same question, so that the others find its answer in the cache."""
    with _LOCK:
        lock, users = _FLIGHTS.setdefault(key, (threading.Lock(), []))
        users.append(None)
    try:
        with lock:
            yield
    finally:
        with _LOCK:
            users.pop()
            if not users:
                _FLIGHTS.pop(key, None)
