"""What a model can do, in one record: an engine declares it, a service is asked and learnt from."""

import hashlib
import io
import json
import logging
import re
import threading
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import dspy
from dspy import lm15
from pydantic import BaseModel, ConfigDict, ValidationError

from program.common.addresses import proxies_for
from program.common.cli import MODEL_RECORDS
from program.common.errors import EndpointError, ImagesRefused
from program.common.files import write_whole
from program.common.keys import redact

logger = logging.getLogger(__name__)

LISTING_TIMEOUT_S = 10
MOST_ALTERNATIVES = 20
"""Asked for with each token; the most that hosted servers give."""


def inquire(engine: Any) -> None:
    """Fill the record of an engine's model in; EndpointError where nothing answers under its name."""
    record, address = engine.record, engine.address
    found = listed_traits(address, engine.model, engine.secrets)
    names = found.get("models", ())
    if names and engine.model not in names and len(names) == 1:
        found["wire_model"] = names[0]
    record.learn(**found)
    sighted = record.traits.reads_images is None
    is_open = sighted or record.traits.token_probabilities is None
    if is_open and not _probe(engine, sighted=sighted):
        return  # it is asked again with the next question
    record.learn(asked=datetime.now(UTC).date().isoformat())
    logger.info("%s: %s", engine.name, record.traits.model_dump_json(exclude_defaults=True))


_LENGTHS = ("max_model_len", "context_length", "max_context_length")


def listed_traits(address: str, model: str, secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return what a server's pages say of a model: llama.cpp, vLLM, LM Studio, Ollama, OpenRouter.

    `secrets` holds the server's key, if any, by the variable that it comes from. Raises EndpointError
    where no server answers or the key is refused.
    """
    root = re.sub(r"/v\d+$", "", address)
    listing = _page(f"{address}/models", secrets, must_answer=True)
    entries = [entry for entry in (listing or {}).get("data") or () if isinstance(entry, Mapping)]
    names = tuple(str(entry.get("id")) for entry in entries)
    found: dict[str, Any] = {"models": names} if names else {}
    only: Mapping[str, Any] = entries[0] if len(entries) == 1 else {}
    entry = next((each for each in entries if each.get("id") == model), only)
    modalities = (entry.get("architecture") or {}).get("input_modalities")
    if isinstance(modalities, list) and modalities:
        found["reads_images"] = "image" in modalities
    lengths = [entry.get(name) for name in _LENGTHS]
    lengths.append((entry.get("meta") or {}).get("n_ctx"))
    if entry.get("owned_by") == "llamacpp" or "n_ctx" in (entry.get("meta") or {}):
        properties = _page(f"{root}/props", secrets) or {}
        vision = (properties.get("modalities") or {}).get("vision")
        if isinstance(vision, bool):
            found["reads_images"] = vision
        lengths.insert(0, (properties.get("default_generation_settings") or {}).get("n_ctx"))
    elif entry.get("owned_by") == "library":  # Ollama's models
        shown = _page(f"{root}/api/show", secrets, {"model": model}) or {}
        if isinstance(able := shown.get("capabilities"), list) and able:
            found["reads_images"] = "vision" in able
        for name, length in (shown.get("model_info") or {}).items():
            if name.endswith(".context_length"):
                lengths.append(length)
    known = [length for length in lengths if isinstance(length, int) and length > 0]
    if known:
        found["context_tokens"] = known[0]
    return found


def _page(
    url: str,
    secrets: Mapping[str, str],
    body: Mapping[str, Any] | None = None,
    *,
    must_answer: bool = False,
) -> dict[str, Any] | None:
    """Return the JSON object at an address, without the key; None for anything else.

    With `must_answer` something has to, and to take the key: EndpointError else.
    """
    variable, key = next(iter(secrets.items()), ("AGENTICIQA_API_KEY", None))
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    # Settings take addresses of http and https alone.
    request = urllib.request.Request(url, data, headers)  # noqa: S310
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies_for(url)))
        with opener.open(request, timeout=LISTING_TIMEOUT_S) as answer:
            page = json.loads(redact(answer.read(4 << 20).decode("utf-8", "replace"), secrets))
    except ValueError:
        return None
    except OSError as error:
        server, status = url.removesuffix("/models"), getattr(error, "code", None)
        if must_answer and status in {401, 403}:
            mend = f"set the key of this server in {variable}"
            raise EndpointError(f"{server} refuses the key; {mend}") from None
        if must_answer and status is None:
            reason = getattr(error, "reason", None) or error
            mend = "start it, or give its address with --api-base"
            raise EndpointError(f"no server answers at {server} ({reason}); {mend}") from None
        return None
    return page if isinstance(page, dict) else None


_BUSY = {429, 503, 529}
"""Statuses of a service that says nothing of the model, as while it loads it."""


def _probe(engine: Any, *, sighted: bool) -> bool:
    """Ask for one token, with a picture where it is open whether any are read; False where it is busy."""
    text = lm15.TextPart(text="Is this picture good or bad? Answer with one word.")
    parts: tuple[Any, ...] = (text,)
    if sighted:
        parts = (text, lm15.ImagePart(data=_dot(), media_type="image/png"))
    config = lm15.Config(max_tokens=1, temperature=0.0, logprobs=MOST_ALTERNATIVES)
    message = lm15.Message(role="user", parts=parts)
    request = lm15.Request(model=engine.connection.lm_name, messages=(message,), config=config)
    try:
        response = engine.complete(request)
    except (lm15.LM15Error, ImagesRefused) as error:
        if sighted and engine.record.traits.reads_images is False:
            return _probe(engine, sighted=False)
        if isinstance(error, lm15.AuthError):
            raise
        logger.info(
            "%s: the question of one token failed (%s)",
            engine.name,
            " ".join(redact(str(error), engine.secrets).split())[:200],
        )
        return getattr(error, "status", None) not in _BUSY
    tokens = response.logprobs or ()
    alternatives = max((len(token.top or ()) for token in tokens), default=0)
    found: dict[str, Any] = {"token_probabilities": alternatives}
    if sighted:
        found["reads_images"] = True
    engine.record.learn(**found)
    return True


def _dot() -> str:
    """Return a grey square of 64 px as PNG in base64; smaller ones are refused by some models."""
    import base64

    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (128, 128, 128)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


_IMAGES = re.compile(
    r"image input is not supported|mmproj|unsupported content part|content type.{0,20}image"
    r"|not a multimodal model|(?:does|do)(?: not|n't) support (?:image|vision|multimodal)"
    r"|support image input|(?:image|vision)\S* (?:input )?"
    r"(?:is|are) not supported|no endpoints found that support image"
    r"|image_url.{0,40}(?:not|invalid|unsupported|expected)"
    r"|(?:invalid|unsupported|unknown).{0,40}image_url"
    r"|at most 0 image|cannot (?:read|process|see) images?",
    re.IGNORECASE,
)
"""llama.cpp, vLLM, LM Studio, OpenRouter, LiteLLM's proxy and OpenAI, each in its own words."""
_CONTEXT = re.compile(
    r"context[ _](?:length|size|window)|maximum context|exceeds? (?:the )?(?:available )?context"
    r"|prompt is too long|too many (?:input )?tokens",
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
"""Of unknown or unsupported fields; llama.cpp gives 500 for a schema it cannot use."""


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
    """Return whether an error refuses `max_tokens` or `max_completion_tokens`.

    OpenAI's names the other one, too: "Use 'max_completion_tokens' instead."
    """
    words = words_of(error)
    refusal = r"not supported|unsupported|unknown|unrecognized|unexpected|not permitted|instead"
    names_it = re.search(rf"(?<![a-z_]){field}\b", words)
    return error.status in _STATUSES and bool(names_it and re.search(refusal, words, re.IGNORECASE))


def largest_choice(words: str) -> int | None:
    """Return the most alternatives that a refusal of `top_logprobs` allows.

    >>> largest_choice("Invalid value: 'top_logprobs' must be less than or equal to 5")
    5
    """
    numbers = map(int, re.findall(r"\d+", words.partition("top_logprobs")[2]))
    limits = [number for number in numbers if 1 <= number < MOST_ALTERNATIVES]
    return max(limits, default=None)


class ModelTraits(BaseModel):
    """What one model at one address can do. None: not known yet."""

    model_config = ConfigDict(frozen=True, extra="ignore", arbitrary_types_allowed=True)

    reads_images: bool | None = None
    token_probabilities: int | None = None
    """Alternatives that come with each token; 0: none."""
    context_tokens: int | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    refused: Mapping[str, str] = {}
    """Fields of a request that the service refuses, with its words; they are left out."""
    thinks: bool = False
    """Reasons at length before it answers, so an answer needs all the tokens it is allowed."""
    answers_at_once: bool | None = None
    """Names distortions and score in one answer; False where it gave them in two alone."""
    wire_model: str | None = None
    """Its name on the server, where that serves one model alone and any name means it."""
    models: tuple[str, ...] = ()
    """That the server lists."""
    asked: str | None = None
    """The day that the service was asked; None: never."""

    revision: str | None = None
    """Its name with its revision, where what was compiled for one revision holds for no other."""
    embedded: bool = False
    """The expert in this process: it goes by figures and a rubric, where others go by words. It costs
    nothing, and what it answers depends on the question alone."""
    smoothing: float = 0.3
    """Share of an even spread (0..1) that its belief is mixed with; 0 where that is calibrated."""
    model_weight: float = 0.5
    """Power that its belief is raised to beside the tools', until a compile has measured its worth."""
    error_correlation: float = 0.0
    """Of the errors of its belief with those of a tool."""
    correlation_by_tool: Mapping[str, float] = {}
    """The same for tools with another one, by name."""
    adapter: dspy.Adapter | None = None
    """What it is asked through, whatever DSPy's settings say; None: the usual one."""
    takes_references: bool = False
    """Swaps references to images for their bytes itself; else the bytes go into the question."""
    knows_schemas: bool = False
    takes_bounds: bool = False
    """Of lists and texts in a JSON schema, which OpenAI's own service refuses."""

    @property
    def takes_schema(self) -> bool:
        """Whether the form of an answer travels as a JSON schema, and no text need describe it."""
        return self.knows_schemas and "response_format" not in self.refused


_NOTHING_KNOWN = ModelTraits()


class ModelRecord:
    """The traits of one model at one address so far; shared by all roles, kept in a file."""

    def __init__(self, file: Path | None = None, declared: Mapping[str, Any] | None = None) -> None:
        self.lock = threading.RLock()
        self._file, self._declared = file, dict(declared or {})

        self.known = _read(file) or ModelTraits()
        """What the service said, or its refusals."""

    @property
    def traits(self) -> ModelTraits:
        """What is known, under what flags and configuration declare."""
        return self.known.model_copy(update=self._declared) if self._declared else self.known

    def learn(self, **found: Any) -> None:
        """Correct the record, and keep it."""
        with self.lock:
            self.known = self.known.model_copy(update=found)
            if self._file is None:
                return
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._file, self.known.model_dump_json(exclude_defaults=True))
            except OSError as error:
                logger.info("what the model can do is not kept (%s)", error)
                self._file = None

    def refuse(self, field: str, words: str) -> None:
        """Leave a field out of every request from now on."""
        self.learn(refused={**self.known.refused, field: words})


_RECORDS: dict[tuple[Any, ...], ModelRecord] = {}
"""One for each model and address: roles and copies of a program share what one learns."""


def record_of(
    model: str,
    address: str | None,
    cache_dir: Path | None,
    declared: Mapping[str, Any] | None = None,
) -> ModelRecord:
    """Return the record of a model, kept below `cache_dir`, if any.

    `declared` traits go before what is found.
    """
    name = hashlib.sha256(f"{address} {model}".encode()).hexdigest()[:16]
    file = cache_dir / MODEL_RECORDS / f"{name}.json" if cache_dir is not None else None
    key = (model, address, file, json.dumps(declared or {}, sort_keys=True))
    return _RECORDS.setdefault(key, ModelRecord(file, declared))


def traits_of(lm: dspy.BaseLM | None) -> ModelTraits:
    """Return what a model can do; the service is asked now where it was not before.

    Raises EndpointError where the service cannot be asked: its address, key or model is wrong.
    """
    traits = getattr(getattr(lm, "engine", None), "traits", None)
    return traits if isinstance(traits, ModelTraits) else own_record(lm).traits


def known_traits(lm: dspy.BaseLM | None) -> ModelTraits:
    """Return what a model's engine declares, or what is known of its service; nothing is asked."""
    engine = getattr(lm, "engine", None)
    record = getattr(engine, "record", None)
    traits = record.traits if isinstance(record, ModelRecord) else getattr(engine, "traits", None)
    return traits if isinstance(traits, ModelTraits) else _NOTHING_KNOWN


def own_record(lm: dspy.BaseLM | None) -> ModelRecord:
    """Return a model's record; where its engine is not ours it lasts as long as the process."""
    record = getattr(getattr(lm, "engine", None), "record", None)
    if isinstance(record, ModelRecord):
        return record
    knows_schemas = bool(getattr(lm, "supports_response_schema", False))
    declared: dict[str, Any] = {"knows_schemas": knows_schemas}
    if "logprobs" not in getattr(lm, "supported_params", ()):
        declared["token_probabilities"] = 0
    name = str(getattr(lm, "model", ""))
    address = str(getattr(lm, "kwargs", {}).get("api_base") or "")
    return as_listed(record_of(name, address, None, declared), name)


def as_listed(record: ModelRecord, name: str) -> ModelRecord:
    """Return the record of a hosted model; whether it reads images LiteLLM's list says at first."""
    if record.known.reads_images is None and _is_listed_with_vision(name):
        record.learn(reads_images=True)
    return record


@lru_cache(maxsize=64)
def _is_listed_with_vision(name: str) -> bool:
    import litellm

    costs = litellm.model_cost
    return bool((costs.get(name) or costs.get(name.partition("/")[2]) or {}).get("supports_vision"))


def _read(file: Path | None) -> ModelTraits | None:
    try:
        return ModelTraits.model_validate_json(file.read_bytes()) if file is not None else None
    except (OSError, ValidationError):  # none yet, or not ours: it is asked again
        return None
