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
from itertools import permutations
from typing import Any

from signatures.schemas import DistortionCategory

_FAULTS: Mapping[str, DistortionCategory] = {
    "blur": "Blurs",
    "wrong colour": "Color distortions",
    "compression": "Compression",
    "noise": "Noise",
    "wrong brightness": "Brightness change",
    "over-sharpening": "Sharpness",
    "wrong contrast": "Contrast",
}
TRAITS: Mapping[str, str] = {
    "colourfulness": "strong colour",
    "contrast range": "strong contrast",
    "brightness": "bright light",
    "detail": "fine detail",
}
"""What may be liked: a property of `program.expert.judge.views`, and its name in a sentence."""
_FACTORS = {"half": 0.5, "one and a half times": 1.5, "twice": 2.0}
_THREEFOLD = "three times"
_DEGREES = {" a little": 0.25, "": 0.5, " very much": 1.0}
"""Points from the least of a trait to the most."""
_AMOUNTS = {"a quarter of a level": 0.25, "half a level": 0.5, "one level": 1.0}
_STRETCHES = {"more": 1.25, "much more": 1.6, "less": 0.8, "much less": 0.6}
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


def _fitted() -> Iterator[tuple[str, Rubric]]:
    """Yield every sentence that a fit may choose, with what it says."""
    for name, category in _FAULTS.items():
        for words, factor in _FACTORS.items():
            yield f"{name} counts {words} as much as usual", Rubric(weights={category: factor})
    for name, category in _FAULTS.items():
        yield f"ignore {name}", Rubric(weights={category: 0.0})
    for trait, name in TRAITS.items():
        for way, sign in (("liked", 1), ("disliked", -1)):
            for degree, points in _DEGREES.items():
                yield f"{name} is {way}{degree}", Rubric(likes={trait: sign * points})
    for amount, levels in _AMOUNTS.items():
        for way, sign in (("strictly", -1), ("mildly", 1)):
            yield f"judge {amount} more {way}", Rubric(mildness=sign * levels)
    for amount, stretch in _STRETCHES.items():
        yield f"use {amount} of the scale", Rubric(stretch=stretch)


def _by_hand() -> Iterator[tuple[str, Rubric]]:
    """Yield every further sentence that a person may write, with what it says."""
    for name, category in _FAULTS.items():
        yield f"{name} counts {_THREEFOLD} as much as usual", Rubric(weights={category: 3.0})
    for (name, category), (other, second) in permutations(_FAULTS.items(), 2):
        for words, factor in {**_FACTORS, _THREEFOLD: 3.0}.items():
            ratio: Mapping[str, float] = {category: factor**0.5, second: factor**-0.5}
            yield f"{name} counts {words} as much as {other}", Rubric(weights=ratio)


SENTENCES = tuple(f"{sentence.capitalize()}." for sentence, _ in _fitted())
"""Every sentence that a fit may choose."""
_MEANINGS = dict((*_fitted(), *_by_hand()))


@functools.lru_cache(maxsize=256)
def rubric_in(text: str) -> Rubric:
    """Return what a text says in such sentences; the last of two on one thing stands.

    >>> rubric_in("You judge images. On these images, ignore noise.").weights
    {'Noise': 0.0}
    """
    whole = PLAIN
    for part in re.split(r"[.;\n]+", text.casefold().replace("color", "colour")):
        said = _MEANINGS.get(_OPENING.sub("", " ".join(part.split())))
        if said is not None:
            whole = _joined(whole, said)
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
