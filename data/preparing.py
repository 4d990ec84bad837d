"""A public dataset as it is released, made into a manifest with splits, and a manifest's check."""

import hashlib
import json
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

from pydantic import BaseModel

from data.catalogue import DatasetEntry, Reading, entry_of
from data.manifest import (
    KEYS,
    Layout,
    Sample,
    Split,
    check_scale,
    manifest_sha256,
    scan_manifest,
    write_manifest,
)
from data.own import own_samples
from data.pairs import pairs, parts_apart, score_within_splits
from data.releases import Release, read_release
from data.splits import FRACTIONS, SplitsByKey, group_of, plan_splits
from data.tables import table_in
from program.common.errors import DataError, ImageError, did_you_mean
from program.common.files import name_of, open_file, path_mend, place_of, plain_file, write_whole
from program.common.pool import in_order
from program.images.decode_worker import decode_bounded

FIELDS = (*(name for name in KEYS if name != "metadata"), "question_type", *ascii_uppercase,
          "other", "better", "votes")  # fmt: skip
"""What a column can be named as: the manifest's keys, the type of a question, options by letter, and a pair's."""

logger = logging.getLogger(__name__)


def load(
    name: str,
    root: Path | str,
    *,
    layout: Layout | None = None,
    images: Path = Path("images"),
    on_missing: Callable[[Path], None] | None = None,
) -> Iterator[Sample]:
    """Yield the samples of a dataset's release at `root`.

    `layout` is for "table" and "huggingface", its columns for "pairs" too; `images` takes the images that these hold as
    bytes. A file that a label names and the release lacks raises DataError, or, with `on_missing`, is passed to it and
    left out. Raises DataError for an unknown name or a release that is not in its documented layout.
    """
    entry = entry_of(name)
    layout = layout or Layout()
    is_scaled = layout.mos_range is not None or layout.lower_is_better
    if (is_scaled and entry.read not in ("table", "huggingface")) or (
        layout.columns and isinstance(entry.read, Reading)
    ):
        raise DataError(f"dataset {name!r}: has columns and a scale of its own; leave out --columns and --mos-range")
    for field, column in layout.columns.items():
        if field not in FIELDS:
            raise DataError(f"--columns {field}={column}: {field!r} is no field{did_you_mean(field, FIELDS)}")
    place = Path(os.path.expanduser(root))
    if place.exists():
        place = Path(os.path.abspath(place))
    elif entry.read != "huggingface":
        raise DataError(f"dataset {name!r}: there is no {str(place)!r}; get it from {entry.source}")
    release = Release(entry, place, layout, images)
    for sample in _samples(release):
        if (missing := sample.missing_file) is None:
            yield sample
        elif on_missing is None:
            raise DataError(
                f"dataset {name!r}: {sample.id!r} needs {str(missing)!r}, which is not there; "
                f"{path_mend(missing, 'unpack the whole release')}, or leave such lines out with --allow-missing"
            )
        else:
            on_missing(Path(missing))


def _samples(release: Release) -> Iterator[Sample]:
    if isinstance(release.entry.read, Reading):
        return read_release(release, release.entry.read)
    return pairs(release) if release.entry.read == "pairs" else own_samples(release)


Fractions = tuple[float, float, float]


def prepare(
    entry: DatasetEntry,
    samples: Iterable[Sample],
    out: Path,
    *,
    fractions: Fractions | None = None,
    seed: int = 0,
    left_out: Sequence[object] = (),
) -> dict[str, Any]:
    """Write the samples with their splits to `out`, and the record beside it, which is returned.

    The release's own split stands, unless `fractions` are given. A split without validation gets one from its train
    images, by content. Samples of pairs get their score here, from the votes inside their split. `left_out` is what
    reading the samples leaves out, for the record. Holds all samples in memory. Raises DataError when there is none,
    when two have one id, or when a split would be empty.
    """
    read = list(samples)
    if not read:
        raise DataError(f"dataset {entry.name!r}: no sample was read ({len(left_out)} lack their file); check --root")
    name, count = Counter(sample.id for sample in read).most_common(1)[0]
    if count > 1:
        raise DataError(f"dataset {entry.name!r}: {count} rows have the id {name!r}; give each its own")
    assigned, split_by, digest = _assigned(entry, read, fractions, seed)
    votes = {}
    if entry.task == "pairs":
        assigned = list(score_within_splits(assigned))
        votes = {"votes": {"read": _votes(read), "kept": _votes(assigned), "parts": parts_apart(assigned)}}
    write_manifest(out, assigned)
    splits_of: defaultdict[str, set[Split | None]] = defaultdict(set)
    for sample in assigned:
        splits_of[group_of(sample)].add(sample.split)
    record = {
        "dataset": entry.name, "manifest": out.name, "manifest_sha256": manifest_sha256(out), "expected": entry.count,
        "missing": len(left_out), "split_by": split_by, "split_sha256": digest, "seed": seed,
        "fractions": fractions or FRACTIONS, "source": entry.source,
        "licence": entry.licence, "citation": entry.citation, "samples": len(assigned),
        "splits": Counter(str(sample.split) for sample in assigned),
        "tasks": Counter(sample.task for sample in assigned),
        "unlabelled": sum(not sample.is_labelled for sample in assigned), "groups": len(splits_of),
        "leaks": sum(len(splits) > 1 for splits in splits_of.values()), **votes,
    }  # fmt: skip
    write_whole(record_path(out), json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return record


def record_path(manifest: Path) -> Path:
    """Return where the record of a manifest lies."""
    return manifest.with_name(f"{manifest.stem}.prepared.json")


def read_record(manifest: Path) -> dict[str, Any] | None:
    """Return the record of a prepared manifest, or None where there is none of a file with its name."""
    try:
        with open(record_path(manifest), encoding="utf-8", opener=plain_file) as file:
            record = json.load(file)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("manifest", manifest.name) == manifest.name else None


def _assigned(
    entry: DatasetEntry, samples: list[Sample], fractions: Fractions | None, seed: int
) -> tuple[list[Sample], str, str | None]:
    """Return the samples with a split each, what it was made by, and the hash of what was drawn."""
    splits = {sample.split for sample in samples}
    if fractions is not None or None in splits:
        plan = plan_splits(samples, fractions=fractions or FRACTIONS, seed=seed)
        return list(plan.apply(samples)), "content", plan.sha256
    if entry.split != "official-test" or "validation" in splits or "train" not in splits:
        return samples, "release", None
    train = [sample for sample in samples if sample.split == "train"]
    plan = plan_splits(train, fractions=(*FRACTIONS[:2], 0.0), seed=seed)
    drawn = iter(plan.apply(train))
    assigned = [sample if sample.split == "test" else next(drawn) for sample in samples]
    return assigned, "release, validation drawn by content", plan.sha256


def _votes(samples: Iterable[Sample]) -> float:
    return round(sum(sum((sample.preferred_over or {}).values()) for sample in samples), 6)


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
    layout: Layout | None = None,
) -> CheckReport:
    """Read a manifest and all its images and report what is wrong.

    `dataset` names the release whose counts must be met (default: the one in the manifest's record). Without `decode`
    files are read and hashed, not decoded. Rows are read by `layout`. Raises
    DataError when the manifest cannot be read at all.
    """
    path, layout = Path(table_in(place_of(path))), layout or Layout()
    if dataset is not None:
        entry_of(dataset)
    report = CheckReport(manifest=str(path), sha256=manifest_sha256(path), dataset=dataset, decoded=decode)
    names: dict[str, None] = {}
    for _, sample in scan_manifest(path, layout):
        if isinstance(sample, Sample):
            files_of = filter(None, (sample.image, sample.reference))
            names.update(dict.fromkeys(map(str, files_of)))

    read = partial(_read, decode=decode, on_file=on_file)
    files = in_order(read, names, workers=workers or os.cpu_count() or 1)
    checker = _Checker(dict(zip(names, files, strict=True)))
    for number, sample in scan_manifest(path, layout):
        report.lines += 1
        if isinstance(sample, DataError):
            report.add("line", number, str(sample).partition(f"line {number}: ")[2])
            continue
        report.splits[sample.split or "no split"] += 1
        report.tasks[sample.task] += 1
        for kind, message in checker.faults(number, sample):
            report.add(kind, number, message)
    try:
        doubt = check_scale(path, layout)
    except DataError as error:
        doubt = str(error)
    if doubt:
        report.add("scale", None, doubt.removeprefix(f"manifest {str(path)!r}: "))
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


class _File(NamedTuple):
    """The hash of a file's content and its size as displayed, or its fault."""

    digest: bytes | None = None
    size: tuple[int, int] = (0, 0)
    """Width and height in pixels; zeros where the file was not decoded."""
    kind: str = ""
    fault: str = ""


class _Checker:
    """Holds each line against all lines before it."""

    def __init__(self, files: Mapping[str, _File]) -> None:
        self.groups: dict[str, int] = {}
        """The first line of each group."""
        self._files = files
        self._questions: dict[tuple[object, ...], int] = {}
        self._images: dict[bytes, tuple[int, str]] = {}
        """The first line and the group of each image, by its content."""
        self._splits = SplitsByKey()

    def faults(self, line: int, sample: Sample) -> Iterator[tuple[str, str]]:
        """Yield the kind of each problem of a line and what is wrong."""
        group, name, image = group_of(sample), name_of(sample.image), self._files[str(sample.image)]
        first = self.groups.setdefault(group, line)
        if splits := self._splits.enter(group, sample.split):
            yield "leak", f"group {group!r} is in {' and '.join(splits)} (first in line {first}); {_ONE_SPLIT}"
        for role in ("image", "reference"):
            path = getattr(sample, role)
            file = _File() if path is None else self._files[str(path)]
            if file.kind:
                yield file.kind, f"{role} {str(path)!r} {file.fault}"
            if file.digest and (splits := self._splits.enter(file.digest, sample.split)):
                yield "leak", f"{role} {name_of(path)!r} is in {' and '.join(splits)} (by content); {_ONE_SPLIT}"
        for region, (left, top, right, bottom) in (sample.regions or {}).items():
            width, height = image.size
            if width and (left < 0 or top < 0 or right > width or bottom > height):
                box = f"({left:g}, {top:g}, {right:g}, {bottom:g})"
                yield "region", f"box {box} of {region!r} passes the edge of {name!r}, {width}x{height}; correct it"
        question = (str(sample.image), str(sample.reference), sample.query, str(sample.options), sample.mos is None,
                    sample.distortion)  # fmt: skip
        if (first := self._questions.setdefault(question, line)) != line:
            yield "repeated", f"asks the same of {name!r} as line {first}; remove one"
        if image.digest:
            first, its_group = self._images.setdefault(image.digest, (line, group))
            if its_group != group:
                yield "duplicate", f"image {name!r} is that of line {first}, in another group; give both one group"


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
