"""What a model can do, in one record: an engine of this process declares it, a service is asked and learnt from."""

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
    """Fill the record of an engine's model in. Raises EndpointError where nothing answers, or not under this name."""
    record, address = engine.record, engine.address
    found = listed_traits(address, engine.model, engine.secrets)
    names = found.get("models", ())
    if names and engine.model not in names and len(names) == 1:
        found["wire_model"] = names[0]
    record.learn(**found)
    sighted = record.traits.reads_images is None
    if (sighted or record.traits.token_probabilities is None) and not _probe(engine, sighted=sighted):
        return  # it is asked again with the next question
    record.learn(asked=datetime.now(UTC).date().isoformat())
    logger.info("%s: %s", engine.name, record.traits.model_dump_json(exclude_defaults=True))


def listed_traits(address: str, model: str, secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return what a server's own pages say of a model: llama.cpp's, vLLM's, LM Studio's, Ollama's, OpenRouter's.

    `secrets` holds the server's key, if any, by the variable that it comes from. Raises EndpointError where no server
    answers or the key is refused.
    """
    root = re.sub(r"/v\d+$", "", address)
    listing = _page(f"{address}/models", secrets, must_answer=True)
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
        properties = _page(f"{root}/props", secrets) or {}
        vision = (properties.get("modalities") or {}).get("vision")
        if isinstance(vision, bool):
            found["reads_images"] = vision
        lengths.insert(0, (properties.get("default_generation_settings") or {}).get("n_ctx"))
    elif entry.get("owned_by") == "library":  # Ollama's models
        shown = _page(f"{root}/api/show", secrets, {"model": model}) or {}
        if isinstance(able := shown.get("capabilities"), list) and able:
            found["reads_images"] = "vision" in able
        lengths += [n for name, n in (shown.get("model_info") or {}).items() if name.endswith(".context_length")]
    known = [n for n in lengths if isinstance(n, int) and n > 0]
    return {**found, **({"context_tokens": known[0]} if known else {})}


def _page(
    url: str, secrets: Mapping[str, str], body: Mapping[str, Any] | None = None, *, must_answer: bool = False
) -> dict[str, Any] | None:
    """Return the JSON object at an address, without the key; None for anything else, which a server need not have.

    With `must_answer` something has to, and to take the key: EndpointError else.
    """
    variable, key = next(iter(secrets.items()), ("AGENTICIQA_API_KEY", None))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {**headers, "Content-Type": "application/json"})  # noqa: S310 (checked in settings: http or https)
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies_for(url)))
        with opener.open(request, timeout=LISTING_TIMEOUT_S) as answer:
            page = json.loads(redact(answer.read(4 << 20).decode("utf-8", "replace"), secrets))
    except ValueError:
        return None
    except OSError as error:
        server, status = url.removesuffix("/models"), getattr(error, "code", None)
        if must_answer and status in {401, 403}:
            raise EndpointError(f"{server} refuses the key; set the key of this server in {variable}") from None
        if must_answer and status is None:
            reason, mend = getattr(error, "reason", None) or error, "start it, or give its address with --api-base"
            raise EndpointError(f"no server answers at {server} ({reason}); {mend}") from None
        return None
    return page if isinstance(page, dict) else None


_BUSY = {429, 503, 529}
"""Statuses of a service that says nothing of the model, as while it loads it."""


def _probe(engine: Any, *, sighted: bool) -> bool:
    """Ask for one token, with a small picture where it is open whether the model reads any; False where it is busy."""
    parts: tuple[Any, ...] = (lm15.TextPart(text="Is this picture good or bad? Answer with one word."),)
    if sighted:
        parts = (*parts, lm15.ImagePart(data=_dot(), media_type="image/png"))
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
    """Names distortions and score in one answer; False where it gave both one after the other alone."""
    wire_model: str | None = None
    """Its name on the server, where that serves one model alone and any name means it."""
    models: tuple[str, ...] = ()
    """That the server lists."""
    asked: str | None = None
    """The day that the service was asked; None: never."""

    revision: str | None = None
    """Its name with its revision, where what was compiled for one revision holds for no other."""
    is_free: bool = False
    """Answers in this process within milliseconds: without a network, a price or limits, and not counted."""
    is_deterministic: bool = False
    """Its answer depends on the question alone, and may be kept for as long as the code stays the same."""
    reads_instructions: bool = True
    """Goes by what it is told in words, the form of its answer too; else by the inputs and a rubric."""
    is_calibrated: bool = False
    """The levels it states are a belief fitted on people's scores: they count as they are, and as much as tools."""
    shares_errors: bool = False
    """Reads what tools read of an image, so that it errs where they do."""
    judges_crops: bool = False
    """Judges a part of an image as a whole one."""
    weighs_demos: bool = False
    """Weighs demos by how like the image they are, so that it can be worked out unasked what a set of them says."""
    explains_in_figures: bool = False
    """Its reasons are figures, and its explanations say in words what these mean."""
    may_quote_keys: bool = True
    """Its errors may quote a key, as a service's do."""
    adapter: dspy.Adapter | None = None
    """What it is asked through, whatever DSPy's settings say; None: the usual one."""
    takes_references: bool = False
    """Swaps references to images for their bytes itself; else the bytes go into the question."""
    knows_schemas: bool = False
    takes_bounds: bool = False
    """Of lists and texts in a JSON schema, which OpenAI's own service refuses."""

    @property
    def takes_schema(self) -> bool:
        """Whether the form of an answer travels as a JSON schema, so that no text need describe it."""
        return self.knows_schemas and "response_format" not in self.refused


_NOTHING_KNOWN = ModelTraits()


class ModelRecord:
    """The traits of one model at one address, as known so far; shared by all roles, kept in a file."""

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
"""One for each model and address in the process: roles and copies of a program share what one of them learns."""


def record_of(
    model: str, address: str | None, cache_dir: Path | None, declared: Mapping[str, Any] | None = None
) -> ModelRecord:
    """Return the record of a model; `declared` traits go before what is found. Kept below `cache_dir`, if any."""
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
    """Return what a model's engine declares, or what is known of its service so far; nothing is asked."""
    engine = getattr(lm, "engine", None)
    record = getattr(engine, "record", None)
    traits = record.traits if isinstance(record, ModelRecord) else getattr(engine, "traits", None)
    return traits if isinstance(traits, ModelTraits) else _NOTHING_KNOWN


def own_record(lm: dspy.BaseLM | None) -> ModelRecord:
    """Return a model's record; of one whose engine DSPy chose, or a user wrote, it lasts as long as the process."""
    record = getattr(getattr(lm, "engine", None), "record", None)
    if isinstance(record, ModelRecord):
        return record
    declared: dict[str, Any] = {"knows_schemas": bool(getattr(lm, "supports_response_schema", False))}
    if "logprobs" not in getattr(lm, "supported_params", ()):
        declared["token_probabilities"] = 0
    name, address = str(getattr(lm, "model", "")), str(getattr(lm, "kwargs", {}).get("api_base") or "")
    return as_listed(record_of(name, address, None, declared), name)


def as_listed(record: ModelRecord, name: str) -> ModelRecord:
    """Return the record of a hosted model, with what LiteLLM's list says of its eyes where nothing else is known."""
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
