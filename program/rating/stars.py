"""`agentic-iqa data prepare stars`: the ratings that photographs already have, as a manifest."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from program.common import cli

if TYPE_CHECKING:
    from program.common.request import Request
    from program.rating.photographs import Photograph


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = cli.Parser(
        prog="agentic-iqa data prepare stars",
        description="Read the ratings of photographs, in their files and in sidecars, into a manifest for compile. "
        "Nothing is written beside the photographs.",
        epilog="Exit code 0: done. 1: a photograph or a sidecar could not be read. 2: cannot run.",
    )  # fmt: skip
    parser.add_argument("photos", metavar="PHOTOS", type=Path, help="folder of photographs")
    parser.add_argument("--out", metavar="FILE", type=Path, required=True,
                        help="manifest to write, such as stars.jsonl")  # fmt: skip
    parser.add_argument("-r", "--recursive", action="store_true", help="look into subfolders too")
    parser.add_argument("--gap", metavar="SECONDS", type=cli.number(0), default=3.0,
                        help="longest time between two photographs of a burst (default: 3)")  # fmt: skip
    parser.add_argument("--rejects-as", metavar="X", type=cli.number(1, 5),
                        help="score of rejected photographs (default: none of their own)")  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace an existing manifest")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    arguments = parser.parse_args(argv)
    return cli.run_command(lambda: _prepare(arguments), kept="nothing was written")


def _prepare(arguments: argparse.Namespace) -> int:
    from data.manifest import write_manifest
    from program.batch.inputs import find_items
    from program.common.errors import InputError
    from program.common.pool import in_order, progress
    from program.images.stated import burst_names
    from program.rating.photographs import Photograph, counts_of, labelled, read_photograph

    folder, out = arguments.photos, arguments.out
    if not folder.is_dir():
        raise InputError(f"folder {str(folder)!r}: is no folder of this machine; give one")
    if out.suffix.casefold() != ".jsonl":
        raise InputError(f"--out {str(out)!r}: is no manifest's name; end it in .jsonl")
    if out.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"--out {str(out)!r}: lies among the photographs; name a file elsewhere")
    requests = list(find_items([str(folder)], recursive=arguments.recursive))
    cli.check_outputs(arguments, "--out", out)
    with progress("Reading photographs", len(requests)) as advance:

        def read(request: "Request") -> "Photograph | InputError":
            advance()
            try:
                return read_photograph(request, folder)
            except InputError as error:
                return error

        outcomes = in_order(read, requests, workers=min(4, os.cpu_count() or 1))
    photographs = [each for each in outcomes if isinstance(each, Photograph)]
    faults = [each for each in outcomes if isinstance(each, InputError)]
    burst_of = burst_names({each.id: each.taken_at for each in photographs}, arguments.gap)
    samples = labelled(photographs, burst_of, arguments.rejects_as)
    if not samples:
        mend = "give photographs with stars in their files or sidecars, or rate some with agentic-iqa rate"
        suggested = sum(each.is_suggested for each in photographs)
        whose = f" of a person's; {suggested} have what a gallery suggested" if suggested else ""
        raise InputError(f"{str(folder)!r}: none of {len(photographs)} photographs has a rating{whose}; {mend}")
    write_manifest(out, samples)
    counts = counts_of(photographs, samples, burst_of) | {"unread": len(faults)}
    text = json.dumps(counts, indent=2) if arguments.json else _as_text(counts, out)
    sys.stdout.write(text + "\n")
    sys.stderr.writelines(f"{fault}\n" for fault in faults)
    return cli.EXIT_PROBLEMS if faults else 0


def _as_text(counts: dict[str, Any], out: Path) -> str:
    stars = ", ".join(f"{count} with {stars}" for stars, count in counts["stars"].items())
    unrated, suggested = counts["unrated"], counts["suggested"]
    alone = counts["photographs"] - counts["labels"] - unrated - suggested
    lines = [
        f"{out}: {counts['labels']} labels of {counts['photographs']} photographs",
        f"stars: {stars}; {counts['rejected']} rejected, {counts['picked']} picked",
        f"left out: {unrated} unrated (no rating, or 0), {alone} picked or rejected without a pair",
        f"bursts: {counts['bursts']}; {counts['pairs']} pairs of a pick and a reject in one burst",
    ]
    if suggested:
        why = "as labels they would teach the program its own answers"
        lines.append(f"left out: {suggested} have the rating that a gallery suggested: {why}")
    if counts["differ"]:
        lines.append(f"disagree: {counts['differ']} have other stars in the file than in the sidecar, which counts")
    if counts["unread"]:
        lines.append(f"not read: {counts['unread']}, which are left out")
    return "\n".join([*lines, f"next: agentic-iqa compile --data {out} --out programs/mine"])
