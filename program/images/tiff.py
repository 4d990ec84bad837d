"""Which picture of a TIFF is the photograph: raw files and others begin with a small preview of it.

Tags by their numbers in TIFF 6.0, its supplement 1 (SubIFDs), TIFF/EP and the DNG specification.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ("raw_kind", "without_preview")

_NEW_SUBFILE, _SUBFILE, _WIDTH, _HEIGHT, _PHOTOMETRIC, _SUB_IFDS, _DNG_VERSION = 254, 255, 256, 257, 262, 330, 50706
_READ = {_NEW_SUBFILE, _SUBFILE, _WIDTH, _HEIGHT, _PHOTOMETRIC, _SUB_IFDS, _DNG_VERSION}
_SENSOR = {32803, 34892}
"""What a sensor counted, colour filter by colour filter or already spread: no picture yet."""
_ON_TIFF = "as NEF and ARW"
_INTEGERS = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q", 18: "Q"}
_MOST_DIRECTORIES, _MOST_VALUES = 64, 64
_OTHER_RAW = (
    (0, b"FUJIFILMCCD-RAW", "RAF"), (0, b"IIRO", "ORF"), (0, b"IIRS", "ORF"), (0, b"MMOR", "ORF"), (0, b"IIU\0", "RW2"),
    (0, b"FOVb", "X3F"), (4, b"ftypcrx ", "CR3"),
)  # fmt: skip
"""Raw files that are no TIFF: where which bytes stand."""


@dataclass(frozen=True, slots=True)
class _Directory:
    """One picture's tags that are read here."""

    offset: int
    tags: dict[int, tuple[int, ...]]
    next_offset: int

    def value(self, tag: int) -> int:
        """Return a tag's first value, 0 without it."""
        return self.tags.get(tag, (0,))[0]

    @property
    def is_whole(self) -> bool:
        """Whether it is neither a reduced copy of another picture nor a mask for one."""
        return not self.value(_NEW_SUBFILE) & 5 and self.value(_SUBFILE) != 2

    @property
    def area(self) -> int:
        """Width times height."""
        return self.value(_WIDTH) * self.value(_HEIGHT)


def raw_kind(data: bytes) -> str | None:
    """Return what kind of raw file this is; None where it is none."""
    for at, magic, kind in _OTHER_RAW:
        if data[at : at + len(magic)] == magic:
            return kind
    first, others = _directories(data)
    if first is None:
        return None
    if _DNG_VERSION in first.tags:
        return "DNG"
    if data[8:10] == b"CR":
        return "CR2"
    return _ON_TIFF if any(d.value(_PHOTOMETRIC) in _SENSOR for d in (first, *others)) else None


def without_preview(data: bytes) -> tuple[bytes, str | None]:
    """Return a file that begins with its full picture, and what there is to note; any but a TIFF as it is."""
    first, others = _directories(data)
    if first is None or (first.is_whole and _SUB_IFDS not in first.tags):
        return data, None
    whole = [d for d in (first, *others) if d.is_whole]
    if not whole:
        return data, "the file holds a reduced copy of the picture alone"
    largest = max(whole, key=lambda d: d.area)
    if largest is first:
        return data, None
    big = data[2:4] in {b"+\0", b"\0+"}
    place = slice(8, 16) if big else slice(4, 8)
    offset = struct.pack(_order(data) + ("Q" if big else "I"), largest.offset)
    text = f"the full picture is judged, not the preview of {first.value(_WIDTH)}x{first.value(_HEIGHT)} before it"
    return data[: place.start] + offset + data[place.stop :], text


def _order(data: bytes) -> str:
    return "<" if data[:2] == b"II" else ">"


def _directories(data: bytes) -> tuple[_Directory | None, list[_Directory]]:
    """Return a TIFF's first directory, and those that may hold what it is a preview of."""
    if data[:4] not in {b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"}:
        return None, []
    try:
        big = data[2:4] in {b"+\0", b"\0+"}
        (offset,) = struct.unpack_from(_order(data) + ("Q" if big else "I"), data, 8 if big else 4)
        first = _directory(data, offset, big)
    except struct.error:
        return None, []
    return first, list(_further(data, first, big))


def _further(data: bytes, first: _Directory, big: bool) -> Iterator[_Directory]:
    seen, waiting = {first.offset}, [*first.tags.get(_SUB_IFDS, ())]
    if not first.is_whole:  # else further pages are pages
        waiting.append(first.next_offset)
    while waiting and len(seen) < _MOST_DIRECTORIES:
        offset = waiting.pop(0)
        if offset and offset not in seen:
            seen.add(offset)
            try:
                found = _directory(data, offset, big)
            except struct.error:
                continue  # a broken one is no picture to read
            yield found
            waiting += [*found.tags.get(_SUB_IFDS, ()), found.next_offset]


def _directory(data: bytes, offset: int, big: bool) -> _Directory:
    """Return the directory at an offset. Raises struct.error where the file ends before it does."""
    order = _order(data)
    count_as, entry, inline = ("Q", order + "HHQ", 8) if big else ("H", order + "HHI", 4)
    (count,) = struct.unpack_from(order + count_as, data, offset)
    at = offset + struct.calcsize(order + count_as)
    size = struct.calcsize(entry) + inline
    tags: dict[int, tuple[int, ...]] = {}
    for place in range(at, at + min(count, 65535) * size, size):
        tag, kind, number = struct.unpack_from(entry, data, place)
        if tag in _READ and kind in _INTEGERS and number:
            values = f"{order}{min(number, _MOST_VALUES)}{_INTEGERS[kind]}"
            start = place + size - inline
            if struct.calcsize(f"{order}{_INTEGERS[kind]}") * number > inline:
                (start,) = struct.unpack_from(order + ("Q" if big else "I"), data, start)
            tags[tag] = struct.unpack_from(values, data, start)
    (following,) = struct.unpack_from(order + ("Q" if big else "I"), data, at + count * size)
    return _Directory(offset, tags, following)
