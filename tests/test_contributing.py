"""Every block of CONTRIBUTING.md does what its section says."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from optimizers import recipes
from program.agent.saving import load
from program.compile import main as compile_command
from program.tools.registry import ToolRegistry
from tests.pages import blocks_of, page

ROOT = Path(__file__).resolve().parents[1]
TEXT = page("CONTRIBUTING.md")


def block(section: str, language: str) -> str:
    body = TEXT.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    ((_, text),) = blocks_of(body, language)
    return text


def run(section: str) -> dict:
    names: dict = {}
    exec(compile(block(section, "python"), section, "exec"), names)  # noqa: S102 - our own page
    return names


def test_a_tool_is_one_entry(tmp_path):
    file = tmp_path / "tools.yaml"
    file.write_text(block("Add a tool", "yaml"), "utf-8")
    (name,) = yaml.safe_load(file.read_text("utf-8"))["tools"]
    assert ToolRegistry.load(file).get(name).mode == "FR"


@pytest.mark.usefixtures("undrawn", "untraced", "untracked", "coarse")
def test_an_optimizer_is_one_file(tmp_path, few_photographs, monkeypatch, capsys):
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "stricter.py").write_text(block("Add an optimizer", "python"), "utf-8")
    command = ["--data", str(few_photographs), "--optimizer", "stricter", "--out", str(tmp_path / "out"), "--json"]
    assert compile_command(command) == 2
    assert "optimizer 'stricter': unknown" in capsys.readouterr().err
    monkeypatch.setattr(recipes, "__path__", [*recipes.__path__, str(folder)])
    try:
        assert compile_command(command) == 0
    finally:
        del sys.modules["optimizers.recipes.stricter"], recipes.stricter
    result = json.loads(capsys.readouterr().out)
    assert set(result["validation"]) == {"uncompiled", "stricter"}
    assert "stricter" in [phase["name"] for phase in result["plan"]["phases"]]
    instructions = load(tmp_path / "out").summarizer.score.signature.instructions
    assert ("more strictly" in instructions) == (result["chosen"] == "stricter")


def test_a_question_is_a_signature(scripted_lm, picture):
    from program.images.store import IMAGES

    lm = scripted_lm({"subject": ["%%%", {"subject": "bridge"}]})
    assert run("Ask a model a new question")["subject_of"](IMAGES.add(picture()), lm) == "bridge"
    assert len(lm.engine.requests) == 2


@pytest.fixture
def copy(tmp_path):
    for name in ("program", "configs", "signatures", "optimizers", "data", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "releases.py", tmp_path / "tests")
    return tmp_path


def applied(section: str, copy: Path) -> list[str]:
    """Apply a section's diff to a copy of the tree; the names of the files it changes."""
    names = []
    for part in re.split(r"^--- ", block(section, "diff"), flags=re.MULTILINE)[1:]:
        name, *changes = part.splitlines()
        lines, at = (copy / name).read_text("utf-8").splitlines(), 0
        for change in changes:
            if change[0] == "+":
                lines.insert(at, change[1:])
                at += 1
            elif change[0] == " ":
                at = lines.index(change[1:], at) + 1
        (copy / name).write_text("\n".join(lines) + "\n", "utf-8")
        names.append(name)
    return names


def said(copy: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    ran = subprocess.run([sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True)
    return ran.stdout + ran.stderr


def test_a_dataset_takes_an_entry_and_rows_of_the_page(copy, tmp_path):
    assert applied("Add a dataset", copy) == ["configs/datasets.yaml", "tests/releases.py", "docs/data.md"]
    folder = tmp_path / "release"
    folder.mkdir()
    code = f"""
from pathlib import Path
from data.catalogue import catalogue
from tests.releases import MINIATURES, check
check(MINIATURES[-1], Path({str(folder)!r}))
print(MINIATURES[-1].dataset, list(catalogue())[-1])
"""
    assert said(copy, "-c", code).split() == ["my-lab", "my-lab"]
    row, command = (line for line in (copy / "docs/data.md").read_text("utf-8").splitlines() if "my-lab" in line)
    assert row.startswith("| `my-lab` | My lab's photographs | 1 |")
    assert command.startswith("agentic-iqa data prepare my-lab ")


@pytest.mark.spec("issue-46/a-field-touches-at-most-3-files")
def test_an_output_field_takes_the_files_of_the_page(copy):
    assert len(applied("Add an output field", copy)) <= 3
    code = "from program.running import row; print('width' in row.Row.model_fields, row.__file__)"
    assert said(copy, "-c", code).split() == ["True", str(copy / "program" / "running" / "row.py")]


_ASKED = """
import json, sys
sys.path.insert(0, "docs")
import make_fields
from program import AgenticIQA
from program.common.request import Request
from program.running.row import Row
text = make_fields.PAGE.read_text("utf-8")
assert make_fields.page(text) == text
result = AgenticIQA()(image=sys.argv[1])
row = Row.of(Request(id="a"), result)
print(json.dumps([result.confidence, row.confidence, result.status, Row.kinds()["confidence"].__name__]))
"""


@pytest.mark.spec("a-scored-field-touches-at-most-3-files")
def test_one_more_field_to_ask_for_takes_the_files_of_the_page(copy, picture, tmp_path):
    from PIL import Image

    assert len(applied("Ask for one more field", copy)) <= 3
    Image.fromarray(picture(height=96, width=96)).save(tmp_path / "photo.png")
    answer, *warned = said(copy, "-c", _ASKED, str(tmp_path / "photo.png")).splitlines()
    assert json.loads(answer) == [None, None, "ok", "float"]
    assert sum("'confidence'" in line for line in warned) == 1


@pytest.mark.spec("issue-46/a-flag-touches-at-most-3-files")
def test_a_flag_takes_the_files_of_the_page(copy):
    assert len(applied("Add a flag", copy)) <= 3
    assert said(copy, "-m", "program.runs", "--where", "runs") == "runs\n"
