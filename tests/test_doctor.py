"""The doctor says what works: models that see or do not, tools, stores; exit codes; and no key in what it prints."""

import io
import json
import sys

import numpy as np
import pytest
from PIL import Image

from program.agent import checks
from program.agent.checks import COLOURS
from program.assess import main as assess
from program.doctor import main

KEY = "sk-planted-for-the-doctor"


def examined(capsys, *arguments):
    code = main(["--json", *arguments])
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["works"] == (code == 0) == all(c["status"] != "failed" for c in found["checks"])
    assert all(c["mend"] for c in found["checks"] if c["status"] == "failed")
    assert KEY not in out + err
    return code, {c["name"]: c for c in found["checks"]}


TORCH, STORE = checks._torch, checks._store


@pytest.fixture(autouse=True)
def _light(monkeypatch):
    """Import no torch and open no MLflow store, which takes seconds each; tests about them put them back."""
    for part in ("torch", "store"):
        monkeypatch.setattr(checks, f"_{part}", lambda *_, part=part: checks.Check(part, "ok", "not looked at"))


def seeing(question):
    pixels = np.asarray(Image.open(io.BytesIO(question.images[0])))
    names = {colour: name for name, colour in COLOURS.items()}
    left, right = pixels[:, : pixels.shape[1] // 2], pixels[:, pixels.shape[1] // 2 :]
    return dict(zip(("left", "right"), (names[tuple(side[0, 0].tolist())] for side in (left, right)), strict=True))


def test_the_embedded_expert_needs_no_network(capsys, monkeypatch):
    monkeypatch.setattr(checks, "_store", STORE)
    code, found = examined(capsys)
    assert code == 0, found
    name = "model perceptual/expert (planner, executor, summarizer)"
    assert found[name]["status"] == "ok"
    assert found["MLflow store"]["status"] == found["tools"]["status"] == found["packages"]["status"] == "ok"
    assert {"cache", "optional packages"} <= set(found)


def test_the_cache_in_use_is_looked_at_and_no_other(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").touch()  # nothing can be made below it
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setenv("DSPY_CACHEDIR", str(tmp_path / "file" / "dspy"))
    monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(tmp_path / "cache"))
    code, found = examined(capsys)
    assert (code, found["cache"]["status"]) == (0, "ok")
    assert found["cache"]["detail"] == f"{tmp_path / 'cache'} can be written"
    monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    code, found = examined(capsys)
    assert (code, found["cache"]["mend"]) == (1, "set cache_dir (AGENTICIQA_CACHE_DIR)")


def test_a_server_that_sees_passes_in_one_call(loopback, capsys, monkeypatch):
    monkeypatch.setenv("AGENTICIQA_API_KEY", KEY)
    server = loopback(rules=[("left", seeing)], key=KEY)
    code, found = examined(capsys, "--lm", "openai/small-vlm", "--api-base", server.base)
    name = "model openai/small-vlm (planner, executor, summarizer)"
    assert code == 0, found
    assert "small-vlm" in found[f"{name}: listed"]["detail"]
    assert found[f"{name}: sees"]["status"] == "ok"
    assert found[f"{name}: features"]["status"] == "ok"
    assert found[f"{name}: features"]["detail"] == "takes a JSON schema; 20 alternatives with each token"
    assert (len(server.asked), len(server.probes)) == (1, 1)


def test_a_model_that_does_not_see_is_found_out(loopback, capsys, tmp_path, encoded):
    server = loopback(rules=[("left", {"left": "red", "right": "red"})])
    code, found = examined(capsys, "--lm", "openai/small-vlm", "--api-base", server.base)
    (sees,) = [check for name, check in found.items() if name.endswith("sees")]
    assert code == 1
    assert sees["status"] == "failed"
    assert "choose a model that takes images" in sees["mend"]
    (tmp_path / "photo.png").write_bytes(encoded())
    server.rules.clear()  # what was found out is kept for later commands
    assess([str(tmp_path / "photo.png"), "--lm", "openai/small-vlm", "--api-base", server.base])
    assert "reads no images" in capsys.readouterr().out
    assert not any(question.images for question in server.asked[1:])


def test_what_a_server_lacks_is_noted_and_stops_nothing(loopback, capsys):
    server = loopback(
        rules=[("left", seeing)], refuses=["response_format", "temperature"], token_probabilities=0, context_tokens=8192
    )
    code, found = examined(capsys, "--lm", "openai/small-vlm", "--api-base", server.base)
    (features,) = [check for name, check in found.items() if name.endswith("features")]
    assert (code, features["status"]) == (0, "note")
    assert features["detail"].startswith("context 8,192 tokens; no ")
    for field in ("response_format", "temperature"):
        assert f"no {field} (HTTP 400: " in features["detail"]


@pytest.mark.parametrize(
    ("arguments", "end", "detail", "mend"),
    [
        (["--lm", "openai/smal-vlm"], "listed", "the server has small-vlm, another", "did you mean 'small-vlm'?"),
        (["--lm", "openai/small-vlm", "--planner-lm", "nonsense"], "(planner)", "not of the form provider/model", None),
        (
            ["--lm", "perceptual/expert@r0", "--planner-lm", "openai/small-vlm"],
            "summarizer)",
            "this version holds",
            None,
        ),
    ],
)
def test_a_wrong_name_is_told_with_its_mend(arguments, end, detail, mend, loopback, capsys):
    server = loopback(rules=[("left", seeing)], models=["small-vlm", "another"])
    code, found = examined(capsys, *arguments, "--api-base", server.base)
    (check,) = [check for name, check in found.items() if name.endswith(end)]
    assert (code, check["status"]) == (1, "failed")
    assert detail in check["detail"]
    assert mend is None or mend in check["mend"]


def test_a_dead_server_is_told_at_once(capsys, loopback):
    server = loopback()
    server.stop()
    code, found = examined(capsys, "--lm", "openai/small-vlm", "--api-base", server.base)
    (check,) = [check for check in found.values() if "no server answers at" in check["detail"]]
    assert code == 1
    assert "start it" in check["mend"]


def test_a_refused_key_is_told_without_the_key(loopback, capsys, monkeypatch):
    monkeypatch.setenv("AGENTICIQA_API_KEY", KEY)
    server = loopback(key="another")
    code, found = examined(capsys, "--lm", "openai/small-vlm", "--api-base", server.base)
    assert code == 1
    assert any("refuses the key" in check["detail"] for check in found.values())


def test_torch_of_another_build_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    check = TORCH("auto")
    assert check.status == "failed"
    assert "install torch and torchvision together" in check.mend


@pytest.mark.parametrize(
    ("device", "has_cuda", "status", "end"),
    [
        ("auto", False, "ok", "on cpu"), ("auto", True, "ok", "on cuda"), ("cpu", True, "ok", "on cpu"),
        ("cuda", True, "ok", "on cuda"), ("cuda", False, "failed", "sees no CUDA device, and tools.device is cuda"),
    ],
)  # fmt: skip
def test_the_device_that_tools_get_is_told(device, has_cuda, status, end, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_cuda)
    check = TORCH(device)
    assert check.status == status
    assert check.detail.endswith(end)
    assert (check.mend is None) == (status == "ok")


def test_a_store_that_cannot_be_opened_fails_with_its_mend(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(checks, "_store", STORE)
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("AGENTICIQA_MLRUNS_DIR", str(blocked / "mlruns"))
    code, found = examined(capsys)
    assert code == 1
    assert found["MLflow store"]["status"] == "failed"


def test_a_key_that_is_not_set_has_one_mend(capsys, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    code, found = examined(capsys, "--lm", "openai/gpt-4o")
    (check,) = [check for check in found.values() if check["status"] == "failed"]
    assert code == 1
    assert check["detail"].endswith("there is no key")
    assert check["mend"] == "set OPENAI_API_KEY in the environment"


def test_the_screen_shows_each_check_and_the_verdict(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert shown.rstrip().endswith("All works.")
    assert all(word in shown for word in ("perceptual/expert", "cache", "tools", "fastapi"))


def test_a_cache_folder_that_cannot_be_made_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("no folder")
    for folder, status in (("file/cache", "failed"), ("new/cache", "ok")):
        monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(tmp_path / folder))
        assert examined(capsys)[1]["cache"]["status"] == status
