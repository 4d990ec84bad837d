"""`python -m data.check manifest.jsonl`: is a manifest's data whole, readable, unrepeated and free of leaks?"""

import argparse
import json
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from program.common.cli import EXIT_PROBLEMS, Parser, add_layout_flags, add_remote_flag, run_command, whole_number
from program.common.text import counted

if TYPE_CHECKING:
    from data.preparing import CheckReport


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0 clean, 1 problems found, 2 cannot run."""
    parser = Parser(
        prog="python -m data.check",
        description="Check a manifest: lines, labels, files, duplicates by content, leaks across splits, counts.",
        epilog="Exit code 0: clean. 1: problems were found. 2: the check could not run.",
    )
    parser.add_argument("manifest", metavar="MANIFEST", help="a manifest or table, as evaluate takes")
    parser.add_argument(
        "--dataset", metavar="NAME", help="compare counts with this release (default: what it was prepared from)"
    )
    add_layout_flags(parser)
    add_remote_flag(parser)
    parser.add_argument("--no-decode", action="store_true", help="hash the files, do not decode them")
    parser.add_argument("--workers", metavar="N", type=whole_number(1), help="threads (default: one a core)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args(argv)
    return run_command(lambda: _check(arguments), kept="nothing was written")


def _check(arguments: argparse.Namespace) -> int:
    from data.manifest import Layout
    from data.preparing import check_manifest
    from program.common.pool import progress

    with progress("Checking files", None) as advance:
        report = check_manifest(
            arguments.manifest, dataset=arguments.dataset, decode=not arguments.no_decode,
            workers=arguments.workers, on_file=advance,
            layout=replace(Layout.asked(arguments), remote=arguments.remote),
        )  # fmt: skip
    values = {"clean": report.clean, **report.model_dump()}
    text = json.dumps(values, indent=2, ensure_ascii=False) if arguments.json else _as_text(report)
    sys.stdout.write(text + "\n")
    return 0 if report.clean else EXIT_PROBLEMS


def _as_text(report: "CheckReport") -> str:
    splits = ", ".join(f"{name} {count}" for name, count in report.splits.items())
    lines = [
        f"{report.manifest}: {report.lines} lines, {report.images} image files, {report.groups} groups",
        f"splits: {splits}",
        f"sha256: {report.sha256}",
    ]
    for problem in report.problems:
        place = "" if problem.line is None else f"line {problem.line}: "
        lines.append(f"{problem.kind}: {place}{problem.message}")
    listed = Counter(problem.kind for problem in report.problems)
    lines += [f"{kind}: and {count} more" for kind, count in (report.counts - listed).items()]
    said = "clean" if report.clean else counted(report.counts.total(), "problem")
    if not report.decoded:
        said += " (files were not decoded)"
    return "\n".join([*lines, said])


if __name__ == "__main__":
    sys.exit(main())
