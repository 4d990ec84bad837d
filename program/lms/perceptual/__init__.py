"""The embedded backend: an image-quality expert that measures pixels. Not a language model; needs no download."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from program.lms.perceptual.engine import (
        MODEL,
        REVISION,
        AsyncPerceptualEngine,
        CallAdapter,
        PerceptualEngine,
        answer,
        make_perceptual_lm,
    )

__all__ = (
    "MODEL",
    "REVISION",
    "AsyncPerceptualEngine",
    "CallAdapter",
    "PerceptualEngine",
    "answer",
    "make_perceptual_lm",
)


def __getattr__(name: str) -> Any:
    """Load the engine on first use: the training command's help and the pure modules need no DSPy."""
    if name in __all__:
        from program.lms.perceptual import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
