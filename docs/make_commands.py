"""Write docs/commands.md from the commands' own `--help`: `python docs/make_commands.py`."""

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "commands.md"
ROOT = PAGE.parent.parent

_INTRO = """# Commands

Every command answers `--help` with this text. Without the installed `agentic-iqa`, `agentic-iqa assess` is
`python -m program.assess`, `agentic-iqa data check` is `python -m data.check`, and any command is
`python -m agentic_iqa COMMAND`. The installed command works in every folder; `python -m data.check` does not work in a
folder with a `data.py` or a package `data`, because Python looks there first.

## Exit codes

| code | meaning |
|---|---|
| 0 | done; `assess --min-score`: no score is below it; `doctor`, `data check`: no problem |
| 1 | an image, sample, sidecar or copy failed, or lacks a score for `--min-score`; `doctor`, `data check`: a problem |
| 2 | cannot run: one line says why and what to do |
| 3 | `assess --min-score`: a score is below it; with `--sure P`, so probable by its interval; `--fail-on`: a fault |
| 4 | `assess` gates: none surely fails, and one is not sure (`--sure`), or not judged; let a person look |
| 130, 143, 129 | stopped by Ctrl-C, SIGTERM or the end of the terminal: one line says what is kept and how to go on |
"""


def page() -> str:
    """Return the page: each command's help text, 100 columns wide."""
    main = importlib.import_module("agentic_iqa.__main__")
    told = {f"agentic-iqa {name}".rstrip(): help_of(main.main, *name.split()) for name in ("", *main.COMMANDS)}
    training = importlib.import_module("benchmarks.training.train")
    told["python -m benchmarks.training.train"] = help_of(training.main)
    return "\n".join([_INTRO, *(f"## `{name}`\n\n```text\n{text}\n```\n" for name, text in told.items())])


def help_of(main: Callable[[list[str]], int], *words: str) -> str:
    """Return what a command's `--help` prints."""
    shown = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    # A default that names a folder of this machine has no place in the page.
    return shown.getvalue().rstrip().replace(str(ROOT) + os.sep, "")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(), "utf-8")
