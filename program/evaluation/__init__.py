"""How well a program agrees with people: metrics, intervals, running over data, records and reports.

`evaluate(program, data, ...)` runs a program over a dataset and returns its record.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from program.evaluation.evaluating import evaluate as evaluate
    from program.evaluation.figures import compare as compare
    from program.evaluation.intervals import Figure as Figure
    from program.evaluation.metric_table import METRICS as METRICS
    from program.evaluation.metric_table import Metric as Metric
    from program.evaluation.record import Dataset as Dataset
    from program.evaluation.record import EvaluationRecord as EvaluationRecord
    from program.evaluation.report.page import write_report as write_report
    from program.evaluation.rows import Row as Row

_HOMES = {
    "METRICS": "metric_table", "Dataset": "record", "EvaluationRecord": "record", "Figure": "intervals",
    "Metric": "metric_table", "Row": "rows", "compare": "figures", "evaluate": "evaluating",
    "write_report": "report.page",
}  # fmt: skip

__all__ = (
    "METRICS", "Dataset", "EvaluationRecord", "Figure", "Metric", "Row", "compare", "evaluate", "write_report",
)  # fmt: skip


def __getattr__(name: str) -> object:
    # Lazy, so that importing a pure module of this package loads nothing else.
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
