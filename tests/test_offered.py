"""What other packages offer: the example package, installed beside, is known by name; a broken one ends nothing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.pictures import noise

pytestmark = pytest.mark.slow  # another package is installed, and a compile run in a process of its own
ROOT = Path(__file__).resolve().parents[1]
BROKEN = """[agentic_iqa.tools]
Missing = no_such_module:TOOL
Wrong = json:dumps
[agentic_iqa.datasets]
wrong = json:dumps
[agentic_iqa.optimizers]
wrong = json:dumps
"""


# What is wrong is told first: a command shows no warnings.
CODE = """
import logging
logging.basicConfig(format="%(message)s")
from agentic_iqa.__main__ import main
from data.catalogue import catalogue
from optimizers.recipes import recipe_named
from program.common.errors import InputError
from program.tools.registry import ToolRegistry
assert len(ToolRegistry.load().names()) >= 30 and "live" in catalogue() and "wrong" not in catalogue()
try:
    recipe_named("wrong")
except InputError as error:
    print(error)
assert main(["tools", "colourfulness", "--check", "--json"]) == 0
words = ["my-lab", "--root", ".", "--fractions", "1,0,0", "--out", "m.jsonl", "--json"]
assert main(["data", "prepare", *words]) == 0
print(recipe_named("first-demo").name)
"""


def run(*words: str, cwd: Path, beside: Sequence[Path]) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(map(str, [*beside, ROOT]))
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def own_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    source, target = tmp_path_factory.mktemp("source") / "own_parts", tmp_path_factory.mktemp("target")
    shutil.copytree(ROOT / "examples" / "own_parts", source)
    words = ("install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    installed = run("-m", "pip", *words, "--target", str(target), str(source), cwd=source, beside=[target])
    assert installed.returncode == 0, installed.stderr
    return target


@pytest.fixture(scope="module")
def told(own_parts: Path, tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """What one process says that finds the example package and a broken one: to start costs more than all it does."""
    folder, broken = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("broken")
    facts = broken / "broken-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n", "utf-8")
    (facts / "entry_points.txt").write_text(BROKEN, "utf-8")
    pixels = noise(np.random.default_rng(20260101), 32, 48)
    Image.fromarray(pixels).save(folder / "a.png")
    (folder / "scores.csv").write_text("image,mos\na.png,3.5\n", "utf-8")
    done = run("-c", CODE, cwd=folder, beside=[own_parts, broken])
    assert done.returncode == 0, done.stderr
    return done


def test_a_tool_an_optimizer_and_a_dataset_come_from_another_package(told) -> None:
    _, tools, *prepared, optimizer = told.stdout.splitlines()
    (tool,) = json.loads(tools)
    assert (tool["name"], tool["library"], tool["ready"], tool["error"]) == ("Colourfulness", "own-parts", True, None)
    assert tool["raw"] > 0
    assert tool["deterministic"]
    assert json.loads("\n".join(prepared))["samples"] == 1
    assert optimizer == "first-demo"


def test_a_package_that_offers_nonsense_is_told_and_left_out(told) -> None:
    assert told.stderr.count("left out") == len(told.stderr.splitlines()) == 4
    assert "'wrong'" in told.stdout.splitlines()[0]
