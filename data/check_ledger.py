"""What a check keeps of the lines it has read, and how a line is held against them.

Numbers and hashes only: about 130 bytes a line with an image and a group of its own.
"""

import hashlib
import io
import os
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from data.check_report import CheckReport
from data.keys import KeyTable
from data.manifest import Sample, Split
from data.splits import group_of

__all__ = ("Ledger",)

FAULTS = ("", "missing", "unreadable")
FAULT_TEXTS = 1000

_ORIENTATION, _TURNED = 0x0112, range(5, 9)
"""EXIF: the tag that says how an image is turned, and its values that swap width and height."""

_SPLITS: tuple[Split, ...] = get_args(Split)


class Ledger:
    """What is kept of the lines read so far, and the checks of a line against it."""

    def __init__(self, report: CheckReport) -> None:
        self.report = report
        self.files, self.groups = KeyTable(), KeyTable()
        self._contents, self._questions = KeyTable(), KeyTable()
        self._content_of_file = array("i")  # by file; -1: no content, the file is missing
        self._fault_of_file = bytearray()  # by file: index in FAULTS
        self._sizes = array("I")  # by file: width and height in pixels, 0 where it was not decoded
        self._fault_texts: dict[int, str] = {}  # of the first faulty files; that is more than a report shows
        self._split_of_group, self._split_of_content = bytearray(), bytearray()
        self._group_of_content = array("i")  # -1: seen as a reference only
        self._line_of_content, self._line_of_group, self._line_of_question = array("I"), array("I"), array("I")

    def read_files(self, samples: Sequence[Sample], pool: ThreadPoolExecutor, *, decode: bool) -> None:
        """Read the files that are new, in parallel, and keep their content's number or their fault."""
        new = []
        for path in (p for s in samples for p in (s.image, s.reference) if p is not None):
            number, is_new = self.files.number(os.fsencode(path))
            if is_new:
                new.append((number, path))
        for (number, _), file in zip(new, pool.map(lambda f: _read(f[1], decode=decode), new), strict=True):
            content = -1
            self._fault_of_file.append(FAULTS.index(file.kind))
            self._sizes.extend((file.width, file.height))
            if file.fault and len(self._fault_texts) < FAULT_TEXTS:
                self._fault_texts[number] = file.fault
            if file.digest:
                content, is_new = self._contents.number(file.digest)
                if is_new:
                    self._split_of_content.append(0)
                    self._group_of_content.append(-1)
                    self._line_of_content.append(0)
            self._content_of_file.append(content)

    def enter(self, line: int, sample: Sample) -> None:
        """Check one line against all before it."""
        self.report.splits[sample.split or "no split"] += 1
        self.report.tasks[sample.task] += 1
        group, is_new = self.groups.number(group_of(sample))
        if is_new:
            self._split_of_group.append(0)
            self._line_of_group.append(line)
        if sample.mos is not None and not sample.mos_range[0] <= sample.mos <= sample.mos_range[1]:
            self.report.notes["scores a little outside their scale"] += 1
        self._check_group(line, sample, group)
        self._check_file(line, sample.image, "image", sample)
        if sample.reference is not None:
            self._check_file(line, sample.reference, "reference", sample)
        self._check_regions(line, sample)
        self._check_question(line, sample)
        self._check_content(line, sample, group)

    def _check_file(self, line: int, path: Path, role: str, sample: Sample) -> None:
        number = self.files.find(os.fsencode(path)) or 0
        if kind := FAULTS[self._fault_of_file[number]]:
            self.report.add(kind, line, f"{role} {str(path)!r} {self._fault_texts.get(number, 'cannot be used')}")
        content = self._content_of_file[number]
        if content < 0 or sample.split is None:
            return
        before = self._split_of_content[content]
        self._split_of_content[content] = after = before | 1 << _SPLITS.index(sample.split)
        if before and after != before:
            self.report.add(
                "leak", line, f"{role} {path.name!r} is in {_named(after)} (by content); keep it in one split"
            )

    def _check_regions(self, line: int, sample: Sample) -> None:
        number = self.files.find(os.fsencode(sample.image)) or 0
        width, height = self._sizes[2 * number : 2 * number + 2]
        for name, (left, top, right, bottom) in (sample.regions or {}).items() if width else ():
            if left < 0 or top < 0 or right > width or bottom > height:
                box = f"({left:g}, {top:g}, {right:g}, {bottom:g})"
                self.report.add("region", line, f"box {box} of {name!r} passes the edge of {sample.image.name!r}, "
                                f"{width}x{height}; correct it")  # fmt: skip

    def _check_group(self, line: int, sample: Sample, group: int) -> None:
        if sample.split is None:
            return
        before = self._split_of_group[group]
        self._split_of_group[group] = after = before | 1 << _SPLITS.index(sample.split)
        if before and after != before:
            first = self._line_of_group[group]
            name = group_of(sample)
            self.report.add(
                "leak", line, f"group {name!r} is in {_named(after)} (first in line {first}); keep it in one split"
            )

    def _check_question(self, line: int, sample: Sample) -> None:
        asked = (
            str(sample.image),
            str(sample.reference),
            sample.query,
            sample.options,
            sample.mos is None,
            sample.distortion,
        )
        number, is_new = self._questions.number(repr(asked))
        if is_new:
            self._line_of_question.append(line)
        else:
            first = self._line_of_question[number]
            self.report.add("repeated", line, f"asks the same of {sample.image.name!r} as line {first}; remove one")

    def _check_content(self, line: int, sample: Sample, group: int) -> None:
        content = self._content_of_file[self.files.find(os.fsencode(sample.image)) or 0]
        if content < 0:
            return
        before = self._group_of_content[content]
        if before < 0:
            self._group_of_content[content] = group
            self._line_of_content[content] = line
        elif before != group:
            first = self._line_of_content[content]
            name = sample.image.name
            self.report.add(
                "duplicate", line, f"image {name!r} is that of line {first}, in another group; give both one group"
            )
        else:
            self.report.notes["lines on an image that another line of their group has too"] += 1


@dataclass(frozen=True, slots=True)
class _File:
    """What reading a file gave: the hash of its content and its size as displayed, or its fault."""

    digest: bytes | None = None
    width: int = 0
    """In pixels; 0 where the file was not decoded. Likewise height."""
    height: int = 0
    kind: str = ""
    fault: str = ""


def _read(path: Path, *, decode: bool) -> _File:
    try:
        data = path.read_bytes()
    except OSError as error:
        return _File(kind="missing", fault=f"cannot be read ({error.strerror or error}); check the path")
    digest = hashlib.sha256(data).digest()
    if not decode:
        return _File(digest)
    if not data:
        return _File(digest, kind="unreadable", fault="is empty; fetch it again")
    from PIL import Image, UnidentifiedImageError

    # A broken file may fail in any way; whatever it is, it is this image's fault.
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            width, height = image.size
            turned = image.getexif().get(_ORIENTATION, 1) in _TURNED
    except UnidentifiedImageError:
        return _File(digest, kind="unreadable", fault="is no image; fetch it again")
    except Exception as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        return _File(digest, kind="unreadable", fault=f"cannot be decoded ({reason}); fetch it again")
    return _File(digest, *((height, width) if turned else (width, height)))


def _named(marks: int) -> str:
    return " and ".join(split for code, split in enumerate(_SPLITS) if marks >> code & 1)
