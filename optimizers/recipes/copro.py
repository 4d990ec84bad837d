"""Each instruction rewritten in turn, from the scores of earlier ones (DSPy's COPRO)."""

import dspy
from dspy.teleprompt import COPRO

from optimizers.recipes import Bound, Recipe, Sizes
from optimizers.search import ALL_ERRORS, Candidate, Search
from program.common.settings import RecipeSettings


def _run(search: Search) -> list[Candidate]:
    optimizer = COPRO(
        prompt_model=search.reflection, metric=search.metric, breadth=search.budget.candidates,
        depth=max(1, search.budget.steps),
    )  # fmt: skip
    settings = {"num_threads": search.workers, "display_progress": False}
    with dspy.context(max_errors=ALL_ERRORS):
        final = optimizer.compile(search.student, trainset=search.scored, eval_kwargs=settings)
    return search.complete_candidates(final)


def _bound(budget: RecipeSettings, sizes: Sizes) -> Bound:
    width, depth = budget.candidates, max(1, budget.steps)
    tried = sizes.predictors * sum(width * d for d in range(1, depth + 1))
    scored = min(budget.search_samples, sizes.validation)
    return Bound(tried * scored, 2 * sizes.predictors * (width - 1 + (depth - 1) * width), tried)


RECIPE = Recipe(name="copro", run=_run, bound=_bound, reflects=True, teaches="instructions")
