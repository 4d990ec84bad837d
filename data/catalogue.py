"""Datasets by name: the public ones and their facts (configs/datasets.yaml), and the manifest a name stands for."""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

from data.tables import HUB, is_manifest
from program.common.backends import Section
from program.common.errors import DataError, did_you_mean
from program.common.files import CONFIGS
from program.common.offered import offered
from program.common.places import Place, is_remote, placed

__all__ = ("GENERATED", "DatasetEntry", "catalogue", "entry_of", "resolve_dataset")

GENERATED: Mapping[str, str] = {"quickstart": "manifest.jsonl", "quickstart-fr": "manifest-fr.jsonl"}
"""Names that stand for a manifest which is made on first use, with its file."""


class Scale(Section):
    """The scale of a dataset's scores."""

    range: tuple[float, float]
    higher_is_better: bool


class DatasetEntry(Section):
    """One dataset; configs/datasets.yaml says what each field means."""

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
    verified: bool


@cache
def catalogue() -> Mapping[str, DatasetEntry]:
    """Return the datasets by name, those that other installed packages offer included."""
    import yaml

    text = (CONFIGS / "datasets.yaml").read_text(encoding="utf-8")
    ours = {name: DatasetEntry(name=name, **entry) for name, entry in yaml.safe_load(text).items()}
    outside = offered("datasets", lambda name, offer: DatasetEntry(name=name, **offer["entry"]))
    return {**outside, **ours}


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
    path = Path(placed(os.path.expanduser(name)))
    if path.is_file() or (path.is_dir() and is_manifest(name)):
        return path
    if name in catalogue():
        raise DataError(
            f"dataset {name!r}: give its prepared manifest; to make one: python -m data.prepare {name} --root DIR "
            f"--out {name}/manifest.jsonl"
        )
    if path.is_dir():
        inside = ", ".join(sorted(p.name for p in path.glob("*.jsonl"))) or "none is there; make one"
        raise DataError(f"dataset {name!r}: is a folder; give a manifest in it ({inside})")
    close = get_close_matches(name, [*GENERATED, *map(str, path.parent.glob("*.jsonl"))], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"give a manifest's path or {' or '.join(GENERATED)}"
    raise DataError(f"dataset {name!r}: neither a known name nor a file; {hint}")
