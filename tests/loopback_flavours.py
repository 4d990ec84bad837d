"""How servers differ: what each says of itself, and in which words it refuses what it cannot do."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Refusal = tuple[int, str, str]
"""Status, words, and the error's type and code."""
_INVALID = "invalid_request_error"


class Flavour(NamedTuple):
    """One kind of server. `{model}`, `{context}` and `{tokens}` in its words are the request's."""

    owned_by: str = "loopback"
    no_images: "Refusal | None" = (400, "{model} does not support image input.", _INVALID)
    """None: images are lost without a word."""
    no_model: "Refusal | None" = None
    """None: any name means the model that is there."""
    context_full: Refusal = (
        400, "This model's maximum context length is {context} tokens. However, your messages resulted in {tokens} "
        "tokens. Please reduce the length of the messages.", "context_length_exceeded",
    )  # fmt: skip
    refuses: Mapping[str, Refusal] = {}
    """By a field of the request, or `field=value`, where `value` is its `type`."""
    most_alternatives: int = 20
    """That come with a token where they are asked for; 0: log-probabilities are accepted and left out."""
    ignores: frozenset[str] = frozenset()
    """Fields that change nothing."""


_OTHER_LIMIT = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)
_NO_EYES = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
_LMSTUDIO_FORM = "'response_format.type' must be 'json_schema' or 'text'"
FLAVOURS: Mapping[str, Flavour] = {
    "": Flavour(),
    "llamacpp": Flavour(
        "llamacpp",
        (500, _NO_EYES, "server_error"),
        context_full=(400, "the request exceeds the available context size, try increasing it", "exceed_context_size"),
    ),
    "vllm": Flavour(
        "vllm", (400, "{model} is not a multimodal model None", "BadRequestError"),
        (404, "The model `{model}` does not exist.", "NotFoundError"),
    ),
    "lmstudio": Flavour(
        "organization_owner", (400, "Model does not support images. Please use a model that does.", _INVALID),
        refuses={"response_format=json_object": (400, _LMSTUDIO_FORM, _INVALID)}, most_alternatives=0,
    ),
    "openrouter": Flavour(
        "openrouter", (404, "No endpoints found that support image input", "not_found"),
        (400, "{model} is not a valid model ID", _INVALID),
    ),
    "ollama": Flavour(
        "library", None, (404, 'model "{model}" not found, try pulling it first', "api_error"),
        ignores=frozenset({"max_completion_tokens"}),
    ),
    "azure": Flavour(
        "system",
        refuses={"max_tokens": (400, _OTHER_LIMIT, "unsupported_parameter")},
    ),
}  # fmt: skip


def page(server: Any, method: str, path: str) -> dict[str, Any] | None:
    """Return what a server says of itself at an address; None where there is no such page."""
    flavour, context = server.flavour, server.context_tokens
    entry: dict[str, Any] = {"object": "model", "created": 1, "owned_by": flavour.owned_by}
    if server.modalities is not None:
        entry["architecture"] = {"input_modalities": list(server.modalities)}
    if context and flavour.owned_by != "library":
        entry |= {"meta": {"n_ctx": context}} if flavour.owned_by == "llamacpp" else {"max_model_len": context}
    if (method, path) == ("GET", "/v1/models"):
        return {"object": "list", "data": [{"id": model, **entry} for model in server.models]}
    if (method, path) == ("GET", "/props") and flavour.owned_by == "llamacpp":
        return {"modalities": {"vision": server.sees}, "default_generation_settings": {"n_ctx": context or 4096}}
    if (method, path) == ("POST", "/api/show") and flavour.owned_by == "library":
        able = ["completion", *(["vision"] if server.sees else [])]
        return {"capabilities": able, "model_info": {"qwen2.context_length": context or 4096}}
    return None


def refusal(server: Any, question: Any) -> Refusal | None:
    """Return how a server refuses a question; None where it does not."""
    flavour, tokens = server.flavour, len(question.text) // 4
    form = question.body.get("response_format") or {}
    given = {*question.body, f"response_format={form.get('type')}"} - flavour.ignores
    refuses = {**dict.fromkeys(server.refuses), **flavour.refuses}
    found = None
    if flavour.no_model and question.model not in server.models:
        found = flavour.no_model
    elif question.images and not server.sees:
        found = flavour.no_images
    elif server.context_tokens and tokens > server.context_tokens:
        found = flavour.context_full
    elif name := next((name for name in refuses if name in given), None):
        found = refuses[name] or (400, f"Unrecognized request argument supplied: {name}", _INVALID)
    if found is None:
        return None
    status, words, code = found
    return status, words.format(model=question.model, context=server.context_tokens, tokens=tokens), code
