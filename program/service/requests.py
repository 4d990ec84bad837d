"""Requests as clients send them, where their images come from, and what is refused."""

import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import dspy
import httpx
from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, ValidationError, model_validator
from pydantic_core import from_json
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest

from program.common.addresses import kind_elsewhere
from program.common.backends import Frozen
from program.common.errors import UNSHOWABLE, ImageError, InputError, first_fault
from program.common.files import from_base64, name_of, named_in, open_file, plain_file
from program.common.keys import redact
from program.common.request import DEFAULT_QUERY, Request
from program.common.settings import ServeSettings, Settings
from program.images.store import IMAGES, Box, ImageRef
from program.running.row import Row
from program.running.runner import one_image
from program.tracking.models import BYTES, WHOLE
from signatures.schemas import Intention, PictureKind

if TYPE_CHECKING:
    from program.agent.loop import AgenticIQA

logger = logging.getLogger("program.service")

_FETCH_TIMEOUT_S = 20.0
_BLOB = re.compile(r"[A-Za-z0-9+/_-]{200,}={0,2}")
"""What may be an encoded image: no word, path or hash is as long."""


class Refused(HTTPException):
    """A request that gets no assessment, raised anywhere; answered as `{"error": message}`."""

    def __init__(self, status: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, headers)
        self.reason = reason
        """A fixed word for the metrics: body, host, origin, token, busy, timeout, path, url, ..."""


def refusal_of(error: BaseException) -> Refused | None:
    """Return how an error of a request is answered; None for a fault of the program."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, InputError):
        return Refused(422, "input", _one_line(str(error)))
    if isinstance(error, dspy.LMError):
        # A provider's words can hold the address or part of the key of an account: they are for the log only.
        logger.error("language model: %s", _one_line(str(error)))
        text = f"the language model gave no answer ({type(error).__name__}); the service's log says more"
        return Refused(502, "model", text)
    return None


def reason_of(error: BaseException) -> str:
    """Return the one line for who sent it; a fault of the program itself goes to the log."""
    if (refusal := refusal_of(error)) is not None:
        return str(refusal.detail)
    logger.error("an assessment failed", exc_info=error)
    return "the program failed on this; its log says why"


def _one_line(text: str) -> str:
    return shorten(" ".join(redact(text).split()), 300)


def shorten(text: str, limit: int) -> str:
    """Return a text cut to `limit` characters, without what may be an encoded image."""
    # Cut first: a search through megabytes of text would take long.
    kept = _BLOB.sub("[...]", text[: limit + 200])
    if len(kept) <= limit and len(text) <= limit + 200:
        return kept
    return kept[:limit] + "…"


@dataclass(frozen=True)
class Sent:
    """Encoded image bytes and what the client calls them."""

    data: bytes
    name: str

    def open(self, max_megapixels: float) -> ImageRef:
        """Check and decode the image; ImageError naming it, first of all for too many pixels."""
        try:
            return replace(IMAGES.add(self.data, max_pixels=int(max_megapixels * 1e6)), name=self.name)
        except ImageError as error:
            # The store knows the bytes' hash and the operator's settings; the client knows its own name for them.
            text = re.sub(r"'bytes:[0-9a-f]+'", lambda _: repr(self.name), str(error))
            raise ImageError(text.replace(", or raise images.max_pixels", "")) from error


def open_images(request: Request, max_megapixels: float) -> Request:
    """Return a request with its image and reference checked and decoded; or ImageError."""
    named = {name: getattr(request, name) for name in ("image", "reference")}
    return request.model_copy(update={name: sent and sent.open(max_megapixels) for name, sent in named.items()})


class Sources:
    """Reads what a request names, within the allow-lists. Blocking: call it in a thread."""

    def __init__(self, settings: ServeSettings, *, local: bool = False, remote: Collection[str] = ()) -> None:
        """`local` admits any file of this machine, for a client that is its user's own program.

        So are addresses of the kinds in `remote` ("s3"), for such a client alone.
        """
        self._local, self._remote = local, remote
        self._folders = (
            [Path.cwd()] if local else [Path(os.path.expanduser(f)).resolve() for f in settings.image_folders]
        )
        self._hosts = frozenset(host.casefold() for host in settings.image_hosts)
        self._limit = int(settings.max_body_mb * 2**20)

    def file(self, named: str) -> Sent:
        """Return a file of an allowed folder; links are judged by where they lead."""
        what = f"path {named[:200]!r}"
        if self._local and kind_elsewhere(named):
            return self._elsewhere(named, what)
        for path in self._found(named):
            if path.is_file():
                return Sent(self._read(path, what), shown_name(path.name))
        if self._local:
            raise Refused(422, "path", f"image {named[:200]!r}: no such file; check the path")
        # One answer for what is outside and what is missing: which files exist elsewhere is nobody's business.
        text = "not a file of the folders under serve.image_folders in the settings; send the image itself"
        raise Refused(403, "path", f"{what}: {text}")

    def folder(self, named: str) -> Path:
        """Return a folder that may be looked into. Raises Refused."""
        if kind_elsewhere(named):
            raise Refused(422, "path", f"folder {named[:200]!r}: is on another machine; name a folder of this one")
        for path in self._found(named):
            if path.is_dir():
                return path
        allowed = "no such folder" if self._local else "not one of the folders under serve.image_folders"
        raise Refused(422, "path", f"folder {named[:200]!r}: {allowed}; check the path")

    def url(self, named: str) -> Sent:
        """Return what an allowed host holds under a URL: no redirects, no proxies."""
        url, what = None, f"url {named[:200]!r}"
        with suppress(httpx.InvalidURL):
            url = httpx.URL(named)
        plain = url is not None and url.scheme in {"http", "https"} and url.host and not url.userinfo
        if url is None or not plain or url.netloc.decode() not in self._hosts:
            text = "its host is not under serve.image_hosts in the settings; send the image itself"
            raise Refused(403, "url", f"{what}: {text}")
        try:
            data = self._fetch(url, what)
        except httpx.HTTPError as error:
            raise Refused(422, "url", f"{what}: cannot be read ({type(error).__name__})") from error
        return Sent(data, shown_name(url.path))

    def _elsewhere(self, named: str, what: str) -> Sent:
        try:
            place = named_in(Path.cwd(), named, self._remote)
            with open_file(place) as file:
                data = file.read(self._limit + 1)
        except InputError as error:
            raise Refused(403, "path", str(error)) from error
        except OSError as error:
            raise Refused(422, "path", f"{what}: cannot be read ({error.strerror})") from error
        self._check_size(data, what)
        return Sent(data, shown_name(name_of(place)))

    def _found(self, named: str) -> Iterator[Path]:
        if kind_elsewhere(named):  # even to look would ask the other machine
            return
        for folder in self._folders:
            with suppress(OSError, ValueError, RuntimeError):  # missing, a zero byte, a loop of links
                path = (folder / os.path.expanduser(named)).resolve(strict=True)
                if self._local or path.is_relative_to(folder):
                    yield path

    def _read(self, path: Path, what: str) -> bytes:
        try:
            with open(path, "rb", opener=_unlinked) as file:
                data = file.read(self._limit + 1)
        except OSError as error:
            raise Refused(422, "path", f"{what}: cannot be read ({error.strerror})") from error
        self._check_size(data, what)
        return data

    def _fetch(self, url: httpx.URL, what: str) -> bytes:
        data, deadline = bytearray(), time.monotonic() + _FETCH_TIMEOUT_S
        plain = {"Accept-Encoding": "identity", "User-Agent": "agentic-iqa"}
        with (
            httpx.Client(trust_env=False, follow_redirects=False, timeout=_FETCH_TIMEOUT_S) as client,
            client.stream("GET", url, headers=plain) as response,
        ):
            if response.status_code != 200:
                text = f"answered {response.status_code}; give one that answers 200 (redirects are not followed)"
                raise Refused(422, "url", f"{what}: {text}")
            for part in response.iter_raw():
                data += part
                self._check_size(data, what)
                if time.monotonic() > deadline:  # a host that sends a byte now and then keeps no thread
                    raise Refused(422, "url", f"{what}: took over {_FETCH_TIMEOUT_S:g} s; send the image")
        return bytes(data)

    def _check_size(self, data: bytes | bytearray, what: str) -> None:
        if len(data) > self._limit:
            raise Refused(413, "body", f"{what}: is over {self._limit / 2**20:.3g} MiB; give a smaller image")


def _unlinked(path: str, flags: int) -> int:
    """Open a plain file that no link or pipe has taken the place of since its path was resolved."""
    return plain_file(path, flags | getattr(os, "O_NOFOLLOW", 0))


def shown_name(given: str | None, otherwise: str = "image") -> str:
    r"""Return a client's file name as it is shown and logged: no folders, no control marks.

    >>> shown_name("../../etc/x.png"), shown_name("C:\\a\\b.jpg"), shown_name("a\x1b[2J.png"), shown_name("")
    ('x.png', 'b.jpg', 'a[2J.png', 'image')
    """
    name = UNSHOWABLE.sub("", PurePosixPath((given or "").replace("\\", "/")).name)
    return " ".join(name.split())[:120] or otherwise


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


class AssessRequest(Frozen):
    """One image and what to ask of it: base64, or a path or URL that the settings allow."""

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
    intended: list[Intention] | None = Field(None, max_length=11, description="effects that are meant, so no faults")
    kind: PictureKind | None = Field(None, description="what the picture is, whatever the pixels say")
    name: str | None = Field(None, max_length=500, description="what to call the image in the answer")

    @model_validator(mode="after")
    def _one_source(self) -> "AssessRequest":
        if sum(v is not None for v in (self.image, self.image_path, self.image_url)) != 1:
            raise ValueError("give one of image, image_path and image_url")
        if sum(v is not None for v in (self.reference, self.reference_path, self.reference_url)) > 1:
            raise ValueError("give one of reference, reference_path and reference_url")
        return self


class BatchRequest(Frozen):
    """Several images, each with its own question."""

    items: list[AssessRequest] = Field(min_length=1)


def check_fields(model: type[_Model], fields: object) -> _Model:
    """Return what a client sent as a request; Refused for an unknown or unfit field."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        # Without what was sent: that may be an image.
        raise Refused(422, "request", _one_line(first_fault(error, "request", model))) from None


async def reader_of(request: HttpRequest, most: int | None) -> Callable[[], list[AssessRequest]]:
    """Return what reads, in a thread, the items of a whole body: up to `most`; or Refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == FORM:
        return partial(list, await _form_items(request, most or 1))
    # Pages of other sites can post text/plain and forms without asking; JSON they cannot.
    if kind == "application/json":
        return partial(_json_items, await request.body(), several=most is not None)
    raise Refused(415, "request", f"content type {kind[:60]!r}: send application/json or {FORM}")


def _json_items(body: bytes, *, several: bool) -> list[AssessRequest]:
    """Return the items that a body of JSON holds. Blocking. Raises Refused."""
    try:
        sent = from_json(body)
    except ValueError as error:
        raise Refused(422, "request", f"request: Invalid JSON: {error}") from None
    if several:
        return check_fields(BatchRequest, sent).items
    return [check_fields(AssessRequest, sent)]


async def _form_items(request: HttpRequest, most: int) -> list[AssessRequest]:
    """Return an item for each image of a form; they share its other fields. Raises Refused."""
    parts: dict[str, list[Any]] = {}
    async with request.form(max_files=most + 1, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES) as form:
        for name, part in form.multi_items():
            if isinstance(part, UploadFile):
                sent = Sent(await part.read(), shown_name(part.filename, name))
                parts.setdefault(name, []).append(sent)
            elif name in {"image", "reference"}:
                raise Refused(422, "request", f"{name}: is text; send a file, as curl -F {name}=@photo.jpg does")
            elif part:  # a field left empty is none
                parts.setdefault(name, []).append(part)
    images, options, intended = parts.pop("image", [None]), parts.pop("option", None), parts.pop("intended", None)
    for name, values in parts.items():
        if len(values) > 1:
            raise Refused(422, "request", f"{name[:40]}: given {len(values)} times; give it once")
    shared = {"options": options, "intended": intended} | {name: values[0] for name, values in parts.items()}
    return [check_fields(AssessRequest, {**shared, "image": image}) for image in images]


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
        options=request.options, regions=request.regions, intended=request.intended, kind=request.kind,
    )  # fmt: skip


def jobs_of(items: Sequence[AssessRequest], settings: ServeSettings) -> list[Request | Refused]:
    """Return the request of each item, in order, or why it is refused. Blocking."""
    jobs, sources = list[Request | Refused](), Sources(settings)
    for item in items:
        try:
            jobs.append(job_of(item, settings, sources))
        except Refused as refusal:
            jobs.append(refusal)
    return jobs


def _sent(what: str, given: str | Sent | None, path: str | None, url: str | None, sources: Sources) -> Sent | None:
    if isinstance(given, str):
        try:
            return Sent(from_base64(given), what)
        except ValueError:
            raise Refused(422, "image", f"{what}: not base64; encode the file's bytes, or send multipart") from None
    if path is not None:
        return sources.file(path)
    if url is not None:
        return sources.url(url)
    return given


def assess_rows(
    program: "AgenticIQA", rows: Iterable[Mapping[str, Any]], settings: Settings, *, local: bool = False
) -> list[dict[str, Any]]:
    """Return one answer a row, in order, as a line of a table and whole, or why there is none.

    A row's image is base64 (plain, URL-safe or a data: URL) in `image`, bytes in `image_bytes`, or
    a file or URL that the settings under `serve` allow (with `local` any file, and addresses of
    `images.remote`); `options` and `regions` are JSON. The reference likewise.
    """
    sources = Sources(settings.serve, local=local, remote=settings.images.remote)
    return [_assess(program, row, settings, sources) for row in rows]


def _assess(program: "AgenticIQA", row: Mapping[str, Any], settings: Settings, sources: Sources) -> dict[str, Any]:
    import pandas as pd  # not on top: a service that is sent no tables starts sooner without it

    try:
        cells = {name: value for name, value in row.items() if not (value is None or value is pd.NA or value != value)}
        for name in BYTES:
            if name in cells:
                what = name.removesuffix("_bytes")
                cells[what] = Sent(bytes(cells.pop(name)), what)
        request = job_of(check_fields(AssessRequest, cells), settings.serve, sources)
        with one_image():
            result = program(**open_images(request, settings.serve.max_megapixels).arguments())
    except (InputError, Refused, dspy.LMError) as error:
        unanswered = Request(id=str(row.get("name") or ""))
        return {**Row.failed_row(unanswered, reason_of(error)).model_dump(), WHOLE: None}
    return {**Row.of(request, result).model_dump(), WHOLE: result.model_dump_json()}
