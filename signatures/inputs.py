"""What a question's inputs bring along: facts for the embedded expert, steps of instructions."""

import functools
import re
from collections.abc import Mapping
from typing import Any, Literal

import dspy

from signatures.schemas import ScoreShift

FACTS: Mapping[str, Any] = {
    "score_shift": ScoreShift, "option_shares": dict[str, float], "whole": dspy.Image,
    "reference_crops": dict[str, dspy.Image], "intended": list[str], "kind": str,
}  # fmt: skip
"""Inputs that the embedded expert gets and no language model does; their types by name."""
_STEP = "step"


@functools.lru_cache(maxsize=64)
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
    """Return an input field that adds a step to the instructions of each question which holds it."""
    field = dspy.InputField(desc=desc)
    field.json_schema_extra[_STEP] = step
    return field


def steps_of(signature: type[dspy.Signature]) -> list[str]:
    """Return the steps that a signature's inputs add."""
    extras = [field.json_schema_extra for field in signature.input_fields.values()]
    return [extra[_STEP] for extra in extras if _STEP in extra]


@functools.lru_cache(maxsize=256)
def with_steps(signature: type[dspy.Signature]) -> type[dspy.Signature]:
    """Return a signature whose instructions, reworded or not, end with the steps that its inputs add.

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
