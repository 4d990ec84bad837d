"""`python -m program.runs`: the runs of compiles and evaluations in MLflow's page, which this serves and opens."""

import argparse
import sys
from pathlib import Path

from program.common import cli


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = cli.Parser(
        prog="python -m program.runs",
        description="Serve MLflow's page of all runs until Ctrl-C, and open it at a list with SRCC, gain and RMSE.",
    )
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path,
                        help="folder of the store (default: from the settings, mlruns)")  # fmt: skip
    parser.add_argument("--data", metavar="NAME|MANIFEST", help="whose runs to list (default: those of the last run)")
    parser.add_argument("--port", metavar="N", type=cli.whole_number(1), default=5000, help="default: 5000")
    parser.add_argument("--no-browser", action="store_true", help="print the address and open nothing")
    cli.add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return cli.run_command(lambda: _serve(arguments), kept="the page is closed; the runs stay")


def _serve(arguments: argparse.Namespace) -> int:
    from program.tracking.page import show_runs

    folder = arguments.folder or cli.settings_from(arguments).mlruns_dir
    return show_runs(folder, arguments.data, port=arguments.port, browse=not arguments.no_browser)


if __name__ == "__main__":
    sys.exit(main())
