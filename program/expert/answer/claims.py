"""What the words of a question claim of an image, by the table in `words.yaml`."""

import functools
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from program.expert.store import stored_table
from signatures.schemas import FAULTS, DistortionCategory

Cells = tuple[tuple[int, int], ...]
"""(row, column) pairs of the 3 x 3 maps, rows from the top."""


class Claim(NamedTuple):
    """What a word claims: axis ("" for words of degree), place 0..1, where it stands, and in which table."""

    axis: str
    place: float
    at: int = 0
    end: int = 0
    kind: Literal["term", "topic", "amount", "merit"] = "term"

    @property
    def more(self) -> bool:
        """Whether the word claims more of its axis than the middle."""
        return self.place >= 0.5


class Axis(NamedTuple):
    """What is known of an axis beside its words; see `axes` in `words.yaml`."""

    signs: Mapping[str, float] = {}
    offset: float = 0.0
    is_fault: bool = False
    category: DistortionCategory | None = None
    map: str = ""
    falls: bool = False
    gain: float | None = None
    told: tuple[str, ...] = ()
    low: str = ""
    high: str = ""
    wrong: str = ""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The photographer's names of a fault."""
        names = self.told or "|".join(self.signs).split("|")
        return tuple(name for name in names if name in FAULTS)


@functools.cache
def axis_of(name: str) -> Axis:
    """Return what is known of an axis."""
    return Axis(**stored_table("words.yaml")["axes"].get(name, {}))


@functools.cache
def fault_of(category: DistortionCategory) -> str:
    """Return the axis of a category's fault in general: the first in the table."""
    names: dict[str, Any] = stored_table("words.yaml")["axes"]
    return next(name for name in names if axis_of(name).is_fault and axis_of(name).category == category)


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


def _read(table: str, text: str) -> list[Claim]:
    """Return what the words of a table claim in a text: the first row's come first, and keep their letters."""
    folded, taken, claims = text.casefold(), set[int](), []
    for words, row in entries(table):
        for match in words.finditer(folded):
            letters = range(*match.span())
            if letters and taken.isdisjoint(letters):
                taken.update(letters)
                place = _modified(folded[: match.start()], row["place"])
                claims.append(Claim(row["axis"], place, match.start(), match.end()))
    return claims


def terms_in(text: str) -> list[Claim]:
    """Return the claims that words of a property make in a text, negations and modifiers worked in.

    >>> [(claim.axis, round(claim.place, 2)) for claim in terms_in("very blurry and not dark")]
    [('sharpness', 0.03), ('brightness', 0.83)]
    """
    return sorted(_read("terms", text), key=lambda claim: claim.at)


_NEGATED, _HALF_NEGATED, _WEAKER, _STRONGER = -0.86, -0.5, 0.55, 1.35
"""What a modifier makes of a claim's distance from the middle."""
_NEARBY = 24
"""Letters before a word within which it is weakened or strengthened."""


def _modified(before: str, place: float) -> float:
    clause = form("clause_end").split(before)[-1]
    near, off = clause[-_NEARBY:], place - 0.5
    if form("half_negation").search(clause):
        off *= _HALF_NEGATED
    elif form("negation").search(clause):
        off *= _NEGATED
    elif form("weaker").search(near):
        off *= _WEAKER
    elif form("stronger").search(near):
        off *= _STRONGER
    return min(max(0.5 + off, 0.0), 1.0)


def topic_in(text: str) -> Claim | None:
    """Return the property a text names first without saying how much of it there is, or None.

    >>> topic_in("How is the lighting of this image?").axis, topic_in("What is she holding?")
    ('lighting', None)
    """
    topics = [claim._replace(kind="topic") for claim in _read("topics", text)]
    return min(topics, key=lambda topic: (_VAGUE.get(topic.axis, 0), topic.at), default=None)


def degree_in(text: str) -> Claim | None:
    """Return the place of the first word of degree in a text, without an axis, or None.

    >>> degree_in("Slight").place, degree_in("Very good").place, degree_in("a helmet")
    (0.25, 0.97, None)
    """
    row = row_of("degrees", text)
    return Claim("", row["place"], kind=row["kind"]) if row else None


def row_of(table: str, text: str) -> Mapping[str, Any] | None:
    """Return the first row of a table whose words a text holds, or None."""
    folded = text.casefold().strip()
    return next((row for words, row in entries(table) if words.search(folded)), None)


def cells_in(text: str, *, with_subject: bool = True) -> Cells | None:
    """Return the cells that a text's place words name, or None for none or the whole picture.

    `with_subject`: the subject of a picture is a place, its centre.

    >>> cells_in("Is the upper left corner dark?"), cells_in("Is this image dark?")
    (((0, 0),), None)
    """
    row = row_of("places", text)
    if row is None or (row.get("is_subject") and not with_subject):
        return None
    return tuple(divmod(cell, 3) for cell in row["cells"])


def property_in(text: str) -> Claim | None:
    """Return the property that a question names first, by a word for it or as a topic."""
    terms = terms_in(text)
    return terms[0] if terms else topic_in(text)


def predicate(text: str) -> list[Claim]:
    """Return what a text claims: its last word of a property, two with "and", or its topic; and a cause.

    >>> [(claim.axis, claim.more) for claim in predicate("is the colour of the dark jacket vivid?")]
    [('colour', True)]
    """
    main, *causes = form("cause").split(text)
    claims = terms_in(main)
    if len(claims) > 1:
        between = main[claims[-2].at : claims[-1].at]
        claims = claims[-2:] if form("and").search(between) else claims[-1:]
    if len(claims) == 1:
        claims = [_graded(claims[0], degree_in(main[claims[0].end :]))]
    elif not claims:
        claims = _of_topic(topic_in(main), degree_in(main))
    return claims + (terms_in(causes[0])[:1] if causes else [])


_LITTLE = 0.2
"""Place of the claim that there is little of something."""


def _graded(claim: Claim, degree: Claim | None) -> Claim:
    """Work in a degree behind a fault: "is the noise low?" asks whether there is little."""
    if degree is None or not (axis_of(claim.axis).is_fault and claim.more):
        return claim
    is_little = degree.place > 0.6 if degree.kind == "merit" else degree.place < 0.4
    return claim._replace(place=_LITTLE) if is_little else claim


def _of_topic(topic: Claim | None, degree: Claim | None) -> list[Claim]:
    """Return what a topic, a word of degree, or both together claim: "a good one" is of quality."""
    is_merit = degree is not None and degree.kind == "merit"
    if topic is None:
        return [degree._replace(axis="quality")] if degree is not None and is_merit else []
    if degree is None or (is_merit and topic.axis == "distortion"):
        return [topic]
    if is_merit and topic.axis == "lighting":
        # Good light is neither too much nor too little.
        return [Claim("exposure", 0.5 if degree.more else 1.0, topic.at)]
    return [Claim(topic.axis, degree.place, topic.at)]
