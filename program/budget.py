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
    call is known only after it, so the mean of those before stands for it and for the calls in flight. Budgets nest:
    an inner one's calls count for the outer ones. Raises InputError for a limit that is not positive.

    It lives in DSPy's settings, as `dspy.Parallel` and its optimizers hand those, and no others, to their threads.
    """

    def __init__(self, max_calls: int | None = None, max_cost_usd: float | None = None) -> None:
        if max_calls is not None and max_calls < 1:
            raise InputError(f"budget: {max_calls} calls allow nothing; give 1 or more")
        if max_cost_usd is not None and not max_cost_usd > 0:
            raise InputError(f"budget: {max_cost_usd} USD allow nothing; give more than 0")
        self.max_calls, self.max_cost_usd = max_calls, max_cost_usd
        self.calls, self.cost_usd = 0, 0.0
        self._settled = 0
        self._unpriced: str | None = None
        self._lock = threading.Lock()
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

    def charge(self) -> None:
        """Count one call that is about to go out; BudgetSpent when it would pass the limit."""
        with self._lock:
            if self.max_calls is not None and self.calls >= self.max_calls:
                raise BudgetSpent(f"budget: {self.calls} model calls are spent; allow more with --max-calls")
            if self.max_cost_usd is not None:
                self._check_cost(self.max_cost_usd)
            self.calls += 1
        if self._outer is not None:
            try:
                self._outer.charge()
            except BudgetSpent:
                with self._lock:
                    self.calls -= 1
                raise

    def refund(self) -> None:
        """Take back one charge: the answer came from a cache."""
        if self._outer is not None:
            self._outer.refund()
        with self._lock:
            self.calls -= 1

    def settle(self, cost_usd: float | None, model: str) -> None:
        """Book what an answered call cost; None where the price of `model` is unknown."""
        if self._outer is not None:
            self._outer.settle(cost_usd, model)
        with self._lock:
            self._settled += 1
            self.cost_usd += cost_usd or 0.0
            if cost_usd is None:
                self._unpriced = model

    def _check_cost(self, limit: float) -> None:
        if self._unpriced is not None:
            raise BudgetSpent(
                f"budget: the price of {self._unpriced!r} is unknown, so no cost limit can hold; use --max-calls"
            )
        mean = self.cost_usd / self._settled if self._settled else 0.0
        if self.cost_usd + mean * (self.calls - self._settled + 1) > limit or self.cost_usd >= limit:
            raise BudgetSpent(
                f"budget: {self.cost_usd:.4f} of {limit:g} USD are spent in {self.calls} model calls; "
                "allow more with --max-cost"
            )


def current_budget() -> Budget | None:
    """Return the innermost budget in force."""
    budget = dspy.settings.get(_KEY)
    return budget if isinstance(budget, Budget) else None
