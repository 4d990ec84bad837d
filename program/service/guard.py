"""The outermost layer: every request is checked, bounded, logged and counted."""

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from program.common.settings import ServeSettings
from program.service.assessing import Assessor
from program.service.requests import Refused, logger, shorten

MIN_TOKEN_CHARS = 16
"""A shorter token could be guessed at the rate a service answers."""

OPEN_ROUTES = ("/", "/docs", "/openapi.json", "/health")
"""Answered without a token, and /assets/*: they hold nothing but what is in the source."""

_PROXY = "a proxy before the service has to pass the Host header"
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>[^\s/@?#\\,:\[\]]+))(?::[0-9]{0,5})?", re.IGNORECASE)


def check_head(method: str, path: str, headers: Headers, token: str | None, hosts: Sequence[str]) -> None:
    """Raise Refused for a foreign page or name, no token, or one of these headers twice.

    `hosts` are the names answered to besides localhost and IP addresses.
    """
    for name in ("host", "origin", "authorization", "content-length"):
        if len(headers.getlist(name)) > 1:
            raise Refused(400, "headers", f"header {name}: given twice; give it once")
    host = headers.get("host", "")
    _check_host(host, hosts)
    _check_origin(host, method, headers)
    if token is not None and path not in OPEN_ROUTES and not path.startswith("/assets/"):
        _check_token(headers.get("authorization", ""), token)


def _check_host(host: str, hosts: Sequence[str]) -> None:
    # A page of another site reaches a local service by a name of its own that resolves to 127.0.0.1 (DNS
    # rebinding); it cannot do so by an address. Starlette's TrustedHostMiddleware knows names only.
    match = _HOST.fullmatch(host)
    name = (match["ipv6"] or match["name"]).casefold().rstrip(".") if match else ""
    if _address(name) is None and name not in {"localhost", *(known.casefold() for known in hosts)}:
        raise Refused(
            403, "host", f"host {host[:80]!r}: not answered to; use localhost or an address, "
            f"or add the name to serve.allowed_hosts in the settings; {_PROXY}",
        )  # fmt: skip


def _check_token(sent: str, token: str) -> None:
    scheme, _, value = sent.partition(" ")
    # Hashes are of one length, so that comparing tells nothing of the token's.
    digest, expected = (hashlib.sha256(text.encode()).digest() for text in (value.strip(), token))
    if not (hmac.compare_digest(digest, expected) and scheme.casefold() == "bearer"):
        raise Refused(
            401, "token", "a token is needed: send the header Authorization: Bearer TOKEN",
            {"WWW-Authenticate": 'Bearer realm="agentic-iqa"'},
        )  # fmt: skip


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address to bind to.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    address = _address(host)
    return host.casefold() == "localhost" or (address is not None and address.is_loopback)


def _check_origin(host: str, method: str, headers: Mapping[str, str]) -> None:
    origin = headers.get("origin")
    if origin is not None and not _same_place(origin, host):
        raise Refused(
            403, "origin", f"origin {origin[:80]!r}: only the service's own page may ask from a browser; {_PROXY}"
        )
    # Some browsers leave the Origin out where a form of another site posts; this header they never do.
    if method not in {"GET", "HEAD"} and headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
        raise Refused(403, "origin", "sent by a page of another site: only the service's own page may ask")


def _same_place(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
        own = urlsplit(f"{parts.scheme}://{host}")
        default = {"http": 80, "https": 443}[parts.scheme]
        return (parts.hostname, parts.port or default) == (own.hostname, own.port or default)
    except (KeyError, ValueError):
        return False


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


_DRAIN_S = 1.0


class Bodies:
    """Those that are not whole yet: they hold memory, which is bounded, and no place.

    Beyond it the one that has been coming longest is given up: whoever sends slowly keeps nobody
    else out.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self.most_each, self.timeout_s = int(settings.max_body_mb * 2**20), settings.body_timeout_s
        # Together as much as may be worked on or wait.
        self._most = self.most_each * (settings.concurrency + settings.queue)
        self._arriving: dict[Body, None] = {}

    def __len__(self) -> int:
        return len(self._arriving)

    def enter(self, body: "Body") -> None:
        """Count a body that begins to arrive."""
        self._arriving[body] = None

    def grew(self) -> None:
        """Give up the oldest where there is too much of all."""
        while sum(each.read for each in self._arriving) > self._most:
            oldest = next(iter(self._arriving))
            self.leave(oldest)
            oldest.give_up()

    def leave(self, body: "Body") -> None:
        """Count a body no more: it is whole, or its request is over."""
        self._arriving.pop(body, None)


class Body:
    """The receiving side: stops reading at the limits of size and time."""

    def __init__(self, receive: Receive, headers: Headers, bodies: Bodies) -> None:
        self._receive, self._bodies = receive, bodies
        self.read = 0
        self._patience: asyncio.Timeout | None = None
        self._given_up = False
        self._deadline: float | None = None
        self._length = headers.get("content-length", "0")
        self._waits_for_word = "expect" in headers
        self._whole = "transfer-encoding" not in headers and self._length == "0"

    def check_length(self) -> None:
        """Refuse a body that says itself that it is too large."""
        if not (self._length.isascii() and self._length.isdigit()) or int(self._length[:20]) > self._bodies.most_each:
            raise self._too_large()

    def give_up(self) -> None:
        """Wait for it no longer."""
        self._given_up = True
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def drain(self) -> None:
        """Read and drop what still comes, for a second: a client cut off reads no answer."""
        if self._whole or (self._waits_for_word and self._deadline is None):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                while not self._whole:
                    message = await self._receive()
                    self._whole = message["type"] != "http.request" or not message.get("more_body", False)

    async def __call__(self) -> Message:
        """Return the next part of it. Raises Refused."""
        if self._whole:
            return await self._receive()
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._bodies.timeout_s
            self._bodies.enter(self)
        message = await self._awaited(self._deadline)
        self._whole = not message.get("more_body", False)
        if message["type"] == "http.disconnect":  # 499, as nginx counts those who left before an answer
            raise HTTPException(499, "the client left before its request was whole")
        self.read += len(message.get("body", b""))
        if self.read > self._bodies.most_each:
            raise self._too_large()
        if self._whole:
            self._bodies.leave(self)
        else:
            self._bodies.grew()
        return message

    async def _awaited(self, deadline: float) -> Message:
        try:
            async with asyncio.timeout_at(deadline) as self._patience:
                if self._given_up:
                    raise TimeoutError
                return await self._receive()
        except TimeoutError:
            text = f"the body did not arrive within {self._bodies.timeout_s:g} s; send it faster, or a smaller image"
            if self._given_up:
                text = "the body arrived too slowly while others were sent; send it faster, or a smaller image"
            raise Refused(408, "slow", text) from None
        finally:
            self._patience = None

    def _too_large(self) -> Refused:
        text = f"the body is over {self._bodies.most_each / 2**20:.3g} MiB; send smaller or fewer images"
        return Refused(413, "body", text)


CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
PAGE_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_ROUTES = (
    "/", "/assess", "/assess/batch", "/compare", "/heatmap", "/health", "/version", "/metrics", "/docs",
    "/openapi.json",
)  # fmt: skip


class Guard:
    """An ASGI middleware around the whole service."""

    def __init__(self, app: ASGIApp, token: str | None, assessor: Assessor, bodies: Bodies) -> None:
        self._app, self._metrics, self._bodies, self._token = app, assessor.metrics, bodies, token
        self._hosts = (*assessor.settings.allowed_hosts, assessor.settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; what is none (the start and the end of the service) passes."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = secrets.token_hex(8)
        facts = scope.setdefault("state", {})["facts"] = {"request": request_id}
        headers = Headers(scope=scope)
        body = Body(receive, headers, self._bodies)
        answer = _Answer(send, body, request_id)
        try:
            check_head(scope["method"], scope["path"], headers, self._token, self._hosts)
            body.check_length()
            await self._app(scope, body, answer)
        except Refused as refusal:
            await answer.instead(scope, error_response(scope, refusal))
        except Exception:  # the border of a request: whatever fails is logged, and the service goes on
            logger.exception("request failed", extra={"facts": {"request": request_id}})
            text = f"the service failed on this request; its log says why, under request {request_id}"
            await answer.instead(scope, error_response(scope, HTTPException(500, text)))
        finally:
            self._bodies.leave(body)
        self._record(scope, facts, answer.status, time.perf_counter() - started)

    def _record(self, scope: Scope, facts: dict[str, Any], status: int, seconds: float) -> None:
        path = scope["path"]
        if path in _ROUTES:
            route = path
        else:
            route = "/assets" if path.startswith("/assets/") else "other"
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        if "refused" in facts:
            self._metrics.refused.labels(facts["refused"]).inc()
        line = {
            **facts, "method": scope["method"][:16], "path": shorten(path, 120), "status": status,
            "seconds": round(seconds, 4), "client": (scope.get("client") or ("",))[0],
        }  # fmt: skip
        logger.info("request", extra={"facts": line})


def note(scope: Scope, **facts: Any) -> None:
    """Add facts to the log line of the request that is being answered."""
    scope["state"]["facts"].update(facts)


def error_response(scope: Scope, error: HTTPException) -> JSONResponse:
    """Return the answer `{"error": one line}`, and note why a refused request was refused."""
    headers = dict(error.headers or {})
    if isinstance(error, Refused):
        note(scope, refused=error.reason)
    if isinstance(error, Refused) or error.status_code == 500:
        # Unread bytes of the body would be taken for the next request on this connection.
        headers["Connection"] = "close"
    return JSONResponse({"error": error.detail}, error.status_code, headers)


class _Answer:
    """The sending side: adds the headers that every answer has, and remembers the status."""

    def __init__(self, send: Send, body: Body, request_id: str) -> None:
        self._send, self._body, self._request_id = send, body, request_id
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.status >= 400:
                await self._body.drain()
            headers = MutableHeaders(scope=message)
            headers.update({**PAGE_HEADERS, "X-Request-Id": self._request_id})
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)

    async def instead(self, scope: Scope, response: JSONResponse) -> None:
        """Send an answer of the guard's own, unless part of another is on its way."""
        if not self.status:
            await response(scope, self._body, self)
