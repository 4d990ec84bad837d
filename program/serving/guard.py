"""The outermost layer: every request is checked, bounded, logged, counted and answered with safe headers."""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import ClientDisconnect

from program.serving.logs import logger, shortened
from program.serving.metrics import Metrics
from program.serving.refusals import Refused
from program.serving.rules import Rules

__all__ = ("CONTENT_POLICY", "Guard", "note")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_DRAIN_S = 1.0
_ROUTES = ("/", "/assess", "/assess/batch", "/health", "/version", "/metrics", "/docs", "/openapi.json")


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: App, rules: Rules, metrics: Metrics, *, max_body: int, body_timeout_s: float) -> None:
        self._app, self._rules, self._metrics = app, rules, metrics
        self._max_body, self._body_timeout_s = max_body, body_timeout_s

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one connection's scope; anything but HTTP is closed."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        answer = _Answer(send, request_id=secrets.token_hex(8))
        facts: dict[str, Any] = {"request": answer.request_id}
        scope.setdefault("state", {})["facts"] = facts
        try:
            headers = _headers(scope)
            answer.body = body = _Body(receive, self._max_body, self._body_timeout_s, headers)
            self._rules.check(scope["method"], scope["path"], headers)
            body.check_length()
            await self._app(scope, body, answer)
        except Refused as refusal:
            self._metrics.refused.labels(refusal.reason).inc()
            facts["refused"] = refusal.reason
            await answer.refuse(refusal.status, refusal.message, refusal.headers)
        except ClientDisconnect:
            answer.status = 499  # as nginx counts those who left before an answer
        except Exception:  # the border of a request: whatever fails is logged, and the service goes on
            logger.exception("request failed", extra={"facts": {"request": answer.request_id}})
            text = f"the service failed on this request; its log says why, under request {answer.request_id}"
            await answer.refuse(500, text, {})
        self._record(scope, facts, answer.status, time.perf_counter() - started)

    def _record(self, scope: Message, facts: dict[str, Any], status: int, seconds: float) -> None:
        path = scope["path"]
        route = path if path in _ROUTES else "/assets" if path.startswith("/assets/") else "other"
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        line = {
            **facts, "method": scope["method"][:16], "path": shortened(path, 120), "status": status,
            "seconds": round(seconds, 4), "client": (scope.get("client") or ("",))[0],
        }  # fmt: skip
        logger.info("request", extra={"facts": line})


def note(scope: Message, **facts: Any) -> None:
    """Add facts to the log line of the request that is being answered."""
    scope["state"]["facts"].update(facts)


class _Answer:
    """The sending side: adds the headers that every answer has, and remembers the status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self.request_id = send, request_id
        self.status = 0
        self.body: _Body | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.status >= 400 and self.body is not None:
                await self.body.drain()
            own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            headers = [*message.get("headers", ()), *own, (b"x-request-id", self.request_id.encode())]
            if not any(name.lower() == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        await self._send(message)

    async def refuse(self, status: int, text: str, headers: dict[str, str]) -> None:
        if self.status:  # too late: part of an answer is on its way
            return
        body = json.dumps({"error": text}, ensure_ascii=False).encode()
        # Unread bytes of the body would be taken for the next request.
        fields = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        pairs = [(name.lower().encode(), value.encode()) for name, value in {**fields, **headers}.items()]
        await self({"type": "http.response.start", "status": status, "headers": pairs})
        await self({"type": "http.response.body", "body": body})


class _Body:
    """The receiving side: stops reading at the limits of size and time."""

    def __init__(self, receive: Receive, limit: int, timeout_s: float, headers: dict[str, str]) -> None:
        self._receive, self._limit, self._timeout_s = receive, limit, timeout_s
        self._read = 0
        self._deadline: float | None = None
        self._length = headers.get("content-length", "0")
        self._expects = "expect" in headers
        self._whole = "transfer-encoding" not in headers and self._length == "0"

    def check_length(self) -> None:
        """Refuse a body that says itself that it is too large."""
        if not (self._length.isascii() and self._length.isdigit()) or int(self._length[:20]) > self._limit:
            raise self._too_large()

    async def drain(self) -> None:
        """Read and drop what is still coming, for a second at most: a client cut off while sending reads no answer."""
        if self._whole or (self._expects and self._deadline is None):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                while not self._whole:
                    message = await self._receive()
                    self._whole = message["type"] != "http.request" or not message.get("more_body", False)

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()
        loop = asyncio.get_running_loop()
        if self._deadline is None:
            self._deadline = loop.time() + self._timeout_s
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            text = f"the body did not arrive within {self._timeout_s:g} s; send it faster, or a smaller image"
            raise Refused(408, "slow", text) from None
        self._read += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._read > self._limit:
            raise self._too_large()
        return message

    def _too_large(self) -> Refused:
        return Refused(413, "body", f"the body is over {self._limit / 2**20:.3g} MiB; send smaller or fewer images")


def _headers(scope: Message) -> dict[str, str]:
    """Return the headers by name; one of those that decide, given twice, is refused."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        if key in found and key in {"host", "origin", "authorization", "content-length"}:
            raise Refused(400, "headers", f"header {key}: given twice; give it once")
        found[key] = value.decode("latin-1")
    return found
