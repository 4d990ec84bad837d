"""From what a person names (images, folders, manifests) to the list of items to judge."""

import fnmatch
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data.errors import DataError
from data.manifest import Sample, scan_manifest
from program.errors import InputError
from program.images import Box

__all__ = ("IMAGE_SUFFIXES", "Item", "gather")

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Item:
    """One image to judge, or the reason why a manifest's line names none."""

    id: str
    image: Path | None
    reference: Path | None = None
    query: str | None = None
    options: dict[str, str] | None = None
    regions: dict[str, Box] | None = None
    error: str | None = None


def gather(
    sources: Sequence[str],
    *,
    recursive: bool = False,
    globs: Sequence[str] = (),
    reference: Path | None = None,
) -> list[Item]:
    """Return the items in order: images as given, a folder's by name, a manifest's (.jsonl) by line.

    `globs` keep files of folders whose name or path below the folder fits one; "!*.gif" leaves such files out.
    `reference` is one image for all, or a folder with one of the same name for each. Raises InputError for a source
    that is not there, and when nothing is left to judge.
    """
    items: list[Item] = []
    for source in sources:
        path = Path(source)
        if os.path.isdir(source):
            items += _of_folder(path, recursive, globs, reference)
        elif path.suffix == ".jsonl":
            items += _of_manifest(path)
        elif os.path.exists(source):
            items.append(_item(_name(path), path, reference, below=False))
        else:
            raise InputError(f"image {source[:200]!r}: no such file or folder; check the path")
    if not items:
        hint = "" if recursive else "; --recursive looks into its folders too"
        raise InputError(f"{sources[0]!r}: holds no image to judge ({', '.join(globs or IMAGE_SUFFIXES)}){hint}")
    return _distinct(items)


def _of_folder(folder: Path, recursive: bool, globs: Sequence[str], reference: Path | None) -> list[Item]:
    """Return a folder's items; a folder below it that cannot be read is one with that error."""
    unread: list[Item] = []

    def note(error: OSError) -> None:
        path = Path(error.filename)
        fault = f"folder {_name(path)!r}: cannot be read ({error.strerror}); check its permissions"
        if path == folder:
            raise InputError(fault) from error
        unread.append(Item(_name(path.relative_to(folder)), None, error=fault))

    files = list(_files(folder, recursive, globs, note))
    return [*(_item(_name(p.relative_to(folder)), p, reference) for p in files), *unread]


def _files(folder: Path, recursive: bool, globs: Sequence[str], note: Callable[[OSError], None]) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, onerror=note):
        folders[:] = sorted(f for f in folders if not f.startswith(".")) if recursive else []
        for name in sorted(names):
            path = Path(parent) / name
            if not name.startswith(".") and _wanted(name, _name(path.relative_to(folder)), globs):
                yield path


def _wanted(name: str, below: str, globs: Sequence[str]) -> bool:
    keep = [g for g in globs if not g.startswith("!")]
    drop = [g[1:] for g in globs if g.startswith("!")]
    if any(fnmatch.fnmatch(name, g) or fnmatch.fnmatch(below, g) for g in drop):
        return False
    if not keep:
        return name.lower().endswith(IMAGE_SUFFIXES)
    return any(fnmatch.fnmatch(name, g) or fnmatch.fnmatch(below, g) for g in keep)


def _item(name: str, path: Path, reference: Path | None, *, below: bool = True) -> Item:
    if reference is None or not reference.is_dir():
        return Item(name, path, reference)
    # Joined to the folder, the path of an image that was named itself could lead back to the image.
    places = [reference / name, reference / path.name] if below else [reference / path.name]
    matching = [p for p in places if p.is_file()]
    same_stem = [] if matching else sorted(p for p in reference.iterdir() if p.stem == path.stem and p.is_file())
    found = (*matching, *same_stem)
    if not found:
        fault = f"image {name!r}: no reference of that name in {_name(reference)!r}; add one, or judge it alone"
        return Item(name, path, error=fault)
    return Item(name, path, found[0])


def _of_manifest(path: Path) -> Iterator[Item]:
    for number, sample in scan_manifest(path):
        if isinstance(sample, DataError):
            yield Item(f"{_name(path)}:{number}", None, error=str(sample))
        else:
            yield _of_sample(sample)


def _of_sample(sample: Sample) -> Item:
    return Item(sample.id, sample.image, sample.reference, sample.query, sample.options, sample.regions)


def _name(path: Path) -> str:
    """Return a path as text that any encoding of the output holds: bytes that are no UTF-8 as backslash escapes."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def _distinct(items: Sequence[Item]) -> list[Item]:
    """Return the items with distinct ids: each of two folders may hold an `a.png`, and an image be named twice."""
    count = Counter(item.id for item in items)
    named = [
        replace(item, id=_name(item.image)) if count[item.id] > 1 and item.image is not None else item for item in items
    ]
    return list({item.id: item for item in named}.values())
