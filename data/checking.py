"""Checking a manifest's data: files, scores, duplicates, leaks between splits, counts.

Lines stream in blocks; every image file is read once, in parallel. `data.check_ledger` says what is kept of them.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from data.catalogue import catalogue
from data.check_ledger import Ledger
from data.check_report import CheckReport
from data.errors import DataError
from data.manifest import Sample, manifest_sha256, scan_manifest
from data.preparing import read_record

__all__ = ("check_manifest",)

BLOCK = 256


def check_manifest(
    path: Path | str,
    *,
    dataset: str | None = None,
    decode: bool = True,
    workers: int | None = None,
    on_lines: Callable[[int], None] = lambda lines: None,
) -> CheckReport:
    """Read a manifest and all its images and report what is wrong.

    `dataset` names the release whose counts must be met (default: the one in the manifest's record). Without `decode`
    files are read and hashed, not decoded. Raises DataError when the manifest cannot be read at all.
    """
    path = Path(path)
    report = CheckReport(str(path), manifest_sha256(path), dataset, decode)
    ledger = Ledger(report)
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        for block in _blocks(scan_manifest(path)):
            ledger.read_files([s for _, s in block if isinstance(s, Sample)], pool, decode=decode)
            for line, sample in block:
                report.lines += 1
                if isinstance(sample, DataError):
                    report.add("line", line, str(sample).partition(f"line {line}: ")[2] or str(sample))
                else:
                    ledger.enter(line, sample)
            on_lines(len(block))
    report.images, report.groups = len(ledger.files), len(ledger.groups)
    _check_counts(path, report)
    return report


def _check_counts(path: Path, report: CheckReport) -> None:
    record = read_record(path)
    if record is not None and record.get("manifest_sha256") != report.sha256:
        report.add(
            "record", None, "the manifest was changed since it was prepared; prepare it again or remove the record"
        )
    name = report.dataset or (record or {}).get("dataset")
    report.dataset = name if isinstance(name, str) else None
    if report.dataset is None:
        return
    entry = catalogue().get(report.dataset)
    if entry is None:
        raise DataError(f"dataset {report.dataset!r}: is not known; known: {', '.join(catalogue())}")
    for what, found, expected in (("lines", report.lines, entry.count), ("groups", report.groups, entry.groups)):
        if expected is not None and found != expected:
            report.add("count", None, f"{found} {what}, the full release of {entry.name} has {expected}")


def _blocks(lines: Iterator[Any]) -> Iterator[list[Any]]:
    while block := list(islice(lines, BLOCK)):
        yield block
