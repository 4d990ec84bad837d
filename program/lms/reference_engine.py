"""An engine around a service's: image references become bytes within its limits, and what it refuses is left out."""

import asyncio
import base64
import io
import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import dspy
import numpy as np
from cachetools import LRUCache, cached
from dspy import lm15
from numpy.typing import NDArray

from program.common.addresses import proxies_for
from program.common.backends import ImageLimits, WireImage
from program.common.errors import EndpointError, ImageError, ImagesRefused
from program.common.keys import redact, scrub, without_keys
from program.images.store import HOST, IMAGES, ImageRef
from program.lms import traits
from program.lms.adapter import events_of
from program.lms.call import FeatureRefused, note_change, note_image
from program.lms.dspy_private import LM15Engine, StdlibTransport
from program.lms.traits import ModelRecord, ModelTraits

CACHE_MB = 24
"""Most memory that encoded images may take; every demo travels with every call, so they are kept for a while."""

_FORMATS = {".jpg": "jpeg", ".tif": "tiff"}
"""The others are called as their suffix."""
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MARGIN = 0.95
"""A scaled picture that is still too large is scaled again, this much below what its size calls for."""


def inline(value: Any, limits: ImageLimits) -> Any:
    """Return an input with the images themselves in place of references, for a model that knows none."""
    if isinstance(value, list):
        return [inline(item, limits) for item in value]
    if isinstance(value, dict):
        return {name: inline(item, limits) for name, item in value.items()}
    url = value if isinstance(value, str) else getattr(value, "url", None)
    if isinstance(url, str) and url.startswith(HOST):
        return dspy.Image(encoded_image(IMAGES.find(url), limits).data_uri)
    return value


def inline_demo(demo: Any, limits: ImageLimits) -> dict[str, Any]:
    """Return a demo with its images themselves."""
    return {name: inline(value, limits) if name in {"image", "reference"} else value for name, value in demo.items()}


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image as it goes over the wire."""

    data: str
    """Base64."""
    media_type: str
    record: WireImage

    @property
    def data_uri(self) -> str:
        """The image as a data URI."""
        return f"data:{self.media_type};base64,{self.data}"


def limits_of_request(refs: Sequence[ImageRef], limits: ImageLimits) -> ImageLimits:
    """Return what each image of a request may be, so that all of them together are what the service takes."""
    found: dict[str, int] = {}
    if len(refs) > limits.many and limits.max_side_px_of_many is not None:
        found["max_side_px"] = min(limits.max_side_px_of_many, limits.max_side_px or limits.max_side_px_of_many)
    if limits.max_request_bytes is not None and len(refs) > 1:
        share = limits.max_request_bytes // len(refs)
        if sum(len(IMAGES.read(ref)) for ref in refs) > limits.max_request_bytes:
            found["max_bytes"] = max(10_000, min(share, limits.max_bytes or share))
    return limits.model_copy(update=found) if found else limits


def encoded_image(ref: ImageRef, limits: ImageLimits) -> EncodedImage:
    """Return an image as a service takes it, and record that it is sent; ImageError where there is no such picture."""
    image: EncodedImage = _encode(ref, limits)
    note_image(image.record)
    return image


@cached(LRUCache(CACHE_MB * 2**20, lambda image: len(image.data)), lock=threading.Lock())
def _encode(ref: ImageRef, limits: ImageLimits) -> EncodedImage:
    data, media_type, size = IMAGES.read(ref), ref.media_type, (ref.width, ref.height)
    kind, changes = _FORMATS.get(ref.suffix, ref.suffix[1:]), []
    if kind not in limits.formats:
        changes.append(f"{kind} as png")
    elif _is_grey16(data):
        # Many services read 16-bit grey as 8-bit by cutting it off, which shows them a white picture.
        changes.append("16-bit grey as 8-bit png")
    if changes or _over(limits, max(size), len(data)):
        media_type = "image/png"
        data, size = _fitted(IMAGES.pixels(ref), limits, ref.name)
        if size != (ref.width, ref.height):
            changes.append(f"scaled from {ref.width}x{ref.height} to {size[0]}x{size[1]}")
        changes = changes or [f"{kind} as png, which is smaller"]
    record = WireImage(
        sha256=ref.sha256, name=ref.name, media_type=media_type, width=size[0], height=size[1], size_bytes=len(data),
        change=", ".join(changes) or None,
    )  # fmt: skip
    return EncodedImage(base64.b64encode(data).decode("ascii"), media_type, record)


def _is_grey16(data: bytes) -> bool:
    """Return whether a PNG's header (width, height, bit depth, colour type) says 16-bit greyscale."""
    return data.startswith(_PNG_SIGNATURE) and len(data) > 25 and data[24] == 16 and data[25] in {0, 4}


def _over(limits: ImageLimits, side: int, size: int) -> bool:
    too_wide = limits.max_side_px is not None and side > limits.max_side_px
    return too_wide or (limits.max_bytes is not None and size > limits.max_bytes)


def _fitted(pixels: NDArray[np.uint8], limits: ImageLimits, name: str) -> tuple[bytes, tuple[int, int]]:
    """Return a PNG of H x W x 3 pixels within the limits, and its (width, height): as large as fits."""
    from PIL import Image

    whole = Image.fromarray(pixels)
    longest = max(whole.size)
    side = min(longest, limits.max_side_px or longest)
    while True:
        size = (max(1, round(whole.width * side / longest)), max(1, round(whole.height * side / longest)))
        # From the whole picture each time: scaling twice would blur twice.
        picture = whole if size == whole.size else whole.resize(size, Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        data = buffer.getvalue()
        if not _over(limits, side, len(data)):
            return data, size
        if side == 1:
            raise ImageError(f"image {name!r}: no picture of it fits {limits.max_bytes} bytes; raise max_bytes")
        fitting = side * ((limits.max_bytes or len(data)) / len(data)) ** 0.5 * _MARGIN
        side = max(1, min(int(fitting), side - 1))


logger = logging.getLogger(__name__)

_PREFIX = secrets.token_hex(16)
"""Of this process alone: no text that a user or a model writes can hold a token."""
_TOKEN = re.compile(_PREFIX.encode("ascii") + rb"[0-9a-f]{32}")
_IMAGES: ContextVar[dict[bytes, bytes]] = ContextVar("agentic_iqa_request_images")


@contextmanager
def images_by_token() -> Iterator[dict[bytes, bytes]]:
    """Collect the images, in base64, of the one request that is sent inside."""
    images: dict[bytes, bytes] = {}
    reset = _IMAGES.set(images)
    try:
        yield images
    finally:
        _IMAGES.reset(reset)


def token_for(sha256: str) -> str:
    """Return what stands for an image in a request: 64 characters that are valid base64."""
    return _PREFIX + sha256[:32]


class ServerTransport(StdlibTransport):
    """The client's own transport to one server that the user named; to one of this machine without a proxy."""

    def __init__(self, address: str) -> None:
        """Look up the environment's proxy for a server once: that takes 0.1 ms, which every request would cost."""
        proxies = proxies_for(address)
        super().__init__(proxy=proxies.get(urlsplit(address).scheme) or proxies.get("all") or None, trust_env=False)


class ImageTransport(ServerTransport):
    """A transport that puts a request's images in."""

    def stream(self, request: Any) -> Any:
        """Send one request."""
        images = _IMAGES.get({})
        if images:
            request = replace(request, body=_TOKEN.sub(lambda token: images.get(token[0], token[0]), request.body))
        return super().stream(request)


class Connection(NamedTuple):
    """How DSPy's client reaches one model of one service."""

    lm_name: str
    """What DSPy, caches and records call the model: the service, a slash, and its name for the service."""
    config: Callable[[str], Any]
    """Of DSPy's client, given the name of the field for the most tokens of an answer, where that is a choice."""
    capabilities: Mapping[str, Any]
    wire_model: str | None = None
    """The model's name on the wire where it differs from the LM's, which is what caches are keyed by."""
    priced_as: tuple[str, str] | None = None
    """Provider and model in DSPy's price list; None for a server, which has no price there."""
    is_asked: bool = False
    """Whether the service is asked what it can do: an OpenAI-compatible server is, a provider's own service is not."""


@dataclass(eq=False)
class ReferenceEngine:
    """An engine around DSPy's own, for one model of one service, with the record of what that can do."""

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

    @property
    def transport(self) -> ImageTransport | None:
        """What puts the images into requests, where that is ours."""
        transport = self.inner.config.transport
        return transport if isinstance(transport, ImageTransport) else None

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request in one attempt, or in one more for each feature that the service turns out to lack."""
        while True:
            try:
                return self.attempt(request)
            except FeatureRefused:
                continue

    def attempt(self, request: lm15.Request) -> lm15.Response:
        """Answer one request in one attempt, without the keys that the answer may repeat.

        Raises FeatureRefused where another one would go without a feature.
        """
        inner = self.inner
        with images_by_token() if self.transport else nullcontext() as images:
            sent = self._on_the_wire(request, images)
            try:
                response: lm15.Response = inner.complete(sent)
            except lm15.LM15Error as error:
                cause = self._cause(sent, error)
                self._explain(error)
                if cause is None:
                    raise
                if isinstance(cause, EndpointError):
                    self.failures += 1
                    cause.is_repeated = self.failures > 1
                raise cause from error
        self.has_answered, self.failures = True, 0
        self._note_changes(sent, response)
        cleared: lm15.Response = without_keys(response, self.secrets)
        return cleared

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """Answer one request as a stream of events."""
        yield from events_of(self.complete(request))

    def close(self) -> None:
        """Close the wrapped engine's connections."""
        self.inner.close()
        if self.transport is not None:
            self.transport.close()

    def _on_the_wire(self, request: lm15.Request, images: dict[bytes, bytes] | None = None) -> lm15.Request:
        """Return a request as it is sent: with image bytes, or tokens that `images` gets the bytes of (base64) by.

        Without refused features. Raises ImageError when an image is unknown here or has changed since it was opened.
        """
        shown = [p for m in request.messages for p in m.parts if _is_reference(p)]
        limits = limits_of_request([IMAGES.find(p.url) for p in shown], self.limits) if len(shown) > 1 else self.limits
        messages = tuple(
            replace(m, parts=tuple(_sent_part(p, limits, images) for p in m.parts)) for m in request.messages
        )
        known = self.record.known
        left_out: dict[str, Any] = {n: None for n in known.refused if getattr(request.config, n, None) is not None}
        for name in left_out:
            note_change(f"{self.title}: {name} left out ({known.refused[name]})")
        if request.config.logprobs and known.token_probabilities:
            left_out.setdefault("logprobs", min(request.config.logprobs, known.token_probabilities))
        config = replace(request.config, **left_out) if left_out else request.config
        model = self.connection.wire_model or request.model
        if known.wire_model:
            model = f"{request.model.partition('/')[0]}/{known.wire_model}"
        return replace(request, messages=messages, config=config, model=model)

    def _cause(self, request: lm15.Request, error: lm15.LM15Error) -> Exception | None:
        """Return what is wrong, where the service's words say it, and remember it; None where they do not.

        FeatureRefused: the same request can go without something. Otherwise asking again would meet the same.
        """
        words, known = redact(traits.words_of(error), self.secrets), self.record.known
        has_images = any(isinstance(part, lm15.ImagePart) for message in request.messages for part in message.parts)
        if has_images and traits.names_images(words):
            self.record.learn(reads_images=False)
            return ImagesRefused(f"{self.name} reads no images")
        if self._learn_refusal(request, error, words):
            return FeatureRefused(error)
        if traits.context_is_full(error):
            size = f" of {known.context_tokens:,} tokens" if known.context_tokens else ""
            return EndpointError(f"{self.name}: the context{size} is full; show fewer demos (compile with --demos 4)")
        if isinstance(error, lm15.TransportError) and not self.has_answered and "refused" in words.casefold():
            if self.address is None:
                return EndpointError(f"{self.title}: its service takes no connection; check the network connection")
            return EndpointError(f"no server answers at {self.address}; start it, or check --api-base")
        if traits.model_is_missing(error):
            there = f"; it has {', '.join(known.models[:8])}" if known.models else ""
            return EndpointError(f"{self.title}: the model is not on the server{there}; name another one with --lm")
        return None

    def _learn_refusal(self, request: lm15.Request, error: lm15.LM15Error, words: str) -> bool:
        """Remember what an error refuses of a request that can go without it; False where that is nothing."""
        other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
        limit = self.record.known.max_tokens_field
        if self.address is not None and traits.wants_other_limit(error, limit):
            self.record.learn(max_tokens_field=other[limit])
            return True
        names = [name for name in traits.refused_fields(error) if getattr(request.config, name) is not None]
        most = traits.largest_choice(words) if "logprobs" in names else None
        if most is not None and most < (request.config.logprobs or 0):
            self.record.learn(token_probabilities=most)
            return True
        for name in names:
            self.record.refuse(name, f"HTTP {error.status}: {words[:120]}")
            logger.warning("%s does not take %s and is asked without (%s)", self.title, name, words[:120])
        if "logprobs" in names:
            self.record.learn(token_probabilities=0)
        return bool(names)

    def _explain(self, error: lm15.LM15Error) -> None:
        """Make an error name the model as its user does and what sets a missing key, and quote no key."""
        # DSPy puts this in front of the message.
        error.model = self.name
        if isinstance(error, lm15.NotConfiguredError) and error.env_keys:
            error.message = f"there is no key; set {' or '.join(error.env_keys)} in the environment"
        scrub(error, self.secrets)

    def _note_changes(self, request: lm15.Request, response: lm15.Response) -> None:
        """Record what the client itself left out or changed, and log-probabilities that did not come."""
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


def _is_reference(part: Any) -> bool:
    return isinstance(part, lm15.ImagePart) and bool(part.url) and str(part.url).startswith(HOST)


def _sent_part(part: Any, limits: ImageLimits, images: dict[bytes, bytes] | None) -> Any:
    """Return a part of a message as it is sent: an image's reference as its bytes, or as a token for them."""
    if not _is_reference(part):
        return part
    ref = IMAGES.find(part.url)
    image = encoded_image(ref, limits)
    if images is None:
        return lm15.ImagePart(data=image.data, media_type=image.media_type)
    token = token_for(ref.sha256)
    images[token.encode("ascii")] = image.data.encode("ascii")
    return lm15.ImagePart(data=token, media_type=image.media_type)


class AsyncReferenceEngine:
    """The same engine for asynchronous callers, each of whose requests takes a thread."""

    def __init__(self, engine: ReferenceEngine) -> None:
        self._engine = engine

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request."""
        return await asyncio.to_thread(self._engine.complete, request)
