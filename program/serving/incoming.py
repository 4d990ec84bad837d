"""Requests as clients send them (JSON or multipart form) become jobs; whatever does not fit is refused in one line."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio.to_thread
import dspy
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from program.errors import did_you_mean
from program.images import IMAGES, Box
from program.query import DEFAULT_QUERY
from program.serving.refusals import Refused
from program.serving.sources import Sent, Sources, decoded, shown_name
from program.settings import ServeSettings

if TYPE_CHECKING:
    from program.agent import AgenticIQA
    from program.state import Assessment

__all__ = ("AssessRequest", "BatchRequest", "Job", "job_of", "read_batch", "read_one", "row_request")

_MAX_FIELD_BYTES = 64 * 2**10
_FIELDS = ("image", "reference", "query", "option", "options", "regions")

_Request = TypeVar("_Request", bound=BaseModel)

OptionText = Annotated[str, Field(min_length=1, max_length=500)]
Options = dict[Annotated[str, Field(max_length=8)], OptionText] | list[OptionText]
Regions = dict[Annotated[str, Field(min_length=1, max_length=100)], Box]


@dataclass(frozen=True)
class Job:
    """One assessment to make; the images are not decoded yet."""

    image: Sent
    query: str
    reference: Sent | None = None
    options: dict[str, str] | list[str] | None = None
    regions: dict[str, Box] | None = None

    def run(self, program: "AgenticIQA", max_megapixels: float) -> "Assessment":
        """Decode the images and assess them; nothing of it is kept. Raises InputError."""
        # DSPy's history and MLflow's traces would keep every prompt of a process that runs for months.
        with IMAGES.borrowing(), dspy.context(disable_history=True, trace=None):
            image = self.image.opened(max_megapixels)
            reference = self.reference.opened(max_megapixels) if self.reference else None
            result: Assessment = program(
                image=image, reference=reference, query=self.query, options=self.options, regions=self.regions
            )
        return result


class AssessRequest(BaseModel):
    """One image and what to ask of it. The image comes as base64, or as a path or URL that the settings allow."""

    model_config = ConfigDict(extra="forbid")

    image: str | None = Field(None, description="the file's bytes as base64 (plain or URL-safe) or as a data: URL")
    image_path: str | None = Field(None, max_length=1000, description="a file under serve.image_folders")
    image_url: str | None = Field(None, max_length=2000, description="an image on one of serve.image_hosts")
    reference: str | None = Field(None, description="the undistorted image, likewise")
    reference_path: str | None = Field(None, max_length=1000)
    reference_url: str | None = Field(None, max_length=2000)
    query: str | None = Field(None, description="a question; without one, a quality score")
    options: Options | None = Field(None, max_length=26, description="choices, by letter or as a list")
    regions: Regions | None = Field(None, max_length=32, description="boxes in pixels: left, top, right, bottom")
    name: str | None = Field(None, max_length=500, description="what to call the image in the answer")

    @model_validator(mode="after")
    def _one_source(self) -> "AssessRequest":
        if sum(v is not None for v in (self.image, self.image_path, self.image_url)) != 1:
            raise ValueError("give one of image, image_path and image_url")
        if sum(v is not None for v in (self.reference, self.reference_path, self.reference_url)) > 1:
            raise ValueError("give one of reference, reference_path and reference_url")
        return self


class BatchRequest(BaseModel):
    """Several images, each with its own question."""

    model_config = ConfigDict(extra="forbid")

    items: list[AssessRequest] = Field(min_length=1)


async def read_one(request: Request, settings: ServeSettings, sources: Sources) -> Job:
    """Return the job of a POST /assess. Raises Refused."""
    if _is_form(request):
        async with request.form(max_files=2, max_fields=64, max_part_size=_MAX_FIELD_BYTES) as form:
            jobs = await _jobs_of_form(form, settings)
            if len(jobs) != 1:
                raise Refused(422, "request", "image: give one file, or send several to /assess/batch")
            return jobs[0]
    body = await _json_body(request)
    return await anyio.to_thread.run_sync(lambda: job_of(_parsed(AssessRequest, body), settings, sources))


async def read_batch(request: Request, settings: ServeSettings, sources: Sources) -> "list[Job | Refused]":
    """Return the jobs of a POST /assess/batch, in order; an item whose image is refused keeps its place."""
    if _is_form(request):
        limit = settings.max_batch + 1
        async with request.form(max_files=limit, max_fields=64, max_part_size=_MAX_FIELD_BYTES) as form:
            jobs: list[Job | Refused] = list(await _jobs_of_form(form, settings))
            _check_batch(len(jobs), settings)
            return jobs
    body = await _json_body(request)
    return await anyio.to_thread.run_sync(lambda: _jobs_of_json(body, settings, sources))


def _jobs_of_json(body: bytes, settings: ServeSettings, sources: Sources) -> "list[Job | Refused]":
    items = _parsed(BatchRequest, body).items
    _check_batch(len(items), settings)
    jobs: list[Job | Refused] = []
    for item in items:
        try:
            jobs.append(job_of(item, settings, sources))
        except Refused as refusal:
            jobs.append(refusal)
    return jobs


def _check_batch(size: int, settings: ServeSettings) -> None:
    if size > settings.max_batch:
        raise Refused(413, "batch", f"items: {size} are over {settings.max_batch}; send them in several requests")


def row_request(given: Mapping[str, Any]) -> AssessRequest:
    """Return a table's row as a request. Raises Refused for a column that is unknown or of the wrong kind."""
    return _checked(lambda: AssessRequest.model_validate(dict(given)), "row")


def job_of(asked: AssessRequest, settings: ServeSettings, sources: Sources) -> Job:
    """Return the job that a request asks for, its images read but not decoded. Raises Refused."""
    image = _sent("image", asked.image, asked.image_path, asked.image_url, sources)
    if image is None:
        raise Refused(422, "request", "image: missing; give one")
    reference = _sent("reference", asked.reference, asked.reference_path, asked.reference_url, sources)
    if asked.name:
        image = Sent(image.data, shown_name(asked.name, image.name))
    return Job(image, _query(asked.query, settings), reference, asked.options, asked.regions)


def _sent(what: str, text: str | None, path: str | None, url: str | None, sources: Sources) -> Sent | None:
    if text is not None:
        return Sent(decoded(text, what), what)
    if path is not None:
        return sources.file(path)
    return sources.url(url) if url is not None else None


def _query(text: str | None, settings: ServeSettings) -> str:
    if text is None or not text.strip():
        return DEFAULT_QUERY
    if len(text) > settings.max_query_chars:
        raise Refused(422, "request", f"query: is over {settings.max_query_chars} characters; shorten it")
    return text


async def _jobs_of_form(form: FormData, settings: ServeSettings) -> list[Job]:
    for field in form:
        if field not in _FIELDS:
            raise Refused(422, "request", f"field {field[:40]!r}: unknown{did_you_mean(field[:40], _FIELDS)}")
    images = [await _upload(part, "image") for part in form.getlist("image")]
    references = [await _upload(part, "reference") for part in form.getlist("reference")]
    if not images or len(references) > 1:
        raise Refused(422, "request", "image: give a file, and at most one reference")
    options: Any = [text for text in form.getlist("option") if text != ""] or None
    if "options" in form:
        options = _json_field(form, "options")
    asked = _checked(
        lambda: _FORM.validate_python({"options": options, "regions": _json_field(form, "regions")}), "form"
    )
    query = _query(_text(form, "query"), settings)
    reference = references[0] if references else None
    return [Job(image, query, reference, asked.options, asked.regions) for image in images]


class _FormFields(BaseModel):
    options: Options | None = Field(None, max_length=26)
    regions: Regions | None = Field(None, max_length=32)


_FORM = TypeAdapter(_FormFields)


async def _upload(part: "UploadFile | str", field: str) -> Sent:
    if isinstance(part, str):
        raise Refused(422, "request", f"{field}: is text; send it as a file (curl -F {field}=@photo.jpg)")
    return Sent(await part.read(), shown_name(part.filename, field))


def _text(form: FormData, field: str) -> str | None:
    value = form.get(field)
    if isinstance(value, UploadFile):
        raise Refused(422, "request", f"{field}: is a file; send it as text")
    return value


def _json_field(form: FormData, field: str) -> Any:
    text = _text(form, field)
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Refused(422, "request", f"{field}: not JSON; give an object") from None


def _is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").split(";")[0].strip().lower() == "multipart/form-data"


async def _json_body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    # Pages of other sites can post text/plain and forms without asking; JSON they cannot.
    if kind != "application/json":
        raise Refused(415, "request", f"content type {kind[:60]!r}: send application/json or multipart/form-data")
    return await request.body()


def _parsed(model: "type[_Request]", body: bytes) -> "_Request":
    return _checked(lambda: model.model_validate_json(body), "request")


def _checked(check: "Callable[[], _Request]", what: str) -> "_Request":
    try:
        return check()
    except ValidationError as error:
        raise Refused(422, "request", _line(error.errors(include_input=False, include_url=False), what)) from None


def _line(errors: Sequence[Mapping[str, Any]], what: str) -> str:
    """Say the first fault in one line, without what was given: that may be an image."""
    first = errors[0]
    where = ".".join(str(part)[:40] for part in first["loc"][:6]) or what
    return " ".join(f"{where}: {first['msg']}".split())[:300]
