"""Which model plays which role: flags, named backends, addresses, and nothing secret in any of them."""

import pytest

from program.agent.resources import build_lm
from program.common.backends import RoleSettings, checked_api_base
from program.common.errors import ModelError, SettingsError
from program.common.settings import load_settings

SERVER = "http://127.0.0.1:8000/v1"
LAB = {
    "models": {
        "backends": {
            "lab": {
                "api_base": SERVER, "model": "qwen/vl-7b", "key_env": "LAB_KEY", "logprobs": False,
                "images": {"max_side_px": 1024},
            },
            "bare": {"api_base": SERVER},
        }
    }
}  # fmt: skip


def backends(settings):
    return {
        r: (m.backend, m.api_base) for r in ("planner", "executor", "summarizer") if (m := getattr(settings.models, r))
    }


def test_one_model_plays_every_role_but_those_that_have_their_own():
    settings = load_settings().with_model("openai/vlm", SERVER, {"planner": "anthropic/claude", "reflection": None})
    assert backends(settings) == {
        "planner": ("anthropic/claude", None), "executor": ("openai/vlm", SERVER), "summarizer": ("openai/vlm", SERVER),
    }  # fmt: skip
    assert settings.models.reflection is None


def test_the_reflection_model_starts_as_the_summarizer_and_the_server_is_its_own():
    settings = load_settings().with_model(None, SERVER, {"reflection": "openai/big"})
    assert backends(settings)["summarizer"] == ("perceptual/expert", None)
    reflection = settings.models.reflection
    assert (reflection.backend, reflection.api_base) == ("openai/big", SERVER)
    assert reflection.max_tokens == settings.models.summarizer.max_tokens


def test_an_address_without_a_model_on_a_server_is_refused():
    with pytest.raises(
        SettingsError, match=r"--api-base: no role's model is on a server \(they are perceptual/expert\)"
    ):
        load_settings().with_model(None, SERVER)
    with pytest.raises(SettingsError, match="name one as --lm openai/NAME"):
        load_settings().with_model("anthropic/claude", SERVER)


def test_the_environment_sets_the_server_of_models_on_servers_only(monkeypatch):
    monkeypatch.setenv("AGENTICIQA_API_BASE", SERVER)
    assert backends(load_settings())["planner"] == ("perceptual/expert", None)
    assert backends(load_settings().with_model("vllm/x"))["planner"] == ("vllm/x", SERVER)
    assert backends(load_settings().with_model("gemini/x"))["planner"] == ("gemini/x", None)
    monkeypatch.setenv("AGENTICIQA_LM", "openai/y")
    assert backends(load_settings())["executor"] == ("openai/y", SERVER)


def test_a_named_backend_is_written_once(monkeypatch):
    monkeypatch.setenv("LAB_KEY", "a-key-of-the-lab")
    settings = load_settings(overrides=LAB).with_model("lab", None, {"planner": "lab/small"})
    summarizer, planner = (build_lm(getattr(settings.models, r), cache_dir=None) for r in ("summarizer", "planner"))
    assert summarizer.model.startswith("server-")
    assert (summarizer.model.partition("/")[2], planner.model.partition("/")[2]) == ("qwen/vl-7b", "small")
    assert "logprobs" not in summarizer.supported_params
    assert "response_format" in summarizer.supported_params
    limits = settings.models.summarizer.images
    assert (limits.max_side_px, limits.formats, limits.max_bytes) == (1024, ("png", "jpeg"), 20_000_000)
    assert "a-key-of-the-lab" not in settings.model_dump_json() + repr(settings) + repr(vars(summarizer))


def test_a_named_backend_says_what_is_missing(monkeypatch):
    settings = load_settings(overrides=LAB)
    with pytest.raises(ModelError, match="LAB_KEY is not set"):
        build_lm(settings.with_model("lab").models.planner, cache_dir=None)
    with pytest.raises(ModelError, match="give one as bare/MODEL"):
        build_lm(settings.with_model("bare").models.planner, cache_dir=None)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"backends": {"lab": {"adress": "x"}}}, r"unknown key 'models.backends.lab.adress'"),
        ({"planner": {"bakend": "x"}}, r"unknown key 'models.planner.bakend' \(did you mean 'backend'\?\)"),
        ({"images": {"openai": {"formats": ["heic"]}}}, "formats"),
        ({"backends": {"lab": {"api_base": "ftp://x"}}}, "not an http"),
        ({"planner": {"backend": 3}}, "models.planner.backend = 3"),
    ],
)
def test_mistakes_in_the_models_part_are_named(tree, message):
    with pytest.raises(SettingsError, match=message):
        load_settings(overrides={"models": tree})


@pytest.mark.parametrize(
    "address", ["http://me:hunter2-hunter2@127.0.0.1/v1", "http://127.0.0.1/v1?api_key=hunter2-hunter2"]
)
def test_an_address_never_carries_a_secret(address, monkeypatch):
    for make in (
        lambda: load_settings().with_model("openai/x", address),
        lambda: load_settings(overrides={"models": {"planner": {"api_base": address}}}),
        lambda: load_settings(overrides={"models": {"backends": {"lab": {"api_base": address}}}}),
    ):
        with pytest.raises(SettingsError, match="holds a password or a query") as caught:
            make()
        assert "hunter2" not in f"{caught.value} {caught.value.__cause__!r} {caught.value.__cause__}"


def test_addresses_are_urls():
    assert checked_api_base(None) is None
    assert checked_api_base("https://host:8443/v1/") == "https://host:8443/v1"
    for bad in ("localhost:8000", "http://", "http://a b/v1", "http://host:port/v1"):
        with pytest.raises(ValueError, match="not an http"):
            checked_api_base(bad)


def test_image_limits_follow_the_service():
    models = load_settings().with_model("anthropic/claude", None, {"planner": "openai/x"}).models
    assert models.summarizer.images.max_side_px == 8000
    assert models.planner.images.formats == ("png", "jpeg", "webp")
    served = load_settings().with_model("openai/x", SERVER).models
    assert served.planner.images.formats == ("png", "jpeg")


def test_reasoning_models_get_no_temperature():
    lm = build_lm(RoleSettings(backend="openai/gpt-5-mini"), cache_dir=None)
    assert lm.kwargs.get("temperature") is None
