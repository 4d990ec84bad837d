"""What the words of a question claim of an image, in English and Chinese, and how far measurements support it."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import special

from program.expert.answer.findings import PRESENT, STEPS, severity_word, visible_faults
from program.expert.judge.faults import probability_of
from program.expert.judge.views import View, population, position, probit, share_below
from program.expert.store import stored_table
from signatures.schemas import SEVERITIES, DistortionCategory, Severity, category_of

Cells = tuple[tuple[int, int], ...]
"""(row, column) pairs of the 3 x 3 maps, rows from the top."""


class Claim(NamedTuple):
    """One word's claim: axis ("" for words of degree), place 0..1, and where in the text it stands (`at` to `end`)."""

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
    """What is known of an axis beside its words; `axes` in `words.yaml` says what each field means."""

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
    return tuple(
        (re.compile("|".join([rf"\b(?:{'|'.join(row['english'])})\b", *row["chinese"]])), row)
        for row in stored_table("words.yaml")[table]
    )


@functools.cache
def form(name: str) -> re.Pattern[str]:
    """Return the pattern under `forms`, whose lines are alternatives and whose indented lines go on with the last."""
    return re.compile(re.sub(r"\n\s+", "", stored_table("words.yaml")["forms"][name]).replace("\n", "|"))


@functools.cache
def word_set(name: str) -> frozenset[str]:
    """Return the words under `lists`."""
    return frozenset(stored_table("words.yaml")["lists"][name].split())


_VAGUE = {"distortion": 1, "quality": 2, "taste": 3}


def terms_in(text: str) -> list[Claim]:
    """Return the claims that words of a property make in a text, in its order, negations and modifiers worked in.

    >>> [(s.axis, round(s.place, 2)) for s in terms_in("very blurry and not dark")]
    [('sharpness', 0.03), ('brightness', 0.83)]
    """
    folded = text.casefold()
    taken: list[tuple[int, int]] = []
    claims = []
    for words, row in entries("terms"):
        for match in words.finditer(folded):
            start, end = match.span()
            if start == end or any(start < b and a < end for a, b in taken):
                continue
            taken.append((start, end))
            claims.append(Claim(row["axis"], _modified(folded[:start], row["place"]), start, end=end))
    return sorted(claims, key=lambda claim: claim.at)


def _modified(before: str, place: float) -> float:
    clause = re.split(r"[,;.?!，。；？！]|\b(?:but|and|or|because|due to)\b", before)[-1]
    off = place - 0.5
    if form("negation").search(clause):
        return 0.5 - off * (0.5 if form("half_negation").search(clause) else 0.86)
    near = clause[-24:]
    if form("weaker").search(near):
        return 0.5 + 0.55 * off
    return min(max(0.5 + 1.35 * off, 0.0), 1.0) if form("stronger").search(near) else place


def topic_in(text: str) -> Claim | None:
    """Return the property a text names first without saying how much of it there is, or None.

    >>> topic_in("How is the lighting of this image?").axis, topic_in("What is she holding?")
    ('lighting', None)
    """
    folded = text.casefold()
    topics = [
        Claim(row["axis"], _modified(folded[: match.start()], row["place"]), match.start())
        for words, row in entries("topics")
        if (match := words.search(folded)) is not None
    ]
    # "Quality" and "problem" say nothing where a property is named as well ("the quality of the lighting").
    return min(topics, key=lambda topic: (_VAGUE.get(topic.axis, 0), topic.at), default=None)


def degree_in(text: str) -> Claim | None:
    """Return the place of the first word of degree in a text, without an axis, or None.

    >>> degree_in("Slight").place, degree_in("Very good").place, degree_in("a helmet")
    (0.25, 0.97, None)
    """
    folded = text.casefold()
    found = (Claim("", row["place"], kind=row["kind"]) for words, row in entries("degrees") if words.search(folded))
    return next(found, None)


def cells_in(text: str) -> Cells | None:
    """Return the cells that a text's place words name, or None for none or the whole picture.

    >>> cells_in("Is the upper left corner dark?"), cells_in("Is this image dark?")
    (((0, 0),), None)
    """
    found = (row["cells"] for words, row in entries("places") if words.search(text.casefold().strip()))
    return next((tuple(divmod(cell, 3) for cell in cells) for cells in found), None)


def property_in(text: str) -> Claim | None:
    """Return the property that a question names first, by a word that says how much of it, or by its name."""
    return next(iter(terms_in(text)), None) or topic_in(text)


def predicate(text: str) -> list[Claim]:
    """Return the claims that a yes-or-no question makes: its last word of a property, or its topic and degree.

    >>> [(s.axis, s.more) for s in predicate("is the colour of the dark jacket vivid?")]
    [('colour', True)]
    """
    main, *cause = form("cause").split(text)
    terms = terms_in(main)
    both = len(terms) > 1 and re.search(r"\band\b|且|和|又", main[terms[-2].at : terms[-1].at])
    claims = terms[-2 if both else -1 :]
    if not claims and (topic := topic_in(main)) is not None:
        degree = degree_in(main)
        if topic.axis == "lighting" and degree is not None and degree.kind == "merit":
            # Good light is neither too much nor too little.
            topic, degree = Claim("exposure", 0.5 if degree.place >= 0.5 else 1.0, topic.at), None
        use = degree is not None and not (topic.axis == "distortion" and degree.kind == "merit")
        claims = [Claim(topic.axis, degree.place if degree is not None and use else topic.place, topic.at)]
    elif len(claims) == 1:
        claims = [_graded(claims[0], main)]
    return claims + (terms_in(cause[0])[:1] if cause else [])


def _graded(claim: Claim, text: str) -> Claim:
    """Work in a degree that follows a fault: "is the noise low?" asks whether there is little of it."""
    if not axis_of(claim.axis).is_fault or not claim.more:
        return claim
    degree = degree_in(text[claim.end :])
    little = degree is not None and (degree.place < 0.4 if degree.kind == "amount" else degree.place > 0.6)
    return Claim(claim.axis, 0.2, claim.at) if little else claim


def shown_by(claim: Claim) -> tuple[str, bool]:
    """Return the map that shows a claim ("" where none does), and whether its high values do."""
    axis = axis_of(claim.axis)
    return axis.map, not axis.falls if axis.is_fault else claim.more


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
    "oversharp": ("oversharpened",), "oversaturation": ("oversaturated",),
}  # fmt: skip
"""What a photographer calls the faults on an axis."""
_OF_A_KIND = {"motion", "defocus", "overexposure", "underexposure", "cast", "oversaturation"}
"""Axes that are one of the kinds of their distortion, which is known where a photographer's fault is named."""
_VERDICTS = ("disagree", "slightly", "mostly", "agree")
_SEVERELY = 0.92
"""Place of a claim from which it asks for more than a moderate fault."""
_SEVERITY_VALUES = {"none": 0.1, "slight": 0.8, "moderate": 1.5, "severe": 2.3, "extreme": 3.1}


@dataclass(frozen=True)
class Look:
    """What a question is asked of: an image or some cells of it, what others found, and the tools' scores."""

    view: View
    severities: Mapping[DistortionCategory, float]
    scores: Sequence[float] = ()
    cells: Cells | None = None
    disputed: frozenset[DistortionCategory] = frozenset()
    """What others judge differently: the severities are then midway."""

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

    def named_severity(self, axis: str) -> Severity | None:
        """Return how severe the fault in an axis is among what every answer tells of, or None where that is unknown."""
        category, faults = self.category(axis), _FAULTS.get(axis, ())
        if category is None or self.cells is not None:
            return None
        if category in self.disputed:
            return severity_word(self.severities[category])
        there = [each for each in visible_faults(self.view) if each.category == category]
        if axis in _OF_A_KIND and any(not each.fault for each in there):
            # A blur that is alike in all directions is none of motion.
            return "none" if axis == "motion" and self.position("direction") < axis_of(axis).visible_from else None
        words = [each.severity for each in there if not faults or each.fault in {"", *faults}]
        return max(words, key=SEVERITIES.index, default="none")


def look_at(view: View, evidence: Mapping[str, str], scores: Sequence[float], text: str = "") -> Look:
    """Return what a question is asked of; `evidence` is category -> severity word, `text` may name a place."""
    own, disputed, there = dict(view.severities), set(), visible_faults(view)
    for name, word in evidence.items():
        category = category_of(name)
        if category is not None and word in _SEVERITY_VALUES and word != severity_word(own[category]):
            own[category] = 0.5 * (own[category] + _SEVERITY_VALUES[word])
            if word not in ([each.severity for each in there if each.category == category] or ["none"]):
                disputed.add(category)
    return Look(view, own, scores, cells_in(text), frozenset(disputed))


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
    word = look.named_severity(claim.axis)
    if word is None or claim.axis in {"contrast", "distortion", "uneven"}:
        return ""
    if claim.more == (claim.axis == "sharpness"):  # the claim is that there is none of it
        return {"none": "agree", "slight": "mostly"}.get(word, "disagree")
    if claim.place > _SEVERELY and word not in {"severe", "extreme"}:
        return "disagree"
    return {"none": "disagree", "slight": "slightly"}.get(word, "agree")
