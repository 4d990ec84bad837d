"""A limit on what model calls may cost: a context that stops before the call that would pass it."""

import threading
from types import TracebackType
from typing import Any

import dspy

from program.errors import InputError

__all__ = ("Budget", "BudgetSpent", "current_budget")

_KEY = "agentic_iqa_budget"


class BudgetSpent(InputError):  # noqa: N818 (it ends a run as planned)
    """The next model call would pass the budget; what was finished before is kept."""


class Budget:
    """At most so many model calls, or so many dollars, inside the `with` block; shared by all its threads.

    Every call that goes to a model counts, a repeat after a fault too; answers from a cache are free. The cost of a
    call is known only after it, so the dearest one so far stands for each that is in flight, and under a limit of
    dollars no more are in flight than were priced before, one at first: the others wait. Budgets nest: an inner one's
    calls count for the outer ones. Raises InputError for a limit that is not positive.

    It lives in DSPy's settings, as `dspy.Parallel` and its optimizers hand those, and no others, to their threads.
    """

    def __init__(self, max_calls: int | None = None, max_cost_usd: float | None = None) -> None:
        if max_calls is not None and max_calls < 1:
            raise InputError(f"budget: {max_calls} calls allow nothing; give 1 or more")
        if max_cost_usd is not None and not max_cost_usd > 0:
            raise InputError(f"budget: {max_cost_usd} USD allow nothing; give more than 0")
        self.max_calls, self.max_cost_usd = max_calls, max_cost_usd
        self.calls, self.cost_usd = 0, 0.0
        self._in_flight, self._priced, self._dearest_usd = 0, 0, 0.0
        self._unpriced: str | None = None
        self._changed = threading.Condition()
        self._outer: Budget | None = None
        self._context: Any = None

    def __enter__(self) -> "Budget":
        self._outer = current_budget()
        self._context = dspy.context(**{_KEY: self})
        self._context.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.__exit__(kind, error, trace)

    def charge(self, *, free: bool = False) -> None:
        """Count one call that is about to go out, once it may; BudgetSpent when it would pass the limit.

        A `free` one costs no money, waits for none and is not settled.
        """
        with self._changed:
            while not self._admits(free=free):
                self._changed.wait()
            self.calls += 1
            self._in_flight += not free
        if self._outer is not None:
            try:
                self._outer.charge(free=free)
            except BaseException:
                self._take_back(free=free)
                raise

    def refund(self) -> None:
        """Take back one charge: the answer came from a cache."""
        if self._outer is not None:
            self._outer.refund()
        self._take_back(free=False)

    def settle(self, cost_usd: float | None, model: str) -> None:
        """Book what a call cost: None where the price of `model` is unknown, 0 where it gave no answer."""
        if self._outer is not None:
            self._outer.settle(cost_usd, model)
        with self._changed:
            self._in_flight -= 1
            if cost_usd is None:
                self._unpriced = model
            elif cost_usd > 0:  # a failed call tells no price
                self.cost_usd += cost_usd
                self._priced += 1
                self._dearest_usd = max(self._dearest_usd, cost_usd)
            self._changed.notify_all()

    def _take_back(self, *, free: bool) -> None:
        with self._changed:
            self.calls -= 1
            self._in_flight -= not free
            self._changed.notify_all()

    def _admits(self, *, free: bool) -> bool:
        """Return whether a call may go out now, or has to wait for one in flight; BudgetSpent where none may."""
        if self.max_calls is not None and self.calls >= self.max_calls:
            raise BudgetSpent(f"budget: {self.calls} model calls are spent; allow more with --max-calls")
        if self.max_cost_usd is None or free:
            return True
        if self._unpriced is not None:
            raise BudgetSpent(
                f"budget: the price of {self._unpriced!r} is unknown, so no cost limit can hold; use --max-calls"
            )
        left = self.max_cost_usd - self.cost_usd
        if left <= 0 or self._dearest_usd > left:
            raise BudgetSpent(
                f"budget: {self.cost_usd:.4f} of {self.max_cost_usd:g} USD are spent in {self.calls} model calls; "
                "allow more with --max-cost"
            )
        if self._in_flight == 0:
            return True
        return self._in_flight < self._priced and self._dearest_usd * (self._in_flight + 1) <= left


def current_budget() -> Budget | None:
    """Return the innermost budget in force."""
    budget = dspy.settings.get(_KEY)
    return budget if isinstance(budget, Budget) else None
