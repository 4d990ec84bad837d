"""The test server speaks the real protocol: the official client, DSPy's native client and LiteLLM all go through it."""

import base64
import json
import math
import subprocess
import sys
from pathlib import Path

import dspy
import httpx
import pytest

from program.agent.loop import AgenticIQA
from program.common.settings import load_settings
from program.images.store import IMAGES
from signatures.schemas import LevelProbabilities, Plan

SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["quality_level", "quality_reasoning"],
    "properties": {"quality_level": {"enum": list("ABCDE")}, "quality_reasoning": {"type": "string"}},
}  # fmt: skip


@pytest.fixture
def client():
    import openai

    made = []

    def make(server, **options):
        made.append(openai.OpenAI(**{"base_url": server.base, "api_key": "sk-planted", "max_retries": 0, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def shown(image: bytes, text: str = "Rate it.") -> list[dict]:
    url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
    return [{"role": "user", "content": parts}]


def test_the_official_client_gets_schema_logprobs_usage_and_models(loopback, client):
    server = loopback()
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}
    got = client(server).chat.completions.create(
        model="small-vlm", messages=shown(b"png bytes"), response_format=form, logprobs=True, top_logprobs=5
    )
    answer = json.loads(got.choices[0].message.content)
    assert set(answer) == {"quality_level", "quality_reasoning"}
    tokens = got.choices[0].logprobs.content
    assert "".join(t.token for t in tokens) == got.choices[0].message.content
    (level,) = [t for t in tokens if len(t.top_logprobs) == 5]
    assert level.token == answer["quality_level"] == level.top_logprobs[0].token
    assert sum(math.exp(t.logprob) for t in level.top_logprobs) == pytest.approx(1, abs=1e-3)
    assert got.usage.total_tokens == got.usage.prompt_tokens + got.usage.completion_tokens
    assert [m.id for m in client(server).models.list()] == ["small-vlm"]
    assert server.asked[0].images == [b"png bytes"]
    stats = server.stats()
    assert (stats["requests"], stats["images"], stats["prompt_tokens"]) == (1, 1, got.usage.prompt_tokens)
    assert stats["authorizations"] == ["Bearer sk-planted"]


def test_answers_vary_by_image_and_not_by_instruction(loopback, client):
    server = loopback()
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}

    def ask(image: bytes, *system: dict) -> str:
        messages = [*system, *shown(image)]
        got = client(server).chat.completions.create(model="m", messages=messages, response_format=form)
        return got.choices[0].message.content

    answers = [ask(bytes([n])) for n in range(12)]
    assert len({json.loads(a)["quality_level"] for a in answers}) >= 4
    assert ask(bytes([3]), {"role": "system", "content": "Return ONLY valid JSON."}) == answers[3]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("rate_limit", "RateLimitError"), ("rate_limit_bare", "RateLimitError"),
        ("error_500", "InternalServerError"), ("error_503", "InternalServerError"),
        ("drop", "APIConnectionError"), ("truncate", "APIConnectionError"),
    ],
)  # fmt: skip
def test_the_official_client_recognises_each_transport_fault(loopback, client, fault, error):
    import openai

    server = loopback(faults=[fault, fault])
    with pytest.raises((getattr(openai, error), httpx.RemoteProtocolError)) as caught:
        client(server).chat.completions.create(model="m", messages=shown(b"x"))
    if fault == "rate_limit":
        assert caught.value.response.headers["retry-after"] == "0.05"
    assert client(server, max_retries=1).chat.completions.create(model="m", messages=shown(b"x")).choices
    assert server.stats()["faults"] == {fault: 2}
    assert server.stats()["requests"] == 3


def test_answer_faults_are_what_they_say(loopback, client):
    server = loopback(faults=["invalid_json", "wrong_schema", "refusal", "empty_choices", "huge"], huge_bytes=10_000)
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}

    def ask():
        return client(server).chat.completions.create(model="m", messages=shown(b"x"), response_format=form)

    with pytest.raises(ValueError, match=r"JSON|Unterminated|Expecting"):
        json.loads(ask().choices[0].message.content)
    assert not set(json.loads(ask().choices[0].message.content)) & set(SCHEMA["properties"])
    refused = ask().choices[0].message
    assert (refused.content, refused.refusal) == (None, "I cannot help with that.")
    assert ask().choices == []
    assert len(json.loads(ask().choices[0].message.content)["quality_reasoning"]) > 9_000


def test_streaming_an_unknown_path_and_a_wrong_key_are_clear_errors(loopback, client):
    import openai

    server = loopback(key="sk-right")
    with pytest.raises(openai.AuthenticationError):
        client(server).models.list()
    with pytest.raises(openai.BadRequestError, match="streaming is off"):
        client(server, api_key="sk-right").chat.completions.create(model="m", messages=shown(b"x"), stream=True)
    assert httpx.get(f"{server.base}/nowhere", headers={"Authorization": "Bearer sk-right"}).status_code == 404


def test_rules_go_before_the_general_answer(loopback, loopback_module, client):
    import openai

    server = loopback(rules=[(lambda q: "special" in q.text, ["first", loopback_module.Reply(402, {"error": {}})])])
    ask = client(server).chat.completions
    got = ask.create(model="m", messages=shown(b"x", "special"))
    assert got.choices[0].message.content == "first"
    with pytest.raises(openai.APIStatusError):
        ask.create(model="m", messages=shown(b"x", "special"))
    assert ask.create(model="m", messages=shown(b"x")).choices[0].message.content != "first"


def test_seeded_faults_do_not_depend_on_the_order_of_arrival(loopback_module):
    bodies = [f"{{{n}}}".encode() for n in range(2000)]
    runs = []
    for order in (bodies, bodies[::-1]):
        faults = loopback_module.Faults(rate=0.2, seed=3)
        runs.append({body: faults.of(1, body, None) for body in order})
    assert runs[0] == runs[1]
    share = sum(f is not None for f in runs[0].values()) / len(bodies)
    assert 0.17 < share < 0.23
    assert set(runs[0].values()) == {None, *loopback_module.FAULTS[:-2]}


@pytest.mark.parametrize("native", [True, False], ids=["native", "litellm"])
def test_both_of_dspys_clients_go_through_it(loopback, native, picture, fake_runner):
    server = loopback()
    options = {"engine": "lm15"} if native else {"engine": "litellm"}
    lm = dspy.LM("openai/gpt-4o", api_base=server.base, api_key="none", cache=False, **options)
    pixels = picture()
    iqa = AgenticIQA(load_settings(), lm=lm)
    iqa.resources.__dict__["runner"] = fake_runner()
    result = iqa(image=pixels)
    assert result.status == "ok"
    assert 1 <= result.quality_score <= 5
    assert IMAGES.read(IMAGES.add(pixels)) in server.asked[-1].images
    assert result.usage.lm_calls == server.stats()["requests"]


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()], ids=["chat", "json"])
def test_every_kind_of_field_is_filled(loopback, adapter):
    class Everything(dspy.Signature):
        """Fill every field."""

        query: str = dspy.InputField()
        module_names: list[str] = dspy.InputField()
        plan: Plan = dspy.OutputField()
        quality_probs: LevelProbabilities = dspy.OutputField()
        proposed_instruction: str = dspy.OutputField()
        module_advice: dict[str, str] = dspy.OutputField()

    server = loopback()
    lm = dspy.LM("openai/gpt-4o", api_base=server.base, api_key="none", cache=False)
    with dspy.context(lm=lm, adapter=adapter):
        got = dspy.Predict(Everything)(query="How strong is the noise?", module_names=["planner.plan", "executor"])
    assert got.plan.distortions[0].distortions == ["Noise"]
    assert sum(got.quality_probs.by_level().values()) == pytest.approx(1, abs=1e-3)
    assert "Look closely" in got.proposed_instruction
    assert set(got.module_advice) == {"planner.plan", "executor"}


def test_a_reflection_prompt_gets_an_instruction_in_a_block(loopback):
    server = loopback()
    lm = dspy.LM("openai/gpt-4o", api_base=server.base, api_key="none", cache=False)
    (text,) = lm("I gave an assistant this instruction:\n```\nRate it.\n```\nWrite a better one within ``` blocks.")
    assert text.strip("`\n").startswith("Look closely")


def test_it_runs_as_a_process_and_tells_its_counts():
    file = Path(__file__).with_name("loopback.py")
    with subprocess.Popen([sys.executable, str(file), "--key", "k"], stdout=subprocess.PIPE, text=True) as process:
        base = process.stdout.readline().strip()
        try:
            assert httpx.get(f"{base}/models", headers={"Authorization": "Bearer k"}).json()["data"]
            assert httpx.get(f"{base.removesuffix('/v1')}/stats").json()["requests"] == 0
        finally:
            process.terminate()


def test_sixteen_requests_are_answered_at_once(loopback):
    from concurrent.futures import ThreadPoolExecutor

    server = loopback(latency_s=0.2)
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    with ThreadPoolExecutor(16) as pool, httpx.Client(limits=httpx.Limits(max_connections=16)) as http:
        got = list(pool.map(lambda _: http.post(f"{server.base}/chat/completions", json=body).status_code, range(16)))
    assert got == [200] * 16
    assert server.stats()["most_in_flight"] >= 12
