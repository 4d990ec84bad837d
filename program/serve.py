"""`python -m program.serve`: a page and an HTTP interface that judge images."""

import argparse
import os
import sys

from program.common import cli


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = cli.Parser(
        prog="python -m program.serve",
        description="Serve a page and an HTTP interface that judge images. Other machines "
        "need the token in AGENTICIQA_SERVE_TOKEN.",
    )
    parser.add_argument("--host", metavar="ADDRESS", help="address to serve on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", metavar="N", type=cli.whole_number(0, 65535), help="port to serve on (default: 8000; 0: any free one)"
    )
    cli.add_program_flags(parser)
    cli.add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return cli.run_command(lambda: _serve(arguments))


def _serve(arguments: argparse.Namespace) -> int:
    cli.check_installed("serve", "fastapi", "prometheus_client", "python_multipart", "uvicorn")
    from program.agent.saving import program_from
    from program.service.server import bind, serve, token_of

    address = {key: getattr(arguments, key) for key in ("host", "port") if getattr(arguments, key) is not None}
    settings = cli.settings_from(arguments, serve=address)
    token = token_of(os.environ, settings.serve.host)
    listener = bind(settings.serve.host, settings.serve.port)
    program = program_from(arguments, settings)
    serve(program, settings.serve, listener, token)
    return 0


if __name__ == "__main__":
    sys.exit(main())
