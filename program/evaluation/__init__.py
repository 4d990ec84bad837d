"""How well a program agrees with people: metrics, intervals, running over data, records and reports."""

from typing import TYPE_CHECKING

from program.common import lazy

if TYPE_CHECKING:
    from program.evaluation.evaluating import evaluate as evaluate
    from program.evaluation.figures import compare as compare
    from program.evaluation.publishing import write_report as write_report

__all__ = ("compare", "evaluate", "write_report")

# So that importing a pure module of this package loads nothing else.
__getattr__ = lazy(__name__, {"figures": ["compare"], "evaluating": ["evaluate"], "publishing": ["write_report"]})
