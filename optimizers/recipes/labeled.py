"""One set of labelled demos, spread over the labels."""

import random

from optimizers.demos import choose_demos, demo_count, with_demos
from optimizers.recipes import Bound, Recipe
from optimizers.search import Candidate, Search


def _run(search: Search) -> list[Candidate]:
    demos = {name: search.train.demos[name] for name in search.student.names if search.train.demos.get(name)}
    rng = random.Random(search.seed)
    places = {n: choose_demos(ds, demo_count(n, ds, search.budget), "spread", rng) for n, ds in demos.items()}
    return [Candidate.of("labeled", with_demos(search.student, demos, places))]


RECIPE = Recipe(name="labeled", run=_run, bound=lambda budget, sizes: Bound(0))
