"""The real client against a real server on the loopback: what goes over the wire, and what faults become."""

import io
import json
from typing import Any

import dspy
import numpy as np
import pytest
from PIL import Image

from program.agent.loop import AgenticIQA
from program.agent.resources import lm_of, model_name
from program.common.backends import RoleSettings
from program.common.errors import ModelError, SettingsError
from program.common.settings import load_settings
from tests.pictures import noise

KEY = "sk-planted-0123456789abcdef"
FINDING = {"region": "Global", "type": "Noise", "severity": "moderate", "explanation": "Grain in the sky."}


@pytest.fixture
def jpeg(tmp_path, rng: np.random.Generator) -> Any:
    file = tmp_path / "photo.jpg"
    pixels = noise(rng, 48, 64)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=55)
    file.write_bytes(buffer.getvalue())
    return file


def by_server(server: Any) -> AgenticIQA:
    return AgenticIQA(load_settings().with_model("openai/small-vlm", server.base))


def sent_images(server: Any) -> list[bytes]:
    return [image for question in server.asked for image in question.images]


def test_the_original_bytes_are_sent_and_no_reference_host(loopback, jpeg, monkeypatch, caplog) -> None:
    monkeypatch.setenv("AGENTICIQA_API_KEY", KEY)
    server = loopback()
    result = by_server(server)(image=jpeg)
    assert result.status == "ok"
    assert 1 <= result.quality_score <= 5
    assert sent_images(server) == [jpeg.read_bytes()]  # score and distortions; plan and tool choice are text
    assert "images.invalid" not in json.dumps([q.body for q in server.asked])
    assert {q.model for q in [*server.asked, *server.probes]} == {"small-vlm"}
    assert server.authorizations == {f"Bearer {KEY}"}
    assert result.usage.lm_calls == len(server.asked)
    assert result.usage.input_tokens == server.stats()["prompt_tokens"] > 0
    assert KEY not in caplog.text + result.model_dump_json()


def test_a_providers_own_key_never_goes_to_another_server(loopback, jpeg, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server = loopback()
    by_server(server)(image=jpeg)
    assert server.asked
    assert KEY not in json.dumps([server.headers, *server.authorizations])


def test_a_users_own_lm_gets_the_bytes_inlined(loopback, jpeg) -> None:
    server = loopback()
    lm = dspy.LM("openai/gpt-4o", api_base=server.base, api_key="none", cache=False)
    result = AgenticIQA(load_settings(), lm=lm)(image=jpeg)
    assert result.status == "ok"
    assert sent_images(server) == [jpeg.read_bytes()]
    assert "images.invalid" not in json.dumps([q.body for q in server.asked])


def test_one_plan_serves_many_images(loopback, tmp_path, rng) -> None:
    server = loopback()
    iqa = by_server(server)
    for _ in range(3):
        iqa(image=noise(rng, 48, 64))
    assert [q.name for q in server.asked].count("plan") == 1
    assert len(server.asked) == 1 + 3  # one plan; score and distortions of each image
    assert len(server.probes) == 1


def test_a_server_error_is_retried_and_a_refused_key_is_not(loopback, loopback_module, jpeg) -> None:
    refused = loopback_module.Reply(401, {"error": {"message": "bad key"}})
    server = loopback(faults=["error_503"], rules=[(lambda q: "noise" in q.inputs.get("query", ""), refused)])
    assert by_server(server)(image=jpeg).status == "ok"
    before = len(server.asked)
    with pytest.raises(dspy.utils.exceptions.LMError):
        by_server(server)(image=jpeg, query="How is the noise?")
    assert len(server.asked) == before + 1


def test_two_servers_never_share_cached_answers(loopback, jpeg) -> None:
    servers = [loopback(), loopback()]
    for server in servers:
        by_server(server)(image=jpeg)
    assert len(servers[0].asked) == len(servers[1].asked) > 0


@pytest.mark.parametrize(
    ("backend", "message"),
    [("gpt4", "not of the form provider/model"), ("perceptual/expert@r0", "this version holds 'perceptual/expert@")],
)
def test_unknown_models_are_refused_in_one_line(backend, message) -> None:
    with pytest.raises(ModelError, match=message):
        lm_of(RoleSettings(backend=backend), cache_dir=None)


def test_an_api_base_must_be_a_url() -> None:
    with pytest.raises(SettingsError, match="not an http"):
        load_settings().with_model("openai/x", "localhost:8000")


@pytest.mark.spec("000/vlm-client-reuse")
def test_both_spellings_name_the_same_model() -> None:
    assert model_name("openai.gpt-4o") == model_name("openai/gpt-4o") == "openai/gpt-4o"
