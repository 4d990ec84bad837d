"""The service's routes. `create_app` gives an ASGI application; nothing here binds a port."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from importlib.resources import files
from typing import Any

import anyio.to_thread
import dspy
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from program.agent import AgenticIQA
from program.errors import InputError
from program.serving.assessing import Assessor
from program.serving.guard import App, Guard, note
from program.serving.incoming import AssessRequest, BatchRequest, Job, read_batch, read_one
from program.serving.logs import logger, shortened
from program.serving.metrics import Metrics
from program.serving.refusals import Refused, model_fault
from program.serving.rules import Rules
from program.serving.sources import Sources
from program.serving.versions import versions
from program.state import Assessment

__all__ = ("create_app",)

_LOGGED_QUERY_CHARS = 80
_ASSETS = {
    "page.css": "text/css", "page.js": "text/javascript", "draw.js": "text/javascript", "docs.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}  # fmt: skip


class Fault(BaseModel):
    """Why there is no assessment, in one line."""

    error: str


class BatchItem(BaseModel):
    """One item's assessment, or why there is none."""

    assessment: Assessment | None = None
    error: str | None = None


class BatchAnswer(BaseModel):
    """The items in the order they were sent."""

    items: list[BatchItem]
    failed: int


_FAULTS: dict[int | str, dict[str, Any]] = {
    401: {"model": Fault, "description": "no token, or a wrong one"},
    403: {
        "model": Fault,
        "description": "asked by a foreign page, or for a path or URL that the settings do not allow",
    },
    413: {"model": Fault, "description": "more bytes or items than the limits"},
    422: {"model": Fault, "description": "something sent cannot be used; the line says what"},
    503: {"model": Fault, "description": "busy; Retry-After says when to come back"},
    504: {"model": Fault, "description": "no answer in time"},
}


def create_app(program: AgenticIQA, token: str | None = None) -> App:
    """Return the service around a program; with a token, only /, /assets, /docs, /openapi.json and /health are open."""
    settings = program.resources.settings.serve
    metrics = Metrics()
    assessor = Assessor(program, settings, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        assessor.close()

    inner = FastAPI(
        title="AgenticIQA", version=_version(), docs_url=None, redoc_url=None, lifespan=lifespan,
        description="Judges the quality of an image as people would, and says why.",
    )  # fmt: skip
    _add_pages(inner)
    _add_facts(inner, assessor)
    _add_assessments(inner, assessor)
    _add_faults(inner, metrics)
    rules = Rules(token, (*settings.allowed_hosts, settings.host))
    limit = int(settings.max_body_mb * 2**20)
    return Guard(inner, rules, metrics, max_body=limit, body_timeout_s=settings.body_timeout_s)


def _add_pages(app: FastAPI) -> None:
    folder = files("program.serving") / "static"

    def page(name: str, media_type: str) -> Response:
        # Asked for anew each time: a page of one version with the script of another would not work.
        return Response((folder / name).read_bytes(), media_type=media_type, headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    def front() -> Response:
        return page("index.html", "text/html")

    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:
        return page("docs.html", "text/html")

    @app.get("/assets/{name}", include_in_schema=False)
    def asset(name: str) -> Response:
        if name not in _ASSETS:
            raise HTTPException(404)
        return page(name, _ASSETS[name])


def _add_facts(app: FastAPI, assessor: Assessor) -> None:
    shown: dict[str, Any] = {}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the service answers, and how many requests it works on. Open."""
        return {"status": "ok", "requests": assessor.busy}

    @app.get("/version")
    async def version() -> dict[str, Any]:
        """What answers: program hash, models, tools, packages."""
        if not shown:
            shown.update(await anyio.to_thread.run_sync(versions, assessor.program))
        return {"version": _version(), **shown}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters in Prometheus's format."""
        return Response(assessor.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_assessments(app: FastAPI, assessor: Assessor) -> None:
    settings = assessor.settings
    sources = Sources(settings)

    @app.post(
        "/assess", responses={200: {"model": Assessment}, **_FAULTS}, openapi_extra=_body(AssessRequest, many=False)
    )
    async def assess(request: Request) -> Response:
        """Judge one image: JSON, or a form with the files `image` and `reference`."""
        with assessor.admitted() as ticket:
            job = await read_one(request, settings, sources)
            note(request.scope, query=shortened(job.query, _LOGGED_QUERY_CHARS), bytes=len(job.image.data))
            result = (await assessor.assess(ticket, [job]))[0]
        if isinstance(result, BaseException):
            raise result
        note(request.scope, status_of_answer=result.status, score=result.rating, lm_calls=result.usage.lm_calls)
        return Response(result.model_dump_json(), media_type="application/json")

    @app.post(
        "/assess/batch",
        responses={200: {"model": BatchAnswer}, **_FAULTS},
        openapi_extra=_body(BatchRequest, many=True),
    )
    async def batch(request: Request) -> Response:
        """Judge several images: JSON with `items`, or a form with several files `image` and one question."""
        with assessor.admitted() as ticket:
            jobs = await read_batch(request, settings, sources)
            note(request.scope, items=len(jobs))
            ready = [job for job in jobs if isinstance(job, Job)]
            results = iter(await assessor.assess(ticket, ready))
        items = [_item(next(results) if isinstance(job, Job) else job) for job in jobs]
        failed = sum(item.assessment is None for item in items)
        note(request.scope, failed=failed)
        return Response(BatchAnswer(items=items, failed=failed).model_dump_json(), media_type="application/json")


def _item(result: Assessment | BaseException) -> BatchItem:
    if isinstance(result, Assessment):
        return BatchItem(assessment=result)
    if isinstance(result, Refused):
        return BatchItem(error=result.message)
    if isinstance(result, InputError):
        return BatchItem(error=_one_line(result))
    if isinstance(result, dspy.LMError):
        return BatchItem(error=model_fault(result))
    logger.error("item failed", exc_info=result)
    return BatchItem(error="the service failed on this item; its log says why")


def _add_faults(app: FastAPI, metrics: Metrics) -> None:
    def refused(request: Request, refusal: Exception) -> JSONResponse:
        assert isinstance(refusal, Refused)  # noqa: S101 - registered for it
        metrics.refused.labels(refusal.reason).inc()
        note(request.scope, refused=refusal.reason)
        # A body read in part would be taken for the next request on this connection.
        headers = {**refusal.headers, "Connection": "close"}
        return JSONResponse({"error": refusal.message}, refusal.status, headers)

    def unusable(request: Request, error: Exception) -> JSONResponse:
        return refused(request, Refused(422, "input", _one_line(error)))

    def routed(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
        text = (
            f"{error.detail}; /docs lists what can be asked" if error.status_code in {404, 405} else str(error.detail)
        )
        return JSONResponse({"error": text}, error.status_code, error.headers)

    def unanswered(request: Request, error: Exception) -> JSONResponse:
        note(request.scope, refused="model")
        return JSONResponse({"error": model_fault(error)}, 502)

    def failed(_: Request, __: Exception) -> JSONResponse:
        return JSONResponse({"error": "the service failed on this request; its log says why"}, 500)

    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(InputError, unusable)
    app.add_exception_handler(HTTPException, routed)
    app.add_exception_handler(dspy.LMError, unanswered)
    app.add_exception_handler(Exception, failed)


def _body(model: type[BaseModel], *, many: bool) -> dict[str, Any]:
    """Describe a body that is read by hand, as JSON or as a form."""
    file = {"type": "string", "format": "binary"}
    text = {"type": "string"}
    form = {
        "type": "object",
        "required": ["image"],
        "properties": {
            "image": {"type": "array", "items": file} if many else file,
            "reference": file,
            "query": text,
            "option": {"type": "array", "items": text},
            "options": {**text, "description": "a JSON object of choices by letter, instead of option"},
            "regions": {**text, "description": 'JSON: {"name": [left, top, right, bottom]} in pixels'},
        },
    }
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    if many:  # its items are an AssessRequest, which only a schema of its own would name
        schema["properties"]["items"]["items"] = AssessRequest.model_json_schema()
        schema.pop("$defs", None)
    content = {"application/json": {"schema": schema}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


def _one_line(error: BaseException) -> str:
    return shortened(" ".join(str(error).split()), 300)


def _version() -> str:
    try:
        return metadata.version("agentic-iqa")
    except metadata.PackageNotFoundError:
        return "0"
