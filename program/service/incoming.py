"""Requests as clients send them, in JSON, as a form or as a table's row."""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, model_validator
from pydantic_core import from_json
from starlette.datastructures import UploadFile
from starlette.requests import Request as HttpRequest

from program.common.settings import ServeSettings
from program.images.store import Box
from program.running.request import DEFAULT_QUERY, Request
from program.service.refusals import Refused, misfit
from program.service.sources import Sent, Sources, decoded, shown_name

__all__ = ("FORM", "AssessRequest", "BatchRequest", "checked", "form_items", "job_of", "jobs_of", "json_items")

FORM = "multipart/form-data"
_MAX_FIELDS = 64
_MAX_FIELD_BYTES = 64 * 2**10

_Model = TypeVar("_Model", bound=BaseModel)


def _picture(value: object) -> object:
    if not isinstance(value, str | Sent):
        raise ValueError("is no text; give the file's bytes as base64")
    return value


def _from_text(value: object) -> object:
    """Return what a field of a form or of a table holds as JSON; any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return from_json(value)
    except ValueError as error:
        raise ValueError(f"Invalid JSON: {error}") from None


Picture = Annotated[str | Sent, PlainValidator(_picture, json_schema_input_type=str)]
"""Base64, or a file of a form."""
OptionText = Annotated[str, Field(min_length=1, max_length=500)]
Options = dict[Annotated[str, Field(max_length=8)], OptionText] | list[OptionText]
Regions = dict[Annotated[str, Field(min_length=1, max_length=100)], Box]


class AssessRequest(BaseModel):
    """One image and what to ask of it. The image comes as base64, or as a path or URL that the settings allow."""

    model_config = ConfigDict(extra="forbid")

    image: Picture | None = Field(None, description="the file's bytes as base64 (plain or URL-safe) or as a data: URL")
    image_path: str | None = Field(None, max_length=1000, description="a file under serve.image_folders")
    image_url: str | None = Field(None, max_length=2000, description="an image on one of serve.image_hosts")
    reference: Picture | None = Field(None, description="the undistorted image, likewise")
    reference_path: str | None = Field(None, max_length=1000)
    reference_url: str | None = Field(None, max_length=2000)
    query: str | None = Field(None, description="a question; without one, a quality score")
    options: Annotated[Options | None, BeforeValidator(_from_text)] = Field(
        None, max_length=26, description="choices, by letter or as a list"
    )
    regions: Annotated[Regions | None, BeforeValidator(_from_text)] = Field(
        None, max_length=32, description="boxes in pixels: left, top, right, bottom"
    )
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


def checked(model: type[_Model], fields: object) -> _Model:
    """Return what a client sent as a request; Refused for a field that is unknown or of the wrong kind."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise misfit(error) from None


def json_items(body: bytes, *, several: bool) -> list[AssessRequest]:
    """Return the items that a body of JSON holds. Blocking. Raises Refused."""
    try:
        sent = from_json(body)
    except ValueError as error:
        raise Refused(422, "request", f"request: Invalid JSON: {error}") from None
    return checked(BatchRequest, sent).items if several else [checked(AssessRequest, sent)]


async def form_items(request: HttpRequest, most: int) -> list[AssessRequest]:
    """Return an item for each image of a form; they share its other fields. Raises Refused."""
    given: dict[str, list[Any]] = {}
    async with request.form(max_files=most + 1, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES) as form:
        for name, part in form.multi_items():
            if isinstance(part, UploadFile):
                sent = Sent(await part.read(), shown_name(part.filename, name))
                given.setdefault(name, []).append(sent)
            elif name in {"image", "reference"}:
                raise Refused(422, "request", f"{name}: is text; send a file, as curl -F {name}=@photo.jpg does")
            elif part:  # a field left empty is none
                given.setdefault(name, []).append(part)
    images, options = given.pop("image", [None]), given.pop("option", None)
    for name, values in given.items():
        if len(values) > 1:
            raise Refused(422, "request", f"{name[:40]}: given {len(values)} times; give it once")
    shared = {"options": options} | {name: values[0] for name, values in given.items()}
    return [checked(AssessRequest, {**shared, "image": image}) for image in images]


def job_of(request: AssessRequest, settings: ServeSettings, sources: Sources) -> Request:
    """Return what a client asks, the images read but not decoded. Blocking. Raises Refused."""
    image = _sent("image", request.image, request.image_path, request.image_url, sources)
    assert image is not None  # noqa: S101 - an AssessRequest has one
    reference = _sent("reference", request.reference, request.reference_path, request.reference_url, sources)
    if request.name:
        image = Sent(image.data, shown_name(request.name, image.name))
    query = request.query or ""
    if len(query) > settings.max_query_chars:
        raise Refused(422, "request", f"query: is over {settings.max_query_chars} characters; shorten it")
    return Request(
        id=image.name, image=image, query=query if query.strip() else DEFAULT_QUERY, reference=reference,
        options=request.options, regions=request.regions,
    )  # fmt: skip


def jobs_of(items: Sequence[AssessRequest], settings: ServeSettings, sources: Sources) -> list[Request | Refused]:
    """Return the request of each item, in order; one whose image is refused keeps its place. Blocking."""
    jobs: list[Request | Refused] = []
    for item in items:
        try:
            jobs.append(job_of(item, settings, sources))
        except Refused as refusal:
            jobs.append(refusal)
    return jobs


def _sent(what: str, given: str | Sent | None, path: str | None, url: str | None, sources: Sources) -> Sent | None:
    if isinstance(given, str):
        return Sent(decoded(given, what), what)
    if path is not None:
        return sources.file(path)
    return sources.url(url) if url is not None else given
