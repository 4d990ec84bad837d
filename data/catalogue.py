"""The public datasets and their facts: configs/datasets.yaml as objects."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict

from program.common.errors import DataError, did_you_mean

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
    entries = catalogue()
    if name not in entries:
        raise DataError(f"dataset {name!r}: is not known{did_you_mean(name, entries)}")
    return entries[name]
