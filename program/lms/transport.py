"""HTTP to a model's server; a request's images join its body as it leaves.

Until then each stands as a short token that is valid base64: the client's types would otherwise check, copy and
escape megabytes of it under the interpreter's lock, once or more for every call.
"""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from dspy._vendor.lm15.transports import StdlibTransport

__all__ = ("ImageTransport", "carrying", "token_for")

_PREFIX = secrets.token_hex(16)
"""Of this process alone: no text that a user or a model writes can hold a token."""
_TOKEN = re.compile(_PREFIX.encode("ascii") + rb"[0-9a-f]{32}")

_CARRIED: ContextVar[dict[bytes, bytes] | None] = ContextVar("agentic_iqa_carried_images", default=None)


@contextmanager
def carrying() -> Iterator[dict[bytes, bytes]]:
    """Collect the images, base64 by token, of the request that is sent inside."""
    images: dict[bytes, bytes] = {}
    reset = _CARRIED.set(images)
    try:
        yield images
    finally:
        _CARRIED.reset(reset)


def token_for(sha256: str) -> str:
    """Return what stands for an image in a request: 64 characters that are valid base64."""
    return _PREFIX + sha256[:32]


class ImageTransport(StdlibTransport):
    """lm15's transport to one server. The environment's proxy for it is looked up once, not for every request."""

    @classmethod
    def to(cls, address: str) -> "ImageTransport":
        """Return a transport to a server's address."""
        return cls(proxy=_proxy_of(address), trust_env=False)

    def stream(self, request: Any) -> Any:
        """Send one request."""
        images = _CARRIED.get()
        if images:
            request = replace(request, body=_TOKEN.sub(lambda found: images.get(found[0], found[0]), request.body))
        return super().stream(request)


def _proxy_of(address: str) -> str | None:
    parts = urlsplit(address)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return None if not proxy or proxy_bypass(parts.hostname or "") else proxy
