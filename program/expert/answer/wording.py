"""What words say of a property, in questions and options alike: which axis they are on, and where. Pure text.

An axis is one of those of `phrases.yaml` ("sharpness", "brightness", "noise" ...), a place 0 (none of it, or worst)
.. 1 (most, or best). Words of degree alone ("severe", "high", "good") have a place and no axis: the question says of
what. Places in the picture are cells of the 3 x 3 maps: objects cannot be found, places can. English and Chinese.
"""

import re

from program.expert.answer.vocabulary import Cells, Claim, entries, form

__all__ = ("cells_in", "degree_in", "place_name", "terms_in", "topic_in")

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
