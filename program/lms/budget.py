"""A limit on what model calls may cost: a context that stops before the call that would pass it."""

import argparse
import threading
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import dspy

from program.common.errors import InputError

__all__ = ("Budget", "BudgetSpent", "budget_from", "current_budget")

_KEY = "agentic_iqa_budget"


class BudgetSpent(InputError):  # noqa: N818 (it ends a run as planned)
    """The next model call would pass the budget; what was finished before is kept."""


class Budget:
    """At most so many model calls, or so many dollars, inside the `with` block; shared by all its threads.

    Every call that goes to a model counts, a repeat after a fault too; answers from a cache are free. What a call
    costs is known only once it has ended. Under a limit of dollars each call in flight is therefore assumed to cost as
    much as the dearest one so far, and at most as many may be in flight as have been priced (one, to begin with):
    further calls wait. Budgets nest: an inner one's calls count for the outer ones. Raises InputError for a limit that
    is not positive.

    It lives in DSPy's settings: `dspy.Parallel` and DSPy's optimizers pass those to their threads, and nothing else.
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
        self._chain: tuple[Budget, ...] = (self,)
        self._context: Any = None

    def __enter__(self) -> "Budget":
        outer = current_budget()
        if outer is not None:  # one lock for all, so that a call is charged to all of them or to none
            self._chain, self._changed = (self, *outer._chain), outer._changed
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
            while not all(budget._admits(free=free) for budget in self._chain):
                self._changed.wait()
            for budget in self._chain:
                budget.calls += 1
                budget._in_flight += not free

    def refund(self) -> None:
        """Take back one charge: the answer came from a cache."""
        with self._changed:
            for budget in self._chain:
                budget.calls -= 1
                budget._in_flight -= 1
            self._changed.notify_all()

    def settle(self, cost_usd: float | None, model: str) -> None:
        """Add what a charged call cost: None where the price of `model` is unknown, 0 where it gave no answer."""
        with self._changed:
            for budget in self._chain:
                budget._in_flight -= 1
                if cost_usd is None:
                    budget._unpriced = model
                elif cost_usd > 0:  # a failed call says nothing about prices
                    budget.cost_usd += cost_usd
                    budget._priced += 1
                    budget._dearest_usd = max(budget._dearest_usd, cost_usd)
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


def budget_from(arguments: argparse.Namespace) -> AbstractContextManager[object]:
    """Return the budget that a command's flags ask for (`program.common.cli.add_budget_flags`), to be entered."""
    if arguments.max_calls is None and arguments.max_cost is None:
        return nullcontext()
    return Budget(arguments.max_calls, arguments.max_cost)
