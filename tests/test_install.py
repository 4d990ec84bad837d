"""What is installed: the lock, what pip gets of it, and which installer takes which."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, requires
from pathlib import Path

import numpy as np
import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

from tests.pictures import blocks

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")
CONSTRAINTS = (ROOT / "constraints.txt").read_text("utf-8")
PINNED = [Requirement(line) for line in re.findall(r"^(\w.*?) \\$", LOCK, re.MULTILINE)]
MAKE = shutil.which("make") or "make"
PLATFORMS = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64"))


def test_pip_gets_the_versions_of_the_lock() -> None:
    lines = [line for line in CONSTRAINTS.splitlines() if not line.startswith("#")]
    assert [str(Requirement(line)) for line in lines] == [str(each) for each in PINNED]
    assert len(lines) > 200


def test_each_pin_has_a_hash_and_neither_list_names_a_place() -> None:
    entries = re.findall(r"^\w.*(?:\n[ ].*)*", LOCK, re.MULTILINE)
    assert len(entries) == len(PINNED)
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==[\w.]+ (?:; .+ )?\\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", entry + "\n")
    words = set((LOCK + CONSTRAINTS).split())
    assert not [word for word in words if re.search(r"://|^[/~.]|@|\\\w|index|find-links", word)]


@pytest.mark.parametrize("minor", range(11, 15))
def test_each_python_and_platform_has_one_version_of_all_that_is_declared(minor: int) -> None:
    extras = itertools.chain.from_iterable(PROJECT["optional-dependencies"].values())
    declared = [Requirement(text) for text in (*PROJECT["dependencies"], *extras)]
    needed = [each for each in declared if each.name != "agentic-iqa"]
    assert len(needed) > 40
    for system, machine in PLATFORMS:
        version = {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.0"}
        here = {**default_environment(), **version, "sys_platform": system, "platform_machine": machine}
        pins = [each for each in PINNED if each.marker is None or each.marker.evaluate(here)]
        versions = {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in pins}
        assert len(versions) == len(pins)
        assert not [str(each) for each in needed if not each.specifier.contains(versions[canonicalize_name(each.name)])]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A folder that looks like an environment, whose Python writes down what it is asked for."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncase "$*" in *uv.txt) exit ${{NO_UV:-0}};; esac\n')
    python.chmod(0o755)
    return tmp_path


def made(environment: Path, *words: str) -> tuple[list[str], str]:
    """Return what that Python was asked for, and what was printed."""
    (environment / "calls").unlink(missing_ok=True)
    command = [MAKE, "install", f"PYTHON={sys.executable}", f"VENV={environment}", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    calls = environment / "calls"
    return calls.read_text("utf-8").splitlines() if calls.exists() else [], done.stderr


def test_uv_installs_by_the_lock_once(environment: Path) -> None:
    (uv, others, project), printed = made(environment)
    assert "GB come" in printed.splitlines()[0]
    assert "--require-hashes" in uv
    assert (environment / "uv.txt").read_text("utf-8").count("==") == 1
    for call in (others, project):
        assert call.startswith("-m uv pip install")
        assert f"--constraints {ROOT}/requirements.lock" in call
    assert project.endswith(f"--no-deps -e {ROOT}")
    assert made(environment)[0] == []


@pytest.mark.parametrize(("words", "asked"), [(["UV=0"], False), (["NO_UV=1"], True)])
def test_pip_installs_where_uv_is_not_to_be_had_or_not_wanted(environment: Path, words: list[str], asked: bool) -> None:
    calls, printed = made(environment, *words)
    assert ("pip installs, which takes minutes longer" in printed) == asked
    *before, others, project = calls
    assert len(before) == asked
    assert f"-c {ROOT}/constraints.txt -r" in others
    assert "--no-deps -e" in project


def test_the_tests_keep_compiled_code_whatever_the_environment_says(environment: Path) -> None:
    (environment / ".installed-dev").touch()
    (environment / "bin" / "python").write_text('#!/bin/sh\necho "kept: ${PYTHONDONTWRITEBYTECODE:-yes}"\n')
    words = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([MAKE, "test", f"VENV={environment}"], cwd=ROOT, env=words, capture_output=True, text=True)
    assert "kept: yes" in done.stdout.splitlines()


def test_an_unknown_extra_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "install.py", str(tmp_path / "new"), "serv"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: extra 'serv': is not known; there are serve, ")
    assert not (tmp_path / "new").exists()


def test_an_older_python_gets_one_line(tmp_path: Path) -> None:
    older = f"import runpy, sys; sys.version_info = (3, 9, 2); sys.argv[1:] = [{str(tmp_path / 'new')!r}]"
    code = f"{older}; runpy.run_path('install.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "is Python 3.9; 3.11 to 3.14 is needed" in done.stderr


def needed_by(names: list[str]) -> set[str]:
    """Return these packages and what they need."""
    found: set[str] = set()
    while names:
        name = canonicalize_name(names.pop())
        if name not in found:
            found.add(name)
            needs = [Requirement(text) for text in requires(name) or []]
            names += [each.name for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


@pytest.mark.slow
def test_the_small_installation_of_the_page_judges_images(tmp_path: Path, rng: np.random.Generator) -> None:
    page = (ROOT / "docs" / "installation.md").read_text("utf-8")
    (names,) = re.findall(r"^pip install -c constraints.txt ((?:[a-z0-9-]+ ?)+)$", page, re.MULTILINE)
    packages = tmp_path / "packages"
    packages.mkdir()
    for file in itertools.chain.from_iterable(distribution(name).files or [] for name in needed_by(names.split())):
        link = packages / file.parts[0]
        if file.parts[0] != ".." and not link.exists():
            link.symlink_to(file.locate().parents[len(file.parts) - 2] if len(file.parts) > 1 else file.locate())
    for name in ("one", "two"):
        pixels = blocks(rng, 6, 8, 16)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{packages}"}
        command = [sys.executable, "-S", "-m", "agentic_iqa", *words]  # -S: without what else is installed
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    for words in (["one.png"], ["one.png", "--reference", "two.png"], ["one.png", "two.png", "--out", "table.csv"]):
        done = run("assess", *words)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "table.csv").read_text("utf-8").count(".png,ok,") == 2
    for command in ("compile", "runs"):
        done = run(command)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert "is not installed; `pip install .`" in done.stderr.splitlines()[-1]
