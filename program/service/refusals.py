"""What the service refuses, an HTTP status with one line that says why; and its logs, one JSON object a line."""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import IO, Any

import dspy
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from program.common.errors import InputError, first_fault, redact

logger = logging.getLogger("program.service")

_MAX_MESSAGE = 1000
_MAX_TRACE = 4000
_BLOB = re.compile(r"[A-Za-z0-9+/_-]{200,}={0,2}")
"""What may be an encoded image: no word, path or hash is as long."""


class JsonLines(logging.Formatter):
    """Format a record as one JSON object; `extra={"facts": {...}}` adds keys. Keys of the environment are left out."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": shortened(record.getMessage(), _MAX_MESSAGE),
        }
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["trace"] = shortened(self.formatException(record.exc_info)[-_MAX_TRACE:], _MAX_TRACE)
        line = {name: redact(value) if isinstance(value, str) else value for name, value in line.items()}
        return json.dumps(line, ensure_ascii=False, default=str)


def shortened(text: str, limit: int) -> str:
    """Return a text cut to `limit` characters, with anything that may be an encoded image left out."""
    # Cut first: a search through megabytes of text would take long.
    kept = _BLOB.sub("[...]", text[: limit + 200])
    return kept if len(kept) <= limit and len(text) <= limit + 200 else kept[:limit] + "…"


def set_up_logs(stream: IO[str] | None = None) -> None:
    """Send everything that is logged to `stream` (stderr) as JSON lines, without the environment's keys."""
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


class Refused(HTTPException):
    """A request that gets no assessment. Raised anywhere on its way; answered as `{"error": message}`."""

    def __init__(self, status: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, headers)
        self.reason = reason
        """A fixed word for the metrics: body, host, origin, token, busy, timeout, path, url, ..."""


def refusal_of(error: BaseException) -> Refused | None:
    """Return how an error of a request or of its assessment is answered; None for a fault of the program itself."""
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


def misfit(error: ValidationError) -> Refused:
    """Return the refusal of what pydantic finds wrong, without what was sent: that may be an image."""
    return Refused(422, "request", _one_line(first_fault(error, "request")))


def _one_line(text: str) -> str:
    return shortened(" ".join(text.split()), 300)
