"""The pictures to rate: which there are, which of them are of one burst, and each as the decoder shows it."""

import hashlib
import io
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cachetools import LRUCache
from PIL import Image

from data.manifest import Sample, read_manifest
from program.batch.inputs import find_items
from program.common.errors import ImageError, InputError
from program.common.files import Place, open_file, read_bounded
from program.common.pool import in_order
from program.images.decode_worker import decode_bounded, tags_bounded
from program.images.stated import burst_names, taken_at

_GAP_S = 3.0
"""Between two pictures of a burst."""
_HEAD_BYTES, _HEAD_PIXELS = 2**18, 2**20
"""In which a camera's file has its EXIF; it is read in the time that so many pixels have."""
_MOST_BYTES = 2**30
"""Of a picture's file."""
_KEPT = 6
"""Pictures that are held as they are shown: those of two tabs, and the next ones."""


@dataclass(frozen=True)
class Unit:
    """What is answered at once: one picture, two, or a question about one."""

    id: str
    """Of the ratings' line."""
    pictures: tuple[int, ...]
    """Their places; of two the left one first."""
    group: str
    query: str | None = None
    options: Mapping[str, str] | None = None
    regions: Mapping[str, tuple[float, float, float, float]] | None = None
    split: str | None = None
    """As the manifest of a question says."""


class Picture(NamedTuple):
    """A picture's name, file, and the burst or scene that it is of."""

    id: str
    place: Path
    group: str


class Shown(NamedTuple):
    """A picture as it is shown."""

    sha256: str
    """Of its file."""
    png: bytes
    """Upright, in sRGB, at full size; it holds nothing but pixels."""


def photographs(folder: Path, globs: Sequence[str], known: Mapping[str, str], *, recursive: bool) -> list[Picture]:
    """Return a folder's pictures; those of one burst by EXIF are one group, named as before where it is `known`.

    Raises InputError where there is none.
    """
    if not folder.is_dir():
        raise InputError(f"photos {str(folder)!r}: is no folder of this machine; give one")
    items = find_items([str(folder)], recursive=recursive, globs=globs)
    named = [(item.id, item.image) for item in items if isinstance(item.image, Path)]
    taken = in_order(_taken_at, [path for _, path in named], workers=4)
    burst_of = burst_names(dict(zip([name for name, _ in named], taken, strict=True)), _GAP_S)
    before: dict[str, str] = {}
    for name, burst in burst_of.items():
        if name in known:
            before.setdefault(burst, known[name])
    pictures = []
    for name, path in named:
        burst = burst_of[name]
        pictures.append(Picture(name, path, known.get(name, before.get(burst, burst))))
    return pictures


def _taken_at(path: Path) -> str | None:
    try:
        with open_file(path) as file:
            tags, _ = tags_bounded(file.read(_HEAD_BYTES), _HEAD_PIXELS)
    except OSError:  # that it cannot be read is said when it is to be shown
        return None
    return taken_at(tags)


def questions(manifest: Place) -> tuple[list[Picture], list[Unit]]:
    """Return a manifest's pictures, and its questions with options. Raises InputError where there is none."""
    places: dict[str, int] = {}
    pictures: list[Picture] = []
    units: list[Unit] = []
    for sample in read_manifest(manifest):
        if sample.options is None or not isinstance(sample.image, Path):
            continue
        if str(sample.image) not in places:
            places[str(sample.image)] = len(pictures)
            pictures.append(Picture(sample.id, sample.image, _group_of(sample)))
        place, group = places[str(sample.image)], _group_of(sample)
        units.append(Unit(sample.id, (place,), group, sample.query, sample.options, sample.regions, sample.split))
    if not units:
        mend = 'give lines with an "image" of this machine, a "query" and "options"'
        raise InputError(f"--questions {str(manifest)!r}: holds no question with options; {mend}")
    return pictures, units


def _group_of(sample: Sample) -> str:
    return sample.group if sample.group is not None else str(sample.image)


class Screen:
    """Makes pictures as they are shown, a few of which are held. Thread-safe."""

    def __init__(self, pictures: Sequence[Picture], max_pixels: int) -> None:
        """Take the pictures, and the bound of one in pixels."""
        self._pictures, self._max_pixels = pictures, max_pixels
        self._made: LRUCache[int, Shown] = LRUCache(_KEPT)
        self._lock = threading.Lock()

    def show(self, place: int) -> Shown:
        """Return a picture as it is shown; ImageError where it cannot be."""
        with self._lock:
            if place not in self._made:
                self._made[place] = self._make(self._pictures[place])
            return self._made[place]

    def _make(self, picture: Picture) -> Shown:
        try:
            str(picture.place.absolute()).encode()
        except UnicodeEncodeError as error:  # a line of ratings could not hold it
            raise ImageError(f"image {picture.id!r}: its name is no UTF-8; rename it") from error
        try:
            data = read_bounded(picture.place, _MOST_BYTES)
        except OSError as error:
            raise ImageError(f"image {picture.id!r}: cannot be read ({error.strerror}); check the file") from error
        pixels = decode_bounded(data, picture.id, max_pixels=self._max_pixels).pixels
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG", compress_level=1)
        return Shown(hashlib.sha256(data).hexdigest(), file.getvalue())
