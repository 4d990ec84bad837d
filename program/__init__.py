"""AgenticIQA: an agent that judges the quality of an image as people would, and says why."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from program.agent import AgenticIQA
    from program.saving import load
    from program.state import Assessment

__all__ = ("AgenticIQA", "Assessment", "load")

_HOMES = {"AgenticIQA": "program.agent", "Assessment": "program.state", "load": "program.saving"}


def __getattr__(name: str) -> Any:
    # Lazy, so that `program.fusion` or a command's --help never imports dspy.
    if name not in _HOMES:
        raise AttributeError(f"module 'program' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
