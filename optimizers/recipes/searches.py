"""No candidate, labelled demos, and DSPy's own optimizers: bootstrapped demos, MIPROv2, GEPA.

Random search bootstraps several times, as DSPy's own does; here each set is filled up with labelled demos of every
role before it is scored on validation samples.
"""

import math
import random

from dspy.teleprompt import GEPA, BootstrapFewShot, MIPROv2

from optimizers.demos import choose_demos, demo_count, showable_demos, with_demos
from optimizers.recipes import Bound, Recipe, Sizes
from optimizers.search import ALL_ERRORS, Candidate, Search, scored_examples
from optimizers.student import Student
from program.common.settings import RecipeSettings

NONE = Recipe(
    name="none",
    run=lambda search: [],
    bound=lambda budget, sizes: Bound(0, candidates=0),
    teaches="nothing",
    least=lambda budget: 0,
)


def _with_labelled_demos(search: Search) -> Student:
    demos = {name: search.train.demos[name] for name in search.student.names if search.train.demos.get(name)}
    rng = random.Random(search.seed)
    places = {n: choose_demos(ds, demo_count(n, ds, search.budget), "spread", rng) for n, ds in demos.items()}
    return with_demos(search.student, demos, places)


def _labeled(search: Search) -> list[Candidate]:
    return [Candidate.of("labeled", _with_labelled_demos(search))]


LABELED = Recipe(name="labeled", run=_labeled, bound=lambda budget, sizes: Bound(0))


def bootstrap(search: Search, seed: int) -> Student:
    """Return the student with demos from answers that people agree with, filled up with labelled ones."""
    optimizer = BootstrapFewShot(
        metric=search.metric,
        max_bootstrapped_demos=search.budget.bootstrapped,
        max_labeled_demos=0,  # filled up below: DSPy's labelled demos reach only roles whose outputs are columns
        max_errors=len(search.train.examples) + 1,
    )
    examples = list(search.train.examples)
    random.Random(seed).shuffle(examples)
    student: Student = optimizer.compile(search.student, teacher=search.teacher, trainset=examples)
    showable_demos(student.program)
    rng = random.Random(seed)
    for name, predictor in student.named_parameters():
        demos = search.train.demos.get(name, [])
        room = max(0, demo_count(name, demos, search.budget) - len(predictor.demos))
        predictor.demos = [*predictor.demos, *(demos[i].demo for i in choose_demos(demos, room, "spread", rng))]
    return student


BOOTSTRAP = Recipe(
    name="bootstrap",
    run=lambda search: [Candidate.of("bootstrap", bootstrap(search, search.seed))],
    bound=lambda budget, sizes: Bound(sizes.train),
    takes_teacher=True,
    runs_whole_program=True,
)


def _mipro(search: Search) -> list[Candidate]:
    """Return candidates with MIPROv2's instructions, beside the same labelled demos each.

    The demos are set before: those that DSPy takes from a trainset reach only roles whose outputs are columns.
    """
    optimizer = MIPROv2(
        metric=search.metric, prompt_model=search.reflection, task_model=search.student.get_lm(), auto=None,
        num_candidates=search.budget.candidates, num_threads=search.workers, seed=search.seed + 1,
        max_bootstrapped_demos=0, max_labeled_demos=0, max_errors=ALL_ERRORS,
    )  # fmt: skip
    train = scored_examples(search.train.examples, search.budget.search_samples, search.seed)
    final = optimizer.compile(
        _with_labelled_demos(search), trainset=train, valset=search.scored, num_trials=search.budget.trials,
        minibatch=False,
    )  # fmt: skip
    return search.complete_candidates(final)


def _mipro_bound(budget: RecipeSettings, sizes: Sizes) -> Bound:
    scored, trials = min(budget.search_samples, sizes.validation), budget.trials + 1
    # The model that writes is shown answers that people agree with, gathered anew for all instructions but one.
    gathered = (budget.candidates - 1) * min(budget.search_samples, sizes.train)
    # DSPy 3.4: a summary of the data and the program, and instructions for each predictor.
    reflections = 2 * (12 + 3 * budget.candidates * sizes.predictors)
    return Bound(trials * scored + gathered, reflections, trials)


MIPRO = Recipe(name="mipro", run=_mipro, bound=_mipro_bound, reflects=True)


def _gepa(search: Search) -> list[Candidate]:
    optimizer = GEPA(
        metric=search.metric_with_feedback, max_metric_calls=search.budget.metric_calls,
        reflection_minibatch_size=search.budget.minibatch, reflection_lm=search.reflection,
        num_threads=search.workers, seed=search.seed,
        log_dir=None,  # its state would be a pickle: none is written, and none read
        warn_on_score_mismatch=False,
    )  # fmt: skip
    train = scored_examples(search.train.examples, None, search.seed)
    final = optimizer.compile(search.student, trainset=train, valset=search.scored)
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


def _random_search(search: Search) -> list[Candidate]:
    """Return candidates bootstrapped from the training samples in several orders, the best on validation first."""
    scored = scored_examples(search.validation.examples, search.budget.search_samples, search.seed)
    candidates: dict[str, Candidate] = {}
    for number in range(search.budget.starts):
        student = bootstrap(search, search.seed + number)
        digest = student.digest()
        if digest not in candidates:
            score = search.score_on(student, scored)
            candidates[digest] = Candidate.of(f"random-search/{number}", student, score)
            search.log(candidates[digest])
    return sorted(candidates.values(), key=lambda candidate: -(candidate.search_score or 0.0))


def _random_bound(budget: RecipeSettings, sizes: Sizes) -> Bound:
    scored = min(budget.search_samples, sizes.validation)
    return Bound(budget.starts * (sizes.train + scored), candidates=budget.starts)


RANDOM_SEARCH = Recipe(
    name="random-search",
    run=_random_search,
    bound=_random_bound,
    takes_teacher=True,
    runs_whole_program=True,
)
