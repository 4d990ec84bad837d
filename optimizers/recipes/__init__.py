"""Optimizers: what each needs, the most it may ask, and how it runs.

A new one is a file in this folder that holds a `Recipe`; `--optimizer` with its name then runs it, on a budget
under that name in configs/optimizers.yaml.
"""

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from optimizers.learner import Learner
from optimizers.search import Candidate, Search
from program.common import load_offers, offers
from program.common.errors import InputError, did_you_mean
from program.common.settings import RecipeSettings


@dataclass(frozen=True)
class Sizes:
    """Samples of train and validation that a compile draws, predictors that it optimizes, whether calls are free."""

    train: int
    validation: int
    predictors: int
    free: bool


@dataclass(frozen=True)
class Bound:
    """The most that a recipe can need."""

    runs: int
    reflections: int = 0
    candidates: int = 1
    asked: int = 0
    """Of the runs of a recipe of evidence, those that ask the model; all of them in the other recipes."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One optimizer."""

    name: str
    run: Callable[[Search], list[Candidate]]
    """Proposes candidates, best first; the search's student is not changed."""
    bound: Callable[[RecipeSettings, Sizes], Bound] = lambda budget, sizes: Bound(0)
    """What the printed plan says."""
    reflects: bool = False
    """Asks a language model for instructions; then `Search.reflection` is one."""
    scales: tuple[str, ...] = ()
    """What of its budget gives way where few model calls are allowed, down to the least that the settings take."""
    teaches: Literal["nothing", "demos", "instructions", "rubric", "fusion", "evidence"] = "demos"
    """What it changes before all; evidence costs the calls of `Bound.asked` alone."""
    fits_scores: bool = False
    """Fits human scores: only scored samples count, and the default leaves it out where they are few."""
    takes_all: Literal["scores", "answers"] | None = None
    """Labels of which it learns from every one, without a run of the program; else the settings say from how many."""
    expert_only: bool = False
    """Corrects what the embedded expert measures."""
    bootstraps: bool = False
    """Makes demos of the answers of the whole program, whose roles are all run again, or of a teacher's."""
    least: int = 2
    """Training samples that it needs."""
    least_validation: int = 0
    """Scoring samples of validation that it needs."""

    def check(self, roles: Sequence[str], learner: Learner, *, reflection: Callable[[], object | None]) -> None:
        """Raise InputError where it cannot teach these roles, or lacks what it needs on this machine.

        `reflection` gives the model that writes.
        """
        if "summarizer" not in roles and self.teaches in {"rubric", "fusion", "evidence"}:
            raise InputError(f"optimizer {self.name!r}: changes the Summarizer alone; give it with --roles, too")
        if self.teaches not in learner.takes:
            raise InputError(
                f"optimizer {self.name!r}: gives demos or instructions, of which the embedded expert reads a rubric "
                "only; use rubric or finetune,fusion (nearest for questions), or give a language model with --lm"
            )
        if self.expert_only and "correction" not in learner.takes:
            raise InputError(
                f"optimizer {self.name!r}: corrects the embedded expert alone; use nearest for a language model"
            )
        if self.reflects and reflection() is None:
            raise InputError(
                f"optimizer {self.name!r}: needs a language model that writes instructions; "
                "give --reflection-lm PROVIDER/MODEL"
            )

    def check_data(self, train: int, validation: int) -> None:
        """Raise InputError where it would find too few samples."""
        if train < self.least:
            raise InputError(
                f"optimizer {self.name!r}: {train} training sample(s); give at least {self.least} in the split 'train'"
            )
        if validation < self.least_validation:
            raise InputError(
                f"optimizer {self.name!r}: {validation} scored validation sample(s); "
                f"give at least {self.least_validation}"
            )


def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes, other packages' included, in alphabetical order."""
    return tuple(sorted({*_ours(), *offers("optimizers")}))


def recipe_named(name: str) -> Recipe:
    """Return a recipe; InputError for an unknown name."""
    if name not in recipe_names():
        raise InputError(f"optimizer {name!r}: unknown{did_you_mean(name, recipe_names())}")
    recipe = _ours().get(name) or load_offers("optimizers", _checked).get(name)
    if recipe is None:
        raise InputError(f"optimizer {name!r}: cannot be used; update or uninstall the package that offers it")
    return recipe


def _checked(name: str, recipe: object) -> Recipe:
    if not isinstance(recipe, Recipe) or recipe.name != name:
        raise TypeError(f"is no Recipe named {name!r}")
    return recipe


def _ours() -> dict[str, Recipe]:
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {each.name: each for module in modules for each in vars(module).values() if isinstance(each, Recipe)}
