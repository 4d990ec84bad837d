"""Running tools: readiness, values, cache, errors."""

import importlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from program.common.errors import ToolError
from program.images.store import IMAGES
from program.tools import __main__ as listing
from program.tools import loading, registry
from program.tools.calibration import Calibration
from program.tools.registry import ToolRegistry
from tests.pictures import tool_runner

REGISTRY = ToolRegistry.load()
FAST = ("PSNR", "GMSD", "PIQE")
PARAMETERS = ("niqe_modelparameters.mat", "brisque_svm_weights.pth", "ILNIQE_templateModel.mat")


@pytest.fixture(autouse=True)
def _no_downloads_around(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Paths of a reference, a noisy copy, a blurred copy and a smaller picture."""
    from scipy.ndimage import gaussian_filter

    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(7)
    layers = [s * gaussian_filter(rng.standard_normal((120, 160, 3)), (s, s, 0)) for s in (1, 3, 9)]
    scene = np.clip(128 + 50 * sum(layers) / np.std(sum(layers)), 0, 255)
    made = {
        "reference": scene,
        "noisy": scene + 15 * rng.standard_normal(scene.shape),
        "blurred": gaussian_filter(scene, (2, 2, 0)),
        "small": scene[:100, :90],
        "tiny": scene[:10, :10],
    }
    paths = {}
    for name, pixels in made.items():
        paths[name] = folder / f"{name}.png"
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(paths[name])
    return paths


def _refs(pictures, *names):
    return [IMAGES.add(pictures[name]) for name in names]


@pytest.mark.parametrize("name", FAST)
def test_raw_values_are_those_of_pyiqa_on_the_files(tmp_path, pictures, name):
    import pyiqa
    import torch

    spec = REGISTRY.get(name)
    image, reference = _refs(pictures, "noisy", "reference")
    result = tool_runner(tmp_path).measure(name, image, reference)
    torch.set_num_threads(1)
    paths = [str(pictures["noisy"])] + ([str(pictures["reference"])] if spec.mode == "FR" else [])
    assert result.error is None
    assert result.raw == float(pyiqa.create_metric(spec.pyiqa, device=torch.device("cpu"))(*paths))
    assert 1 <= result.score <= 5
    assert result.score == Calibration.load().score(name, result.raw)
    assert not result.cached


def test_an_image_equal_to_its_reference_scores_5(tmp_path, pictures):
    (reference,) = _refs(pictures, "reference")
    for name in ("PSNR", "GMSD"):
        result = tool_runner(tmp_path).measure(name, reference, reference)
        assert result.raw == pytest.approx(REGISTRY.get(name).identity, abs=1e-4)
        assert result.score == pytest.approx(5.0, abs=1e-6)


def test_the_second_reading_comes_from_the_cache_and_is_the_same(tmp_path, pictures):
    image, reference = _refs(pictures, "noisy", "reference")
    runner = tool_runner(tmp_path)
    first, second = (runner.measure("GMSD", image, reference) for _ in range(2))
    fresh = tool_runner().measure("GMSD", image, reference)
    assert (first.cached, second.cached, fresh.cached) == (False, True, False)
    assert first.raw == second.raw == fresh.raw
    assert second.seconds < first.seconds


def test_the_cache_tells_apart_what_a_value_depends_on(tmp_path, pictures):
    noisy, blurred, reference = _refs(pictures, "noisy", "blurred", "reference")
    runner = tool_runner(tmp_path)
    boxed = (noisy, reference, (0, 0, 64, 64))
    different = [("GMSD", noisy, reference), ("PSNR", noisy, reference), ("GMSD", blurred, reference),
                 ("GMSD", noisy, blurred), ("GMSD", *boxed), ("PIQE", noisy)]  # fmt: skip
    assert [runner.measure(*each).cached for each in different] == [False] * 6
    assert [tool_runner(tmp_path).measure(*each).cached for each in different] == [True] * 6


def test_a_new_calibration_needs_no_new_reading(tmp_path, pictures):
    image, reference = _refs(pictures, "noisy", "reference")
    without_maps = tool_runner(tmp_path)
    without_maps.calibration = Calibration()
    bare = without_maps.measure("PSNR", image, reference)
    assert bare.raw is not None
    assert bare.score is None
    assert "has no map to 1..5" in bare.error
    again = tool_runner(tmp_path).measure("PSNR", image, reference)
    assert again.cached
    assert again.raw == bare.raw
    assert again.score is not None


def test_the_category_moves_the_score_and_not_the_reading(tmp_path, pictures):
    image, reference = _refs(pictures, "noisy", "reference")
    runner = tool_runner(tmp_path)
    plain, noise, odd = (runner.measure("PSNR", image, reference, category=c) for c in (None, "Noise", "no such word"))
    assert plain.raw == noise.raw
    assert plain.score == odd.score != noise.score


def test_a_cached_reading_imports_no_torch(tmp_path, pictures):
    image, reference = _refs(pictures, "noisy", "reference")
    first = tool_runner(tmp_path).measure("GMSD", image, reference)
    code = f"""
import json, sys
from pathlib import Path
from program.images.store import IMAGES
from program.common.settings import load_settings
from program.tools.runner import ToolRunner
runner = ToolRunner(load_settings(overrides={{"cache_dir": {str(tmp_path)!r}, "tools": {{"device": "cpu"}}}}))
runner.ready("FR"); runner.unavailable()
r = runner.measure("gmsd", IMAGES.add({str(pictures["noisy"])!r}), IMAGES.add({str(pictures["reference"])!r}))
print(json.dumps([r.raw, r.cached, r.score, sorted({{"torch", "pyiqa", "sklearn", "scipy"}} & set(sys.modules))]))
"""
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )
    assert json.loads(out.stdout) == [first.raw, True, first.score, []]


def test_threads_get_the_values_of_one_thread(tmp_path, pictures):
    images = _refs(pictures, "noisy", "blurred", "reference", "small")
    alone = [tool_runner().measure("PIQE", image).raw for image in images]
    runner = tool_runner()
    with ThreadPoolExecutor(4) as executor:
        together = list(executor.map(lambda image: runner.measure("PIQE", image).raw, images * 6))
    assert together == alone * 6


def test_no_more_models_are_made_than_cores_and_they_are_reused(tmp_path, pictures, monkeypatch):
    made = []
    monkeypatch.setattr("program.tools.loading._pools", {})
    make = loading._make
    monkeypatch.setattr(loading, "_make", lambda *a, **k: made.append(a) or make(*a, **k))
    runner = tool_runner()
    image, reference = _refs(pictures, "noisy", "reference")
    for _ in range(3):
        assert runner.measure("PSNR", image, reference).error is None
    assert len(made) == 1


def test_a_region_is_cut_out_and_grown_to_the_smallest_size(tmp_path, pictures):
    image, reference = _refs(pictures, "noisy", "reference")
    runner = tool_runner(tmp_path)
    pixels = [IMAGES.pixels(ref)[20:84, 30:100] for ref in (image, reference)]
    cut = [IMAGES.add(p.copy()) for p in pixels]
    result = runner.measure("GMSD", image, reference, box=(30, 20, 100, 84))
    assert result.raw == runner.measure("GMSD", *cut).raw
    assert result.box == (30, 20, 100, 84)
    grown = runner.measure("VIF", image, reference, box=(2, 2, 6, 6)).box
    assert grown[2] - grown[0] == grown[3] - grown[1] == REGISTRY.get("VIF").minimum_size_px
    assert runner.measure("GMSD", image, reference, box=(-5, -5, 999, 999)).box is None


def test_an_nr_tool_ignores_the_reference(tmp_path, pictures):
    image, reference, small = _refs(pictures, "noisy", "reference", "small")
    runner = tool_runner(tmp_path)
    first, second, third = (runner.measure("PIQE", image, r) for r in (None, reference, small))
    assert (second.cached, third.cached) == (True, True)
    assert first.raw == second.raw == third.raw


@pytest.mark.parametrize(
    ("tool", "names", "options", "message"),
    [
        ("VIFF", ["noisy"], {}, r"tool 'VIFF': is not known here \(did you mean 'VIF'\?\)"),
        ("psnr", ["noisy"], {}, "tool 'PSNR': needs a reference image"),
        ("PSNR", ["noisy", "small"], {}, r"reference 'small\.png': is 90x100, image 'noisy\.png' is 160x120"),
        (
            "MS-SSIM",
            ["noisy", "reference"],
            {},
            r"'MS-SSIM': image 'noisy\.png' is 160x120, it needs at least 161 pixels",
        ),
        ("GMSD", ["tiny", "tiny"], {}, "is 10x10, it needs at least"),
        ("NIQE", ["noisy"], {}, "is 160x120, it needs at least 192 pixels"),
        ("BRISQUE", ["noisy"], {}, r"'brisque_svm_weights\.pth' not found.*tools\.params_dir or AGENTICIQA_PARAMS_DIR"),
        ("GMSD", ["noisy", "reference"], {"box": (500, 0, 600, 10)}, "region .* lies outside the 160x120 image"),
    ],
)
def test_what_cannot_be_measured_is_a_line_and_not_an_exception(tmp_path, pictures, tool, names, options, message):
    runner = tool_runner(tmp_path)
    result = runner.measure(tool, *_refs(pictures, *names), **options)
    assert result.raw is None
    assert result.score is None
    with pytest.raises(ToolError, match=message):
        raise ToolError(result.error)
    assert "\n" not in result.error


def test_values_that_are_not_numbers_are_errors_and_not_cached(tmp_path, pictures, monkeypatch):
    image, reference = _refs(pictures, "noisy", "reference")
    runner = tool_runner(tmp_path)
    import torch

    monkeypatch.setattr("program.tools.loading._pools", {})
    monkeypatch.setattr(loading, "_make", lambda *a, **k: lambda *inputs: torch.tensor([float("nan")]))
    assert "returned nan" in runner.measure("GMSD", image, reference).error
    monkeypatch.setattr("program.tools.loading._pools", {})
    monkeypatch.undo()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert runner.measure("GMSD", image, reference).raw is not None


def test_a_crashing_tool_is_a_line(tmp_path, pictures, monkeypatch):
    def crash(*inputs):
        raise RuntimeError("size mismatch\n  at layer 3")

    monkeypatch.setattr("program.tools.loading._pools", {})
    monkeypatch.setattr(loading, "_make", lambda *a, **k: crash)
    result = tool_runner(tmp_path).measure("PIQE", *_refs(pictures, "noisy"))
    assert result.error == "tool 'PIQE': failed on 'noisy.png' (size mismatch at layer 3); use another tool"


def test_readiness_names_the_missing_file_and_the_setting(tmp_path):
    runner = tool_runner(tmp_path, params_dir=tmp_path)
    assert {s.name for s in runner.ready("NR")} == {"LiteNR", "PIQE"}
    closed_form = {s.name for s in REGISTRY.specs() if s.mode == "FR" and s.needs == "none"}
    assert {s.name for s in runner.ready("FR")} == closed_form - {"SSIM", "MS-SSIM", "CW-SSIM", "MAD"}
    assert {s.name for s in runner.ready("FR", expensive=True)} == closed_form
    missing = runner.unavailable()
    assert set(missing) == {s.name for s in REGISTRY.specs() if s.needs != "none"}
    for reason in (missing[name] for name in ("NIQE", "BRISQUE", "ILNIQE")):
        assert str(tmp_path) in reason
        assert "tools.params_dir or AGENTICIQA_PARAMS_DIR" in reason
    for name in PARAMETERS:
        (tmp_path / name).write_bytes(b"x")
    assert {s.name for s in runner.ready("NR")} == {"LiteNR", "PIQE", "NIQE", "BRISQUE"}
    assert {s.name for s in runner.ready("NR", expensive=True)} == {"LiteNR", "PIQE", "NIQE", "BRISQUE", "ILNIQE"}


def test_files_that_pyiqa_keeps_are_found(tmp_path, monkeypatch):
    folder = tmp_path / "home" / "hub" / "pyiqa"
    folder.mkdir(parents=True)
    (folder / PARAMETERS[0]).write_bytes(b"x")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    assert "NIQE" not in tool_runner(tmp_path).unavailable()


def test_a_parameter_file_that_would_run_code_is_refused(tmp_path, pictures, monkeypatch):
    import pickle

    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    monkeypatch.setattr(registry, "failures", {})
    (tmp_path / PARAMETERS[1]).write_bytes(pickle.dumps(Trap()))
    runner = tool_runner(tmp_path, params_dir=tmp_path)
    result = runner.measure("BRISQUE", *_refs(pictures, "noisy"))
    assert "cannot be loaded (Weights only load failed" in result.error
    assert not (tmp_path / "sprung").exists()
    # Reported, and from then on left out of what is ready.
    assert "BRISQUE" in runner.unavailable()


def test_a_broken_torchvision_is_explained(tmp_path, pictures, monkeypatch):
    real = importlib.import_module

    def broken(name, *more):
        if name == "pyiqa":
            raise RuntimeError("operator torchvision::nms does not exist")
        return real(name, *more)

    monkeypatch.setattr("program.tools.loading._pools", {})
    monkeypatch.setattr(registry, "failures", {})
    monkeypatch.setattr(importlib, "import_module", broken)
    runner = tool_runner(tmp_path)
    result = runner.measure("PIQE", *_refs(pictures, "noisy"))
    assert "torch and torchvision are of different builds" in result.error
    assert "reinstall both" in result.error
    assert [spec.name for spec in runner.ready("NR")] == ["LiteNR"]


def test_a_device_that_is_not_there_is_named(tmp_path, pictures):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    result = tool_runner(tmp_path, device="cuda").measure("PIQE", *_refs(pictures, "noisy"))
    assert "torch sees no CUDA device" in result.error
    assert tool_runner(tmp_path, device="auto").measure("PIQE", *_refs(pictures, "noisy")).error is None


def test_readings_of_a_device_and_of_the_processor_are_never_mixed(tmp_path, pictures, monkeypatch):
    """Some differ by a tenth; a GPU can be there and hidden, or torch be a build without CUDA."""
    import torch

    from program.tools import runner

    def seen(device, tool="PIQE"):
        reading = tool_runner(tmp_path, device=device).measure(tool, image)
        return reading.raw, reading.cached

    image, values = IMAGES.add(pictures["noisy"]), iter((1.0, 2.0, 3.0))
    monkeypatch.setattr(registry, "_has_accelerator", lambda: True)
    monkeypatch.setattr(runner, "evaluate", lambda *_: next(values))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [seen("auto"), seen("auto"), seen("cpu")] == [(1, False), (1, True), (1, True)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [seen("auto"), seen("auto"), seen("cuda"), seen("cpu")] == [(2, False), (2, True), (2, True), (1, True)]
    # What always runs on the processor is read once.
    assert [seen(device, "LiteNR") for device in ("cuda", "cpu", "auto")] == [(3, False), (3, True), (3, True)]


def test_pyiqa_convolves_in_full_precision_on_a_cuda_device(monkeypatch):
    import pyiqa
    import torch

    cudnn, found = torch.backends.cudnn, []
    for name in ("allow_tf32", "deterministic", "flags"):
        monkeypatch.setattr(cudnn, name, getattr(cudnn, name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    metric = pyiqa.create_metric("psnr", device=torch.device("cpu"))
    metric.net.register_forward_hook(lambda *_: found.append((cudnn.allow_tf32, cudnn.deterministic)))
    for _ in range(2):
        assert loading.device_of("auto", REGISTRY.get("PSNR")) == "cuda"
        metric(torch.zeros(1, 3, 32, 32), torch.zeros(1, 3, 32, 32))
    assert found == [(False, True)] * 2
    assert (cudnn.allow_tf32, cudnn.deterministic) == (False, True)


@pytest.mark.parametrize(("tool", "low", "high"), [("NIQE", 1, 30), ("BRISQUE", -20, 150)])
def test_tools_with_parameter_files_run_on_human_scored_images(tmp_path, shared_data, tool, low, high):
    params = shared_data / "params"
    image = IMAGES.add(sorted((shared_data / "live" / "ref").iterdir())[0])
    result = tool_runner(tmp_path, params_dir=params).measure(tool, image, box=(0, 0, 256, 256))
    assert result.error is None
    assert low < result.raw < high


def test_the_list_says_what_is_ready_and_why_not(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert listing.main(["--all"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in REGISTRY.names() if name[-4:] != "-piq")
    assert "AGENTICIQA_PARAMS_DIR" in shown
    assert listing.main([]) == 0
    shown = capsys.readouterr().out
    assert "VIF" in shown
    assert "NIQE" not in shown.replace("PIQE", "")
    assert listing.main(["--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(REGISTRY.names())
    assert rows["VIF"]["ready"]
    assert not rows["NIQE"]["ready"]
    assert "niqe_modelparameters.mat" in rows["NIQE"]["reason"]


@pytest.mark.slow
def test_the_check_runs_every_ready_tool(capsys):
    assert listing.main(["--check", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len([row for row in rows if row["ready"]]) >= 15
    for row in rows:
        assert (row["raw"] is not None) == row["ready"]
        assert row["error"] is None
