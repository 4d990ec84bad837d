"""From what a person names (images, folders, manifests) to the items to judge, one after the other."""

import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from data.manifest import Layout, scan_manifest
from data.tables import HUB, is_manifest, scan_rows
from program.common.errors import DataError, InputError
from program.common.places import Place, exists, is_folder, is_remote, joined, listed, name_of, placed, readable
from program.common.seen import Seen
from program.images.store import Box

__all__ = ("IMAGE_SUFFIXES", "Item", "Items", "gather")

IMAGE_SUFFIXES = (
    ".avif", ".bmp", ".gif", ".heic", ".heif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip


@dataclass(frozen=True)
class Item:
    """One image to judge, or the reason why a manifest's line names none."""

    id: str
    image: Place | None
    reference: Place | None = None
    query: str | None = None
    options: dict[str, str] | None = None
    regions: dict[str, Box] | None = None
    group: str | None = None
    split: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Items:
    """What sources hold, looked up anew at each pass; ids are distinct."""

    sources: Sequence[str]
    recursive: bool = False
    globs: Sequence[str] = ()
    reference: Place | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Item]:
        return self._all() if len(self.sources) == 1 else self._distinct()

    def count(self) -> int | None:
        """Return how many there are before equal ones are left out; None where only reading a stream would tell."""
        if any(source.startswith(HUB) for source in self.sources):
            return None
        return sum(self._count(source) for source in self.sources)

    def _count(self, source: str) -> int:
        if is_manifest(source):
            return sum(1 for _ in scan_rows(placed(source), {}))
        return sum(1 for _ in self._of(source))

    def _all(self) -> Iterator[Item]:
        for source in self.sources:
            yield from self._of(source)

    def _of(self, source: str) -> Iterator[Item]:
        if is_manifest(source):
            yield from _of_manifest(source, self.columns)
            return
        place = placed(source)
        paired = self.reference is not None and is_folder(self.reference)
        if not is_folder(place):
            yield _item(_name(place), place, self.reference, paired=paired, below=False)
            return
        for below, path in _of_folder(place, self.recursive):
            if isinstance(path, OSError):
                yield Item(below, None, error=f"folder {below!r}: cannot be read ({path.strerror}); {_MEND}")
            elif _is_chosen(name_of(path), below, self.globs):
                yield _item(below, path, self.reference, paired=paired)

    def _distinct(self) -> Iterator[Item]:
        """Yield the items with distinct ids: each of two folders may hold an `a.png`, and an image be named twice."""
        with closing(Seen()) as once, closing(Seen()) as twice, closing(Seen()) as given:
            for item in self._all():
                if not once.add(item.id):
                    twice.add(item.id)
            for item in self._all():
                own = item if item.image is None or item.id not in twice else replace(item, id=_name(item.image))
                if given.add(own.id):
                    yield own


_MEND = "check its permissions"


def gather(
    sources: Sequence[str],
    *,
    recursive: bool = False,
    globs: Sequence[str] = (),
    reference: Place | None = None,
    columns: Mapping[str, str] | None = None,
) -> Items:
    """Return the items in order: images as given, a folder's by name, a manifest's (.jsonl, .csv, .parquet) by line.

    Sources are paths or URIs, or hf:NAME:SPLIT for a dataset of Hugging Face's; nothing is held in memory. `globs` keep
    files of folders whose name or path below the folder fits one; "!*.gif" leaves such files out. `reference` is one
    image for all, or a folder with one of the same name for each. `columns` says which column of a manifest is which
    field. Raises InputError for a source that is not there, and when nothing is left to judge.
    """
    items = Items(sources, recursive, globs, reference, columns or {})
    for source in sources:
        if not is_manifest(source) and not exists(placed(source)):
            raise InputError(f"image {source[:200]!r}: no such file or folder; check the path")
    if next(iter(items), None) is None:
        hint = "" if recursive else "; --recursive looks into its folders too"
        raise InputError(f"{sources[0]!r}: holds no image to judge ({', '.join(globs or IMAGE_SUFFIXES)}){hint}")
    return items


def _of_folder(folder: Place, recursive: bool) -> Iterator[tuple[str, Place | OSError]]:
    """Yield a folder's files by their names below it; a folder below it that cannot be read with its error, last."""
    if not isinstance(folder, Path):
        yield from listed(folder, recursive=recursive)
        return
    faults: list[OSError] = []

    def note(error: OSError) -> None:
        if Path(error.filename) == folder:
            raise InputError(f"folder {_name(folder)!r}: cannot be read ({error.strerror}); {_MEND}") from error
        faults.append(error)

    for parent, folders, names in os.walk(folder, onerror=note):
        folders[:] = sorted(f for f in folders if not f.startswith(".")) if recursive else []
        for name in sorted(names):
            path = Path(parent) / name
            yield _name(path.relative_to(folder)), path
    for fault in faults:
        yield _name(Path(fault.filename).relative_to(folder)), fault


def _is_chosen(name: str, below: str, globs: Sequence[str]) -> bool:
    def fits(*patterns: str) -> bool:
        return any(fnmatch.fnmatch(text, pattern) for pattern in patterns for text in (name, below))

    keep = [g for g in globs if not g.startswith("!")]
    if name.startswith(".") or fits(*(g[1:] for g in globs if g.startswith("!"))):
        return False
    return fits(*keep) if keep else name.lower().endswith(IMAGE_SUFFIXES)


def _item(name: str, place: Place, reference: Place | None, *, paired: bool, below: bool = True) -> Item:
    if reference is None or not paired:
        return Item(name, place, reference)
    # Joined to the folder, the path of an image that was named itself could lead back to the image.
    names = [name, name_of(place)] if below else [name_of(place)]
    matches = [at for each in names if exists(at := joined(reference, each)) and not is_folder(at)]
    if not matches and isinstance(reference, Path):
        stem = Path(name_of(place)).stem
        matches = sorted(p for p in reference.iterdir() if p.stem == stem and p.is_file())
    if not matches:
        fault = f"image {name!r}: no reference of that name in {_name(reference)!r}; add one, or judge it alone"
        return Item(name, place, error=fault)
    return Item(name, place, matches[0])


def _of_manifest(source: str, columns: Mapping[str, str]) -> Iterator[Item]:
    for number, sample in scan_manifest(source, Layout(columns)):
        if isinstance(sample, DataError):
            yield Item(f"{_name(placed(source))}:{number}", None, error=str(sample))
        else:
            yield Item(
                sample.id, sample.image, sample.reference, sample.query, sample.options, sample.regions,
                group=sample.group, split=sample.split,
            )  # fmt: skip


def _name(place: Place) -> str:
    return readable(str(place) if is_remote(place) else Path(place).as_posix())
