"""What a model can do, in one record: an engine declares it, a service is asked and learnt from."""

import base64
import hashlib
import io
import json
import logging
import re
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal

import dspy
from dspy import lm15
from pydantic import BaseModel, ConfigDict, ValidationError

from program.common.addresses import proxies_for, redirected
from program.common.cli import MODEL_RECORDS
from program.common.errors import EndpointError, ImagesRefused, showable
from program.common.files import write_whole
from program.common.keys import redact
from program.common.text import ends_in_thought
from program.tools.calibration import BeliefError
from program.tools.registry import Mode

logger = logging.getLogger(__name__)

LISTING_TIMEOUT_S = 10
MOST_ALTERNATIVES = 20
"""Asked for with each token; the most that hosted servers give."""


def inquire(engine: Any) -> None:
    """Fill in the record of an engine's model; EndpointError where nothing answers under its name."""
    record = engine.record
    listed = listed_traits(engine.address, engine.model, engine.secrets)
    names = listed.get("models", ())
    if engine.model not in names and len(names) == 1:
        listed["wire_model"] = names[0]
    record.learn(**listed)
    with_picture = record.traits.reads_images is None
    is_open = with_picture or record.traits.token_probabilities is None
    if is_open and not _probe(engine, with_picture=with_picture):
        return  # it is asked again with the next question
    record.learn(asked=datetime.now(UTC).date().isoformat())
    logger.info("%s: %s", engine.name, record.traits.model_dump_json(exclude_defaults=True))


_LENGTHS = ("max_model_len", "context_length", "max_context_length", "meta.n_ctx")


def listed_traits(address: str, model: str, secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return what a server's pages say of a model: llama.cpp, vLLM, LM Studio, Ollama, OpenRouter.

    `secrets` holds the server's key, if any, by the variable that it comes from. Raises
    EndpointError where no server answers or the key is refused.
    """
    root = re.sub(r"/v\d+$", "", address)
    listed = _page(f"{address}/models", secrets, must_answer=True).get("data")
    entries: list[Mapping[str, Any]] = []
    if isinstance(listed, list):
        entries = [entry for entry in listed if isinstance(entry, Mapping)]
    own = entries if len(entries) == 1 else [each for each in entries if each.get("id") == model]
    entry = own[0] if own else {}
    reads_images = _is_among(_at(entry, "architecture.input_modalities"), "image")
    lengths = [_at(entry, path) for path in _LENGTHS]
    if entry.get("owned_by") == "llamacpp" or _at(entry, "meta.n_ctx") is not None:
        page = _page(f"{root}/props", secrets)
        vision = _at(page, "modalities.vision")
        if isinstance(vision, bool):
            reads_images = vision
        lengths.insert(0, _at(page, "default_generation_settings.n_ctx"))
    elif entry.get("owned_by") == "library":  # Ollama's models
        page = _page(f"{root}/api/show", secrets, {"model": model})
        reads_images = _is_among(page.get("capabilities"), "vision")
        details = page.get("model_info")
        if isinstance(details, dict):
            lengths += [length for name, length in details.items() if name.endswith(".context_length")]
    known_lengths = [length for length in lengths if isinstance(length, int) and length > 0]
    found = {
        "models": tuple(showable(str(entry.get("id"))) for entry in entries) or None,
        "reads_images": reads_images,
        "context_tokens": next(iter(known_lengths), None),
    }
    return {name: value for name, value in found.items() if value is not None}


def _at(page: Any, path: str) -> Any:
    for name in path.split("."):
        page = page.get(name) if isinstance(page, Mapping) else None
    return page


def _is_among(kinds: Any, kind: str) -> bool | None:
    """Return whether a page lists a kind; None where it lists nothing."""
    return kind in kinds if isinstance(kinds, list) and kinds else None


class _OneServer(urllib.request.HTTPRedirectHandler):
    """Follows the redirects of one server alone: urllib would give its key to another."""

    def redirect_request(self, req: Any, fp: Any, code: Any, *rest: Any) -> Any:
        """Return the request that a redirect asks for."""
        redirected(req.full_url, rest[-1])
        return super().redirect_request(req, fp, code, *rest)


def _page(url: str, secrets: Mapping[str, str], body: Any = None, *, must_answer: bool = False) -> dict[str, Any]:
    """Return the JSON object at an address, else an empty one; EndpointError where it `must_answer`."""
    variable, key = next(iter(secrets.items()), ("AGENTICIQA_API_KEY", ""))
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    # Settings take addresses of http and https alone.
    request = urllib.request.Request(url, data, headers)  # noqa: S310
    try:
        proxies = urllib.request.ProxyHandler(proxies_for(url))
        opener = urllib.request.build_opener(proxies, _OneServer)
        with opener.open(request, timeout=LISTING_TIMEOUT_S) as answer:
            page = json.loads(redact(answer.read(4 << 20).decode("utf-8", "replace"), secrets))
    except EndpointError:  # a redirect to another server
        raise
    except (ValueError, RecursionError, HTTPException):
        return {}
    except OSError as error:
        server, status = url.removesuffix("/models"), getattr(error, "code", None)
        if must_answer and status in {401, 403}:
            mend = f"set the key of this server in {variable}"
            raise EndpointError(f"{server} refuses the key; {mend}") from None
        if must_answer and status is None:
            reason = getattr(error, "reason", None) or error
            mend = "start it, or give its address with --api-base"
            raise EndpointError(f"no server answers at {server} ({reason}); {mend}") from None
        return {}
    return page if isinstance(page, dict) else {}


_BUSY = {429, 503, 529}
"""Statuses of a service that says nothing of the model, as while it loads it."""


def _probe(engine: Any, *, with_picture: bool) -> bool:
    """Ask for one token, perhaps with a picture, and learn from the reply; False where it is busy."""
    parts: list[Any] = [lm15.TextPart(text="Is this picture good or bad? Answer with one word.")]
    if with_picture:
        parts.append(lm15.ImagePart(data=_grey_square(), media_type="image/png"))
    config = lm15.Config(max_tokens=1, temperature=0.0, logprobs=MOST_ALTERNATIVES)
    message = lm15.Message(role="user", parts=tuple(parts))
    request = lm15.Request(model=engine.connection.lm_name, messages=(message,), config=config)
    try:
        response = engine.complete(request)
    except (lm15.LM15Error, ImagesRefused) as error:
        if with_picture and engine.record.traits.reads_images is False:
            return _probe(engine, with_picture=False)
        words = " ".join(redact(str(error), engine.secrets).split())
        if isinstance(error, lm15.AuthError):
            said = " ".join(redact(error.message, engine.secrets).split())[:200]
            variable = next(iter(engine.secrets), "AGENTICIQA_API_KEY")
            mend = f"set the key of this server in {variable}"
            raise EndpointError(f"{engine.name} refuses the key ({said}); {mend}") from None
        logger.info("%s: the question of one token failed (%s)", engine.name, words[:200])
        return getattr(error, "status", None) not in _BUSY
    thoughts = [part for part in response.message.parts if isinstance(part, lm15.ThinkingPart)]
    if thoughts or (response.text and ends_in_thought(response.text)):
        engine.record.learn(thinks=True)
    alternatives = max((len(token.top or ()) for token in response.logprobs or ()), default=0)
    engine.record.learn(token_probabilities=alternatives)
    if with_picture:
        engine.record.learn(reads_images=True)
    return True


def _grey_square() -> str:
    """Return one of 64 px as PNG in base64; smaller ones are refused by some models."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (128, 128, 128)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


class ModelTraits(BaseModel):
    """What one model at one address can do. None: not known yet."""

    model_config = ConfigDict(frozen=True, extra="ignore", arbitrary_types_allowed=True)

    reads_images: bool | None = None
    token_probabilities: int | None = None
    """Alternatives that come with each token; 0: none."""
    context_tokens: int | None = None
    system_role: bool = True
    """Whether it takes a system message; else the instructions begin the user's first one."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    refused: Mapping[str, str] = {}
    """Fields of a request that the service refuses, with its words; they are left out."""
    thinks: bool = False
    """Reasons at length before it answers, so an answer gets room for that."""
    answers_at_once: bool | None = None
    """Names distortions and score in one answer; False where it gave them in two alone."""
    wire_model: str | None = None
    """Its name on the server, where that serves one model alone and any name means it."""
    models: tuple[str, ...] = ()
    """That the server lists."""
    asked: str | None = None
    """The day that the service was asked; None: never."""

    embedded: bool = False
    """The expert in this process: it goes by figures and a rubric, where others go by words. It costs
    nothing, and what it answers depends on the question alone."""
    smoothing: float = 0.3
    """Share of an even spread (0..1) that its belief is mixed with; 0 where that is calibrated."""
    model_weight: float = 0.5
    """Power that its belief is raised to beside the tools', until a compile has measured it."""
    errors: Mapping[Mode, BeliefError] = {}
    """Of its belief with a reference (FR) and without one (NR), where they are known."""
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
        self.known = ModelTraits()
        """What the service said, or its refusals."""
        self.traits = self.known
        """What is known, under what flags and configuration declare."""
        if file is not None:
            with suppress(OSError, ValidationError):  # none yet, or not ours: it is asked again
                self.known = ModelTraits.model_validate_json(file.read_bytes())
        self._declare()

    def _declare(self) -> None:
        self.traits = self.known.model_copy(update=self._declared)

    def forget(self) -> None:
        """Forget what the service said in this process: it is asked again."""
        self.known = ModelTraits()
        self._declare()

    def learn(self, **traits: Any) -> None:
        """Correct the record, and keep it."""
        with self.lock:
            self.known = self.known.model_copy(update=traits)
            self._declare()
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


def record_of(model: str, address: str | None, cache_dir: Path | None, declared: Mapping[str, Any]) -> ModelRecord:
    """Return the record of a model, kept below `cache_dir`, if any; `declared` traits go first."""
    name = hashlib.sha256(f"{address} {model}".encode()).hexdigest()[:16]
    file = cache_dir / MODEL_RECORDS / f"{name}.json" if cache_dir is not None else None
    key = (model, address, file, json.dumps(declared, sort_keys=True))
    return _RECORDS.setdefault(key, ModelRecord(file, declared))


def traits_of(lm: dspy.BaseLM | None) -> ModelTraits:
    """Return what a model can do; its service is asked once. EndpointError where it cannot be."""
    traits = getattr(getattr(lm, "engine", None), "traits", None)
    return traits if isinstance(traits, ModelTraits) else own_record(lm).traits


def known_traits(lm: dspy.BaseLM | None) -> ModelTraits:
    """Return what a model's engine declares, or what is known of its service; nothing is asked."""
    engine = getattr(lm, "engine", None)
    traits = getattr(getattr(engine, "record", engine), "traits", None)
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
