"""A wrapper engine that swaps image references for the original bytes, at the wire and nowhere else."""

import base64
import functools
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dspy import lm15

from program.images import HOST, IMAGES

__all__ = ("AsyncReferenceEngine", "ReferenceEngine", "resolve_references")


def resolve_references(request: lm15.Request) -> lm15.Request:
    """Return the request with every image reference replaced by the image's original bytes (base64).

    Raises ImageError when an image is unknown here or has changed since it was opened.
    """

    def resolved(part: Any) -> Any:
        if isinstance(part, lm15.ImagePart) and part.url and part.url.startswith(HOST):
            ref = IMAGES.find(part.url)
            return lm15.ImagePart(data=_encoded(ref.sha256, part.url), media_type=ref.media_type)
        return part

    messages = tuple(replace(m, parts=tuple(resolved(p) for p in m.parts)) for m in request.messages)
    return replace(request, messages=messages)


@functools.lru_cache(maxsize=64)
def _encoded(sha256: str, url: str) -> str:
    """Base64 of an image's bytes; kept for the images in use, as every demo travels with every call."""
    return base64.b64encode(IMAGES.read(url)).decode("ascii")


class _Wrapper:
    """What both engines share; `capabilities` are what the wrapped model declares."""

    resolves_references = True

    def __init__(self, inner: Any, capabilities: Mapping[str, Any]) -> None:
        self.inner = inner
        self.supports_response_schema = capabilities["supports_response_schema"]
        self.supports_function_calling = capabilities["supports_function_calling"]
        self.supports_reasoning = capabilities["supports_reasoning"]
        self.supported_params = capabilities["supported_params"]


class ReferenceEngine(_Wrapper):
    """A synchronous engine around another."""

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request, one attempt."""
        return self.inner.complete(resolve_references(request))

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """Answer one request as a stream of events."""
        yield from self.inner.stream(resolve_references(request))

    def close(self) -> None:
        """Close the wrapped engine's connections."""
        self.inner.close()


class AsyncReferenceEngine(_Wrapper):
    """The asynchronous counterpart."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request, one attempt."""
        return await self.inner.complete(resolve_references(request))

    async def stream(self, request: lm15.Request) -> AsyncIterator[Any]:
        """Answer one request as a stream of events."""
        async for event in self.inner.stream(resolve_references(request)):
            yield event

    async def aclose(self) -> None:
        """Close the wrapped engine's connections."""
        await self.inner.aclose()
