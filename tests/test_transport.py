"""Images that join a request as it leaves: exact bytes, only where a request's own images stand, by the right way."""

import base64

import dspy
import pytest

from program.agent.loop import AgenticIQA
from program.common.settings import load_settings
from program.images.store import IMAGES
from program.lms import reference_engine
from program.lms.reference_engine import ImageTransport, token_for

ADDRESS = "http://lab.example:8000/v1"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)


def test_original_bytes_arrive_and_no_token_stays(loopback, picture):
    server = loopback()
    iqa = AgenticIQA(load_settings().with_model("openai/small-vlm", server.base))
    image, reference = IMAGES.add(picture(1)), IMAGES.add(picture(2))
    assert iqa(image=image, reference=reference).status == "ok"
    shown = [q.images for q in server.asked if q.images]
    assert shown
    assert all(images == [IMAGES.read(image), IMAGES.read(reference)] for images in shown)
    assert not [q for q in server.asked if reference_engine._PREFIX in str(q.body)]


def test_a_token_in_a_text_stays_a_text(loopback, picture):
    server = loopback()
    iqa = AgenticIQA(load_settings().with_model("openai/small-vlm", server.base))
    image, other = IMAGES.add(picture(1)), IMAGES.add(picture(3))
    query = f"How is it, {token_for(other.sha256)}?"
    assert iqa(image=image, query=query).status == "ok"
    assert all(query in q.inputs["query"] for q in server.asked if "query" in q.inputs)
    bytes_of_other = base64.b64encode(IMAGES.read(other)).decode()
    assert not [q for q in server.asked if bytes_of_other in str(q.body)]


def test_a_token_is_short_valid_base64():
    token = token_for("0f" * 32)
    assert len(token) == 64
    assert base64.b64encode(base64.b64decode(token, validate=True)).decode() == token


@pytest.mark.parametrize(
    ("environment", "proxied"),
    [
        ({}, False),
        ({"http_proxy": "http://proxy:1"}, True),
        ({"all_proxy": "http://proxy:1"}, True),
        ({"https_proxy": "http://proxy:1"}, False),
        ({"http_proxy": "http://proxy:1", "no_proxy": "lab.example"}, False),
        ({"http_proxy": "http://proxy:1", "no_proxy": "*"}, False),
    ],
)
def test_the_environments_proxy_is_used(environment, proxied, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (ImageTransport(ADDRESS)._proxy == "http://proxy:1") is proxied


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machines_own_server_is_never_asked_through_a_proxy(variable, host, loopback, monkeypatch):
    server = loopback()
    monkeypatch.setenv(variable, "http://127.0.0.1:9")  # nobody listens there
    base = server.base.replace("127.0.0.1", host)
    iqa = AgenticIQA(load_settings().with_model("openai/small-vlm", base))
    assert iqa.resources.traits("planner").reads_images is not None
    iqa.resources.lm("planner").copy(num_retries=0, cache=False)("Give a JSON object")
    assert server.asked
    planner = {"backend": "anthropic/claude-sonnet-4-5", "api_base": base}
    gateway = AgenticIQA(load_settings(overrides={"models": {"planner": planner}})).resources.lm("planner")
    with pytest.raises(dspy.utils.exceptions.LMError, match="not served here"):  # it speaks OpenAI's protocol alone
        gateway.copy(num_retries=0, cache=False)("Give a JSON object")


def test_a_proxy_gets_the_requests(loopback, picture, monkeypatch):
    proxy = loopback()
    monkeypatch.setenv("http_proxy", proxy.base.removesuffix("/v1"))
    lm = AgenticIQA(load_settings().with_model("openai/small-vlm", ADDRESS)).resources.lm("planner")
    with pytest.raises(dspy.utils.exceptions.LMError, match="not served here"):
        lm.copy(num_retries=0)("hello")  # the loopback server sees the whole address, as a proxy does, and serves none
