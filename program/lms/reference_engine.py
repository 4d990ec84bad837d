"""An engine around a service's: it makes images of references, and leaves out what is refused."""

import logging
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import dspy
from dspy import lm15

from program.common.addresses import proxies_for, redirected
from program.common.backends import ImageLimits
from program.common.errors import EndpointError, ImagesRefused, InputError, one_line
from program.common.keys import redact, scrub, without_keys
from program.images import sending
from program.images.sending import EncodedImage, limits_of_request
from program.images.store import HOST, IMAGES, ImageRef
from program.lms import traits
from program.lms.adapter import events_of
from program.lms.call import FeatureRefused, note_change, note_image
from program.lms.dspy_private import LM15Engine, StdlibTransport, TransportResponse
from program.lms.replies import OMITTABLE, fewer_alternatives, readable, refused, understood, words_of
from program.lms.traits import ModelRecord, ModelTraits


def inline(value: Any, limits: ImageLimits) -> Any:
    """Return inputs or demos with images in place of references, for a model that knows none."""
    if isinstance(value, list):
        return [inline(item, limits) for item in value]
    if isinstance(value, dict):
        return {name: inline(item, limits) for name, item in value.items()}
    url = value if isinstance(value, str) else getattr(value, "url", None)
    if isinstance(url, str) and url.startswith(HOST):
        return dspy.Image(encoded_image(IMAGES.find(url), limits).data_uri)
    return value


def encoded_image(ref: ImageRef, limits: ImageLimits) -> EncodedImage:
    """Return an image as a service takes it, and record that; ImageError where no picture fits."""
    image = sending.encode(ref, limits)
    note_image(image.record)
    return image


logger = logging.getLogger(__name__)

_PREFIX = secrets.token_hex(16)
"""Of this process alone: no text that a user or a model writes can hold a token."""
_TOKEN = re.compile(_PREFIX.encode("ascii") + rb"[0-9a-f]{32}")
_IMAGES: ContextVar[dict[bytes, bytes]] = ContextVar("agentic_iqa_request_images")
"""By token, in base64: those of the request that is sent."""


def token_for(sha256: str) -> str:
    """Return what stands for an image in a request: 64 characters that are valid base64."""
    return _PREFIX + sha256[:32]


_REDIRECTS = frozenset({301, 302, 307, 308})
_MOST_REDIRECTS = 3


class ServerTransport(StdlibTransport):
    """The client's own transport to one server, whose redirects and odd replies it mends."""

    def __init__(self, address: str, timeout_s: float | None = None) -> None:
        proxies = proxies_for(address)  # once, as it takes 0.1 ms
        proxy = proxies.get(urlsplit(address).scheme) or proxies.get("all")
        waits = ("read_timeout", "write_timeout", "pool_timeout")
        limits = {} if timeout_s is None else dict.fromkeys(waits, float(timeout_s))
        super().__init__(proxy=proxy or None, trust_env=False, **limits)

    def stream(self, request: Any) -> TransportResponse:
        """Send one request; EndpointError where the server sends it on to another one."""
        address = request.url
        for _ in range(_MOST_REDIRECTS + 1):
            reply = super().stream(request)
            body = reply.read()
            if reply.status not in _REDIRECTS:
                status, body = self._mended(reply.status, body, reply.header("content-type") or "")
                return TransportResponse(
                    status=status, reason=reply.reason, headers=reply.headers, http_version=reply.http_version,
                    chunks=iter([body]), release=lambda _: None,
                )  # fmt: skip
            request = replace(request, url=redirected(request.url, reply.header("location") or ""))
        raise EndpointError(f"{address} sends requests on without end; check --api-base")

    def _mended(self, status: int, body: bytes, content_type: str) -> tuple[int, bytes]:
        """Return a reply's status and body as DSPy's client reads them."""
        return status, readable(status, body)


class ImageTransport(ServerTransport):
    """A transport that puts images into requests, in place of their tokens, and reads any reply."""

    def stream(self, request: Any) -> TransportResponse:
        """Send one request."""
        images = _IMAGES.get({})
        if images:
            body = _TOKEN.sub(lambda token: images.get(token[0], token[0]), request.body)
            request = replace(request, body=body)
        return super().stream(request)

    def _mended(self, status: int, body: bytes, content_type: str) -> tuple[int, bytes]:
        if 200 <= status < 300:
            status, body = understood(body, content_type, status)
        return super()._mended(status, body, content_type)


class Connection(NamedTuple):
    """How DSPy's client reaches one model of one service."""

    lm_name: str
    """What DSPy, caches and records call the model: the service, a slash, its name there."""
    config: Callable[[str], Any]
    """Of DSPy's client, given the field for the most tokens of an answer."""
    capabilities: Mapping[str, Any]
    wire_model: str | None = None
    """The model's name on the wire where that is not the LM's, which caches are keyed by."""
    priced_as: tuple[str, str] | None = None
    """Provider and model in DSPy's price list; None for a server, which has no price there."""
    is_asked: bool = False
    """Whether the service is asked what it can do: a server is, a provider's service is not."""


@dataclass(eq=False)
class ReferenceEngine:
    """An engine around DSPy's own, for one model of one service, with its record."""

    connection: Connection
    limits: ImageLimits
    record: ModelRecord
    title: str
    """What the user called the model, for notes and errors."""
    address: str | None
    """Of a server that the user named."""
    secrets: Mapping[str, str] = field(repr=False)
    has_answered: bool = False
    failures: int = 0
    """Of the endpoint, since its last answer."""
    gave_logprobs: bool = False
    """Whether log-probabilities ever came: one answer without them then means nothing."""

    def __post_init__(self) -> None:
        vars(self).update(self.connection.capabilities)  # DSPy looks for them here
        config = self.connection.config
        self._inner_of = lru_cache(maxsize=1)(lambda name: LM15Engine(config(name)))

    @property
    def inner(self) -> Any:
        """DSPy's engine, which names its fields as the service wants them."""
        return self._inner_of(self.record.known.max_tokens_field)

    @property
    def traits(self) -> ModelTraits:
        """What the model can do; a server is asked now where it never was."""
        if self.connection.is_asked and self.record.known.asked is None:
            with self.record.lock:
                if self.record.known.asked is None:
                    traits.inquire(self)
        return self.record.traits

    @property
    def model(self) -> str:
        """Its name for the service."""
        return self.connection.lm_name.partition("/")[2]

    @property
    def name(self) -> str:
        """The model as its user calls it, and where it is."""
        return f"{self.title} at {self.address}" if self.address else self.title

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request in one attempt, or in one more for each feature that is refused."""
        while True:
            try:
                return self.attempt(request)
            except FeatureRefused:
                continue

    def attempt(self, request: lm15.Request) -> lm15.Response:
        """Answer one request in one attempt; FeatureRefused where another would go without one."""
        inner, images = self.inner, dict[bytes, bytes]()
        by_token = isinstance(inner.config.transport, ImageTransport)
        if by_token:
            _IMAGES.set(images)
        sent = self._on_the_wire(request, images if by_token else None)
        try:
            response = _completed(inner, sent)
        except EndpointError as error:
            self._count_failure(error)
            raise
        except lm15.LM15Error as error:
            cause = self._cause(sent, error)
            self._explain(error)
            if cause is None:
                raise
            if isinstance(cause, EndpointError):
                self._count_failure(cause)
            raise cause from error
        finally:
            images.clear()  # a thread's context may outlive the request by far
        self.has_answered, self.failures = True, 0
        self._note_changes(sent, response)
        cleared: lm15.Response = without_keys(response, self.secrets)
        return cleared

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """Answer one request as a stream of events."""
        yield from events_of(self.complete(request))

    def _count_failure(self, error: EndpointError) -> None:
        self.failures += 1
        error.is_repeated = self.failures > 1

    def _on_the_wire(self, request: lm15.Request, images: dict[bytes, bytes] | None) -> lm15.Request:
        """Return a request as it is sent, without refused features.

        Its images are bytes, or tokens under which `images` gets the bytes, in base64. Raises
        ImageError when an image is unknown here or has changed since it was opened.
        """
        shown = [IMAGES.find(part.url) for part in _images_of(request) if _is_reference(part)]
        messages = list(request.messages)
        if shown:
            limits = limits_of_request(shown, self.limits)
            for place, message in enumerate(messages):
                parts = tuple(_sent_part(part, limits, images) for part in message.parts)
                messages[place] = replace(message, parts=parts)
        known, system = self.record.known, request.system
        if system and not known.system_role:
            messages[0] = _with_instructions(messages[0], system)
            system = None
            note_change(f"{self.title}: instructions sent in the user's message (no system role)")
        changed: dict[str, Any] = {}
        for name, words in known.refused.items():
            if getattr(request.config, name, None) is not None:
                changed[name] = None
                note_change(f"{self.title}: {name} left out ({words})")
        most = known.token_probabilities
        if request.config.logprobs and most and request.config.logprobs > most:
            changed.setdefault("logprobs", most)
        config = request.config
        if changed:
            config = replace(config, **changed)
        model = self.connection.wire_model or request.model
        if known.wire_model:
            model = f"{model.partition('/')[0]}/{known.wire_model}"
        return replace(request, messages=tuple(messages), system=system, config=config, model=model)

    def _cause(self, request: lm15.Request, error: lm15.LM15Error) -> Exception | None:
        """Return what is wrong, where the service's words say it, and remember it; else None.

        FeatureRefused: the request can go without something. Else asking again would meet the same.
        """
        words, known = redact(words_of(error), self.secrets), self.record.known
        named = refused(words, error.status)
        if isinstance(error, lm15.ContextLengthError):
            named = ["context"]
        if "images" in named and _images_of(request):
            self.record.learn(reads_images=False)
            return ImagesRefused(f"{self.name} reads no images")
        if self._goes_without(named, request, words, error.status):
            return FeatureRefused(error)
        if "context" in named:
            size = f" of {known.context_tokens:,} tokens" if known.context_tokens else ""
            mend = "show fewer demos (compile with --demos 4)"
            return EndpointError(f"{self.name}: the context{size} is full; {mend}")
        is_unreachable = isinstance(error, lm15.TransportError) and "refused" in words.casefold()
        if is_unreachable and not self.has_answered:
            if self.address is not None:
                return EndpointError(f"no server answers at {self.address}; start it, or check --api-base")
            wrong = "its service takes no connection"
            return EndpointError(f"{self.title}: {wrong}; check the network connection")
        if "model" in named:
            there = f"; it has {', '.join(known.models[:8])}" if known.models else ""
            wrong = f"the model is not on the server{there}"
            return EndpointError(f"{self.title}: {wrong}; name another one with --lm")
        if "endpoint" in named and self.address is not None:
            usual = urlsplit(self.address)._replace(path="/v1").geturl()
            mend = f"most have it at {usual}" if usual != self.address else "check --api-base"
            return EndpointError(f"{self.address} serves no chat completions ({words[:80]}); {mend}")
        return None

    def _goes_without(self, named: list[str], request: lm15.Request, words: str, status: int | None) -> bool:
        """Remember what is refused of a request; False where it cannot go without that."""
        known, config = self.record.known, request.config
        if "system_role" in named and request.system:
            self.record.learn(system_role=False)
            return True
        if self.address is not None and known.max_tokens_field in named:
            other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
            self.record.learn(max_tokens_field=other[known.max_tokens_field])
            return True
        fields = [name for name in OMITTABLE if name in named and getattr(config, name) is not None]
        if "logprobs" in fields:
            fewer = fewer_alternatives(words, config.logprobs or 0) or 0
            self.record.learn(token_probabilities=fewer)
            if fewer:
                return True
        said = words[:120]
        for name in fields:
            self.record.refuse(name, f"HTTP {status}: {said}")
            logger.warning("%s does not take %s and is asked without (%s)", self.title, name, said)
        return bool(fields)

    def _explain(self, error: lm15.LM15Error) -> None:
        """Make an error name the model as its user does, what sets a missing key, and no key."""
        # DSPy puts this in front of the message.
        error.model = self.name
        if isinstance(error, lm15.NotConfiguredError) and error.env_keys:
            error.message = f"there is no key; set {' or '.join(error.env_keys)} in the environment"
        scrub(error, self.secrets)

    def _note_changes(self, request: lm15.Request, response: lm15.Response) -> None:
        """Record what the client left out or changed, and log-probabilities that did not come."""
        for change in response.adaptations:
            if change.action not in {"satisfied", "defaulted"}:
                note_change(f"{self.title}: {change.field} {change.action} ({change.reason})")
        is_empty = not response.text and response.data is None
        if response.logprobs:
            self.gave_logprobs = True
        elif request.config.logprobs is not None and not self.gave_logprobs and not is_empty:
            self.record.learn(token_probabilities=0)
            self.record.refuse("logprobs", "none came with the answer")
            note_change(f"{self.title}: logprobs asked for, none came with the answer")


def _completed(client: Any, request: lm15.Request) -> lm15.Response:
    """Let DSPy's client put a request; a reply that it stumbles over is an error of the service."""
    try:
        response: lm15.Response = client.complete(request)
    except (lm15.LM15Error, InputError):
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        fault = one_line(error)[:200]
        raise lm15.ProviderError(f"the reply cannot be read ({fault})") from error
    return response


def _with_instructions(message: lm15.Message, system: Any) -> lm15.Message:
    """Return a message that begins with the instructions of the system."""
    text = system if isinstance(system, str) else "\n\n".join(part.text for part in system)
    first, *others = message.parts
    if isinstance(first, lm15.TextPart):
        text = f"{text}\n\n{first.text}"
    else:
        others = [first, *others]
    return replace(message, parts=(lm15.TextPart(text=text), *others))


def _images_of(request: lm15.Request) -> list[lm15.ImagePart]:
    images = []
    for message in request.messages:
        images += [part for part in message.parts if isinstance(part, lm15.ImagePart)]
    return images


def _is_reference(part: Any) -> bool:
    return isinstance(part, lm15.ImagePart) and str(part.url or "").startswith(HOST)


def _sent_part(part: Any, limits: ImageLimits, images: dict[bytes, bytes] | None) -> Any:
    """Return a part of a message as it is sent: an image as its bytes, or as a token for them."""
    if not _is_reference(part):
        return part
    ref = IMAGES.find(part.url)
    image = encoded_image(ref, limits)
    if images is None:
        return lm15.ImagePart(data=image.data, media_type=image.media_type)
    token = token_for(ref.sha256)
    images[token.encode("ascii")] = image.data.encode("ascii")
    return lm15.ImagePart(data=token, media_type=image.media_type)
