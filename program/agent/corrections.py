"""What a user's labels add to the embedded expert's reading, as a program keeps and tells it."""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from program.common.errors import first_fault
from program.expert import moved_text
from program.fusion.levels import nearest_level
from signatures.schemas import LEVEL_WORDS

if TYPE_CHECKING:
    from program.expert import Correction, View

__all__ = ("Corrections",)


class _Saved(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    labels: int = Field(ge=1)
    penalty: float = Field(gt=0)
    before: float = Field(ge=0)
    after: float = Field(ge=0)
    expected: float = Field(gt=0)
    moves: dict[str, tuple[int, float, float]]
    left_out: dict[str, float]
    weights: str
    """Little-endian numbers of 32 bits, in base64."""


class _SavedByKind(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    nr: _Saved | None = None
    fr: _Saved | None = None


class Corrections:
    """A correction for images judged alone ("nr"), beside a reference ("fr"), or for both; never changed."""

    def __init__(self, by_kind: Mapping[str, "Correction"]) -> None:
        self.by_kind = dict(by_kind)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Corrections":
        return self

    def shift_told(self, view: "View") -> str | None:
        """Return how the labels move an image's score, as the expert reads it; None for a kind that has none."""
        found = self.by_kind.get(view.model.kind)
        return None if found is None else moved_text(found.shift(view), found.after / found.expected)

    def levels_told(self, view: "View") -> str | None:
        """Return the level that the labels predict, as a language model reads it; None for a kind that has none.

        One word: of two levels with "between", or figures, a model of 1.5 billion weights makes less.
        """
        found = self.by_kind.get(view.model.kind)
        if found is None:
            return None
        word = LEVEL_WORDS[nearest_level(min(5.0, max(1.0, view.prior.mean + found.shift(view)))) - 1]
        return f"Judging by {found.labels} rated photographs, people would rate this one {word}."

    @property
    def count(self) -> int:
        """How many labels they were fitted on."""
        return sum(each.labels for each in self.by_kind.values())

    @cached_property
    def sha256(self) -> str:
        """The hash of the file that holds them."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return what a saved program holds of them."""
        return {
            kind: {**each._asdict(), "weights": base64.b64encode(each.weights.astype("<f4").tobytes()).decode("ascii")}
            for kind, each in self.by_kind.items()
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "Corrections":
        """Read what a saved program holds. Raises ValueError, one line, for anything else."""
        from program.expert import Correction  # loads what measures

        try:
            found = _SavedByKind.model_validate(saved)
        except ValidationError as error:
            raise ValueError(first_fault(error, "corrections")) from error
        read = {}
        for kind, each in found:
            if each is not None:
                weights = np.frombuffer(base64.b64decode(each.weights, validate=True), "<f4")
                read[kind] = Correction(**{**each.model_dump(), "weights": weights})
        return cls(read)
