"""How a question is put: its outputs and their order, its length, and what its inputs bring along.

Inputs bring facts for the embedded expert, and steps of instructions.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, TypeVar, cast

import dspy

from signatures import require_docstrings
from signatures.schemas import DistortionFinding, ScoreShift

require_docstrings()

_Builder = TypeVar("_Builder", bound=Callable[..., Any])


def kept(build: _Builder) -> _Builder:
    """Keep what a function makes of a signature: it takes milliseconds, and prompts are kept by it."""
    return cast("_Builder", lru_cache(maxsize=256)(build))


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
    """Whether nothing but the example's outputs is asked for, of all that a signature has."""
    decisive_field: str | None = None
    """An output that is all that counts: where a schema has JSON begin with it, the answer is cut after it, and
    asked for in full where that fails."""

    def shape(self, signature: type[dspy.Signature]) -> type[dspy.Signature]:
        """Return a signature that asks so, the same class each time: building one costs milliseconds."""
        order = self.order or tuple(self.example)
        return _shaped(signature, order, drops_others=self.drops_others)


_FINDINGS: Any = dspy.OutputField(desc="distortions that are visible, the most visible first; empty where none is")


@kept
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


# What inputs bring along

FACTS: Mapping[str, Any] = {
    "score_shift": ScoreShift, "option_shares": dict[str, float], "whole": dspy.Image,
    "reference_crops": dict[str, dspy.Image], "intended": list[str], "kind": str,
}  # fmt: skip
"""Inputs that the embedded expert gets and no language model does; their types by name."""
_STEP = "step"


@kept
def with_facts(signature: type[dspy.Signature], names: tuple[str, ...]) -> type[dspy.Signature]:
    """Return a signature as the embedded expert gets it; the same class each time, as one costs ms.

    It takes these facts, too. A question with options asks whether the answer is a guess.
    """
    for name in names:
        signature = signature.append(name, dspy.InputField(), FACTS[name])
    if "options" in signature.input_fields:
        signature = signature.append("guess", dspy.OutputField(), Literal["yes"] | None)
    return signature


def field_with_step(desc: str, step: str) -> Any:
    """Return an input field that adds a step to the instructions of a question that holds it."""
    field = dspy.InputField(desc=desc)
    field.json_schema_extra[_STEP] = step
    return field


def steps_of(signature: type[dspy.Signature]) -> list[str]:
    """Return the steps that a signature's inputs add."""
    extras = [field.json_schema_extra for field in signature.input_fields.values()]
    return [extra[_STEP] for extra in extras if _STEP in extra]


@kept
def with_steps(signature: type[dspy.Signature]) -> type[dspy.Signature]:
    """Return a signature whose instructions, reworded or not, end with its inputs' steps.

    They go on with the numbers of a list that the instructions end with.
    """
    text = signature.instructions
    for step in steps_of(signature):
        numbers = re.findall(r"(?m)^(\d+)\. ", text)
        if numbers:
            step = f"{int(numbers[-1]) + 1}. {step}"
        text = f"{text}\n{step}"
    if text == signature.instructions:
        return signature
    worded: type[dspy.Signature] = signature.with_instructions(text)
    return worded
