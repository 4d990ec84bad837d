"""AgenticIQA: an agent that judges the quality of an image as people would, and says why."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from program.agent.assessment import Assessment
    from program.agent.loop import AgenticIQA
    from program.agent.saving import load

__all__ = ("AgenticIQA", "Assessment", "load")

_HOMES = {"AgenticIQA": "program.agent.loop", "Assessment": "program.agent.assessment", "load": "program.agent.saving"}


def __getattr__(name: str) -> Any:
    # Lazy, so that `program.fusion` or a command's --help never imports dspy.
    if name not in _HOMES:
        raise AttributeError(f"module 'program' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
