"""One short factory per optimizer: each turns a bench (student, lessons, means) into candidate programs."""

import contextlib
import io
import logging
import random
from collections.abc import Callable, Sequence
from importlib.util import find_spec

import dspy
from dspy.teleprompt import BootstrapFewShot

from optimizers.bench import Bench, Candidate
from optimizers.lessons import as_references
from optimizers.reflecting import copro, gepa, mipro, simba
from optimizers.search import DemoSearch, Found, chosen_lessons, size_of, with_demos
from optimizers.taught import TaughtProgram
from program.agent import AgenticIQA
from program.errors import InputError, did_you_mean
from program.settings import RecipeSettings

__all__ = (
    "OPTIMIZERS",
    "REFLECTING",
    "TEACHABLE",
    "Recipe",
    "candidates",
    "check_data",
    "check_recipe",
    "enough_for_fusion",
    "usable_demos",
)

logger = logging.getLogger(__name__)

Recipe = Callable[[Bench], list[Candidate]]
"""Proposes candidates, best first; the bench's student is not changed."""


def _none(bench: Bench) -> list[Candidate]:
    return []


def _labeled(bench: Bench) -> list[Candidate]:
    lessons = {name: bench.course.lessons[name] for name in bench.student.names if bench.course.lessons.get(name)}
    rng = random.Random(bench.seed)
    chosen = {n: chosen_lessons(ls, size_of(n, ls, bench.budget), "spread", rng) for n, ls in lessons.items()}
    program = with_demos(bench.student, lessons, chosen)
    return [_candidate("labeled", program)]


def _bootstrap(bench: Bench) -> list[Candidate]:
    optimizer = BootstrapFewShot(
        metric=bench.metric,
        max_bootstrapped_demos=bench.budget.bootstrapped,
        max_labeled_demos=0,  # filled up below: DSPy's labelled demos reach only roles whose outputs are columns
        max_errors=len(bench.course.examples) + 1,
    )
    examples = list(bench.course.examples)
    random.Random(bench.seed).shuffle(examples)
    program = optimizer.compile(bench.student, teacher=bench.teacher, trainset=examples)
    usable_demos(program.program)
    rng = random.Random(bench.seed)
    for name, predictor in program.named_parameters():
        lessons = bench.course.lessons.get(name, [])
        room = max(0, size_of(name, lessons, bench.budget) - len(predictor.demos))
        predictor.demos = [*predictor.demos, *(lessons[i].demo for i in chosen_lessons(lessons, room, "spread", rng))]
    return [_candidate("bootstrap", program)]


def _random_search(bench: Bench) -> list[Candidate]:
    search = DemoSearch(
        bench.student, bench.course, bench.validation, bench.ledger,
        budget=bench.budget, kind=bench.kind, seed=bench.seed, workers=bench.workers, known=bench.known,
        memory=bench.memory,
    )  # fmt: skip

    def tell(found: Found) -> None:
        bench.on_candidate(_candidate(f"random-search/{found.name}", found.program, found.score))

    begun = [c.program for c in _bootstrap(bench)] if bench.budget.bootstrapped else []
    found = search.run(tell, [TaughtProgram(p, bench.student.names, bench.student.gathered) for p in begun])
    return [_candidate(f"random-search/{f.name}", f.program, f.score) for f in found]


OPTIMIZERS: dict[str, Recipe] = {
    "none": _none,
    "labeled": _labeled,
    "bootstrap": _bootstrap,
    "random-search": _random_search,
    "mipro": mipro,
    "gepa": gepa,
    "simba": simba,
    "copro": copro,
    "fusion": _none,  # fitted on rows, not searched: see tuning.py
}

REFLECTING = ("mipro", "gepa", "simba", "copro")
"""Recipes that ask a language model for instructions."""
_FUSION = (30, 10)
"""Scored training and validation samples that a fusion needs."""
TEACHABLE = ("bootstrap", "random-search")
"""Recipes that can take demos from a teacher."""


def check_recipe(name: str, *, embedded: bool, reflection: bool, teacher: bool) -> None:
    """Raise InputError for an unknown optimizer, or for one that lacks what it needs on this machine."""
    if name not in OPTIMIZERS:
        raise InputError(f"optimizer {name!r}: unknown{did_you_mean(name, OPTIMIZERS)}")
    if name in {"gepa", "copro"} and embedded:
        raise InputError(
            f"optimizer {name!r}: rewrites instructions, which the embedded expert does not read; "
            "use random-search, or give a language model with --lm"
        )
    if name in REFLECTING and not reflection:
        raise InputError(
            f"optimizer {name!r}: needs a language model that writes instructions; give --reflection-lm PROVIDER/MODEL"
        )
    if name == "mipro" and find_spec("optuna") is None:
        raise InputError("optimizer 'mipro': needs the package optuna; install it with pip install optuna")
    if teacher and name not in TEACHABLE and name != "fusion":
        raise InputError(f"--teacher-lm: optimizer {name!r} takes no demos from a teacher; use {', '.join(TEACHABLE)}")


def check_data(name: str, budget: RecipeSettings, train: int, validation: int) -> None:
    """Raise InputError where an optimizer would find too few samples."""
    least = {"simba": budget.minibatch, "gepa": budget.minibatch, "fusion": _FUSION[0], "none": 0}.get(name, 2)
    if train < least:
        raise InputError(f"optimizer {name!r}: {train} training sample(s); give at least {least} in the split 'train'")
    if name == "fusion" and validation < _FUSION[1]:
        raise InputError(f"optimizer 'fusion': {validation} scored validation sample(s); give at least {_FUSION[1]}")


def enough_for_fusion(train: int, validation: int) -> bool:
    """Return whether so many scored samples are enough to fit a fusion and to choose it."""
    return train >= _FUSION[0] and validation >= _FUSION[1]


def candidates(name: str, bench: Bench) -> list[Candidate]:
    """Run the named optimizer and return its candidates, best first, with only the demos that can be shown."""
    spoken = io.StringIO()
    # DSPy's optimizers print their progress; it belongs to the log, not between the lines of a table or of JSON.
    with contextlib.redirect_stdout(spoken):
        proposed = OPTIMIZERS[name](bench)
    logger.debug("%s: %s", name, spoken.getvalue())
    for candidate in proposed:
        usable_demos(candidate.program)
    return proposed


def usable_demos(program: AgenticIQA) -> None:
    """Keep, in place, the demos that answer their predictor's question, images as references."""
    for predictor in program.predictors():
        predictor.lm = None
        fields = predictor.signature.fields
        shown: Sequence[dspy.Example] = [
            dspy.Example(**{n: as_references(demo[n]) for n in demo if n in fields and demo[n] is not None})
            for demo in predictor.demos
        ]
        needed = [*predictor.signature.output_fields, *(n for n in ("image",) if n in predictor.signature.input_fields)]
        predictor.demos = [demo for demo in shown if all(demo.get(name) is not None for name in needed)]


def _candidate(name: str, program: TaughtProgram, score: float | None = None) -> Candidate:
    return Candidate(name, program.program, score, program.digest())
