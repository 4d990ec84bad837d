"""docs/commands.md holds what every command says of itself."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from program.common.settings import load_settings
from program.running.row import Row

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = [
    *DOCS.glob("*.md"),
    *(DOCS.parent / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def maker():
    return script("make_commands")


def test_the_page_is_what_the_commands_say(maker):
    assert (DOCS / "commands.md").read_text("utf-8") == maker.page(), "run `python docs/make_commands.py`"


def test_every_command_is_on_the_page(maker):
    root = DOCS.parent
    runnable = {
        f"{folder}.{path.stem}" for folder in ("program", "data") for path in (root / folder).glob("*.py")
        if 'if __name__ == "__main__"' in path.read_text("utf-8")
    }  # fmt: skip
    from agentic_iqa.__main__ import COMMANDS

    packages = {f"program.{name}.__main__" for name in ("gallery", "rating", "tools")}
    assert runnable | packages | {"program.rating.stars"} == {place.partition(":")[0] for place, _ in COMMANDS.values()}
    assert all(f"## `agentic-iqa {name}`" in maker.page() for name in COMMANDS)


def test_the_settings_of_the_paper_can_be_loaded(tmp_path):
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", (DOCS / "figures.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "paper.yaml").write_text(text, "utf-8")
    settings = load_settings(tmp_path / "paper.yaml")
    assert (settings.fusion.tool_weights, settings.assessment.scoring) == ("equal", "logprobs")


def headings_of(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def links_of(page: Path) -> list[tuple[str, str, str]]:
    return re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]+))?\)", page.read_text("utf-8"))


def test_pages_link_each_other():
    assert sum(len(links_of(page)) for page in PAGES) > 2 * len(PAGES)


@pytest.mark.spec("issue-51/links")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_exists(page):
    for target, _, heading in links_of(page):
        linked = page.parent / target if target else page
        assert linked.exists(), (page.name, target)
        assert not heading or heading in headings_of(linked), (page.name, target, heading)


@pytest.mark.spec("issue-51/columns")
def test_every_column_of_a_table_is_explained():
    text = (DOCS / "reading-a-result.md").read_text("utf-8")
    assert script("make_fields").page(text) == text, "run `python docs/make_fields.py`"
    columns = text.split("## The columns of a table")[1].split("##")[0]
    assert re.findall(r"^\| `(\w+)` \|", columns, re.MULTILINE) == [*Row.model_fields]


def test_the_list_of_commands_fits_a_terminal_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    from agentic_iqa.__main__ import main

    main(["--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
