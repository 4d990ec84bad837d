"""`python -m program.calibrate`: fit each ready tool's map from raw values to scores 1..5."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from program.common.cli import (
    EXIT_PROBLEMS,
    Parser,
    add_remote_flag,
    add_settings_flags,
    check_outputs,
    run_command,
    settings_from,
)

CALIBRATION = Path("configs/calibration.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        prog="python -m program.calibrate",
        description="Fit each ready tool's map from raw values to scores 1..5 on the human scores of datasets.",
        epilog="Full-reference tools need samples with a reference. Figures of tools that were not measured are kept.",
    )
    parser.add_argument(
        "data", nargs="*", metavar="NAME|MANIFEST", help="quickstart, quickstart-fr or manifests (JSONL)"
    )
    parser.add_argument(
        "--split", default="train", choices=("train", "validation", "test", "all"), help="default: train"
    )
    parser.add_argument("--tools", metavar="NAME[,NAME]", help="only these tools; default: all that are ready")
    parser.add_argument("--out", metavar="FILE", type=Path, default=CALIBRATION, help=f"default: {CALIBRATION}")
    parser.add_argument("--force", action="store_true", help="write into an existing --out")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_remote_flag(parser)
    add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _calibrate(arguments))


def _calibrate(arguments: argparse.Namespace) -> int:
    from program.common.console import Console
    from program.common.errors import InputError
    from program.common.pool import progress
    from program.evaluation.calibrating import LabelledSet, measure_all, results
    from program.tools.runner import ToolRunner

    settings = settings_from(arguments)
    if not arguments.data:
        raise InputError("no dataset is named; give one or more, as `python -m program.calibrate quickstart-fr`")
    check_outputs(arguments, "--out", arguments.out)
    remote = settings.images.remote
    datasets = [LabelledSet.read(name, arguments.split, settings.cache_dir, remote) for name in arguments.data]
    runner = ToolRunner(settings)
    names = arguments.tools.split(",") if arguments.tools else None
    with progress("measuring", sum(len(data.samples) for data in datasets)) as advance:
        surveyed = measure_all(runner, datasets, names=names, on_image=advance)
    report, table = results(surveyed, arguments.out, settings.tools.params_dir)
    for line in surveyed.problems():
        sys.stderr.write(f"{line}\n")
    if arguments.json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        Console().print(table)
    return EXIT_PROBLEMS if surveyed.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
