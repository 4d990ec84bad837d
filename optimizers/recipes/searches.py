"""No candidate, labelled demos, DSPy's own optimizers (bootstrapped demos, MIPROv2, GEPA), and random search.

Random search is over sets of demos: varied starts, then the best one changed a little, and a little less each time. It
is scored on the training samples whose photograph no demo of the candidate shows, so the validation samples stay fresh
for choosing. Where most samples share their photographs, too few would be left, and the validation samples score
instead. What a set says of the other training images can be worked out for a model that weighs its demos, without
asking it: the first start, and every fifth, is the best of thousands of sets by that, where images come all with a
reference or all without.
"""

import math
import random

from dspy.teleprompt import GEPA, BootstrapFewShot, MIPROv2

from optimizers.demos import STRATEGIES, Places, choose_demos, demo_count, image_url, showable_demos, with_demos
from optimizers.recipes import Bound, Recipe, Sizes
from optimizers.search import ALL_ERRORS, Candidate, Search, scored_examples
from optimizers.student import Student
from program.common.settings import RecipeSettings
from program.expert import Viewer, telling_demos
from program.lms.traits import known_traits

NONE = Recipe(
    name="none", run=lambda search: [], bound=lambda budget, sizes: Bound(0, candidates=0), least=lambda budget: 0
)


def _with_labelled_demos(search: Search) -> Student:
    demos = {name: search.train.demos[name] for name in search.student.names if search.train.demos.get(name)}
    rng = random.Random(search.seed)
    places = {n: choose_demos(ds, demo_count(n, ds, search.budget), "spread", rng) for n, ds in demos.items()}
    return with_demos(search.student, demos, places)


def _labeled(search: Search) -> list[Candidate]:
    return [Candidate.of("labeled", _with_labelled_demos(search))]


LABELED = Recipe(name="labeled", run=_labeled, bound=lambda budget, sizes: Bound(0))


def bootstrap(search: Search) -> Student:
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
    run=lambda search: [Candidate.of("bootstrap", bootstrap(search))],
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


_MOST = 1000
"""Labelled demos among which the most telling ones are looked for, drawn at random: memory grows with their square."""


class _DemoSearch:
    """One seeded search; `run` returns every distinct candidate, best first."""

    def __init__(self, search: Search) -> None:
        self._search, train, budget = search, search.train, search.budget
        self._demos = {name: train.demos[name] for name in search.student.names if train.demos.get(name)}
        self._counts = {name: demo_count(name, demos, budget) for name, demos in self._demos.items()}
        self._rng = random.Random(search.seed)
        self._groups = {example.image.url: example.group for example in train.examples}
        fresh = not train.shares_content and len(train.examples) >= 2 * max(self._counts.values(), default=0) + 10
        pool = list(train.examples if fresh else search.validation.examples)
        self._rng.shuffle(pool)
        self._pool = pool[: budget.search_samples]
        self._tried: dict[str, tuple[Candidate, float, Places]] = {}
        """By digest: a candidate, its score, and its demos where they were chosen here."""

    def run(self) -> list[Candidate]:
        """Return the candidates, a bootstrapped one among them if the budget has demos for it."""
        search, budget = self._search, self._search.budget
        if budget.bootstrapped:
            self._try("given/0", {}, bootstrap(search))
        works_out = known_traits(search.student.get_lm()).weighs_demos and not search.train.shares_content
        strategies = ("telling", *STRATEGIES) if works_out else STRATEGIES
        for number in range(budget.starts):
            strategy = strategies[number % len(strategies)]
            self._try(f"{strategy}/{number}", {name: self._start(name, strategy) for name in self._demos})
        if budget.all_demos and not search.train.shares_content:
            # Many demos of few photographs teach the photographs. No training sample is left to score this set on, so
            # it is compared on the validation samples whatever happens.
            every = {name: tuple(range(len(demos))) for name, demos in self._demos.items()}
            candidate = Candidate.of("random-search/all", with_demos(search.student, self._demos, every))
            self._tried.setdefault(candidate.digest, (candidate, math.inf, {}))
        for step in range(budget.steps):
            chosen = [(score, places) for _, score, places in self._tried.values() if places]
            if not chosen:
                break
            best = max(chosen, key=lambda pair: pair[0])[1]
            self._try(f"changed/{step}", self._changed(best, step))
        return [candidate for candidate, _, _ in sorted(self._tried.values(), key=lambda tried: -tried[1])]

    def _start(self, name: str, strategy: str) -> tuple[int, ...]:
        demos, count = self._demos[name], self._counts[name]
        if strategy != "telling":
            return choose_demos(demos, count, strategy, self._rng)
        of_one_kind = len({demo.demo.get("reference") is None for demo in demos}) == 1
        if isinstance(demos[0].value, str) or count >= len(demos) or not of_one_kind:
            return choose_demos(demos, count, "random", self._rng)
        places = self._rng.sample(range(len(demos)), min(max(_MOST, 2 * count), len(demos)))
        viewer = Viewer(self._search.base.program.resources.settings.kept_dir)
        drawn = [demos[i] for i in places]
        labelled = [(viewer.view(d.demo.image, d.demo.get("reference")), float(d.value)) for d in drawn]
        instructions = dict(self._search.student.named_parameters())[name].signature.instructions
        return tuple(places[i] for i in telling_demos(labelled, count, self._rng.randrange(2**32), instructions))

    def _try(self, name: str, places: Places, student: Student | None = None) -> None:
        student = student or with_demos(self._search.student, self._demos, places)
        digest = student.digest()
        if digest not in self._tried:
            score = self._score(student)
            candidate = Candidate.of(f"random-search/{name}", student, score)
            self._tried[digest] = candidate, score, places
            self._search.log(candidate)

    def _changed(self, places: Places, step: int) -> Places:
        """Return a set with some demos of one predictor exchanged: a quarter of them at first, one in the end."""
        movable = [n for n, demos in self._demos.items() if 0 < len(places[n]) < len(demos)]
        if not movable:
            return places
        name = self._rng.choice(movable)
        same, spare = list(places[name]), [i for i in range(len(self._demos[name])) if i not in places[name]]
        left = 1 - step / max(1, self._search.budget.steps)
        count = min(max(1, round(len(same) / 4 * left)), len(spare))
        for place, other in zip(self._rng.sample(range(len(same)), count), self._rng.sample(spare, count), strict=True):
            same[place] = other
        return {**places, name: tuple(same)}

    def _score(self, student: Student) -> float:
        urls = {image_url(demo) for _, predictor in student.named_parameters() for demo in predictor.demos}
        photographs = {group for url, group in self._groups.items() if url in urls}
        examples = [example for example in self._pool if example.group not in photographs]
        return self._search.score_on(student, examples)


def _random_bound(budget: RecipeSettings, sizes: Sizes) -> Bound:
    tried = budget.starts + budget.steps
    bootstrapping = sizes.train if budget.bootstrapped else 0
    scored = min(budget.search_samples, max(sizes.train, sizes.validation))
    return Bound(bootstrapping + (tried + bool(bootstrapping)) * scored, candidates=tried + 1 + budget.all_demos)


RANDOM_SEARCH = Recipe(
    name="random-search", run=lambda search: _DemoSearch(search).run(), bound=_random_bound, takes_teacher=True
)
