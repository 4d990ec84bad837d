"""The form of a question: which outputs it asks for, in which order, and how long an answer may be."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import dspy

from signatures.schemas import DistortionFinding


@dataclass(frozen=True)
class QuestionForm:
    """How a question is put, whatever it is about: applied to a predictor's own signature."""

    example: Mapping[str, Any]
    """A valid answer: outputs that the question has to have, with what the third attempt shows."""
    max_tokens: int | None = None
    """Of the first answer, about three times what it takes. One that was cut there, and a model that thinks
    aloud, get all that the model's settings allow."""
    order: tuple[str, ...] = ()
    """Outputs in the order that they are asked for, where the form has one; what else a signature has stays."""
    is_alone: bool = False
    """Whether nothing but the example's outputs is asked for."""
    decisive_field: str | None = None
    """An output that is all that counts: where a schema has JSON begin with it, the answer is cut after it, and
    asked for in full where that fails."""

    def shape(self, signature: type[dspy.Signature]) -> type[dspy.Signature]:
        """Return a signature that asks so; the same class each time, as building one costs milliseconds."""
        if self.is_alone:
            return _alone(signature, tuple(self.example))  # type: ignore[arg-type]  # a class is hashable
        return _in_order(signature, self.order)  # type: ignore[arg-type]  # likewise


_ADDED: Mapping[str, tuple[Any, Any]] = {
    "findings": (
        dspy.OutputField(desc="distortions that are visible, the most visible first; empty where none is"),
        list[DistortionFinding],
    )
}
"""Outputs that a form adds to signatures without them: field and type."""


@lru_cache(maxsize=64)
def _alone(signature: type[dspy.Signature], outputs: tuple[str, ...]) -> type[dspy.Signature]:
    for name in signature.output_fields.keys() - set(outputs):
        signature = signature.delete(name)
    return signature


@lru_cache(maxsize=64)
def _in_order(signature: type[dspy.Signature], order: tuple[str, ...]) -> type[dspy.Signature]:
    """Return a signature with these outputs in order: a new one goes before its follower, a late one to the end."""
    for name, follower in pairwise(order):
        if name in _ADDED and name not in signature.output_fields:
            place = [*signature.output_fields, follower].index(follower)
            signature = signature.insert(place, name, *_ADDED[name])
    for name, follower in pairwise(order):
        outputs = list(signature.output_fields)
        if name in outputs and follower in outputs and outputs.index(follower) < outputs.index(name):
            field = signature.output_fields[follower]
            signature = signature.delete(follower).append(follower, field, field.annotation)
    return signature
