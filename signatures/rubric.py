"""A rubric in words: what is minded and liked in images, in sentences that a person can read, write and edit.

| sentence | what it does to a quality on 1..5 |
|---|---|
| Ignore noise. | what noise takes off is given back |
| Noise counts half as much as usual. (twice, one and a half times ...) | what noise takes off counts by that factor |
| Blur counts twice as much as noise. | blur counts by the factor's root more, noise by as much less |
| Strong colour is liked. (contrast, light, detail; disliked; a little, very much) | half a point from least to most |
| Judge half a level more strictly. (a quarter of a level, one level; more mildly) | off every score, or on it |
| Use more of the scale. (much more, less, much less) | differences from the middle grow (shrink) by a quarter |

A sentence of another form says nothing here. Language models get the same text.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from signatures.schemas import DistortionCategory

_FAULTS: Mapping[DistortionCategory, tuple[str, str]] = {
    "Blurs": ("blur", r"(?:motion |strong )?blur(?:s|ring|riness)?|defocus"),
    "Color distortions": (
        "wrong colour",
        r"(?:wrong |false |distorted )?colou?rs?(?: casts?| distortions?| errors?)?",
    ),
    "Compression": (
        "compression",
        r"(?:jpeg )?compression(?: art[ei]facts)?|block(?:s|ing|iness)|jpeg art[ei]facts",
    ),
    "Noise": ("noise", r"(?:colou?r |image )?noise|grain"),
    "Brightness change": (
        "wrong brightness",
        r"(?:wrong )?(?:brightness|exposure)|darkness|(?:over|under)-?exposure",
    ),
    "Sharpness": ("over-sharpening", r"over-?sharpen(?:ing|ed edges)|halos"),
    "Contrast": ("wrong contrast", r"(?:wrong |low |flat )?contrast|haze"),
}
TRAITS: Mapping[str, str] = {
    "colourfulness": "strong colour",
    "contrast range": "strong contrast",
    "brightness": "bright light",
    "detail": "fine detail",
}
"""What may be liked: a property of `program.expert.judge.views`, and its name in a sentence."""
_FACTORS = {
    "not at all": 0.0, "half": 0.5, "one and a half times": 1.5, "half again": 1.5,
    "twice": 2.0, "double": 2.0, "three times": 3.0,
}  # fmt: skip
_AMOUNTS = {
    "a quarter of a level": 0.25, "half a level": 0.5, "one level": 1.0, "a level": 1.0,
    "a little": 0.25,
}  # fmt: skip
_USUAL_AMOUNT = 0.5
"""Levels, where a sentence says no amount."""
_DEGREES = {"a little": 0.25, "very much": 1.0}
_USUAL_DEGREE = 0.5
"""Points from the least of a trait to the most, where a sentence says no degree."""
_STRETCHES = {"more": 1.25, "much more": 1.6, "less": 0.8, "much less": 0.6}
_FAULT = "|".join(f"(?:{pattern})" for _, pattern in _FAULTS.values())
_IGNORE = re.compile(rf"ignore (?:any |all |the )?({_FAULT})")
_COUNTS = re.compile(
    rf"({_FAULT}) counts? (?:about )?({'|'.join(_FACTORS)})"
    rf"(?: as much)?(?: as (usual|{_FAULT}))?"
)
_TRAIT_PATTERNS = {
    "colourfulness": r"(?:strong|rich|vivid) colou?rs?",
    "contrast range": r"(?:strong|high) contrast",
    "brightness": r"bright light",
    "detail": r"(?:fine|sharp) detail",
}
_LIKED = re.compile(
    rf"(?P<trait>{'|'.join(_TRAIT_PATTERNS.values())}) "
    r"(?:is|are) (?P<dis>dis)?liked(?: (?P<degree>a little|very much))?"
)
_STRICT = re.compile(rf"judge (?:({'|'.join(_AMOUNTS)}) )?more (strictly|mildly|leniently)")
_SCALE = re.compile(r"use ((?:much )?(?:more|less)) of the scale")
_OPENING = re.compile(r"^(?:(?:[-*]|on (?:these|such) (?:images|photographs),?|please,?|here,?)\s+)+")
_MIDDLE = 3
"""The level about which a rubric stretches the scale."""


@dataclass(frozen=True)
class Rubric:
    """What sentences say, together."""

    weights: Mapping[str, float] = field(default_factory=dict)
    """By distortion category: how much it counts, 1 as usual."""
    likes: Mapping[str, float] = field(default_factory=dict)
    """By one of `TRAITS`: points from the least of it to the most, half of them off and half on."""
    mildness: float = 0.0
    stretch: float = 1.0

    def judged(self, quality: Any, severities: Mapping[Any, Any], traits: Mapping[str, Any]) -> Any:
        """Return a quality (1..5, may leave it; numbers or arrays) as judged by this rubric.

        `severities` are points that each category takes off (0 .. 4), `traits` positions 0 (least)
        .. 1 (most).
        """
        for category, weight in self.weights.items():
            quality = quality + (1 - weight) * severities[category]
        for trait, points in self.likes.items():
            quality = quality + points * (traits[trait] - 0.5)
        return _MIDDLE + self.stretch * (quality - _MIDDLE) + self.mildness


PLAIN = Rubric()
"""What a text without such sentences says."""


def _read(sentence: str) -> Rubric | None:
    if match := _IGNORE.fullmatch(sentence):
        return Rubric(weights={_category(match[1]): 0.0})
    if match := _COUNTS.fullmatch(sentence):
        return _counted(match[1], _FACTORS[match[2]], match[3] or "usual")
    if match := _LIKED.fullmatch(sentence):
        patterns = _TRAIT_PATTERNS.items()
        trait = next(name for name, pattern in patterns if re.fullmatch(pattern, match["trait"]))
        points = _DEGREES.get(match["degree"], _USUAL_DEGREE)
        return Rubric(likes={trait: -points if match["dis"] else points})
    if match := _STRICT.fullmatch(sentence):
        levels = _AMOUNTS.get(match[1], _USUAL_AMOUNT)
        return Rubric(mildness=-levels if match[2] == "strictly" else levels)
    if match := _SCALE.fullmatch(sentence):
        return Rubric(stretch=_STRETCHES[match[1]])
    return None


def _counted(fault: str, factor: float, other: str) -> Rubric | None:
    """Return how much a fault counts beside the usual or beside another fault."""
    category = _category(fault)
    if other == "usual":
        return Rubric(weights={category: factor})
    second = _category(other)
    if not factor or category == second:
        return None
    return Rubric(weights={category: factor**0.5, second: factor**-0.5})


def _category(words: str) -> DistortionCategory:
    faults = _FAULTS.items()
    return next(category for category, (_, pattern) in faults if re.fullmatch(pattern, words))


@functools.lru_cache(maxsize=256)
def rubric_in(text: str) -> Rubric:
    """Return what a text says in sentences of the grammar; the last of two on one thing stands.

    >>> rubric_in("You judge images. On these images, ignore noise.").weights
    {'Noise': 0.0}
    """
    whole = PLAIN
    for part in re.split(r"[.;\n]+", text.casefold()):
        read = _read(_OPENING.sub("", " ".join(part.split())))
        if read is not None:
            whole = _joined(whole, read)
    return whole


def _joined(whole: Rubric, part: Rubric) -> Rubric:
    weights = {**whole.weights, **part.weights}
    likes = {**whole.likes, **part.likes}
    stretch = whole.stretch if part.stretch == 1 else part.stretch
    return Rubric(weights, likes, part.mildness or whole.mildness, stretch)


def sentences_in(instructions: str) -> list[str]:
    """Return the sentences of the rubric that instructions end in, as they stand there."""
    rubric = instructions.partition(_HEAD)[2]
    return [line.removeprefix("- ") for line in rubric.splitlines() if line.strip()]


def with_rubric(instructions: str, sentences: Iterable[str]) -> str:
    """Return instructions that end in a rubric, instead of one that they ended in before."""
    body = instructions.partition(_HEAD)[0].rstrip()
    lines = "\n".join(f"- {sentence}" for sentence in sentences)
    return f"{body}\n\n{_HEAD}\n{lines}" if lines else body


_HEAD = "What counts on these images:"


def _sentences() -> Iterator[str]:
    faults = [name for name, _ in _FAULTS.values()]
    for name in faults:
        for factor in ("half", "one and a half times", "twice"):
            yield f"{name.capitalize()} counts {factor} as much as usual."
    for name in faults:
        yield f"Ignore {name}."
    for name in TRAITS.values():
        for way in ("liked", "disliked"):
            for degree in (" a little", "", " very much"):
                yield f"{name.capitalize()} is {way}{degree}."
    for amount in ("a quarter of a level", "half a level", "one level"):
        for way in ("strictly", "mildly"):
            yield f"Judge {amount} more {way}."
    for amount in _STRETCHES:
        yield f"Use {amount} of the scale."


SENTENCES = tuple(_sentences())
"""Every sentence that a fit may choose."""
