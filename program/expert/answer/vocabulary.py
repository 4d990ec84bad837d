"""The words of `words.yaml`, which the expert reads in questions and options: English and Chinese. Pure text."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from program.expert.store import stored_table
from signatures.schemas import DistortionCategory

__all__ = ("Axis", "Cells", "Claim", "axis_of", "entries", "form", "word_set")

Cells = tuple[tuple[int, int], ...]
"""(row, column) pairs of the 3 x 3 maps, rows from the top."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One word's claim: axis ("" for words of degree), place 0..1, and where in the text it stands (`at` to `end`)."""

    axis: str
    place: float
    at: int = 0
    kind: Literal["amount", "merit"] = "amount"
    end: int = 0

    @property
    def more(self) -> bool:
        """Whether the word claims more of its axis than the middle."""
        return self.place >= 0.5


@dataclass(frozen=True, slots=True)
class Axis:
    """What is known of an axis beside its words; `axes` in `words.yaml` says what each field means."""

    category: DistortionCategory | None = None
    composite: str = ""
    visible_from: float = 0.0
    agreed: Sequence[float] = (0.45, 0.45)
    map: str = ""
    falls: bool = False
    gain: float | None = None
    wrong: str = ""
    parting: float = 0.5
    onto: tuple[str, float] | None = None

    @property
    def is_fault(self) -> bool:
        """Whether it is something wrong, of which an image has none or more."""
        return self.visible_from > 0


@functools.cache
def axis_of(name: str) -> Axis:
    """Return what is known of an axis."""
    return Axis(**stored_table("words.yaml")["axes"].get(name, {}))


@functools.cache
def entries(table: str) -> tuple[tuple[re.Pattern[str], Mapping[str, Any]], ...]:
    """Return what finds the words of each row of a table, in lower case, with the row."""
    return tuple(
        (re.compile("|".join([rf"\b(?:{'|'.join(row['english'])})\b", *row["chinese"]])), row)
        for row in stored_table("words.yaml")[table]
    )


@functools.cache
def form(name: str) -> re.Pattern[str]:
    """Return the pattern under `forms`, whose lines are alternatives and whose indented lines go on with the last."""
    return re.compile(re.sub(r"\n\s+", "", stored_table("words.yaml")["forms"][name]).replace("\n", "|"))


@functools.cache
def word_set(name: str) -> frozenset[str]:
    """Return the words under `lists`."""
    return frozenset(stored_table("words.yaml")["lists"][name].split())
