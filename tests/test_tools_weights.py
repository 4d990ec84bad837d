"""Files that tools need: found, missing, refused."""

import logging
import pickle

import pytest

from program.images.store import IMAGES
from program.tools import loading, registry
from program.tools.__main__ import main
from program.tools.registry import ToolRegistry, hub_folder, needed_files, what_is_missing
from tests.pictures import tool_runner

REGISTRY = ToolRegistry.load()
FILE = "WaDIQaM-NR-koniq-aaffea29.pth"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr(registry, "failures", {})
    monkeypatch.setattr(loading, "_pools", {})


class _Code:
    """Writes a file when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


def test_weights_in_the_folder_make_a_network_ready_and_run(tmp_path, picture):
    import pyiqa
    import torch

    assert "WaDIQaM_NR" in tool_runner(params_dir=tmp_path).unavailable()
    torch.manual_seed(0)
    network = pyiqa.create_metric("wadiqam_nr", device=torch.device("cpu"), pretrained=False)
    torch.save({"params": network.net.state_dict()}, tmp_path / FILE)
    runner, image = tool_runner(params_dir=tmp_path), IMAGES.add(picture(height=64, width=64))
    assert "WaDIQaM_NR" not in runner.unavailable()
    first, again = (runner.measure("wadiqam_nr", image) for _ in range(2))
    pixels = torch.from_numpy(picture(height=64, width=64).transpose(2, 0, 1).copy())[None].float() / 255
    assert first.raw == again.raw == pytest.approx(float(network(pixels).item()), rel=1e-5)
    assert "has no map to 1..5" in first.error
    assert not (tmp_path / "torch").exists()
    assert torch.hub.get_dir() == str(hub_folder())


def test_weights_that_hold_code_are_refused_said_once_and_left_out(tmp_path, picture, caplog):
    trap = tmp_path / "trap"
    (tmp_path / FILE).write_bytes(pickle.dumps({"params": _Code(trap)}))
    runner, image = tool_runner(params_dir=tmp_path), IMAGES.add(picture(height=64, width=64))
    with caplog.at_level(logging.WARNING):
        errors = [runner.measure("WaDIQaM_NR", image).error for _ in range(3)]
    assert all("tool 'WaDIQaM_NR': cannot be loaded" in error for error in errors)
    assert len([r for r in caplog.records if "it is left out from here on" in r.getMessage()]) == 1
    assert not trap.exists()
    assert "cannot be loaded" in runner.unavailable()["WaDIQaM_NR"]
    assert "WaDIQaM_NR" not in {spec.name for spec in runner.ready("NR", expensive=True)}


@pytest.mark.parametrize("spec", [s for s in REGISTRY.specs() if s.needs == "weights"], ids=lambda s: s.name)
def test_missing_weights_are_named_with_where_and_the_mend(tmp_path, spec):
    reason = what_is_missing(spec, tmp_path)
    if spec.packages and "Python package" in reason:
        assert "install it with `pip install" in reason
        return
    assert str(tmp_path) in reason
    assert str(hub_folder()) in reason
    assert f"`python -m program.tools --fetch {spec.name}`" in reason
    assert "AGENTICIQA_PARAMS_DIR" in reason
    assert all(place.removeprefix("hf:").rsplit("/", 1)[-1] in reason for place in spec.weights)


def test_files_are_found_by_name_in_the_folder_then_where_pyiqa_and_hugging_face_keep_them(tmp_path):
    spec = REGISTRY.get("AHIQ")
    own, first, second = spec.weights
    (hub_folder() / "pyiqa").mkdir(parents=True)
    (hub_folder() / own).write_bytes(b"x")
    assert needed_files(spec, None) == {own: hub_folder() / own, first: None, second: None}
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / own.rsplit("/", 1)[-1]).write_bytes(b"x")
    assert needed_files(spec, tmp_path / "given")[own].parent == tmp_path / "given"
    snapshot = tmp_path / "hf" / "hub" / "models--timm--resnet50.a1_in1k" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    assert needed_files(spec, None)[first] is None
    (snapshot / "model.safetensors").write_bytes(b"x")
    assert needed_files(spec, None)[first] == snapshot
    assert repr(second) in what_is_missing(spec, None)


def test_a_metric_only_pyiqa_knows_downloads_nothing_by_itself(picture, monkeypatch):
    runner, image = tool_runner(), IMAGES.add(picture(height=64, width=64))
    failed = runner.measure("musiq-spaq", image)
    assert failed.raw is None
    assert "weights 'musiq_spaq_ckpt-358bb6af.pth' are not here" in failed.error
    assert "`python -m program.tools --fetch musiq-spaq`" in failed.error
    closed = runner.measure("psnry", image, IMAGES.add(picture(seed=1, height=64, width=64)))
    assert closed.raw > 0
    assert "tool 'psnry': has no map to 1..5" in closed.error


def test_checking_a_named_tool_that_is_not_ready_is_no_success(capsys):
    assert main(["--check", "WaDIQaM_NR"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "'WaDIQaM-NR-koniq-aaffea29.pth' not found in" in shown


def test_fetching_goes_to_the_network_and_says_when_there_is_none(capsys):
    assert main(["--fetch", "WaDIQaM_NR"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: tool 'WaDIQaM_NR': cannot be loaded (")
    assert error.endswith("; connect to the network, or get its files elsewhere and name their folder in "
                          "AGENTICIQA_PARAMS_DIR")  # fmt: skip
    assert main(["--fetch"]) == 2
    assert "names no tool" in capsys.readouterr().err
