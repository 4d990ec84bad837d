"""What labels say of other photographs: those of the nearest ones, and all; as a program keeps and tells it."""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from program.common.errors import first_fault
from program.common.text import folded
from program.expert import WIDTH, likeness, moved_text
from program.fusion.levels import nearest_level
from signatures.schemas import LEVEL_WORDS

if TYPE_CHECKING:
    from program.expert import Correction, View


_Saved = TypeVar("_Saved")


class _Learned:
    """What a program keeps of labels in a file of its own; never changed."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @property
    def text(self) -> str:
        """The file's text."""
        return json.dumps(self.to_json())

    @cached_property
    def sha256(self) -> str:
        """The hash of the file."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return what a saved program holds of them."""
        raise NotImplementedError


def _checked(read: Callable[[Any], _Saved], saved: Mapping[str, Any], name: str) -> _Saved:
    """Return what a file holds, as it is read. Raises ValueError, one line, for anything else."""
    try:
        return read(saved)
    except ValidationError as error:
        raise ValueError(first_fault(error, name)) from error


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


class _SavedNeighbours(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int = Field(ge=1, le=64)
    photographs: list[Neighbour] = Field(min_length=1)
    vectors: str
    """Little-endian half-precision numbers, `WIDTH` a photograph, in base64."""
    even: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _whole(self) -> "_SavedNeighbours":
        if len(base64.b64decode(self.vectors, validate=True)) != 2 * WIDTH * len(self.photographs):
            raise ValueError(f"vectors: {WIDTH} numbers a photograph are needed")
        return self


class Neighbours(_Learned):
    """Labelled photographs to look up the nearest `count` of; never changed."""

    def __init__(
        self, count: int, photographs: Sequence[Neighbour], vectors: NDArray[np.float16], even: float = 0.0
    ) -> None:
        """Take the photographs and their N x `WIDTH` likenesses.

        `even`, 0..1: the share of an even spread that a language model's level probabilities are mixed with; a model
        that is told what labels say is surer than they are.
        """
        self.count, self.photographs, self.vectors, self.even = count, tuple(photographs), vectors, even
        self._groups = {photograph.sha256: photograph.group for photograph in photographs}

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

    def levels_text(self, view: "View") -> str | None:
        """Return the levels of the nearest photographs in words, the most alike first; None where there are none."""
        near = self.nearest(view, lambda each: each.label is not None)
        words = [LEVEL_WORDS[nearest_level(each.label) - 1] for each in near if each.label is not None]
        return f"The most similar photographs were rated: {', '.join(words)}." if words else None

    def option_text(self, view: "View", query: str, options: Mapping[str, str]) -> str | None:
        """Return the most frequent right answer to the same question about the nearest photographs, as an option.

        One option: of a list of answers, as of several levels, a model of 1.5 billion weights makes less.
        """
        letters, asked = {folded(text): f"{letter}. {text}" for letter, text in options.items()}, folded(query)

        def fits(each: Neighbour) -> bool:
            return each.query == asked and each.answer in letters

        if not (near := self.nearest(view, fits)):
            return None
        answer = Counter(str(each.answer) for each in near).most_common(1)[0][0]
        known = sum(map(fits, self.photographs))
        return f"Judging by {known} answered questions, the right option is {letters[answer]}."

    def to_json(self) -> dict[str, Any]:
        """Return what a saved program holds of them."""
        vectors = base64.b64encode(self.vectors.astype("<f2").tobytes()).decode("ascii")
        return {
            "count": self.count,
            "photographs": [each.model_dump(exclude_none=True) for each in self.photographs],
            "vectors": vectors,
            "even": self.even,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "Neighbours":
        """Read what a saved program holds. Raises ValueError, one line, for anything else."""
        found = _checked(_SavedNeighbours.model_validate, saved, "neighbours")
        vectors = np.frombuffer(base64.b64decode(found.vectors), "<f2").reshape(-1, WIDTH)
        return cls(found.count, found.photographs, vectors, found.even)


class Corrections(_Learned):
    """A correction for images judged alone ("nr"), beside a reference ("fr"), or for both; never changed."""

    def __init__(self, by_kind: Mapping[str, "Correction"]) -> None:
        self.by_kind = dict(by_kind)

    def predicted(self, view: "View", tools: float | None) -> float | None:
        """Return the score, 1..5, that the labels predict of an image, whose `tools`' mean may be known.

        None for a kind that has none.
        """
        found = self.by_kind.get(view.model.kind)
        if found is None:
            return None
        reading = tools if found.of_tools and tools is not None else view.prior.mean
        return min(5.0, max(1.0, reading + found.shift(view)))

    def precision(self, view: "View") -> float:
        """Return the precision of what is `predicted` of an image, where something is."""
        return self.by_kind[view.model.kind].precision

    def shift_text(self, view: "View") -> str | None:
        """Return how the labels move an image's score, as the expert reads it; None for a kind that has none."""
        found = self.by_kind.get(view.model.kind)
        return None if found is None else moved_text(found.shift(view), found.after / found.expected)

    def level_text(self, view: "View", tools: float | None) -> str | None:
        """Return the level that the labels predict, as a language model reads it; None for a kind that has none.

        One word: of two levels with "between", or figures, a model of 1.5 billion weights makes less.
        """
        if (score := self.predicted(view, tools)) is None:
            return None
        labels, word = self.by_kind[view.model.kind].labels, LEVEL_WORDS[nearest_level(score) - 1]
        return f"Judging by {labels} rated photographs, people would rate this one {word}."

    @property
    def count(self) -> int:
        """How many labels they were fitted on."""
        return sum(each.labels for each in self.by_kind.values())

    def to_json(self) -> dict[str, Any]:
        """Return what a saved program holds of them."""
        return {kind: each.model_dump() for kind, each in self.by_kind.items()}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "Corrections":
        """Read what a saved program holds. Raises ValueError, one line, for anything else."""
        from program.expert import Correction  # loads what measures

        kinds: TypeAdapter[Any] = TypeAdapter(dict[Literal["nr", "fr"], Correction])
        return cls(_checked(kinds.validate_python, saved, "corrections"))
