"""Calls that do not go through the program's own questions, charged to the budget in force all the same."""

import copy
from typing import Any

import dspy

from optimizers.taught import SearchStopped
from program.budget import BudgetSpent, current_budget
from program.lms.reference_engine import cost_usd

__all__ = ("metered_lm",)


class _MeteredEngine:
    """Charges each call before it goes out. It sits below DSPy's cache, so answers from there are free."""

    def __init__(self, inner: Any, model: str) -> None:
        self._inner, self._model = inner, model

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_MeteredEngine":
        return self

    def complete(self, request: Any) -> Any:
        """Answer one request, one attempt."""
        budget = current_budget()
        if budget is not None:
            try:
                budget.charge()
            except BudgetSpent as error:  # optimizers swallow errors of this model and go on
                raise SearchStopped(error) from error
        cost: float | None = 0.0
        try:
            response = self._inner.complete(request)
            cost = cost_usd(self._inner, request, response)
            return response
        finally:
            if budget is not None:
                budget.settle(cost, self._model)


def metered_lm(lm: dspy.BaseLM) -> dspy.BaseLM:
    """Return a copy of an LM whose calls count in the budget in force; an LM without an engine of its own as it is."""
    engine = getattr(lm, "_engine_spec", None)
    if engine is None or isinstance(engine, str):
        return lm
    metered = copy.copy(lm)
    metered._engine_spec = _MeteredEngine(engine, str(lm.model))
    metered.history = []
    return metered
