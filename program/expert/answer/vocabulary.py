"""The expert's words in English and Chinese: those it reads, what they say of a property, and its sentences. Pure."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from program.common.text import is_chinese
from program.expert.store import stored_table
from signatures.schemas import DistortionCategory

Cells = tuple[tuple[int, int], ...]
"""(row, column) pairs of the 3 x 3 maps, rows from the top."""


@dataclass(frozen=True, slots=True)
class Claim:
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


@dataclass(frozen=True, slots=True)
class Axis:
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


class Phrases:
    """Sentences, templates and words by name ("section.name"), in one language."""

    def __init__(self, column: int) -> None:
        """Take the column of the file: 0 English, 1 Chinese."""
        self._column = column

    def __call__(self, name: str, /, **values: Any) -> str:
        """Return a phrase with its values filled in."""
        return _table()[name][self._column].format(**values)

    def join(self, *sentences: str) -> str:
        """Join sentences that follow each other; empty ones are left out."""
        return self("sentence.gap").join(sentence for sentence in sentences if sentence)


@functools.cache
def _table() -> Mapping[str, tuple[str, str]]:
    sections = stored_table("phrases.yaml").items()
    return {f"{section}.{name}": tuple(pair) for section, pairs in sections for name, pair in pairs.items()}


ENGLISH, CHINESE = Phrases(0), Phrases(1)


def phrases_for(query: str) -> Phrases:
    """Return the phrases of a question's language: Chinese, or else English."""
    return CHINESE if is_chinese(query) else ENGLISH


def capitalised(sentence: str) -> str:
    """Return a sentence with its first letter large; Chinese stays as it is."""
    return sentence[:1].upper() + sentence[1:]


def uncapitalised(sentence: str) -> str:
    """Return a sentence with its first letter small."""
    return sentence[:1].lower() + sentence[1:]


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


def place_name(text: str) -> str:
    """Return the words by which a text names a place, or ""."""
    folded = text.casefold().strip()
    return next((match[0] for words, _ in entries("places") if (match := words.search(folded))), "")
