"""Datasets by name, as configs/datasets.yaml describes them, and the manifest that a name or path stands for."""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

from data.decisions import TABLE
from data.manifest import GENERATED
from data.tables import HUB, is_manifest, table_in
from program.common import load_offers
from program.common.backends import Section
from program.common.errors import DataError, did_you_mean
from program.common.files import CONFIGS, Place, is_remote, place_of


class Scale(Section):
    """The scale of a dataset's scores."""

    range: tuple[float, float]
    higher_is_better: bool


class Table(Section):
    """A table of labels; the head of configs/datasets.yaml says what each field means, as of the two classes below."""

    file: tuple[str, ...]
    columns: tuple[str, ...] = ()
    separator: str | None = None
    cells: Mapping[str, str] = {}
    beside: tuple["Table", ...] = ()


class Reading(Section):
    """How a release's files become samples."""

    tables: tuple[Table, ...]
    code: str | None = None
    skip: int = 0
    names: Mapping[str, str] = {}
    words: Mapping[str, Mapping[str, Mapping[str | int, str]]] = {}
    images: tuple[str, ...] = (".",)
    references: tuple[str, ...] = (".",)
    numbers: tuple[str, ...] = ()
    fields: Mapping[str, str | tuple[str, ...]] = {}


class DatasetEntry(Section):
    """One dataset."""

    name: str
    title: str
    task: Literal["scoring", "questions", "pairs"]
    source: str
    licence: str
    citation: str
    score: Scale | None
    count: int | None
    groups: int | None
    split: Literal["official", "official-test", "none"]
    layout: str
    documented: tuple[str, ...]
    read: Reading | Literal["table", "huggingface", "pairs"]


@cache
def catalogue() -> Mapping[str, DatasetEntry]:
    """Return the datasets by name, those that other installed packages offer included."""
    import yaml

    text = (CONFIGS / "datasets.yaml").read_text(encoding="utf-8")
    ours = {name: DatasetEntry(name=name, **entry) for name, entry in yaml.safe_load(text).items()}
    return {**load_offers("datasets", lambda name, offer: DatasetEntry(name=name, **offer)), **ours}


def entry_of(name: str) -> DatasetEntry:
    """Return a dataset's entry; DataError with the nearest name when there is none."""
    entries = catalogue()
    if name not in entries:
        raise DataError(f"dataset {name!r}: is not known{did_you_mean(name, entries)}")
    return entries[name]


def resolve_dataset(name_or_path: str | Path, cache_dir: Path, *, progress: bool = True) -> Place:
    """Return the manifest that a name ("quickstart", "quickstart-fr"), a path, a URI or hf:NAME:SPLIT stands for.

    Quickstart data is generated on first use. Raises DataError when there is neither such a name nor such a file.
    """
    name = str(name_or_path)
    if name in GENERATED:
        from data.quickstart import build_quickstart

        return build_quickstart(cache_dir, progress=progress).with_name(GENERATED[name])
    if is_remote(name) or name.startswith(HUB):
        return name
    path = Path(table_in(Path(place_of(os.path.expanduser(name)))))
    if path.is_file() or (path.is_dir() and is_manifest(name)):
        return path
    if name in catalogue():
        raise DataError(
            f"dataset {name!r}: give its prepared manifest; to make one: python -m data.prepare {name} --root DIR "
            f"--out {name}/manifest.jsonl"
        )
    if (path / TABLE).is_file():
        mend = "save them on its page as decisions.json in it, or give them to agentic-iqa gallery with --decisions"
        raise DataError(f"gallery {name!r}: holds no decisions; {mend}")
    if path.is_dir():
        inside = ", ".join(table.name for table in _tables_in(path))[:200]
        inside = inside or "none is there; make one with python -m data.prepare"
        raise DataError(f"dataset {name!r}: is a folder; give a manifest in it ({inside})")
    close = get_close_matches(name, [*GENERATED, *map(str, _tables_in(path.parent))], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"give a manifest's path or {' or '.join(GENERATED)}"
    raise DataError(f"dataset {name!r}: neither a known name nor a file; {hint}")


def _tables_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if is_manifest(path.name))
