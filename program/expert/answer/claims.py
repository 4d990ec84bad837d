"""What the words of a question claim of an image, and how far measurements support it."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import special

from program.expert.answer.findings import PRESENT, STEPS, VisibleFault, severity_word, strongest, visible_faults
from program.expert.judge.faults import probability_of
from program.expert.judge.views import View, population, position, probit, share_below
from program.expert.store import stored_table
from signatures.schemas import FAULTS, SEVERITIES, DistortionCategory, Severity, category_of

Cells = tuple[tuple[int, int], ...]
"""(row, column) pairs of the 3 x 3 maps, rows from the top."""


class Claim(NamedTuple):
    """What a word claims: axis ("" for words of degree), place 0..1, and where it stands."""

    axis: str
    place: float
    at: int = 0
    kind: Literal["amount", "merit"] = "amount"
    end: int = 0

    @property
    def more(self) -> bool:
        """Whether the word claims more of its axis than the middle."""
        return self.place >= 0.5


class Axis(NamedTuple):
    """What is known of an axis beside its words; see `axes` in `words.yaml`."""

    category: DistortionCategory | None = None
    composite: str = ""
    visible_from: float = 0.0
    agreed: Sequence[float] = (0.45, 0.45)
    map: str = ""
    falls: bool = False
    gain: float | None = None
    wrong: str = ""
    parting: float = 0.5
    onto: tuple[str, float] | None = None

    @property
    def is_fault(self) -> bool:
        """Whether it is something wrong, of which an image has none or more."""
        return self.visible_from > 0


@functools.cache
def axis_of(name: str) -> Axis:
    """Return what is known of an axis."""
    return Axis(**stored_table("words.yaml")["axes"].get(name, {}))


@functools.cache
def entries(table: str) -> tuple[tuple[re.Pattern[str], Mapping[str, Any]], ...]:
    """Return what finds the words of each row of a table, in lower case, with the row."""
    rows = []
    for row in stored_table("words.yaml")[table]:
        english = rf"\b(?:{'|'.join(row['english'])})\b"
        rows.append((re.compile("|".join([english, *row["chinese"]])), row))
    return tuple(rows)


@functools.cache
def form(name: str) -> re.Pattern[str]:
    """Return the pattern under `forms`: of alternatives, one a line; indented lines go on."""
    lines = stored_table("words.yaml")["forms"][name]
    return re.compile(re.sub(r"\n\s+", "", lines).replace("\n", "|"))


@functools.cache
def word_set(name: str) -> frozenset[str]:
    """Return the words under `lists`."""
    return frozenset(stored_table("words.yaml")["lists"][name].split())


_VAGUE = {"distortion": 1, "quality": 2, "taste": 3}
"""Topics that say nothing where a better one is named as well ("the quality of the lighting")."""


def terms_in(text: str) -> list[Claim]:
    """Return the claims that words of a property make in a text, negations and modifiers worked in.

    >>> [(claim.axis, round(claim.place, 2)) for claim in terms_in("very blurry and not dark")]
    [('sharpness', 0.03), ('brightness', 0.83)]
    """
    folded = text.casefold()
    taken: list[tuple[int, int]] = []
    claims = []
    for words, row in entries("terms"):
        for match in words.finditer(folded):
            start, end = match.span()
            if start == end or any(start < after and at < end for at, after in taken):
                continue
            taken.append((start, end))
            place = _modified(folded[:start], row["place"])
            claims.append(Claim(row["axis"], place, start, end=end))
    return sorted(claims, key=lambda claim: claim.at)


_NEGATED, _HALF_NEGATED, _WEAKER, _STRONGER = -0.86, -0.5, 0.55, 1.35
"""What a modifier makes of a claim's distance from the middle."""
_NEARBY = 24
"""Letters before a word within which it is weakened or strengthened."""


def _modified(before: str, place: float) -> float:
    clause = re.split(r"[,;.?!，。；？！]|\b(?:but|and|or|because|due to)\b", before)[-1]
    off = place - 0.5
    if form("negation").search(clause):
        is_half = form("half_negation").search(clause)
        return 0.5 + off * (_HALF_NEGATED if is_half else _NEGATED)
    near = clause[-_NEARBY:]
    if form("weaker").search(near):
        return 0.5 + _WEAKER * off
    if form("stronger").search(near):
        return min(max(0.5 + _STRONGER * off, 0.0), 1.0)
    return place


def topic_in(text: str) -> Claim | None:
    """Return the property a text names first without saying how much of it there is, or None.

    >>> topic_in("How is the lighting of this image?").axis, topic_in("What is she holding?")
    ('lighting', None)
    """
    folded = text.casefold()
    topics = []
    for words, row in entries("topics"):
        if match := words.search(folded):
            place = _modified(folded[: match.start()], row["place"])
            topics.append(Claim(row["axis"], place, match.start()))
    return min(topics, key=lambda topic: (_VAGUE.get(topic.axis, 0), topic.at), default=None)


def degree_in(text: str) -> Claim | None:
    """Return the place of the first word of degree in a text, without an axis, or None.

    >>> degree_in("Slight").place, degree_in("Very good").place, degree_in("a helmet")
    (0.25, 0.97, None)
    """
    row = _row_of("degrees", text.casefold())
    if row is None:
        return None
    return Claim("", row["place"], kind=row["kind"])


def _row_of(table: str, folded: str) -> Mapping[str, Any] | None:
    for words, row in entries(table):
        if words.search(folded):
            return row
    return None


def cells_in(text: str) -> Cells | None:
    """Return the cells that a text's place words name, or None for none or the whole picture.

    >>> cells_in("Is the upper left corner dark?"), cells_in("Is this image dark?")
    (((0, 0),), None)
    """
    row = _row_of("places", text.casefold().strip())
    return tuple(divmod(cell, 3) for cell in row["cells"]) if row else None


def property_in(text: str) -> Claim | None:
    """Return the property that a question names first, by a word for it or as a topic."""
    terms = terms_in(text)
    return terms[0] if terms else topic_in(text)


def predicate(text: str) -> list[Claim]:
    """Return the claims of a yes-or-no question: its last word of a property, or its topic.

    >>> [(claim.axis, claim.more) for claim in predicate("is the colour of the dark jacket vivid?")]
    [('colour', True)]
    """
    main, *causes = form("cause").split(text)
    claims = terms_in(main)
    if len(claims) > 1:
        between = main[claims[-2].at : claims[-1].at]
        claims = claims[-2:] if re.search(r"\band\b|且|和|又", between) else claims[-1:]
    if len(claims) == 1:
        claims = [_graded(claims[0], main)]
    elif not claims and (topic := topic_in(main)):
        claims = [_topic_claim(topic, degree_in(main))]
    if causes:
        claims += terms_in(causes[0])[:1]
    return claims


def _topic_claim(topic: Claim, degree: Claim | None) -> Claim:
    """Return what a topic with a word of degree claims."""
    if degree is None:
        return Claim(topic.axis, topic.place, topic.at)
    if topic.axis == "lighting" and degree.kind == "merit":
        # Good light is neither too much nor too little.
        place = 0.5 if degree.more else 1.0
        return Claim("exposure", place, topic.at)
    if topic.axis == "distortion" and degree.kind == "merit":
        return Claim(topic.axis, topic.place, topic.at)
    return Claim(topic.axis, degree.place, topic.at)


def _graded(claim: Claim, text: str) -> Claim:
    """Work in a degree behind a fault: "is the noise low?" asks whether there is little."""
    if not axis_of(claim.axis).is_fault or not claim.more:
        return claim
    degree = degree_in(text[claim.end :])
    if degree is None:
        return claim
    if degree.kind == "merit":
        is_little = degree.place > 0.6
    else:
        is_little = degree.place < 0.4
    return Claim(claim.axis, _LITTLE, claim.at) if is_little else claim


_LITTLE, MUCH = 0.2, 0.85
"""Places of the claims that there is little, and much, of something."""


def shown_by(claim: Claim) -> tuple[str, bool]:
    """Return the map that shows a claim ("" where none does), and whether its high values do."""
    axis = axis_of(claim.axis)
    if axis.is_fault:
        return axis.map, not axis.falls
    return axis.map, claim.more


_STEP = 0.12
"""Difference in position that changes the log-odds of a claim by one."""
_SEVERITY_STEP = 0.35
_FAULT_STEP = 0.2
"""As `_STEP`, for faults that most photographs lack: there the position says less."""
TOOLS = 0.15
"""Weight of the mean tool score beside the believed quality, as tools agree less with people: on
CLIVE's validation images the tool chosen for clarity has an SRCC of 0.11, the expert 0.66, both
0.67 at 0.1 to 0.2 and 0.61 at 0.5."""
_QUALITY_SPREAD = 0.65
"""Standard deviation of quality over natural photographs: what makes a position of a score."""
_FAULTS: Mapping[str, tuple[str, ...]] = {
    "motion": ("motion blur",), "defocus": ("defocus blur",), "noise": ("noise",),
    "overexposure": ("too bright", "blown highlights"),
    "underexposure": ("too dark", "crushed shadows"),
    "cast": ("colour cast",), "oversharp": ("oversharpened",), "oversaturation": ("oversaturated",),
}  # fmt: skip
"""What a photographer calls the faults on an axis."""
_OF_A_KIND = {"motion", "defocus", "overexposure", "underexposure", "cast", "oversaturation"}
"""Axes that are one kind of their distortion, known where a photographer's fault is named."""
_VERDICTS = ("disagree", "slightly", "mostly", "agree")
_SEVERELY = 0.92
"""Place of a claim from which it asks for more than a moderate fault."""
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

    @cached_property
    def paired(self) -> bool:
        """Whether there is a reference: the differences from it say more than any population."""
        return self.view.difference is not None

    def position(self, name: str) -> float:
        """Return the place among natural photographs, 0..1, in one of `COMPOSITES`."""
        if name == "quality" and self.paired:
            whole = _quality_position(self.view.prior.mean)
        else:
            whole = position(self.view, name)
        if name in {"quality", "sharpness", "fidelity"} and self.scores:
            by_tools = _quality_position(float(np.mean(self.scores)))
            whole = (1 - TOOLS) * whole + TOOLS * by_tools
        axis = axis_of(name)
        if self.cells is None or axis.gain is None:
            return whole
        here, mean = local(self.view.measured.maps[axis.map], self.cells)
        if axis.map == "brightness":
            return share_below(here, population()["brightness"])
        ratio = float(np.log((here + 1e-4) / (mean + 1e-4)))
        return float(special.ndtr(probit(whole) + axis.gain * ratio))

    def category(self, axis: str) -> DistortionCategory | None:
        """Return the category whose severity says how much of an axis's fault there is."""
        if axis == "distortion":
            return strongest(self.severities)
        return axis_of(axis).category

    def severity(self, axis: str) -> float:
        """Return that severity, or 0."""
        category = self.category(axis)
        return self.severities[category] if category else 0.0

    def named_severity(self, axis: str) -> Severity | None:
        """Return how severe the fault in an axis is among the visible ones; None where unknown."""
        category, kinds = self.category(axis), ("", *_FAULTS.get(axis, FAULTS))
        if category is None or self.cells is not None:
            return None
        if category in self.disputed:
            return severity_word(self.severities[category])
        faults = [each for each in visible_faults(self.view) if each.category == category]
        if axis in _OF_A_KIND and any(not each.fault for each in faults):
            if axis != "motion" or self.position("direction") >= axis_of(axis).visible_from:
                return None
            return "none"  # a blur that is alike in all directions is none of motion
        return worst_word(each for each in faults if each.fault in kinds)


def _quality_position(score: float) -> float:
    return float(special.ndtr((score - 3.0) / _QUALITY_SPREAD))


def worst_word(faults: Iterable[VisibleFault]) -> Severity:
    """Return the severity of the worst of some faults, "none" of none."""
    return max((each.severity for each in faults), key=SEVERITIES.index, default="none")


def look_at(view: View, evidence: Mapping[str, str], scores: Sequence[float], text: str = "") -> Look:
    """Return what a question is asked of.

    `evidence` is category -> severity word, as others found it; `text` may name a place.
    """
    severities, disputed, faults = dict(view.severities), set(), visible_faults(view)
    for name, word in evidence.items():
        category = category_of(name)
        if category is None or word not in _SEVERITY_VALUES:
            continue
        if word == severity_word(severities[category]):
            continue
        severities[category] = 0.5 * (severities[category] + _SEVERITY_VALUES[word])
        own_words = {each.severity for each in faults if each.category == category} or {"none"}
        if word not in own_words:
            disputed.add(category)
    return Look(view, severities, scores, cells_in(text), frozenset(disputed))


def local(grid: Sequence[Sequence[float]], cells: Cells) -> tuple[float, float]:
    """Return the mean over some cells and over all of them.

    >>> local([[1, 1, 1], [1, 10, 1], [1, 1, 1]], ((1, 1),))
    (10.0, 2.0)
    """
    here = [grid[row][column] for row, column in cells]
    every = [value for row in grid for value in row]
    return float(sum(here) / len(here)), float(sum(every) / len(every))


def severity_place(severity: float) -> float:
    """Place a severity among degrees: none 0, slight 0.25, moderate 0.5, severe 0.75, extreme 1.

    Halfway between two of them one word of `severity_word` gives way to the next.
    """
    known = [0.1, *(bound for bound, _ in STEPS), 3.3]
    return float(np.interp(severity, known, [0.0, 0.125, 0.375, 0.625, 0.875, 1.0]))


def amount(look: Look, axis: str) -> float:
    """Return how much of an axis there is, 0..1: of properties a position, of faults a degree."""
    if axis == "exposure":  # 0.5 is right
        over = special.expit(support(look, Claim("overexposure", MUCH)))
        under = special.expit(support(look, Claim("underexposure", MUCH)))
        return float(0.5 + 0.5 * (over - under))
    if axis == "taste":
        return 0.5 + 0.5 * (look.position("quality") - 0.5)
    fault = axis_of(axis)
    if not fault.is_fault:
        return look.position(axis)
    degree = severity_place(look.severity(axis))
    if look.paired or not fault.composite:
        return degree
    beyond = look.position(fault.composite) - fault.visible_from
    return max(degree, 0.6 * max(beyond / (1 - fault.visible_from + 1e-6), 0.0))


def support(look: Look, claim: Claim) -> float:
    """Return the log-odds that people agree with a claim."""
    axis = axis_of(claim.axis)
    if claim.axis == "exposure":
        over = support(look, Claim("overexposure", MUCH))
        wrong = max(over, support(look, Claim("underexposure", MUCH)))
        return -wrong if abs(claim.place - 0.5) < 0.3 else wrong
    if not axis.is_fault:
        return _property_odds(look, claim, axis)
    odds = _fault_odds(look, claim.axis)
    if claim.more:
        # "Severe" asks for more of it, "slight" for less; "no noise" is the claim turned round.
        return odds - 4 * max(claim.place - MUCH, -0.1)
    return -odds - 4 * (_LITTLE - claim.place)


def _property_odds(look: Look, claim: Claim, axis: Axis) -> float:
    allowance = 0.8 * (abs(claim.place - 0.5) - 0.33)
    if look.paired and axis.category:
        there = 1 - severity_place(look.severity(claim.axis))
    else:
        there = amount(look, claim.axis)
    high, low = axis.agreed
    if claim.more:
        odds = (there - high - allowance) / _STEP
    else:
        odds = (low - allowance - there) / _STEP
    if not axis.category or look.cells:
        return odds
    detected = (look.severity(claim.axis) - PRESENT) / _SEVERITY_STEP
    if not claim.more:
        return max(odds, detected)
    return min(odds, -detected) if detected > 0 else odds


def _fault_odds(look: Look, axis: str) -> float:
    fault, detected = axis_of(axis), (look.severity(axis) - PRESENT) / _SEVERITY_STEP
    is_of_photograph = not look.paired and not look.cells
    if axis == "distortion" and not look.paired:
        return max(0.5 * detected, (0.45 - look.position("quality")) / _STEP)
    if axis in {"overexposure", "underexposure"}:
        return _exposure_odds(look, axis)
    if axis == "uneven":
        return (look.position("uneven") - fault.visible_from) / _STEP
    if axis == "oversaturation" and look.position("saturation") < 0.6:
        return min(detected, 0.0) - 1.5
    if axis in {"motion", "defocus"}:
        if is_of_photograph:
            return _odds_of_people(look, axis)
        unsharp, direction = support(look, Claim("sharpness", 0.15)), look.position("direction")
        if axis == "motion":
            return unsharp + 4 * (direction - fault.visible_from) - 0.4
        return unsharp - 2 * max(direction - 0.7, 0.0)
    if axis in _FAULTS and is_of_photograph:
        return max(detected, _odds_of_people(look, axis))
    if look.paired or not fault.composite:
        return detected
    return max(detected, (look.position(fault.composite) - fault.visible_from) / _FAULT_STEP)


def _odds_of_people(look: Look, axis: str) -> float:
    probability = probability_of(look.view, *_FAULTS[axis])
    return float(special.logit(np.clip(probability, 0.01, 0.99)))


def _exposure_odds(look: Look, axis: str) -> float:
    is_over = axis == "overexposure"
    if look.view.difference is not None:
        rise = look.view.difference["brightness_shift"]
        if not is_over:
            rise = -rise
        return 40 * (rise - 0.04)
    if not look.cells and not look.view.unjudged:
        return _odds_of_people(look, axis)
    fault = axis_of(axis)
    if not look.cells:
        here = look.position(fault.composite)
    else:
        here = look.position("brightness")
        if not is_over:
            here = 1 - here
    return (here - fault.visible_from) / _STEP


def verdict(look: Look, claims: Sequence[Claim]) -> str:
    """Return what the findings say of claims together, so that no answer contradicts them.

    One of "disagree", "slightly", "mostly" and "agree", "" where they do not decide; the claims are
    of the whole image.
    """
    verdicts = [_verdict(look, claim) for claim in claims]
    if not verdicts or not all(verdicts):
        return ""
    return min(verdicts, key=_VERDICTS.index)


def _verdict(look: Look, claim: Claim) -> str:
    word = look.named_severity(claim.axis)
    if word is None or claim.axis in {"contrast", "distortion", "uneven"}:
        return ""
    if claim.more == (claim.axis == "sharpness"):  # the claim is that there is none of it
        return {"none": "agree", "slight": "mostly"}.get(word, "disagree")
    if claim.place > _SEVERELY and word not in {"severe", "extreme"}:
        return "disagree"
    return {"none": "disagree", "slight": "slightly"}.get(word, "agree")
