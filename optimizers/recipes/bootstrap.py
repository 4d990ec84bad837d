"""Demos from answers of the program, or of a teacher, that people agree with; filled up with labelled ones."""

import random

from dspy.teleprompt import BootstrapFewShot

from optimizers.demos import choose_demos, demo_count, showable_demos
from optimizers.recipes import Bound, Recipe
from optimizers.search import Candidate, Search
from optimizers.student import Student


def bootstrapped(search: Search) -> Student:
    """Return the student with such demos."""
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


RECIPE = Recipe(
    name="bootstrap",
    run=lambda search: [Candidate.of("bootstrap", bootstrapped(search))],
    bound=lambda budget, sizes: Bound(sizes.train),
    takes_teacher=True,
    runs_whole_program=True,
)
