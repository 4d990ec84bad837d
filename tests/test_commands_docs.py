"""docs/commands.md holds what every command says of itself."""

import importlib.util
import re
from pathlib import Path

import pytest

from program.common.settings import load_settings

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_commands", DOCS / "make_commands.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_commands_say(maker):
    assert (DOCS / "commands.md").read_text("utf-8") == maker.page(), "run `python docs/make_commands.py`"


def test_every_command_is_on_the_page(maker):
    root = DOCS.parent
    runnable = {
        f"{folder}.{path.stem}" for folder in ("program", "data") for path in (root / folder).glob("*.py")
        if 'if __name__ == "__main__"' in path.read_text("utf-8")
    }  # fmt: skip
    from agentic_iqa.__main__ import COMMANDS

    assert runnable | {"program.mcp.__main__", "program.tools.__main__"} == {module for module, _ in COMMANDS.values()}
    assert all(f"## `agentic-iqa {name}`" in maker.page() for name in COMMANDS)


def test_the_settings_of_the_paper_can_be_loaded(tmp_path):
    (text,) = re.findall(
        r"^```yaml\n(.*?)^```$", (DOCS / "reproducing.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "paper.yaml").write_text(text, "utf-8")
    settings = load_settings(tmp_path / "paper.yaml")
    assert (settings.fusion.tool_weights, settings.assessment.scoring) == ("equal", "logprobs")


def test_files_that_a_page_links_exist():
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
            assert (DOCS / target).is_file(), (page.name, target)
