"""A language model per role, by name: the embedded expert, a hosted model, or any OpenAI-compatible server."""

import functools
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy
from dspy import lm15
from dspy.clients.engines import AsyncLM15Engine, LM15Engine

from program.errors import ModelError
from program.lms.reference_engine import AsyncReferenceEngine, ReferenceEngine
from program.settings import RoleSettings

__all__ = ("SERVER_KEY", "adapter_for", "build_lm", "model_name", "resolves_references")

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
    name = model_name(role.backend)
    options = {"temperature": role.temperature, "max_tokens": role.max_tokens}
    if name.partition("@")[0] == EMBEDDED:
        from program.lms.perceptual import MODEL, make_perceptual_lm

        if name not in {EMBEDDED, MODEL}:
            raise ModelError(f"model {name!r}: this version holds {MODEL!r}; use that name or plain {EMBEDDED!r}")
        return make_perceptual_lm(cache_dir, **options)
    return _remote_lm(name, role.api_base, options)


def _remote_lm(name: str, api_base: str | None, options: Mapping[str, Any]) -> dspy.LM:
    config: dict[str, Any] = {}
    capabilities: dict[str, Any] | None
    if api_base is not None:
        if not re.match(r"https?://[^/\s]+", api_base):
            raise ModelError(f"api_base {api_base!r}: not an http(s) URL; give one as http://127.0.0.1:8000/v1")
        definition = _server(api_base)
        key = os.environ.get(SERVER_KEY)
        config = {"providers": (definition,), "api_keys": {definition.id: key} if key else {}}
        # DSPy's cache is keyed by the model string: the same name on two servers must not share answers.
        name = f"{definition.id}/{name.partition('/')[2]}"
        capabilities = _SERVER_CAPABILITIES
    else:
        capabilities = _declared_capabilities(name)
        if capabilities is None:
            return dspy.LM(name, **options)
    try:
        engine = LM15Engine(lm15.RouterConfig(**config))
        engine.resolve(name)
    except (lm15.UnknownModelError, lm15.UnsupportedFeatureError) as error:
        raise ModelError(f"model {name!r}: {error}") from error
    return dspy.LM(
        name,
        engine=ReferenceEngine(engine, capabilities),
        async_engine=AsyncReferenceEngine(AsyncLM15Engine(lm15.RouterConfig(**config)), capabilities),
        **options,
    )


_SERVER_CAPABILITIES: dict[str, Any] = {
    "supports_response_schema": True,
    "supports_function_calling": False,
    "supports_reasoning": False,
    "supported_params": frozenset({"response_format", "temperature", "max_tokens", "logprobs", "top_logprobs", "seed"}),
}


def _server(api_base: str) -> Any:
    digest = hashlib.sha256(api_base.encode()).hexdigest()[:8]
    return lm15.ProviderDefinition.chat(
        lm15.AccessPolicy(
            provider=f"server-{digest}",
            supports=lm15.EndpointSupport(complete=True, stream=True, models=True),
            auth_modes=("bearer",),
            base_url=api_base.rstrip("/"),
        ),
        compat=lm15.OpenAIChatCompat(max_tokens_field="max_tokens", instruction_role="system"),
        placeholder_key="none",
    )


def _declared_capabilities(name: str) -> dict[str, Any] | None:
    """Return what DSPy knows of a hosted model, or None when only LiteLLM can reach it."""
    try:
        LM15Engine(lm15.RouterConfig(env={})).resolve(name)
    except (lm15.UnknownModelError, lm15.UnsupportedFeatureError):
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
        return dspy.JSONAdapter()
    from program.lms.perceptual import CallAdapter

    return CallAdapter()


def adapter_for(lm: dspy.BaseLM | None) -> dspy.Adapter:
    """Return the adapter an LM is asked through: JSON, with the structured call for the embedded expert."""
    return _adapter(embedded=str(getattr(lm, "model", "")).startswith(EMBEDDED))
