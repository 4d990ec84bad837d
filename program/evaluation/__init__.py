"""How well a program agrees with people: metrics, intervals, running over data, records and reports."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from program.evaluation.evaluating import evaluate as evaluate
    from program.evaluation.figures import compare as compare
    from program.evaluation.publishing import write_report as write_report

_HOMES = {"compare": "figures", "evaluate": "evaluating", "write_report": "publishing"}

__all__ = ("compare", "evaluate", "write_report")


def __getattr__(name: str) -> object:
    # Lazy, so that importing a pure module of this package loads nothing else.
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
