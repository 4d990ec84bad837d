"""How well a program agrees with people: metrics, intervals, running over data, records and plots."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from program.evaluation.intervals import Figure as Figure
    from program.evaluation.record import Dataset as Dataset
    from program.evaluation.record import EvaluationRecord as EvaluationRecord
    from program.evaluation.record import Row as Row
    from program.evaluation.record import compare as compare
    from program.evaluation.runner import evaluate as evaluate

_HOMES = {
    "Dataset": "record", "EvaluationRecord": "record", "Figure": "intervals", "Row": "record", "compare": "record",
    "evaluate": "runner",
}  # fmt: skip

__all__ = ("Dataset", "EvaluationRecord", "Figure", "Row", "compare", "evaluate")


def __getattr__(name: str) -> object:
    # Lazy, so that importing a pure module of this package loads nothing else.
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
