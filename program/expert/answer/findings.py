"""Distortions and properties as findings: category, severity, how much and how surely, in sentences that say where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from program.expert.answer.vocabulary import Cells, Claim, Phrases, axis_of, capitalised
from program.expert.judge.faults import MOST, faults_of, place_of, probability_of, tint_of
from program.expert.judge.quality import OUTPUTS, UNDISTORTED
from program.expert.judge.views import View, population, position, probit, share_below
from program.expert.measure.measures import Measurement
from program.expert.store import Matrix
from signatures.schemas import FAULTS, GLOBAL, SEVERITIES, DistortionCategory, Severity

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
_MADE = 0.4
"""How surely an image was distorted after it was taken ("altered", -1 .. 1) where severities say with what."""
_SEVERITY: Mapping[str, Severity] = {"slight": "slight", "moderate": "moderate", "strong": "severe"}
"""The documents' word for a photographer's strength."""
_MAPS: Mapping[DistortionCategory, str] = {"Noise": "noise", "Compression": "blocking"}
"""The map that shows where a category is in an image alone."""
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


class Found(NamedTuple):
    """What is wrong with an image: a photographer's fault, or a category of the documents where only that is known."""

    category: DistortionCategory
    severity: Severity
    fault: str = ""


def found(view: View) -> list[Found]:
    """Return what is wrong with an image, the worst first: every answer tells of these and of no others."""
    if view.unjudged is not None:
        return []
    there = reported(np.array(list(view.severities.values())), paired=view.difference is not None)
    made = [
        Found(category, severity_word(severity))
        for (category, severity), is_there in zip(view.severities.items(), there, strict=True)
        if is_there
    ]
    made = sorted(made, key=lambda each: -view.severities[each.category])
    if view.difference is not None:
        if not made and is_changed(view) and view.displaced < PRESENT:
            likeliest = max(view.severities, key=lambda category: view.severities[category])
            made = [Found(likeliest, severity_word(view.severities[likeliest]))]
        return [each for each in made if each.severity != "none"]
    named = [Found(FAULTS[fault], _SEVERITY[strength], fault) for fault, strength, _ in faults_of(view)]
    if view.seen.values[0, OUTPUTS["nr"].index("altered")] >= _MADE:
        known = {each.category for each in named}
        named = [*named, *(each for each in made if each.category not in known)]
    return named[:MOST]


def present(view: View) -> list[DistortionCategory]:
    """Return the categories of what is wrong, the worst first."""
    return list(dict.fromkeys(each.category for each in found(view)))


def is_changed(view: View) -> bool:
    """Return whether an image visibly differs from its reference."""
    return view.prior.mean < SAME


def findings(view: View, region: str, categories: Sequence[DistortionCategory], say: Phrases) -> list[dict[str, str]]:
    """Return a finding for each thing that is wrong, of the categories listed, and one of "none" where nothing is."""
    by_category = {category: [each for each in found(view) if each.category == category] for category in categories}
    return [
        {
            "region": region or GLOBAL, "type": each.category, "severity": each.severity, "fault": each.fault,
            "explanation": describe(view, each, say),
        }
        for category in categories
        for each in by_category[category] or [Found(category, "none")]
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


def describe(view: View, found: Found, say: Phrases) -> str:
    """Say in one sentence what was found of a fault or a category, and what was measured."""
    category = found.category
    if category in {"Blurs", "Sharpness"} and view.unjudged:
        return undetailed(view, say)
    if view.difference is not None:
        return _against_reference(view, view.difference, found, say)
    n = view.measured
    told = item(view, found, say) if found.severity != "none" else say("opening.none", name=say(f"damage.{category}"))
    return say(
        f"alone.{category}", opening=capitalised(told), n=n, noise=np.expm1(n["noise_p20"]),
        ratio=np.exp(n["blocking"]), mean=255 * n["brightness"], edges=np.expm1(n["edge1_p99"]),
    )  # fmt: skip


def item(view: View, found: Found, say: Phrases) -> str:
    """Name what is wrong in few words: how strong, of what kind and, where that shows, at which place."""
    if found.fault:
        words = {"strength": "strongly", "degree": "degree", "very": "very"}
        told = {name: say(f"{table}.{found.severity}") for name, table in words.items()}
        at = place_of(view, found.fault)
        cell = "" if at is None else say(f"cell.{at}")
        told |= {
            "place": say("place.cell" if cell else "place.picture", cell=cell),
            "at": say("place.at" if cell else "place.all", cell=cell),
        }
        tone = say(f"tone.{tint_of(view)}") if found.fault == "colour cast" else ""
        return " ".join(say(f"fault.{found.fault}", tone=tone, **told).split())
    words = {"severity": say(f"severity.{found.severity}"), "name": _name(view, found.category, say)}
    if view.difference is None and found.category not in {"Noise", "Compression"}:
        return say("item.plain", **words)  # the picture itself differs from place to place
    cells = np.abs(_cells(view, found.category))
    deviation = float(cells.std()) / (float(cells.mean()) + 1e-6)
    if deviation < _EVEN:
        return say("item.everywhere", **words)
    return say("item.there" if deviation > _PLACED else "item.plain", **words, cell=say(f"cell.{int(cells.argmax())}"))


def _name(view: View, category: DistortionCategory, say: Phrases) -> str:
    return say(f"{'damage' if view.difference is None else 'change'}.{category}")


def _cells(view: View, category: DistortionCategory) -> Matrix:
    """Return the 3 x 3 map that shows a category: of the changes, where there is a reference."""
    if view.difference is not None:
        return np.asarray(view.difference.maps[_CHANGE_MAPS.get(category, "difference")], dtype=float)
    return np.asarray(view.measured.maps[_MAPS[category]], dtype=float)


def _against_reference(view: View, d: Measurement, found: Found, say: Phrases) -> str:
    category, name = found.category, _name(view, found.category, say)
    opening = say(f"opening.{'none' if found.severity == 'none' else 'some'}", name=name,
                  severity=say(f"severity.{found.severity}"))  # fmt: skip
    change = say(
        f"against.{category}", d=d, gain=4.343 * d["detail_gain"], noise=np.expm1(d["residual_quiet"]),
        rise=100 * np.expm1(max(d["blocking_rise"], 0)), shift=255 * d["brightness_shift"],
        colour=np.expm1(d["colour_shift"]), contrast=np.exp(d["contrast_change"]),
    )  # fmt: skip
    place = where(np.abs(_cells(view, category)), say)
    return say("against.reference", opening=opening, change=change, place=place)


_STEP = 0.12
"""Difference in position that changes the log-odds of a claim by one."""
_SEVERITY_STEP = 0.35
_FAULT_STEP = 0.2
"""As `_STEP`, for faults that most photographs lack: there the position says less than the detector."""
TOOLS = 0.15
"""Weight of the mean tool score beside the believed quality, as the tools agree less with people: on CLIVE's validation
images the tool chosen for clarity has an SRCC of 0.11, the expert 0.66, both 0.67 at 0.1 to 0.2 and 0.61 at 0.5."""
_QUALITY_SPREAD = 0.65
"""Standard deviation of quality over natural photographs on 1..5, to read a tool's score as a position."""
_FAULTS: Mapping[str, tuple[str, ...]] = {
    "motion": ("motion blur",), "defocus": ("defocus blur",), "overexposure": ("too bright", "blown highlights"),
    "underexposure": ("too dark", "crushed shadows"), "noise": ("noise",), "cast": ("colour cast",),
    "oversharp": ("oversharpened",),
}  # fmt: skip
"""What a photographer calls the faults on an axis."""
_VERDICTS = ("disagree", "slightly", "mostly", "agree")
_SEVERELY = 0.92
"""Place of a claim from which it asks for more than a moderate fault."""


@dataclass(frozen=True)
class Look:
    """What a question is asked of: an image or some cells of it, what others found, and the tools' scores."""

    view: View
    severities: Mapping[DistortionCategory, float]
    scores: Sequence[float] = ()
    cells: Cells | None = None

    @cached_property
    def paired(self) -> bool:
        """Whether there is a reference: the differences from it then say more than any population."""
        return self.view.difference is not None

    def position(self, name: str) -> float:
        """Return the place of this look among natural photographs, 0..1, for one of `COMPOSITES`."""
        if name == "quality" and self.paired:
            whole = float(special.ndtr((self.view.prior.mean - 3.0) / _QUALITY_SPREAD))
        else:
            whole = position(self.view, name)
        if name in {"quality", "sharpness", "fidelity"} and self.scores:
            theirs = float(special.ndtr((float(np.mean(self.scores)) - 3.0) / _QUALITY_SPREAD))
            whole = (1 - TOOLS) * whole + TOOLS * theirs
        axis = axis_of(name)
        if self.cells is None or axis.gain is None:
            return whole
        here, mean = local(self.view.measured.maps[axis.map], self.cells)
        if axis.map == "brightness":
            return share_below(here, population()["brightness"])
        ratio = float(np.log((here + 1e-4) / (mean + 1e-4)))
        return float(special.ndtr(probit(whole) + axis.gain * ratio))

    def category(self, axis: str) -> DistortionCategory | None:
        """Return the category whose severity says how much of the fault in an axis there is, where one does."""
        if axis == "distortion":
            return max(self.severities, key=lambda category: self.severities[category])
        return axis_of(axis).category

    def severity(self, axis: str) -> float:
        """Return that severity, or 0."""
        category = self.category(axis)
        return self.severities[category] if category else 0.0


def local(grid: Sequence[Sequence[float]], cells: Cells) -> tuple[float, float]:
    """Return the mean over some cells and over all of them.

    >>> local([[1, 1, 1], [1, 10, 1], [1, 1, 1]], ((1, 1),))
    (10.0, 2.0)
    """
    here = [grid[row][column] for row, column in cells]
    every = [value for row in grid for value in row]
    return float(sum(here) / len(here)), float(sum(every) / len(every))


def severity_place(severity: float) -> float:
    """Place a severity on the axis of degrees: none 0, slight 0.25, moderate 0.5, severe 0.75, extreme 1.

    Halfway between two of them one word of `severity_word` gives way to the next.
    """
    known = [0.1, *(bound for bound, _ in STEPS), 3.3]
    return float(np.interp(severity, known, [0.0, 0.125, 0.375, 0.625, 0.875, 1.0]))


def amount(look: Look, axis: str) -> float:
    """Return how much of an axis there is, 0..1: a position for properties, a degree for faults, 0.5 right exposure."""
    if axis == "exposure":
        over, under = (special.expit(support(look, Claim(f"{side}exposure", 0.85))) for side in ("over", "under"))
        return float(0.5 + 0.5 * (over - under))
    if axis == "taste":
        return 0.5 + 0.5 * (look.position("quality") - 0.5)
    fault = axis_of(axis)
    if not fault.is_fault:
        return look.position(axis)
    degree = severity_place(look.severity(axis))
    if look.paired or not fault.composite:
        return degree
    over = (look.position(fault.composite) - fault.visible_from) / (1 - fault.visible_from + 1e-6)
    return max(degree, 0.6 * max(over, 0.0))


def support(look: Look, claim: Claim) -> float:
    """Return the log-odds that people agree with a claim."""
    axis, known = claim.axis, axis_of(claim.axis)
    if axis == "exposure":
        wrong = max(support(look, Claim("overexposure", 0.85)), support(look, Claim("underexposure", 0.85)))
        return -wrong if abs(claim.place - 0.5) < 0.3 else wrong
    if known.is_fault:
        odds = _fault_odds(look, axis)
        # "Severe" asks for more of it, "slight" for less; "no noise" is the claim turned round.
        return odds - 4 * max(claim.place - 0.85, -0.1) if claim.more else -odds - 4 * (0.2 - claim.place)
    start = known.agreed[0 if claim.more else 1]
    strength = abs(claim.place - 0.5) - 0.33
    there = 1 - severity_place(look.severity(axis)) if look.paired and known.category else amount(look, axis)
    odds = ((there - start - 0.8 * strength) if claim.more else (start - 0.8 * strength - there)) / _STEP
    if known.category and not look.cells:
        detected = (look.severity(axis) - PRESENT) / _SEVERITY_STEP
        odds = min(odds, -detected) if claim.more and detected > 0 else max(odds, detected) if not claim.more else odds
    return odds


def _fault_odds(look: Look, axis: str) -> float:
    fault, detected = axis_of(axis), (look.severity(axis) - PRESENT) / _SEVERITY_STEP
    if axis == "distortion" and not look.paired:
        return max(0.5 * detected, (0.45 - look.position("quality")) / _STEP)
    if axis in {"overexposure", "underexposure"}:
        return _exposure_odds(look, axis)
    if axis == "uneven":
        return (look.position("uneven") - fault.visible_from) / _STEP
    if axis == "oversaturation" and look.position("saturation") < 0.6:
        return min(detected, 0.0) - 1.5
    if axis in {"motion", "defocus"} and not look.paired and not look.cells:
        return _seen_odds(look, axis)
    if axis == "motion":
        return support(look, Claim("sharpness", 0.15)) + 4 * (look.position("direction") - fault.visible_from) - 0.4
    if axis == "defocus":
        return support(look, Claim("sharpness", 0.15)) - 2 * max(look.position("direction") - 0.7, 0.0)
    if axis in _FAULTS and not look.paired and not look.cells:
        return max(detected, _seen_odds(look, axis))
    if look.paired or not fault.composite:
        return detected
    return max(detected, (look.position(fault.composite) - fault.visible_from) / _FAULT_STEP)


def _seen_odds(look: Look, axis: str) -> float:
    """Return the log-odds that people see one of the faults on an axis."""
    return float(special.logit(np.clip(probability_of(look.view, *_FAULTS[axis]), 0.01, 0.99)))


def _exposure_odds(look: Look, axis: str) -> float:
    bright = axis == "overexposure"
    if look.view.difference is not None:
        return 40 * (look.view.difference["brightness_shift"] * (1 if bright else -1) - 0.04)
    fault = axis_of(axis)
    here = look.position("brightness") if look.cells else look.position(fault.composite)
    if look.cells and not bright:
        here = 1 - here
    odds = (here - fault.visible_from) / _STEP
    return odds if look.cells or look.view.unjudged else _seen_odds(look, axis)


def verdict(look: Look, claims: Sequence[Claim]) -> str:
    """Return what the findings say of claims together, so that no answer contradicts them; "" where they do not decide.

    One of "disagree", "slightly", "mostly" and "agree"; the claims are of the whole image.
    """
    said = [_verdict(look, claim) for claim in claims]
    return min(said, key=_VERDICTS.index) if said and all(said) else ""


def _verdict(look: Look, claim: Claim) -> str:
    category = look.category(claim.axis)
    if category is None or claim.axis in {"contrast", "distortion", "uneven"}:
        return ""
    faults = _FAULTS.get(claim.axis, ())
    told = [
        each.severity for each in found(look.view) if each.category == category and (not faults or each.fault in faults)
    ]
    word = max(told, key=SEVERITIES.index, default="none")
    if look.severities[category] != look.view.severities[category]:
        word = severity_word(look.severities[category])  # others looked as well
    if claim.more == (claim.axis == "sharpness"):  # the claim is that there is none of it
        return {"none": "agree", "slight": "mostly"}.get(word, "disagree")
    if claim.place > _SEVERELY and word not in {"severe", "extreme"}:
        return "disagree"
    return {"none": "disagree", "slight": "slightly"}.get(word, "agree")
