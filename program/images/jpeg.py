"""Whether a JPEG holds its whole picture: libjpeg fills in silently what its scans lack.

Where one scan holds all, the decoder itself tells: it is handed the scan up to its end and no
further, so that it finds too little there, or is done too early. Of several scans, or with restarts
between, what follows each part is decoded once more with other bytes behind it: a part that was
whole does not read them, and the pixels stay the same. Sections and tables by their numbers in
ITU-T T.81.
"""

import io
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from PIL import ImageChops
from PIL.JpegImagePlugin import JpegImageFile

END = b"\xff\xd9"
_MARKER = re.compile(rb"\xff+([\x01-\xfe])", re.DOTALL)
_SEQUENTIAL, _PROGRESSIVE, _OTHER_FRAMES = {0xC0, 0xC1}, 0xC2, {*range(0xC3, 0xD0)} - {0xC4, 0xC8, 0xCC}
_TABLES, _INTERVAL, _START_OF_SCAN = 0xC4, 0xDD, 0xDA
_END_OF_SCAN = re.compile(rb"\xff\xff*[^\x00\xff\xd0-\xd7]")  # "\xff+" is five times as slow: it begins with no literal
_RESTART = re.compile(rb"\xff([\xd0-\xd7])")
_ONES = b"\xff\x00"
"""Eight bits that no code begins with twice in a row (annex C): the decoder reads no picture from
them."""
_LOOKAHEAD = 8 * _ONES
"""The decoder wants up to 64 bits more than it needs."""
_OTHER = bytes(range(1, 65))
_CHANGED = 4 * _OTHER
_TAIL, _BITE = 2048, 8
"""Bytes of a scan that are handed over in bites, and of one such bite."""
_SPARE, _FEW = 24, 64
"""Bytes that may be left over at the end of a scan, and that may lack at the end of a file."""
_SCAN_ENDS, _SCAN_GOES_ON = "a scan ends before the picture does", "a scan continues after the picture's last block"


class _Scan(NamedTuple):
    """Where a scan's data lies in the file, and what it is of."""

    start: int
    end: int
    components: tuple[int, ...]
    band: range
    """The coefficients that it brings."""
    shift: int
    """How many of their lowest bits it leaves out."""
    interval: int
    """Blocks between restarts; 0: there are none."""
    zeros_are_flat: bool
    """Whether zeros stand for blocks like the one before, in this scan's codes."""


@dataclass(slots=True)
class _Frame:
    """A JPEG's parts up to its end, or to the end of the file."""

    progressive: bool = False
    width: int = 0
    height: int = 0
    sampling: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Across and down, of each component."""
    scans: list[_Scan] = field(default_factory=list)
    ended: bool = False

    def blocks(self, scan: _Scan) -> int:
        """Return how many units a scan holds: blocks of a component, or groups of several (A.2)."""
        across = max(factors[0] for factors in self.sampling.values())
        down = max(factors[1] for factors in self.sampling.values())
        own = (1, 1) if len(scan.components) > 1 else self.sampling[scan.components[0]]
        return -(-self.width * own[0] // (8 * across)) * -(-self.height * own[1] // (8 * down))


def whole_jpeg(data: bytes, *, known: bool = False) -> tuple[JpegImageFile, tuple[str, ...]]:
    """Return a JPEG, decoded, and what there is to note of it.

    Raises ValueError, saying why, where a part of the picture is not there; what Pillow raises for
    other faults. One that lacks its last bytes is whole as long as these hold no more than a few
    blocks. `known`: it was found whole before, and is only decoded.
    """
    frame = _frame(data)
    closed = data if frame is None or frame.ended else data[: frame.scans[-1].end] + END
    if known or frame is None:
        return _loaded(io.BytesIO(closed)), ()
    _check_markers(frame, data)
    if len(frame.scans) == 1 and not _RESTART.search(data, frame.scans[0].start, frame.scans[0].end):
        image = _of_one_scan(frame, data, closed)
    else:
        image = _of_several_parts(frame, data, closed)
    if frame.ended:
        return image, ()
    return image, ("the file lacks its last bytes: its end is shown as far as it goes",)


def _loaded(file: io.BytesIO) -> JpegImageFile:
    image = JpegImageFile(file)
    image.load()
    return image


# The decoder as a witness


class _Handed(io.BytesIO):
    """A scan that is handed over in bites near its end: it shows how far the decoder came."""

    def __init__(self, data: bytes, scan: _Scan, behind: bytes) -> None:
        # Zeros before the end are padding, or a picture that was never written: see `goes_on`.
        self.full, self.end = scan.start + len(data[scan.start : scan.end].rstrip(b"\0")), scan.end
        self._in_bites_from = max(scan.start, self.full - _TAIL)
        super().__init__(data[: scan.end] + behind)

    def read(self, size: int | None = -1, /) -> bytes:
        at = self.tell()
        size = len(self.getbuffer()) if size is None or size < 0 else size
        return super().read(min(size, self._in_bites_from - at if at < self._in_bites_from else _BITE))

    @property
    def goes_on(self) -> bool:
        """Whether the decoder was done before the scan was."""
        read = self.tell()
        return read < self.full - _SPARE or self.full + _SPARE < read < self.end - _SPARE


def _of_one_scan(frame: _Frame, data: bytes, closed: bytes) -> JpegImageFile:
    scan = frame.scans[0]
    blocks = frame.blocks(scan) * sum(across * down for across, down in frame.sampling.values())
    few = max(1, min(_FEW * blocks // (scan.end - scan.start + 1), blocks // 16))
    # No block takes more than 34 ones: each of its two codes fails after 17.
    behind = _LOOKAHEAD
    if not frame.ended:
        behind += _ONES * -(-34 * few // 8)
    file = _Handed(data, scan, behind)
    try:
        image = _loaded(file)
    except OSError as error:
        raise ValueError(_SCAN_ENDS) from error
    if file.goes_on:
        raise ValueError(_SCAN_GOES_ON)
    if frame.ended:
        return image
    return _loaded(io.BytesIO(closed))


def _of_several_parts(frame: _Frame, data: bytes, closed: bytes) -> JpegImageFile:
    pieces, at = [], 0
    for scan in frame.scans:
        padded = _RESTART.sub(lambda found: _OTHER + found[0], data[scan.start : scan.end])
        pieces += [data[at : scan.start], padded, _OTHER]
        at = scan.end
    image = _loaded(io.BytesIO(closed))
    row = _first_that_differs(image, _loaded(io.BytesIO(b"".join(pieces) + closed[at:])))
    step = 8 * max(down for _, down in frame.sampling.values())
    # Where colours are halved, two rows of the blocks above take part in the last.
    if row is not None and (frame.ended or row < (image.height - 1) // step * step - 2):
        raise ValueError(_SCAN_ENDS)
    # Where something was cut out, the largest scan of detail has most likely lost it.
    detail = [scan for scan in frame.scans if scan.band.stop > 1 and scan.end - scan.start > 2 * len(_CHANGED)]
    if detail:
        end = max(detail, key=lambda scan: scan.end - scan.start).end
        changed = _loaded(io.BytesIO(closed[: end - len(_CHANGED)] + _CHANGED + closed[end:]))
        if _first_that_differs(image, changed) is None:
            raise ValueError(_SCAN_GOES_ON)
    return image


def _first_that_differs(image: JpegImageFile, other: JpegImageFile) -> int | None:
    """Return the first row in which two pictures of one size differ; None where they do not."""
    for top in range(0, image.height, 64):
        area = (0, top, image.width, min(top + 64, image.height))
        if differing := ImageChops.difference(image.crop(area), other.crop(area)).getbbox():
            return top + differing[1]
    return None


# What the markers tell


def _check_markers(frame: _Frame, data: bytes) -> None:
    """Raise ValueError, saying why, where they show that a part of the picture is not there."""
    left = {(component, index): 99 for component in frame.sampling for index in range(64)}
    for scan in frame.scans:
        shift, band = (scan.shift, scan.band) if frame.progressive else (0, range(64))
        left |= {(component, index): shift for component in scan.components for index in band}
        restarts = [code[0] & 7 for code in _RESTART.findall(data, scan.start, scan.end)]
        count = -(-frame.blocks(scan) // scan.interval) - 1 if scan.interval else 0
        if restarts != [number % 8 for number in range(count)]:
            raise ValueError("restarts are missing")
        # Codes of zeros that stand for detail: no picture holds so much of the same.
        longest = 512 if frame.progressive else 64
        if not scan.zeros_are_flat and b"\0" * longest in data[scan.start : scan.end]:
            raise ValueError("a part of it was never written")
    if any(left.values()):
        raise ValueError("its last scans are missing")


def _frame(data: bytes) -> _Frame | None:
    """Return a JPEG's parts; None where it is of another kind or its markers make no sense."""
    frame, interval, at = _Frame(), 0, 2
    flat: dict[int, bool] = {}
    try:
        while (found := _MARKER.match(data, at)) and found[1] != END[1:]:
            start, (marker,) = found.end(), found[1]
            at = start + int.from_bytes(data[start : start + 2])
            body = data[start + 2 : at]
            if marker in _SEQUENTIAL or marker == _PROGRESSIVE:
                frame.progressive = marker == _PROGRESSIVE
                _, frame.height, frame.width, count = struct.unpack_from(">BHHB", body)
                parts = [body[6 + 3 * n : 9 + 3 * n] for n in range(count)]
                frame.sampling = {number: (factors >> 4, factors & 15) for number, factors, _ in parts}
            elif marker in _OTHER_FRAMES:
                return None
            elif marker == _TABLES:
                flat |= _flat_tables(body)
            elif marker == _INTERVAL:
                interval = int.from_bytes(body)
            elif marker == _START_OF_SCAN:
                frame.scans.append(_scan(data, at, body, flat, interval))
                at = frame.scans[-1].end
        frame.ended = found is not None
        if frame.width and frame.height and frame.scans:
            return frame
        return None
    except (IndexError, KeyError, ValueError, ZeroDivisionError, struct.error):
        return None


def _scan(data: bytes, start: int, head: bytes, flat: Mapping[int, bool], interval: int) -> _Scan:
    first, last, bits = head[-3:]
    chosen = {head[n]: head[n + 1] for n in range(1, 2 * head[0], 2)}
    tables = [table >> 4 for table in chosen.values()] if not bits >> 4 else []
    tables += [0x10 | table & 15 for table in chosen.values()] if last else []
    # Detail by itself is never told block by block that there is none; bits that refine the mean need no table.
    are_flat = not first and all(flat[table] for table in tables)
    end = _END_OF_SCAN.search(data, start)
    place = end.start() if end else len(data.rstrip(b"\xff"))
    return _Scan(start, place, tuple(chosen), range(first, last + 1), bits & 15, interval, are_flat)


def _flat_tables(body: bytes) -> dict[int, bool]:
    """Return by class and number of each table (B.2.4.2) whether its first code means no change."""
    flat, at = {}, 0
    while at < len(body):
        flat[body[at]] = body[at + 17] == 0
        at += 17 + sum(body[at + 1 : at + 17])
    return flat
