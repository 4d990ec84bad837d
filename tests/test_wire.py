"""The real client against a real server on the loopback: what goes over the wire, and what faults become."""

import base64
import io
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import dspy
import numpy as np
import pytest
from PIL import Image

from program.agent.loop import AgenticIQA
from program.agent.resources import lm_of
from program.common.errors import ModelError, SettingsError
from program.common.settings import RoleSettings, load_settings
from program.lms.build import model_name

KEY = "sk-planted-0123456789abcdef"

PLAN = {
    "query_type": "IQA", "query_scope": ["Global"], "distortion_source": "inferred", "distortions": [],
    "reference_mode": "No-Reference", "required_tools": [], "distortion_detection": True, "distortion_analysis": True,
    "tool_selection": False, "tool_execute": False,
}  # fmt: skip
FINDING = {"region": "Global", "type": "Noise", "severity": "moderate", "explanation": "Grain in the sky."}
ANSWERS: dict[str, Any] = {
    "plan": {"plan": PLAN},
    "findings": {"findings": [FINDING]},
    "selected_tools": {"selected_tools": [{"region": "Global", "distortion": "Noise", "tool": "PIQE"}]},
    "quality_probs": {
        "quality_probs": {"bad": 0, "poor": 0.2, "fair": 0.6, "good": 0.2, "excellent": 0},
        "quality_reasoning": "Grain.",
    },
}


class Server:
    """An OpenAI-compatible server that answers every question of the program, with faults on demand."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.fault: Callable[[int], tuple[int, str] | None] = lambda n: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body)
                outer.headers.append(dict(self.headers))
                fault = outer.fault(len(outer.requests))
                status, text = fault or (200, json.dumps(outer.answer(body)))
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        fields = body["response_format"]["json_schema"]["schema"]["properties"]
        content = json.dumps(next(ANSWERS[name] for name in fields if name in ANSWERS))
        return {
            "id": "1", "object": "chat.completion", "created": 1, "model": body["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        }  # fmt: skip

    def sent_images(self) -> list[bytes]:
        parts = [
            p for r in self.requests for m in r["messages"] if isinstance(m["content"], list) for p in m["content"]
        ]
        urls = [p["image_url"]["url"] for p in parts if p["type"] == "image_url"]
        return [base64.b64decode(url.partition("base64,")[2]) for url in urls]


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


@pytest.fixture
def jpeg(tmp_path, rng: np.random.Generator) -> Any:
    file = tmp_path / "photo.jpg"
    pixels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=55)
    file.write_bytes(buffer.getvalue())
    return file


@pytest.fixture(autouse=True)
def _fresh_cache(tmp_path) -> None:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    dspy.cache.reset_memory_cache()


def by_server(server: Server) -> AgenticIQA:
    return AgenticIQA(load_settings().with_model("openai/small-vlm", server.base))


def test_the_original_bytes_are_sent_and_no_reference_host(server, jpeg, monkeypatch, caplog) -> None:
    monkeypatch.setenv("AGENTICIQA_API_KEY", KEY)
    result = by_server(server)(image=jpeg)
    assert result.status == "ok"
    assert 1 <= result.quality_score <= 5
    assert server.sent_images() == [jpeg.read_bytes()] * 2  # diagnosis and score; plan and tool choice are text
    assert "images.invalid" not in json.dumps(server.requests)
    assert all(r["model"] == "small-vlm" for r in server.requests)
    assert all(h["Authorization"] == f"Bearer {KEY}" for h in server.headers)
    assert result.usage.lm_calls == len(server.requests)
    assert result.usage.input_tokens == 100 * len(server.requests)
    assert KEY not in caplog.text + result.model_dump_json()


def test_a_providers_own_key_never_goes_to_another_server(server, jpeg, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    by_server(server)(image=jpeg)
    assert KEY not in json.dumps(server.headers)


def test_a_users_own_lm_gets_the_bytes_inlined(server, jpeg) -> None:
    lm = dspy.LM("openai/gpt-4o", api_base=server.base, api_key="none", cache=False)
    result = AgenticIQA(load_settings(), lm=lm)(image=jpeg)
    assert result.status == "ok"
    assert server.sent_images() == [jpeg.read_bytes()] * 2
    assert "images.invalid" not in json.dumps(server.requests)


def test_one_plan_serves_many_images(server, tmp_path, rng) -> None:
    iqa = by_server(server)
    for _ in range(3):
        iqa(image=rng.integers(0, 256, (48, 64, 3), dtype=np.uint8))
    plans = [r for r in server.requests if "plan" in r["response_format"]["json_schema"]["schema"]["properties"]]
    assert len(plans) == 1
    assert len(server.requests) == 1 + 1 + 2 * 3  # one plan, one tool choice, diagnosis and score for each image


def test_a_server_error_is_retried_and_a_refused_key_is_not(server, jpeg) -> None:
    server.fault = lambda n: (503, "{}") if n == 1 else None
    assert by_server(server)(image=jpeg).status == "ok"
    server.fault = lambda n: (401, json.dumps({"error": {"message": "bad key"}}))
    before = len(server.requests)
    with pytest.raises(dspy.utils.exceptions.LMError):
        by_server(server)(image=jpeg, query="How is the noise?")
    assert len(server.requests) == before + 1


def test_two_servers_never_share_cached_answers(server, jpeg) -> None:
    other = Server()
    by_server(server)(image=jpeg)
    by_server(other)(image=jpeg)
    assert len(server.requests) == len(other.requests)
    other.http.shutdown()
    other.http.server_close()


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
