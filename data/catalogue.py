"""What is known of each public dataset: configs/datasets.yaml as objects."""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict

from data.errors import DataError

__all__ = ("DatasetEntry", "Scale", "catalogue", "entry_of")


class Scale(BaseModel):
    """The scale of a dataset's scores."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    range: tuple[float, float]
    higher_is_better: bool


class DatasetEntry(BaseModel):
    """One dataset; configs/datasets.yaml says what each field means."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    task: Literal["scoring", "questions"]
    source: str
    licence: str
    citation: str
    score: Scale | None
    count: int | None
    groups: int | None
    split: Literal["official", "official-test", "none"]
    layout: str
    documented: tuple[str, ...]
    verified: bool


@cache
def catalogue() -> Mapping[str, DatasetEntry]:
    """Return the datasets by name."""
    import yaml

    text = files("configs").joinpath("datasets.yaml").read_text(encoding="utf-8")
    return MappingProxyType({name: DatasetEntry(name=name, **entry) for name, entry in yaml.safe_load(text).items()})


def entry_of(name: str) -> DatasetEntry:
    """Return a dataset's entry; DataError with the nearest name when there is none."""
    known = catalogue()
    if name in known:
        return known[name]
    close = get_close_matches(name.casefold(), known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    raise DataError(f"dataset {name!r}: is not known; {hint}")
