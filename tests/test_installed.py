"""The project as another would have it: built, installed somewhere, started in a folder of their own."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from agentic_iqa.__main__ import COMMANDS, main
from tests.pictures import blocks

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("agentic_iqa", "program", "signatures", "optimizers", "data", "configs")
BUILD = "import sys; from hatchling import build; print(getattr(build, 'build_' + sys.argv[1])(sys.argv[2]))"


def run(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a wheel of an sdist of this checkout installs."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made")
    for name in PARTS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "constraints.txt"):
        shutil.copy(ROOT / name, source)
    sdist = run(sys.executable, "-c", BUILD, "sdist", str(made), cwd=source)
    assert sdist.returncode == 0, sdist.stderr
    with tarfile.open(made / sdist.stdout.split()[-1]) as archive:
        archive.extractall(made, filter="data")
    (unpacked,) = (path for path in made.iterdir() if path.is_dir())
    wheel = run(sys.executable, "-c", BUILD, "wheel", str(made), cwd=unpacked)
    assert wheel.returncode == 0, wheel.stderr
    target = tmp_path_factory.mktemp("target")
    words = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", "--target")
    pip = run(sys.executable, "-m", "pip", *words, str(target), str(made / wheel.stdout.split()[-1]), cwd=made)
    assert pip.returncode == 0, pip.stderr
    return target


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A working folder with packages that have our names."""
    for name in ("data", "configs", "optimizers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the working folder was imported')\n")
    smooth = blocks(rng, 6, 8, 16)
    Image.fromarray(smooth).save(tmp_path / "photo.png")
    return tmp_path


@pytest.mark.slow
def test_what_was_installed_holds_all_and_nothing_else(installed: Path) -> None:
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {*PARTS, "bin"}

    def shipped(root: Path) -> set[str]:
        files = (path for part in PARTS for path in (root / part).rglob("*") if path.is_file())
        return {path.relative_to(root).as_posix() for path in files if "__pycache__" not in path.parts}

    assert shipped(installed) == {name for name in shipped(ROOT) if not name.startswith("data/raw/")}


@pytest.mark.slow
def test_the_command_judges_in_a_folder_with_packages_of_our_names(installed: Path, folder: Path) -> None:
    command = (sys.executable, str(installed / "bin" / "agentic-iqa"))
    judged = run(*command, "assess", "photo.png", cwd=folder, PYTHONPATH=str(installed))
    assert judged.returncode == 0, judged.stderr
    assert " of 5, likely " in judged.stdout
    listed = run(*command, "data", "prepare", "--list", cwd=folder, PYTHONPATH=str(installed))
    assert "tid2013" in listed.stdout, listed.stderr
    assert "usage: agentic-iqa data check [" in run(
        *command, "data", "check", "-h", cwd=folder, PYTHONPATH=str(installed)
    ).stdout  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("words", [("-m", "program.assess"), ("-m", "agentic_iqa", "assess")])
def test_modules_run_in_such_a_folder(installed: Path, folder: Path, words: tuple[str, ...]) -> None:
    (folder / "photos").mkdir()
    told = run(sys.executable, *words, "photos", cwd=folder, PYTHONPATH=str(installed))
    assert (told.returncode, told.stderr.count("\n")) == (2, 1), told.stderr
    assert "holds no image to judge" in told.stderr


@pytest.mark.slow
def test_python_finds_the_public_names_in_such_a_folder(installed: Path, folder: Path) -> None:
    code = (
        "import agentic_iqa, sys; print(sorted({'dspy', 'torch'} & set(sys.modules)))\n"
        "from agentic_iqa import AgenticIQA, Assessment, load; print(AgenticIQA().resources.settings.seed)"
    )
    told = run(sys.executable, "-c", code, cwd=folder, PYTHONPATH=str(installed))
    assert told.stdout.splitlines() == ["[]", "0"], told.stderr


def test_help_is_there_at_once_and_names_every_command(tmp_path: Path) -> None:
    def seconds() -> float:
        start = sum(os.times()[2:4])  # processor time of children
        told = run(sys.executable, "-m", "agentic_iqa", "--help", cwd=ROOT)
        assert all(f"  {name} " in told.stdout for name in COMMANDS), told.stderr
        return sum(os.times()[2:4]) - start

    assert min(seconds() for _ in range(3)) < 0.3


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, hint in ((["asess"], "'assess'"), (["data", "chek"], "'data check'"), (["--zzz"], "known")):
        assert main(words) == 2
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1)
        assert hint in told.err


def test_a_package_that_is_not_installed_is_one_line(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "one_command.py").write_text("import no_such_package.part\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(COMMANDS, "compile", ("one_command", ""))
    assert main(["compile"]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "compile: the package 'no_such_package' is not installed; `pip install .`" in told.err


def test_a_fault_of_ours_is_not_taken_for_a_missing_package(tmp_path, monkeypatch) -> None:
    (tmp_path / "another_command.py").write_text("import program.no_such_part\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(COMMANDS, "compile", ("another_command", ""))
    with pytest.raises(ModuleNotFoundError, match="no_such_part"):
        main(["compile"])


def test_a_command_speaks_of_itself_as_it_was_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate"]) == 2
    assert "`agentic-iqa calibrate quickstart-fr`" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["tools", "--help"])
    assert capsys.readouterr().out.startswith("usage: agentic-iqa tools [")
