"""`agentic-iqa rate`: a page on which a person rates pictures; every answer is kept at once."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from program.common import cli

if TYPE_CHECKING:
    from program.common.settings import Settings
    from program.rating.session import Kind, Session
    from program.rating.store import RatingFile

_EXTRA = ("fastapi", "prometheus_client", "python_multipart", "uvicorn")
_PORT = 8010
_KEPT = "every answer is kept; the same command goes on there"


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = make_parser().parse_args(argv)
    return cli.run_command(lambda: _rate(arguments), kept=_KEPT)


def make_parser() -> cli.Parser:
    """Return what reads the command's words."""
    parser = cli.Parser(
        prog="agentic-iqa rate",
        description="Open a page on which you rate photographs from 1 to 5, compare pairs, or answer a manifest's "
        "questions, without seeing a score or a name. Every answer is kept at once, the same command goes on there, "
        "and `compile --data DIR` learns from the answers.",
        epilog="exit codes: 0 done, or stopped by Ctrl-C; 2 cannot run",
    )
    parser.add_argument("photos", metavar="PHOTOS", nargs="?", type=Path, help="folder of photographs; none is changed")
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder of ratings.jsonl")
    parser.add_argument("--review", metavar="DIR", type=Path,
                        help="instead of PHOTOS: say who is right, people or the program, about the worst misses "
                        "in the folder of an evaluation's --report; answers go to review.jsonl there")  # fmt: skip
    parser.add_argument("-r", "--recursive", action="store_true", help="look into subfolders too")
    parser.add_argument("--glob", metavar="G", action="append", default=[],
                        help="only files named like *.jpg; with !*.gif others")  # fmt: skip
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--pairs", action="store_true", help="ask which of two pictures looks better")
    asked.add_argument("--questions", metavar="MANIFEST",
                       help="ask a manifest's questions with options, instead of PHOTOS")  # fmt: skip
    parser.add_argument("--rater", metavar="NAME", default="", help="who rates (default: one rater without a name)")
    parser.add_argument("--port", metavar="N", type=cli.whole_number(0, 65535), default=_PORT,
                        help=f"port on this machine (default: {_PORT}; 0: any free one)")  # fmt: skip
    parser.add_argument("--seed", metavar="N", type=cli.whole_number(), default=0, help="seed of everything random")
    return parser


def session_of(arguments: argparse.Namespace, file: "RatingFile", max_pixels: int) -> "Session":
    """Return the session that the command's words ask for. Raises InputError."""
    from program.common.files import place_of
    from program.rating.pictures import Screen, Unit, photographs, questions
    from program.rating.session import Asked, Session

    kind: Kind = "pair" if arguments.pairs else "score"
    if arguments.questions is not None:
        kind = "question"
        pictures, units = questions(place_of(arguments.questions))
    else:
        known = {line.id: line.group for line in file.lines_before if line.group}
        pictures = photographs(arguments.photos, arguments.glob, known, recursive=arguments.recursive)
        units = [Unit(picture.id, (place,), picture.group) for place, picture in enumerate(pictures)]
    asked = Asked(kind, arguments.rater, arguments.seed)
    return Session(asked, pictures, units, Screen(pictures, max_pixels), file)


def _rate(arguments: argparse.Namespace) -> int:
    from program.common.errors import InputError

    given = [name for name in ("photos", "questions", "review") if getattr(arguments, name) is not None]
    if len(given) != 1:
        raise InputError("PHOTOS: give a folder of photographs, --questions MANIFEST or --review DIR: one of them")
    if (arguments.out is None) != (arguments.review is not None):
        raise InputError("--out: give the folder of the ratings; with --review answers go to the folder of that")
    cli.check_installed("serve", *_EXTRA)
    from program.common.settings import load_settings
    from program.images.decode_worker import start_early

    start_early()
    if arguments.review is not None:
        return _review(arguments, load_settings())
    from program.rating.learning import Learner, agreement_text, worth_text
    from program.rating.server import app_of
    from program.rating.store import RatingFile
    from program.service.server import bind, run_until_stopped

    settings = load_settings()
    file = RatingFile(arguments.out)
    try:
        session = session_of(arguments, file, settings.images.max_pixels)
        command = f"agentic-iqa compile --data {shlex.quote(str(arguments.out))} --out programs/rated"
        listener = bind("127.0.0.1", arguments.port)
        learner = Learner(session, settings.kept_dir, settings.images.max_pixels)
        learner.start()
        greeting = "Rate the pictures on {}/ (Ctrl+C stops it)"
        run_until_stopped(app_of(session, command), settings.serve, listener, greeting)
        learner.stop()
    finally:
        file.close()
    counts = session.progress()
    for fault in session.failed.values():
        sys.stderr.write(f"{fault}\n")
    told = f"{counts['rated']} rated, {counts['unsure']} of them unsure, {counts['open']} open · {file.path}"
    lines = [told, agreement_text(session), worth_text(session), command]
    sys.stdout.writelines(f"{line}\n" for line in lines if line)
    return 0


def _review(arguments: argparse.Namespace, settings: "Settings") -> int:
    from program.rating.review import Reviewing, review_app
    from program.service.server import bind, run_until_stopped

    listener = bind("127.0.0.1", arguments.port)
    reviewing = Reviewing(arguments.review, settings, arguments.rater)
    try:
        greeting = "The worst misses are on {}/ (Ctrl+C stops it)"
        run_until_stopped(review_app(reviewing), settings.serve, listener, greeting)
    finally:
        reviewing.close()
    sys.stdout.write(reviewing.summary())
    return 0


if __name__ == "__main__":
    sys.exit(main())
