"""Keys out of text: what a service says back may quote the key it was sent."""

import os
import re
from collections.abc import Mapping

__all__ = ("key_variables", "redact")

_KEY_NAME = re.compile(r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD)(?:$|_)", re.IGNORECASE)
_SHORTEST_KEY = 8
"""Shorter values of such variables are words and numbers that turn up in any text."""


def key_variables() -> dict[str, str]:
    """Return the environment's variables that hold keys, by name."""
    found = {name: value for name, value in os.environ.items() if _KEY_NAME.search(name)}
    return {name: value for name, value in found.items() if len(value) >= _SHORTEST_KEY}


def redact(text: str, secrets: Mapping[str, str] | None = None) -> str:
    """Return a text with every key of the environment, and passwords in URLs, replaced by what they are.

    `secrets` are further values, by the name to put in their place.

    >>> redact("no such key: abcdefgh", {"LAB": "abcdefgh"}), redact("http://me:pass@host/v1")
    ('no such key: <LAB>', 'http://<password>@host/v1')
    """
    for name, value in sorted({**key_variables(), **(secrets or {})}.items(), key=lambda item: -len(item[1])):
        text = text.replace(value, f"<{name}>")
    return re.sub(r"(?<=://)[^/@\s]+@", "<password>@", text)
