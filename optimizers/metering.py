"""Calls that do not go through the program's own questions, accounted for in the same way."""

from typing import Any

import dspy

from optimizers.student import SearchStopped
from program.lms.limits import BudgetSpent
from program.lms.metering import ModelCall

__all__ = ("metered_lm",)


class _MeteredEngine:
    """Charges each request before it goes out. It sits below DSPy's cache, so answers from there are free."""

    def __init__(self, lm: dspy.BaseLM) -> None:
        self._lm = lm

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._lm.engine, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_MeteredEngine":
        return self

    def complete(self, request: Any) -> Any:
        """Answer one request."""
        try:
            return ModelCall(self._lm).complete(request)
        except BudgetSpent as error:  # optimizers swallow errors of this model and go on
            raise SearchStopped(error) from error


def metered_lm(lm: dspy.BaseLM) -> dspy.BaseLM:
    """Return a copy of an LM whose calls count in the budget in force; an LM without an engine of its own as it is."""
    return lm.copy(engine=_MeteredEngine(lm)) if hasattr(getattr(lm, "engine", None), "complete") else lm
