"""What a service refuses, read from its words: a table of patterns, each as services say it."""

import re

from dspy import lm15

_STATUSES = frozenset({400, 404, 415, 422, 500, 501})
"""Of unknown or unsupported fields; llama.cpp gives 500 for a schema it cannot use."""
_LACKS = "not supported|unsupported|unknown|unrecognized|unexpected|not permitted|instead"
_PATTERNS = {
    # llama.cpp, vLLM, LM Studio, OpenRouter, LiteLLM's proxy and OpenAI, each in its own words
    "images": r"image input is not supported|mmproj|unsupported content part"
    r"|content type.{0,20}image|not a multimodal model"
    r"|(?:does|do)(?: not|n't) support (?:image|vision|multimodal)"
    r"|support image input|(?:image|vision)\S* (?:input )?(?:is|are) not supported"
    r"|no endpoints found that support image"
    r"|image_url.{0,40}(?:not|invalid|unsupported|expected)"
    r"|(?:invalid|unsupported|unknown).{0,40}image_url"
    r"|at most 0 image|cannot (?:read|process|see) images?",
    # OpenAI's names the other one, too: "Use 'max_completion_tokens' instead."
    "max_tokens": rf"\A(?=.*(?:{_LACKS})).*(?<![a-z_])max_tokens\b",
    "max_completion_tokens": rf"\A(?=.*(?:{_LACKS})).*(?<![a-z_])max_completion_tokens\b",
    "response_format": r"response_?format|json_?schema|structured|guided|grammar|schema",
    "logprobs": r"log_?prob",
    "temperature": r"temperature",
    "seed": r"\bseed\b",
    "context": r"context[ _](?:length|size|window)|maximum context"
    r"|exceeds? (?:the )?(?:available )?context|prompt is too long|too many (?:input )?tokens",
    "model": r"model\b.{0,120}(?:not found|does not exist|not exist|not loaded|unknown|no such)"
    r"|(?:no such|unknown|invalid) model|model_not_found",
}
"""By what is refused: images, a field of the request, its length, or the model's name."""
_COMPILED = {what: re.compile(pattern, re.IGNORECASE) for what, pattern in _PATTERNS.items()}
OMITTABLE = ("response_format", "logprobs", "temperature", "seed")
"""Fields that a request can do without."""


def words_of(error: lm15.LM15Error) -> str:
    """Return what a service said, on one line."""
    return " ".join(f"{error.message} {error.provider_code or ''}".split())


def refused(words: str, status: int | None) -> list[str]:
    """Return what a service's words, on one line, may refuse, as the table calls it.

    >>> refused("image input is not supported - hint: you may need to provide the mmproj", 500)
    ['images']
    >>> refused("Unsupported parameter: 'max_tokens'; use 'max_completion_tokens'", 400)
    ['max_tokens', 'max_completion_tokens']
    >>> refused("too many requests of this seed", 429)
    []
    """
    named = [what for what, pattern in _COMPILED.items() if pattern.search(words)]
    if status in _STATUSES:
        return named
    return ["images"] if "images" in named else []  # of whatever status


def fewer_alternatives(words: str, asked: int) -> int | None:
    """Return the most alternatives that a refusal of `top_logprobs` allows, fewer than were asked for.

    >>> fewer_alternatives("Invalid value: 'top_logprobs' must be less than or equal to 5", 20)
    5
    """
    numbers = map(int, re.findall(r"\d+", words.partition("top_logprobs")[2]))
    return max((number for number in numbers if 1 <= number < asked), default=None)
