"""What an image is believed to be like: of each property, how surely people see more than a place.

Every answer, reason and comparison asks `support` alone, of an image, a part of it or a crop.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from program.expert.answer.claims import Cells, Claim, axis_of, fault_of
from program.expert.answer.findings import PRESENT, VisibleFault, strongest, visible_faults
from program.expert.judge.faults import CLEAR, clean_of, likeliest_of, probability_of, sharpness_of
from program.expert.judge.views import View, population, position, probit, share_below
from signatures.schemas import DISTORTION_CATEGORIES, FAULTS, SEVERITIES, DistortionCategory, Severity

MUCH = 0.85
"""Place of the claim that there is much of something."""
TOOLS = 0.15
"""Weight of the mean tool score beside the believed quality, as tools agree less with people: on
CLIVE's validation images the tool chosen for clarity has an SRCC of 0.11, the expert 0.66, both
0.67 at 0.1 to 0.2 and 0.61 at 0.5."""
_QUALITY_SPREAD = 0.65
"""Standard deviation of quality over natural photographs: what makes a position of a score."""
_SEVERITY_STEP, _POSITION_STEP = 0.35, 0.12
"""Differences in severity and in position that change log-odds by one."""
_SLOPE, _FAULT_SLOPE, _FAULT_MIDDLE = 8.0, 6.0, 0.35
"""How fast log-odds fall with the place asked after, and the place of a fault that is as likely seen
as not; a property's is 0.5."""
_STATED = 0.5
"""Least log-odds of a fault that is named among the findings."""
_STEP = 0.25
"""From one severity to the next, as places: an answer is at most a step above the finding."""
_EXTREME = 0.8
"""Place from which a fault is more than strong: the heads tell three strengths."""
_MOST_APART = 1.5
"""How far a part differs at most from the whole, in the logarithm of what a map shows."""


@dataclass(frozen=True)
class Look:
    """What a question is asked of: an image or some cells of it, and what tools scored."""

    view: View
    scores: Sequence[float] = ()
    cells: Cells | None = None

    @property
    def paired(self) -> bool:
        """Whether there is a reference: the differences from it say more than any population."""
        return self.view.difference is not None

    def category(self, axis: str) -> DistortionCategory | None:
        """Return the category whose severity says how much of an axis's fault there is."""
        if axis == "distortion":
            return strongest(self.view.severities)
        return axis_of(axis).category

    def detected(self, axis: str) -> float:
        """Return the log-odds of an axis's fault by the severity of its category alone."""
        category = self.category(axis)
        severity = self.view.severities[category] if category else 0.0
        return (severity - PRESENT) / _SEVERITY_STEP

    def told(self, axis: str) -> list[VisibleFault]:
        """Return the faults among the findings that an axis is about; of a part none is known."""
        if self.cells is not None:
            return []
        visible = visible_faults(self.view)
        if axis == "distortion":
            return list(visible)
        kinds, category = axis_of(axis).kinds, self.category(axis)
        # One kind of a category is known only where a photographer's fault is named.
        is_one_kind = axis_of(axis).is_fault and category is not None and axis != fault_of(category)
        told = []
        for each in visible:
            if each.fault and kinds:
                is_meant = each.fault in kinds
            else:
                is_meant = each.category == category and (bool(each.fault) or not is_one_kind)
            if is_meant:
                told.append(each)
        return told

    def stated(self, axis: str) -> Severity:
        """Return how severe the fault in an axis is among the findings; "none" if it is not there."""
        severities: list[Severity] = ["none"]
        severities += [each.severity for each in self.told(axis)]
        return max(severities, key=SEVERITIES.index)


def place_of(look: Look, name: str) -> float:
    """Return the place of a look among natural photographs, 0 .. 1, in one of `COMPOSITES`."""
    view, axis = look.view, axis_of(name)
    if name == "quality" and look.paired:
        whole = _quality_place(view.prior.mean)
    else:
        whole = position(view, name)
    if name in {"quality", "sharpness"} and look.scores:
        whole = (1 - TOOLS) * whole + TOOLS * _quality_place(float(np.mean(look.scores)))
    if look.cells is None or axis.gain is None:
        return whole
    if axis.map == "brightness":
        return share_below(_here_and_elsewhere(look, "brightness")[0], population()["brightness"])
    return float(special.ndtr(probit(whole) + axis.gain * _apart(look, name)))


def _quality_place(score: float) -> float:
    return float(special.ndtr((score - 3.0) / _QUALITY_SPREAD))


def support(look: Look, claim: Claim) -> float:
    """Return the log-odds that people agree with a claim."""
    if claim.axis == "exposure":
        right = above(look, "exposure")
        return right if abs(claim.place - 0.5) < 0.3 else -right
    # "Severe" asks for more of it, "slight" for less.
    strength = 4 * float(np.clip(abs(claim.place - 0.5) - (MUCH - 0.5), -0.1, 0.15))
    agreed = above(look, claim.axis)
    return (agreed if claim.more else -agreed) - strength


def above(look: Look, name: str, place: float | None = None) -> float:
    """Return the log-odds that people see more of a property than a place 0 .. 1.

    Without a place: that it is there, of a fault, and that there is much of it, of another.
    """
    is_fault = axis_of(name).is_fault
    odds = _fault(look, name) if is_fault else _property(look, name)
    if place is None:
        return odds
    if not is_fault:
        return odds - _SLOPE * (place - 0.5)
    beyond = odds - _FAULT_SLOPE * (place - _FAULT_MIDDLE)
    stated = _STEP * SEVERITIES.index(look.stated(name))
    if 0 < place <= stated:
        return max(beyond, _STATED)
    if 0 < stated < 1 and place > min(stated + _STEP, _EXTREME):
        return min(beyond, -_STATED)
    return min(beyond, odds) if stated == 0 and odds < 0 else beyond


def faint(look: Look, categories: Iterable[DistortionCategory]) -> list[VisibleFault]:
    """Return what is there for who asks for these categories, of those that do not stand out."""
    faults = []
    for category in categories:
        name = fault_of(category)
        if not look.paired and look.stated(name) == "none" and above(look, name) > 0:
            faults.append(VisibleFault(category, "slight", likeliest_of(look.view, category)))
    return faults


def _property(look: Look, name: str) -> float:
    axis = axis_of(name)
    if name == "exposure":
        return -max(above(look, "underexposure"), above(look, "overexposure"))
    if look.paired and axis.category:
        return -look.detected(name)
    if look.paired or look.cells or look.view.unjudged:
        return 0.0 if name == "taste" else (place_of(look, name) - 0.45) / _POSITION_STEP
    odds = _by_signs(look, name)
    if name == "sharpness" and (severity := SEVERITIES.index(look.stated(name))) > 1:
        return min(odds, 0.5 - severity)
    if name == "sharpness" and (sharpness_of(look.view) or 0.0) >= CLEAR:
        return max(odds, 0.0)
    return odds


def _fault(look: Look, name: str) -> float:
    if look.paired:
        return _changed(look, name)
    if look.cells:
        return _in_part(look, name)
    odds, stated = _by_signs(look, name), look.stated(name)
    if stated == "none" or (name == "distortion" and stated == "slight"):
        return odds
    return max(odds, _STATED + SEVERITIES.index(stated) - 1)


def _changed(look: Look, name: str) -> float:
    if look.view.difference is not None and name in {"overexposure", "underexposure"}:
        rise = look.view.difference["brightness_shift"]
        return 40 * ((rise if name == "overexposure" else -rise) - 0.04)
    if name == "motion":
        return min(look.detected(name), (place_of(look, "direction") - 0.6) / _POSITION_STEP)
    return look.detected(name)


def _in_part(look: Look, name: str) -> float:
    """Judge some cells by what is believed of the whole, and by how they differ from it."""
    axis = axis_of(name)
    if axis.category == "Blurs":
        return -above(look, "sharpness")
    of_whole = above(replace(look, cells=None), name)
    if axis.gain is None:
        return of_whole
    apart = float(np.clip(_apart(look, name), -_MOST_APART, _MOST_APART))
    return of_whole + axis.gain * (-apart if axis.falls else apart)


def _apart(look: Look, name: str) -> float:
    """Return by how much a map shows more in a look's cells than in the others, as a logarithm."""
    here, elsewhere = _here_and_elsewhere(look, axis_of(name).map)
    return float(np.log((max(here, 0.0) + 1e-4) / (max(elsewhere, 0.0) + 1e-4)))


def _here_and_elsewhere(look: Look, map_name: str) -> tuple[float, float]:
    """Return the mean of a map over a look's cells, and over the others."""
    grid, is_here = np.array(look.view.measured.maps[map_name]), np.zeros((3, 3), dtype=bool)
    is_here[tuple(zip(*(look.cells or ()), strict=True))] = True
    return float(grid[is_here].mean()), float(grid[~is_here].mean())


def _by_signs(look: Look, name: str) -> float:
    """Add up log-odds of faults ("a|b" for either), and normal deviates of positions."""
    odds = axis_of(name).offset
    for sign, weight in axis_of(name).signs.items():
        odds += weight * _sign(look, sign)
    return odds


def _sign(look: Look, name: str) -> float:
    view, faults = look.view, name.split("|")
    if name in DISTORTION_CATEGORIES:
        return (view.severities[name] - PRESENT) / _SEVERITY_STEP
    if name == "subject sharp":
        share = sharpness_of(view)
    elif name == "nothing wrong":
        share = clean_of(view)
    elif faults[0] in FAULTS:
        share = probability_of(view, *faults)
    else:
        return probit(place_of(look, name))
    if share is None:
        return 0.0
    return float(special.logit(np.clip(share, 0.01, 0.99)))
