"""Tools at their limits: large images, references of another size, tools that hang, inputs that are written to."""

import gc
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from program.common.errors import ToolError
from program.common.settings import load_settings
from program.images.store import IMAGES
from program.tools import loading, registry
from program.tools.registry import ToolRegistry
from program.tools.runner import ToolRunner
from tests.pictures import tool_runner

REGISTRY = ToolRegistry.load()


@pytest.fixture
def scene(rng):
    """A smooth 300 x 420 scene and a noisy copy."""
    from scipy.ndimage import gaussian_filter

    base = gaussian_filter(rng.standard_normal((300, 420, 3)), (3, 3, 0))
    clean = np.clip(128 + 300 * base, 0, 255).astype(np.uint8)
    noisy = np.clip(clean + 12 * rng.standard_normal(clean.shape), 0, 255).astype(np.uint8)
    return noisy, clean


@pytest.fixture
def alone(monkeypatch):
    """No model and no failure of another test, and none left for the next."""
    monkeypatch.setattr(loading, "_pools", {})
    monkeypatch.setattr(registry, "failures", {})
    monkeypatch.setattr(registry, "loaded", set())
    monkeypatch.setattr(registry, "hanging", {})
    yield
    deadline = time.monotonic() + 20
    while any(not work.done() for work in registry.hanging.values()) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_work_that_fails_leaves_none_of_its_memory_behind():
    """A device that ran out of memory is full until it does: waiting for Python's search for cycles is too late."""

    import torch

    made = []

    def work():
        tensor = torch.ones(8)
        made.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    gc.disable()
    try:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            loading.within(20, work)
        del caught
        deadline = time.monotonic() + 5
        while made[0]() is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert made[0]() is None
    finally:
        gc.enable()


def test_a_device_that_is_full_now_loses_no_tool_for_good(alone, scene, monkeypatch):
    import pyiqa
    import torch

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    image, reference = (IMAGES.add(p) for p in scene)
    runner = tool_runner()
    with monkeypatch.context() as patch:
        patch.setattr(pyiqa, "create_metric", full)
        error = runner.measure("NLPD", image, reference).error
    assert error == "tool 'NLPD': cpu has no memory left to load it; use another tool"
    assert runner.measure("NLPD", image, reference).error is None


def test_a_large_image_is_measured_averaged_down_and_says_so(scene):
    noisy, clean = (IMAGES.add(p) for p in scene)
    small = [np.asarray(Image.fromarray(p).reduce(2)) for p in scene]
    expected = tool_runner().measure("GMSD", *(IMAGES.add(p) for p in small))
    found = tool_runner(reduce_above_px=150 * 210).measure("GMSD", noisy, clean)
    assert found.raw == expected.raw
    assert found.note == "measured at 210x150, each pixel the mean of 2x2"
    assert expected.note is None
    assert tool_runner().measure("GMSD", noisy, clean).raw != found.raw


def test_a_region_is_averaged_down_only_when_it_is_large_itself(scene):
    noisy, clean = (IMAGES.add(p) for p in scene)
    runner = tool_runner(reduce_above_px=150 * 210)
    box = (10.0, 20.0, 130.0, 120.0)
    found = runner.measure("GMSD", noisy, clean, box=box)
    assert found.note is None
    assert found.raw == tool_runner().measure("GMSD", *(IMAGES.add(p[20:120, 10:130].copy()) for p in scene)).raw
    large = runner.measure("GMSD", noisy, clean, box=(0, 0, 400, 300))
    assert large.note == "measured at 200x150, each pixel the mean of 2x2"


def test_an_image_too_narrow_once_averaged_down_is_a_line(scene):
    noisy = IMAGES.add(scene[0])
    error = tool_runner(reduce_above_px=70 * 50).measure("BRISQUE", noisy).error
    assert "is measured at" in error or "not found" in error
    narrow = IMAGES.add(np.ascontiguousarray(scene[0][:20]))
    error = tool_runner(reduce_above_px=4200).measure("FSIM", narrow, narrow).error
    assert "'FSIM': " in error
    assert "is measured at 210x10, it needs at least 16 pixels a side; raise tools.reduce_above_px" in error


def test_a_reduced_reading_has_a_key_of_its_own(scene, tmp_path):
    noisy, clean = (IMAGES.add(p) for p in scene)
    full = tool_runner(tmp_path).measure("GMSD", noisy, clean)
    reduced = tool_runner(tmp_path, reduce_above_px=150 * 210).measure("GMSD", noisy, clean)
    assert not reduced.cached
    assert reduced.raw != full.raw
    assert tool_runner(tmp_path, threads=2).measure("GMSD", noisy, clean).cached is False


def test_a_reference_of_another_size_is_refused_or_resampled_and_recorded(scene, tmp_path):
    noisy, clean = scene
    other = Image.fromarray(clean).resize((210, 150))
    image, reference = IMAGES.add(noisy), IMAGES.add(other)
    refused = tool_runner().measure("GMSD", image, reference)
    assert "is 210x150" in refused.error
    assert "or set tools.resize_reference" in refused.error
    fitted = np.asarray(other.resize((420, 300), Image.Resampling.LANCZOS))
    expected = tool_runner().measure("GMSD", image, IMAGES.add(fitted)).raw
    found = tool_runner(tmp_path, resize_reference=True).measure("GMSD", image, reference)
    assert found.raw == expected
    assert found.note == f"reference {reference.name!r} resampled from 210x150 to 420x300"


def test_a_tool_that_hangs_is_recorded_and_left_out(alone, scene, monkeypatch):
    import torch

    release = threading.Event()
    monkeypatch.setattr(loading, "_make", lambda *a, **k: lambda *inputs: release.wait(60) or torch.zeros(1))
    runner = tool_runner(timeout_s=0.2)
    image, reference = (IMAGES.add(p) for p in scene)
    started = time.perf_counter()
    hung = runner.measure("GMSD", image, reference)
    assert hung.raw is None
    assert hung.error.startswith("tool 'GMSD': did not finish within 0.2 s on 420x300 pixels and is left out")
    again = runner.measure("GMSD", image, reference)
    assert again.error == hung.error
    assert time.perf_counter() - started < 20
    assert "GMSD" not in {spec.name for spec in runner.ready("FR")}
    assert "left out" in runner.unavailable()["GMSD"]
    release.set()


def test_a_hung_tool_does_not_block_the_other_tools_nor_its_own_queue(alone, scene, monkeypatch):
    import torch

    release, real = threading.Event(), loading._make

    def make(spec, *rest, **options):
        if spec.name == "PIQE":
            return lambda *inputs: release.wait(60) or torch.zeros(1)
        return real(spec, *rest, **options)

    monkeypatch.setattr(loading, "_make", make)
    image, reference = (IMAGES.add(p) for p in scene)
    runner = tool_runner(timeout_s=1.0)
    assert runner.measure("PSNR", image, reference).error is None  # loads the library outside the time limit
    with ThreadPoolExecutor(6) as pool:
        hung = [pool.submit(runner.measure, "PIQE", image) for _ in range(6)]
        assert runner.measure("PSNR", image, reference).raw is not None
        assert all("left out" in job.result(30).error for job in hung)
    release.set()


def test_a_tool_whose_loading_hangs_is_left_out_and_output_still_comes_out(alone, scene, monkeypatch, capsys):
    import torch

    release, entered, real = threading.Event(), threading.Event(), loading._import

    class Library:
        """pyiqa as far as loading goes: NIQE's weights lie on a disk that does not answer."""

        @staticmethod
        def create_metric(name, **_):
            if name == "piqe":
                entered.set()
                release.wait(60)
            return lambda *inputs: torch.zeros(1)

    monkeypatch.setattr(loading, "_import", lambda library: Library if library == "pyiqa" else real(library))
    image, reference = (IMAGES.add(p) for p in scene)
    runner = tool_runner(load_timeout_s=0.5)
    loaded = runner.measure("GMSD", image, reference)
    started = time.perf_counter()
    hung = runner.measure("PIQE", image)
    assert entered.is_set()
    assert hung.error.startswith("tool 'PIQE': did not load within 0.5 s and is left out from here on")
    sys.stdout.write("the result\n")
    assert capsys.readouterr().out == "the result\n"
    other = runner.measure("PSNR", image, reference)
    assert other.error.startswith("tool 'PSNR': cannot be loaded while the loading of 'PIQE' hangs")
    assert [spec.name for spec in runner.ready("FR") if spec.library == "pyiqa"] == ["GMSD"]
    assert runner.measure("GMSD", image, reference).raw == loaded.raw
    assert time.perf_counter() - started < 20
    assert "PIQE" not in {spec.name for spec in runner.ready("NR")}
    release.set()
    for _ in range(100):
        if (late := runner.measure("PSNR", image, reference)).error is None:
            break
        time.sleep(0.05)
    assert late.error is None


def test_a_library_that_hangs_when_it_is_imported_keeps_nobody_waiting(alone, scene, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(loading, "_import", lambda library: release.wait(60))
    image, reference = (IMAGES.add(p) for p in scene)
    runner = tool_runner(load_timeout_s=0.3)
    started = time.perf_counter()
    errors = [runner.measure(name, image, reference).error for name in ("GMSD", "PSNR", "VIF")]
    assert "did not load within 0.3 s" in errors[0]
    assert all("while the loading of 'GMSD' hangs" in error for error in errors[1:])
    assert time.perf_counter() - started < 10
    release.set()


def test_two_threads_that_want_a_tool_whose_loading_hangs_wait_once(alone, scene, monkeypatch):
    release, calls = threading.Event(), []

    def make(spec, *_, **__):
        calls.append(spec.name)
        release.wait(60)

    monkeypatch.setattr(loading, "_make", make)
    image, reference = (IMAGES.add(p) for p in scene)
    runner = tool_runner(load_timeout_s=0.5)
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(runner.measure, "GMSD", image, reference, (0, 0, 64 + n, 64)) for n in range(4)]
        assert all("left out" in job.result(20).error for job in found)
    assert calls == ["GMSD"]
    release.set()


def test_a_tool_that_writes_into_its_input_spoils_no_other_reading(alone, scene, monkeypatch):
    def spoil(tensor, *_):
        tensor.mul_(0)
        return tensor.sum().reshape(1)

    image, reference = (IMAGES.add(p) for p in scene)
    right = tool_runner().measure("PSNR", image, reference).raw
    monkeypatch.setattr(loading, "_pools", {})
    real = loading._make
    monkeypatch.setattr(loading, "_make", lambda spec, *a, **k: spoil if spec.name == "PIQE" else real(spec, *a, **k))
    assert tool_runner().measure("PIQE", image).raw == 0
    assert tool_runner().measure("PSNR", image, reference).raw == right


def test_what_was_borrowed_leaves_no_pixels_behind(scene):
    """A service's promise: an image that was sent is forgotten, decoded pixels too."""
    import gc
    import weakref

    kept = []
    with IMAGES.borrow():
        image = IMAGES.add(np.ascontiguousarray(scene[0][::-1, ::-1]))  # which no other test keeps
        for box in (None, (0, 0, 100, 100)):
            assert tool_runner().measure("PIQE", image, box=box).error is None
            pixels = IMAGES.pixels(image, box)
            kept.append(weakref.ref(pixels))
            del pixels
    gc.collect()
    assert all(ref() is None for ref in kept)


def test_settings_reach_the_runner(tmp_path):
    tools = {"threads": 2, "timeout_s": 7, "reduce_above_px": 100000, "resize_reference": True, "cache_mb": 3}
    settings = load_settings(overrides={"tools": {**tools, "device": "cpu"}, "cache_dir": tmp_path})
    runner = ToolRunner(settings)
    assert runner.settings == settings.tools


def test_values_that_are_not_finite_name_the_tool(alone, scene, monkeypatch):
    import torch

    monkeypatch.setattr(loading, "_make", lambda *a, **k: lambda *inputs: torch.tensor([float("inf")]))
    result = tool_runner().measure("PIQE", IMAGES.add(scene[0]))
    with pytest.raises(ToolError, match="'PIQE': returned inf"):
        raise ToolError(result.error)
