"""One short factory per optimizer: each turns a program and taught examples into candidate programs."""

import contextlib
import io
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import dspy
from dspy.teleprompt import BootstrapFewShot, BootstrapFewShotWithRandomSearch, LabeledFewShot

from optimizers.objectives import agreement
from program.agent import AgenticIQA
from program.errors import InputError, did_you_mean
from program.settings import CompileSettings

__all__ = ("OPTIMIZERS", "Candidate", "Recipe", "candidates", "check_optimizer", "without_unusable_demos")

logger = logging.getLogger(__name__)

Objective = Callable[..., float | bool]


@dataclass(frozen=True)
class Candidate:
    """A proposed program, and its mean objective on the validation samples (0..100) if it was searched."""

    name: str
    program: AgenticIQA
    search_score: float | None = None


class Recipe(Protocol):
    """Propose candidates, best first. The given program is not changed."""

    def __call__(
        self,
        program: AgenticIQA,
        train: Sequence[dspy.Example],
        validation: Sequence[dspy.Example],
        *,
        objective: Objective,
        settings: CompileSettings,
        seed: int,
    ) -> list[Candidate]:
        """Return the candidates for taught training examples and plain validation examples."""
        ...


def _none(program: AgenticIQA, *_: Any, **__: Any) -> list[Candidate]:
    return []


def _labeled(
    program: AgenticIQA, train: Sequence[dspy.Example], validation: Sequence[dspy.Example], *,
    objective: Objective, settings: CompileSettings, seed: int,
) -> list[Candidate]:  # fmt: skip
    compiled = LabeledFewShot(k=settings.max_labeled_demos).compile(program, trainset=list(train))
    return [Candidate("labeled", compiled)]


def _bootstrap(
    program: AgenticIQA, train: Sequence[dspy.Example], validation: Sequence[dspy.Example], *,
    objective: Objective, settings: CompileSettings, seed: int,
) -> list[Candidate]:  # fmt: skip
    optimizer = BootstrapFewShot(
        metric=objective,
        max_bootstrapped_demos=settings.max_bootstrapped_demos,
        max_labeled_demos=settings.max_labeled_demos,
        max_errors=len(train) + 1,
    )
    return [Candidate("bootstrap", optimizer.compile(program, trainset=list(train)))]


def _random_search(
    program: AgenticIQA, train: Sequence[dspy.Example], validation: Sequence[dspy.Example], *,
    objective: Objective, settings: CompileSettings, seed: int,
) -> list[Candidate]:  # fmt: skip
    optimizer = BootstrapFewShotWithRandomSearch(
        metric=objective,
        max_bootstrapped_demos=settings.max_bootstrapped_demos,
        max_labeled_demos=settings.max_labeled_demos,
        num_candidate_programs=settings.candidate_programs,
        num_threads=settings.workers,
        # The default of ten loses every result of a search; failed samples score 0 instead.
        max_errors=len(train) + len(validation) + 1,
    )
    best = optimizer.compile(program, trainset=list(train), valset=list(validation))
    return [
        Candidate(f"random-search/{entry['seed']}", entry["program"], float(entry["score"]))
        for entry in best.candidate_programs
        if entry["seed"] != -3  # the uncompiled program, which is always ranked with them
    ]


OPTIMIZERS: dict[str, Recipe] = {
    "none": _none,
    "labeled": _labeled,
    "bootstrap": _bootstrap,
    "random-search": _random_search,
}


def check_optimizer(name: str) -> None:
    """Raise InputError with the closest known name for an unknown optimizer."""
    if name not in OPTIMIZERS:
        raise InputError(f"optimizer {name!r}: unknown{did_you_mean(name, OPTIMIZERS)}")


def candidates(
    name: str,
    program: AgenticIQA,
    train: Sequence[dspy.Example],
    validation: Sequence[dspy.Example],
    *,
    settings: CompileSettings,
    seed: int,
    advance: Callable[[], None],
) -> list[Candidate]:
    """Run the named optimizer and return its candidates, best first, with only the demos that can be shown.

    `advance` is called after each program run. Raises InputError for an unknown name or too few examples.
    """
    check_optimizer(name)
    if name != "none" and len(train) < 2:
        raise InputError(f"optimizer {name!r}: {len(train)} training sample(s); give at least 2 in the split 'train'")

    def objective(example: dspy.Example, prediction: Any, trace: Any = None) -> float | bool:
        advance()
        return agreement(example, prediction, trace)

    ordered = sorted(train, key=lambda e: e.id)
    # Optimizers take the first examples first: without a shuffle those of one kind would fill every demo set.
    random.Random(seed).shuffle(ordered)
    spoken = io.StringIO()
    # DSPy's optimizers print their progress; it belongs to the log, not between the lines of a table or of JSON.
    with contextlib.redirect_stdout(spoken):
        proposed = OPTIMIZERS[name](program, ordered, validation, objective=objective, settings=settings, seed=seed)
    logger.debug("%s: %s", name, spoken.getvalue())
    for candidate in proposed:
        without_unusable_demos(candidate.program)
    return proposed


def without_unusable_demos(program: AgenticIQA) -> None:
    """Drop, in place, demos that do not answer their predictor's question, and fields the question does not have."""
    for predictor in program.predictors():
        fields = predictor.signature.fields
        predictor.demos = [
            dspy.Example(**{name: demo[name] for name in demo if name in fields and demo[name] is not None})
            for demo in predictor.demos
            if all(demo.get(name) is not None for name in predictor.signature.output_fields)
            and ("image" not in predictor.signature.input_fields or demo.get("image") is not None)
        ]
