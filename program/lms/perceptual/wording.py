"""What words say of a property, in questions and options alike: which axis they are on, and where. Pure text.

An axis is one of `amounts.AXES` ("sharpness", "brightness", "noise" ...), a place 0 (none of it, or worst) .. 1 (most,
or best). Words of degree alone ("severe", "high", "good") have a place and no axis: the question says of what.
English and Chinese.
"""

import functools
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import yaml

__all__ = ("Said", "degree_in", "terms_in", "topic_in")

Kind = Literal["amount", "merit"]


@dataclass(frozen=True, slots=True)
class Said:
    """One word's claim: axis ("" for words of degree), place 0..1, and where in the text it stands (`at` to `end`)."""

    axis: str
    place: float
    at: int = 0
    kind: Kind = "amount"
    end: int = 0

    @property
    def more(self) -> bool:
        """Whether the word claims more of its axis than the middle."""
        return self.place >= 0.5


@dataclass(frozen=True, slots=True)
class _Entry:
    axis: str
    place: float
    kind: Kind
    pattern: re.Pattern[str]


def _pattern(english: list[str], chinese: list[str]) -> re.Pattern[str]:
    return re.compile("|".join([rf"\b(?:{'|'.join(english)})\b", *chinese]))


@functools.cache
def _words(table: str) -> tuple[_Entry, ...]:
    """Return one of the tables of `words.yaml`: terms, topics or degrees."""
    stated = yaml.safe_load(files("program.lms.perceptual").joinpath("words.yaml").read_text(encoding="utf-8"))
    return tuple(
        _Entry(
            row.get("axis", ""), float(row["place"]), row.get("kind", "amount"),
            _pattern(row["english"], row["chinese"]),
        )
        for row in stated[table]
    )  # fmt: skip


_STRONGER = re.compile(
    r"\b(?:very|extremely|really|highly|super|severely|seriously|heavily|too|totally|completely|absolutely|most|"
    r"entirely|fully|perfectly|exceptionally|excessively|overly|strongly|obvious(?:ly)?|significantly|quite)\b"
    r"|非常|极|很|十分|严重|太|完全|特别"
)
_WEAKER = re.compile(
    r"\b(?:slightly|slight|somewhat|a (?:little )?bit|a little|relatively|fairly|mildly|moderately|rather|partially|"
    r"partly|generally|basically|kind of|almost|mostly|some|any)\b|有点|有些|略|稍|较|比较|部分|偏|轻微"
)
_NOT = re.compile(
    r"\b(?:not|isn't|aren't|no|never|without|free (?:of|from)|lack(?:s|ing)?(?: of)?|neither|absence of|hardly|barely|"
    r"(?<!a )little)\b(?:\s+(?:any|very|too|so|that|really|visible|obvious|enough|the|at all|much|signs? of|quite|"
    r"have|be|look|appear|show|contain|suffer from|exhibit|significant|noticeable)){0,3}\s*$"
    r"|(?:(?<!有)没有|(?<!是)不(?!均)|无|未|并非|缺乏|缺少)"
    r"(?:太|够|是|是很|很|怎么|任何|明显|存在|出现){0,2}$"
)
_HALF_NOT = re.compile(
    r"\b(?:not (?:very|too|so|that|really|quite)|hardly|barely|(?<!a )little)\s*$|不(?:太|够|是很|怎么)$"
)


_VAGUE = {"distortion": 1, "quality": 2, "taste": 3}


def terms_in(text: str) -> list[Said]:
    """Return the claims that words of a property make in a text, in its order, negations and modifiers worked in.

    >>> [(s.axis, round(s.place, 2)) for s in terms_in("very blurry and not dark")]
    [('sharpness', 0.03), ('brightness', 0.83)]
    """
    folded = text.casefold()
    taken: list[tuple[int, int]] = []
    found = []
    for entry in _words("terms"):
        for match in entry.pattern.finditer(folded):
            start, end = match.span()
            if start == end or any(start < b and a < end for a, b in taken):
                continue
            taken.append((start, end))
            found.append(Said(entry.axis, _modified(folded[:start], entry.place), start, end=end))
    return sorted(found, key=lambda said: said.at)


def _modified(before: str, place: float) -> float:
    clause = re.split(r"[,;.?!，。；？！]|\b(?:but|and|or|because|due to)\b", before)[-1]
    off = place - 0.5
    if _NOT.search(clause):
        return 0.5 - off * (0.5 if _HALF_NOT.search(clause) else 0.86)
    near = clause[-24:]
    if _WEAKER.search(near):
        return 0.5 + 0.55 * off
    return min(max(0.5 + 1.35 * off, 0.0), 1.0) if _STRONGER.search(near) else place


def topic_in(text: str) -> Said | None:
    """Return the property a text names first without saying how much of it there is, or None.

    >>> topic_in("How is the lighting of this image?").axis, topic_in("What is she holding?")
    ('lighting', None)
    """
    folded = text.casefold()
    found = [
        Said(entry.axis, _modified(folded[: match.start()], entry.place), match.start())
        for entry in _words("topics")
        if (match := entry.pattern.search(folded)) is not None
    ]
    # "Quality" and "problem" say nothing where a property is named as well ("the quality of the lighting").
    return min(found, key=lambda said: (_VAGUE.get(said.axis, 0), said.at), default=None)


def degree_in(text: str) -> Said | None:
    """Return the place of the first word of degree in a text, without an axis, or None.

    >>> degree_in("Slight").place, degree_in("Very good").place, degree_in("a helmet")
    (0.25, 0.97, None)
    """
    folded = text.casefold()
    for entry in _words("degrees"):
        match = entry.pattern.search(folded)
        if match:
            return Said("", entry.place, match.start(), entry.kind)
    return None
