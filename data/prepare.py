"""`python -m data.prepare NAME --root DIR --out manifest.jsonl`: a dataset's release as a manifest with splits."""

import argparse
import json
import logging
import os
import sys
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
from program.common.cli import (
    EXIT_PROBLEMS,
    Parser,
    add_layout_flags,
    check_outputs,
    numbers,
    run_command,
    whole_number,
)
from program.common.errors import DataError, did_you_mean
from program.common.files import path_mend, plain_file, write_whole
from program.common.plugins import offered

__all__ = (
    "READERS", "Reader", "load", "prepare", "read_record", "record_path",
)  # fmt: skip


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


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        prog="python -m data.prepare",
        description="Read a dataset's official release into a manifest with splits. Nothing is downloaded, but by "
        "`huggingface` with a name on the hub.",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="dataset, as tid2013; --list shows all")
    parser.add_argument("--list", action="store_true", help="show the known datasets and end")
    parser.add_argument("--root", metavar="DIR", help="folder of the unpacked release (table, pairs: its file; "
                        "huggingface: or a hub name)")  # fmt: skip
    parser.add_argument("--out", metavar="FILE", type=Path, help="manifest to write, as koniq10k/manifest.jsonl")
    parser.add_argument("--fractions", metavar="A,B,C", type=numbers(3), help="shares of train, validation and test "
                        "by content (default: the release's own split, else 0.6,0.2,0.2)")  # fmt: skip
    parser.add_argument("--seed", metavar="N", type=whole_number(), default=0, help="seed of the split (default: 0)")
    parser.add_argument("--allow-missing", action="store_true", help="leave out lines whose image is not there")
    add_layout_flags(parser, columns="table, huggingface, pairs: ", scale="table, huggingface: ")
    parser.add_argument("--force", action="store_true", help="replace a manifest that is there already")
    parser.add_argument("--json", action="store_true", help="print the record (or the list) as JSON")
    arguments = parser.parse_args(argv)
    if not arguments.list and not (arguments.name and arguments.root and arguments.out):
        parser.error("give NAME, --root and --out, or --list")
    return run_command(lambda: _list(arguments) if arguments.list else _prepare(arguments), kept="nothing was written")


def _prepare(arguments: argparse.Namespace) -> int:
    import json

    from data.catalogue import entry_of
    from data.manifest import Sample
    from program.common.errors import InputError
    from program.common.pool import progress

    entry, left_out = entry_of(arguments.name), list[Path]()
    if arguments.out.suffix.casefold() != ".jsonl":
        raise InputError(f"--out {str(arguments.out)!r}: is no manifest's name; end it in .jsonl")
    own = read_record(arguments.out) is not None
    release = Path(os.path.expanduser(arguments.root)).rglob("*.jsonl")
    check_outputs(arguments, "--out", arguments.out, record_path(arguments.out), read=() if own else release)

    def samples() -> Iterator[Sample]:
        for sample in load(
            arguments.name, arguments.root, columns=arguments.columns, mos_range=arguments.mos_range,
            higher_is_better=False if arguments.lower_is_better else None, images=arguments.out.parent / "images",
            on_missing=left_out.append if arguments.allow_missing else None,
        ):  # fmt: skip
            advance()
            yield sample

    with progress(f"Reading {entry.name}", entry.count) as advance:
        record = prepare(
            entry, samples(), arguments.out, fractions=arguments.fractions, seed=arguments.seed, left_out=left_out
        )
    text = json.dumps(record, indent=2, ensure_ascii=False) if arguments.json else _as_text(record, arguments.out)
    sys.stdout.write(text + "\n")
    return EXIT_PROBLEMS if record["leaks"] else 0


def _as_text(record: dict[str, Any], out: Path) -> str:
    splits = record["splits"]
    sizes = ", ".join(f"{name} {splits[name]}" for name in ("train", "validation", "test") if name in splits)
    expected = record["expected"]
    release = "" if expected in {None, record["samples"]} else f" of {expected} in the full release"
    lines = [
        f"{out}: {record['samples']} samples{release}, {record['groups']} groups",
        f"splits: {sizes} (by {record['split_by']}" + (f", seed {record['seed']})" if record["split_sha256"] else ")"),
        f"sha256: {record['manifest_sha256']}",
        f"licence: {record['licence']}",
        f"cite: {record['citation']}",
    ]
    if record["missing"]:
        lines.append(f"left out: {record['missing']} lines whose image is not there")
    if votes := record.get("votes"):
        apart = "; the others are between images of two splits" if votes["kept"] < votes["read"] else ""
        lines.append(f"votes: {votes['kept']:g} of {votes['read']:g}{apart}")
        if parts := ", ".join(f"{split} are in {n} parts" for split, n in votes["parts"].items()):
            lines.append(
                f"apart: the images of {parts} with no vote between them; scores compare only within a part: "
                "compare images of different parts, too, or judge by preferences alone"
            )
    if record["unlabelled"]:
        lines.append(f"unlabelled: {record['unlabelled']} samples have neither a score nor an answer")
    if record["leaks"]:
        lines.append(f"leaks: {record['leaks']} groups are in more than one split; split again with --fractions")
    return "\n".join(lines)


def _list(arguments: argparse.Namespace) -> int:
    import json

    from data.catalogue import catalogue

    if arguments.json:
        entries = [entry.model_dump(mode="json") for entry in catalogue().values()]
        sys.stdout.write(json.dumps(entries, indent=2, ensure_ascii=False) + "\n")
        return 0
    for name, entry in catalogue().items():
        note = "" if entry.verified else " (layout not verified)"
        sys.stdout.write(f"{name:<16} {entry.count or '':>6}  {entry.title}{note}\n{'':<24} {entry.licence}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
