"""Requests as clients send them, in JSON or as a form, and the assessments that they ask for."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import dspy
from fastapi import UploadFile
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from program.agent.query import DEFAULT_QUERY
from program.common.settings import ServeSettings
from program.images.store import IMAGES, Box
from program.service.refusals import Refused, misfit
from program.service.sources import Sent, Sources, decoded, shown_name

if TYPE_CHECKING:
    from program.agent.assessment import Assessment
    from program.agent.loop import AgenticIQA

__all__ = ("AssessForm", "AssessRequest", "BatchForm", "BatchRequest", "Job", "job_of", "jobs_of_form", "row_request")


def _file(part: object) -> object:
    if isinstance(part, str):
        raise ValueError("is text; send a file, as curl -F image=@photo.jpg does")
    return part


OptionText = Annotated[str, Field(min_length=1, max_length=500)]
Options = dict[Annotated[str, Field(max_length=8)], OptionText] | list[OptionText]
Regions = dict[Annotated[str, Field(min_length=1, max_length=100)], Box]
FilePart = Annotated[UploadFile, BeforeValidator(_file), WithJsonSchema({"type": "string", "format": "binary"})]


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


class BatchForm(BaseModel):
    """Several images and one question about each."""

    model_config = ConfigDict(extra="forbid")

    image: list[FilePart] = Field(min_length=1, description="files")
    reference: list[FilePart] = Field([], max_length=1, description="the undistorted image, one file")
    query: str | None = Field(None, description="a question; without one, a quality score")
    option: list[str] = Field([], description="choices, one a field")
    options: Json[Annotated[Options, Field(max_length=26)] | None] = Field(
        None, description='JSON: {"A": "Yes", "B": "No"} or a list, instead of option'
    )
    regions: Json[Annotated[Regions, Field(max_length=32)] | None] = Field(
        None, description='JSON: {"name": [left, top, right, bottom]} in pixels'
    )


class AssessForm(BatchForm):
    """One image and what to ask of it."""

    image: list[FilePart] = Field(min_length=1, max_length=1, description="one file")


def row_request(row: Mapping[str, Any]) -> AssessRequest:
    """Return a table's row as a request, its JSON texts read.

    Raises Refused for what is no JSON, and for a column that is unknown or of the wrong kind.
    """
    columns = dict(row)
    for name in ("options", "regions"):
        if isinstance(columns.get(name), str):
            try:
                columns[name] = json.loads(columns[name])
            except (ValueError, RecursionError):
                raise Refused(422, "request", f"{name}: not JSON; give an object or a list") from None
    try:
        return AssessRequest.model_validate(columns)
    except ValidationError as error:
        raise misfit(error.errors(include_input=False, include_url=False)) from None


def job_of(request: AssessRequest, settings: ServeSettings, sources: Sources) -> Job:
    """Return the job that a request asks for, its images read but not decoded. Blocking. Raises Refused."""
    image = _sent("image", request.image, request.image_path, request.image_url, sources)
    assert image is not None  # noqa: S101 - an AssessRequest has one
    reference = _sent("reference", request.reference, request.reference_path, request.reference_url, sources)
    if request.name:
        image = Sent(image.data, shown_name(request.name, image.name))
    return Job(image, _query(request.query, settings), reference, request.options, request.regions)


def jobs_of_items(items: Sequence[AssessRequest], settings: ServeSettings, sources: Sources) -> list[Job | Refused]:
    """Return the job of each item, in order; one whose image is refused keeps its place. Blocking."""
    jobs: list[Job | Refused] = []
    for item in items:
        try:
            jobs.append(job_of(item, settings, sources))
        except Refused as refusal:
            jobs.append(refusal)
    return jobs


async def jobs_of_form(form: BatchForm, settings: ServeSettings) -> list[Job]:
    """Return the job of each image of a form, in order. Raises Refused."""
    images = [await _uploaded(part, "image") for part in form.image]
    reference = await _uploaded(form.reference[0], "reference") if form.reference else None
    options = form.options or [text for text in form.option if text] or None
    query = _query(form.query, settings)
    return [Job(image, query, reference, options, form.regions) for image in images]


async def _uploaded(part: UploadFile, field: str) -> Sent:
    return Sent(await part.read(), shown_name(part.filename, field))


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
