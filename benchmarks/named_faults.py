"""How often the faults that people saw are named: `python -m benchmarks.named_faults FILE [--lm MODEL] [--json]`.

FILE is a JSONL with lines such as {"id": "a", "image": "a.jpg", "faults": [{"fault": "motion blur", "strength":
"strong"}], "main": "motion blur"}; the image lies beside it. Printed are shares with Wilson's intervals, and the share
of the best constant answer.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data.manifest import read_manifest
from program.agent.saving import program_from
from program.common import cli
from program.common.errors import InputError
from program.common.pool import progress
from program.evaluation.intervals import wilson
from program.lms.limits import budget_from

_MATTERS = frozenset({"moderate", "strong"})
LINES = {
    "main": "main fault named first", "found": "moderate and strong faults found",
    "right": "named faults that are there", "clean": "clean pictures with an invented fault",
    "silent": "faulty pictures with nothing named",
}  # fmt: skip


class Annotated(NamedTuple):
    """One picture as somebody saw it."""

    id: str
    image: Path
    strengths: Mapping[str, str]
    """Fault -> slight, moderate or strong."""
    main: str | None


def annotated(file: Path) -> list[Annotated]:
    """Return the pictures of a JSONL file with lines {"id", "faults": [{"fault", "strength"}], "main"}.

    A line names its "image" beside the file, or its id stands in a manifest.jsonl of a folder next to the file's.
    Raises InputError for lines that hold none of this.
    """
    try:
        records = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InputError(
            f"file {str(file)!r}: cannot be read as JSON lines ({error}); give annotated faults"
        ) from error
    images = _images(file) if any("image" not in record for record in records) else {}
    found = []
    for number, record in enumerate(records, 1):
        try:
            image = file.parent / record["image"] if "image" in record else images[record["id"]]
            strengths = {fault["fault"]: fault["strength"] for fault in record["faults"]}
            found.append(Annotated(record["id"], image, strengths, record["main"]))
        except (KeyError, TypeError) as error:
            raise InputError(
                f"file {str(file)!r}: line {number} has no {error}; give id, faults, main and an image, or the id of a "
                "manifest in a folder next to it"
            ) from error
    if not found:
        raise InputError(f"file {str(file)!r}: is empty; give a line for each picture")
    return found


def _images(file: Path) -> dict[str, Path]:
    manifests = sorted(file.resolve().parent.parent.glob("*/manifest.jsonl"))
    return {sample.id: Path(str(sample.image)) for manifest in manifests for sample in read_manifest(manifest)}


def reason_figures(
    pictures: Sequence[Annotated], name: Callable[[Annotated], Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """Return each of `LINES` as share, interval and number, with the best constant answer's share.

    `name` says which faults are named of a picture, the worst first. The constant answer names the fault that is most
    often the worst; "clean" and "silent" have none beside them that would say more than 1 or 0.
    """
    told = {picture.id: list(name(picture)) for picture in pictures}
    mains = Counter(picture.main for picture in pictures if picture.main)
    usual = [mains.most_common(1)[0][0]] if mains else []
    ours, constant = _shares(pictures, lambda p: told[p.id]), _shares(pictures, lambda _: usual)
    return {
        key: {
            "share": sum(hits) / len(hits), "low": wilson(sum(hits) / len(hits), len(hits))[0],
            "high": wilson(sum(hits) / len(hits), len(hits))[1], "n": len(hits), "right": sum(hits),
            "constant": sum(constant[key]) / len(constant[key]) if constant[key] else None,
        }
        for key in LINES if (hits := ours[key])
    }  # fmt: skip


def _shares(pictures: Iterable[Annotated], name: Callable[[Annotated], Sequence[str]]) -> dict[str, list[bool]]:
    counts: dict[str, list[bool]] = defaultdict(list)
    for picture in pictures:
        told = name(picture)
        strong = [fault for fault, strength in picture.strengths.items() if strength in _MATTERS]
        counts["main"] += [list(told[:1]) == [picture.main]] if picture.main else []
        counts["found"] += [fault in told for fault in strong]
        counts["right"] += [fault in picture.strengths for fault in told]
        counts["clean"] += [] if picture.strengths else [bool(told)]
        counts["silent"] += [not told] if strong else []
    return counts


def reasons_text(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the figures as lines of text."""
    lines = [f"{'':42}{'share':>7}  {'95 %':14}{'of':>12}  constant answer"]
    for key, of in figures.items():
        beside = "" if of["constant"] is None else f"{of['constant']:.2f}"
        span, count = f"{of['low']:.2f} to {of['high']:.2f}", f"{of['right']} of {of['n']}"
        lines.append(f"{LINES[key]:42}{of['share']:7.2f}  {span:14}{count:>12}  {beside}")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = cli.Parser(prog="python -m benchmarks.named_faults", description=str(__doc__).partition(":")[0])
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    cli.add_program_flags(parser)
    cli.add_settings_flags(parser)
    cli.add_budget_flags(parser)
    arguments = parser.parse_args(argv)
    return cli.run_command(lambda: _count(arguments))


def _count(arguments: Any) -> int:
    pictures = annotated(arguments.file)
    program = program_from(arguments, cli.settings_from(arguments))
    with progress("naming faults", len(pictures)) as advance, budget_from(arguments):

        def named(picture: Annotated) -> list[str]:
            found = [fault for fault, _ in program(picture.image).faults]
            advance(1)
            return found

        figures = reason_figures(pictures, named)
    sys.stdout.write(json.dumps(figures, indent=2) + "\n" if arguments.json else reasons_text(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
