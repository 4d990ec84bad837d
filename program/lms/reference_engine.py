"""An engine around a service's: image references become bytes, and features that the service refuses are left out.

To a server images go as short tokens, themselves valid base64, until the request's body leaves: the client's types
would otherwise check, copy and escape the whole image under the interpreter's lock, which costs 2 ms a call at 73 KiB
and 6 ms at 404 KiB.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from dspy import lm15

from program.common.backends import ImageLimits
from program.common.redaction import redact, scrub
from program.images.store import HOST, IMAGES
from program.lms.dspy_private import StdlibTransport
from program.lms.metering import FeatureRefused, note_change
from program.lms.wire_images import encoded_image

__all__ = ("AsyncReferenceEngine", "ImageTransport", "ReferenceEngine", "share_refused_features")

logger = logging.getLogger(__name__)

_OPTIONAL = {
    "response_format": r"response_?format|json_?schema|structured|guided|grammar|schema",
    "logprobs": r"log_?prob",
    "temperature": r"temperature",
    "seed": r"\bseed\b",
}
"""What a request can do without, and the words a refusal names it by."""
_PREFIX = secrets.token_hex(16)
"""Of this process alone: no text that a user or a model writes can hold a token."""
_TOKEN = re.compile(_PREFIX.encode("ascii") + rb"[0-9a-f]{32}")
_IMAGES: ContextVar[dict[bytes, bytes]] = ContextVar("agentic_iqa_request_images")
_REFUSAL_STATUSES = (400, 404, 415, 422, 500, 501)
"""What servers answer unknown or unsupported fields with; llama.cpp gives 500 for a schema it cannot use."""


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


class ImageTransport(StdlibTransport):
    """The client's own transport to one server, which puts a request's images in."""

    def __init__(self, address: str) -> None:
        """Look up the environment's proxy for a server once: that takes 0.1 ms, which every request would cost."""
        url, proxies = urlsplit(address), getproxies()
        proxy = None if proxy_bypass(url.hostname or "") else proxies.get(url.scheme) or proxies.get("all")
        super().__init__(proxy=proxy or None, trust_env=False)

    def stream(self, request: Any) -> Any:
        """Send one request."""
        images = _IMAGES.get({})
        if images:
            request = replace(request, body=_TOKEN.sub(lambda token: images.get(token[0], token[0]), request.body))
        return super().stream(request)


@dataclass(eq=False)
class ReferenceEngine:
    """An engine around DSPy's own, for one service, with what is known of that."""

    inner: Any
    capabilities: Mapping[str, Any]
    limits: ImageLimits
    wire_model: str | None = None
    """The model's name on the wire where it differs from the LM's, which is what caches are keyed by."""
    priced_as: tuple[str, str] | None = None
    """Provider and model in DSPy's price list; None for a server, which has no price there."""
    title: str = ""
    """What the user called the model, for notes and errors."""
    address: str | None = None
    """Of a server that the user named."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    refused: dict[str, str] = field(default_factory=dict)
    """Features left out from now on, and why."""
    gave_logprobs: bool = False
    """Whether log-probabilities ever came: one answer without them then means nothing."""

    resolves_references = True

    def __post_init__(self) -> None:
        vars(self).update(self.capabilities)  # DSPy looks for them here

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
        """Answer one request in one attempt. Raises FeatureRefused where another one would go without a feature."""
        with images_by_token() if self.transport else nullcontext() as images:
            sent = self._on_the_wire(request, images)
            try:
                response: lm15.Response = self.inner.complete(sent)
            except lm15.LM15Error as error:
                refused = self._learn_refusal(sent, error)
                self._explain(error)
                if refused:
                    raise FeatureRefused(error) from error
                raise
        self._note_changes(sent, response)
        return response

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """Answer one request as a stream of events."""
        yield from self.inner.stream(self._on_the_wire(request))

    def close(self) -> None:
        """Close the wrapped engine's connections."""
        self.inner.close()
        if self.transport is not None:
            self.transport.close()

    def _on_the_wire(self, request: lm15.Request, images: dict[bytes, bytes] | None = None) -> lm15.Request:
        """Return a request as it is sent: with image bytes, or tokens that `images` gets the bytes of (base64) by.

        Without refused features. Raises ImageError when an image is unknown here or has changed since it was opened.
        """
        messages = tuple(replace(m, parts=tuple(self._part(p, images) for p in m.parts)) for m in request.messages)
        left_out = {name: None for name in self.refused if getattr(request.config, name) is not None}
        for name in left_out:
            note_change(f"{self.title}: {name} left out ({self.refused[name]})")
        config = replace(request.config, **left_out) if left_out else request.config
        return replace(request, messages=messages, config=config, model=self.wire_model or request.model)

    def _part(self, part: Any, images: dict[bytes, bytes] | None) -> Any:
        if not (isinstance(part, lm15.ImagePart) and part.url and part.url.startswith(HOST)):
            return part
        ref = IMAGES.find(part.url)
        image = encoded_image(ref, self.limits)
        if images is None:
            return lm15.ImagePart(data=image.data, media_type=image.media_type)
        token = token_for(ref.sha256)
        images[token.encode("ascii")] = image.data.encode("ascii")
        return lm15.ImagePart(data=token, media_type=image.media_type)

    def _learn_refusal(self, request: lm15.Request, error: lm15.LM15Error) -> bool:
        """Remember which features of a request an error refuses; False where it names none."""
        if error.status not in _REFUSAL_STATUSES or isinstance(error, lm15.ContextLengthError | lm15.AuthError):
            return False
        words = f"{error.message} {error.provider_code or ''}"
        names = [
            name for name, pattern in _OPTIONAL.items()
            if getattr(request.config, name) is not None and re.search(pattern, words, re.IGNORECASE)
        ]  # fmt: skip
        for name in names:
            self.refused[name] = f"HTTP {error.status}: {redact(' '.join(words.split()), self.secrets)[:120]}"
            logger.warning("%s does not take %s and is asked without (%s)", self.title, name, self.refused[name])
        return bool(names)

    def _explain(self, error: lm15.LM15Error) -> None:
        """Make an error name the model as its user does and what sets a missing key, and quote no key."""
        # DSPy puts this in front of the message.
        error.model = f"{self.title} at {self.address}" if self.address else self.title
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
            self.refused["logprobs"] = "none came with the answer"
            note_change(f"{self.title}: logprobs asked for, {self.refused['logprobs']}")


class AsyncReferenceEngine:
    """The same engine for asynchronous callers, each of whose requests takes a thread."""

    def __init__(self, engine: ReferenceEngine) -> None:
        self._engine = engine

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request."""
        return await asyncio.to_thread(self._engine.complete, request)


def share_refused_features(lms: Sequence[Any]) -> None:
    """Let LMs of the same model share what one of them learns that its service refuses."""
    by_model: dict[str, dict[str, str]] = {}
    for lm in lms:
        engine = getattr(lm, "engine", None)
        if isinstance(engine, ReferenceEngine):
            engine.refused = by_model.setdefault(str(lm.model), engine.refused)
