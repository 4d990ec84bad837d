"""Objectives: how well one answer agrees with people, as DSPy's optimizers ask for it."""

from typing import Any

import dspy

from program.state import Assessment

__all__ = ("GATE", "agreement")

GATE = 0.5
"""While bootstrapping, an answer is worth showing when it lies within half a level of the human score."""


def agreement(example: dspy.Example, prediction: Assessment, trace: Any = None) -> float | bool:
    """Return the agreement of one answer with its label: 0..1, or a verdict while bootstrapping (`trace` given).

    Scoring: 1 - |score - human score| / 4, both on 1..5. Multiple choice: exact. A failed answer agrees with nobody.
    """
    if prediction.status == "failed":
        return False if trace is not None else 0.0
    if example.get("answer") is not None:
        right = bool(prediction.final_answer == example.answer)
        return right if trace is not None else float(right)
    if not isinstance(prediction.final_answer, float):
        return False if trace is not None else 0.0
    distance = abs(prediction.final_answer - float(example.quality))
    # A verdict, not a number: DSPy's bootstrapping takes any non-zero float for a success.
    return distance <= GATE if trace is not None else 1.0 - distance / 4.0
