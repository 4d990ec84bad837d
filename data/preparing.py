"""From a release to a manifest with splits, in bounded memory, whole or not at all."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from data.catalogue import DatasetEntry
from data.manifest import Sample, manifest_sha256, read_manifest, write_manifest
from data.pairs import parts_apart, score_within_splits
from data.splits import FRACTIONS, SplitsByKey, group_of, plan_splits
from program.common.errors import DataError
from program.common.files import write_whole
from program.common.places import plain_file

__all__ = ("prepare", "read_record", "record_path")

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
    reading the samples leaves out, for the record. Raises DataError when there is no sample or a split would be empty.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        stage = Path(folder, "stage.jsonl")
        write_manifest(stage, samples)
        if not stage.stat().st_size:
            raise DataError(
                f"dataset {entry.name!r}: no sample was read ({len(left_out)} lack their file); check --root"
            )
        assigned, split_by, digest = _assigned(entry, stage, fractions, seed)
        write_manifest(out, score_within_splits(assigned) if entry.task == "pairs" else assigned)
        votes = {}
        if entry.task == "pairs":
            apart = parts_apart(read_manifest(out))
            votes = {"votes": {"read": _votes(stage), "kept": _votes(out), "parts": apart}}
    record = {
        "dataset": entry.name, "manifest": out.name, "manifest_sha256": manifest_sha256(out), "expected": entry.count,
        "missing": len(left_out), "split_by": split_by, "split_sha256": digest, "seed": seed,
        "fractions": fractions or FRACTIONS, "verified": entry.verified, "source": entry.source,
        "licence": entry.licence, "citation": entry.citation, **_counts(out), **votes,
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
    entry: DatasetEntry, stage: Path, fractions: Fractions | None, seed: int
) -> tuple[Iterator[Sample], str, str | None]:
    splits = Counter(sample.split for sample in read_manifest(stage))
    if fractions is not None or splits[None]:
        plan = plan_splits(read_manifest(stage), fractions=fractions or FRACTIONS, seed=seed)
        return plan.applied(read_manifest(stage)), "content", plan.sha256
    if entry.split != "official-test" or splits["validation"] or not splits["train"]:
        return read_manifest(stage), "release", None
    train = (sample for sample in read_manifest(stage) if sample.split == "train")
    plan = plan_splits(train, fractions=(*FRACTIONS[:2], 0.0), seed=seed)
    assigned = (s if s.split == "test" else next(plan.applied([s])) for s in read_manifest(stage))
    return assigned, "release, validation drawn by content", plan.sha256


def _votes(manifest: Path) -> float:
    return round(sum(sum((sample.preferred_over or {}).values()) for sample in read_manifest(manifest)), 6)


def _counts(manifest: Path) -> dict[str, Any]:
    splits, tasks, unlabelled = Counter[str](), Counter[str](), 0
    groups, leaks, by_group = set[str](), set[str](), SplitsByKey()
    for sample in read_manifest(manifest):
        group = group_of(sample)
        splits[str(sample.split)] += 1
        tasks[sample.task] += 1
        unlabelled += not sample.is_labelled
        groups.add(group)
        if by_group.enter(group, sample.split):
            leaks.add(group)
    return {
        "samples": splits.total(), "splits": dict(splits), "tasks": dict(tasks), "unlabelled": unlabelled,
        "groups": len(groups), "leaks": len(leaks),
    }  # fmt: skip
