"""From what a person names (images, folders, manifests) to the items to judge."""

import fnmatch
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath

from data.manifest import Layout, scan_manifest
from data.tables import HUB, is_manifest, table_rows
from program.common.errors import DataError, InputError
from program.common.files import (
    IdSet,
    Place,
    exists,
    is_folder,
    list_files,
    name_of,
    named_in,
    path_mend,
    place_of,
    readable,
)
from program.common.request import Request

IMAGE_SUFFIXES = (
    ".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jif", ".jpe", ".jpeg", ".jpg", ".mpo", ".pgm",
    ".pjpeg", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
_NO_PHOTOGRAPHS = frozenset({
    "#recycle", "#snapshot", "$recycle.bin", "@eadir", "@recycle", "@tmp", "__macosx", "lost+found",
    "system volume information", "_thumbnails", "_thumbs", "thumb", "thumbnail", "thumbnails", "thumbs",
})  # fmt: skip
"""Folders that storage boxes, systems and galleries keep among photographs: what was deleted, and
small copies."""


@dataclass(frozen=True)
class Items:
    """What sources hold, looked up again at each pass; ids are distinct."""

    sources: Sequence[str]
    recursive: bool = False
    globs: Sequence[str] = ()
    reference: Place | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    remote: Collection[str] = ()
    """Kinds of address that rows may name (see `data.manifest.Layout`)."""

    def __iter__(self) -> Iterator[Request]:
        if len(self.sources) == 1:
            return self._all()
        return self._distinct()

    def count(self) -> int | None:
        """Return how many there are, equal ones too; None where only a stream would tell."""
        if any(source.startswith(HUB) for source in self.sources):
            return None
        header = [self.columns.get("image", "image")]
        total = 0
        for name in self.sources:
            rows = table_rows(place_of(name), header) if is_manifest(name) else self._of(name)
            total += sum(1 for _ in rows)
        return total

    def _all(self) -> Iterator[Request]:
        return chain.from_iterable(map(self._of, self.sources))

    def _of(self, source: str) -> Iterator[Request]:
        if is_manifest(source):
            for number, sample in scan_manifest(source, Layout(self.columns, remote=self.remote, labels=False)):
                if isinstance(sample, DataError):
                    yield Request(id=f"{readable(place_of(source))}:{number}", error=str(sample))
                else:
                    yield sample
            return
        place = place_of(source)
        paired = self.reference is not None and is_folder(self.reference)
        if not is_folder(place):
            yield _item(readable(place), place, self.reference, paired=paired, below=False)
            return
        for below, path, why in _of_folder(place, self.recursive, self.globs):
            if isinstance(path, OSError):
                yield Request(id=below, error=f"folder {below!r}: cannot be read ({path.strerror}); {_MEND}")
            elif why is not None:
                continue
            elif isinstance(path, InputError):
                yield Request(id=below, error=str(path))
            else:
                yield _item(below, path, self.reference, paired=paired)

    def left_out(self) -> dict[str, int]:
        """Return how many files and folders of the sources are no items, by suffix or by why.

        What `globs` leave out is not among them, nor are hidden files.
        """
        counts: Counter[str] = Counter()
        spelt: dict[str, str] = {}
        for source in self.sources:
            if not is_manifest(source) and is_folder(place := place_of(source)):
                for _, _, why in _of_folder(place, self.recursive, self.globs):
                    counts.update([spelt.setdefault(why.casefold(), why)] if why else [])
        return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))

    def _distinct(self) -> Iterator[Request]:
        """Yield the items with distinct ids: each of two folders may hold an `a.png`."""
        with closing(IdSet()) as once, closing(IdSet()) as twice, closing(IdSet()) as yielded:
            for item in self._all():
                if not once.add(item.id):
                    twice.add(item.id)
            for item in self._all():
                if item.image is not None and item.id in twice:
                    item = item.model_copy(update={"id": readable(item.image)})
                if yielded.add(item.id):
                    yield item


_MEND = "check its permissions"
_SIDECAR = ".xmp"
_LINKED, _BELOW = "linked folder", "other folder not looked into (--recursive does)"


def left_out_text(left_out: Mapping[str, int]) -> str:
    """Say what `Items.left_out` found in one line; empty where that is nothing."""
    # What has a suffix is a file; of others the count goes before the words.
    parts = (
        f"{why} {n}" if why.startswith(".") else f"{n} {why.replace(' folder', ' folders') if n > 1 else why}"
        for why, n in left_out.items()
    )
    count = sum(left_out.values())
    if count:
        return f"{count} left out: {', '.join(parts)}"
    return ""


def find_items(
    sources: Sequence[str],
    *,
    recursive: bool = False,
    globs: Sequence[str] = (),
    reference: Place | None = None,
    columns: Mapping[str, str] | None = None,
    remote: Collection[str] = (),
) -> Items:
    """Return the items in order: images as given, a folder's by name, a manifest's by line.

    Sources are paths or URIs, or hf:NAME:SPLIT for a dataset of Hugging Face's; nothing is held in
    memory. `globs` keep files of folders whose name or path below the folder fits one; "!*.gif"
    leaves such files out. `reference` is one image for all, or a folder with one of the same name
    for each. `columns` says which column of a manifest is which field. Sources and the reference
    are the user's own word; what a manifest names elsewhere than below itself is an error of its
    row, unless `remote` holds its kind ("s3"). Raises InputError for a source that is not there,
    and when nothing is left to judge.
    """
    items = Items(sources, recursive, globs, reference, columns or {}, remote)
    for source in sources:
        if not is_manifest(source) and not exists(place_of(source)):
            raise InputError(f"image {source[:200]!r}: no such file or folder; {path_mend(source)}")
    if next(iter(items), None) is None:
        fault = f"holds no image to judge ({', '.join(globs or IMAGE_SUFFIXES)})"
        raise InputError("; ".join(filter(None, (f"{sources[0]!r}: {fault}", left_out_text(items.left_out())))))
    return items


def _of_folder(
    folder: Place, recursive: bool, globs: Sequence[str]
) -> Iterator[tuple[str, Place | OSError | InputError, str | None]]:
    """Yield a folder's files by their names below it, and folders in it that are not looked into.

    Beside each stands why it is no image to judge, as `_why_not` says it. A folder that cannot be
    read comes with its error, last. Hidden folders are passed over.
    """
    if not isinstance(folder, Path):
        yield from _of_folder_elsewhere(folder, recursive, globs)
        return
    faults: list[OSError] = []

    def note(error: OSError) -> None:
        if Path(error.filename) == folder:
            raise InputError(f"folder {readable(folder)!r}: cannot be read ({error.strerror}); {_MEND}") from error
        faults.append(error)

    for parent, folders, names in os.walk(folder, onerror=note):
        visible, folders[:] = sorted(f for f in folders if not f.startswith(".")), []
        for name in visible:
            path = Path(parent) / name
            linked = _LINKED if os.path.islink(path) else ""
            below = "" if recursive else _BELOW
            if why := _beside(name) or linked or below:
                yield readable(path.relative_to(folder)), path, why
            else:
                folders.append(name)
        owners = _sidecar_owners(names)
        for name in sorted(names):
            path = Path(parent) / name
            below = readable(path.relative_to(folder))
            yield below, path, "" if _is_sidecar(name, owners) else _why_not(below, globs)
    for fault in faults:
        yield readable(Path(fault.filename).relative_to(folder)), fault, ""


def _of_folder_elsewhere(
    folder: str, recursive: bool, globs: Sequence[str]
) -> Iterator[tuple[str, Place | InputError, str | None]]:
    passed: set[str] = set()
    for below, place in list_files(folder, recursive=recursive):
        parents = below.split("/")[:-1]
        first = next((n for n, name in enumerate(parents) if _beside(name) or name.startswith(".")), None)
        if first is None:
            yield below, place, _why_not(below, globs)
            continue
        top = "/".join(parents[: first + 1])
        if top not in passed and not parents[first].startswith("."):
            yield top, place, _beside(parents[first])
        passed.add(top)


def _sidecar_owners(names: Collection[str]) -> set[str]:
    """Return what the sidecars of a folder's files may be called, without their suffix."""
    others = [name for name in names if not name.casefold().endswith(_SIDECAR)]
    return {*others, *(PurePosixPath(name).stem for name in others)}


def _is_sidecar(name: str, owners: Collection[str]) -> bool:
    """Tell whether a file says something of another one: IMG.xmp or IMG.JPG.xmp."""
    return name.casefold().endswith(_SIDECAR) and name[: -len(_SIDECAR)] in owners


def _beside(folder: str) -> str:
    """Return what to call a folder of deleted or small pictures; empty for another one."""
    if folder.casefold() in _NO_PHOTOGRAPHS:
        return f"{folder} folder"
    return ""


def _why_not(below: str, globs: Sequence[str]) -> str | None:
    """Return why a file is no image to judge: its suffix, or "" where no more is to be said."""
    name = PurePosixPath(below).name

    def fits(*patterns: str) -> bool:
        # Cameras write IMG_1.JPG.
        pairs = ((text.casefold(), pattern.casefold()) for pattern in patterns for text in (name, below))
        return any(fnmatch.fnmatchcase(text, pattern) for text, pattern in pairs)

    keep = [g for g in globs if not g.startswith("!")]
    if name.startswith(".") or fits(*(g[1:] for g in globs if g.startswith("!"))):
        return ""
    if keep:
        if fits(*keep):
            return None
        return ""
    if name.casefold().endswith(IMAGE_SUFFIXES):
        return None
    return PurePosixPath(name).suffix or "without a suffix"


def _item(name: str, place: Place, reference: Place | None, *, paired: bool, below: bool = True) -> Request:
    if reference is None or not paired:
        return Request(id=name, image=place, reference=reference)
    # Joined to the folder, the path of an image that was named itself could lead back to the image.
    names = [name, name_of(place)] if below else [name_of(place)]
    try:
        # Names in a listing are data: none of them leads away from the folder of references.
        places = [named_in(reference, each, None) for each in names]
    except InputError as error:
        return Request(id=name, image=place, error=str(error))
    matches = [at for at in places if exists(at) and not is_folder(at)][:1]
    if not matches and isinstance(reference, Path):
        stem, folders = Path(name_of(place)).stem, [reference / Path(each).parent for each in names]
        matches = next(filter(None, (_of_stem(each, stem) for each in folders if each.is_dir())), [])
    if len(matches) == 1:
        return Request(id=name, image=place, reference=matches[0])
    fault = f"no reference of that name in {readable(reference)!r}; add one, or judge it alone"
    if matches:
        several = ", ".join(repr(name_of(each)) for each in matches)
        fault = f"{readable(reference)!r} has several references of that name ({several}); leave one"
    return Request(id=name, image=place, error=f"image {name!r}: {fault}")


def _of_stem(folder: Path, stem: str) -> list[Place]:
    """Return a folder's images that are called so, whatever they end in."""
    images = (path for path in folder.iterdir() if path.stem == stem and _why_not(path.name, ()) is None)
    return [path for path in sorted(images) if path.is_file()]
