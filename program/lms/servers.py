"""Servers that speak OpenAI's protocol, and a user's own `dspy.LM` that names one."""

import hashlib
import os
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import dspy
from dspy import lm15

from program.common.backends import SERVER_PROVIDERS, checked_api_base
from program.common.keys import usable_key
from program.common.settings import Settings
from program.lms.dspy_private import LM15Engine
from program.lms.reference_engine import Connection, ImageTransport, ReferenceEngine
from program.lms.traits import record_of

CAPABILITIES: dict[str, Any] = {
    "supports_response_schema": True,
    "supports_function_calling": False,
    "supports_reasoning": False,
    "supported_params": frozenset({"response_format", "temperature", "max_tokens", "logprobs", "top_logprobs", "seed"}),
}
"""Of a server, in DSPy's words."""


def server_name(model: str, api_base: str) -> str:
    """Return what a server's model is called in caches and records, by name and address."""
    return f"server-{hashlib.sha256(api_base.encode()).hexdigest()[:8]}/{model}"


def server_connection(model: str, api_base: str, key: str | None, timeout_s: float | None = None) -> Connection:
    """Connect to one model of a server."""
    name = server_name(model, api_base)
    policy = lm15.AccessPolicy(
        provider=name.partition("/")[0], supports=lm15.EndpointSupport(complete=True, stream=True, models=True),
        auth_modes=("bearer",), base_url=api_base,
    )  # fmt: skip
    transport = ImageTransport(api_base, timeout_s)

    def config(max_tokens_field: Any) -> Any:
        dialect = lm15.OpenAIChatCompat(max_tokens_field=max_tokens_field, instruction_role="system")
        definition = lm15.ProviderDefinition.chat(policy, compat=dialect, placeholder_key="none")
        keys = {definition.id: key} if key else {}
        # Such a server takes no signature over the body, so images may join it as late as in the transport.
        return lm15.RouterConfig(env={}, providers=(definition,), api_keys=keys, transport=transport)

    return Connection(name, config, CAPABILITIES, is_asked=True)


def route(name: str) -> Any | None:
    """Return the provider and model that DSPy's client reaches; None when only LiteLLM can."""
    try:
        return LM15Engine(lm15.RouterConfig(env={})).resolve(name)
    except (lm15.UnknownModelError, lm15.UnsupportedFeatureError):
        return None


# A user's own dspy.LM

_CLIENT = frozenset({"api_key", "api_base", "base_url", "timeout"})
"""Options that say how a server is reached."""
_TAKEN = _CLIENT | {"temperature", "max_tokens", "top_p", "seed", "rollout_id"}
"""Options that are handed on. With another one (headers, ...) DSPy reaches the server itself."""
_OTHER_PROTOCOLS = {"ollama", "ollama_chat"}
"""LiteLLM does not speak OpenAI's protocol to these."""


_SERVED: WeakKeyDictionary[dspy.BaseLM, tuple[tuple[Any, ...], dspy.LM]] = WeakKeyDictionary()
"""By the user's own: what was true of it, and ours; made anew where that was changed."""
_LOCK = threading.Lock()


def served(lm: dspy.BaseLM, settings: Settings) -> dspy.BaseLM:
    """Return a model as it is asked: a user's own at a server, with its history, by our client."""
    address = _address_of(lm)
    if address is None:
        return lm
    facts = (lm.model, dict(lm.kwargs), lm.cache, list(lm.callbacks), settings.kept_dir)
    with _LOCK:
        known, own = _SERVED.get(lm, (None, lm))
        if known != facts:
            own = _at_server(lm, address, settings)
            _SERVED[lm] = facts, own
    own.history = lm.history
    return own


def _address_of(lm: dspy.BaseLM) -> str | None:
    """Return the server's address that a user's model names; None if it is not for our client."""
    if type(lm) is not dspy.LM or lm.engine not in {"auto", "lm15"} or lm.model_type != "chat":
        return None
    given = {name: value for name, value in lm.kwargs.items() if value is not None}
    provider = lm.model.partition("/")[0]
    is_plain = given.keys() <= _TAKEN and isinstance(given.get("api_key", ""), str)
    is_plain = is_plain and isinstance(given.get("timeout", 1.0), int | float)
    if not is_plain or provider not in SERVER_PROVIDERS - _OTHER_PROTOCOLS:
        return None
    try:
        return checked_api_base(given.get("api_base") or given.get("base_url"))
    except ValueError:  # DSPy says what is wrong
        return None


def _at_server(lm: dspy.LM, address: str, settings: Settings) -> dspy.LM:
    """Return a copy of a user's model that asks through our client, under the user's name."""
    provider, _, model = lm.model.partition("/")
    # DSPy, too, sends a provider's key of the environment to the address that a user gives with it.
    given = lm.kwargs.get("api_key") or os.environ.get(f"{provider.upper()}_API_KEY", "")
    key = usable_key(f"api_key of dspy.LM({lm.model!r})", given)
    connection = server_connection(model, address, key or None, lm.kwargs.get("timeout"))
    connection = connection._replace(lm_name=lm.model, wire_model=connection.lm_name)
    if priced := route(lm.model):
        connection = connection._replace(priced_as=(priced.provider, priced.model))
    declared = declared_traits(CAPABILITIES, address)
    record = record_of(server_name(model, address), address, settings.kept_dir, declared)
    secrets = {"api_key": key} if key else {}
    limits = settings.models.image_limits(provider, address)
    engine = ReferenceEngine(connection, limits, record, lm.model, address, secrets)
    reached_by: dict[str, Any] = dict.fromkeys(_CLIENT & lm.kwargs.keys())
    return lm.copy(engine=engine, **reached_by)


def declared_traits(able: Mapping[str, Any], api_base: str | None) -> dict[str, Any]:
    """Return what a client says of a model, which goes before what its service says."""
    params = able["supported_params"]
    declared: dict[str, Any] = {
        "takes_references": True,
        "takes_bounds": api_base is not None,
        "knows_schemas": bool(able["supports_response_schema"]) and "response_format" in params,
    }
    if "logprobs" not in params:
        declared["token_probabilities"] = 0
    return declared
