"""`python -m program.serve`: a page and an HTTP interface that judge images. `agentic-iqa mcp`: tools of agents."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from program.common import cli


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = cli.Parser(
        prog="python -m program.serve",
        description="Serve a page and an HTTP interface that judge images. Other machines "
        "need the token in AGENTICIQA_SERVE_TOKEN.",
    )
    _add_address(
        parser, "address to serve on (default: 127.0.0.1)", "port to serve on (default: 8000; 0: any free one)"
    )
    return _run(parser, argv, _serve)


def offer(argv: Sequence[str] | None = None) -> int:
    """Offer the program's tools to agents, and return the exit code."""
    parser = cli.Parser(
        prog="agentic-iqa mcp",
        description="Offer assess_image, compare_images, assess_folder and list_tools to an agent over the Model "
        "Context Protocol: on standard input and output, where it may name any file of this machine, or with --http at "
        "/mcp, where the settings and the token of `serve` hold.",
    )
    parser.add_argument("--http", action="store_true", help="serve streamable HTTP instead")
    cli.add_remote_flag(parser, "a client", "none; with --http none at all")
    _add_address(parser, "with --http: address to serve on (default: 127.0.0.1)", "with --http (default: 8000)")
    return _run(parser, argv, _offer)


def _add_address(parser: argparse.ArgumentParser, host: str, port: str) -> None:
    parser.add_argument("--host", metavar="ADDRESS", help=host)
    parser.add_argument("--port", metavar="N", type=cli.whole_number(0, 65535), help=port)


def _run(parser: cli.Parser, argv: Sequence[str] | None, command: Callable[[argparse.Namespace], int]) -> int:
    cli.add_program_flags(parser)
    cli.add_intention_flags(parser)
    cli.add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return cli.run_command(lambda: command(arguments))


def _address(arguments: argparse.Namespace) -> dict[str, Any]:
    return {key: getattr(arguments, key) for key in ("host", "port") if getattr(arguments, key) is not None}


def _serve(arguments: argparse.Namespace) -> int:
    cli.check_installed("serve", "fastapi", "prometheus_client", "python_multipart", "uvicorn")
    from program.agent.saving import program_from
    from program.service.server import bind, serve, token_of

    settings = cli.settings_from(arguments, serve=_address(arguments))
    token = token_of(os.environ, settings.serve.host)
    listener = bind(settings.serve.host, settings.serve.port)
    serve(program_from(arguments, settings), settings.serve, listener, token)
    return 0


def _offer(arguments: argparse.Namespace) -> int:
    from program.common.errors import InputError

    if not arguments.http and _address(arguments):
        raise InputError("--host, --port: are for --http; give it too")
    if arguments.http and arguments.remote:
        raise InputError("--remote: is not for --http, whose clients have serve.image_hosts; leave it out")
    cli.check_installed("mcp", "mcp", "prometheus_client")
    from program.agent.saving import program_from

    settings = cli.settings_from(arguments, serve=_address(arguments))
    if arguments.http:
        from program.service.server import bind, token_of

        token, listener = token_of(os.environ, settings.serve.host), bind(settings.serve.host, settings.serve.port)
        from program.service.agents import serve_http

        serve_http(program_from(arguments, settings), listener, token)
    else:
        from program.service.agents import server_of

        server = server_of(program_from(arguments, settings), local=True)[0]
        # A thread waits for the client's next line: a process that winds up by itself would wait for that.
        for number in {"SIGINT", "SIGTERM", "SIGHUP"} & set(dir(signal)):
            signal.signal(getattr(signal, number), signal.SIG_DFL)
        server.run("stdio")
    return 0


if __name__ == "__main__":
    sys.exit(main())
