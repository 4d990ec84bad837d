"""`agentic-iqa gallery`: group photographs, choose the best of each group, and show why."""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from program.common import cli
from program.common.errors import InputError

_CODES = (
    "exit codes: 0 done; 1 a picture, a sidecar or a copy failed (one line each), all pictures are degraded, or "
    "the model could not be understood; 2 cannot run"
)
_KEPT = "what was judged is kept, and the same command continues there"


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = cli.Parser(
        prog="python -m program.gallery", epilog=_CODES,
        description="Group a folder's photographs by shot, choose the best of each, and make a page to decide on. "
        "The same command again judges new pictures only and keeps what was decided.",
    )  # fmt: skip
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder of photographs; none of them is changed")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True,
                        help="folder of gallery.html, gallery.csv, gallery.jsonl and the small copies")  # fmt: skip
    parser.add_argument("-r", "--recursive", action="store_true", help="look into subfolders too")
    parser.add_argument("--glob", metavar="G", action="append", help="only files named like *.jpg; with !*.gif others")
    choice = parser.add_argument_group("groups and verdicts")
    choice.add_argument("--group", choices=("auto", "time", "look", "off"), default="auto",
                        help="by time and look, or by one of them (default: auto)")  # fmt: skip
    choice.add_argument("--gap", metavar="SECONDS", type=cli.number(0), default=3.0,
                        help="longest time between two pictures of a burst (default: 3)")  # fmt: skip
    choice.add_argument("--keep", metavar="N", type=cli.whole_number(1), default=1,
                        help="pictures to keep of each group (default: 1)")  # fmt: skip
    choice.add_argument("--reject-below", metavar="X", type=cli.number(1, 5), default=2.2,
                        help="score below which a picture is rejected (default: 2.2)")  # fmt: skip
    choice.add_argument("--sure", metavar="P", type=cli.number(0.5, 0.999), default=0.8,
                        help="reject only with a probability of P or more (default: 0.8)")  # fmt: skip
    shown = parser.add_argument_group("page")
    shown.add_argument("--preview", metavar="PX", type=cli.whole_number(), default=1600,
                       help="longer side of the copies to look at closely; 0 makes none (default: 1600)")  # fmt: skip
    shown.add_argument("--single-file", action="store_true", help="put the thumbnails into the page, and no previews")
    files = parser.add_argument_group("hand-over")
    files.add_argument("--decisions", metavar="FILE", type=Path, help="decisions that the page saved")
    files.add_argument("--xmp", choices=("off", "new", "merge"), default="off",
                       help="write sidecars where there are none, or add what others lack, too")  # fmt: skip
    files.add_argument("--xmp-name", choices=("basename", "full"), default="basename",
                       help="IMG.xmp (Lightroom, the default) or IMG.JPG.xmp (darktable, digiKam)")  # fmt: skip
    files.add_argument("--apply", choices=("copy",), help="copy what is kept to the folder of --to")
    files.add_argument("--to", metavar="DIR", type=Path, help="where to copy")
    files.add_argument("--dry-run", action="store_true", help="say what --xmp and --apply would do, and do not do it")
    cli.add_program_flags(parser, replaces="judge all pictures again")
    parser.add_argument("--workers", metavar="N", type=cli.whole_number(1), default=min(4, os.cpu_count() or 2),
                        help="pictures at a time (default: one a core, at most 4)")  # fmt: skip
    cli.add_intention_flags(parser)
    cli.add_settings_flags(parser)
    cli.add_budget_flags(parser)
    arguments = parser.parse_args(argv)
    return cli.run_command(lambda: _gallery(arguments), kept=_KEPT)


def _gallery(arguments: argparse.Namespace) -> int:
    settings = cli.settings_from(arguments)
    if find_spec("imagehash") is None:
        raise InputError("gallery: needs ImageHash; pip install 'agentic-iqa[gallery]'")
    from program.images.decode_worker import start_early

    start_early()
    from program.gallery.command import run
    from program.lms.limits import budget_from

    with budget_from(arguments):
        return run(arguments, settings)


if __name__ == "__main__":
    sys.exit(main())
