"""What other packages offer: the example package, installed beside, is known by name; a broken one ends nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
BROKEN = """[agentic_iqa.tools]
Missing = no_such_module:TOOL
Wrong = json:dumps
[agentic_iqa.datasets]
wrong = json:dumps
[agentic_iqa.optimizers]
wrong = json:dumps
"""


def run(*words: str, cwd: Path, beside: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(beside), str(ROOT)])
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    source, target = tmp_path_factory.mktemp("source") / "own_parts", tmp_path_factory.mktemp("target")
    shutil.copytree(ROOT / "examples" / "own_parts", source)
    words = ("install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    installed = run("-m", "pip", *words, "--target", str(target), str(source), cwd=source, beside=target)
    assert installed.returncode == 0, installed.stderr
    return target


def test_a_tool_an_optimizer_and_a_dataset_come_from_another_package(beside: Path, tmp_path: Path, rng) -> None:
    Image.fromarray(rng.integers(0, 256, (32, 48, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "scores.csv").write_text("image,mos\na.png,3.5\n", "utf-8")
    code = (
        "import sys; from agentic_iqa.__main__ import main\n"
        "assert main(['tools', 'colourfulness', '--check', '--json']) == 0\n"
        "words = ['my-lab', '--root', '.', '--fractions', '1,0,0', '--out', 'm.jsonl', '--json']\n"
        "assert main(['data', 'prepare', *words]) == 0\n"
        "from optimizers.recipes import recipe_named; print(recipe_named('first-demo').name)"
    )
    told = run("-c", code, cwd=tmp_path, beside=beside)
    assert told.returncode == 0, told.stderr
    tools, *prepared, optimizer = told.stdout.splitlines()
    (tool,) = json.loads(tools)
    assert (tool["name"], tool["library"], tool["ready"], tool["error"]) == ("Colourfulness", "own-parts", True, None)
    assert tool["raw"] > 0
    assert tool["deterministic"]
    assert json.loads("\n".join(prepared))["samples"] == 1
    assert optimizer == "first-demo"


def test_a_package_that_offers_nonsense_is_told_and_left_out(tmp_path: Path) -> None:
    facts = tmp_path / "broken-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n", "utf-8")
    (facts / "entry_points.txt").write_text(BROKEN, "utf-8")
    code = (
        "import logging; logging.basicConfig(format='%(message)s')\n"
        "from data.catalogue import catalogue; from program.tools.registry import ToolRegistry\n"
        "from optimizers.recipes import recipe_named; from program.common.errors import InputError\n"
        "assert len(ToolRegistry.load().names()) >= 30 and 'live' in catalogue() and 'wrong' not in catalogue()\n"
        "try: recipe_named('wrong')\nexcept InputError as error: print(error)"
    )
    told = run("-c", code, cwd=tmp_path, beside=tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stderr.count("left out") == len(told.stderr.splitlines()) == 4
    assert "'wrong'" in told.stdout
