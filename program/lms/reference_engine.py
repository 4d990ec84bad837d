"""An engine around a service's: image references become bytes, and features that the service refuses are left out."""

import asyncio
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from dspy import lm15

from program.common.backends import ImageLimits
from program.common.redaction import redact, scrub
from program.images.store import HOST, IMAGES
from program.lms.metering import FeatureRefused, note_change
from program.lms.transport import ImageTransport, images_by_token, token_for
from program.lms.wire_images import encoded_image

__all__ = ("AsyncReferenceEngine", "ReferenceEngine", "Service", "share_refused_features")

logger = logging.getLogger(__name__)

_OPTIONAL = {
    "response_format": r"response_?format|json_?schema|structured|guided|grammar|schema",
    "logprobs": r"log_?prob",
    "temperature": r"temperature",
    "seed": r"\bseed\b",
}
"""What a request can do without, and the words a refusal names it by."""
_REFUSAL_STATUSES = (400, 404, 415, 422, 500, 501)
"""What servers answer unknown or unsupported fields with; llama.cpp gives 500 for a schema it cannot use."""


@dataclass
class Service:
    """What is known of the service behind an LM."""

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

    def on_the_wire(self, request: lm15.Request, images: dict[bytes, bytes] | None = None) -> lm15.Request:
        """Return a request as it is sent: with image bytes, the service's model name, and no refused feature.

        With `images` the bytes (base64) go there, by the token that the request holds instead. Raises ImageError when
        an image is unknown here or has changed since it was opened.
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

    def learn_refusal(self, request: lm15.Request, error: lm15.LM15Error) -> bool:
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

    def explain(self, error: lm15.LM15Error) -> None:
        """Make an error name the model as its user does and what sets a missing key, and quote no key."""
        # DSPy puts this in front of the message.
        error.model = f"{self.title} at {self.address}" if self.address else self.title
        if isinstance(error, lm15.NotConfiguredError) and error.env_keys:
            error.message = f"there is no key; set {' or '.join(error.env_keys)} in the environment"
        scrub(error, self.secrets)

    def note_changes(self, request: lm15.Request, response: lm15.Response) -> None:
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


def share_refused_features(lms: Sequence[Any]) -> None:
    """Let LMs of the same model share what one of them learns that its service refuses."""
    by_model: dict[str, dict[str, str]] = {}
    for lm in lms:
        service = getattr(getattr(lm, "engine", None), "service", None)
        if isinstance(service, Service):
            service.refused = by_model.setdefault(str(lm.model), service.refused)


class ReferenceEngine:
    """An engine around DSPy's own, for one service."""

    resolves_references = True

    def __init__(self, inner: Any, service: Service) -> None:
        self.inner = inner
        self.service = service
        vars(self).update(service.capabilities)  # DSPy looks for them here

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
            sent = self.service.on_the_wire(request, images)
            try:
                response: lm15.Response = self.inner.complete(sent)
            except lm15.LM15Error as error:
                refused = self.service.learn_refusal(sent, error)
                self.service.explain(error)
                if refused:
                    raise FeatureRefused(error) from error
                raise
        self.service.note_changes(sent, response)
        return response

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """Answer one request as a stream of events."""
        yield from self.inner.stream(self.service.on_the_wire(request))

    def close(self) -> None:
        """Close the wrapped engine's connections."""
        self.inner.close()
        if self.transport is not None:
            self.transport.close()


class AsyncReferenceEngine:
    """The same engine for asynchronous callers, each of whose requests takes a thread."""

    def __init__(self, engine: ReferenceEngine) -> None:
        self._engine = engine

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request."""
        return await asyncio.to_thread(self._engine.complete, request)
