"""Write docs/commands.md from the commands' own `--help`: `python docs/make_commands.py`."""

import contextlib
import importlib
import io
import os
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "commands.md"
ROOT = PAGE.parent.parent

COMMANDS = (
    "program.compile", "program.evaluate", "program.assess", "program.serve", "program.tools", "program.calibrate",
    "program.doctor", "data.prepare", "data.check", "program.expert.training.train",
)  # fmt: skip

_INTRO = """# Commands

Every command answers `--help` with this text. Exit codes: 0 done, 1 done but some samples failed, 2 unusable input (one
line says which and what to do), 3 `assess`: a score is below `--min-score`, 130 interrupted.
"""


def page() -> str:
    """Return the page: each command's help text, 100 columns wide."""
    parts = [f"## `python -m {module}`\n\n```text\n{help_of(module)}\n```\n" for module in COMMANDS]
    return "\n".join([_INTRO, *parts])


def help_of(module: str) -> str:
    """Return what `python -m module --help` prints."""
    name = f"{module}.__main__" if module == "program.tools" else module
    shown = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            importlib.import_module(name).main(["--help"])
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
