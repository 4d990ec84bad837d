"""docs/tools.md: every block runs, and what it says of the registry holds."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from agentic_iqa.__main__ import main
from program.tools.registry import ToolRegistry

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "tools.md").read_text("utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]
REGISTRY = ToolRegistry.load()


@pytest.fixture
def folder(tmp_path, rng, monkeypatch):
    scene = np.kron(rng.integers(0, 256, (12, 16, 3)), np.ones((8, 8, 1)))
    lines = []
    for level in range(12):
        noisy = np.clip(scene + 4 * level * rng.standard_normal(scene.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(tmp_path / f"{level}.png")
        lines.append({"id": str(level), "image": f"{level}.png", "reference": "0.png", "mos": 4.8 - level / 4})
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", LINES)
def test_every_line_runs(folder, capsys, line):
    words = shlex.split(line)
    assert words[0] == "agentic-iqa"
    assert main(words[1:]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.strip()


def test_the_table_of_needs_is_the_registrys():
    assert f"holds {len(REGISTRY.names())}:" in TEXT
    (nothing,) = re.findall(r"^\| nothing \| (.*?) \|", TEXT, re.MULTILINE)
    assert set(nothing.split(", ")) == {spec.name for spec in REGISTRY.specs() if spec.needs == "none"}
    (parameters,) = re.findall(r"^\| a small parameter file \| (.*?) \|", TEXT, re.MULTILINE)
    assert set(parameters.split(", ")) == {spec.name for spec in REGISTRY.specs() if spec.needs == "parameters"}
    assert len([spec for spec in REGISTRY.specs() if spec.needs == "weights"]) == 19
