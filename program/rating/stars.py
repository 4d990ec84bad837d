"""`agentic-iqa data prepare stars`: the ratings that photographs already have, as labels."""

import argparse
import hashlib
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from program.common import cli

if TYPE_CHECKING:
    from data.manifest import Sample
    from program.common.request import Request

_MOST_BYTES = 2**30


class Photograph(NamedTuple):
    """What a photograph's file and sidecars state."""

    id: str
    image: Path
    sha256: str
    taken_at: str | None
    rating: int
    """Stars 1..5, 0 for none, -1 for a rejected one."""
    picked: bool
    disagree: bool
    """Whether sidecar and file state different ratings."""

    @property
    def standing(self) -> str | None:
        """What it says of the picture's place in its burst."""
        from data.decisions import KEPT_STARS, REJECTED

        if self.rating == REJECTED:
            return "reject"
        return "keep" if self.picked or self.rating >= KEPT_STARS else None


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

        def read(request: "Request") -> Photograph | str:
            advance()
            return _read(request, folder)

        outcomes = in_order(read, requests, workers=min(4, os.cpu_count() or 1))
    photographs = [each for each in outcomes if isinstance(each, Photograph)]
    faults = [each for each in outcomes if isinstance(each, str)]
    burst_of = _bursts(photographs, arguments.gap)
    samples = list(_samples(photographs, burst_of, arguments.rejects_as))
    if not samples:
        mend = "give photographs with stars in their files or sidecars, or rate some with agentic-iqa rate"
        raise InputError(f"{str(folder)!r}: none of {len(photographs)} photographs has a rating; {mend}")
    write_manifest(out, samples)
    counts = _counts(photographs, samples, burst_of, len(faults))
    text = json.dumps(counts, indent=2) if arguments.json else _as_text(counts, out)
    sys.stdout.write(text + "\n")
    sys.stderr.writelines(f"{fault}\n" for fault in faults)
    return cli.EXIT_PROBLEMS if faults else 0


def _read(request: "Request", folder: Path) -> "Photograph | str":
    """Return a photograph with its rating, or why it cannot be read."""
    from program.common.errors import InputError
    from program.common.files import leads_out, read_bounded
    from program.images.decode_worker import tags_bounded
    from program.images.decoding import MAX_PIXELS
    from program.images.stated import stated_beside, stated_by, taken_at

    path = request.image
    if not isinstance(path, Path):
        return f"{request.id!r}: {request.error}"
    if leads_out(path, folder):
        return f"image {request.id!r}: is a link out of the folder; put a copy in its place"
    try:
        beside, data = stated_beside(path, folder), read_bounded(path, _MOST_BYTES)
    except InputError as error:
        return str(error)
    except OSError as error:
        return f"image {request.id!r}: cannot be read ({error.strerror}); check its permissions"
    tags, packet = tags_bounded(data, MAX_PIXELS)
    inside = stated_by(tags, packet)
    return Photograph(
        request.id, path, hashlib.sha256(data).hexdigest(), taken_at(tags), beside.rating or inside.rating or 0,
        beside.picked or inside.picked, bool(beside.rating and inside.rating and beside.rating != inside.rating),
    )  # fmt: skip


def _bursts(photographs: Sequence[Photograph], gap_s: float) -> dict[str, str]:
    """Return each photograph's burst by its id: named as the first one in it, a lone one as itself."""
    from program.images.stated import bursts

    times = [None if each.taken_at is None else datetime.fromisoformat(each.taken_at) for each in photographs]
    first: dict[int, str] = {}
    burst_of = {}
    for photograph, number in zip(photographs, bursts(times, gap_s).tolist(), strict=True):
        burst_of[photograph.id] = photograph.id if number < 0 else first.setdefault(number, photograph.id)
    return burst_of


def _samples(
    photographs: Sequence[Photograph], burst_of: dict[str, str], rejects_as: float | None
) -> Iterator["Sample"]:
    """Yield the photographs that have a score: their stars, or what the pairs of their burst say."""
    from data.decisions import REJECTED, preferred, scores_in_burst
    from data.manifest import Sample

    scores = {each.id: float(each.rating) for each in photographs if each.rating > 0}
    if rejects_as is not None:
        scores |= {each.id: rejects_as for each in photographs if each.rating == REJECTED}
    by_burst: defaultdict[str, dict[str, str | None]] = defaultdict(dict)
    for each in photographs:
        by_burst[burst_of[each.id]][each.id] = each.standing
    pairs: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for standing in by_burst.values():
        for better, worse in preferred(standing):
            pairs[better][worse] = 1.0
        won = {name: pairs[name] for name in standing if name in pairs}
        if won:
            scores |= scores_in_burst(won, scores)
    for each in photographs:
        if each.id in scores:
            yield Sample(
                id=each.id, image=each.image.absolute(), mos=scores[each.id], preferred_over=pairs.get(each.id),
                group=burst_of[each.id], metadata={"sha256": each.sha256, "labels": "person"},
            )  # fmt: skip


def _counts(
    photographs: Sequence[Photograph], samples: "Sequence[Sample]", burst_of: dict[str, str], unread: int
) -> dict[str, Any]:
    from data.decisions import REJECTED

    sizes = Counter(burst_of.values())
    return {
        "photographs": len(photographs), "labels": len(samples),
        "stars": {stars: sum(each.rating == stars for each in photographs) for stars in range(1, 6)},
        "rejected": sum(each.rating == REJECTED for each in photographs),
        "picked": sum(each.picked for each in photographs),
        "unrated": sum(not each.rating and not each.picked for each in photographs),
        "bursts": sum(size > 1 for size in sizes.values()),
        "pairs": sum(len(sample.preferred_over or {}) for sample in samples),
        "disagree": sum(each.disagree for each in photographs), "unread": unread,
    }  # fmt: skip


def _as_text(counts: dict[str, Any], out: Path) -> str:
    stars = ", ".join(f"{count} with {stars}" for stars, count in counts["stars"].items())
    lines = [
        f"{out}: {counts['labels']} labels of {counts['photographs']} photographs",
        f"stars: {stars}; {counts['rejected']} rejected, {counts['picked']} picked",
        f"left out: {counts['unrated']} unrated (no rating, or 0)",
        f"bursts: {counts['bursts']}; {counts['pairs']} pairs of a pick and a reject in one burst",
    ]
    if counts["disagree"]:
        lines.append(f"disagree: {counts['disagree']} have other stars in the file than in the sidecar, which counts")
    if counts["unread"]:
        lines.append(f"not read: {counts['unread']}, which are left out")
    return "\n".join([*lines, f"next: agentic-iqa compile --data {out} --out programs/mine"])
