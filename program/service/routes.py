"""POST /assess and /assess/batch: each answers JSON and forms, under one path."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Form, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Scope

from program.agent.assessment import Assessment
from program.service.assessing import Assessor
from program.service.guard import note
from program.service.incoming import (
    AssessForm,
    AssessRequest,
    BatchForm,
    BatchRequest,
    Job,
    job_of,
    jobs_of_form,
    jobs_of_items,
)
from program.service.logs import logger, shortened
from program.service.refusals import Refused, refusal_of
from program.service.sources import Sources

__all__ = ("add_assessments",)

_FORM = "multipart/form-data"
_LOGGED_QUERY_CHARS = 80
_MAX_FIELD_BYTES = 64 * 2**10


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


class _JsonRequest(Request):
    async def json(self) -> Any:
        """Return what the body holds, read in a thread: megabytes of JSON would keep all others waiting."""
        try:
            return await anyio.to_thread.run_sync(from_json, await self.body())
        except ValueError as error:
            raise Refused(422, "request", f"request: Invalid JSON: {error}") from None


class _JsonRoute(APIRoute):
    """A route for JSON. A request gets its place before its body is read, so that few bodies are in memory."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def admitted(request: Request) -> Response:
            with request.app.state.assessor.admitted() as request.state.ticket:
                kind = _kind(request.headers)
                # Pages of other sites can post text/plain and forms without asking; JSON they cannot.
                if kind not in {"application/json", _FORM}:
                    text = f"content type {kind[:60]!r}: send application/json or {_FORM}"
                    raise Refused(415, "request", text)
                return await handler(_JsonRequest(request.scope, request.receive))

        return admitted


class _FormRoute(_JsonRoute):
    """A route for forms. It stands before the JSON route of its path, which gets everything else."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(scope) if _kind(Headers(scope=scope)) == _FORM else (Match.NONE, {})


def _kind(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def add_assessments(router: APIRouter, assessor: Assessor) -> None:
    """Add both routes; the application's state must hold the assessor."""
    settings, sources = assessor.settings, Sources(assessor.settings)
    forms = APIRouter(
        route_class=_FormRoute,
        include_in_schema=False,
        form_limits={"max_fields": 64, "max_part_size": _MAX_FIELD_BYTES},
    )
    bodies = APIRouter(route_class=_JsonRoute, responses=_FAULTS)

    @forms.post("/assess", form_limits={"max_files": 2})
    async def assess_form(request: Request, form: Annotated[AssessForm, Form(media_type=_FORM)]) -> Assessment:
        (job,) = await jobs_of_form(form, settings)
        return await _assess(request, job)

    @bodies.post("/assess", openapi_extra=_form_schema(AssessForm))
    async def assess(request: Request, item: AssessRequest) -> Assessment:
        """Judge one image: JSON, or a form with the files `image` and `reference`."""
        return await _assess(request, await anyio.to_thread.run_sync(job_of, item, settings, sources))

    @forms.post("/assess/batch", form_limits={"max_files": settings.max_batch + 1})
    async def batch_form(request: Request, form: Annotated[BatchForm, Form(media_type=_FORM)]) -> BatchAnswer:
        _check_size(len(form.image), settings.max_batch)
        return await _assess_all(request, await jobs_of_form(form, settings))

    @bodies.post("/assess/batch", openapi_extra=_form_schema(BatchForm))
    async def batch(request: Request, sent: BatchRequest) -> BatchAnswer:
        """Judge several images: JSON with `items`, or a form with several files `image` and one question."""
        _check_size(len(sent.items), settings.max_batch)

        jobs = await anyio.to_thread.run_sync(jobs_of_items, sent.items, settings, sources)
        return await _assess_all(request, jobs)

    router.include_router(forms)
    router.include_router(bodies)


async def _assess(request: Request, job: Job) -> Assessment:
    assessor: Assessor = request.app.state.assessor
    note(request.scope, query=shortened(job.query, _LOGGED_QUERY_CHARS), bytes=len(job.image.data))
    (result,) = await assessor.assess(request.state.ticket, [job])
    if isinstance(result, BaseException):
        raise result
    note(request.scope, status_of_answer=result.status, score=result.rating, lm_calls=result.usage.lm_calls)
    return result


async def _assess_all(request: Request, jobs: Sequence[Job | Refused]) -> BatchAnswer:
    assessor: Assessor = request.app.state.assessor
    note(request.scope, items=len(jobs))
    results = iter(await assessor.assess(request.state.ticket, [job for job in jobs if isinstance(job, Job)]))
    items = [_item(next(results) if isinstance(job, Job) else job) for job in jobs]
    failed = sum(item.assessment is None for item in items)
    note(request.scope, failed=failed)
    return BatchAnswer(items=items, failed=failed)


def _item(result: Assessment | BaseException) -> BatchItem:
    if isinstance(result, Assessment):
        return BatchItem(assessment=result)
    if (refusal := refusal_of(result)) is not None:
        return BatchItem(error=refusal.detail)
    logger.error("item failed", exc_info=result)
    return BatchItem(error="the service failed on this item; its log says why")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise Refused(413, "batch", f"items: {size} are over {limit}; send them in several requests")


def _form_schema(form: type[BaseModel]) -> dict[str, Any]:
    """Describe the form beside the JSON, as FastAPI describes one kind of body a route."""
    return {"requestBody": {"content": {_FORM: {"schema": form.model_json_schema()}}}}
