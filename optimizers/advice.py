"""What to try next where a compile gained nothing."""

from optimizers.job import Job
from optimizers.recipes import recipe_named

__all__ = ("advice",)

_FEW = 100
"""Training samples below which more of them are worth more than another recipe."""


def advice(job: Job) -> str:
    """Return in one line what has not been tried yet, the most promising first."""
    count, tried = len(job.samples("train")), set(job.optimizers)
    ways = []
    if count < _FEW:
        ways.append(f"more labelled training samples ({count} now)")
    if job.embedded:
        recipes, model = (
            ["random-search,fusion", "rubric", "labeled --demos all"],
            "a language model: --lm PROVIDER/MODEL",
        )
    else:
        recipes, model = (
            ["rubric,gepa", "random-search,fusion", "bootstrap"],
            "demos of a stronger model: --teacher-lm MODEL",
        )
    for names in recipes:
        asked = [recipe_named(name) for name in names.partition(" ")[0].split(",")]
        if not {recipe.name for recipe in asked} <= tried and all(r.least(job.budget(r.name)) <= count for r in asked):
            ways.append(f"--optimizer {names}")
    return f"to try next: {'; '.join([*ways, '--repeat 3 (other seeds)', model])}"
