"""The service as an ASGI application: its routes and the page. Binds no port."""

import io
import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio.to_thread
import dspy
from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from program.agent.assessment import Assessment
from program.agent.comparison import Comparison
from program.agent.loop import AgenticIQA
from program.agent.saving import context_of
from program.common.errors import InputError
from program.common.pool import one_blas_thread
from program.common.request import Request
from program.evaluation.record import environment
from program.service.assessing import Assessor, Ticket
from program.service.guard import Bodies, Guard, error_response, note
from program.service.requests import FORM, AssessRequest, Refused, jobs_of, reader_of, reason_of, refusal_of, shorten
from program.tools.registry import installed_version

_LOGGED_QUERY_CHARS = 80


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
    status: {"model": Fault, "description": why}
    for status, why in {
        401: "no token, or a wrong one",
        403: "asked by a foreign page, or for a path or URL that the settings do not allow",
        408: "the body did not arrive in time",
        413: "more bytes or items than the limits",
        415: "neither JSON nor a form",
        422: "something sent cannot be used; the line says what",
        502: "the language model gave no answer",
        503: "busy; Retry-After says when to come back",
        504: "no answer in time",
    }.items()
}


def add_assessments(app: FastAPI, assessor: Assessor) -> None:
    """Add the four routes."""

    @app.post("/assess", responses=_FAULTS, openapi_extra=_body_schema(several=False))
    async def assess(request: HttpRequest) -> Assessment:
        """Judge one image: JSON, or a form with the files `image` and `reference`."""
        async with _asked(assessor, request) as (ticket, (job, *_)):
            result = await assessor.one(ticket, assessor.assess, job)
        note(request.scope, status_of_answer=result.status, score=result.rating, lm_calls=result.usage.lm_calls)
        return result

    @app.post(
        "/heatmap", responses={**_FAULTS, 200: {"content": {"image/png": {}}}}, response_class=Response,
        openapi_extra=_body_schema(several=False),
    )  # fmt: skip
    async def heatmap(request: HttpRequest) -> Response:
        """Draw where one image loses quality: the same body as /assess, and a PNG for an answer."""
        async with _asked(assessor, request) as (ticket, (job, *_)):
            return Response(await assessor.one(ticket, assessor.draw, job), media_type="image/png")

    @app.post("/compare", responses=_FAULTS, openapi_extra=_body_schema(several=True))
    async def compare(request: HttpRequest) -> Comparison:
        """Say which of two images is better: JSON with two `items`, or a form with two files `image`."""
        async with _asked(assessor, request, 2) as (ticket, jobs):
            pair = [job for job in jobs if not isinstance(job, Refused)]
            if len(jobs) != 2 or len(pair) != 2:
                one = Refused(422, "request", f"image: {len(jobs)} sent; a comparison takes two")
                raise next((job for job in jobs if isinstance(job, Refused)), one)
            return await assessor.one(ticket, assessor.compare, (pair[0], pair[1]))

    @app.post("/assess/batch", responses=_FAULTS, openapi_extra=_body_schema(several=True))
    async def batch(request: HttpRequest) -> BatchAnswer:
        """Judge several images: JSON with `items`, or a form with several files `image` and one question."""
        async with _asked(assessor, request, assessor.settings.max_batch) as (ticket, jobs):
            made = await assessor.run_jobs(ticket, assessor.assess, jobs)
        items = [
            BatchItem(assessment=result) if isinstance(result, Assessment) else BatchItem(error=reason_of(result))
            for result in made
        ]
        failed = sum(item.assessment is None for item in items)
        note(request.scope, failed=failed)
        return BatchAnswer(items=items, failed=failed)


@asynccontextmanager
async def _asked(
    assessor: Assessor, request: HttpRequest, most: int | None = None
) -> AsyncIterator[tuple[Ticket, list[Request | Refused]]]:
    """Yield a place and the jobs sent: one, or up to `most`, which are a list in JSON."""
    assessor.check_room()  # before the body is read: nobody shall send it for nothing
    read = await reader_of(request, most)
    with assessor.admit() as ticket:
        # In a thread: megabytes of JSON would keep all others waiting.
        items = await anyio.to_thread.run_sync(read)
        if len(items) > (most or 1):
            raise Refused(413, "batch", f"items: {len(items)} are over {most or 1}; send them in several requests")
        jobs = await anyio.to_thread.run_sync(jobs_of, items, assessor.settings)
        usable = [job for job in jobs if not isinstance(job, Refused)]
        queries = "; ".join(dict.fromkeys(job.query or "" for job in usable))
        size = sum(len(job.image.data) for job in usable)
        note(request.scope, items=len(jobs), query=shorten(queries, _LOGGED_QUERY_CHARS), bytes=size)
        yield ticket, jobs


def _body_schema(*, several: bool) -> dict[str, Any]:
    """Describe a route's body, which FastAPI does not read: JSON, or a form of its fields."""
    item = AssessRequest.model_json_schema()
    file = {"type": "string", "format": "binary"}
    images = {"type": "array", "items": file, "description": "files"}
    form = {
        "image": images if several else file,
        "reference": file,
        "option": {"type": "array", "items": {"type": "string"}, "description": "choices, one a field"},
    }
    sent = {"type": "object", "properties": {"items": {"type": "array", "items": item}}, "required": ["items"]}
    schemas = {
        "application/json": sent if several else item,
        FORM: {**item, "properties": {**item["properties"], **form}},
    }
    return {"requestBody": {"required": True, "content": {kind: {"schema": each} for kind, each in schemas.items()}}}


mimetypes.add_type("text/javascript", ".js")  # some Windows machines say otherwise, and browsers then run no script
_VERSION = installed_version("agentic-iqa") or "0"


def create_app(program: AgenticIQA, token: str | None = None) -> FastAPI:
    """Return the service around a program; with a token, only its pages and /health are open."""
    assessor = Assessor(program)
    bodies = Bodies(assessor.settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with one_blas_thread():
            yield
            assessor.close()

    app = FastAPI(
        title="AgenticIQA", version=_VERSION, docs_url=None, redoc_url=None, lifespan=lifespan,
        description="Judges the quality of an image as people would, and says why.",
    )  # fmt: skip
    _add_pages(app)
    _add_facts(app, assessor, bodies)
    add_assessments(app, assessor)
    for error in (HTTPException, InputError, dspy.LMError):
        app.add_exception_handler(error, _answered)
    app.add_middleware(Guard, token=token, assessor=assessor, bodies=bodies)
    return app


def _add_pages(app: FastAPI) -> None:
    folder = Path(__file__).with_name("static")
    app.mount("/assets", StaticFiles(directory=folder))

    @app.get("/", include_in_schema=False)
    def front() -> Response:
        return FileResponse(folder / "index.html")

    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:
        return FileResponse(folder / "docs.html")

    @app.get("/examples/{name}", include_in_schema=False)
    def example(name: str) -> Response:
        return Response(example_photograph(name), media_type="image/jpeg")


@cache
def example_photograph(name: str) -> bytes:
    """Return a photograph of scikit-image as JPEG: coffee, cat or moon, or one ", blurred"."""
    from PIL import Image, ImageFilter
    from skimage import data

    subject, _, spoiled = name.partition(", ")
    photographs = {"coffee": data.coffee, "cat": data.cat, "moon": data.moon}
    if subject not in photographs or spoiled not in {"", "blurred"}:
        raise HTTPException(404, f"example {name[:40]!r}: there is none of this name")
    picture, file = Image.fromarray(photographs[subject]()).convert("RGB"), io.BytesIO()
    (picture.filter(ImageFilter.GaussianBlur(4)) if spoiled else picture).save(file, "JPEG", quality=95)
    return file.getvalue()


def _add_facts(app: FastAPI, assessor: Assessor, bodies: Bodies) -> None:
    @cache
    def versions() -> dict[str, Any]:
        context, software = context_of(assessor.program), environment()
        return {
            "version": _VERSION,
            "program_sha256": context["program_sha256"],
            "demos": sum(len(predictor.demos) for predictor in assessor.program.predictors()),
            **{name: context[name] for name in ("models", "scoring_mode", "tools")},
            **{name: getattr(software, name) for name in ("python", "versions", "git_commit")},
        }

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the service answers, and how many requests it receives and works on. Open."""
        return {"status": "ok", "requests": len(bodies) + assessor.busy}

    @app.get("/version")
    async def version() -> dict[str, Any]:
        """What answers: program hash, models, tools, packages; no path, host or key."""
        return await anyio.to_thread.run_sync(versions)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters in Prometheus's format."""
        return Response(assessor.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _answered(request: HttpRequest, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException) and error.status_code in {404, 405}:
        error.detail = f"{error.detail}; /docs lists what can be asked"
    answer = error if isinstance(error, HTTPException) else refusal_of(error)
    assert answer is not None  # noqa: S101 - it is registered for errors that have one
    return error_response(request.scope, answer)
