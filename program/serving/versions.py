"""What answers here: the program's hash, the models, the tools and the packages; no path, host or key."""

from typing import Any

from program.agent import AgenticIQA
from program.evaluation.environment import environment
from program.evaluation.evaluating import context_of

__all__ = ("versions",)


def versions(program: AgenticIQA) -> dict[str, Any]:
    """Return the content of /version. Reads the small parameter files of ready tools."""
    context = context_of(program)
    software = environment()
    return {
        "program_sha256": context["program_sha256"],
        "demos": sum(len(predictor.demos) for predictor in program.predictors()),
        "models": context["models"],
        "scoring_mode": context["scoring_mode"],
        "tools": context["tools"],
        "python": software.python,
        "versions": software.versions,
        "git_commit": software.git_commit,
    }
