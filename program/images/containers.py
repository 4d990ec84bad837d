"""What the files around pictures state: AVIF, HEIF, WebP, TIFF and raw files.

Boxes: ISO/IEC 14496-12, 23008-12. Decoders read a picture from zeros, too: a download whose middle
was never written looks whole to them. Tags of directories by their numbers in TIFF 6.0, its
supplement 1 (SubIFDs), TIFF/EP and the DNG specification: raw files and others begin with a small
preview of the photograph.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

_MOST_BOXES = 4096
_ZEROS = 64
"""Zeros on end that no coded picture holds: the most in 38 encoded ones, flat ones among them, were
6."""
_FLAT_PER_ZERO = 8192
"""Pixels of a flat picture to a zero in lossy WebP: it takes 10,300 of them to leave one."""
_CODED = {b"av01", b"hvc1", b"hev1", b"avc1", b"jpeg"}


def is_unwritten(data: bytes, pixels: int) -> bool:
    """Return whether a part of a picture of so many pixels is zeros that no encoder writes."""
    try:
        if data[:4] == b"RIFF":
            for lossy, part in _chunks(data[12:]):
                flat = pixels // _FLAT_PER_ZERO if lossy else 0
                if bytes(_ZEROS + flat) in part:
                    return True
            return False
        return any(bytes(_ZEROS) in part for part in _coded_parts(data))
    except (struct.error, IndexError):
        return False  # what is broken here its decoder refuses


def _chunks(data: bytes) -> Iterator[tuple[bool, bytes]]:
    """Yield the coded pictures of a WebP file, and whether each is lossy."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<4sI", data, at)
        content = data[at + 8 : at + 8 + size]
        if kind == b"ANMF":
            yield from _chunks(content[16:])
        elif kind in {b"VP8 ", b"VP8L", b"ALPH"}:
            yield kind == b"VP8 ", content
        at += 8 + size + size % 2


def _coded_parts(data: bytes) -> Iterator[bytes]:
    """Yield the coded pictures of an AVIF or HEIF file, in which zeros are rare."""
    meta = _inside(data, b"meta")[4:] if data[4:8] == b"ftyp" else b""
    listed = _inside(meta, b"iinf")
    if not listed:
        return
    coded = set()
    for _, entry in _boxes(listed[8 if listed[0] else 6 :]):
        number = struct.unpack_from(">I" if entry[0] > 2 else ">H", entry, 4)[0]
        place = 10 if entry[0] > 2 else 8
        if entry[place : place + 4] in _CODED:
            coded.add(number)
    for number, start, length in _places(_inside(meta, b"iloc")):
        if number in coded:
            yield data[start : start + length]


def _places(iloc: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each item, and where each of its parts is in the file."""
    version, sizes = iloc[0], struct.unpack_from(">H", iloc, 4)[0]
    offset_size, length_size, base_size, index_size = (sizes >> shift & 15 for shift in (12, 8, 4, 0))
    at = 6

    def number_of(size: int) -> int:
        nonlocal at
        at += size
        if at > len(iloc):
            raise IndexError
        return int.from_bytes(iloc[at - size : at])

    for _ in range(number_of(4 if version == 2 else 2)):
        item = number_of(4 if version == 2 else 2)
        in_the_file = not version or not number_of(2) & 15
        number_of(2)
        base = number_of(base_size)
        for _ in range(number_of(2)):
            number_of(index_size if version else 0)
            start, length = number_of(offset_size), number_of(length_size)
            if in_the_file:
                yield item, base + start, length


def nclx_of(data: bytes) -> tuple[int, int] | None:
    """Return the codes of a file's colour primaries and transfer; or None."""
    try:
        meta = _inside(data, b"meta")[4:] if data[4:8] == b"ftyp" else b""
        properties = _inside(meta, b"iprp")
        pitm = _inside(meta, b"pitm")
        (primary,) = struct.unpack_from(">I" if pitm[0] else ">H", pitm, 4)
        listed = list(_boxes(_inside(properties, b"ipco")))
        for number in filter(None, _associated(_inside(properties, b"ipma"), primary)):
            kind, box = listed[number - 1]
            if kind == b"colr" and box[:4] == b"nclx":
                return struct.unpack_from(">HH", box, 4)
    except (struct.error, IndexError):
        pass  # what is broken here states nothing
    return None


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the type and the content of each box."""
    at = 0
    for _ in range(_MOST_BOXES):
        if at + 8 > len(data):
            return
        size, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if size == 1:
            size, head = struct.unpack_from(">Q", data, at + 8)[0], 16
        size = size or len(data) - at
        if size < head:
            return
        yield kind, data[at + head : at + size]
        at += size


def _inside(data: bytes, kind: bytes) -> bytes:
    return next((content for found, content in _boxes(data) if found == kind), b"")


def _associated(ipma: bytes, item: int) -> Iterator[int]:
    """Yield the numbers of an item's properties, from 1 on; 0 is none."""
    version, wide = ipma[0], ipma[3] & 1
    (count,), at = struct.unpack_from(">I", ipma, 4), 8
    for _ in range(count):
        (number,) = struct.unpack_from(">I" if version else ">H", ipma, at)
        at += 4 if version else 2
        several = ipma[at]
        at += 1
        step = 2 if wide else 1
        for place in range(at, at + several * step, step):
            if number == item:
                yield int.from_bytes(ipma[place : place + step]) & (0x7FFF if wide else 0x7F)
        at += several * step


_NEW_SUBFILE, _SUBFILE, _WIDTH, _HEIGHT, _PHOTOMETRIC, _SUB_IFDS, _DNG_VERSION = 254, 255, 256, 257, 262, 330, 50706
_READ = {_NEW_SUBFILE, _SUBFILE, _WIDTH, _HEIGHT, _PHOTOMETRIC, _SUB_IFDS, _DNG_VERSION}
_SENSOR = {32803, 34892}
"""What a sensor counted, colour filter by colour filter or already spread: no picture yet."""
_INTEGERS = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q", 18: "Q"}
_MOST_DIRECTORIES, _MOST_VALUES = 64, 64
_OTHER_RAW = (
    (0, b"FUJIFILMCCD-RAW", "RAF"), (0, b"IIRO", "ORF"), (0, b"IIRS", "ORF"), (0, b"MMOR", "ORF"), (0, b"IIU\0", "RW2"),
    (0, b"FOVb", "X3F"), (4, b"ftypcrx ", "CR3"),
)  # fmt: skip
"""Raw files that are no TIFF: where which bytes stand."""


class _Directory(NamedTuple):
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
    if any(d.value(_PHOTOMETRIC) in _SENSOR for d in (first, *others)):
        return "as NEF and ARW"
    return None


def without_preview(data: bytes) -> tuple[bytes, str | None]:
    """Return a TIFF that begins with its full picture, and a note; others as they are."""
    first, others = _directories(data)
    if first is None or (first.is_whole and _SUB_IFDS not in first.tags):
        return data, None
    whole = [d for d in (first, *others) if d.is_whole]
    if not whole:
        return data, "the file holds a reduced copy of the picture alone"
    largest = max(whole, key=lambda d: d.value(_WIDTH) * d.value(_HEIGHT))
    if largest is first:
        return data, None
    word = _word_of(data)
    size = struct.calcsize(word)
    text = f"the full picture is judged, not the preview of {first.value(_WIDTH)}x{first.value(_HEIGHT)} before it"
    return data[:size] + struct.pack(word, largest.offset) + data[2 * size :], text


def _word_of(data: bytes) -> str:
    """Return how a TIFF writes addresses, as a format: of 8 bytes in a big one."""
    order = "<" if data[:2] == b"II" else ">"
    size = "Q" if b"+" in data[2:4] else "I"
    return order + size


def _directories(data: bytes) -> tuple[_Directory | None, list[_Directory]]:
    """Return a TIFF's first directory, and those that may hold what it is a preview of."""
    if data[:4] not in {b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"}:
        return None, []
    try:
        word = _word_of(data)
        first = _directory(data, *struct.unpack_from(word, data, struct.calcsize(word)))
    except (struct.error, OverflowError):  # the latter for an address that no file reaches
        return None, []
    return first, list(_further(data, first))


def _further(data: bytes, first: _Directory) -> Iterator[_Directory]:
    seen, waiting = {first.offset}, [*first.tags.get(_SUB_IFDS, ())]
    if not first.is_whole:  # else further pages are pages
        waiting.append(first.next_offset)
    while waiting and len(seen) < _MOST_DIRECTORIES:
        offset = waiting.pop(0)
        if offset and offset not in seen:
            seen.add(offset)
            try:
                found = _directory(data, offset)
            except (struct.error, OverflowError):
                continue  # a broken one is no picture to read
            yield found
            waiting += [*found.tags.get(_SUB_IFDS, ()), found.next_offset]


def _directory(data: bytes, offset: int) -> _Directory:
    """Return the directory at an offset; struct.error or OverflowError beyond the end."""
    word = _word_of(data)
    order, inline = word[0], struct.calcsize(word)
    counted = word if inline == 8 else f"{order}H"
    (count,) = struct.unpack_from(counted, data, offset)
    at, size = offset + struct.calcsize(counted), 4 + 2 * inline
    tags: dict[int, tuple[int, ...]] = {}
    for place in range(at, at + min(count, 65535) * size, size):
        tag, kind, number = struct.unpack_from(f"{order}HH{word[1]}", data, place)
        if tag in _READ and kind in _INTEGERS and number:
            values = f"{order}{min(number, _MOST_VALUES)}{_INTEGERS[kind]}"
            start = place + size - inline
            if struct.calcsize(f"{order}{_INTEGERS[kind]}") * number > inline:
                (start,) = struct.unpack_from(word, data, start)
            tags[tag] = struct.unpack_from(values, data, start)
    (following,) = struct.unpack_from(word, data, at + count * size)
    return _Directory(offset, tags, following)
