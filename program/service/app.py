"""The service as an ASGI application; nothing here binds a port."""

import io
import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import dspy
from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from program.agent.loop import AgenticIQA
from program.common.errors import InputError
from program.evaluation.evaluating import context_of
from program.evaluation.record import environment
from program.service.assessing import Assessor, Metrics
from program.service.bodies import Bodies
from program.service.guard import Guard, error_response
from program.service.refusals import refusal_of
from program.service.routes import add_assessments
from program.service.rules import Rules
from program.tools.readiness import installed_version

__all__ = ("create_app",)

mimetypes.add_type("text/javascript", ".js")  # some Windows machines say otherwise, and browsers then run no script
_VERSION = installed_version("agentic-iqa") or "0"


def create_app(program: AgenticIQA, token: str | None = None) -> FastAPI:
    """Return the service around a program; with a token, only /, /assets, /docs, /openapi.json and /health are open."""
    settings = program.resources.settings.serve
    metrics = Metrics()
    assessor = Assessor(program, settings, metrics)
    bodies = Bodies.of(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
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
    rules = Rules(token, (*settings.allowed_hosts, settings.host))
    app.add_middleware(Guard, rules=rules, metrics=metrics, bodies=bodies)
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
    """Return a photograph that scikit-image ships, as JPEG: coffee, cat or moon, or one of them ", blurred"."""
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
    versions = cache(partial(_versions, assessor.program))

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


def _versions(program: AgenticIQA) -> dict[str, Any]:
    context, software = context_of(program), environment()
    return {
        "version": _VERSION,
        "program_sha256": context["program_sha256"],
        "demos": sum(len(predictor.demos) for predictor in program.predictors()),
        **{name: context[name] for name in ("models", "scoring_mode", "tools")},
        **{name: getattr(software, name) for name in ("python", "versions", "git_commit")},
    }
