"""`python -m program.tools`: the tools, and which of them can run here."""

import argparse
import json
import sys
from collections.abc import Sequence

from program.common.cli import EXIT_PROBLEMS, Parser, add_settings_flags, run_command, settings_from


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        prog="python -m program.tools", description="List the image-quality tools and which of them can run here."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="only these; a metric that only pyiqa knows counts too"
    )
    parser.add_argument("--check", action="store_true", help="run every ready tool twice on a small photograph")
    parser.add_argument("--fetch", action="store_true", help="download what the named tools lack, then list them")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _list(arguments))


def _list(arguments: argparse.Namespace) -> int:
    from program.common.errors import InputError
    from program.tools.listing import check, entries, table
    from program.tools.models import fetch
    from program.tools.registry import ToolRegistry
    from program.tools.runner import ToolRunner

    settings = settings_from(arguments)
    registry = ToolRegistry.load()
    if arguments.fetch and not arguments.names:
        raise InputError("--fetch: names no tool; give those to download, as `python -m program.tools --fetch LPIPS`")
    if arguments.fetch:
        for name in arguments.names:
            fetch(registry.get(name))
    # A check that answered from the cache would check nothing.
    fresh = settings.model_copy(update={"tools": settings.tools.model_copy(update={"cache": False})})
    runner = ToolRunner.of(fresh, registry)
    rows = check(runner, arguments.names) if arguments.check else entries(runner, arguments.names)
    if arguments.json:
        sys.stdout.write(json.dumps([row.model_dump(mode="json") for row in rows]) + "\n")
    else:
        from rich.console import Console

        Console().print(table(rows, checked=arguments.check))
    # Of all tools some are never ready; one that was named is wanted.
    failed = any(row.error or (arguments.names and not row.ready) for row in rows)
    return EXIT_PROBLEMS if arguments.check and failed else 0


if __name__ == "__main__":
    sys.exit(main())
