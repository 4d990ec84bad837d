"""Demos and rules from what separates the best of several sampled answers from the worst (DSPy's SIMBA)."""

from dspy.teleprompt import SIMBA

from optimizers.recipes import Bound, Recipe, Sizes
from optimizers.search import Candidate, Search
from program.common.settings import RecipeSettings


def _run(search: Search) -> list[Candidate]:
    # SIMBA asks for as many samples as a batch holds; groups and a small search have fewer.
    batch = min(search.budget.minibatch, len(search.scored))
    optimizer = SIMBA(
        metric=search.metric, bsize=batch, num_candidates=search.budget.candidates,
        max_steps=search.budget.steps, max_demos=search.budget.demos or 0, prompt_model=search.reflection,
        num_threads=search.workers,
    )  # fmt: skip
    final = optimizer.compile(search.student, trainset=search.scored, seed=search.seed)
    return search.complete_candidates(final)


def _bound(budget: RecipeSettings, sizes: Sizes) -> Bound:
    scored, width = min(budget.search_samples, sizes.train), budget.candidates
    runs = budget.steps * budget.minibatch * (2 * width + 1) + (width + 1) * scored
    return Bound(runs, 2 * budget.steps * budget.minibatch, width + 1)


RECIPE = Recipe(
    name="simba",
    run=_run,
    bound=_bound,
    reflects=True,
    scored_on="train",  # it makes demos of what it scores, so that may not be what candidates are chosen on
    least=lambda budget: budget.minibatch,
)
