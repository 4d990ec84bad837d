"""An MCP server around a program: on standard input and output, or over HTTP behind the service's guard."""

import socket
from typing import Any

from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from program.agent.loop import AgenticIQA
from program.mcp.tools import AgentTools
from program.service.bodies import Bodies
from program.service.guard import Guard
from program.service.logs import set_up_logs
from program.service.rules import Rules
from program.service.running import run_until_stopped
from program.tools.readiness import installed_version

__all__ = ("http_app", "serve_http", "server_of")

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
    """Return the ASGI application: MCP at /mcp, every request checked, bounded and logged as the service's are."""
    settings = program.resources.settings.serve
    server, tools = server_of(program, local=False)
    inner = server.streamable_http_app(
        json_response=True, stateless_http=True, max_request_body_size=int(settings.max_body_mb * 2**20),
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the guard's rules do
    )  # fmt: skip
    rules = Rules(token, (*settings.allowed_hosts, settings.host))
    return Guard(inner, rules=rules, metrics=tools.metrics, bodies=Bodies.of(settings))


def serve_http(program: AgenticIQA, listener: socket.socket, token: str | None) -> None:
    """Serve until SIGTERM or SIGINT."""
    set_up_logs()
    settings = program.resources.settings.serve
    run_until_stopped(http_app(program, token), settings, listener, "AgenticIQA is offered on {}/mcp")
