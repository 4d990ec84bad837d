"""No candidate, one set of labelled demos, and DSPy's own optimizers: bootstrapped demos, MIPROv2 and GEPA."""

import math
import random
from functools import partial

import dspy
from dspy.teleprompt import GEPA, BootstrapFewShot

from optimizers.demos import choose_demos, demo_count, showable_demos, with_demos
from optimizers.recipes import Bound, Recipe, Sizes
from optimizers.search import ALL_ERRORS, Candidate, Search
from optimizers.student import Student
from program.common.settings import RecipeSettings
from program.lms.dspy_private import DemoSetMIPRO

_DEMO_SETS = ("spread", "ends", "thirds", "random")

NONE = Recipe(
    name="none", run=lambda search: [], bound=lambda budget, sizes: Bound(0, candidates=0), least=lambda budget: 0
)


def _labeled(search: Search) -> list[Candidate]:
    demos = {name: search.train.demos[name] for name in search.student.names if search.train.demos.get(name)}
    rng = random.Random(search.seed)
    places = {n: choose_demos(ds, demo_count(n, ds, search.budget), "spread", rng) for n, ds in demos.items()}
    return [Candidate.of("labeled", with_demos(search.student, demos, places))]


LABELED = Recipe(name="labeled", run=_labeled, bound=lambda budget, sizes: Bound(0))


def bootstrapped(search: Search) -> Student:
    """Return the student with demos from answers that people agree with, filled up with labelled ones."""
    optimizer = BootstrapFewShot(
        metric=search.metric,
        max_bootstrapped_demos=search.budget.bootstrapped,
        max_labeled_demos=0,  # filled up below: DSPy's labelled demos reach only roles whose outputs are columns
        max_errors=len(search.train.examples) + 1,
    )
    examples = list(search.train.examples)
    random.Random(search.seed).shuffle(examples)
    student: Student = optimizer.compile(search.student, teacher=search.teacher, trainset=examples)
    showable_demos(student.program)
    rng = random.Random(search.seed)
    for name, predictor in student.named_parameters():
        demos = search.train.demos.get(name, [])
        room = max(0, demo_count(name, demos, search.budget) - len(predictor.demos))
        predictor.demos = [*predictor.demos, *(demos[i].demo for i in choose_demos(demos, room, "spread", rng))]
    return student


BOOTSTRAP = Recipe(
    name="bootstrap",
    run=lambda search: [Candidate.of("bootstrap", bootstrapped(search))],
    bound=lambda budget, sizes: Bound(sizes.train),
    takes_teacher=True,
    runs_whole_program=True,
)


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


def _mipro(search: Search) -> list[Candidate]:
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


def _mipro_bound(budget: RecipeSettings, sizes: Sizes) -> Bound:
    scored, trials = min(budget.search_samples, sizes.validation), budget.trials + 1
    # DSPy 3.4: a summary of the data and the program, and instructions for each predictor.
    return Bound(trials * scored, 2 * (12 + 3 * budget.candidates * sizes.predictors), trials)


MIPRO = Recipe(name="mipro", run=_mipro, bound=_mipro_bound, reflects=True)


def _gepa(search: Search) -> list[Candidate]:
    optimizer = GEPA(
        metric=search.metric_with_feedback, max_metric_calls=search.budget.metric_calls,
        reflection_minibatch_size=search.budget.minibatch, reflection_lm=search.reflection,
        num_threads=search.workers, seed=search.seed,
        log_dir=None,  # its state would be a pickle: none is written, and none read
        warn_on_score_mismatch=False,
    )  # fmt: skip
    final = optimizer.compile(search.student, trainset=search.shuffled_train(), valset=search.scored)
    return search.complete_candidates(final)


def _gepa_bound(budget: RecipeSettings, sizes: Sizes) -> Bound:
    scored = min(budget.search_samples, sizes.validation)
    # GEPA 0.1.4 ends after the round that reaches its budget.
    rounds = math.ceil(budget.metric_calls / budget.minibatch)
    return Bound(budget.metric_calls + 2 * budget.minibatch + 2 * scored, 2 * rounds, rounds)


EVOLUTION = Recipe(
    name="gepa", run=_gepa, bound=_gepa_bound, reflects=True, teaches="instructions",
    least=lambda budget: budget.minibatch,
)  # fmt: skip
