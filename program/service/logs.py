"""Structured logs: one JSON object a line on stderr, without image bytes, tokens or long texts."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import IO, Any

from program.common.redaction import redact

__all__ = ("JsonLines", "logger", "set_up_logs", "shortened")

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
