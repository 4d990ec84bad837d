"""The project's pages, and what stands in them to be run."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def page(name: str) -> str:
    """Return the text of a page, named from the project's folder."""
    return (ROOT / name).read_text("utf-8")


def blocks_of(text: str, language: str = r"\w+") -> list[tuple[str, str]]:
    """Return a page's blocks: the language and the text of each, in order."""
    return re.findall(rf"^```({language})\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def lines_of(text: str, language: str = "bash") -> list[str]:
    """Return the lines of a page's blocks in one language."""
    return [line for _, block in blocks_of(text, language) for line in block.splitlines()]
