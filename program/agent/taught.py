"""What a program was taught, in the few words of a run of MLflow: the same wherever it is compiled or judged."""

from typing import Any

from program.agent.loop import AgenticIQA
from program.agent.resources import ROLES

__all__ = ("added_lines", "taught")

_LONGEST = 300


def taught(program: AgenticIQA) -> dict[str, Any]:
    """Return model, demos (their number), rubric (the lines that were added to the instructions) and fusion in words.

    Program, prompts and what changed hold them in full.
    """
    models = {role: str(program.resources.lm(role).model) for role in ROLES}
    fusion = program.summarizer.fusion
    near = program.summarizer.neighbours
    lines = added_lines(AgenticIQA(program.resources.settings), program)
    # Several predictors may have learned the same.
    said = dict.fromkeys(line.removeprefix("- ") for added in lines.values() for line in added)
    added = " ".join(line for line in said if not line.endswith(":"))
    return {
        "model": models["summarizer"] if len(set(models.values())) == 1 else ", ".join(map(" ".join, models.items())),
        "demos": sum(len(predictor.demos) for _, predictor in program.named_parameters()),
        "rubric": f"{added[: _LONGEST - 1]}…" if len(added) > _LONGEST else added or "as shipped",
        **({"neighbours": f"{near.count} of {len(near.photographs)}"} if near is not None else {}),
        "fusion": f"eta {fusion.eta:g}, model weight {fusion.model_weight:g}, tools {fusion.tool_weights}, "
                  f"map {fusion.kind}",
    }  # fmt: skip


def added_lines(before: AgenticIQA, after: AgenticIQA) -> dict[str, list[str]]:
    """Return the lines of each predictor's instructions that are not in another program's."""
    old = {name: predictor.signature.instructions.splitlines() for name, predictor in before.named_predictors()}
    return {
        name: [line for line in predictor.signature.instructions.splitlines() if line not in old[name]]
        for name, predictor in after.named_predictors()
    }
