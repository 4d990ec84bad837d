"""HTTP to a model's server, with a request's images put into its body as it leaves.

Until then each image is a short token, itself valid base64: the client's types would otherwise check, copy and escape
the whole image under the interpreter's lock, which costs 2 ms a call at 73 KiB and 6 ms at 404 KiB.
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

from program.lms.dspy_private import StdlibTransport

__all__ = ("ImageTransport", "images_by_token", "token_for")

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
