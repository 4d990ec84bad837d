"""What a program was taught, as a run of MLflow tells it: one set of names wherever a program is compiled or judged."""

import json
from typing import Any

from program.agent.loop import AgenticIQA
from program.agent.saving import program_sha256

__all__ = ("taught",)


def taught(program: AgenticIQA) -> dict[str, Any]:
    """Return the fusion that is in force, and the demos (their number) and instructions of every predictor.

    The fusion is the fitted one where there is one, else that of the settings: `eta`, `model_weight`, `tool_weights`,
    `normalize`, and its map as `map` (none, line, logistic, isotonic) and `curve`, knots on 1..5 as in program.json.
    """
    fusion = program.summarizer.fusion
    predictors, near = program.named_parameters(), program.summarizer.neighbours
    return {
        "program_sha256": program_sha256(program),
        "fusion": {
            "eta": fusion.eta,
            "model_weight": fusion.model_weight,
            "tool_weights": fusion.tool_weights,
            "normalize": fusion.normalize,
            "map": fusion.kind,
            "curve": json.dumps([list(knot) for knot in fusion.curve]),
        },
        "neighbours": {"photographs": len(near.photographs), "count": near.count} if near else None,
        "demos": {name: len(predictor.demos) for name, predictor in predictors},
        "instructions": {name: predictor.signature.instructions for name, predictor in predictors},
    }
