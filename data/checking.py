"""Checking a manifest's data: files, scores, duplicates, leaks between splits, counts. Each image file is read once."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from data.catalogue import entry_of
from data.manifest import Sample, ScaleDoubt, Split, manifest_sha256, scan_manifest
from data.preparing import read_record
from data.splits import SplitsByKey, group_of
from program.common.errors import DataError, ImageError
from program.common.files import Place, name_of, open_file, path_mend, place_of
from program.common.pool import in_order
from program.images.decode_worker import decode_bounded

KINDS = ("line", "missing", "unreadable", "region", "scale", "repeated", "duplicate", "leak", "count", "record")
"""What can be wrong; docs/data.md says what each means."""

SHOWN_PER_KIND = 20
_ONE_SPLIT = "keep it in one split"
_LOOKED_AT = 2**16
"""Pixels that an image is averaged down to once it is decoded."""


class Problem(BaseModel):
    """One thing that is wrong; `line` is where in the manifest, None for the whole of it."""

    kind: str
    line: int | None
    message: str


class CheckReport(BaseModel):
    """The outcome of a check; clean when `counts` is empty."""

    manifest: str
    sha256: str
    dataset: str | None
    decoded: bool
    lines: int = 0
    images: int = 0
    """Distinct image files, references among them."""
    groups: int = 0
    splits: Counter[str] = Counter()
    tasks: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    problems: list[Problem] = []
    """The first 20 of each kind."""

    @property
    def clean(self) -> bool:
        """Whether there is no problem."""
        return not self.counts

    def add(self, kind: str, line: int | None, message: str) -> None:
        """Count a problem, and keep it while there are few of its kind."""
        self.counts[kind] += 1
        if self.counts[kind] <= SHOWN_PER_KIND:
            self.problems.append(Problem(kind=kind, line=line, message=message))


def check_manifest(
    path: Path | str,
    *,
    dataset: str | None = None,
    decode: bool = True,
    workers: int | None = None,
    on_file: Callable[[], None] = lambda: None,
) -> CheckReport:
    """Read a manifest and all its images and report what is wrong.

    `dataset` names the release whose counts must be met (default: the one in the manifest's record). Without `decode`
    files are read and hashed, not decoded. Raises DataError when the manifest cannot be read at all.
    """
    path = Path(place_of(path))
    if dataset is not None:
        entry_of(dataset)
    report = CheckReport(manifest=str(path), sha256=manifest_sha256(path), dataset=dataset, decoded=decode)
    names = {
        str(file): None
        for _, sample in scan_manifest(path)
        if isinstance(sample, Sample)
        for file in (sample.image, sample.reference)
        if file is not None
    }

    read = partial(_read, decode=decode, on_file=on_file)
    files = in_order(read, names, workers=workers or os.cpu_count() or 1)
    checker, doubt = _Checker(dict(zip(names, files, strict=True))), ScaleDoubt()
    for number, sample in scan_manifest(path):
        report.lines += 1
        if isinstance(sample, DataError):
            report.add("line", number, str(sample).partition(f"line {number}: ")[2])
            continue
        doubt.seen(sample)
        report.splits[sample.split or "no split"] += 1
        report.tasks[sample.task] += 1
        for kind, message in checker.faults(number, sample):
            report.add(kind, number, message)
    if doubt.question:
        report.add("scale", None, doubt.question)
    report.images, report.groups = len(names), len(checker.groups)
    _check_release(path, report)
    return report


def _check_release(path: Path, report: CheckReport) -> None:
    record = read_record(path) or {}
    if record and record.get("manifest_sha256") != report.sha256:
        report.add(
            "record", None, "the manifest was changed since it was prepared; prepare it again or remove the record"
        )
    report.dataset = report.dataset or record.get("dataset")
    if report.dataset is None:
        return
    entry = entry_of(report.dataset)
    for what, count, expected in (("lines", report.lines, entry.count), ("groups", report.groups, entry.groups)):
        if expected is not None and count != expected:
            report.add("count", None, f"{count} {what}, the full release of {entry.name} has {expected}")


@dataclass(frozen=True, slots=True)
class _File:
    """The hash of a file's content and its size as displayed, or its fault."""

    digest: bytes | None = None
    size: tuple[int, int] = (0, 0)
    """Width and height in pixels; zeros where the file was not decoded."""
    kind: str = ""
    fault: str = ""


class _Checker:
    """Holds each line against all lines before it."""

    def __init__(self, files: dict[str, _File]) -> None:
        self.groups: dict[str, int] = {}
        """The first line of each group."""
        self._files = files
        self._questions: dict[bytes, int] = {}
        self._images: dict[bytes | None, tuple[int, str]] = {}
        """The first line and the group of each image, by its content."""
        self._splits = SplitsByKey()

    def faults(self, line: int, sample: Sample) -> Iterator[tuple[str, str]]:
        """Yield the kind of each problem of a line and what is wrong."""
        group, image = group_of(sample), self._files[str(sample.image)]
        first = self.groups.setdefault(group, line)
        if splits := self._splits.enter(group, sample.split):
            yield "leak", f"group {group!r} is in {' and '.join(splits)} (first in line {first}); {_ONE_SPLIT}"
        for role, path in (("image", sample.image), ("reference", sample.reference)):
            if path is not None:
                yield from self._file_faults(role, path, sample.split)
        yield from _region_faults(sample, *image.size)
        question = (str(sample.image), str(sample.reference), sample.query, sample.options, sample.mos is None,
                    sample.distortion)  # fmt: skip
        digest = hashlib.sha256(repr(question).encode("utf-8", "surrogatepass")).digest()
        if (first := self._questions.setdefault(digest, line)) != line:
            yield "repeated", f"asks the same of {name_of(sample.image)!r} as line {first}; remove one"
        first, its_group = self._images.setdefault(image.digest, (line, group))
        if image.digest is not None and its_group != group:
            name = name_of(sample.image)
            yield "duplicate", f"image {name!r} is that of line {first}, in another group; give both one group"

    def _file_faults(self, role: str, path: Place, split: Split | None) -> Iterator[tuple[str, str]]:
        file = self._files[str(path)]
        if file.kind:
            yield file.kind, f"{role} {str(path)!r} {file.fault}"
        if file.digest is not None and (splits := self._splits.enter(file.digest, split)):
            yield "leak", f"{role} {name_of(path)!r} is in {' and '.join(splits)} (by content); {_ONE_SPLIT}"


def _region_faults(sample: Sample, width: int, height: int) -> Iterator[tuple[str, str]]:
    for name, (left, top, right, bottom) in (sample.regions or {}).items() if width else ():
        if left < 0 or top < 0 or right > width or bottom > height:
            box, image = f"({left:g}, {top:g}, {right:g}, {bottom:g})", name_of(sample.image)
            yield "region", f"box {box} of {name!r} passes the edge of {image!r}, {width}x{height}; correct it"


def _read(path: str, *, decode: bool, on_file: Callable[[], None]) -> _File:
    on_file()
    try:
        with open_file(place_of(path)) as file:
            data = file.read()
    except OSError as error:
        return _File(kind="missing", fault=f"cannot be read ({error.strerror}); {path_mend(path)}")
    digest = hashlib.sha256(data).digest()
    if not decode:
        return _File(digest)
    try:
        image = decode_bounded(data, "", at_most=_LOOKED_AT)
    except ImageError as error:
        return _File(digest, kind="unreadable", fault="cannot be decoded: " + str(error).removeprefix("image '': "))
    return _File(digest, (image.width, image.height))
