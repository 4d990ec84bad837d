"""What a compile teaches: the embedded expert or a language model, and what follows for recipes, plan and advice."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from program.agent.resources import ROLES, Role
from program.lms.traits import ModelTraits

MOST_ASKED = 150
"""Training samples that a model is asked about anew where a call costs: two numbers and a map need no more."""


@dataclass(frozen=True, kw_only=True)
class Learner:
    """One of the two kinds."""

    takes: frozenset[str]
    """What of `Recipe.teaches` it can be taught, and "correction" where it measures what a fit corrects."""
    roles: tuple[Role, ...]
    """Those that are optimized where none are named."""
    is_paid: bool
    seconds_per_call: float
    """Measured of the expert, on one core; assumed of a model."""
    most_asked: int | None
    """Training samples that it is asked about anew for a fit; None for all."""
    untried: Mapping[str, str | None]
    """Recipes that are worth a trial, with the task that they learn from (None: any)."""
    beyond: str
    """What else is."""


EXPERT = Learner(
    takes=frozenset({"nothing", "rubric", "fusion", "evidence", "correction"}),
    roles=("summarizer",), is_paid=False, seconds_per_call=0.005, most_asked=None,
    untried={"finetune,fusion": "scoring", "rubric": "scoring", "nearest": "mcq"},
    beyond="a language model: --lm PROVIDER/MODEL",
)  # fmt: skip
LANGUAGE_MODEL = Learner(
    takes=frozenset({"nothing", "demos", "instructions", "rubric", "fusion", "evidence"}),
    roles=ROLES, is_paid=True, seconds_per_call=2.0, most_asked=MOST_ASKED,
    untried=dict.fromkeys(("nearest,fusion", "rubric,gepa", "random-search", "bootstrap")),
    beyond="demos of a stronger model: --teacher-lm MODEL",
)  # fmt: skip


def learner_of(models: Iterable[ModelTraits]) -> Learner:
    """Return what models are taught as: they are the expert where each of them is."""
    return EXPERT if all(traits.embedded for traits in models) else LANGUAGE_MODEL
