"""AgenticIQA under a name of its own: what `program` offers, imported when it is asked for."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from program import AgenticIQA, Assessment, load

__all__ = ("AgenticIQA", "Assessment", "load")


def __getattr__(name: str) -> Any:
    import program

    if name not in program.__all__:
        raise AttributeError(f"module 'agentic_iqa' has no attribute {name!r}")
    return getattr(program, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
