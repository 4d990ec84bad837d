"""`python -m program.mcp`: the program as tools of agents, on standard input and output or over HTTP."""

import argparse
import os
import sys
from collections.abc import Sequence

from program.common import cli


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = cli.Parser(
        prog="python -m program.mcp",
        description="Offer assess_image, compare_images, assess_folder and list_tools to an agent over the Model "
        "Context Protocol: on standard input and output, where it may name any file of this machine, or with --http at "
        "/mcp, where the settings and the token of `serve` hold.",
    )
    parser.add_argument("--http", action="store_true", help="serve streamable HTTP instead")
    parser.add_argument("--host", metavar="ADDRESS", help="with --http: address to serve on (default: 127.0.0.1)")
    parser.add_argument("--port", metavar="N", type=cli.whole_number(0, 65535), help="with --http (default: 8000)")
    cli.add_program_flags(parser)
    cli.add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return cli.run_command(lambda: _offer(arguments))


def _offer(arguments: argparse.Namespace) -> int:
    from program.common.errors import InputError

    if not arguments.http and (arguments.host is not None or arguments.port is not None):
        raise InputError("--host, --port: are for --http; give it too")
    cli.check_installed("mcp", "mcp", "prometheus_client")
    from program.agent.saving import program_from

    address = {key: getattr(arguments, key) for key in ("host", "port") if getattr(arguments, key) is not None}
    settings = cli.settings_from(arguments, serve=address)
    if arguments.http:
        from program.service.server import bind, token_of

        token, listener = token_of(os.environ, settings.serve.host), bind(settings.serve.host, settings.serve.port)
        from program.service.agents import serve_http

        serve_http(program_from(arguments, settings), listener, token)
    else:
        from program.service.agents import server_of

        server_of(program_from(arguments, settings), local=True)[0].run("stdio")
    return 0


if __name__ == "__main__":
    sys.exit(main())
