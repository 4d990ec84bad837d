"""What an agent may call: assess_image, compare_images, assess_folder, list_tools. The service's limits hold."""

import base64
import re
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ImageContent, TextContent
from pydantic import BaseModel, Field

from program.agent.assessment import Assessment
from program.agent.comparing import Comparison
from program.agent.loop import AgenticIQA
from program.batch.inputs import gather
from program.batch.rows import BatchRow, row_of
from program.images.store import Box
from program.service.assessing import Assessor, Metrics
from program.service.incoming import AssessRequest, Job, checked, job_of
from program.service.logs import logger
from program.service.refusals import Refused, refusal_of
from program.service.sources import Sent, Sources, shown_name
from program.tools.runner import ToolRunner

__all__ = ("AgentTools", "FolderRows", "ListedTool", "Places")

T = TypeVar("T")
R = TypeVar("R")
_WEB = re.compile("https?://", re.IGNORECASE)

Picture = Annotated[
    str, Field(description="path of an image file, data:image/...;base64,... with its bytes, or an allowed URL")
]
Reference = Annotated[Picture | None, Field(description="the undistorted image, where there is one")]


class FolderRows(BaseModel):
    """Some images of a folder, by name."""

    rows: list[BatchRow]
    total: int
    next_start: int | None
    """What to give as `start` for the next ones; None at the end."""


class ListedTool(BaseModel):
    """One image-quality tool."""

    name: str
    mode: str
    """FR compares with a reference, NR does not."""
    description: str
    cost: str
    general: float
    """SRCC with people, measured or published; 0 is no claim."""
    ready: bool
    reason: str | None
    """Why it is not ready, and the mend."""


class Places(Sources):
    """Where images come from: any file where the client is the user's own program, else what the settings allow."""

    def __init__(self, program: AgenticIQA, *, local: bool) -> None:
        settings = program.resources.settings.serve
        super().__init__(settings)
        self._local, self._allowed = local, [Path(f).expanduser().resolve() for f in settings.image_folders]

    def file(self, named: str) -> Sent:
        """Return a file's bytes. Raises Refused."""
        if not self._local:
            return super().file(named)
        path = Path(named).expanduser()
        if not path.is_file():
            raise Refused(422, "path", f"image {named[:200]!r}: no such file; check the path")
        return Sent(self._read(path.resolve(), named), shown_name(path.name))

    def folder(self, named: str) -> Path:
        """Return a folder that may be looked into. Raises Refused."""
        for parent in [Path.cwd()] if self._local else self._allowed:
            path = (parent / Path(named).expanduser()).resolve()
            if path.is_dir() and (self._local or path.is_relative_to(parent)):
                return path
        allowed = "no such folder" if self._local else "not one of the folders under serve.image_folders"
        raise Refused(422, "path", f"folder {named[:200]!r}: {allowed}; check the path")


class AgentTools:
    """The tools' functions: their signatures and docstrings are what an agent reads."""

    def __init__(self, program: AgenticIQA, *, local: bool) -> None:
        self.program, self.settings = program, program.resources.settings.serve
        self.metrics = Metrics()
        self.assessor = Assessor(program, self.settings, self.metrics)
        self.places = Places(program, local=local)

    async def assess_image(
        self, image: Picture, reference: Reference = None, query: str | None = None,
        options: list[str] | dict[str, str] | None = None, regions: dict[str, Box] | None = None, heatmap: bool = False,
    ) -> Annotated[CallToolResult, BatchRow]:  # fmt: skip
        """Judge the quality of one image on 1..5, or answer a question about it.

        `options` are choices for the question; `regions` names boxes in pixels (left, top, right, bottom). `heatmap`
        adds a picture of where quality is lost.
        """

        def judged(job: Job) -> tuple[Assessment, bytes | None]:
            return self.assessor.assess(job), self.assessor.draw(job) if heatmap else None

        asked = {"query": query, "options": options, "regions": regions}
        (made,) = await self._done(lambda: [self._job(image, reference, **asked)], judged)
        result, drawn = _usable(made)
        content: list[Any] = [TextContent(type="text", text=str(result))]
        if drawn is not None:
            data = base64.b64encode(drawn).decode()
            content.append(ImageContent(type="image", data=data, mime_type="image/png"))
        row = row_of(_name(image), None, result)
        return CallToolResult(content=content, structured_content=row.model_dump(mode="json"))

    async def compare_images(self, image_a: Picture, image_b: Picture, reference: Reference = None) -> Comparison:
        """Say which of two images is better, by how much, and how sure that is."""

        def pair() -> list[tuple[Job, Job]]:
            return [(self._job(image_a, reference), self._job(image_b))]

        (made,) = await self._done(pair, self.assessor.compare)
        return _usable(made)

    async def assess_folder(
        self, folder: str, recursive: bool = False, start: Annotated[int, Field(ge=0)] = 0, query: str | None = None
    ) -> FolderRows:
        """Judge the images of a folder, some at a time: call again with `start` set to `next_start` for the others."""
        chosen: list[str] = []
        total = 0

        def read() -> list[Job | Refused]:
            nonlocal total
            items = gather([str(self.places.folder(folder))], recursive=recursive)
            total = items.count() or 0
            jobs: list[Job | Refused] = []
            for item in islice(items, start, start + self.settings.max_batch):
                chosen.append(item.id)
                try:
                    jobs.append(self._job(str(item.image), query=query))
                except Refused as refusal:
                    jobs.append(refusal)
            return jobs

        def judged(job: Job | Refused) -> Assessment:
            if isinstance(job, Refused):
                raise job
            return self.assessor.assess(job)

        made = await self._done(read, judged)
        rows = [
            row_of(name, None, result) if isinstance(result, Assessment)
            else BatchRow(id=name, status="error", error=_reason(result))
            for name, result in zip(chosen, made, strict=True)
        ]  # fmt: skip
        after = start + len(rows)
        return FolderRows(rows=rows, total=total, next_start=after if rows and after < total else None)

    async def list_tools(self) -> list[ListedTool]:
        """List the image-quality tools, and which of them are ready here."""

        def listed() -> list[ListedTool]:
            runner = ToolRunner(self.program.resources.settings)
            whys = {spec.name: runner.why_not(spec) for spec in runner.registry.specs()}
            fields = {"name", "mode", "description", "cost", "general"}
            return [
                ListedTool(**spec.model_dump(include=fields), ready=whys[spec.name] is None, reason=whys[spec.name])
                for spec in runner.registry.specs()
            ]

        return await anyio.to_thread.run_sync(listed)

    def _job(self, image: str, reference: str | None = None, **asked: Any) -> Job:
        fields = {**asked, **_source("image", image), **(_source("reference", reference) if reference else {})}
        return job_of(checked(AssessRequest, fields), self.settings, self.places)

    async def _done(self, read: Callable[[], Sequence[T]], work: Callable[[T], R]) -> Sequence[R | BaseException]:
        """Return what the work makes of each thing read, or its error. Raises ToolError with one line."""
        try:
            with self.assessor.admitted() as ticket:
                given = await anyio.to_thread.run_sync(read)
                return await self.assessor.done(ticket, work, given)
        except Exception as error:  # refused, or a fault: the border to the client
            raise ToolError(_reason(error)) from error


def _source(what: str, named: str) -> dict[str, str]:
    kind = "" if named[:5].lower() == "data:" else "_url" if _WEB.match(named) else "_path"
    return {f"{what}{kind}": named}


def _name(image: str) -> str:
    return "image" if image[:5].lower() == "data:" else shown_name(image)


def _usable(made: R | BaseException) -> R:
    if isinstance(made, BaseException):
        raise ToolError(_reason(made)) from made
    return made


def _reason(error: BaseException) -> str:
    """Return the one line for the client; a fault of the program itself goes to the log."""
    refusal = refusal_of(error)
    if refusal is None:
        logger.error("an agent's call failed", exc_info=error)
        return "the program failed on this; its log says why"
    return str(refusal.detail)
