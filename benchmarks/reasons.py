"""How often a program names the faults that people saw: `python -m benchmarks.reasons FILE [--program DIR]`.

FILE is a JSONL with lines {"id", "image", "faults": [{"fault", "strength"}], "main"}. The image's path is relative to
the file's folder; without one, the id is looked up in the manifest.jsonl of a folder next to the file's. Each share
stands beside its Wilson interval and the share of the best constant answer.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data.manifest import read_manifest
from program.agent.saving import program_from
from program.common import cli
from program.common.errors import InputError
from program.common.files import Place, named_in
from program.common.pool import progress
from program.evaluation.intervals import wilson
from program.lms.limits import budget_from


def main(argv: Sequence[str] | None = None) -> int:
    """Count, and print; the exit code is as of a command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reasons", description=str(__doc__).split("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE", help="a line for each picture, with its faults")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    cli.add_program_flags(parser)
    cli.add_settings_flags(parser)
    cli.add_budget_flags(parser)
    arguments = parser.parse_args(argv)
    return cli.run_command(lambda: _count(arguments))


def _count(arguments: argparse.Namespace) -> int:
    pictures = read_annotations(arguments.file)
    program = program_from(arguments, cli.settings_from(arguments))
    with progress("naming faults", len(pictures)) as advance, budget_from(arguments):

        def named(picture: Annotated) -> list[str]:
            faults = [fault for fault, _ in program(picture.image).faults]
            advance(1)
            return faults

        figures = reason_figures(pictures, named)
    sys.stdout.write(json.dumps(figures, indent=2) + "\n" if arguments.json else reasons_text(figures))
    return 0


LINES = {
    "main": "main fault named first", "found": "moderate and strong faults found",
    "right": "named faults that are there", "clean": "clean pictures with an invented fault",
    "silent": "faulty pictures with nothing named",
}  # fmt: skip


class Annotated(NamedTuple):
    """One picture as somebody saw it."""

    id: str
    image: Place
    strengths: Mapping[str, str]
    """Fault -> slight, moderate or strong."""
    main: str | None


def read_annotations(file: Path) -> list[Annotated]:
    """Return the pictures of a JSONL file. Raises InputError for lines that do not hold what the head says."""
    try:
        records = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InputError(
            f"file {str(file)!r}: cannot be read as JSON lines ({error}); give annotated faults"
        ) from error
    images = _images(file) if any("image" not in record for record in records) else {}
    pictures = []
    for number, record in enumerate(records, 1):
        try:
            image = named_in(file.parent, record["image"], None) if "image" in record else images[record["id"]]
            strengths = {fault["fault"]: fault["strength"] for fault in record["faults"]}
            pictures.append(Annotated(record["id"], image, strengths, record["main"]))
        except (KeyError, TypeError) as error:
            raise InputError(
                f"file {str(file)!r}: line {number} has no {error}; give id, faults, main and an image, or the id of a "
                "manifest in a folder next to it"
            ) from error
    if not pictures:
        raise InputError(f"file {str(file)!r}: is empty; give a line for each picture")
    return pictures


def _images(file: Path) -> dict[str, Path]:
    manifests = sorted(file.resolve().parent.parent.glob("*/manifest.jsonl"))
    return {sample.id: Path(str(sample.image)) for manifest in manifests for sample in read_manifest(manifest)}


def reason_figures(
    pictures: Sequence[Annotated], name: Callable[[Annotated], Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """Return each of `LINES` as share, interval and number, with the best constant answer's share.

    `name` says which faults are named of a picture, the worst first. The constant answer names the fault that is most
    often the worst.
    """
    mains = Counter(picture.main for picture in pictures if picture.main)
    usual = [fault for fault, _ in mains.most_common(1)]
    ours = _hits(pictures, [name(picture) for picture in pictures])
    constant = _hits(pictures, [usual] * len(pictures))
    figures = {}
    for key in LINES:
        hits = ours[key]
        if hits:
            share = sum(hits) / len(hits)
            low, high = wilson(share, len(hits))
            of_constant = sum(constant[key]) / len(constant[key]) if constant[key] else None
            figures[key] = {
                "share": share, "low": low, "high": high, "n": len(hits), "right": sum(hits), "constant": of_constant,
            }  # fmt: skip
    return figures


def _hits(pictures: Sequence[Annotated], named: Sequence[Sequence[str]]) -> dict[str, list[bool]]:
    hits: dict[str, list[bool]] = defaultdict(list)
    for picture, faults in zip(pictures, named, strict=True):
        strong = [fault for fault, strength in picture.strengths.items() if strength in {"moderate", "strong"}]
        if picture.main:
            hits["main"].append(list(faults[:1]) == [picture.main])
        hits["found"] += [fault in faults for fault in strong]
        hits["right"] += [fault in picture.strengths for fault in faults]
        if not picture.strengths:
            hits["clean"].append(bool(faults))
        if strong:
            hits["silent"].append(not faults)
    return hits


def reasons_text(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the figures as lines of text."""
    lines = [f"{'':42}{'share':>7}  {'95 %':14}{'of':>12}  constant answer"]
    for key, of in figures.items():
        beside = "" if of["constant"] is None else f"{of['constant']:.2f}"
        span, count = f"{of['low']:.2f} to {of['high']:.2f}", f"{of['right']} of {of['n']}"
        lines.append(f"{LINES[key]:42}{of['share']:7.2f}  {span:14}{count:>12}  {beside}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
