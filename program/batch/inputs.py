"""From what a person names (images, folders, manifests) to the list of items to judge."""

import fnmatch
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data.manifest import scan_manifest
from program.common.errors import DataError, InputError
from program.images.store import Box

__all__ = ("IMAGE_SUFFIXES", "Item", "gather")

IMAGE_SUFFIXES = (
    ".avif", ".bmp", ".gif", ".heic", ".heif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip


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
    items: list[Item] = []
    faults: list[Item] = []

    def note(error: OSError) -> None:
        path = Path(error.filename)
        fault = f"folder {_name(path)!r}: cannot be read ({error.strerror}); check its permissions"
        if path == folder:
            raise InputError(fault) from error
        faults.append(Item(_name(path.relative_to(folder)), None, error=fault))

    for parent, folders, names in os.walk(folder, onerror=note):
        folders[:] = sorted(f for f in folders if not f.startswith(".")) if recursive else []
        for name in sorted(names):
            path = Path(parent) / name
            below = _name(path.relative_to(folder))
            if not name.startswith(".") and _is_chosen(name, below, globs):
                items.append(_item(below, path, reference))
    return items + faults


def _is_chosen(name: str, below: str, globs: Sequence[str]) -> bool:
    def fits(*patterns: str) -> bool:
        return any(fnmatch.fnmatch(text, pattern) for pattern in patterns for text in (name, below))

    keep = [g for g in globs if not g.startswith("!")]
    if fits(*(g[1:] for g in globs if g.startswith("!"))):
        return False
    return fits(*keep) if keep else name.lower().endswith(IMAGE_SUFFIXES)


def _item(name: str, path: Path, reference: Path | None, *, below: bool = True) -> Item:
    if reference is None or not reference.is_dir():
        return Item(name, path, reference)
    # Joined to the folder, the path of an image that was named itself could lead back to the image.
    places = [reference / name, reference / path.name] if below else [reference / path.name]
    matches = [p for p in places if p.is_file()]
    matches = matches or sorted(p for p in reference.iterdir() if p.stem == path.stem and p.is_file())
    if not matches:
        fault = f"image {name!r}: no reference of that name in {_name(reference)!r}; add one, or judge it alone"
        return Item(name, path, error=fault)
    return Item(name, path, matches[0])


def _of_manifest(path: Path) -> Iterator[Item]:
    for number, sample in scan_manifest(path):
        if isinstance(sample, DataError):
            yield Item(f"{_name(path)}:{number}", None, error=str(sample))
        else:
            yield Item(sample.id, sample.image, sample.reference, sample.query, sample.options, sample.regions)


def _name(path: Path) -> str:
    """Return a path as text that any encoding of the output holds: bytes that are no UTF-8 as backslash escapes."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def _distinct(items: Sequence[Item]) -> list[Item]:
    """Return the items with distinct ids: each of two folders may hold an `a.png`, and an image be named twice."""
    count = Counter(item.id for item in items)
    by_id = {}
    for item in items:
        own = item if count[item.id] == 1 or item.image is None else replace(item, id=_name(item.image))
        by_id[own.id] = own
    return list(by_id.values())
