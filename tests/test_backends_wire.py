"""Every kind of backend over a real wire: what is asked, what a service refuses, and that each gets the pictures."""

import base64
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import dspy
import numpy as np
import pytest
from dspy import lm15
from PIL import Image

from program.agent.loop import AgenticIQA
from program.agent.resources import build_lm
from program.common.backends import RoleSettings
from program.common.errors import EndpointError
from program.common.settings import load_settings
from program.images.store import IMAGES
from program.lms.ask import ask
from program.lms.call import meter
from signatures.forms import QuestionForm
from signatures.schemas import LEVEL_WORDS
from signatures.summarizer import ClassifyQuality, ScoreQuality

pytestmark = pytest.mark.usefixtures("no_answers_kept")

KEY, PROVIDERS_KEY = "planted-key-for-the-gateway", "planted-key-of-the-provider"
SCORED = {
    "quality_probs": {"bad": 0, "poor": 0.2, "fair": 0.6, "good": 0.2, "excellent": 0}, "quality_reasoning": "Grain.",
}  # fmt: skip
CLASSIFIED = {"quality_level": "C", "quality_reasoning": "Grain."}


@pytest.fixture
def bitmap(tmp_path, picture):
    file = tmp_path / "photo.bmp"
    Image.fromarray(picture(4)).save(file)
    return file


def on(server, **overrides):
    return load_settings(overrides=overrides).with_model("openai/small-vlm", server.base)


@pytest.fixture
def rate(picture):
    """Put the scoring question to an LM; returns the answer and what it cost."""

    def put(lm, signature=ScoreQuality, config=None):
        inputs = {"image": IMAGES.add(picture(5)), "query": "How good is it?"}
        with meter() as usage:
            example = SCORED if signature is ScoreQuality else CLASSIFIED
            answer = ask(dspy.Predict(signature), inputs, QuestionForm(example), lambda p: p, lm=lm, config=config)
        return answer, usage

    return put


class Elsewhere:
    """A server of Anthropic's Messages API and Gemini's generateContent, which keeps what it was sent."""

    def __init__(self):
        self.sent = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.sent.append((self.path, {k.casefold(): v for k, v in self.headers.items()}, body))
                text = json.dumps(SCORED)
                reply = {
                    "id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
                    "content": [{"type": "text", "text": text}], "usage": {"input_tokens": 5, "output_tokens": 2},
                } if self.path.endswith("/messages") else {
                    "candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"}],
                    "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7},
                }  # fmt: skip
                whole = json.dumps(reply).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(whole)))
                self.end_headers()
                self.wfile.write(whole)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def elsewhere():
    server = Elsewhere()
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_anthropic_is_asked_in_its_own_words(elsewhere, rate, picture, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", PROVIDERS_KEY)
    monkeypatch.setenv("AGENTICIQA_API_KEY", KEY)
    lm = build_lm(RoleSettings(backend="anthropic/claude-sonnet-4-5", api_base=f"{elsewhere.base}/v1"), cache_dir=None)
    answer, usage = rate(lm)
    ((path, headers, body),) = elsewhere.sent
    assert answer.attempt == "first call"
    assert (path, headers["x-api-key"], body["model"]) == ("/v1/messages", KEY, "claude-sonnet-4-5")
    (image,) = [p for m in body["messages"] for p in m["content"] if p["type"] == "image"]
    assert base64.b64decode(image["source"]["data"]) == IMAGES.read(IMAGES.add(picture(5)))
    assert "json_schema" in json.dumps({k: v for k, v in body.items() if k != "messages"})
    assert usage.input_tokens == 5
    assert PROVIDERS_KEY not in json.dumps([headers, body])
    assert lm.model.startswith("anthropic-")  # not the name under which answers of the real service are cached


def test_gemini_is_asked_in_its_own_words(elsewhere, rate, picture, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", PROVIDERS_KEY)
    lm = build_lm(RoleSettings(backend="gemini/gemini-2.5-flash", api_base=f"{elsewhere.base}/v1beta"), cache_dir=None)
    answer, _ = rate(lm, config={"logprobs": True, "top_logprobs": 5})
    ((path, headers, body),) = elsewhere.sent
    assert answer.attempt == "first call"
    assert path == "/v1beta/models/gemini-2.5-flash:generateContent"
    (image,) = [p["inlineData"] for c in body["contents"] for p in c["parts"] if "inlineData" in p]
    assert base64.b64decode(image["data"]) == IMAGES.read(IMAGES.add(picture(5)))
    form = body["generationConfig"]
    assert form["responseLogprobs"] is True
    assert form["logprobs"] == 5
    assert "quality_probs" in json.dumps(form)
    assert PROVIDERS_KEY not in json.dumps([headers, body])


def test_openai_is_asked_with_its_own_key_and_a_strict_schema(loopback, rate, picture, monkeypatch):
    server = loopback()
    monkeypatch.setenv("OPENAI_API_KEY", PROVIDERS_KEY)
    real = lm15.RouterConfig
    monkeypatch.setattr(lm15, "RouterConfig", lambda **k: real(**{**k, "base_urls": {"openai-chat": server.base}}))
    lm = build_lm(RoleSettings(backend="openai.gpt-4o"), cache_dir=None)
    answer, _ = rate(lm, ClassifyQuality, {"logprobs": True, "top_logprobs": 20})
    (question,) = server.asked
    assert answer.attempt == "first call"
    assert lm.model == "openai/gpt-4o"
    assert question.body["response_format"]["json_schema"]["strict"] is True
    assert (question.body["logprobs"], question.body["top_logprobs"]) == (True, 20)
    assert question.images == [IMAGES.read(IMAGES.add(picture(5)))]
    assert server.authorizations == {f"Bearer {PROVIDERS_KEY}"}


def test_a_gateway_in_the_environment_gets_the_call(loopback, rate, monkeypatch):
    server = loopback()
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", server.base)
    answer, _ = rate(build_lm(RoleSettings(backend="openai/gpt-4o"), cache_dir=None))
    assert answer.attempt == "first call"
    assert len(server.asked) == 1


@pytest.mark.parametrize("engine", ["auto", "litellm"])
def test_a_users_own_lm_is_shown_the_pictures_by_either_client(engine, loopback, bitmap):
    server = loopback()
    lm = dspy.LM("openai/gpt-4o", api_base=server.base, api_key=KEY, cache=False, engine=engine)
    result = AgenticIQA(load_settings(overrides={"assessment": {"scoring": "logprobs"}}), lm=lm)(image=bitmap)
    assert (result.status, result.level_probabilities_from) == ("ok", "logprobs")
    shown = [q.images for q in server.asked if q.images]
    assert len(shown) == 1  # score and distortions at once
    assert shown[0][0].startswith(b"\x89PNG")  # OpenAI takes no BMP
    assert not any("images.invalid" in json.dumps(q.body) for q in server.asked)
    assert [(i.name, i.change) for i in result.usage.wire_images] == [("photo.bmp", "bmp as png")]


@pytest.mark.spec("issue-46/limits-of-images-hold-for-an-lm-from-python")
@pytest.mark.parametrize("way", ["given", "dspy"])
def test_a_users_limits_of_images_hold_for_an_lm_from_python(way, loopback, picture, tmp_path):
    server, file = loopback(), tmp_path / "photo.png"
    file.write_bytes(IMAGES.read(IMAGES.add(picture(3, width=300, height=200))))
    lm = dspy.LM("openai/gpt-4o", api_base=server.base, api_key=KEY, cache=False)
    settings = load_settings(overrides={"models": {"images": {"server": {"max_side_px": 96}}}})
    with dspy.context(lm=lm):
        result = AgenticIQA(settings, lm=lm if way == "given" else None)(image=file)
    assert [(i.width, i.height) for i in result.usage.wire_images] == [(96, 64)]
    assert {Image.open(io.BytesIO(image)).size for q in server.asked for image in q.images} == {(96, 64)}


def test_an_lm_given_or_set_in_dspy_goes_before_the_settings(loopback, bitmap):
    given, configured, unused = loopback(), loopback(), loopback()
    lms = [dspy.LM("openai/gpt-4o", api_base=s.base, api_key="none", cache=False) for s in (given, configured)]
    with dspy.context(lm=lms[1]):
        AgenticIQA(on(unused), lm=lms[0])(image=bitmap)
        assert (bool(given.asked), bool(configured.asked)) == (True, False)
        AgenticIQA(on(unused))(image=bitmap)
    assert configured.asked
    assert not unused.asked


def test_each_role_may_have_a_model_of_its_own(loopback, bitmap):
    servers = {role: loopback(models=[role]) for role in ("planner", "executor", "summarizer")}
    models = {role: {"backend": f"openai/{role}", "api_base": s.base} for role, s in servers.items()}
    result = AgenticIQA(load_settings(overrides={"models": models}))(image=bitmap)
    assert result.status == "ok"
    asked = {role: {q.name for q in s.asked} for role, s in servers.items()}
    assert asked == {"planner": {"plan"}, "executor": {"findings"}, "summarizer": {"quality_level"}}
    assert {q.model for q in servers["summarizer"].asked} == {"summarizer"}


REFUSALS = {
    "response_format": (400, "Unsupported field: response_format of type json_schema"),
    "logprobs": (422, "[{'type': 'extra_forbidden', 'loc': ('body', 'top_logprobs')}]"),
    "temperature": (400, "Unsupported value: 'temperature' does not support 0.0 with this model."),
}


@pytest.mark.parametrize("feature", list(REFUSALS))
def test_a_feature_that_a_server_refuses_is_left_out_from_then_on(feature, loopback, loopback_module, rate, caplog):
    status, message = REFUSALS[feature]
    refusal = loopback_module.Reply(status, {"error": {"message": message, "type": "invalid_request_error"}})
    server = loopback(rules=[(lambda q: feature in q.body, refusal)])
    lm = build_lm(RoleSettings(backend="openai/x", api_base=server.base), cache_dir=None)
    for _ in range(2):
        answer, usage = rate(lm, ClassifyQuality, {"logprobs": True, "top_logprobs": 20})
        assert answer.value.quality_level in LEVEL_WORDS
        (note,) = usage.wire_notes
        assert note.startswith(f"openai/x: {feature} left out (HTTP {status}: {message[:50]}")
    assert [feature in q.body for q in server.asked] == [True, False, False]
    others = {"response_format", "logprobs", "temperature"} - {feature}
    assert all(name in q.body for q in server.asked for name in others)
    assert caplog.text.count(f"does not take {feature}") == 1


@pytest.mark.parametrize(("status", "message"), [(400, "image is too small"), (401, "no"), (404, "no")])
def test_other_refusals_are_not_asked_again(status, message, loopback, loopback_module, rate):
    server = loopback(rules=[(lambda q: True, loopback_module.Reply(status, {"error": {"message": message}}))])
    lm = build_lm(RoleSettings(backend="openai/x", api_base=server.base), cache_dir=None)
    with pytest.raises(dspy.utils.exceptions.LMError, match=message):
        rate(lm)
    assert len(server.asked) == 1


def test_a_model_that_the_server_lacks_is_named_with_those_that_it_has(loopback, loopback_module, rate):
    server = loopback(rules=[(lambda q: True, loopback_module.Reply(404, {"error": {"message": "no such model"}}))])
    lm = build_lm(RoleSettings(backend="openai/x", api_base=server.base), cache_dir=None)
    with pytest.raises(EndpointError, match=r"^openai/x: [^\n]*not on the server; it has small-vlm; [^\n]*--lm$"):
        rate(lm)
    assert len(server.asked) == 1


def test_a_key_that_a_server_quotes_is_not_told(loopback, loopback_module, rate, monkeypatch):
    monkeypatch.setenv("AGENTICIQA_API_KEY", KEY)
    reply = loopback_module.Reply(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
    server = loopback(rules=[(lambda q: True, reply)])
    lm = build_lm(RoleSettings(backend="openai/x", api_base=server.base), cache_dir=None)
    with pytest.raises(dspy.utils.exceptions.LMError) as caught:
        rate(lm)
    chain, error = [], caught.value
    while error is not None:
        chain.append(f"{error} {error!r}")
        error = error.__cause__ or error.__context__
    assert "<AGENTICIQA_API_KEY>" in chain[0]
    assert KEY not in " ".join(chain)


def test_auto_scores_by_log_probabilities_where_they_come_and_by_words_where_not(loopback, bitmap):
    overrides = {"assessment": {"scoring": "auto"}}
    assert AgenticIQA(on(loopback(), **overrides))(image=bitmap).level_probabilities_from == "logprobs"
    server = loopback(faults=lambda number, question: "no_logprobs")
    iqa = AgenticIQA(on(server, **overrides))
    results = [iqa(image=bitmap) for _ in range(2)]
    assert [r.level_probabilities_from for r in results] == ["probabilities", "probabilities"]
    assert sum(q.name == "quality_level" for q in server.asked) == 1
    assert results[0].usage.wire_notes == ["openai/small-vlm: logprobs asked for, none came with the answer"]


@pytest.mark.parametrize("own", [False, True])
def test_a_question_about_a_region_comes_with_its_crop(own, loopback, picture):
    """The diagnosis looks at the crop; the answer is given from the whole image with the crop beside it."""
    plan = {
        "query_type": "IQA", "query_scope": ["vehicle"], "distortion_source": "inferred", "distortions": [],
        "reference_mode": "No-Reference", "required_tools": [], "distortion_detection": True,
        "distortion_analysis": True, "tool_selection": False, "tool_execute": False,
    }  # fmt: skip
    server = loopback(rules=[("plan", {"plan": plan})])
    lm = dspy.LM("openai/gpt-4o", api_base=server.base, api_key="none", cache=False) if own else None
    pixels = picture(9, height=200, width=300)
    result = AgenticIQA(on(server), lm=lm)(
        image=pixels, query="How sharp is the vehicle?", regions={"vehicle": (50, 40, 150, 120)}
    )
    assert result.state.executor_evidence.region_boxes == {"vehicle": (50, 40, 150, 120)}
    (answered,) = [q for q in server.asked if "final_answer" in q.fields]
    (diagnosed,) = [q for q in server.asked if "findings" in q.fields]
    whole, crop = (np.asarray(Image.open(io.BytesIO(data))) for data in answered.images)
    assert np.array_equal(whole, pixels)
    assert np.array_equal(crop, pixels[40:120, 50:150])
    assert diagnosed.images == answered.images[1:]
    shown = answered.inputs["region_crops"]
    assert "vehicle" in shown
    assert len(result.usage.wire_images) == 2
    assert "region_crops" not in json.dumps(server.asked[0].body)


def test_a_question_about_the_whole_image_speaks_of_no_region(loopback, bitmap):
    server = loopback()
    AgenticIQA(on(server))(image=bitmap)
    assert server.asked
    assert not any("region_crops" in q.text for q in server.asked)
