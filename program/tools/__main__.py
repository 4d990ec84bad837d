"""`python -m program.tools`: the tools, and which of them can run here."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from program.common.cli import EXIT_PROBLEMS, Parser, add_settings_flags, as_started, run_command, settings_from

if TYPE_CHECKING:
    from rich.console import Group

    from program.images.store import ImageRef
    from program.tools.registry import ToolSpec
    from program.tools.runner import ToolRunner

TRIAL_SIZE_PX = 256
SLOW_S = 60.0
"""A tool slower than this is not run a second time."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        prog="python -m program.tools", description="List the image-quality tools and which of them can run here."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these; other metrics of pyiqa can be named too")
    parser.add_argument("--all", action="store_true", help="also those that are not ready, and what each lacks")
    parser.add_argument("--check", action="store_true", help="run every ready tool twice on a small photograph")
    parser.add_argument("--fetch", action="store_true", help="download what the named tools lack, then list them")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _list(arguments))


def _list(arguments: argparse.Namespace) -> int:
    from program.common.errors import InputError
    from program.tools.loading import load
    from program.tools.registry import ToolRegistry
    from program.tools.runner import ToolRunner

    settings = settings_from(arguments)
    registry = ToolRegistry.load()
    specs = [registry.get(name) for name in arguments.names] or registry.specs()
    if arguments.fetch and not arguments.names:
        raise InputError("--fetch: names no tool; give those to download, as `python -m program.tools --fetch LPIPS`")
    if arguments.fetch:
        for spec in specs:
            load(spec, None, "cpu", fetch=True)
    # A check that answered from the cache would check nothing.
    runner = ToolRunner(settings.model_copy(update={"cache": False}), registry)
    rows = [entry(spec, runner) for spec in specs]
    if arguments.check:
        image, reference = _trial_pair()
        for row in [row for row in rows if row["ready"]]:
            row.update(_trial(row["name"], runner, image, reference))
    if arguments.json:
        sys.stdout.write(json.dumps(rows) + "\n")
    else:
        from program.common.console import Console

        whole = bool(arguments.all or arguments.names)
        Console().print(_table(rows, checked=arguments.check, whole=whole))
    # Of all tools some are never ready; one that was named is wanted.
    failed = any(row["error"] or (arguments.names and not row["ready"]) for row in rows)
    if arguments.check and failed:
        return EXIT_PROBLEMS
    return 0


def entry(spec: "ToolSpec", runner: "ToolRunner") -> dict[str, Any]:
    """Return what is listed of a tool; the last five are of a trial run."""
    reason = runner.why_not(spec)
    return {
        **spec.model_dump(include={"name", "mode", "description", "needs", "cost", "licence", "general"}),
        "library": spec.library, "function": spec.function, "calibrated": runner.calibration.knows(spec.name),
        "ready": reason is None, "reason": reason,
        "raw": None, "score": None, "seconds": None, "deterministic": None, "error": None,
    }  # fmt: skip


def _trial(name: str, runner: "ToolRunner", image: "ImageRef", reference: "ImageRef") -> dict[str, Any]:
    """Return raw value, score 1..5, seconds, whether a second run gave the same, or the error."""
    first = runner.measure(name, image, reference)
    again = runner.measure(name, image, reference) if first.raw is not None and first.seconds < SLOW_S else None
    return {
        "raw": first.raw,
        "score": first.score,
        "seconds": round((again or first).seconds, 4),
        "deterministic": None if again is None else again.raw == first.raw,
        # A raw value without a map is a reading all the same.
        "error": first.error if first.raw is None else None,
    }


def _trial_pair() -> "tuple[ImageRef, ImageRef]":
    """Return a 256 x 256 part of a photograph as JPEG of quality 20, and the part itself."""
    import io

    import numpy as np
    from PIL import Image
    from skimage.data import astronaut

    from program.images.store import IMAGES

    scene = np.ascontiguousarray(astronaut()[:TRIAL_SIZE_PX, 96 : 96 + TRIAL_SIZE_PX])
    packed = io.BytesIO()
    Image.fromarray(scene).save(packed, "JPEG", quality=20)
    return IMAGES.add(packed.getvalue()), IMAGES.add(scene)


def _table(rows: Sequence[dict[str, Any]], *, checked: bool, whole: bool) -> "Group":
    """Return the ready entries as a table; of a `whole` list all, and why some are not."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title="Image-quality tools",
        caption="FR compares with a reference, NR does not. SRCC: agreement with people, measured or published",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    columns = ["tool", "mode", "cost", "SRCC"]
    if whole:
        columns.append("ready")
    if checked:
        columns += ["raw", "1..5", "s", "same"]
    for column in columns:
        table.add_column(column, no_wrap=True)
    if not checked:
        table.add_column("what it is", min_width=24)
    for row in rows:
        if not whole and not row["ready"]:
            continue
        cells = [row["name"], row["mode"], row["cost"], _figure(row["general"] or None, 2)]
        if whole:
            cells.append("yes" if row["ready"] else "no")
        if checked:
            cells += [_figure(row[key], 3) for key in ("raw", "score", "seconds")]
            cells.append({None: "-", True: "yes", False: "NO"}[row["deterministic"]])
        else:
            cells.append(row["description"])
        table.add_row(*cells)
    shown = [row for row in rows if row["error"] or (whole and row["reason"])]
    why = [f"{row['name']}: {row['error'] or row['reason']}" for row in shown]
    lacking = sum(not row["ready"] for row in rows)
    if lacking and not whole:
        why.append(f"{lacking} more lack a file or a package; --all lists them and says which")
    return Group(table, *(escape(as_started(line)) for line in why))


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
