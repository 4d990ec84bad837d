"""Instructions evolved from feedback in words (GEPA)."""

import math

from dspy.teleprompt import GEPA

from optimizers.recipes import Bound, Recipe, Sizes
from optimizers.search import Candidate, Search
from program.common.settings import RecipeSettings


def _run(search: Search) -> list[Candidate]:
    optimizer = GEPA(
        metric=search.metric_with_feedback, max_metric_calls=search.budget.metric_calls,
        reflection_minibatch_size=search.budget.minibatch, reflection_lm=search.reflection,
        num_threads=search.workers, seed=search.seed,
        log_dir=None,  # its state would be a pickle: none is written, and none read
        warn_on_score_mismatch=False,
    )  # fmt: skip
    final = optimizer.compile(search.student, trainset=search.shuffled_train(), valset=search.scored)
    return search.complete_candidates(final)


def _bound(budget: RecipeSettings, sizes: Sizes) -> Bound:
    scored = min(budget.search_samples, sizes.validation)
    # GEPA 0.1.4 ends after the round that reaches its budget.
    rounds = math.ceil(budget.metric_calls / budget.minibatch)
    return Bound(budget.metric_calls + 2 * budget.minibatch + 2 * scored, 2 * rounds, rounds)


RECIPE = Recipe(
    name="gepa", run=_run, bound=_bound, reflects=True, teaches="instructions", least=lambda budget: budget.minibatch
)
