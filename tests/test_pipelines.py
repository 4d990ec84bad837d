"""docs/pipelines.md, the pre-commit hook, the action and the Dockerfile: what they name is there and works."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image, ImageFilter

from agentic_iqa.__main__ import COMMANDS, main
from program.batch.inputs import IMAGE_SUFFIXES
from tests.pages import blocks_of, page
from tests.pictures import noise

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = blocks_of(page("docs/pipelines.md"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a sharp photograph, and a blurred one since."""
    from skimage.data import astronaut

    photo = Image.fromarray(astronaut()).resize((192, 192))
    (tmp_path / "out, 100%").mkdir()
    photo.save(tmp_path / "sharp.png")
    for name, value in (("NAME", "a"), ("EMAIL", "a@example.org")):
        monkeypatch.setenv(f"GIT_AUTHOR_{name}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", value)
    monkeypatch.chdir(tmp_path)

    def git(*words):
        subprocess.run(["git", *words], check=True, capture_output=True)  # noqa: S607

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "a")
    photo.filter(ImageFilter.GaussianBlur(6)).save(tmp_path / "out, 100%" / "blurred.png")
    (tmp_path / "notes.txt").write_text("no image\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "b")
    return tmp_path


@pytest.fixture
def changed_images():
    spec = importlib.util.spec_from_file_location("changed_images", ROOT / "examples" / "changed_images.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def step_words(folder: Path, **inputs: str) -> list[str]:
    """Return the words with which the action's last step calls Python, run as GitHub does it."""
    step = ACTION["runs"]["steps"][-1]
    given = {name: entry["default"] for name, entry in ACTION["inputs"].items()} | inputs
    env = {name: re.sub(r"\${{ inputs\.([\w-]+) }}", lambda found: given[found[1]], text)
           for name, text in step["env"].items()}  # fmt: skip
    (folder / "python").write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    (folder / "python").chmod(0o755)
    env |= {"PATH": f"{folder}:{os.environ['PATH']}", "GITHUB_ACTION_PATH": str(ROOT)}
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout.split("\0")[:-1]


def test_changed_images_are_judged_and_marked(repository, changed_images, capsys, tmp_path_factory) -> None:
    def judged(base: str, **inputs: str) -> int:
        script, *words = step_words(tmp_path_factory.mktemp("bin"), base=base, **{"min-score": "3.5", **inputs})
        assert Path(script) == Path(changed_images.__file__)
        return changed_images.main(words)

    assert judged("HEAD~1") == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("::error file=out%2C 100%25/blurred.png::scores ")
    assert judged("HEAD~1", sure="0.999") in {3, 4}
    capsys.readouterr()
    assert judged("HEAD~1", **{"min-score": "", "fail-on": "defocus blur>=moderate"}) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("::error file=out%2C 100%25/blurred.png::strong defocus blur: ")
    assert judged("HEAD~1", **{"min-score": "", "fail-on": "too bright"}) == 0
    assert judged("HEAD~1", **{"min-score": "", "fail-on": "bleary"}) == 2
    assert "'bleary' is not known" in capsys.readouterr().err
    assert judged("HEAD") == 0
    capsys.readouterr()
    # What GitHub names as the commit before the first push of a branch.
    assert judged("0" * 40) == 2
    error = capsys.readouterr().err
    assert f"--base '{'0' * 40}': " in error
    assert error.rstrip().endswith("give a commit that is there (fetch-depth: 0 brings all)")


def test_the_hooks_run_the_gate_on_every_kind_of_image(repository, capsys) -> None:
    for hook in HOOKS:
        assert all(re.search(hook["files"], f"a{suffix}") for suffix in IMAGE_SUFFIXES)
        assert not re.search(hook["files"], "a.svg")
        command, *words = [*shlex.split(hook["entry"]), *hook["args"]]
        assert command == "agentic-iqa"
        assert main([*words, "sharp.png", "out, 100%/blurred.png"]) == 3
    (used,) = (yaml.safe_load(text) for language, text in BLOCKS if language == "yaml" and "repos:" in text)
    (hook,) = used["repos"][0]["hooks"]
    assert hook["id"] in {each["id"] for each in HOOKS}
    assert main(["assess", *hook["args"], "sharp.png"]) in {0, 4}
    capsys.readouterr()


def test_the_inputs_of_the_page_are_the_actions() -> None:
    (used,) = (yaml.safe_load(text) for language, text in BLOCKS if language == "yaml" and "steps:" in text)
    assert set(used["steps"][-1]["with"]) <= set(ACTION["inputs"])


def test_the_command_that_the_agents_settings_name_speaks_on_standard_output(tmp_path, monkeypatch, rng, capfd) -> None:
    mcp = pytest.importorskip("mcp", reason="the extra [mcp] is not installed")
    (text,) = (text for language, text in BLOCKS if language == "json")
    server = json.loads(text)["mcpServers"]["agentic-iqa"]
    assert (server["command"], server["args"][0] in COMMANDS) == ("agentic-iqa", True)
    Image.fromarray(noise(rng, 48, 64)).save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    started = mcp.StdioServerParameters

    def by_module(command, args):
        env = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
        return started(command=sys.executable, args=["-m", "agentic_iqa", *args], cwd=str(tmp_path), env=env)

    monkeypatch.setattr(mcp, "StdioServerParameters", by_module)
    (code,) = (text for language, text in BLOCKS if language == "python")
    exec(compile(code, "pipelines.md", "exec"), {})  # noqa: S102 - our own page
    assert re.match(r"[1-5]\.\d+ .*of 5", capfd.readouterr().out)


def test_the_container_is_no_root_and_says_how_it_is() -> None:
    lines = (ROOT / "Dockerfile").read_text("utf-8")
    assert lines.index("USER iqa") > lines.index("RUN useradd")
    assert "/health" in lines.split("HEALTHCHECK")[1].split("ENTRYPOINT")[0]
    assert 'ENTRYPOINT ["agentic-iqa"]' in lines
    (words,) = re.findall(r"^CMD (\[.*\])$", lines, re.MULTILINE)
    assert json.loads(words)[0] in COMMANDS
