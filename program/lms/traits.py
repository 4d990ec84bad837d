"""What a language model can do."""

from dataclasses import dataclass

import dspy


@dataclass(frozen=True)
class ModelTraits:
    """What is known of a model; None where it is not."""

    reads_images: bool | None = None
    context_tokens: int | None = None


def traits_of(lm: dspy.BaseLM) -> ModelTraits:
    """Return what is known of a model."""
    return ModelTraits()
