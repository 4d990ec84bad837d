"""Every ready tool gives the same value for the same settings, and nearly the same for other batches and threads."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from program.common.settings import load_settings
from program.images.store import IMAGES
from program.tools import loading
from program.tools.loading import evaluate
from program.tools.registry import ToolRegistry, parameter_path
from program.tools.runner import ToolRunner

PARAMS = Path(__file__).resolve().parents[2] / "shared" / "data" / "params"
REGISTRY = ToolRegistry.load()
SETTINGS = load_settings(overrides={"cache": False, "tools": {"params_dir": PARAMS, "device": "cpu"}})
RUNNER = ToolRunner(SETTINGS, REGISTRY)
SLOW = {"ILNIQE"}
"""Ten seconds an image: left to a run by hand (same values twice and again, within 1e-3 with two threads)."""
FEWER_PIXELS = {"MAD": 112}
"""Tools of a second an image are read on a corner, of so many pixels a side."""
READY = [s for mode in ("FR", "NR") for s in RUNNER.ready(mode, expensive=True) if s.name not in SLOW]


@pytest.fixture(scope="module")
def scenes():
    """A 192 x 192 scene, and distorted copies from slight to severe."""
    rng = np.random.default_rng(3)
    layers = [s * gaussian_filter(rng.standard_normal((192, 192, 3)), (s, s, 0)) for s in (1, 3, 9)]
    clean = 128 + 45 * sum(layers) / np.std(sum(layers))
    copies = [
        clean + rng.normal(0, 6, clean.shape),
        gaussian_filter(clean, (2, 2, 0)),
        clean + rng.normal(0, 40, clean.shape),
    ]
    return [np.clip(p, 0, 255).astype(np.uint8) for p in (clean, *copies)]


@pytest.mark.slow
@pytest.mark.parametrize("spec", READY, ids=lambda spec: spec.name)
def test_readings_are_the_same_and_hardly_move_with_threads(spec, scenes, monkeypatch):
    clean, *copies = scenes
    parameters = parameter_path(spec, PARAMS)
    side = FEWER_PIXELS.get(spec.name)
    pairs = [(p[:side, :side], clean[:side, :side] if spec.mode == "FR" else None) for p in copies]

    def read(threads=1):
        tools = SETTINGS.tools.model_copy(update={"threads": threads})
        return [evaluate(spec, parameters, tools, *pair) for pair in pairs]

    first = read()
    assert np.isfinite(first).all()
    assert read() == first
    monkeypatch.setattr(loading, "_pools", {})
    assert read() == first  # with a model made again
    span = max(first) - min(first)
    assert span > 0
    assert np.abs(np.subtract(read(threads=2), first)).max() <= 1e-3 * span


@pytest.mark.slow
def test_another_process_gives_the_same_values(scenes, tmp_path):
    names = [spec.name for spec in READY if spec.cost == "cheap"]
    assert len(names) >= 10
    np.save(tmp_path / "scenes.npy", np.stack(scenes[:2]))
    code = """
import sys
from pathlib import Path
import numpy as np
from program.images.store import IMAGES
from program.common.settings import load_settings
from program.tools.runner import ToolRunner
clean, noisy = (IMAGES.add(p) for p in np.load(sys.argv[1]))
tools = {"params_dir": Path(sys.argv[2]), "device": "cpu"}
runner = ToolRunner(load_settings(overrides={"cache": False, "tools": tools}))
for name in sys.argv[3:]:
    print(repr(runner.measure(name, noisy, clean).raw))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "scenes.npy"), str(PARAMS), *names]
    root = Path(__file__).parents[1]
    out = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    noisy, clean = IMAGES.add(scenes[1]), IMAGES.add(scenes[0])
    assert out.stdout.split() == [repr(RUNNER.measure(name, noisy, clean).raw) for name in names]
