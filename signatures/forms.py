"""The form of a question: which outputs it asks for, in which order, and how long an answer may be."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import dspy

from signatures import require_docstrings
from signatures.schemas import DistortionFinding

require_docstrings()


@dataclass(frozen=True)
class QuestionForm:
    """How a question is put, whatever it is about: applied to a predictor's own signature."""

    example: Mapping[str, Any]
    """A valid answer: outputs that the question has to have, with what the third attempt shows."""
    max_tokens: int | None = None
    """Of the first answer, about three times what it takes. After one that was cut there the next gets twice
    as many, up to what the model is set to; a model that thinks gets room for its thoughts."""
    order: tuple[str, ...] = ()
    """In which the example's outputs are asked for; as in the example unless given."""
    drops_others: bool = False
    """Whether nothing but the example's outputs is asked for; else what a signature has besides stays."""
    decisive_field: str | None = None
    """An output that is all that counts: where a schema has JSON begin with it, the answer is cut after it, and
    asked for in full where that fails."""

    def shape(self, signature: type[dspy.Signature]) -> type[dspy.Signature]:
        """Return a signature that asks so; the same class each time, as building one costs milliseconds."""
        order = self.order or tuple(self.example)
        return _shaped(signature, order, drops_others=self.drops_others)  # type: ignore[arg-type]  # a class is hashable


_FINDINGS: Any = dspy.OutputField(desc="distortions that are visible, the most visible first; empty where none is")


@lru_cache(maxsize=64)
def _shaped(signature: type[dspy.Signature], order: tuple[str, ...], *, drops_others: bool) -> type[dspy.Signature]:
    """Insert findings before their follower; move to the end an output that comes too early."""
    if drops_others:
        for name in signature.output_fields.keys() - set(order):
            signature = signature.delete(name)
    for name, follower in pairwise(order):
        if name == "findings" and name not in signature.output_fields:
            place = [*signature.output_fields, follower].index(follower)
            signature = signature.insert(place, name, _FINDINGS, list[DistortionFinding])
        outputs = list(signature.output_fields)
        if {name, follower} <= set(outputs) and outputs.index(follower) < outputs.index(name):
            field = signature.output_fields[follower]
            signature = signature.delete(follower).append(follower, field, field.annotation)
    return signature
