"""What servers send in odd ways: refusals in their own words, errors in other places, figures that are none."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from dspy import lm15

from program.common.backends import Frozen
from program.common.errors import showable
from program.common.settings import ConfigFile

Part = Literal[
    "images", "system_role", "max_tokens", "max_completion_tokens", "response_format", "logprobs",
    "temperature", "seed", "context", "model",
]  # fmt: skip
"""What a service refuses: images, a role, a field of the request, its length, or the model's name."""
OMITTABLE = ("response_format", "logprobs", "temperature", "seed")
"""Fields that a request can do without."""
_MOST_TOKENS = 10**12
_IMPOSSIBLE = -9999.0
"""OpenAI's log-probability of what is as good as impossible; it stands where a server gives none."""

_ODD_FIGURE = re.compile(
    rb'_tokens"\s*:(?!\s*(?:\d{1,12}\s*[,}]|null))'
    rb'|"(?:usage|\w+_details)"\s*:(?!\s*(?:\{|null))'
    rb'|"logprob"\s*:(?!\s*-?\d)'
    rb'|"top_logprobs"\s*:(?!\s*(?:\[|null))'
    rb'|"bytes"\s*:(?!\s*(?:\[[\d,\s]*\]|null))'
    rb"|NaN|Infinity"
)
"""What an odd figure looks like: answers hold thousands of them, which are parsed only then."""


class Reason(Frozen):
    """Where the words of a refusal stand in its JSON."""

    at: str
    source: str


class Words(Frozen):
    """A pattern of words, and the server that says them."""

    pattern: str
    source: str


class ReplyTable(ConfigFile):
    """The table of configs/server_replies.yaml."""

    FILE: ClassVar[str] = "server_replies.yaml"
    refusal_statuses: frozenset[int]
    reasons: tuple[Reason, ...]
    refusals: dict[Part, tuple[Words, ...]]
    logprob_limits: tuple[Words, ...]


def words_of(error: lm15.LM15Error) -> str:
    """Return what a service said, on one line."""
    return showable(" ".join(f"{error.message} {error.provider_code or ''}".split()))


def refused(words: str, status: int | None) -> list[str]:
    """Return what a service's words, on one line, may refuse, as the table calls it.

    >>> refused("image input is not supported - hint: you may need to provide the mmproj", 500)
    ['images']
    >>> refused("Unsupported parameter: 'max_tokens'; use 'max_completion_tokens'", 400)
    ['max_tokens', 'max_completion_tokens']
    >>> refused("too many requests of this seed", 429)
    []
    """
    table = ReplyTable.load()
    named: list[str] = []
    for part, lines in table.refusals.items():
        if any(re.search(line.pattern, words, re.IGNORECASE) for line in lines):
            named.append(part)
    if status in table.refusal_statuses:
        return named
    return ["images"] if "images" in named else []  # of whatever status


def fewer_alternatives(words: str, asked: int) -> int | None:
    """Return the most alternatives that a refusal of log-probabilities allows, fewer than were asked for.

    >>> fewer_alternatives("Invalid value: 'top_logprobs' must be less than or equal to 5", 20)
    5
    >>> fewer_alternatives("llama-3.1-8b gives no logprobs", 20)
    """
    allowed = [number for number in _limits_in(words) if 1 <= number <= asked]
    if not allowed or asked == 1:
        return None
    return min(max(allowed), asked - 1)


def _limits_in(words: str) -> Iterator[int]:
    for line in ReplyTable.load().logprob_limits:
        for match in re.finditer(line.pattern, words, re.IGNORECASE):
            yield from (int(number) for number in match.groups() if number)


def readable(status: int, body: bytes) -> bytes:
    """Return a reply's body as DSPy's client reads it; the same one where it can.

    The words of a refusal move to where the client looks for them. Token counts and
    log-probabilities that are none are left out.
    """
    if status < 400 and not _ODD_FIGURE.search(body):
        return body
    try:
        reply = json.loads(body, parse_constant=lambda _: None)
    except (ValueError, RecursionError):  # the client says so
        return body
    if status >= 400:
        mended = _with_reason(reply)
    elif isinstance(reply, dict):
        mended = _with_figures(reply)
    else:
        return body
    has_constants = b"NaN" in body or b"Infinity" in body
    if mended == reply and not has_constants:
        return body
    return json.dumps(mended).encode("ascii")


def _with_reason(reply: Any) -> Any:
    """Return an error's JSON with its words in `error.message`."""
    if not isinstance(reply, dict):
        return {"error": {"message": _text(reply)}}
    words = reason_in(reply) or _text(reply)
    error = reply.get("error")
    if isinstance(error, dict):
        return {**reply, "error": {**error, "message": words}}
    kind = {name: reply[name] for name in ("code", "type") if isinstance(reply.get(name), str)}
    return {**reply, "error": {**kind, "message": words}}


def reason_in(reply: Any) -> str:
    """Return what a reply's JSON says is wrong, in the first of the table's places that says it."""
    for reason in ReplyTable.load().reasons:
        value = reply
        for name in reason.at.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value:
            return _text(value)
    return ""


def _text(value: Any) -> str:
    """Return a refusal's words, of a list those of each entry, behind the field that it names.

    >>> _text([{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}, "twice"])
    'seed: Extra inputs are not permitted; twice'
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "; ".join(_text(each) for each in value)
    if not isinstance(value, dict):
        return str(value)
    words = value.get("msg") or value.get("message")
    if not words:
        return json.dumps(value, ensure_ascii=False)[:500]
    place = value.get("loc")
    if not isinstance(place, list):
        return _text(words)
    field = ".".join(str(part) for part in place if part != "body")
    return f"{field}: {_text(words)}".removeprefix(": ")


def _with_figures(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply without figures that are none."""
    mended = dict(reply)
    if "usage" in reply:
        mended["usage"] = _counts(reply["usage"])
    choices = reply.get("choices")
    if isinstance(choices, list):
        mended["choices"] = [_with_logprobs(choice) for choice in choices]
    return mended


def _counts(usage: Any) -> dict[str, Any]:
    """Return a reply's usage without token counts that count nothing.

    >>> _counts({"prompt_tokens": -1, "completion_tokens": 7, "completion_tokens_details": 3})
    {'completion_tokens': 7}
    """
    counts: dict[str, Any] = {}
    for name, value in (usage if isinstance(usage, dict) else {}).items():
        if name.endswith("_details"):
            value = _counts(value)
            is_sound = bool(value)
        else:
            is_sound = not name.endswith("_tokens") or _is_count(value)
        if is_sound:
            counts[name] = value
    return counts


def _is_count(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= _MOST_TOKENS and value == int(value)


def _with_logprobs(choice: Any) -> Any:
    """Return a choice with log-probabilities that are numbers; an alternative without one goes."""
    logprobs = choice.get("logprobs") if isinstance(choice, dict) else None
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list):
        return choice
    tokens = []
    for entry in content:
        if isinstance(entry, dict):
            top = entry.get("top_logprobs")
            listed = top if isinstance(top, list) else []
            alternatives = [_token(each) for each in listed if _has_number(each)]
            tokens.append({**_token(entry), "top_logprobs": alternatives})
    return {**choice, "logprobs": {"content": tokens}}


def _token(entry: dict[str, Any]) -> dict[str, Any]:
    logprob = entry["logprob"] if _has_number(entry) else _IMPOSSIBLE
    return {"token": str(entry.get("token", "")), "logprob": logprob}


def _has_number(entry: Any) -> bool:
    logprob = entry.get("logprob") if isinstance(entry, dict) else None
    return isinstance(logprob, int | float) and not isinstance(logprob, bool) and abs(logprob) < math.inf
