"""The outermost layer: every request is checked, bounded, logged, counted and answered with safe headers."""

import secrets
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from program.service.assessing import Metrics
from program.service.bodies import Bodies, Body
from program.service.logs import logger, shortened
from program.service.refusals import Refused
from program.service.rules import Rules

__all__ = ("CONTENT_POLICY", "Guard", "error_response", "note")

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
_ROUTES = (
    "/", "/assess", "/assess/batch", "/compare", "/heatmap", "/health", "/version", "/metrics", "/docs",
    "/openapi.json",
)  # fmt: skip


class Guard:
    """An ASGI middleware around the whole service."""

    def __init__(self, app: ASGIApp, rules: Rules, metrics: Metrics, bodies: Bodies) -> None:
        self._app, self._rules, self._metrics, self._bodies = app, rules, metrics, bodies

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
            _check_single(headers)
            self._rules.check(scope["method"], scope["path"], headers)
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
        route = path if path in _ROUTES else "/assets" if path.startswith("/assets/") else "other"
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        if "refused" in facts:
            self._metrics.refused.labels(facts["refused"]).inc()
        line = {
            **facts, "method": scope["method"][:16], "path": shortened(path, 120), "status": status,
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
            headers.update({**_HEADERS, "X-Request-Id": self._request_id})
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)

    async def instead(self, scope: Scope, response: JSONResponse) -> None:
        """Send an answer of the guard's own, unless part of another is on its way."""
        if not self.status:
            await response(scope, self._body, self)


def _check_single(headers: Headers) -> None:
    """Refuse a request that sends a header twice of which one decides."""
    for name in ("host", "origin", "authorization", "content-length"):
        if len(headers.getlist(name)) > 1:
            raise Refused(400, "headers", f"header {name}: given twice; give it once")
