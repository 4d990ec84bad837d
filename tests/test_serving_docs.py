"""Every block of docs/serving.md runs, against a service on a free port."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from PIL import Image

from agentic_iqa.__main__ import main
from program import AgenticIQA
from program.common.settings import load_settings
from tests.pages import blocks_of, lines_of, page
from tests.pictures import blocks

ROOT = Path(__file__).resolve().parents[1]
TEXT = page("docs/serving.md")
BLOCKS = blocks_of(TEXT)
LINES = lines_of(TEXT)
TOKEN = "a-token-of-more-than-sixteen"


@pytest.fixture
def folder(tmp_path, rng, monkeypatch):
    photo = Image.fromarray(blocks(rng, 12, 16, 8))
    (tmp_path / "photos" / "deep").mkdir(parents=True)
    for name in ("photo.jpg", "original.png", "photos/1.jpg", "photos/draft-2.jpg", "photos/deep/<b>3.png"):
        photo.save(tmp_path / name)
    photo.resize((64, 48)).resize(photo.size).save(tmp_path / "distorted.png")
    (tmp_path / "manifest.jsonl").write_text('{"id": "1", "image": "photo.jpg"}\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def program(service_program):
    return service_program()


def test_the_curl_lines_are_answered(folder, program, served):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    lines = [line for line in LINES if line.startswith("curl")]
    assert len(lines) >= 9
    urls = {False: served(program), True: served(program, TOKEN)}
    for line in lines:
        url = urls["AGENTICIQA_SERVE_TOKEN" in line]
        words = shlex.split(line.replace("$AGENTICIQA_SERVE_TOKEN", TOKEN).replace("http://127.0.0.1:8000", url))
        done = subprocess.run([*words, "--noproxy", "*", "-sS", "--fail"], capture_output=True, check=False)
        assert done.returncode == 0, (line, done.stderr, done.stdout)


def test_the_python_block_runs(folder, program, served, capsys, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    text, _ = (text for language, text in BLOCKS if language == "python")  # the other: test_registry.py
    exec(text.replace("http://127.0.0.1:8000", served(program)), {})  # noqa: S102
    assert capsys.readouterr().out == "B\n"


def test_the_commands_run(folder, program, capsys, monkeypatch):
    monkeypatch.setattr("program.agent.saving.AgenticIQA", lambda *_: program)
    lines = [line for line in LINES if line.startswith("agentic-iqa assess")]
    assert len(lines) == 6
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, (line, capsys.readouterr().err)
    assert len((folder / "results.csv").read_text("utf-8").splitlines()) == 1 + 3


def test_serve_lines_are_understood(monkeypatch, capsys):
    lines = [shlex.split(line) for line in LINES if line.startswith("agentic-iqa serve")]
    assert len(lines) == 3
    started = []
    monkeypatch.setattr("program.service.server.serve", lambda *given: started.append(given))
    monkeypatch.setattr("program.service.server.bind", lambda host, port: (host, port))
    monkeypatch.setattr("program.agent.saving.load", lambda folder, settings, force: AgenticIQA(settings))
    monkeypatch.setenv("AGENTICIQA_SERVE_TOKEN", TOKEN)
    for words in lines:
        assert main(words[1:]) == 0
    assert [(address, token) for _, _, address, token in started] == [
        (("127.0.0.1", 8000), TOKEN), (("127.0.0.1", 8000), TOKEN), (("0.0.0.0", 8000), TOKEN),  # noqa: S104
    ]  # fmt: skip


def test_the_shown_settings_are_the_defaults():
    (text,) = (text for language, text in BLOCKS if language == "yaml")
    shown = yaml.safe_load(text)["serve"]
    assert shown == load_settings().serve.model_dump(mode="json")


def test_no_line_goes_untested():
    rest = [line for line in LINES if not line.startswith(("curl", "agentic-iqa ", "pip install", "export"))]
    assert rest == ["python examples/ranked_folder.py photos --out ranked"]


def test_a_folder_becomes_a_ranked_table_and_a_contact_sheet(folder, program, capsys):
    spec = importlib.util.spec_from_file_location("ranked_folder", ROOT / "examples" / "ranked_folder.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.AgenticIQA = lambda: program
    (folder / "photos" / "bad.png").write_text("x")
    shutil.copy(folder / "photos" / "1.jpg", folder / "photos" / os.fsdecode(b"\xff.jpg"))  # a name that is no UTF-8
    assert example.main(["photos", "--out", "ranked"]) == 0
    page = (folder / "ranked" / "contact_sheet.html").read_text("utf-8")
    assert page.count("<figure>") == 5
    assert page.count('src="data:image/jpeg;base64,') == 4
    assert "&lt;b&gt;3.png" in page
    assert "no score" in page
    assert (folder / "ranked" / "ranked.csv").read_text("utf-8").count("\n") == 6


def test_files_that_the_page_links_exist():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT)
    assert targets
    for target in targets:
        assert (ROOT / "docs" / target).is_file(), target
