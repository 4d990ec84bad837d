"""`python -m program.doctor`: what works here, in one screen, and how to fix what does not."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from program.common.cli import EXIT_PROBLEMS, Parser, add_settings_flags, as_started, run_command, settings_from

if TYPE_CHECKING:
    from program.agent.checks import Check


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0 when all works, 1 when something does not."""
    parser = Parser(
        prog="python -m program.doctor",
        description="Say what works here: models (each is called once with a tiny picture), tools, MLflow, caches.",
    )
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _examine(arguments))


def _examine(arguments: argparse.Namespace) -> int:
    from program.agent.checks import local_checks, model_checks

    settings = settings_from(arguments)
    checks = [*model_checks(settings), *local_checks(settings)]
    works = all(check.status != "failed" for check in checks)
    if arguments.json:
        verdict = {"works": works, "checks": [check._asdict() for check in checks]}
        sys.stdout.write(json.dumps(verdict, indent=2) + "\n")
    else:
        _show(checks, works=works)
    return 0 if works else EXIT_PROBLEMS


def _show(checks: Sequence["Check"], *, works: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    from program.common.console import Console

    marks = {"ok": "[green]ok[/green]", "note": "[yellow]--[/yellow]", "failed": "[red]no[/red]"}
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(style="bold", overflow="fold", max_width=28)
    table.add_column(overflow="fold")
    for check in checks:
        mend = f" -> {check.mend}" if check.mend else ""
        table.add_row(marks[check.status], escape(check.name), escape(as_started(check.detail + mend)))
    console = Console()
    console.print(table)
    failed = sum(check.status == "failed" for check in checks)
    console.print("All works." if works else f"{failed} of {len(checks)} checks failed; the fix for each follows ->.")


if __name__ == "__main__":
    sys.exit(main())
