"""Instructions and sets of demos searched together by Bayesian optimization (DSPy's MIPROv2)."""

import random
from functools import partial

import dspy

from optimizers.demos import choose_demos, demo_count
from optimizers.recipes import Bound, Recipe, Sizes
from optimizers.search import ALL_ERRORS, Candidate, Search
from program.common.settings import RecipeSettings
from program.lms.dspy_private import DemoSetMIPRO

_DEMO_SETS = ("spread", "ends", "thirds", "random")


def _demo_sets(search: Search, program: dspy.Module) -> dict[int, list[list[dspy.Example]]]:
    """Return each predictor's own demos, and sets of labelled ones: DSPy's own labelled demos reach only one role."""
    rng = random.Random(search.seed)
    sets: dict[int, list[list[dspy.Example]]] = {}
    for place, (name, predictor) in enumerate(program.named_predictors()):
        demos = search.train.demos.get(name, [])
        count = demo_count(name, demos, search.budget)
        sets[place] = [list(predictor.demos)]
        for number in range(search.budget.candidates - 1):
            chosen = choose_demos(demos, count, _DEMO_SETS[number % len(_DEMO_SETS)], rng)
            sets[place].append([demos[i].demo for i in chosen])
    return sets


def _run(search: Search) -> list[Candidate]:
    optimizer = DemoSetMIPRO(
        partial(_demo_sets, search), metric=search.metric, prompt_model=search.reflection,
        task_model=search.student.get_lm(), auto=None, num_candidates=search.budget.candidates,
        num_threads=search.workers, seed=search.seed + 1, max_bootstrapped_demos=1, max_labeled_demos=1,
        max_errors=ALL_ERRORS,
    )  # fmt: skip
    final = optimizer.compile(
        search.student, trainset=search.shuffled_train(), valset=search.scored, num_trials=search.budget.trials,
        minibatch=False,
    )  # fmt: skip
    return search.complete_candidates(final)


def _bound(budget: RecipeSettings, sizes: Sizes) -> Bound:
    scored, trials = min(budget.search_samples, sizes.validation), budget.trials + 1
    # DSPy 3.4: a summary of the data and the program, and instructions for each predictor.
    return Bound(trials * scored, 2 * (12 + 3 * budget.candidates * sizes.predictors), trials)


RECIPE = Recipe(name="mipro", run=_run, bound=_bound, reflects=True)
