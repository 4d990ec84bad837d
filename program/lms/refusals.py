"""What a service's refusal means, by its words: statuses differ between servers. Pure."""

import re

from dspy import lm15

__all__ = (
    "context_is_full", "largest_choice", "model_is_missing", "names_images", "refused_fields", "wants_other_limit",
    "words_of",
)  # fmt: skip

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
