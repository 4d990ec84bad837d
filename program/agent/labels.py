"""What labels say of other photographs: those of the nearest ones, and all, as a program keeps it."""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from program.common.backends import Frozen
from program.common.errors import InputError
from program.common.files import Place, open_file
from program.common.request import Request
from program.common.text import fold_text
from program.expert import SEVERITIES, WIDTH, Correction, View, damage, likeness
from program.fusion.levels import nearest_level
from signatures.schemas import LEVEL_WORDS, ScoreShift


class _Learned(Frozen):
    """What a program keeps of labels; never changed."""

    model_config = ConfigDict(arbitrary_types_allowed=True, validate_by_name=True)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    @cached_property
    def sha256(self) -> str:
        """The hash of what a saved program holds of it."""
        return hashlib.sha256(json.dumps(self.saved).encode()).hexdigest()

    @property
    def saved(self) -> dict[str, Any]:
        """What a saved program holds of it."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)


class Neighbour(Frozen):
    """One labelled photograph, as a saved program holds it."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    group: str
    """Photographs of one group are never evidence on each other."""
    kind: str = Field(pattern="^(nr|fr)$")
    """Judged alone, or beside a reference: only those of a kind are compared."""
    label: float | None = Field(default=None, ge=1, le=5)
    query: str | None = None
    answer: str | None = None
    """The right option of a question, in its words; a photograph has a label or this."""

    @model_validator(mode="after")
    def _labelled(self) -> "Neighbour":
        if (self.label is None) == (self.query is None or self.answer is None):
            raise ValueError("label, or query with answer: one of them is needed")
        return self


def _vectors_of(value: Any) -> Any:
    return np.frombuffer(base64.b64decode(value, validate=True), "<f2") if isinstance(value, str) else value


class Neighbours(_Learned):
    """Labelled photographs, of which the nearest `count` are looked up."""

    count: int = Field(ge=1, le=64)
    photographs: tuple[Neighbour, ...] = Field(min_length=1)
    vectors: Annotated[
        NDArray[np.float16], BeforeValidator(_vectors_of),
        PlainSerializer(lambda vectors: base64.b64encode(vectors.astype("<f2").tobytes()).decode("ascii")),
    ]  # fmt: skip
    """Of each photograph, one after the other, what it is compared by; saved in base64."""
    compared_by: Literal["likeness", "damage"] = "likeness"
    """See `program.expert`: `WIDTH` numbers a photograph, or one for each of `SEVERITIES`."""
    even_share: float = Field(default=0.0, ge=0, le=1, alias="even")
    """The share of an even spread that a language model's level probabilities are mixed with: told what
    labels say, it is surer than they are."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        width = self._vector_width
        if self.vectors.size != width * len(self.photographs):
            raise ValueError(f"vectors: {width} numbers a photograph are needed")
        return self

    @property
    def _vector_width(self) -> int:
        return WIDTH if self.compared_by == "likeness" else len(SEVERITIES)

    def nearest(self, view: View, among: Callable[[Neighbour], bool]) -> list[Neighbour]:
        """Return those `among` the other groups' photographs that look most like an image, in order."""
        own = next((each.group for each in self.photographs if each.sha256 == view.key[0]), None)
        kind, vectors = view.model.kind, self.vectors.reshape(-1, self._vector_width)
        own_vector = likeness(view) if self.compared_by == "likeness" else damage(view)
        places = []
        for place, each in enumerate(self.photographs):
            if each.kind == kind and each.group != own and among(each):
                places.append(place)
        distances = vectors[places].astype(np.float32) - own_vector.astype(np.float32)
        order = np.argsort((distances * distances).sum(axis=1), kind="stable")[: self.count]
        return [self.photographs[places[n]] for n in order]

    def levels_text(self, view: View) -> str | None:
        """Return the nearest photographs' levels in words, most alike first; None without any."""
        near = self.nearest(view, lambda each: each.label is not None)
        words = [LEVEL_WORDS[nearest_level(each.label) - 1] for each in near if each.label is not None]
        return f"The most similar photographs were rated: {', '.join(words)}." if words else None

    def option_text(self, view: View, query: str, options: Mapping[str, str]) -> str | None:
        """Return the option that is most often right for this question about the nearest photographs.

        One option: of a list of answers a model of 1.5 billion weights makes less.
        """
        letters = self._right_letters(view, query, options)
        if not letters:
            return None
        letter = Counter(letters).most_common(1)[0][0]
        known = sum(_asks_the_same(each, query, options) for each in self.photographs)
        return f"Judging by {known} answered questions, the right option is {letter}. {options[letter]}."

    def option_shares(self, view: View, query: str, options: Mapping[str, str]) -> dict[str, float]:
        """Return by letter for how many of the nearest photographs, as a share, an option is right."""
        letters = self._right_letters(view, query, options)
        return {letter: count / len(letters) for letter, count in sorted(Counter(letters).items())}

    def _right_letters(self, view: View, query: str, options: Mapping[str, str]) -> list[str]:
        """Return the right option of the same question about each of the nearest photographs."""
        letters = {fold_text(text): letter for letter, text in options.items()}
        near = self.nearest(view, lambda each: _asks_the_same(each, query, options))
        return [letters[str(each.answer)] for each in near]


def _asks_the_same(photograph: Neighbour, query: str, options: Mapping[str, str]) -> bool:
    """Return whether a photograph's question is the same, its answer among the options."""
    if photograph.query != fold_text(query):
        return False
    return any(photograph.answer == fold_text(text) for text in options.values())


class Corrections(_Learned):
    """A correction for images judged alone ("nr"), beside a reference ("fr"), or for both."""

    nr: Correction | None = None
    fr: Correction | None = None

    @property
    def by_kind(self) -> dict[str, Correction]:
        """Those that there are."""
        return {kind: each for kind, each in (("nr", self.nr), ("fr", self.fr)) if each is not None}

    def predict(self, view: View, tools: float | None) -> float | None:
        """Return the score, 1..5, that labels predict of an image; None for a kind that has none."""
        found = self.by_kind.get(view.model.kind)
        if found is None:
            return None
        reading = tools if found.of_tools and tools is not None else view.prior.mean
        return min(5.0, max(1.0, reading + found.shift(view)))

    def shift(self, view: View) -> ScoreShift | None:
        """Return how the labels move an image's score; None for a kind that has none."""
        correction = self.by_kind.get(view.model.kind)
        if correction is None:
            return None
        return ScoreShift(correction.shift(view), correction.after / correction.expected)

    def level_text(self, view: View, tools: float | None) -> str | None:
        """Return the level that the labels predict, as a language model reads it; None if unknown.

        One word: of two levels, or figures, a model of 1.5 billion weights makes less.
        """
        if (score := self.predict(view, tools)) is None:
            return None
        labels, word = self.by_kind[view.model.kind].labels, LEVEL_WORDS[nearest_level(score) - 1]
        return f"Judging by {labels} rated photographs, people would rate this one {word}."

    @property
    def count(self) -> int:
        """How many labels they were fitted on."""
        return sum(each.labels for each in self.by_kind.values())


_Request = TypeVar("_Request", bound=Request)
_Hashes = Annotated[frozenset[str], PlainSerializer(sorted)]


class Marks(Frozen):
    """SHA-256 hashes by which samples are known: of images, of references, of groups' names."""

    images: _Hashes = frozenset()
    references: _Hashes = frozenset()
    groups: _Hashes = frozenset()


class FittedOn(_Learned):
    """The samples that a program was fitted on (train), chosen on (validation) and tested on."""

    train: Marks
    validation: Marks
    test: Marks

    @classmethod
    def of(cls, splits: Mapping[str, Iterable[Request]]) -> Self:
        """Read the images of each split; one that cannot be read is left out."""
        marks = {}
        for name, samples in splits.items():
            each = [own for _, own in marked(samples)]
            marks[name] = Marks(
                images=frozenset().union(*(own.images for own in each)),
                references=frozenset().union(*(own.references for own in each)),
                groups=frozenset().union(*(own.groups for own in each)),
            )
        return cls(**marks)

    def holds(self, marks: Marks) -> Literal["image", "reference", "group"] | None:
        """Tell how a sample is known from train or validation; by a group's name at last."""
        images = self.train.images | self.validation.images
        if marks.images & images:
            return "image"
        references = self.train.references | self.validation.references
        if (marks.images | marks.references) & (images | references):
            return "reference"
        # With a reference not by the group: another data set may call its references the same.
        is_of_group = marks.groups & (self.train.groups | self.validation.groups)
        return "group" if is_of_group and not marks.references else None

    def names_groups_of(self, marks: Marks) -> bool:
        """Tell whether a sample is known with its group: then groups of one name are the same."""
        splits = (self.train, self.validation, self.test)
        return any(marks.images & split.images and marks.groups & split.groups for split in splits)


def marked(samples: Iterable[_Request]) -> Iterator[tuple[_Request, Marks]]:
    """Yield each sample with its hashes; none of a file that cannot be read."""

    @lru_cache(maxsize=128)  # many samples share a reference; a table may hold whole images
    def sha256(place: Place) -> str | None:
        try:
            with open_file(place) as file:
                return hashlib.sha256(file.read()).hexdigest()
        except (OSError, InputError):  # the sample fails where it is opened
            return None

    for sample in samples:
        images, references, groups = {sha256(sample.image)}, set(), set()
        if sample.reference is not None:
            references.add(sha256(sample.reference))
        if sample.group is not None:
            groups.add(hashlib.sha256(sample.group.encode("utf-8", "surrogatepass")).hexdigest())
        yield sample, Marks(images=images - {None}, references=references - {None}, groups=groups)
