"""Where an image stands among natural photographs, property by property: 0 is least, 0.5 the middle, 1 most.

Questions ask "is it clear?" or "how bright is it?", and people answer them against the photographs they know. So each
property is a small named function of what was measured, read against its quantiles over `population.json`: the train
photographs of LIVE In the Wild, without their scores (`python -m program.expert.training.train` writes it).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import special

from program.expert.judge.views import View
from program.expert.store import POPULATION_FILE, stored_table
from signatures.schemas import DistortionCategory

__all__ = ("COMPOSITES", "PROPERTIES", "composite", "population", "position", "probit")

_EDGE = 0.02
"""Positions stay this far from 0 and 1 when they are added up: an odd image must not outvote everything else."""


def _named(name: str) -> Callable[[View], float]:
    return lambda view: view.measured[name]


def _severity(category: DistortionCategory) -> Callable[[View], float]:
    return lambda view: view.severities[category]


PROPERTIES: Mapping[str, Callable[[View], float]] = {
    "believed quality": lambda view: view.prior.mean,
    "detail": _named("detail_power_p90"),
    "edges": _named("edge1_p99"),
    "blur": _severity("Blurs"),
    "direction": lambda view: view.measured["reblur_direction"] + 0.1 * view.measured["spectrum_direction"],
    "brightness": _named("brightness"),
    "dark share": _named("dark_share"),
    "light share": _named("light_share"),
    "colourfulness": _named("colourfulness"),
    "saturation": _named("saturation"),
    "contrast range": _named("contrast_rms"),
    "haze": _named("haze"),
    "noise floor": _named("noise_p20"),
    "noise severity": _severity("Noise"),
    "compression severity": _severity("Compression"),
    "blocking": _named("blocking"),
    "contrast severity": _severity("Contrast"),
    "colour severity": _severity("Color distortions"),
    "brightness severity": _severity("Brightness change"),
    "oversharp severity": _severity("Sharpness"),
    "cast": _named("cast"),
    "unevenness": _named("brightness_uneven"),
    "warmth": lambda view: view.measured["cast_yellow_blue"] + 0.5 * view.measured["cast_red_green"],
}
"""What is read straight from one measurement."""

COMPOSITES: Mapping[str, Mapping[str, float]] = {
    "quality": {"believed quality": 1.0},
    "sharpness": {"believed quality": 1.0, "detail": 0.7, "edges": 0.3, "blur": -0.5},
    "brightness": {"brightness": 1.0, "dark share": -0.4},
    "lighting": {"brightness": 0.8, "dark share": -0.8, "believed quality": 0.6},
    "overexposure": {"light share": 1.0, "brightness": 0.5},
    "underexposure": {"dark share": 1.0, "brightness": -1.0},
    "colour": {"colourfulness": 1.0, "saturation": 0.3, "believed quality": 0.4},
    "saturation": {"saturation": 1.0, "colourfulness": 0.6},
    "contrast": {"contrast range": 1.0, "haze": -0.4, "believed quality": 0.3},
    "noise": {"noise severity": 1.0, "noise floor": 0.5, "believed quality": -0.4},
    "compression": {"compression severity": 1.0, "blocking": 0.5, "believed quality": -0.4},
    "cast": {"colour severity": 1.0, "cast": 0.4},
    "low contrast": {"contrast severity": 0.5, "contrast range": -1.0, "haze": 0.5},
    "oversharp": {"oversharp severity": 1.0},
    "direction": {"direction": 1.0},
    "uneven": {"unevenness": 1.0},
    "warmth": {"warmth": 1.0},
    "fidelity": {"believed quality": 1.0, "colour severity": -0.4},
}
"""What questions ask after: sums of the properties' positions, as normal deviates, placed among natural photographs
again. Believed quality counts wherever people's answers follow their liking of the picture."""


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


def composite(view: View, name: str, quantiles: Mapping[str, Sequence[float]]) -> float:
    """Return a composite's sum of normal deviates, before it is placed."""
    return sum(w * probit(placed(PROPERTIES[p](view), quantiles[p])) for p, w in COMPOSITES[name].items())


def position(view: View, name: str) -> float:
    """Return where an image stands among natural photographs in one of `COMPOSITES`: 0 .. 1."""
    known = population()
    return placed(composite(view, name, known), known[f"sum of {name}"])
