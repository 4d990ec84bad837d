"""One line of a manifest: an image with its question or score, and what is wrong with a line in words."""

import json
import math
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

__all__ = ("WANTED", "Box", "Sample", "Split", "Task", "close_field", "fault_of", "is_far_outside", "shortened")

Split: TypeAlias = Literal["train", "validation", "test"]
Task: TypeAlias = Literal["scoring", "mcq", "open"]
Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Letter: TypeAlias = Annotated[StrictStr, Field(pattern="^[A-Z]$")]
Choice: TypeAlias = Annotated[StrictStr, Field(pattern=r"\S")]
Box: TypeAlias = tuple[Number, Number, Number, Number]
"""A region in pixels: left, top, right, bottom; right and bottom are outside the region."""

_FAR_OUTSIDE = 0.25
"""Part of its scale's width that a score may pass it by: realigned DMOS of LIVE pass 0..100 by 12."""


class Sample(BaseModel):
    """One line of a manifest: an image with a question, a human score or both."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: StrictStr = Field(min_length=1)
    """Unique in its manifest."""
    image: Path
    """Absolute path; nothing has checked that a file is there."""
    reference: Path | None = None
    """The undistorted image, where there is one."""
    query: StrictStr | None = None
    options: Annotated[dict[Letter, Choice], Field(min_length=2)] | None = None
    """Two or more choices by letter; makes the sample a multiple-choice question."""
    answer: StrictStr | None = None
    """The right option's letter (without options: the expected text)."""
    mos: Number | None = None
    """Mean opinion score on `mos_range`; a value may pass the range by a quarter of its width."""
    mos_std: Annotated[Number, Field(ge=0)] | None = None
    mos_range: tuple[Number, Number] = (1.0, 5.0)
    """Lowest and highest score of the scale."""
    higher_is_better: StrictBool = True
    distortion: StrictStr | None = None
    group: StrictStr | None = None
    """Image content; never split across train, validation and test."""
    split: Split | None = None
    regions: dict[StrictStr, Box] | None = None
    """Boxes of named regions, in pixels."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Everything else that the line holds."""

    @property
    def quality(self) -> float | None:
        """The score mapped linearly to 1..5 with 5 the best; None without a score."""
        if self.mos is None:
            return None
        low, high = self.mos_range
        score = 1 + 4 * (self.mos - low) / (high - low)
        return score if self.higher_is_better else 6 - score

    @property
    def task(self) -> Task:
        """What is asked: "mcq" with options, "scoring" with a score, else "open"."""
        if self.options:
            return "mcq"
        return "open" if self.mos is None else "scoring"

    @property
    def missing_file(self) -> Path | None:
        """The image or the reference where it is not there, else None."""
        return next((path for path in (self.image, self.reference) if path is not None and not path.is_file()), None)

    @property
    def is_labelled(self) -> bool:
        """Whether people have said what is right: a score, or the answer of a question with options."""
        return self.answer is not None if self.options else self.mos is not None

    @field_validator("image", "reference", mode="before")
    @classmethod
    def _names_a_file(cls, value: Any, info: ValidationInfo) -> Any:
        text = str(value)
        if not text.strip() or "\0" in text:
            raise ValueError(f'"{info.field_name}" is empty; give the path of an image file')
        if "://" in text:
            raise ValueError(f'"{info.field_name}" is the URL {shortened(value)}; download it and give its path')
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "Sample":
        if self.answer is not None and self.options is not None and self.answer not in self.options:
            letters = ", ".join(self.options)
            raise ValueError(
                f'"answer" is {shortened(self.answer)}, not among the options {letters}; give one of these letters'
            )
        if not self.mos_range[0] < self.mos_range[1]:
            raise ValueError(f'"mos_range" is {list(self.mos_range)}; give the lower end first')
        if self.mos is not None and is_far_outside(self.mos, self.mos_range):
            low, high = self.mos_range
            raise ValueError(f'"mos" is {self.mos:g}, far outside {low:g}..{high:g}; correct it or "mos_range"')
        for name, (left, top, right, bottom) in (self.regions or {}).items():
            if not (left < right and top < bottom):
                raise ValueError(f'"regions" {name!r} is empty; give left < right and top < bottom')
        return self


def is_far_outside(score: float, scale: tuple[float, float]) -> bool:
    """Tell whether a score passes its scale by more than a quarter of its width, which no rounding or refit explains.

    >>> is_far_outside(112, (0, 100)), is_far_outside(99, (1, 5))
    (False, True)
    """
    low, high = scale
    return max(low - score, score - high) > _FAR_OUTSIDE * (high - low)


WANTED = {
    "id": "a non-empty text",
    "image": "a path as text",
    "reference": "a path as text, or null",
    "query": "a text",
    "options": 'two or more texts under letters, as {"A": "Yes", "B": "No"}',
    "answer": "one of the options' letters",
    "mos": "a finite number",
    "mos_std": "a finite number from 0",
    "mos_range": "two finite numbers, [lowest, highest]",
    "higher_is_better": "true or false",
    "distortion": "a text",
    "group": "a text",
    "split": '"train", "validation" or "test"',
    "regions": 'an object of names and boxes, as {"car": [left, top, right, bottom]}',
    "metadata": "an object",
}
"""What each key of a manifest holds, in words."""


@lru_cache(maxsize=1024)
def close_field(key: str) -> str | None:
    """Return the manifest's key that an unknown one was probably meant to be, or None.

    >>> close_field("MOS"), close_field("groups"), close_field("level")
    ('mos', 'group', None)
    """
    return next(iter(get_close_matches(key.strip().casefold(), WANTED, n=1, cutoff=0.85)), None)


def fault_of(error: ValidationError) -> str:
    """Return what is wrong with a sample, and the mend, in a few words."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    field = str(first["loc"][0])
    if first["type"] == "missing" and len(first["loc"]) == 1:
        return f'"{field}" is missing; add it'
    value, inside = shortened(first["input"]), first["loc"][1:]
    if inside and isinstance(inside[0], str):
        value += f" for {inside[0]!r}"
    return f'"{field}" {"holds" if inside else "is"} {value}, not {WANTED[field]}; correct it'


def shortened(value: Any) -> str:
    """Return a value as JSON of 60 characters at most."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
