"""From a public dataset as it is released to a manifest with splits, in bounded memory, whole or not at all."""

import json
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any, TypeAlias

from data import readers_questions as hub
from data import readers_questions as questions
from data import readers_scores as scores
from data.catalogue import DatasetEntry, Release, entry_of
from data.manifest import KEYS, Sample, manifest_sha256, read_manifest, write_manifest
from data.readers_scores import pairs, parts_apart, score_within_splits
from data.splits import FRACTIONS, SplitsByKey, group_of, plan_splits
from program.common.errors import DataError, did_you_mean
from program.common.files import path_mend, plain_file, write_whole
from program.common.plugins import offered

Reader: TypeAlias = Callable[[Release], Iterator[Sample]]

READERS: Mapping[str, Reader] = {
    "tid2013": scores.tid2013,
    "kadid10k": scores.kadid10k,
    "live": scores.live,
    "csiq": scores.csiq,
    "pipal": scores.pipal,
    "clive": scores.clive,
    "bid": scores.bid,
    "koniq10k": scores.koniq10k,
    "spaq": scores.spaq,
    "agiqa3k": scores.agiqa3k,
    "biq2021": scores.biq2021,
    "qbench-dev": partial(questions.qbench, part="dev", split="validation"),
    "qbench-test": partial(questions.qbench, part="test", split="test"),
    "agenticiqa-eval": questions.agenticiqa_eval,
    "table": questions.table,
    "huggingface": hub.huggingface,
    "pairs": pairs,
}

FIELDS = (*(name for name in KEYS if name != "metadata"), "question_type", *ascii_uppercase,
          "other", "better", "votes")  # fmt: skip
"""What a column can be named as: the manifest's keys, the type of a question, options by letter, and a pair's."""

logger = logging.getLogger(__name__)


def load(
    name: str,
    root: Path | str,
    *,
    columns: Mapping[str, str] | None = None,
    mos_range: tuple[float, float] | None = None,
    higher_is_better: bool | None = None,
    images: Path = Path("images"),
    on_missing: Callable[[Path], None] | None = None,
) -> Iterator[Sample]:
    """Yield the samples of a dataset's release at `root`.

    `columns`, `mos_range` and `higher_is_better` are for "table" and "huggingface", `columns` for "pairs" too; `images`
    takes the images that "huggingface" holds as bytes. A file that a label names and the release lacks raises
    DataError, or, with `on_missing`, is passed to it and left out. Raises DataError for an unknown name or a release
    that is not in its documented layout.
    """
    entry = entry_of(name)
    if not entry.verified:
        logger.warning("dataset %s: its layout is not verified (%s)", name, entry.layout)
    scaled = mos_range is not None or higher_is_better is not None
    if name not in {"table", "huggingface"} and (scaled or (columns and name != "pairs")):
        raise DataError(f"dataset {name!r}: has columns and a scale of its own; leave --columns and --mos-range away")
    for field, column in (columns or {}).items():
        if field not in FIELDS:
            raise DataError(f"--columns {field}={column}: {field!r} is no field{did_you_mean(field, FIELDS)}")
    release = Release(entry, Path(os.path.expanduser(root)), columns or {}, mos_range, higher_is_better, images)
    if name != "huggingface" and not release.root.exists():
        raise DataError(f"dataset {name!r}: there is no {str(release.root)!r}; get it from {entry.source}")
    readers = READERS if name in READERS else offered("datasets", lambda _, offer: offer["read"])
    for sample in readers[name](release):
        if (missing := sample.missing_file) is None:
            yield sample
        elif on_missing is None:
            raise DataError(
                f"dataset {name!r}: {sample.id!r} needs {str(missing)!r}, which is not there; "
                f"{path_mend(missing, 'unpack the whole release')}, or leave such lines out with --allow-missing"
            )
        else:
            on_missing(Path(missing))


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
