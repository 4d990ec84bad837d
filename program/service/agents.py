"""An MCP server around a program, on standard input and output, or over HTTP."""

import base64
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any

import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import CallToolResult, ImageContent, TextContent
from pydantic import BaseModel, Field

from program.agent.assessment import Assessment
from program.agent.comparison import Comparison
from program.agent.loop import AgenticIQA
from program.batch.inputs import find_items
from program.common.request import Request
from program.images.store import Box
from program.running.row import Row
from program.service.assessing import Assessor, Ticket
from program.service.guard import Bodies, Guard
from program.service.requests import AssessRequest, Refused, Sources, check_fields, job_of, reason_of, shown_name
from program.service.server import run_until_stopped, set_up_logs
from program.tools.registry import installed_version
from program.tools.runner import ToolRunner
from signatures.schemas import Intention, PictureKind

_WEB = re.compile("https?://", re.IGNORECASE)

Picture = Annotated[
    str, Field(description="path of an image file, data:image/...;base64,... with its bytes, or an allowed URL")
]
Reference = Annotated[Picture | None, Field(description="the undistorted image, where there is one")]


class FolderRows(BaseModel):
    """Some images of a folder, by name."""

    rows: list[Row]
    total: int
    next_start: int | None
    """What to give as `start` for the next ones; None at the end."""
    left_out: dict[str, int]
    """How many files and folders of it are no images to judge, by suffix or by why."""


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


class AgentTools:
    """The tools' functions: their signatures and docstrings are what an agent reads."""

    def __init__(self, program: AgenticIQA, *, local: bool) -> None:
        self.program, self.assessor = program, Assessor(program)
        self.settings = self.assessor.settings
        self.sources = Sources(self.settings, local=local, remote=program.resources.settings.images.remote)

    async def assess_image(
        self, image: Picture, reference: Reference = None, query: str | None = None,
        options: list[str] | dict[str, str] | None = None, regions: dict[str, Box] | None = None, heatmap: bool = False,
        intended: list[Intention] | None = None, kind: PictureKind | None = None,
    ) -> Annotated[CallToolResult, Row]:  # fmt: skip
        """Judge the quality of one image on 1..5, or answer a question about it.

        `options` are choices for the question; `regions` names boxes in pixels (left, top, right,
        bottom). `heatmap` adds a picture of where quality is lost. `intended` are effects that are meant, so no
        faults; `kind` is what the picture is, whatever the pixels say.
        """

        def judged(job: Request) -> tuple[Assessment, bytes | None]:
            return self.assessor.assess(job), self.assessor.draw(job) if heatmap else None

        asked = {"query": query, "options": options, "regions": regions, "intended": intended, "kind": kind}
        with self._admitted() as ticket:
            job = await anyio.to_thread.run_sync(lambda: self._job(image, reference, **asked))
            result, drawn = await self.assessor.one(ticket, judged, job)
        content: list[Any] = [TextContent(type="text", text=str(result))]
        if drawn is not None:
            data = base64.b64encode(drawn).decode()
            content.append(ImageContent(type="image", data=data, mime_type="image/png"))
        row = Row.of(Request(id=_name(image)), result)
        return CallToolResult(content=content, structured_content=row.model_dump(mode="json"))

    async def compare_images(self, image_a: Picture, image_b: Picture, reference: Reference = None) -> Comparison:
        """Say which of two images is better, by how much, and how sure that is."""
        with self._admitted() as ticket:
            pair = await anyio.to_thread.run_sync(lambda: (self._job(image_a, reference), self._job(image_b)))
            return await self.assessor.one(ticket, self.assessor.compare, pair)

    async def assess_folder(
        self, folder: str, recursive: bool = False, start: Annotated[int, Field(ge=0)] = 0, query: str | None = None
    ) -> FolderRows:
        """Judge the images of a folder, some at a time: call again with `start` set to `next_start` for the others."""

        def read() -> tuple[dict[str, Request | Refused], int, dict[str, int]]:
            items = find_items([str(self.sources.folder(folder))], recursive=recursive)
            jobs: dict[str, Request | Refused] = {}
            for item in islice(items, start, start + self.settings.max_batch):
                try:
                    if item.error is not None:
                        raise Refused(422, "image", item.error)
                    jobs[item.id] = self._job(str(item.image), query=query)
                except Refused as refusal:
                    jobs[item.id] = refusal
            return jobs, items.count() or 0, items.left_out()

        with self._admitted() as ticket:
            jobs, total, left_out = await anyio.to_thread.run_sync(read)
            made = await self.assessor.run_jobs(ticket, self.assessor.assess, list(jobs.values()))
        rows = [
            Row.of(Request(id=name), result) if isinstance(result, Assessment)
            else Row(id=name, status="error", error=reason_of(result))
            for name, result in zip(jobs, made, strict=True)
        ]  # fmt: skip
        after = start + len(rows)
        return FolderRows(
            rows=rows, total=total, next_start=after if rows and after < total else None, left_out=left_out
        )

    async def list_tools(self) -> list[ListedTool]:
        """List the image-quality tools, and which of them are ready here."""

        def listed() -> list[ListedTool]:
            runner = ToolRunner(self.program.resources.settings)
            reasons = ((spec, runner.why_not(spec)) for spec in runner.registry.specs())
            fields = {"name", "mode", "description", "cost", "general"}
            return [
                ListedTool(**spec.model_dump(include=fields), ready=why is None, reason=why) for spec, why in reasons
            ]

        return await anyio.to_thread.run_sync(listed)

    def _job(self, image: str, reference: str | None = None, **asked: Any) -> Request:
        fields = {**asked, **_source("image", image), **(_source("reference", reference) if reference else {})}
        return job_of(check_fields(AssessRequest, fields), self.settings, self.sources)

    @contextmanager
    def _admitted(self) -> Iterator[Ticket]:
        """Yield a place for a call; whatever is raised inside becomes a ToolError with one line."""
        try:
            with self.assessor.admit() as ticket:
                yield ticket
        except Exception as error:  # refused, or a fault: the border to the client
            raise ToolError(reason_of(error)) from error


def _source(what: str, named: str) -> dict[str, str]:
    if named[:5].lower() == "data:":
        kind = ""
    else:
        kind = "_url" if _WEB.match(named) else "_path"
    return {f"{what}{kind}": named}


def _name(image: str) -> str:
    if image[:5].lower() == "data:":
        return "image"
    return shown_name(image)


_INSTRUCTIONS = "Judges the quality of images as people would, on 1 (bad) to 5 (excellent), and says why."


def server_of(program: AgenticIQA, *, local: bool) -> tuple[MCPServer, AgentTools]:
    """Return the server with its tools; `local` lets a client name any file of this machine."""
    tools = AgentTools(program, local=local)
    version = installed_version("agentic-iqa") or "0"
    server = MCPServer("agentic-iqa", instructions=_INSTRUCTIONS, version=version, log_level="WARNING")
    for offered in (tools.assess_image, tools.compare_images, tools.assess_folder, tools.list_tools):
        server.add_tool(offered)
    return server, tools


def http_app(program: AgenticIQA, token: str | None) -> Any:
    """Return the ASGI application: MCP at /mcp, its requests checked and logged as all are."""
    settings = program.resources.settings.serve
    server, tools = server_of(program, local=False)
    inner = server.streamable_http_app(
        json_response=True, stateless_http=True, max_request_body_size=int(settings.max_body_mb * 2**20),
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the guard's rules do
    )  # fmt: skip
    return Guard(inner, token, tools.assessor, Bodies(settings))


def serve_http(program: AgenticIQA, listener: socket.socket, token: str | None) -> None:
    """Serve until SIGTERM or SIGINT."""
    set_up_logs()
    settings = program.resources.settings.serve
    run_until_stopped(http_app(program, token), settings, listener, "AgenticIQA is offered on {}/mcp")
