"""A language model per role, by name: the embedded expert, a hosted model, or any OpenAI-compatible server."""

import functools
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import dspy
from dspy import lm15
from dspy.clients.engines import AsyncLM15Engine, LM15Engine
from dspy.utils.exceptions import LMConfigurationError

from program.backends import SERVER_PROVIDERS, BackendSettings, RoleSettings
from program.cache import use_lm_cache
from program.errors import ModelError
from program.lms.adapter import KeptAdapter
from program.lms.reference_engine import AsyncReferenceEngine, ReferenceEngine, Service
from program.lms.transport import ImageTransport
from program.lms.wire_images import limits_for

__all__ = ("SERVER_KEY", "adapter_for", "api_key_of", "build_lm", "is_embedded", "model_name", "resolves_references")

SERVER_KEY = "AGENTICIQA_API_KEY"
"""Environment variable with the key for a server given by `api_base` (a provider's own key never goes there)."""
EMBEDDED = "perceptual/expert"


def model_name(backend: str) -> str:
    """Return `provider/model` for `provider.model` or `provider/model`; ModelError for anything else.

    >>> model_name("openai.gpt-4o"), model_name("openai/gpt-4o")
    ('openai/gpt-4o', 'openai/gpt-4o')
    """
    if "/" in backend and not re.search(r"\s|^/|/$", backend):
        return backend
    provider, dot, model = backend.partition(".")
    if dot and provider.isidentifier() and model and not re.search(r"\s", model):
        return f"{provider}/{model}"
    raise ModelError(f"model {backend!r}: not of the form provider/model; try 'perceptual/expert' or 'openai/gpt-4o'")


def build_lm(role: RoleSettings, *, cache_dir: Path | None) -> dspy.LM:
    """Return the LM a role's settings name. No connection is made; keys are read from the environment only."""
    entry = role.entry or BackendSettings()
    name = _named(role)
    options = {"temperature": role.temperature, "max_tokens": role.max_tokens}
    if name.startswith(f"{EMBEDDED.partition('/')[0]}/"):
        from program.lms.perceptual import MODEL, make_perceptual_lm

        if name not in {EMBEDDED, MODEL}:
            if name.partition("@")[0] != EMBEDDED:
                raise ModelError(f"model {name!r}: unknown (did you mean {EMBEDDED!r}?)")
            raise ModelError(f"model {name!r}: this version holds {MODEL!r}; use that name or plain {EMBEDDED!r}")
        return make_perceptual_lm(cache_dir, **options)
    if cache_dir is not None:
        use_lm_cache(cache_dir / "lm-answers")
    api_base, key = entry.api_base or role.api_base, api_key_of(role)
    if entry.key_env and not key:
        raise ModelError(f"model {role.backend!r}: its key_env {entry.key_env} is not set; export it first")
    images = role.images or limits_for(name)
    connection = _hosted(name, key) if api_base is None else _at_address(name, api_base, key)
    if connection is None:
        _check_provider(role.backend, name)
        return dspy.LM(name, **_allowed(name, options), **({"api_key": key} if key else {}))
    service = Service(
        _with_entry(connection.capabilities, entry), images, connection.wire_model, connection.priced_as, role.backend,
        api_base,
        {entry.key_env or SERVER_KEY: key} if key else {},
    )  # fmt: skip
    return dspy.LM(
        connection.lm_name,
        engine=_engine(connection, service),
        async_engine=AsyncReferenceEngine(AsyncLM15Engine(connection.config), service),
        **_allowed(name, options),
    )


def api_key_of(role: RoleSettings) -> str | None:
    """Return the key of a named backend or of a server, from the environment; None where a provider's own is used."""
    entry = role.entry or BackendSettings()
    variable = entry.key_env or (SERVER_KEY if entry.api_base or role.api_base else None)
    return os.environ.get(variable) or None if variable else None


@dataclass(frozen=True)
class _Connection:
    lm_name: str
    """What caches, histories and records call the model."""
    wire_model: str | None
    config: Any = field(repr=False)
    capabilities: Mapping[str, Any]
    server: str | None = None
    """The address of a server of the plain protocol, to which nothing is signed over its body."""
    priced_as: tuple[str, str] | None = None


def _engine(connection: "_Connection", service: Service) -> ReferenceEngine:
    if connection.server is None:
        return ReferenceEngine(LM15Engine(connection.config), service)
    transport = ImageTransport.to(connection.server)
    return ReferenceEngine(LM15Engine(replace(connection.config, transport=transport)), service, transport)


def _named(role: RoleSettings) -> str:
    """Return `provider/model` for a role, looking its backend up where it is an entry's name."""
    if role.entry is None:
        return model_name(role.backend)
    name, _, model = role.backend.partition("/")
    model = model or role.entry.model or ""
    if not model:
        raise ModelError(f"model {name!r}: this backend has no model of its own; give one as {name}/MODEL")
    return f"{role.entry.provider}/{model}"


def _at_address(name: str, api_base: str, key: str | None) -> _Connection:
    """Connect to an OpenAI-compatible server, or to a gateway that speaks another provider's protocol."""
    provider, _, model = name.partition("/")
    # DSPy's cache is keyed by the model string: the same name at two addresses must not share answers.
    digest = hashlib.sha256(api_base.encode()).hexdigest()[:8]
    if provider in SERVER_PROVIDERS or not _is_hosted(name):
        definition = _server(f"server-{digest}", api_base)
        config = lm15.RouterConfig(env={}, providers=(definition,), api_keys={definition.id: key} if key else {})
        return _Connection(f"{definition.id}/{model}", None, config, _SERVER_CAPABILITIES, api_base)
    capabilities = _declared_capabilities(name) or _SERVER_CAPABILITIES
    door = LM15Engine(lm15.RouterConfig(env={})).resolve(name).provider
    config = lm15.RouterConfig(env={}, base_urls={door: api_base}, api_keys={door: key or "none"})
    return _Connection(f"{provider}-{digest}/{model}", name, config, capabilities)


def _hosted(name: str, key: str | None) -> _Connection | None:
    """Connect to a hosted model by its provider's own key; None when only LiteLLM can reach it."""
    prefix = name.partition("/")[0].upper()
    capabilities = _declared_capabilities(name)
    # Where the environment names a gateway (OPENAI_BASE_URL), LiteLLM goes there; the key is not for the provider.
    if capabilities is None or any(os.environ.get(f"{prefix}_{end}") for end in ("API_BASE", "BASE_URL")):
        return None
    route = LM15Engine(lm15.RouterConfig(env={})).resolve(name)
    config = lm15.RouterConfig(api_keys={route.provider: key} if key else None)
    return _Connection(name, None, config, capabilities, priced_as=(route.provider, route.model))


def _check_provider(backend: str, name: str) -> None:
    """Raise ModelError for a provider that neither DSPy nor LiteLLM knows."""
    import litellm

    provider, _, model = name.partition("/")
    known = {str(getattr(p, "value", p)) for p in litellm.provider_list}
    if provider not in known:
        close = get_close_matches(provider, {*known, "perceptual"}, n=1, cutoff=0.75)
        hint = f"did you mean '{close[0]}/{model}'?" if close else "for a server of your own give --api-base"
        raise ModelError(f"model {backend!r}: there is no provider {provider!r}; {hint}")


_SERVER_CAPABILITIES: dict[str, Any] = {
    "supports_response_schema": True,
    "supports_function_calling": False,
    "supports_reasoning": False,
    "supported_params": frozenset({"response_format", "temperature", "max_tokens", "logprobs", "top_logprobs", "seed"}),
}


def _with_entry(capabilities: Mapping[str, Any], entry: BackendSettings) -> Mapping[str, Any]:
    """Take away what a named backend is said to lack."""
    lacking = set() if entry.logprobs else {"logprobs", "top_logprobs"}
    if not entry.structured_output:
        lacking.add("response_format")
    return {
        **capabilities,
        "supports_response_schema": capabilities["supports_response_schema"] and entry.structured_output,
        "supported_params": frozenset(capabilities["supported_params"]) - lacking,
    }


def _allowed(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options a model takes: OpenAI's reasoning models set their own temperature and need room to think."""
    try:
        dspy.LM(name, **options)
    except LMConfigurationError:
        return {"temperature": None, "max_tokens": None}
    return dict(options)


def _server(provider: str, api_base: str) -> Any:
    return lm15.ProviderDefinition.chat(
        lm15.AccessPolicy(
            provider=provider,
            supports=lm15.EndpointSupport(complete=True, stream=True, models=True),
            auth_modes=("bearer",),
            base_url=api_base,
        ),
        compat=lm15.OpenAIChatCompat(max_tokens_field="max_tokens", instruction_role="system"),
        placeholder_key="none",
    )


def _is_hosted(name: str) -> bool:
    try:
        LM15Engine(lm15.RouterConfig(env={})).resolve(name)
    except (lm15.UnknownModelError, lm15.UnsupportedFeatureError):
        return False
    return True


def _declared_capabilities(name: str) -> dict[str, Any] | None:
    """Return what DSPy knows of a hosted model, or None when only LiteLLM can reach it."""
    if not _is_hosted(name):
        return None
    plain = dspy.LM(name)
    return {
        "supports_response_schema": plain.supports_response_schema,
        "supports_function_calling": plain.supports_function_calling,
        "supports_reasoning": plain.supports_reasoning,
        "supported_params": frozenset(plain.supported_params),
    }


def resolves_references(lm: dspy.BaseLM | None) -> bool:
    """Return whether an LM's engine swaps image references for bytes itself."""
    return bool(getattr(getattr(lm, "engine", None), "resolves_references", False))


@functools.cache
def _adapter(*, embedded: bool) -> dspy.Adapter:
    if not embedded:
        return KeptAdapter()
    from program.lms.perceptual import CallAdapter

    return CallAdapter()


def adapter_for(lm: dspy.BaseLM | None) -> dspy.Adapter:
    """Return the adapter an LM is asked through: JSON, with the structured call for the embedded expert."""
    return _adapter(embedded=is_embedded(lm))


def is_embedded(lm: dspy.BaseLM | None) -> bool:
    """Return whether an LM is the embedded expert: no network, no price."""
    return str(getattr(lm, "model", "")).startswith(EMBEDDED)
