"""`agentic-iqa COMMAND`: every command under one name, in whatever folder it is started."""

import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from program.common.cli import EXIT_UNUSABLE
from program.common.errors import did_you_mean

COMMANDS = {
    "assess": ("program.assess", "judge images, a folder or a manifest, or compare two"),
    "gallery": ("program.gallery.__main__", "group photographs, choose the best of each, and show why"),
    "rate": ("program.rating.__main__", "a page to rate pictures on, from which a program learns"),
    "serve": ("program.serve", "a page and an HTTP interface that judge images"),
    "mcp": ("program.serve:offer", "the same as tools for agents (Model Context Protocol)"),
    "evaluate": ("program.evaluate", "how well a program agrees with people"),
    "compile": ("program.compile", "optimize a program on human judgements"),
    "runs": ("program.runs", "every compile and evaluation, in MLflow's page"),
    "tools": ("program.tools.__main__", "the image-quality tools, and which are ready here"),
    "doctor": ("program.doctor", "what works on this machine, and how to fix what does not"),
    "calibrate": ("program.calibrate", "fit the tools' maps to scores 1..5"),
    "data prepare stars": ("program.rating.stars", "the stars that photographs have as a manifest"),
    "data prepare": ("data.prepare", "a dataset's release as a manifest"),
    "data check": ("data.check", "check a manifest's lines, files and splits"),
}
"""Each command's module, its function if that is not `main`, and what it does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first words name, and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    for name, (place, _) in COMMANDS.items():
        parts = name.split()
        if words[: len(parts)] == parts:
            return _run(name, place, words[len(parts) :])
    if words[:1] == ["--version"]:
        from program.tools.registry import installed_version

        sys.stdout.write(f"agentic-iqa {installed_version('agentic-iqa') or '(not installed)'}\n")
    elif not words or words[0] in {"-h", "--help"}:
        sys.stdout.write(_help())
    else:
        command = " ".join(words[: 1 + (words[0] == "data")])
        hint = did_you_mean(command, COMMANDS) or "; agentic-iqa --help lists them"
        sys.stderr.write(f"error: command {command[:100]!r}: is not known{hint}\n")
        return EXIT_UNUSABLE
    return 0


def _run(name: str, place: str, words: list[str]) -> int:
    module, _, function = place.partition(":")
    try:
        return int(getattr(importlib.import_module(module), function or "main")(words))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or find_spec(package):  # then it is not the installation that lacks something
            raise
        mend = "`pip install .` brings all that this project needs"
        sys.stderr.write(f"error: {name}: the package {package!r} is not installed; {mend}\n")
        return EXIT_UNUSABLE


def _help() -> str:
    lines = [f"  {name:<20}{text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join([
        "usage: agentic-iqa COMMAND ...", "", "Judge the quality of images as people would, and say why.", "",
        *lines, "", "agentic-iqa COMMAND --help shows a command's options, --version the version.", "",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
