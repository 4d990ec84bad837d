"""What model calls may cost (a budget), and how fast a model's host may be asked (a gate)."""

import argparse
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast
from urllib.parse import urlsplit

import dspy

from program.common.backends import ImageLimits
from program.common.errors import InputError
from program.common.settings import Settings, WireSettings, load_settings

_SETTINGS, _BUDGET = "agentic_iqa_settings", "agentic_iqa_budget"
"""Names among DSPy's settings: `dspy.Parallel` and optimizers pass these to threads."""


def wire_scope(settings: Settings) -> AbstractContextManager[Any]:
    """Return a context in which these settings hold for every question."""
    return cast("AbstractContextManager[Any]", dspy.context(**{_SETTINGS: settings}))


def settings_in_force() -> Settings:
    """Return the settings of the innermost scope, the usual ones outside any."""
    return getattr(dspy.settings, _SETTINGS, None) or load_settings()


class BudgetSpent(InputError):  # noqa: N818 (it ends a run as planned)
    """The next model call would pass the budget; what was finished before is kept."""


class _Sum:
    """What calls come to in one unit, against a limit; one in flight counts as the dearest."""

    def __init__(self, limit: float | None, unit: str, unknown: str, flag: str) -> None:
        self.limit, self.total = limit, 0.0
        self._unit, self._unknown, self._flag = unit, unknown, flag
        self._known, self._most = 0, 0.0
        self._model: str | None = None
        """One whose calls come to nobody knows what."""

    def add(self, amount: float | None, model: str) -> None:
        """Add what one call came to: None where that is unknown, 0 where it gave no answer."""
        if amount is None:
            self._model = model
        elif amount > 0:  # a failed call says nothing about the next
            self.total += amount
            self._known += 1
            self._most = max(self._most, amount)

    def admits(self, in_flight: int, calls: int) -> bool:
        """Return whether a call may go out now, or has to wait; BudgetSpent where none may."""
        if self.limit is None:
            return True
        if self._model is not None:
            raise BudgetSpent(f"budget: {self._unknown.format(self._model)} limit can hold; use --max-calls")
        left = self.limit - self.total
        if left <= 0 or self._most > left:
            spent = f"{round(self.total, 4):.12g} of {self.limit:.12g} {self._unit} are spent"
            raise BudgetSpent(f"budget: {spent} in {calls} model calls; allow more with {self._flag}")
        return in_flight == 0 or (in_flight < self._known and self._most * (in_flight + 1) <= left)


class Budget:
    """At most so many model calls, dollars or tokens inside the `with` block, of all its threads.

    Every call that goes to a service counts, repeats too; answers from a cache and the embedded
    expert's are free. Under a limit of dollars or tokens a call in flight is taken to cost as much
    as the dearest so far, and no more may be in flight than were priced (one at first): others
    wait. An inner budget's calls count for the outer ones. Raises InputError for a limit that is
    not positive.
    """

    def __init__(
        self, max_calls: int | None = None, max_cost_usd: float | None = None, max_tokens: int | None = None
    ) -> None:
        for limit, unit in ((max_calls, "calls"), (max_cost_usd, "USD"), (max_tokens, "tokens")):
            if limit is not None and not limit > 0:
                raise InputError(f"budget: {limit} {unit} allow nothing; give more than 0")
        self.limits = {"max_calls": max_calls, "max_cost_usd": max_cost_usd, "max_tokens": max_tokens}
        self.calls, self._in_flight = 0, 0
        self._usd = _Sum(max_cost_usd, "USD", "the price of {!r} is unknown, so no cost", "--max-cost")
        self._tokens = _Sum(max_tokens, "tokens", "{!r} counts no tokens, so no token", "--max-tokens")
        self._changed = threading.Condition()
        self._chain: tuple[Budget, ...] = (self,)
        self._context: Any = None

    @property
    def cost_usd(self) -> float:
        """Dollars spent, as far as prices are known."""
        return self._usd.total

    @property
    def tokens(self) -> int:
        """Tokens spent, as far as models count them."""
        return int(self._tokens.total)

    def __enter__(self) -> "Budget":
        outer = current_budget()
        if outer is not None:  # one lock for all: a call is charged to all of them or to none
            self._chain, self._changed = (self, *outer._chain), outer._changed
        self._context = dspy.context(**{_BUDGET: self})
        self._context.__enter__()
        return self

    def __exit__(self, *fault: object) -> None:
        self._context.__exit__(*fault)

    def charge(self) -> None:
        """Count one call about to go out, once it may; BudgetSpent past the limit."""
        with self._changed:
            while not all(budget._admits() for budget in self._chain):
                self._changed.wait()
            for budget in self._chain:
                budget.calls += 1
                budget._in_flight += 1

    def refund(self) -> None:
        """Take back one charge: the answer came from a cache."""
        with self._changed:
            for budget in self._chain:
                budget.calls -= 1
                budget._in_flight -= 1
            self._changed.notify_all()

    def settle(self, cost_usd: float | None, tokens: int | None, model: str) -> None:
        """Add the cost of a charged call: None where it is not known, 0 for no answer."""
        with self._changed:
            for budget in self._chain:
                budget._in_flight -= 1
                budget._usd.add(cost_usd, model)
                budget._tokens.add(tokens, model)
            self._changed.notify_all()

    def _admits(self) -> bool:
        limit = self.limits["max_calls"]
        if limit is not None and self.calls >= limit:
            raise BudgetSpent(f"budget: {self.calls} model calls are spent; allow more with --max-calls")
        return all(total.admits(self._in_flight, self.calls) for total in (self._usd, self._tokens))


def current_budget() -> Budget | None:
    """Return the innermost budget in force."""
    return cast("Budget | None", dspy.settings.get(_BUDGET))


def budget_from(arguments: argparse.Namespace) -> AbstractContextManager[object]:
    """Return the budget that a command's flags ask for, to be entered."""
    limits = (arguments.max_calls, arguments.max_cost, arguments.max_tokens)
    if limits == (None, None, None):
        return nullcontext()
    return Budget(*limits)


class Gate:
    """Admits calls to one host; thread-safe. `window_s` is the length of the "minute"."""

    def __init__(self, limits: WireSettings, *, window_s: float = 60.0) -> None:
        self.limits = limits
        self._window_s = window_s
        self._changed = threading.Condition()
        self._in_flight, self._paused_until = 0, 0.0
        self._starts: deque[float] = deque()

    @contextmanager
    def admit(self) -> Iterator[None]:
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

    def pause(self, seconds: float) -> None:
        """Start no call for so many seconds: the host asked for it."""
        with self._changed:
            self._paused_until = max(self._paused_until, time.monotonic() + seconds)

    def _wait_s(self, now: float) -> float | None:
        """Return None when a call may start, seconds to wait, or 0: until another call ends."""
        if now < self._paused_until:
            return self._paused_until - now
        if self._in_flight >= self.limits.concurrency:
            return 0.0
        while self._starts and self._starts[0] <= now - self._window_s:
            self._starts.popleft()
        most = self.limits.requests_per_minute
        if most is not None and len(self._starts) >= most:
            return max(self._starts[0] + self._window_s - now, 0.001)
        return None


_GATES: dict[str, Gate] = {}


def image_limits_of(lm: dspy.BaseLM) -> ImageLimits:
    """Return what images an LM that no role's settings name takes, by the settings in force."""
    return settings_in_force().models.image_limits(str(lm.model).partition("/")[0], _address(lm))


def gate_for(host: str) -> Gate:
    """Return the process's one gate for a host, under the limits in force."""
    gate = _GATES.get(host) or _GATES.setdefault(host, Gate(settings_in_force().wire))
    if _SETTINGS in dspy.settings:
        gate.limits = settings_in_force().wire
    return gate


def gate_of(lm: dspy.BaseLM) -> Gate:
    """Return the gate of an LM's host, by its address or else its provider."""
    return gate_for(urlsplit(_address(lm)).netloc or str(lm.model).partition("/")[0])


def _address(lm: dspy.BaseLM) -> str:
    own = getattr(getattr(lm, "engine", None), "address", None)
    return str(own or lm.kwargs.get("api_base") or lm.kwargs.get("base_url") or "")
