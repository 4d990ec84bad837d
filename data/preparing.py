"""From a release to a manifest with splits, in bounded memory, whole or not at all."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data.catalogue import DatasetEntry
from data.manifest import manifest_sha256, read_manifest, write_manifest
from data.sample import Sample
from data.splits import FRACTIONS, SplitsByKey, group_of, plan_splits, with_splits
from program.common.errors import DataError
from program.common.files import plain_file, write_whole

__all__ = ("Prepared", "prepare", "read_record", "record_path")

Fractions = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was written, as it stands in the record beside the manifest."""

    dataset: str
    manifest: str
    """File name of the manifest."""
    manifest_sha256: str
    samples: int
    expected: int | None
    """Lines that the full release gives; None where there is no fixed number."""
    missing: int
    """Labels left out because their file was not there."""
    groups: int
    splits: dict[str, int]
    """Number of samples by split."""
    split_by: str
    """"release", "content" or "release, validation drawn by content"."""
    split_sha256: str | None
    """Hash of the assignment of groups to splits, where it was planned here."""
    seed: int
    fractions: Fractions
    leaks: int
    """Groups that the release itself has in more than one split."""
    tasks: dict[str, int]
    unlabelled: int
    """Samples with neither a score nor an answer."""
    verified: bool
    source: str
    licence: str
    citation: str


def prepare(
    entry: DatasetEntry,
    samples: Iterable[Sample],
    out: Path,
    *,
    fractions: Fractions | None = None,
    seed: int = 0,
    missing: Callable[[], int] = lambda: 0,
) -> Prepared:
    """Write the samples with their splits to `out`, and the record beside it.

    The release's own split stands, unless `fractions` are given. A split without validation gets one from its train
    images, by content. Raises DataError when there is no sample or a split would be empty.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    stage = out.with_name(f".{out.name}.{os.getpid()}.stage")
    try:
        write_manifest(stage, samples)
        if not stage.stat().st_size:
            raise DataError(f"dataset {entry.name!r}: no sample was read ({missing()} lack their file); check --root")
        split, split_by, digest = _assigned(entry, stage, fractions, seed)
        write_manifest(out, split)
    finally:
        stage.unlink(missing_ok=True)
    prepared = Prepared(
        dataset=entry.name, manifest=out.name, manifest_sha256=manifest_sha256(out), expected=entry.count,
        missing=missing(), split_by=split_by, split_sha256=digest, seed=seed, fractions=fractions or FRACTIONS,
        verified=entry.verified, source=entry.source, licence=entry.licence, citation=entry.citation,
        **_counts(out),
    )  # fmt: skip
    write_whole(record_path(out), json.dumps(asdict(prepared), indent=2, ensure_ascii=False) + "\n")
    return prepared


def record_path(manifest: Path) -> Path:
    """Return where the record of a prepared manifest lies."""
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
    entry: DatasetEntry, stage: Path, fractions: Fractions | None, seed: int
) -> tuple[Iterator[Sample], str, str | None]:
    splits = Counter(sample.split for sample in read_manifest(stage))
    if fractions is None and splits[None] == 0:
        if entry.split != "official-test" or splits["validation"] or not splits["train"]:
            return read_manifest(stage), "release", None
        shares = (FRACTIONS[0], FRACTIONS[1], 0.0)
        plan = plan_splits((s for s in read_manifest(stage) if s.split == "train"), fractions=shares, seed=seed)
        drawn = (
            s if s.split == "test" else s.model_copy(update={"split": plan.split_of(group_of(s))})
            for s in read_manifest(stage)
        )
        return drawn, "release, validation drawn by content", plan.sha256
    plan = plan_splits(read_manifest(stage), fractions=fractions or FRACTIONS, seed=seed)
    return with_splits(read_manifest(stage), plan), "content", plan.sha256


def _counts(manifest: Path) -> dict[str, Any]:
    splits, tasks, unlabelled = Counter[str](), Counter[str](), 0
    groups, leaks, by_group = set[str](), set[str](), SplitsByKey[str]()
    for sample in read_manifest(manifest):
        group = group_of(sample)
        splits[str(sample.split)] += 1
        tasks[sample.task] += 1
        unlabelled += not sample.is_labelled
        groups.add(group)
        if sample.split is not None and by_group.enter(group, sample.split):
            leaks.add(group)
    return {
        "samples": splits.total(), "splits": dict(splits), "tasks": dict(tasks), "unlabelled": unlabelled,
        "groups": len(groups), "leaks": len(leaks),
    }  # fmt: skip
