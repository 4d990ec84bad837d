"""Labelled photographs, and which of them look most like an image: what people said of those is evidence on it."""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from program.common.errors import first_fault
from program.common.text import folded
from program.expert import WIDTH, likeness
from program.fusion.levels import nearest_level
from signatures.schemas import LEVEL_WORDS

if TYPE_CHECKING:
    from program.expert import View

__all__ = ("Neighbour", "Neighbours")


class Neighbour(BaseModel):
    """One labelled photograph, as a saved program holds it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    group: str
    """Photographs of one group are never evidence on each other."""
    kind: str = Field(pattern="^(nr|fr)$")
    """Judged alone, or beside a reference: only those of a kind are compared."""
    label: float | None = Field(default=None, ge=1, le=5)
    query: str | None = None
    answer: str | None = None
    """The right option of a question, in its words. A photograph has a label or a question with its answer."""

    @model_validator(mode="after")
    def _labelled(self) -> "Neighbour":
        if (self.label is None) == (self.query is None or self.answer is None):
            raise ValueError("label, or query with answer: one of them is needed")
        return self


class _Saved(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int = Field(ge=1, le=64)
    photographs: list[Neighbour] = Field(min_length=1)
    vectors: str
    """Little-endian half-precision numbers, `WIDTH` a photograph, in base64."""

    @model_validator(mode="after")
    def _whole(self) -> "_Saved":
        if len(base64.b64decode(self.vectors, validate=True)) != 2 * WIDTH * len(self.photographs):
            raise ValueError(f"vectors: {WIDTH} numbers a photograph are needed")
        return self


class Neighbours:
    """Labelled photographs to look up the nearest `count` of; never changed."""

    def __init__(self, count: int, photographs: Sequence[Neighbour], vectors: NDArray[np.float16]) -> None:
        """Take the photographs and their N x `WIDTH` likenesses."""
        self.count, self.photographs, self.vectors = count, tuple(photographs), vectors
        self._groups = {photograph.sha256: photograph.group for photograph in photographs}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Neighbours":
        return self

    def nearest(self, view: "View", among: Callable[[Neighbour], bool]) -> list[Neighbour]:
        """Return those `among` the photographs that look most like an image, the most alike first.

        None is of the image's own group.
        """
        own, kind = self._groups.get(view.key[0]), view.model.kind
        places = [n for n, each in enumerate(self.photographs)
                  if each.kind == kind and each.group != own and among(each)]  # fmt: skip
        distances = self.vectors[places].astype(np.float32) - likeness(view).astype(np.float32)
        order = np.argsort((distances * distances).sum(axis=1), kind="stable")[: self.count]
        return [self.photographs[places[n]] for n in order]

    def levels_told(self, view: "View") -> str | None:
        """Return the levels of the nearest photographs in words, the most alike first; None where there are none."""
        near = self.nearest(view, lambda each: each.label is not None)
        words = [LEVEL_WORDS[nearest_level(each.label) - 1] for each in near if each.label is not None]
        return f"The most similar photographs were rated: {', '.join(words)}." if words else None

    def answers_told(self, view: "View", query: str, options: Mapping[str, str]) -> str | None:
        """Return the right answers to the same question about the nearest photographs, as the options put them."""
        letters = {folded(text): f"{letter}. {text}" for letter, text in options.items()}
        asked = folded(query)
        near = self.nearest(view, lambda each: each.query == asked and each.answer in letters)
        told = "; ".join(letters[each.answer] for each in near if each.answer)
        return f"For the most similar photographs the right options were: {told}." if told else None

    @cached_property
    def sha256(self) -> str:
        """The hash of the file that holds them."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return what a saved program holds of them."""
        vectors = base64.b64encode(self.vectors.astype("<f2").tobytes()).decode("ascii")
        return {
            "count": self.count,
            "photographs": [each.model_dump(exclude_none=True) for each in self.photographs],
            "vectors": vectors,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "Neighbours":
        """Read what a saved program holds. Raises ValueError, one line, for anything else."""
        try:
            found = _Saved.model_validate(saved)
        except ValidationError as error:
            raise ValueError(first_fault(error, "neighbours")) from error
        vectors = np.frombuffer(base64.b64decode(found.vectors), "<f2").reshape(-1, WIDTH)
        return cls(found.count, found.photographs, vectors)
