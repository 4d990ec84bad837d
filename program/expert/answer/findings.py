"""Distortions as findings: category, severity word, and a sentence that quotes the measurement and says where."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from program.expert.answer.phrases import Phrases, capitalised
from program.expert.judge.model import CAUSES, UNDISTORTED
from program.expert.judge.views import View
from program.expert.measure.measurement import Measurement
from program.expert.store import Matrix
from signatures.schemas import GLOBAL, DistortionCategory, Severity

__all__ = (
    "POOR", "PRESENT", "STEPS", "describe", "findings", "is_changed", "item", "named", "present", "reported",
    "severity_word", "undetailed", "where",
)  # fmt: skip

PRESENT = 0.8
"""Severity from which a distortion is there: between imperceptible (0.1) and slightly annoying (1.1)."""
POOR = 2.5
"""Quality below which something is wrong with an image."""
_LIMITS = {
    False: np.array([0.9, 0.9, 0.7, 0.7, 0.9, 0.7, 0.45]),
    True: np.array([0.75, 0.8, 0.8, 0.75, 0.8, 0.8, 0.45]),
}
"""Severity from which each category (in their order) is reported, without a reference and with one: by F1 on distorted
CLIVE train photographs out of fold. What became of the contrast is hard to tell from the image alone."""
STEPS: tuple[tuple[float, Severity], ...] = ((0.45, "none"), (1.0, "slight"), (1.9, "moderate"), (2.8, "severe"))
"""Severities below which each word stands; from the last on it is extreme."""
SAME = UNDISTORTED - STEPS[0][0]
"""Quality beside a reference from which no difference can be seen."""
_EVEN, _PLACED = 0.08, 0.35
"""Deviation over the cells, relative to their mean, up to which they are alike, and from which one stands out."""
_DARK, _BRIGHT = 0.3, 0.7
"""Mean brightness at which what is wrong with the light is plain."""
_NOTHING = 0.005
"""Highest mean of a cell (of a share, or in grey levels) that is called nothing."""
_MAPS: Mapping[DistortionCategory, tuple[str, bool]] = {
    "Blurs": ("detail", True), "Noise": ("noise", False), "Compression": ("blocking", False),
    "Brightness change": ("brightness", False), "Color distortions": ("saturation", False),
    "Sharpness": ("sharpness", False), "Contrast": ("contrast", True),
}  # fmt: skip
"""The map that shows where a category is, and whether its lowest values do."""
_CHANGE_MAPS: Mapping[DistortionCategory, str] = {
    "Noise": "residual", "Brightness change": "shift", "Color distortions": "colour",
}  # fmt: skip
"""The map of changes that shows a category; "difference" shows the others."""


def severity_word(severity: float) -> Severity:
    """Return none, slight, moderate, severe or extreme for a severity (4.6 minus the mean human score).

    >>> severity_word(0.2), severity_word(2.0)
    ('none', 'severe')
    """
    return next((word for bound, word in STEPS if severity < bound), "extreme")


def reported(severities: Matrix, *, paired: bool) -> NDArray[np.bool_]:
    """Say which of the seven categories (last axis) are reported, of an image alone or beside its reference."""
    return np.asarray(severities >= _LIMITS[paired])


def present(view: View) -> list[DistortionCategory]:
    """Return the categories that are there, strongest first; of a poor or changed image at least what is likeliest."""
    there = reported(np.array(list(view.severities.values())), paired=view.difference is not None)
    categories = [category for category, is_there in zip(view.severities, there, strict=True) if is_there]
    unexplained = view.own_quality < POOR if view.difference is None else is_changed(view) and view.displaced < PRESENT
    if not categories and unexplained:
        likeliest = max(view.severities, key=lambda category: view.severities[category])
        return [likeliest] if severity_word(view.severities[likeliest]) != "none" else []
    return sorted(categories, key=lambda category: -view.severities[category])


def is_changed(view: View) -> bool:
    """Say whether an image can be told from its reference."""
    return view.prior.mean < SAME


def findings(view: View, region: str, categories: Sequence[DistortionCategory], say: Phrases) -> list[dict[str, str]]:
    """Return a finding for each category."""
    return [
        {
            "region": region or GLOBAL, "type": category, "severity": severity_word(view.severities[category]),
            "explanation": describe(view, category, say),
        }
        for category in categories
    ]  # fmt: skip


def where(cells: Sequence[Sequence[float]] | Matrix, say: Phrases, *, lowest: bool = False) -> str:
    """Return the place of the strongest (or weakest) of 3 x 3 cells, or "all over" when they hardly differ."""
    values = np.array(cells, dtype=float)
    if float(values.std()) / (abs(float(values.mean())) + 1e-6) < _EVEN:
        return say("place.everywhere")
    return say("place.strongest", cell=say(f"cell.{int(values.argmin() if lowest else values.argmax())}"))


def undetailed(view: View, say: Phrases) -> str:
    """Say why nothing can be said of an image's sharpness, or return ""."""
    return say(f"sentence.{view.unjudged}", width=view.size[0], height=view.size[1]) if view.unjudged else ""


def describe(view: View, category: DistortionCategory, say: Phrases) -> str:
    """Say in one sentence what was measured for a category, and where."""
    if category in {"Blurs", "Sharpness"} and view.unjudged:
        return undetailed(view, say)
    there = "none" if severity_word(view.severities[category]) == "none" else "some"
    opening = say(f"opening.{there}", **_words(view, category, say))
    if view.difference is not None:
        return _against_reference(view, view.difference, category, opening, say)
    n, place = view.measured, _place(view, category, say)
    return say(
        f"alone.{category}", opening=capitalised(opening), n=n, place=place, noise=np.expm1(n["noise_p20"]),
        ratio=np.exp(n["blocking"]), mean=255 * n["brightness"], edges=np.expm1(n["edge1_p99"]),
    )  # fmt: skip


def item(view: View, category: DistortionCategory, say: Phrases) -> str:
    """Name a distortion that is there in few words: how strong, of what kind and, where that shows, at which place."""
    words = _words(view, category, say)
    if view.difference is None and category not in {"Noise", "Compression"}:
        return say("item.plain", **words)  # the picture itself differs from place to place
    cells = np.abs(_cells(view, category))
    deviation = float(cells.std()) / (float(cells.mean()) + 1e-6)
    if deviation < _EVEN:
        return say("item.everywhere", **words)
    return say("item.there" if deviation > _PLACED else "item.plain", **words, cell=say(f"cell.{int(cells.argmax())}"))


def named(view: View, category: DistortionCategory) -> str:
    """Return what a blur or a change of brightness comes from, where that is plain, or else the category."""
    if view.difference is not None:
        return category
    causes = (cause for cause, of in CAUSES.items() if of == category and view.cause(cause) >= PRESENT)
    brightness = view.measured["brightness"]
    if category == "Brightness change" and not _DARK < brightness < _BRIGHT:
        return "underexposure" if brightness <= _DARK else "overexposure"
    return max(causes, key=view.cause, default=category)


def _words(view: View, category: DistortionCategory, say: Phrases) -> dict[str, str]:
    """Return how strong a distortion is, and what it is called."""
    severity = say(f"severity.{severity_word(view.severities[category])}")
    kind = "damage" if view.difference is None else "change"
    return {"severity": severity, "name": say(f"{kind}.{named(view, category)}")}


def _cells(view: View, category: DistortionCategory) -> Matrix:
    """Return the 3 x 3 map that shows a category: of the changes, where there is a reference."""
    if view.difference is not None:
        return np.asarray(view.difference.maps[_CHANGE_MAPS.get(category, "difference")], dtype=float)
    return np.asarray(view.measured.maps[_MAPS[category][0]], dtype=float)


def _place(view: View, category: DistortionCategory, say: Phrases) -> str:
    """Say where a category is strongest; of colours also that they are even, or that there are none."""
    (key, lowest), cells = _MAPS[category], _cells(view, category)
    # A dark image is worst where it is darkest.
    lowest = lowest or (category == "Brightness change" and view.measured["brightness"] < 0.45)
    place = where(cells, say, lowest=lowest)
    if category != "Color distortions":
        return place
    spread = "none" if cells.max() < _NOTHING else "even" if place == say("place.everywhere") else "uneven"
    return say(f"spread.{spread}", name=say(f"map.{key}"), place=place)


def _against_reference(view: View, d: Measurement, category: DistortionCategory, opening: str, say: Phrases) -> str:
    change = say(
        f"against.{category}", d=d, gain=4.343 * d["detail_gain"], noise=np.expm1(d["residual_quiet"]),
        rise=100 * np.expm1(max(d["blocking_rise"], 0)), shift=255 * d["brightness_shift"],
        colour=np.expm1(d["colour_shift"]), contrast=np.exp(d["contrast_change"]),
    )  # fmt: skip
    place = where(np.abs(_cells(view, category)), say)
    return say("against.reference", opening=opening, change=change, place=place)
