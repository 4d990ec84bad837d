"""`python -m data.prepare NAME --root DIR --out manifest.jsonl`: a dataset's release as a manifest with splits."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from program.common import cli


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = cli.Parser(
        prog="python -m data.prepare",
        description="Read a dataset's official release into a manifest with splits. Only `huggingface` "
        "with a name on the hub downloads data.",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="dataset, such as tid2013; --list shows all")
    parser.add_argument("--list", action="store_true", help="show the known datasets and end")
    parser.add_argument("--root", metavar="DIR", help="folder of the unpacked release (table, pairs: its file; "
                        "huggingface: or a hub name)")  # fmt: skip
    parser.add_argument("--out", metavar="FILE", type=Path, help="manifest to write, such as koniq10k/manifest.jsonl")
    parser.add_argument("--fractions", metavar="A,B,C", type=cli.numbers(3), help="shares of train, validation and "
                        "test by content (default: the release's own split, else 0.6,0.2,0.2)")  # fmt: skip
    parser.add_argument(
        "--seed", metavar="N", type=cli.whole_number(), default=0, help="seed of the split (default: 0)"
    )
    parser.add_argument("--allow-missing", action="store_true", help="leave out lines whose image is not there")
    cli.add_layout_flags(parser, columns="table, huggingface, pairs: ", scale="table, huggingface: ")
    parser.add_argument("--force", action="store_true", help="replace an existing manifest")
    parser.add_argument("--json", action="store_true", help="print the record (or the list) as JSON")
    arguments = parser.parse_args(argv)
    if not arguments.list and not (arguments.name and arguments.root and arguments.out):
        parser.error("give NAME, --root and --out, or --list")
    act = _list if arguments.list else _prepare
    return cli.run_command(lambda: act(arguments), kept="nothing was written")


def _prepare(arguments: argparse.Namespace) -> int:
    from data.catalogue import entry_of
    from data.manifest import Layout, Sample
    from data.preparing import load, prepare, read_record, record_path
    from program.common.errors import InputError
    from program.common.pool import progress

    entry, left_out = entry_of(arguments.name), list[Path]()
    if arguments.out.suffix.casefold() != ".jsonl":
        raise InputError(f"--out {str(arguments.out)!r}: is no manifest's name; end it in .jsonl")
    own = read_record(arguments.out) is not None
    release = Path(os.path.expanduser(arguments.root)).rglob("*.jsonl")
    cli.check_outputs(arguments, "--out", arguments.out, record_path(arguments.out), read=() if own else release)

    def samples() -> Iterator[Sample]:
        for sample in load(
            arguments.name, arguments.root, layout=Layout.asked(arguments), images=arguments.out.parent / "images",
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
    return cli.EXIT_PROBLEMS if record["leaks"] else 0


def _as_text(record: dict[str, Any], out: Path) -> str:
    splits = record["splits"]
    sizes = ", ".join(f"{name} {splits[name]}" for name in ("train", "validation", "test") if name in splits)
    count = f"{record['samples']} samples"
    if record["expected"] not in {None, record["samples"]}:
        count += f" of {record['expected']} in the full release"
    made_by = record["split_by"]
    if record["split_sha256"]:
        made_by += f", seed {record['seed']}"
    lines = [
        f"{out}: {count}, {record['groups']} groups",
        f"splits: {sizes} (by {made_by})",
        f"sha256: {record['manifest_sha256']}",
        f"licence: {record['licence']}",
        f"cite: {record['citation']}",
    ]
    if record["missing"]:
        lines.append(f"left out: {record['missing']} lines whose image is not there")
    if votes := record.get("votes"):
        kept = f"votes: {votes['kept']:g} of {votes['read']:g}"
        if votes["kept"] < votes["read"]:
            kept += "; the others are between images of two splits"
        lines.append(kept)
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
    from data.catalogue import catalogue

    if arguments.json:
        entries = [entry.model_dump(mode="json") for entry in catalogue().values()]
        sys.stdout.write(json.dumps(entries, indent=2, ensure_ascii=False) + "\n")
        return 0
    for name, entry in catalogue().items():
        sys.stdout.write(f"{name:<16} {entry.count or '':>6}  {entry.title}\n{'':<24} {entry.licence}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
