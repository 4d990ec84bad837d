"""Where an image stands among natural photographs, property by property: 0 is least, 0.5 the middle, 1 most.

Questions ask "is it clear?" or "how bright is it?", and people answer them against the photographs they know. So each
property is a small sum of what was measured, read against its quantiles over `population.json`: the train
photographs of LIVE In the Wild, without their scores (`python -m benchmarks.training.train` writes it).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from program.expert.judge.views import View
from program.expert.store import POPULATION_FILE, stored_table

__all__ = ("COMPOSITES", "PROPERTIES", "composite", "population", "position", "probit", "reading")

_EDGE = 0.02
"""Positions stay this far from 0 and 1 when they are added up: an odd image must not outvote everything else."""

PROPERTIES: Mapping[str, Mapping[str, float]] = stored_table("words.yaml")["properties"]
"""What is read straight from one measurement, and what each adds up."""
COMPOSITES: Mapping[str, Mapping[str, float]] = stored_table("words.yaml")["composites"]
"""What questions ask after, and the properties whose positions each adds up."""


def probit(share: float) -> float:
    """Return the normal deviate of a position, kept within that of 0.02 and 0.98."""
    return float(special.ndtri(min(max(share, _EDGE), 1 - _EDGE)))


def population() -> Mapping[str, Sequence[float]]:
    """Return each property's values at 0, 5 .. 100 per cent of natural photographs, from the shipped file."""
    return dict(stored_table(POPULATION_FILE)["quantiles"])


def placed(value: float, quantiles: Sequence[float]) -> float:
    """Return the share of the population below a value; in a run of equal quantiles its middle.

    >>> placed(2.0, [0.0, 0.0, 0.0, 2.0, 4.0]), placed(0.0, [0.0, 0.0, 0.0, 2.0, 4.0])
    (0.75, 0.25)
    """
    at = np.linspace(0, 1, len(quantiles))
    spread = np.asarray(quantiles, dtype=float)
    equal = spread == value
    return float(at[equal].mean() if equal.any() else np.interp(value, spread, at))


def reading(view: View, name: str) -> float:
    """Return one of `PROPERTIES` of an image."""
    known: Mapping[Any, float] = {"quality": view.prior.mean, **view.severities}
    return sum(w * (known[of] if of in known else view.measured[of]) for of, w in PROPERTIES[name].items())


def composite(view: View, name: str, quantiles: Mapping[str, Sequence[float]]) -> float:
    """Return a composite's sum of normal deviates, before it is placed."""
    return sum(w * probit(placed(reading(view, p), quantiles[p])) for p, w in COMPOSITES[name].items())


def position(view: View, name: str) -> float:
    """Return where an image stands among natural photographs in one of `COMPOSITES`: 0 .. 1."""
    known = population()
    return placed(composite(view, name, known), known[f"sum of {name}"])
