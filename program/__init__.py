"""AgenticIQA: an agent that judges the quality of an image as people would, and says why."""

from typing import TYPE_CHECKING

from program.common import lazy

if TYPE_CHECKING:
    from program.agent.assessment import Assessment
    from program.agent.loop import AgenticIQA
    from program.agent.saving import load

__all__ = ("AgenticIQA", "Assessment", "load")

# So that `program.fusion` or a command's --help never imports dspy.
__getattr__ = lazy(
    __name__, {"agent.loop": ["AgenticIQA"], "agent.assessment": ["Assessment"], "agent.saving": ["load"]}
)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
