"""Keys out of text and errors: what a service says back may quote the key it was sent."""

import logging
import os
import re
import traceback
from collections.abc import Mapping
from typing import Any

__all__ = ("UNSHOWABLE", "ShowableLines", "keys_among", "redact", "scrub", "showable")

_KEY_NAME = re.compile(r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD)(?:$|_)", re.IGNORECASE)
UNSHOWABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Marks that have no place in a line of text: controls but tab and newline, directions, half characters."""
_SHORTEST_KEY = 8
"""Shorter values of such variables are words and numbers that turn up in any text."""


def keys_among(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys among a language model's options or the environment, by name, and whatever headers hold.

    >>> keys_among({"api_key": "abcdefgh", "seed": 1, "extra_headers": {"Authorization": "Bearer ijklmnop"}})
    {'api_key': 'abcdefgh', 'Authorization': 'ijklmnop'}
    """
    keys = {name: value for name, value in options.items() if isinstance(value, str) and _KEY_NAME.search(name)}
    for name, headers in options.items():
        if name.endswith("headers") and isinstance(headers, Mapping):
            # A scheme ("Bearer") goes before the key.
            keys |= {str(header): words[-1] for header, value in headers.items() if (words := str(value).split())}
    return {name: value for name, value in keys.items() if len(value) >= _SHORTEST_KEY}


def showable(text: str) -> str:
    r"""Return a text with what steers a terminal, or turns the direction of writing, shown by its code.

    >>> showable("a\x1b[2Jb.png")
    'a\\x1b[2Jb.png'
    """
    return UNSHOWABLE.sub(lambda match: ascii(match[0])[1:-1], text)


class ShowableLines(logging.Formatter):
    """Log lines that steer no terminal: a model's answer stands in some."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return showable(super().format(record))


def redact(text: str, secrets: Mapping[str, str] | None = None) -> str:
    """Return a text with every key of the environment, and passwords in URLs, replaced by what they are.

    `secrets` are further values, by the name to put in their place.

    >>> redact("no such key: abcdefgh", {"LAB": "abcdefgh"}), redact("http://me:pass@host/v1")
    ('no such key: <LAB>', 'http://<password>@host/v1')
    """
    # Of two names for one key the environment's comes first: it tells the user where to look.
    for name, value in sorted({**keys_among(os.environ), **(secrets or {})}.items(), key=lambda item: -len(item[1])):
        text = text.replace(value, f"<{name}>")
    return re.sub(r"(?<=://)[^/@\s]+@", "<password>@", text)


def scrub(error: BaseException, secrets: Mapping[str, str] | None = None) -> None:
    """Take out of an error what `redact` takes out of a text; causes that quote it are dropped."""
    if isinstance(message := getattr(error, "message", None), str):
        error.message = redact(message, secrets)  # type: ignore[attr-defined]
    error.args = tuple(redact(a, secrets) if isinstance(a, str) else a for a in error.args)
    text = "".join(traceback.format_exception(error))
    if redact(text, secrets) != text:
        error.__cause__ = error.__context__ = None
