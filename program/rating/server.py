"""The page and what it asks: a local server that answers its own page alone."""

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from program.common.errors import ImageError, InputError
from program.rating.learning import agreement_text, worth_text
from program.rating.session import Session
from program.service.guard import PAGE_HEADERS, check_head
from program.service.requests import Refused

_STATIC = Path(__file__).with_name("static")
_ICON = _STATIC.parents[1] / "service" / "static" / "icon.svg"
_MOST_BODY = 4096


def app_of(session: Session, compile_command: str) -> ASGIApp:
    """Return the page around a session; `compile_command` is what it ends with."""

    async def queue(request: Request) -> Response:
        asked = await body_of(request)
        return JSONResponse(await run_in_threadpool(session.queue, str(asked.get("tab"))))

    async def answer(request: Request) -> Response:
        asked = await body_of(request)
        given = str(asked.get("tab")), asked.get("id"), asked.get("answer")
        return JSONResponse(await run_in_threadpool(session.answer, *given))

    async def before(request: Request) -> Response:
        asked = await body_of(request)
        return JSONResponse(await run_in_threadpool(session.before, asked.get("id")))

    def worth(_: Request) -> Response:
        lines = [line for line in (agreement_text(session), worth_text(session)) if line]
        return JSONResponse({"lines": lines, "compile": compile_command})

    async def picture(request: Request) -> Response:
        png = await run_in_threadpool(session.png, request.path_params["name"], request.path_params["side"])
        return Response(png, media_type="image/png")

    async def done(request: Request) -> Response:
        await body_of(request)
        signal.raise_signal(signal.SIGINT)
        return JSONResponse({})

    return page_app("rate.html", [
        Route("/queue", queue, methods=["POST"]),
        Route("/answer", answer, methods=["POST"]),
        Route("/before", before, methods=["POST"]),
        Route("/done", done, methods=["POST"]),
        Route("/worth", worth),
        Route("/picture/{name}/{side:int}", picture),
    ])  # fmt: skip


def page_app(page: str, routes: Sequence[Route]) -> ASGIApp:
    """Return a page of the folder "static", with what it asks for, for this machine's own browser."""
    app = Starlette(
        routes=[
            Route("/", lambda _: FileResponse(_STATIC / page)),
            Route("/icon.svg", lambda _: FileResponse(_ICON)),
            *routes,
            Mount("/assets", StaticFiles(directory=_STATIC)),
        ],
        exception_handlers={InputError: _refused, HTTPException: _refused},
    )
    return _OwnPage(app)


async def body_of(request: Request) -> dict[str, Any]:
    """Return what a page sent; a form of another site cannot send this type. Raises Refused."""
    length = request.headers.get("content-length", "")
    if not length.isdigit() or int(length[:9]) > _MOST_BODY:
        raise Refused(413, "body", f"the body is over {_MOST_BODY} bytes, or of unknown length; send less")
    if request.headers.get("content-type") != "application/json":
        raise Refused(415, "type", "content-type: give application/json")
    try:
        asked = json.loads(await request.body())
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        raise Refused(422, "body", "the body is no JSON object; send one")
    return asked


def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code)
    return JSONResponse({"error": str(error)}, 410 if isinstance(error, ImageError) else 422)


class _OwnPage:
    """Refuses what another page or name asks, and adds the headers of a page that fetches nothing from elsewhere."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(PAGE_HEADERS)
                headers["Cache-Control"] = "no-store"
            await send(message)

        try:
            check_head(scope["method"], scope["path"], Headers(scope=scope), None, ())
        except Refused as refusal:
            await JSONResponse({"error": refusal.detail}, refusal.status_code)(scope, receive, with_headers)
            return
        await self._app(scope, receive, with_headers)
