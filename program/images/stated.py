"""What a photograph's file and the sidecars beside it state: when it was taken, and a person's rating."""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from program.common.errors import InputError
from program.common.files import leads_out, read_bounded
from program.images.packets import MOST_BYTES, Stated, stars_of_percent, stated_in

_ORIGINAL, _DIGITIZED, _CHANGED, _FRACTION = 36867, 36868, 306, 37521
"""EXIF's times, and the fraction of a second of the first."""
_RATING, _PERCENT = 0x4746, 0x4749

Naming = Literal["basename", "full"]
_SPELLINGS = (".xmp", ".XMP", ".Xmp")
"""Some systems tell large letters from small ones, and programs write either."""


def sidecar_of(picture: Path, naming: Naming) -> Path:
    """Return where a picture's sidecar is written: IMG.xmp (`basename`) or IMG.CR3.xmp (`full`)."""
    return _spelt(picture, naming, ".xmp")


def _spelt(picture: Path, naming: Naming, suffix: str) -> Path:
    if naming == "basename":
        return picture.with_suffix(suffix)
    return picture.with_name(f"{picture.name}{suffix}")


def sidecars_of(picture: Path, first: Naming = "full") -> list[Path]:
    """Return the sidecars that a picture has, by either name; an empty file is none."""
    namings: list[Naming] = [first, "basename" if first == "full" else "full"]
    return list(_there(_spelt(picture, naming, suffix) for naming in namings for suffix in _SPELLINGS))


def _there(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the paths at which something lies, each file once, however it is spelled."""
    known: list[os.stat_result] = []
    for path in paths:
        with suppress(OSError):
            facts = os.lstat(path)
            if not is_empty(facts) and not any(os.path.samestat(facts, each) for each in known):
                known.append(facts)
                yield path


def is_empty(facts: os.stat_result) -> bool:
    """Tell whether a file is empty, as half-written sidecars are."""
    return stat.S_ISREG(facts.st_mode) and not facts.st_size


def read_sidecar(path: Path, folder: Path) -> bytes:
    """Return what a sidecar of a picture below `folder` holds.

    Raises InputError, one line, for a link out of the folder, what is no plain file, over 16 MiB or
    cannot be read.
    """
    if leads_out(path, folder):
        raise sidecar_fault(path, "is a link out of the folder", "put a copy in its place")
    try:
        return read_bounded(path, MOST_BYTES)
    except OSError as error:
        fault = f"cannot be read ({error.strerror})"
        raise sidecar_fault(path, fault, "put a plain file there, or remove it") from error


def sidecar_fault(path: Path, fault: str, mend: str) -> InputError:
    """Return the error of a sidecar, in one line."""
    return InputError(f"sidecar {path.name!r}: {fault}; {mend}")


def taken_at(tags: Mapping[int, object]) -> str | None:
    """Return when a picture was taken, as EXIF's tags say: ISO 8601, the camera's local time.

    >>> taken_at({36867: "2026:05:01 10:20:30", 37521: "25"}), taken_at({306: "0000:00:00 00:00:00"})
    ('2026-05-01T10:20:30.250000', None)
    """
    for tag in (_ORIGINAL, _DIGITIZED, _CHANGED):
        text = str(tags.get(tag, "")).strip("\0 ")
        fraction = str(tags.get(_FRACTION, "")).strip("\0 ") if tag == _ORIGINAL else ""
        text += f".{fraction[:6]}" if fraction.isascii() and fraction.isdigit() else ""
        for form in ("%Y:%m:%d %H:%M:%S.%f", "%Y:%m:%d %H:%M:%S"):
            with suppress(ValueError):
                return datetime.strptime(text, form).isoformat()
    return None


def bursts(times: Sequence[datetime | None], gap_s: float) -> NDArray[np.intp]:
    """Return the number of each picture's burst: none is more than `gap_s` after another.

    -1 for one without a time.

    >>> at = datetime(2026, 5, 1)
    >>> bursts([at, None, at.replace(second=2), at.replace(second=9)], 3.0).tolist()
    [0, -1, 0, 1]
    """
    known = [(time, place) for place, time in enumerate(times) if time is not None]
    numbers = np.full(len(times), -1, dtype=np.intp)
    number, before = -1, None
    for time, place in sorted(known):
        number += before is None or (time - before).total_seconds() > gap_s
        numbers[place], before = number, time
    return numbers


def burst_names(taken: Mapping[str, str | None], gap_s: float) -> dict[str, str]:
    """Return the burst of each picture, called as its first; `taken` holds when each was, as `taken_at` says.

    >>> burst_names({"a": "2026-05-01T10:00:00", "b": None, "c": "2026-05-01T10:00:02"}, 3.0)
    {'a': 'a', 'b': 'b', 'c': 'a'}
    """
    times = [None if at is None else datetime.fromisoformat(at) for at in taken.values()]
    first: dict[int, str] = {}
    names = {}
    for name, number in zip(taken, bursts(times, gap_s).tolist(), strict=True):
        names[name] = name if number < 0 else first.setdefault(number, name)
    return names


def stated_beside(picture: Path | None, folder: Path) -> Stated:
    """Return what the sidecars of a picture below `folder` say: the first with a person's rating or flag.

    Raises InputError where one of them is no file of the folder's or cannot be read.
    """
    stated = Stated()
    for path in sidecars_of(picture) if picture is not None else ():
        each = stated_in(read_sidecar(path, folder))
        if each.rating or each.picked:  # 0 is none
            return each
        if each.is_suggested:
            stated = each
    return stated


def stated_by(tags: Mapping[int, object], packet: bytes) -> Stated:
    """Return what a file's XMP packet says, else its EXIF's tags: stars, or Windows' percent."""
    stated = stated_in(packet) if packet else Stated()
    stars, percent = tags.get(_RATING), tags.get(_PERCENT)
    if stated.rating or stated.picked:
        return stated
    if isinstance(stars, int) and -1 <= stars <= 5 and stars:
        return Stated(stars)
    if isinstance(percent, int) and 0 < percent <= 100:
        return Stated(stars_of_percent(percent))
    return stated
