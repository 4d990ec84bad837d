"""Servers that reply with status 200: a completion, a stream of one that nobody asked for, or no answer."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from program.lms.refusals import reason_in

NO_ANSWER = 520
"""The status, as gateways call it, of a reply that is no answer and names no other status."""
_MOST_CHARS = 300
_PAGE = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)


def understood(body: bytes, content_type: str) -> tuple[int, bytes]:
    """Return the status and the body that a reply with status 200 amounts to.

    A stream becomes the completion that its events add up to. What is no completion becomes an error
    with the server's words, and the status that it names (4xx), or `NO_ANSWER`.

    >>> understood(b'{"code": 404, "message": "there is no model x"}', "application/json")
    (404, b'{"error": {"message": "HTTP 200 without an answer: there is no model x"}}')
    """
    text = body.decode("utf-8", "replace").strip()
    is_stream = "event-stream" in content_type or text.startswith("data:")
    if is_stream:
        page: Any = _whole(text.split("\n"))
    else:
        page = _parsed(text)
    choice = _first_choice(page)
    if isinstance(choice.get("message"), Mapping) and not choice.get("error"):
        if is_stream:
            body = json.dumps(page).encode()
        return 200, body
    if choice.get("error"):
        page = choice
    said = " ".join((reason_in(page) or _PAGE.sub(" ", text)).split()) or "it is empty"
    error = {"message": f"HTTP 200 without an answer: {said[:_MOST_CHARS]}"}
    return _status(page), json.dumps({"error": error}).encode()


def _whole(lines: Iterable[str]) -> Any:
    """Return the completion that the events of a stream add up to; an event that is none by itself."""
    whole: dict[str, Any] = {}
    message: dict[str, str] = {}
    tokens: list[Any] = []
    reason = usage = None
    for line in lines:
        event, _, data = line.partition(":")
        chunk = _parsed(data)
        if event != "data" or not isinstance(chunk, Mapping):
            continue
        choice = _first_choice(chunk)
        if chunk.get("error") or choice.get("error"):
            return chunk
        whole |= chunk
        _join(message, _object(choice.get("delta") or choice.get("message")))
        more = _object(choice.get("logprobs")).get("content")
        if isinstance(more, list):
            tokens += more
        reason = choice.get("finish_reason") or reason
        usage = chunk.get("usage") or usage
    if message:
        choice = {"index": 0, "message": message, "finish_reason": reason}
        if tokens:
            choice["logprobs"] = {"content": tokens}
        whole |= {"choices": [choice], "usage": usage}
    return whole


def _join(message: dict[str, str], part: Mapping[str, Any]) -> None:
    for name in ("content", "reasoning_content", "reasoning", "refusal"):
        if isinstance(part.get(name), str):
            message[name] = message.get(name, "") + part[name]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return {}


def _first_choice(page: Any) -> Mapping[str, Any]:
    choices = _object(page).get("choices")
    if isinstance(choices, list) and choices:
        return _object(choices[0])
    return {}


def _status(page: Any) -> int:
    """Return the status of the caller's own error (4xx) that a reply names, or `NO_ANSWER`."""
    for part in (_object(_object(page).get("error")), _object(page)):
        for name in ("code", "status", "status_code"):
            if re.fullmatch(r"4\d\d", str(part.get(name))):
                return int(part[name])
    return NO_ANSWER
