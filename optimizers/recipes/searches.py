"""No candidate, labelled demos, and DSPy's own optimizers: bootstrapped demos, MIPROv2, GEPA.

DSPy's labelled demos reach only predictors whose outputs are columns of the data, so demos of every role are set here.
"""

import math
import random
from dataclasses import replace

from dspy.teleprompt import GEPA, BootstrapFewShot, MIPROv2

from optimizers.demos import choose_demos, showable_demos
from optimizers.recipes import Bound, Recipe, Sizes
from optimizers.search import ALL_ERRORS, Candidate, Search, drawn
from optimizers.student import Student
from program.common.settings import RecipeSettings

NONE = Recipe(
    name="none",
    run=lambda search: [],
    bound=lambda budget, sizes: Bound(0, candidates=0),
    teaches="nothing",
    least=0,
)


def add_labelled_demos(search: Search, student: Student, seed: int) -> None:
    """Fill a student's demos up with labelled ones."""
    for name, predictor in student.named_parameters():
        labelled = search.train.demos.get(name, [])
        taken = len(predictor.demos)
        predictor.demos = [*predictor.demos, *choose_demos(name, labelled, search.budget, seed, taken)]


def labelled_student(search: Search) -> Student:
    """Return the student with labelled demos alone."""
    student: Student = search.student.reset_copy()
    add_labelled_demos(search, student, search.seed)
    return student


LABELED = Recipe(name="labeled", run=lambda search: [Candidate("labeled", labelled_student(search).program)])


def bootstrap(search: Search, seed: int) -> Student:
    """Return the student with demos from answers that people agree with, filled up with labelled ones."""
    optimizer = BootstrapFewShot(
        metric=search.metric, max_bootstrapped_demos=search.budget.bootstrapped, max_labeled_demos=0,
        max_errors=ALL_ERRORS,
    )  # fmt: skip
    examples = list(search.train.examples)
    random.Random(seed).shuffle(examples)
    student: Student = optimizer.compile(search.student, teacher=search.teacher, trainset=examples)
    showable_demos(student.program)
    add_labelled_demos(search, student, seed)
    return student


BOOTSTRAP = Recipe(
    name="bootstrap",
    run=lambda search: [Candidate("bootstrap", bootstrap(search, search.seed).program)],
    bound=lambda budget, sizes: Bound(sizes.train),
    bootstraps=True,
)


def _random_search(search: Search) -> list[Candidate]:
    for number in range(search.budget.starts):
        search.evaluate(bootstrap(search, search.seed + number))
    return search.candidates()


def _random_bound(budget: RecipeSettings, sizes: Sizes) -> Bound:
    scored = min(budget.search_samples, sizes.validation)
    return Bound(budget.starts * (sizes.train + scored), candidates=budget.starts)


RANDOM_SEARCH = replace(BOOTSTRAP, name="random-search", run=_random_search, bound=_random_bound, scales=("starts",))


def _mipro(search: Search) -> list[Candidate]:
    """Return candidates with MIPROv2's instructions, beside the same labelled demos each."""
    optimizer = MIPROv2(
        metric=search.metric, prompt_model=search.reflection, task_model=search.reflection, auto=None,
        num_candidates=search.budget.candidates, num_threads=search.workers, seed=search.seed + 1,
        max_bootstrapped_demos=0, max_labeled_demos=0, max_errors=ALL_ERRORS,
    )  # fmt: skip
    train = drawn(search.train.examples, search.budget.search_samples, search.seed)
    optimizer.compile(
        labelled_student(search), trainset=train, valset=search.scored, num_trials=search.budget.trials,
        minibatch=False, program_aware_proposer=False,  # it would quote the student's code, which says nothing
    )  # fmt: skip
    return search.candidates()


def _mipro_bound(budget: RecipeSettings, sizes: Sizes) -> Bound:
    scored, trials = min(budget.search_samples, sizes.validation), budget.trials + 1
    # The model that writes is shown answers that people agree with, gathered anew for all instructions but one.
    gathered = (budget.candidates - 1) * min(budget.search_samples, sizes.train)
    # DSPy 3.4: a summary of the data, and instructions for each predictor.
    reflections = 12 + budget.candidates * sizes.predictors
    return Bound(trials * scored + gathered, reflections, trials)


MIPRO = Recipe(name="mipro", run=_mipro, bound=_mipro_bound, reflects=True, scales=("trials", "candidates"))


def _metric_calls(budget: RecipeSettings, scored: int) -> int:
    """Return how many runs GEPA plans for: one proposal is made at least, after all that score are run once."""
    return max(budget.metric_calls, scored + 2 * budget.minibatch)


def _gepa(search: Search) -> list[Candidate]:
    optimizer = GEPA(
        metric=search.metric_with_feedback, max_metric_calls=_metric_calls(search.budget, len(search.scored)),
        reflection_minibatch_size=search.budget.minibatch, reflection_lm=search.reflection,
        num_threads=search.workers, seed=search.seed,
        log_dir=None,  # its state would be a pickle: none is written, and none read
        warn_on_score_mismatch=False,
    )  # fmt: skip
    train = drawn(search.train.examples, None, search.seed)
    optimizer.compile(search.student, trainset=train, valset=search.scored)
    return search.candidates()


def _gepa_bound(budget: RecipeSettings, sizes: Sizes) -> Bound:
    scored = min(budget.search_samples, sizes.validation)
    # GEPA 0.1.4 ends after the round that reaches its budget.
    calls = _metric_calls(budget, scored)
    rounds = math.ceil(calls / budget.minibatch)
    return Bound(calls + 2 * budget.minibatch + 2 * scored, rounds, rounds)


EVOLUTION = Recipe(
    name="gepa", run=_gepa, bound=_gepa_bound, reflects=True, teaches="instructions",
    scales=("metric_calls",),
)  # fmt: skip
