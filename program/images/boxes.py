"""What an AVIF or HEIF file states of its picture in its boxes (ISO/IEC 14496-12 and 23008-12)."""

import struct
from collections.abc import Iterator

__all__ = ("nclx_of",)

_MOST_BOXES = 4096


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
