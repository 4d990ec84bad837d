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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from signatures.schemas import DistortionCategory

_FAULTS: Mapping[DistortionCategory, tuple[str, str]] = {
    "Blurs": ("blur", r"(?:motion |strong )?blur(?:s|ring|riness)?|defocus"),
    "Color distortions": ("wrong colour", r"(?:wrong |false |distorted )?colou?rs?(?: casts?| distortions?| errors?)?"),
    "Compression": ("compression", r"(?:jpeg )?compression(?: art[ei]facts)?|block(?:s|ing|iness)|jpeg art[ei]facts"),
    "Noise": ("noise", r"(?:colou?r |image )?noise|grain"),
    "Brightness change": ("wrong brightness", r"(?:wrong )?(?:brightness|exposure)|darkness|(?:over|under)-?exposure"),
    "Sharpness": ("over-sharpening", r"over-?sharpen(?:ing|ed edges)|halos"),
    "Contrast": ("wrong contrast", r"(?:wrong |low |flat )?contrast|haze"),
}
TRAITS: Mapping[str, str] = {
    "colourfulness": "strong colour", "contrast range": "strong contrast", "brightness": "bright light",
    "detail": "fine detail",
}  # fmt: skip
"""What may be liked: a property of `program.expert.judge.views`, and its name in a sentence."""
_FACTORS = {
    "not at all": 0.0, "half": 0.5, "one and a half times": 1.5, "half again": 1.5, "twice": 2.0, "double": 2.0,
    "three times": 3.0,
}  # fmt: skip
_AMOUNTS = {"a quarter of a level": 0.25, "half a level": 0.5, "one level": 1.0, "a level": 1.0, "a little": 0.25}
_DEGREES = {"a little": 0.25, "very much": 1.0}
_STRETCHES = {"more": 1.25, "much more": 1.6, "less": 0.8, "much less": 0.6}
_FAULT = "|".join(f"(?:{pattern})" for _, pattern in _FAULTS.values())
_IGNORE = re.compile(rf"ignore (?:any |all |the )?({_FAULT})")
_COUNTS = re.compile(rf"({_FAULT}) counts? (?:about )?({'|'.join(_FACTORS)})(?: as much)?(?: as (usual|{_FAULT}))?")
_LIKED = re.compile(
    r"(?P<trait>(?:strong|rich|vivid) colou?rs?|(?:strong|high) contrast|bright light|(?:fine|sharp) detail) "
    r"(?:is|are) (?P<un>dis)?liked(?: (?P<degree>a little|very much))?"
)
_STRICT = re.compile(rf"judge (?:({'|'.join(_AMOUNTS)}) )?more (strictly|mildly|leniently)")
_SCALE = re.compile(r"use ((?:much )?(?:more|less)) of the scale")
_OPENING = re.compile(r"^(?:[-*]|on (?:these|such) (?:images|photographs),?|please|here,?)\s+")


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

        `severities` are points that each category takes off (0 .. 4), `traits` positions 0 (least) .. 1 (most).
        """
        for category, weight in self.weights.items():
            quality = quality + (1 - weight) * severities[category]
        for trait, points in self.likes.items():
            quality = quality + points * (traits[trait] - 0.5)
        return 3 + self.stretch * (quality - 3) + self.mildness


PLAIN = Rubric()
"""What a text without such sentences says."""


def _read(sentence: str) -> Rubric | None:
    if match := _IGNORE.fullmatch(sentence):
        return Rubric(weights={_category(match[1]): 0.0})
    if match := _COUNTS.fullmatch(sentence):
        factor, other = _FACTORS[match[2]], match[3]
        if other in {None, "usual"}:
            return Rubric(weights={_category(match[1]): factor})
        one, two = _category(match[1]), _category(other)
        return Rubric(weights={one: factor**0.5, two: factor**-0.5}) if factor and one != two else None
    if match := _LIKED.fullmatch(sentence):
        kind = next(t for t, name in TRAITS.items() if match["trait"].rstrip("s").split()[-1][:4] in name)
        return Rubric(likes={kind: (-1 if match["un"] else 1) * _DEGREES.get(match["degree"] or "", 0.5)})
    if match := _STRICT.fullmatch(sentence):
        return Rubric(mildness=_AMOUNTS.get(match[1] or "", 0.5) * (-1 if match[2] == "strictly" else 1))
    if match := _SCALE.fullmatch(sentence):
        return Rubric(stretch=_STRETCHES[match[1]])
    return None


def _category(words: str) -> DistortionCategory:
    return next(category for category, (_, pattern) in _FAULTS.items() if re.fullmatch(pattern, words))


@functools.lru_cache(maxsize=256)
def rubric_in(text: str) -> Rubric:
    """Return what a text says in sentences of the grammar; each counts once, the last of two on one thing stands.

    >>> rubric_in("You judge images. On these images, ignore noise.").weights
    {'Noise': 0.0}
    """
    whole = PLAIN
    for part in re.split(r"[.;\n]+", text.casefold()):
        read = _read(_OPENING.sub("", " ".join(part.split())))
        if read is not None:
            whole = Rubric(
                {**whole.weights, **read.weights}, {**whole.likes, **read.likes}, read.mildness or whole.mildness,
                read.stretch if read.stretch != 1 else whole.stretch,
            )  # fmt: skip
    return whole


def sentences_in(instructions: str) -> list[str]:
    """Return the sentences of the rubric that instructions end in, as they stand there."""
    return [line.removeprefix("- ") for line in instructions.partition(_HEAD)[2].splitlines() if line.strip()]


def with_rubric(instructions: str, sentences: Iterable[str]) -> str:
    """Return instructions that end in a rubric, instead of one that they ended in before."""
    body = instructions.partition(_HEAD)[0].rstrip()
    lines = "\n".join(f"- {sentence}" for sentence in sentences)
    return f"{body}\n\n{_HEAD}\n{lines}" if lines else body


_HEAD = "What counts on these images:"

SENTENCES: tuple[str, ...] = (
    *(f"{name.capitalize()} counts {factor} as much as usual." for name, _ in _FAULTS.values()
      for factor in ("half", "one and a half times", "twice")),
    *(f"Ignore {name}." for name, _ in _FAULTS.values()),
    *(f"{name.capitalize()} is {way}{degree}." for name in TRAITS.values() for way in ("liked", "disliked")
      for degree in (" a little", "", " very much")),
    *(f"Judge {amount} more {way}." for amount in list(_AMOUNTS)[:3] for way in ("strictly", "mildly")),
    *(f"Use {amount} of the scale." for amount in _STRETCHES),
)  # fmt: skip
"""Every sentence that a fit may choose."""
