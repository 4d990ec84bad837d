"""Judge the images that differ from a commit, and annotate those that score too low as GitHub's log commands do.

    python examples/changed_images.py --base origin/main --min-score 3 --fail-on "defocus blur>=strong"

The exit code is that of `agentic-iqa assess`: 3 where an image does not pass, 4 where --sure leaves it open.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from agentic_iqa.__main__ import main as agentic_iqa
from program.batch.inputs import IMAGE_SUFFIXES
from program.batch.output import faults_beyond, limits_of
from program.common.cli import Parser, number, run_command
from program.common.errors import InputError
from program.running.row import Row, side_of_minimum


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(prog="changed_images.py", description="Judge the images that differ from a commit.")
    parser.add_argument("--base", metavar="COMMIT", required=True)
    parser.add_argument("--min-score", metavar="X", type=number(1, 5))
    parser.add_argument("--sure", metavar="P", type=number(0.5, 0.999))
    parser.add_argument("--fail-on", metavar="FAULT[>=STRENGTH],...")
    arguments = parser.parse_args(argv)
    if arguments.min_score is None and not arguments.fail_on:
        parser.error("--min-score, --fail-on: give one of them")
    return run_command(lambda: judge(arguments.base, arguments.min_score, arguments.sure, arguments.fail_on))


def judge(base: str, minimum: float | None, sure: float | None, faults: str | None) -> int:
    """Judge the changed images, and print a line for each that does not pass."""
    images = changed(base)
    if not images:
        sys.stdout.write("no image was changed\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "rows.jsonl")
        flags = {"--min-score": minimum, "--sure": sure, "--fail-on": faults}
        gate = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
        words = ["assess", *images, "--out", str(table), "--json", *gate]
        with contextlib.redirect_stdout(io.StringIO()):
            code = agentic_iqa(words)
        lines = table.read_text("utf-8").splitlines() if table.exists() else []
    for row in map(Row.model_validate, map(json.loads, lines)):
        if barred := faults_beyond(row, limits_of(faults)):
            sys.stdout.write(annotation("error", row, f"{' and '.join(barred)}: {row.reasoning}"))
        elif row.score is None:
            sys.stdout.write(annotation("error", row, row.error or "got no score"))
        elif row.not_judged:
            sys.stdout.write(annotation("warning", row, f"not judged ({row.not_judged}): let a person look"))
        elif minimum is not None and (told := side_of_minimum(row, minimum, sure)) != "above":
            about = f"scores {row.score:.1f} of 5 (likely {row.low:.1f} to {row.high:.1f}), {told} {minimum:g}"
            sys.stdout.write(annotation("error" if told == "below" else "warning", row, f"{about}: {row.reasoning}"))
    return code


def changed(base: str) -> list[str]:
    """Return the images that were added or altered since a commit, by path."""
    words = ["git", "diff", "--name-only", "-z", "--diff-filter=d", f"{base}...HEAD", "--"]
    listed = subprocess.run(words, capture_output=True, check=False)  # noqa: S603 - the words are ours
    if listed.returncode:
        told = os.fsdecode(listed.stderr).strip()
        raise InputError(f"--base {base!r}: {told}; give a commit that is there (fetch-depth: 0 brings all)")
    names = (os.fsdecode(name) for name in listed.stdout.split(b"\0"))
    return [f"./{name}" for name in names if name.lower().endswith(IMAGE_SUFFIXES) and Path(name).is_file()]


def annotation(kind: str, row: Row, text: str) -> str:
    """Return a log command that marks the image's file."""

    def escaped(value: str, marks: str) -> str:
        return "".join(f"%{ord(letter):02X}" if letter in marks else letter for letter in value)

    name = (row.image or row.id).removeprefix("./")
    return f"::{kind} file={escaped(name, '%:,' + chr(13) + chr(10))}::{escaped(text, '%' + chr(13) + chr(10))}\n"


if __name__ == "__main__":
    sys.exit(main())
