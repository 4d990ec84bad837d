"""docs/tools.md: every block runs, and what it says of the registry holds."""

import re
import shlex

import numpy as np
import pytest
import yaml
from PIL import Image

from agentic_iqa.__main__ import main
from data.quickstart import load_photograph
from program.common.settings import load_settings
from program.images.store import IMAGES
from program.tools.registry import ToolRegistry
from program.tools.runner import ToolRunner
from tests.pages import lines_of, page
from tests.tables import as_lines

TEXT = page("docs/tools.md")
LINES = lines_of(TEXT)
REGISTRY = ToolRegistry.load()


@pytest.fixture
def folder(tmp_path, rng, monkeypatch):
    scene = np.kron(rng.integers(0, 256, (12, 16, 3)), np.ones((8, 8, 1)))
    lines = []
    for level in range(12):
        noisy = np.clip(scene + 4 * level * rng.standard_normal(scene.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(tmp_path / f"{level}.png")
        lines.append({"id": str(level), "image": f"{level}.png", "reference": "0.png", "mos": 4.8 - level / 4})
    (tmp_path / "manifest.jsonl").write_text(as_lines(lines), "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", LINES)
def test_every_line_runs(folder, capsys, line):
    words = shlex.split(line)
    assert words[0] == "agentic-iqa"
    assert main(words[1:]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_functions_of_torchmetrics_are_tools_by_an_entry(tmp_path):
    import torch

    functional = pytest.importorskip("torchmetrics.functional.image", reason="torchmetrics is not installed")
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    entries = yaml.safe_load(block)
    assert entries
    (tmp_path / "tools.yaml").write_text(yaml.safe_dump({"tools": entries}), "utf-8")
    registry = ToolRegistry.load(tmp_path / "tools.yaml")
    runner = ToolRunner(load_settings(overrides={"cache_dir": tmp_path, "tools": {"device": "cpu"}}), registry)
    photo = load_photograph("coffee")
    Image.fromarray(photo).save(tmp_path / "reference.png")
    Image.fromarray(photo).save(tmp_path / "image.jpg", quality=20)
    paths = tmp_path / "image.jpg", tmp_path / "reference.png"
    tensors = [torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)[None] / 255 for path in paths]
    for name, entry in entries.items():
        found = runner.measure(name, *map(IMAGES.add, paths))
        value = getattr(functional, entry["python"].partition(":")[2])(*tensors, **entry.get("options", {}))
        assert 0.1 < found.raw == pytest.approx(float(value), rel=1e-6)
        assert runner.measure(name, *map(IMAGES.add, paths[1:] * 2)).raw == pytest.approx(entry["identity"], abs=1e-6)


def test_the_table_of_needs_is_the_registrys():
    assert f"holds {len(REGISTRY.names())}:" in TEXT
    (nothing,) = re.findall(r"^\| nothing \| (.*?) \|", TEXT, re.MULTILINE)
    assert set(nothing.split(", ")) == {spec.name for spec in REGISTRY.specs() if spec.needs == "none"}
    (parameters,) = re.findall(r"^\| a small parameter file \| (.*?) \|", TEXT, re.MULTILINE)
    assert set(parameters.split(", ")) == {spec.name for spec in REGISTRY.specs() if spec.needs == "parameters"}
    assert len([spec for spec in REGISTRY.specs() if spec.needs == "weights"]) == 19
