"""A wrapper engine: image references become bytes at the wire, and a service that refuses a feature goes without."""

import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dspy import lm15
from dspy.clients import costs

from program.backends import ImageLimits
from program.images import HOST, IMAGES
from program.lms.transport import ImageTransport, carrying, token_for
from program.lms.wire_images import encoded_image, note_refusal
from program.redaction import redact, scrub

__all__ = (
    "AsyncReferenceEngine", "FeatureRefused", "ReferenceEngine", "Service", "cost_usd", "resolve_references",
    "share_what_is_refused",
)  # fmt: skip

logger = logging.getLogger(__name__)

_OPTIONAL = {
    "response_format": r"response_?format|json_?schema|structured|guided|grammar|schema",
    "logprobs": r"log_?prob",
    "temperature": r"temperature",
    "seed": r"\bseed\b",
}
"""What a request can do without, and the words a refusal names it by."""
_LACKING = (400, 404, 415, 422, 500, 501)
"""Statuses that servers answer unknown or unsupported fields with; llama.cpp gives 500 for a schema it cannot use."""


class FeatureRefused(Exception):  # noqa: N818 - it says what happened
    """A service lacks a feature of the request; the same request, sent again, goes without it. Holds the error."""

    def __init__(self, error: lm15.LM15Error) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class Service:
    """What is known of the service behind an LM; shared by its synchronous and its asynchronous engine."""

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

    def outgoing(self, request: lm15.Request, carried: dict[bytes, bytes] | None = None) -> lm15.Request:
        """Return a request as it goes over the wire; `carried` takes its images where the transport adds them."""
        wired = resolve_references(request, self.limits, carried)
        return wired if self.wire_model is None else replace(wired, model=self.wire_model)

    def without_refused(self, request: lm15.Request) -> lm15.Request:
        """Return a request without the features that the service refused before."""
        left_out = {name: None for name in self.refused if getattr(request.config, name) is not None}
        for name in left_out:
            note_refusal(f"{self.title}: {name} left out ({self.refused[name]})")
        return replace(request, config=replace(request.config, **left_out)) if left_out else request

    def leaves_out(self, request: lm15.Request, error: lm15.LM15Error) -> bool:
        """Learn from a refusal what the service lacks; False where the request is not to be sent again."""
        if error.status not in _LACKING or isinstance(error, lm15.ContextLengthError | lm15.AuthError):
            return False
        words = f"{error.message} {error.provider_code or ''}"
        asked = [name for name in _OPTIONAL if getattr(request.config, name) is not None]
        named = [name for name in asked if re.search(_OPTIONAL[name], words, re.IGNORECASE)]
        for name in named:
            self.refused[name] = f"HTTP {error.status}: {redact(' '.join(words.split()), self.secrets)[:120]}"
            logger.warning("%s does not take %s and is asked without (%s)", self.title, name, self.refused[name])
        return bool(named)

    def tell(self, error: lm15.LM15Error) -> None:
        """Make an error name the model as its user does and what sets a missing key, and quote no key."""
        # DSPy puts this in front of the message.
        error.model = f"{self.title} at {self.address}" if self.address else self.title
        if isinstance(error, lm15.NotConfiguredError) and error.env_keys:
            error.message = f"there is no key; set {' or '.join(error.env_keys)} in the environment"
        scrub(error, self.secrets)

    def noted(self, request: lm15.Request, response: lm15.Response) -> lm15.Response:
        """Record what the client itself left out or changed, and log-probabilities that did not come."""
        for change in response.adaptations:
            if change.action not in {"satisfied", "defaulted"}:
                note_refusal(f"{self.title}: {change.field} {change.action} ({change.reason})")
        if response.logprobs:
            self.gave_logprobs = True
        elif request.config.logprobs is not None and not self.gave_logprobs and _says_something(response):
            self.refused["logprobs"] = "none came with the answer"
            note_refusal(f"{self.title}: logprobs asked for, {self.refused['logprobs']}")
        return response


def resolve_references(
    request: lm15.Request, limits: ImageLimits, carried: dict[bytes, bytes] | None = None
) -> lm15.Request:
    """Return the request with every image reference replaced by what its service is sent of the image (base64).

    With `carried` that goes there, by the token that the request holds instead. Raises ImageError when an image is
    unknown here or has changed since it was opened.
    """

    def resolved(part: Any) -> Any:
        if not (isinstance(part, lm15.ImagePart) and part.url and part.url.startswith(HOST)):
            return part
        ref = IMAGES.find(part.url)
        image = encoded_image(ref, limits)
        data = image.data
        if carried is not None:
            data = token_for(ref.sha256)
            carried[data.encode("ascii")] = image.data.encode("ascii")
        return lm15.ImagePart(data=data, media_type=image.media_type)

    messages = tuple(replace(m, parts=tuple(resolved(p) for p in m.parts)) for m in request.messages)
    return replace(request, messages=messages)


def share_what_is_refused(lms: Sequence[Any]) -> None:
    """Let what one of several LMs learns of its service be known to those of the same model."""
    by_model: dict[str, dict[str, str]] = {}
    for lm in lms:
        service = getattr(getattr(lm, "engine", None), "service", None)
        if isinstance(service, Service):
            service.refused = by_model.setdefault(str(lm.model), service.refused)


def cost_usd(engine: Any, request: lm15.Request, response: lm15.Response) -> float | None:
    """Return what DSPy estimates an answer to have cost; None where it knows no price. It prices no custom engine."""
    provider, model = getattr(getattr(engine, "service", None), "priced_as", None) or (None, request.model)
    cost, _ = costs.estimate_cost(response, provider=provider, requested_model=model, request=request)
    return None if cost is None else float(cost)


def _says_something(response: lm15.Response) -> bool:
    return bool(response.text) or response.data is not None


class _Wrapper:
    """What both engines share."""

    resolves_references = True

    def __init__(self, inner: Any, service: Service) -> None:
        self.inner = inner
        self.service = service
        self.supports_response_schema = service.capabilities["supports_response_schema"]
        self.supports_function_calling = service.capabilities["supports_function_calling"]
        self.supports_reasoning = service.capabilities["supports_reasoning"]
        self.supported_params = service.capabilities["supported_params"]

    @property
    def refused(self) -> dict[str, str]:
        """Features that the service turned out to lack, and how it said so."""
        return self.service.refused


class ReferenceEngine(_Wrapper):
    """A synchronous engine around another; `transport` is the other's where images join a request only there."""

    def __init__(self, inner: Any, service: Service, transport: ImageTransport | None = None) -> None:
        super().__init__(inner, service)
        self._transport = transport

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request in one attempt, or in one more for each feature that the service turns out to lack."""
        while True:
            try:
                return self.attempt(request)
            except FeatureRefused:
                continue

    def attempt(self, request: lm15.Request) -> lm15.Response:
        """Answer one request in one attempt. Raises FeatureRefused where another one would go without a feature."""
        if self._transport is None:
            return self._attempted(self.service.outgoing(request))
        with carrying() as images:
            return self._attempted(self.service.outgoing(request, images))

    def _attempted(self, wired: lm15.Request) -> lm15.Response:
        asked = self.service.without_refused(wired)
        try:
            return self.service.noted(asked, self.inner.complete(asked))
        except lm15.LM15Error as error:
            learned = self.service.leaves_out(asked, error)
            self.service.tell(error)
            if learned:
                raise FeatureRefused(error) from error
            raise

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """Answer one request as a stream of events."""
        yield from self.inner.stream(self.service.without_refused(self.service.outgoing(request)))

    def close(self) -> None:
        """Close the wrapped engine's connections."""
        self.inner.close()
        if self._transport is not None:
            self._transport.close()


class AsyncReferenceEngine(_Wrapper):
    """The asynchronous counterpart."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request in one attempt, or in one more for each feature that the service turns out to lack."""
        wired = self.service.outgoing(request)
        while True:
            asked = self.service.without_refused(wired)
            try:
                return self.service.noted(asked, await self.inner.complete(asked))
            except lm15.LM15Error as error:
                if not self.service.leaves_out(asked, error):
                    self.service.tell(error)
                    raise

    async def stream(self, request: lm15.Request) -> AsyncIterator[Any]:
        """Answer one request as a stream of events."""
        async for event in self.inner.stream(self.service.without_refused(self.service.outgoing(request))):
            yield event

    async def aclose(self) -> None:
        """Close the wrapped engine's connections."""
        await self.inner.aclose()
