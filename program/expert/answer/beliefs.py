"""What an image is believed to be like: of each property, how surely people see more than a place.

Every answer, reason and comparison asks `support` alone, of an image, a part of it or a crop.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from program.expert.answer.claims import Axis, Cells, Claim, axis_of, cells_in, fault_of
from program.expert.answer.findings import PRESENT, STEPS, VisibleFault, severity_word, strongest, visible_faults
from program.expert.judge.faults import CLEAR, clean_of, likeliest_of, probability_of, sharpness_of
from program.expert.judge.views import View, population, position, probit, share_below
from signatures.schemas import FAULTS, SEVERITIES, DistortionCategory, Severity, category_of

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
_EXTREME = 0.8
"""Place from which a fault is more than strong."""
_MOST_APART = 1.5
"""How far a part differs at most from the whole, in the logarithm of what a map shows."""
_SEVERITY_VALUES = {"none": 0.1, "slight": 0.8, "moderate": 1.5, "severe": 2.3, "extreme": 3.1}


@dataclass(frozen=True)
class Look:
    """What a question is asked of: an image or some cells of it, and what others measured."""

    view: View
    severities: Mapping[DistortionCategory, float]
    scores: Sequence[float] = ()
    cells: Cells | None = None
    disputed: frozenset[DistortionCategory] = frozenset()
    """What others judge differently: the severities are then midway."""

    @property
    def paired(self) -> bool:
        """Whether there is a reference: the differences from it say more than any population."""
        return self.view.difference is not None

    def position(self, name: str) -> float:
        """Return the place among natural photographs, 0..1, in one of `COMPOSITES`."""
        if name == "quality" and self.paired:
            whole = _quality_position(self.view.prior.mean)
        else:
            whole = position(self.view, name)
        if name in {"quality", "sharpness"} and self.scores:
            by_tools = _quality_position(float(np.mean(self.scores)))
            whole = (1 - TOOLS) * whole + TOOLS * by_tools
        axis = axis_of(name)
        if self.cells is None or axis.gain is None:
            return whole
        if axis.map == "brightness":
            return share_below(local(self.view.measured.maps["brightness"], self.cells)[0], population()["brightness"])
        return float(special.ndtr(probit(whole) + axis.gain * _apart(self, axis)))

    def category(self, axis: str) -> DistortionCategory | None:
        """Return the category whose severity says how much of an axis's fault there is."""
        if axis == "distortion":
            return strongest(self.severities)
        return axis_of(axis).category

    def severity(self, axis: str) -> float:
        """Return that severity, or 0."""
        category = self.category(axis)
        return self.severities[category] if category else 0.0

    @property
    def visible(self) -> Sequence[VisibleFault]:
        """The faults among the findings; of a part none is known."""
        return visible_faults(self.view) if self.cells is None else ()

    def told(self, axis: str) -> list[VisibleFault]:
        """Return the visible faults that are told where an axis is asked after."""
        told, category = axis_of(axis).told, self.category(axis)
        return [each for each in self.visible if (each.fault in told if told else each.category == category)]

    def stated(self, axis: str) -> Severity:
        """Return how severe the fault in an axis is among the findings; "none" if it is not there."""
        category, kinds = self.category(axis), axis_of(axis).kinds
        if category in self.disputed and self.cells is None:
            return severity_word(self.severities[category])
        if axis == "distortion":
            return _worst(self.visible)
        named = [each for each in self.visible if each.category == category]
        if kinds:
            # One kind of a category is known only where a photographer's fault is named.
            is_kind = axis_of(axis).is_fault and axis != fault_of(category or "Blurs")
            named = [each for each in named if each.fault in kinds or not (each.fault or is_kind)]
        return _worst(named)


def _quality_position(score: float) -> float:
    return float(special.ndtr((score - 3.0) / _QUALITY_SPREAD))


def _worst(faults: Iterable[VisibleFault]) -> Severity:
    return max((each.severity for each in faults), key=SEVERITIES.index, default="none")


def look_at(view: View, evidence: Mapping[str, str], scores: Sequence[float], text: str = "") -> Look:
    """Return what a question is asked of.

    `evidence` is category -> severity word, as others found it; `text` may name a place.
    """
    own = Look(view, view.severities)
    severities, disputed = dict(view.severities), set()
    for name, word in evidence.items():
        category = category_of(name)
        if category is None or word not in _SEVERITY_VALUES or word == severity_word(severities[category]):
            continue
        faults = [each for each in visible_faults(view) if each.category == category]
        if word == _worst(faults or faint(own, [category])):
            continue
        severities[category] = 0.5 * (severities[category] + _SEVERITY_VALUES[word])
        disputed.add(category)
    return Look(view, severities, scores, cells_in(text, with_subject=False), frozenset(disputed))


def local(grid: Sequence[Sequence[float]], cells: Cells) -> tuple[float, float]:
    """Return the mean over some cells and over the others.

    >>> local([[1, 1, 1], [1, 10, 1], [1, 1, 1]], ((1, 1),))
    (10.0, 1.0)
    """
    is_here = np.zeros((3, 3), dtype=bool)
    is_here[tuple(zip(*cells, strict=True))] = True
    return float(np.mean(np.array(grid)[is_here])), float(np.mean(np.array(grid)[~is_here]))


def severity_place(severity: float) -> float:
    """Place a severity among degrees: none 0, slight 0.25, moderate 0.5, severe 0.75, extreme 1."""
    known = [0.1, *(bound for bound, _ in STEPS), 3.3]
    return float(np.interp(severity, known, [0.0, 0.125, 0.375, 0.625, 0.875, 1.0]))


def support(look: Look, claim: Claim) -> float:
    """Return the log-odds that people agree with a claim."""
    if claim.axis == "exposure":
        wrong = max(above(look, "underexposure"), above(look, "overexposure"))
        return -wrong if abs(claim.place - 0.5) < 0.3 else wrong
    # "Severe" asks for more of it, "slight" for less.
    strength = 4 * float(np.clip(abs(claim.place - 0.5) - (MUCH - 0.5), -0.1, 0.15))
    agreed = above(look, claim.axis)
    return (agreed if claim.more else -agreed) - strength


def above(look: Look, name: str, place: float | None = None) -> float:
    """Return the log-odds that people see more of a property than a place 0 .. 1.

    Without a place: that it is there, of a fault, and that there is much of it, of another.
    """
    if not axis_of(name).is_fault:
        odds = _property(look, name)
        return odds if place is None else odds - _SLOPE * (place - 0.5)
    odds = _fault(look, name)
    if place is None:
        return odds
    there, odds = odds, odds - _FAULT_SLOPE * (place - _FAULT_MIDDLE)
    stated = 0.25 * SEVERITIES.index(look.stated(name))
    if 0 < place <= stated:
        return max(odds, _STATED)
    if 0 < stated < 1 and place > _EXTREME:
        return min(odds, -_STATED)  # the heads tell three strengths
    if stated == 0 and there < 0:
        return min(odds, there)
    return odds


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
    if look.paired and axis.category:
        return (0.5 - severity_place(look.severity(name))) / _POSITION_STEP
    if look.paired or look.cells or look.view.unjudged:
        return 0.0 if name == "taste" else (look.position(name) - 0.45) / _POSITION_STEP
    odds = _signs(look, axis.signs) + axis.offset
    if name == "sharpness" and (severity := SEVERITIES.index(look.stated(name))) > 1:
        return min(odds, 0.5 - severity)
    if name == "sharpness" and (sharpness_of(look.view) or 0.0) >= CLEAR:
        return max(odds, 0.0)
    return odds


def _fault(look: Look, name: str) -> float:
    axis = axis_of(name)
    detected = (look.severity(name) - PRESENT) / _SEVERITY_STEP
    if look.paired:
        return _changed(look, name, detected)
    if look.cells:
        return _in_part(look, name)
    odds = _signs(look, axis.signs) + axis.offset
    if look.category(name) in look.disputed:
        odds = 0.5 * (odds + detected)
    stated = look.stated(name)
    if stated == "none" or (name == "distortion" and stated == "slight"):
        return odds
    return max(odds, _STATED + SEVERITIES.index(stated) - 1)


def _changed(look: Look, name: str, detected: float) -> float:
    if look.view.difference is not None and name in {"overexposure", "underexposure"}:
        rise = look.view.difference["brightness_shift"]
        return 40 * ((rise if name == "overexposure" else -rise) - 0.04)
    if name == "motion":
        return min(detected, (look.position("direction") - 0.6) / _POSITION_STEP)
    return detected


def _in_part(look: Look, name: str) -> float:
    """Judge some cells by what is believed of the whole, and by how they differ from it."""
    axis = axis_of(name)
    if axis.category == "Blurs":
        return -above(look, "sharpness")
    of_whole = above(replace(look, cells=None), name)
    if axis.gain is None:
        return of_whole
    apart = float(np.clip(_apart(look, axis), -_MOST_APART, _MOST_APART))
    return of_whole + axis.gain * (-apart if axis.falls else apart)


def _apart(look: Look, axis: Axis) -> float:
    """Return by how much a map shows more in a look's cells than in the others, as a logarithm."""
    here, elsewhere = (max(mean, 0.0) + 1e-4 for mean in local(look.view.measured.maps[axis.map], look.cells or ()))
    return float(np.log(here / elsewhere))


def _signs(look: Look, signs: Mapping[str, float]) -> float:
    """Add up log-odds of faults ("a|b" for either), and normal deviates of positions."""
    total = 0.0
    for name, weight in signs.items():
        total += weight * _sign(look, name)
    return total


def _sign(look: Look, name: str) -> float:
    view = look.view
    if name == "subject sharp":
        share = sharpness_of(view)
    elif name == "nothing wrong":
        share = clean_of(view)
    elif name in look.severities:
        return (look.severities[category_of(name) or "Blurs"] - PRESENT) / _SEVERITY_STEP
    elif (faults := name.split("|"))[0] in FAULTS:
        share = probability_of(view, *faults)
    else:
        return probit(look.position(name))
    if share is None:
        return 0.0
    return float(special.logit(np.clip(share, 0.01, 0.99)))
