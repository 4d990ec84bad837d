"""`python -m program.assess`: judge one image, a folder or a manifest, or say which of two is better."""

import argparse
import os
import sys
from pathlib import Path

from program.common import cli

_CODES = (
    "exit codes: 0 all judged; 1 an image failed, or got no score where --min-score asks for one, or all are "
    "degraded, or the model could not be understood; "
    "2 cannot run; 3 a score is below --min-score, or a fault one of --fail-on; 4 none surely is, and a score "
    "is not surely above (--sure), or an image cannot be judged"
)
_KEPT = "what was judged is kept, and the same command continues there"
_LOST = "what was judged is lost; --out FILE keeps it"


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = cli.Parser(
        prog="python -m program.assess",
        description="Judge the quality of an image and say why, or judge many images into a table.",
        epilog=_CODES,
    )
    parser.add_argument("image", metavar="IMAGE", nargs="+", help="image, folder or manifest (.jsonl, .csv, .parquet), "
                        "a path or a URI such as s3://...; or a dataset hf:NAME:SPLIT")  # fmt: skip
    parser.add_argument(
        "--reference", metavar="R", help="undistorted reference image; for many images, a folder of the same names"
    )
    parser.add_argument("--query", metavar="Q", help="question to answer (default: rate the quality)")
    parser.add_argument(
        "--region", metavar="NAME=LEFT,TOP,RIGHT,BOTTOM", action="append", type=_region, default=[],
        help="a part of one image, in pixels; repeat for more. A question that names it asks about it",
    )  # fmt: skip
    parser.add_argument("--heatmap", metavar="FILE", type=Path, help="draw where one image loses quality")
    parser.add_argument("--heatmap-of", metavar="DISTORTION", help="show this distortion alone: blur, noise, ...")
    parser.add_argument("--option", metavar="TEXT", action="append", help="an option to choose from; give two or more")
    cli.add_program_flags(parser, replaces="replace an existing --out or --heatmap")
    parser.add_argument("--json", action="store_true", help="print the assessment as JSON (of many images, a summary)")
    parser.add_argument(
        "--compare", action="store_true", help="say which of two images is better, and how sure that is"
    )
    many = parser.add_argument_group("many images")
    many.add_argument("--out", metavar="FILE|URI", help="table to write: .csv, .jsonl, or .parquet (a folder); "
                      "the same command continues where a killed one stopped")  # fmt: skip
    many.add_argument("-r", "--recursive", action="store_true", help="look into subfolders too")
    many.add_argument(
        "--glob", metavar="G", action="append", help="judge only files named like *.jpg; with !*.gif all others"
    )
    many.add_argument("--columns", metavar="FIELD=COLUMN,...", type=cli.column_names, default={},
                      help="which column of a manifest is which field, such as image=path,id=name")  # fmt: skip
    many.add_argument(
        "--min-score", metavar="X", type=cli.number(1, 5), help="exit with code 3 when an image scores below X"
    )
    many.add_argument(
        "--sure", metavar="P", type=cli.number(0.5, 0.999),
        help="with --min-score: decide only with a probability of P or more, such as 0.9; else exit with code 4",
    )  # fmt: skip
    many.add_argument("--fail-on", metavar="FAULT[>=STRENGTH],...",
                      help="exit with code 3 when an image has such a fault, at least so strong (slight, moderate, "
                      "strong), as 'defocus blur>=moderate,too dark'")  # fmt: skip
    many.add_argument("--workers", metavar="N", type=cli.whole_number(1), default=min(4, os.cpu_count() or 2),
                      help="images at a time (default: one a core, at most 4: more threads gain little)")  # fmt: skip
    cli.add_remote_flag(many)
    cli.add_engine_flags(many)
    cli.add_intention_flags(parser)
    cli.add_settings_flags(parser)
    cli.add_budget_flags(parser)
    arguments = parser.parse_args(argv)
    kept = _KEPT if arguments.out else _LOST if len(arguments.image) > 1 or os.path.isdir(arguments.image[0]) else ""
    return cli.run_command(lambda: _assess(arguments), kept=kept)


def _region(text: str) -> tuple[str, tuple[float, float, float, float]]:
    name, equals, box = text.rpartition("=")
    try:
        left, top, right, bottom = map(float, box.split(","))
    except ValueError:
        equals = ""
    if not (equals and name.strip()):
        raise argparse.ArgumentTypeError(f"{text!r}: write it as sky=0,0,640,200 (left, top, right, bottom)")
    return name.strip(), (left, top, right, bottom)


def _assess(arguments: argparse.Namespace) -> int:
    settings = cli.settings_from(arguments)
    from program.images.decode_worker import start_early

    start_early()
    from program.batch.command import assess
    from program.lms.limits import budget_from

    with budget_from(arguments):
        return assess(arguments, settings)


if __name__ == "__main__":
    sys.exit(main())
