"""What AVIF and HEIF files state of their picture in boxes (ISO/IEC 14496-12, 23008-12), and WebP files in chunks.

Their decoders read a picture from zeros, too: a download whose middle was never written looks whole to them.
"""

import struct
from collections.abc import Iterator

__all__ = ("is_unwritten", "nclx_of")

_MOST_BOXES = 4096
_ZEROS = 64
"""Zeros on end that no coded picture holds: the most in 38 encoded ones, flat ones among them, were 6."""
_FLAT_PER_ZERO = 8192
"""Pixels of a flat picture to a zero in lossy WebP: it takes 10,300 of them to leave one."""
_CODED = {b"av01", b"hvc1", b"hev1", b"avc1", b"jpeg"}


def is_unwritten(data: bytes, pixels: int) -> bool:
    """Return whether a part of a picture of so many pixels is zeros that no encoder writes."""
    try:
        if data[:4] == b"RIFF":
            chunks = _chunks(data[12:])
            return any(bytes(_ZEROS + (pixels // _FLAT_PER_ZERO if lossy else 0)) in part for lossy, part in chunks)
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
    """Yield the coded pictures of an AVIF or HEIF file: not what is said of them, in which zeros are common."""
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
    """Return the codes of the colour primaries and transfer of a file's picture; None where it states none."""
    try:
        meta = _inside(data, b"meta")[4:] if data[4:8] == b"ftyp" else b""
        properties = _inside(meta, b"iprp")
        primary = _primary(_inside(meta, b"pitm"))
        listed = list(_boxes(_inside(properties, b"ipco")))
        for number in _associated(_inside(properties, b"ipma"), primary):
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


def _primary(pitm: bytes) -> int:
    return int(struct.unpack_from(">I" if pitm[0] else ">H", pitm, 4)[0])


def _associated(ipma: bytes, item: int) -> Iterator[int]:
    """Yield the numbers of an item's properties, from 1 on."""
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
