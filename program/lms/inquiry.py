"""What a service says of itself: asked before its first question, and read from its refusals."""

import io
import json
import logging
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from dspy import lm15

from program.common.errors import EndpointError, ImagesRefused

__all__ = (
    "context_is_full", "inquire", "largest_choice", "listed_traits", "model_is_missing", "names_images",
    "refused_fields", "wants_other_limit", "words_of",
)  # fmt: skip

logger = logging.getLogger(__name__)

LISTING_TIMEOUT_S = 10
MOST_ALTERNATIVES = 20
"""Asked for with each token; the most that hosted servers give."""


def inquire(engine: Any) -> None:
    """Fill the record of an engine's model in. Raises EndpointError where nothing answers, or not under this name."""
    record, address = engine.record, engine.address
    found = listed_traits(address, engine.model, engine.secrets)
    names = found.get("models", ())
    if names and engine.model not in names and len(names) == 1:
        found["wire_model"] = names[0]
    record.learn(**found)
    sighted = record.traits.reads_images is None
    if sighted or record.traits.token_probabilities is None:
        _probe(engine, sighted=sighted)
    record.finish()
    logger.info("%s: %s", engine.name, record.traits.model_dump_json(exclude_defaults=True))


def listed_traits(address: str, model: str, secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return what a server's own pages say of a model: llama.cpp's, vLLM's, LM Studio's, Ollama's, OpenRouter's.

    `secrets` holds the server's key, if any, by the variable that it comes from. Raises EndpointError where no server
    answers or the key is refused.
    """
    variable, key = next(iter(secrets.items()), ("AGENTICIQA_API_KEY", None))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    root = re.sub(r"/v\d+$", "", address)
    listing = _page(f"{address}/models", headers, key_variable=variable)
    entries = [entry for entry in (listing or {}).get("data") or () if isinstance(entry, Mapping)]
    names = tuple(str(entry.get("id")) for entry in entries)
    found: dict[str, Any] = {"models": names} if names else {}
    entry = next((e for e in entries if e.get("id") == model), entries[0] if len(entries) == 1 else {})
    modalities = (entry.get("architecture") or {}).get("input_modalities")
    if isinstance(modalities, list) and modalities:
        found["reads_images"] = "image" in modalities
    lengths = [entry.get(name) for name in ("max_model_len", "context_length", "max_context_length")]
    lengths.append((entry.get("meta") or {}).get("n_ctx"))
    if entry.get("owned_by") == "llamacpp" or "n_ctx" in (entry.get("meta") or {}):
        properties = _page(f"{root}/props", headers) or {}
        vision = (properties.get("modalities") or {}).get("vision")
        if isinstance(vision, bool):
            found["reads_images"] = vision
        lengths.insert(0, (properties.get("default_generation_settings") or {}).get("n_ctx"))
    elif entry.get("owned_by") == "library":  # Ollama's models
        shown = _page(f"{root}/api/show", headers, {"model": model}) or {}
        if isinstance(able := shown.get("capabilities"), list) and able:
            found["reads_images"] = "vision" in able
        lengths += [n for name, n in (shown.get("model_info") or {}).items() if name.endswith(".context_length")]
    known = [n for n in lengths if isinstance(n, int) and n > 0]
    return {**found, **({"context_tokens": known[0]} if known else {})}


def _page(
    url: str, headers: Mapping[str, str], body: Mapping[str, Any] | None = None, *, key_variable: str | None = None
) -> dict[str, Any] | None:
    """Return the JSON object at an address; None for anything else, which a server need not have.

    With `key_variable` something must answer, and take the key: EndpointError else.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {**headers, "Content-Type": "application/json"})  # noqa: S310 (checked in settings: http or https)
    try:
        with urllib.request.urlopen(request, timeout=LISTING_TIMEOUT_S) as answer:  # noqa: S310
            page = json.loads(answer.read(4 << 20))
    except urllib.error.HTTPError as error:
        if key_variable and error.code in {401, 403}:
            server = url.removesuffix("/models")
            raise EndpointError(f"{server} refuses the key; set the key of this server in {key_variable}") from None
        return None
    except ValueError:
        return None
    except OSError as error:
        if key_variable:
            server, reason = url.removesuffix("/models"), getattr(error, "reason", None) or error
            mend = "start it, or give its address with --api-base"
            raise EndpointError(f"no server answers at {server} ({reason}); {mend}") from None
        return None
    return page if isinstance(page, dict) else None


def _probe(engine: Any, *, sighted: bool) -> None:
    """Ask for one token, with a small picture where it is open whether the model reads any."""
    parts: tuple[Any, ...] = (lm15.TextPart(text="Is this picture good or bad? Answer with one word."),)
    if sighted:
        parts = (*parts, lm15.ImagePart(data=_dot(), media_type="image/png"))
    config = lm15.Config(max_tokens=1, temperature=0.0, logprobs=MOST_ALTERNATIVES)
    request = lm15.Request(model=engine.lm_name, messages=(lm15.Message(role="user", parts=parts),), config=config)
    try:
        response = engine.complete(request)
    except (lm15.LM15Error, ImagesRefused) as error:
        if sighted and engine.record.traits.reads_images is False:
            return _probe(engine, sighted=False)
        if isinstance(error, lm15.AuthError):
            raise
        logger.info("%s: the question of one token failed (%s)", engine.name, " ".join(str(error).split())[:200])
        return None
    tokens = response.logprobs or ()
    alternatives = max((len(token.top or ()) for token in tokens), default=0)
    found: dict[str, Any] = {"token_probabilities": alternatives}
    if sighted:
        found["reads_images"] = True
    engine.record.learn(**found)
    return None


def _dot() -> str:
    """Return a grey square of 64 px as PNG in base64; smaller ones are refused by some models."""
    import base64

    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (128, 128, 128)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


_IMAGES = re.compile(
    r"image input is not supported|mmproj|unsupported content part|content type.{0,20}image|not a multimodal model"
    r"|(?:does|do)(?: not|n't) support (?:image|vision|multimodal)|support image input|(?:image|vision)\S* (?:input )?"
    r"(?:is|are) not supported|no endpoints found that support image"
    r"|image_url.{0,40}(?:not|invalid|unsupported|expected)|(?:invalid|unsupported|unknown).{0,40}image_url"
    r"|at most 0 image|cannot (?:read|process|see) images?",
    re.IGNORECASE,
)
"""llama.cpp, vLLM, LM Studio, OpenRouter, LiteLLM's proxy and OpenAI, each in its own words."""
_CONTEXT = re.compile(
    r"context[ _](?:length|size|window)|maximum context|exceeds? (?:the )?(?:available )?context|prompt is too long"
    r"|too many (?:input )?tokens",
    re.IGNORECASE,
)
_MODEL = re.compile(
    r"model\b.{0,120}(?:not found|does not exist|not exist|not loaded|unknown|no such)"
    r"|(?:no such|unknown|invalid) model|model_not_found",
    re.IGNORECASE | re.DOTALL,
)
_FIELDS = {
    "response_format": r"response_?format|json_?schema|structured|guided|grammar|schema",
    "logprobs": r"log_?prob",
    "temperature": r"temperature",
    "seed": r"\bseed\b",
}
"""What a request can do without, and the words a refusal names it by."""
_STATUSES = frozenset({400, 404, 415, 422, 500, 501})
"""What servers answer unknown or unsupported fields with; llama.cpp gives 500 for a schema it cannot use."""


def words_of(error: lm15.LM15Error) -> str:
    """Return what a service said, on one line."""
    return " ".join(f"{error.message} {error.provider_code or ''}".split())


def names_images(words: str) -> bool:
    """Return whether a refusal of a request with images says that the model reads none.

    >>> names_images("image input is not supported - hint: you may need to provide the mmproj")
    True
    >>> names_images("too many requests")
    False
    """
    return bool(_IMAGES.search(words))


def context_is_full(error: lm15.LM15Error) -> bool:
    """Return whether a request was longer than the model's context."""
    full = error.status in _STATUSES and _CONTEXT.search(words_of(error))
    return isinstance(error, lm15.ContextLengthError) or bool(full)


def model_is_missing(error: lm15.LM15Error) -> bool:
    """Return whether a server has no model of that name."""
    return error.status in {400, 404, 422, 500} and bool(_MODEL.search(words_of(error)))


def refused_fields(error: lm15.LM15Error) -> list[str]:
    """Return the fields of a request that an error refuses by name."""
    if error.status not in _STATUSES or isinstance(error, lm15.ContextLengthError | lm15.AuthError):
        return []
    words = words_of(error)
    return [name for name, pattern in _FIELDS.items() if re.search(pattern, words, re.IGNORECASE)]


def wants_other_limit(error: lm15.LM15Error, field: str) -> bool:
    """Return whether an error refuses the field `max_tokens` or `max_completion_tokens` of a request.

    OpenAI's names the other one: "Unsupported parameter: 'max_tokens' ... Use 'max_completion_tokens' instead."
    """
    words, refusal = words_of(error), r"not supported|unsupported|unknown|unrecognized|unexpected|not permitted|instead"
    names_it = re.search(rf"(?<![a-z_]){field}\b", words)
    return error.status in _STATUSES and bool(names_it and re.search(refusal, words, re.IGNORECASE))


def largest_choice(words: str) -> int | None:
    """Return the most alternatives that a refusal of `top_logprobs` allows.

    >>> largest_choice("Invalid value: 'top_logprobs' must be less than or equal to 5")
    5
    """
    limits = [int(n) for n in re.findall(r"\d+", words.partition("top_logprobs")[2]) if 1 <= int(n) < 20]
    return max(limits, default=None)
