"""Binding and running the service, stopped without losing a request; its logs."""

import ctypes
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from program.common.errors import SettingsError
from program.common.keys import redact, usable_key, without_keys
from program.common.settings import ServeSettings
from program.service.guard import MIN_TOKEN_CHARS, is_loopback
from program.service.requests import logger, shorten

if TYPE_CHECKING:
    from program.agent.loop import AgenticIQA

TOKEN_VARIABLE = "AGENTICIQA_SERVE_TOKEN"  # noqa: S105 - the variable's name
_CONNECTIONS = 256
_KEEP_ALIVE_S = 10
_GRACE_S = 2.0
_HEAD_BYTES = 16 * 2**10
_MAX_MESSAGE, _MAX_TRACE = 1000, 4000
_M_ARENA_MAX, _ARENAS = -8, 2
"""glibc's option for how many heaps threads share. Its default, 8 a core, leaves freed memory
scattered: a service grew by 9 % in half an hour with it, by 3 % with two, and answered no
slower."""


class JsonLines(logging.Formatter):
    """Format a record as a JSON object without keys; `extra={"facts": {...}}` adds fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": shorten(redact(record.getMessage()), _MAX_MESSAGE),
        }
        line |= without_keys(getattr(record, "facts", {}))
        if record.exc_info:
            line["trace"] = shorten(redact(self.formatException(record.exc_info))[-_MAX_TRACE:], _MAX_TRACE)
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up_logs(stream: IO[str] | None = None) -> None:
    """Send everything that is logged to `stream` (stderr) as JSON lines, without keys."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    # Every request would be written twice, and with its query string.
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("httpx").setLevel(logging.WARNING)


def token_of(environment: Mapping[str, str], host: str) -> str | None:
    """Return the token requests must bear, as a header takes it.

    Raises SettingsError where there must be one and is none, or a short one, and KeyFormError.
    """
    token = usable_key(TOKEN_VARIABLE, environment.get(TOKEN_VARIABLE, "")) or None
    if token is None and not is_loopback(host):
        raise SettingsError(
            f"host {host!r}: others can reach it; set {TOKEN_VARIABLE} to a token of {MIN_TOKEN_CHARS} characters "
            "or more, or serve on 127.0.0.1"
        )
    if token is not None and len(token) < MIN_TOKEN_CHARS:
        raise SettingsError(f"{TOKEN_VARIABLE}: is shorter than {MIN_TOKEN_CHARS} characters; make a longer one")
    return token


def bind(host: str, port: int) -> socket.socket:
    """Return a listening address; SettingsError where it is taken or none of this machine's."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        if os.name != "nt":  # there it would let a second service take the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise SettingsError(f"{host}:{port}: cannot be served on ({error.strerror}); choose another --port") from error
    return listener


class _Patient(H11Protocol):
    """uvicorn's HTTP/1.1, with an end to waiting for a request's head, which holds a place."""

    head_timeout_s: float

    def connection_made(self, transport: Any) -> None:
        """Wait for the first head."""
        super().connection_made(transport)
        self._wait(self.head_timeout_s)

    def on_response_complete(self) -> None:
        """Wait for the next head: it may begin at the end of the idle time that uvicorn allows."""
        super().on_response_complete()
        self._wait(self.timeout_keep_alive + self.head_timeout_s)

    def _wait(self, seconds: float) -> None:
        self.loop.call_later(seconds, self._give_up, self.cycle)

    def _give_up(self, last: Any) -> None:
        """Close the connection where no request has come since the last one, which is answered."""
        if self.cycle is last and (last is None or last.response_complete):
            self.transport.close()


class _Server(uvicorn.Server):
    """uvicorn's server, that ends even where a thread does not."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop as uvicorn does; for the rest of the process there is an end to waiting, too."""
        if not self.should_exit:
            last = threading.Timer((self.config.timeout_graceful_shutdown or 0) + _GRACE_S, _leave)
            last.daemon = True
            last.start()
        super().handle_exit(sig, frame)


def _leave() -> None:
    """End the process without waiting for its threads: no kill loses what was stored."""
    logger.error("stopped", extra={"facts": {"unfinished": "a thread was still working; its result is lost"}})
    logging.shutdown()
    os._exit(1)


def uvicorn_config(app: Any, settings: ServeSettings) -> uvicorn.Config:
    """Return how the service is run."""
    patient = type("Patient", (_Patient,), {"head_timeout_s": settings.head_timeout_s})
    return uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, proxy_headers=False, ws="none", lifespan="on",
        http=patient, timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.shutdown_s, limit_concurrency=_CONNECTIONS,
        h11_max_incomplete_event_size=_HEAD_BYTES,
    )  # fmt: skip


def serve(program: "AgenticIQA", settings: ServeSettings, listener: socket.socket, token: str | None) -> None:
    """Serve the page and the HTTP interface until SIGTERM or SIGINT; see `run_until_stopped`."""
    from program.service.app import create_app

    set_up_logs()
    if settings.warm_up:
        _warm_up(program)
    greeting = "AgenticIQA is served on {}/ (Ctrl+C stops it)"
    run_until_stopped(create_app(program, token), settings, listener, greeting)


def run_until_stopped(app: Any, settings: ServeSettings, listener: socket.socket, greeting: str) -> None:
    """Run an ASGI application; requests in flight at SIGTERM or SIGINT are finished.

    `greeting` is printed with the address in place of its braces once clients may connect.
    """
    config = uvicorn_config(app, settings)
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):  # other C libraries have none
        libc.mallopt(_M_ARENA_MAX, _ARENAS)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises it again once it has stopped
    listener.listen(_CONNECTIONS)  # from here on nobody is turned away: who reads the line below may connect
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    sys.stdout.write(greeting.format(f"http://{shown}:{port}") + "\n")
    sys.stdout.flush()
    _Server(config).run(sockets=[listener])
    logging.shutdown()
    sys.stdout.flush()


def _warm_up(program: "AgenticIQA") -> None:
    """Load libraries, tools and models, so that the first request waits for none."""
    import numpy as np

    from program.agent.resources import ROLES
    from program.running.runner import one_image

    if not all(program.resources.known_traits(role).embedded for role in ROLES):
        return
    ramp = np.add.outer(np.arange(192), np.arange(256))[:, :, None] % 256
    with one_image():
        program(image=np.repeat(ramp, 3, axis=2).astype(np.uint8))
