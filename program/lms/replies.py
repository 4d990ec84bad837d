"""What servers reply: refusals in their own words, answers in odd forms, and no answer at all."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal

from dspy import lm15

from program.common.backends import Frozen
from program.common.errors import showable
from program.common.settings import ConfigFile

Part = Literal[
    "images", "system_role", "max_tokens", "max_completion_tokens", "response_format", "logprobs",
    "temperature", "seed", "context", "model", "endpoint",
]  # fmt: skip
"""What a service refuses: images, a role, a field, the length, the model's name, or the address."""
OMITTABLE = ("response_format", "logprobs", "temperature", "seed")
"""Fields that a request can do without."""
NO_ANSWER = 520
"""The status, as gateways call it, of a reply that is no answer and names no other status."""
_MOST_CHARS = 300
_PAGE = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_ENVELOPES = ("data", "response", "result", "body")
"""Fields in which gateways put a service's reply."""
_MOST_TOKENS = 10**12
_IMPOSSIBLE = -9999.0
"""OpenAI's log-probability of what is as good as impossible; for that which a server leaves out."""

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
    """Return the most alternatives that a refusal of log-probabilities allows, fewer than asked for.

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
    except (ValueError, RecursionError):
        if status < 400:  # the client says so
            return body
        reply = " ".join(_PAGE.sub(" ", body.decode("utf-8", "replace")).split())[:_MOST_CHARS]
    if status >= 400:
        mended = _with_reason(reply)
    else:
        mended = _with_figures(reply)
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


def _with_figures(part: Any) -> Any:
    """Return a part of a reply without figures that are none; an alternative without one goes.

    >>> _with_figures({"prompt_tokens": -1, "completion_tokens": 7, "completion_tokens_details": 3})
    {'completion_tokens': 7}
    """
    if isinstance(part, list):
        return [_with_figures(each) for each in part]
    if not isinstance(part, dict):
        return part
    mended: dict[str, Any] = {}
    for name, value in part.items():
        if name == "top_logprobs":
            alternatives = value if isinstance(value, list) else []
            mended[name] = [_with_figures(each) for each in alternatives if _has_logprob(each)]
        elif not _is_odd(name, value):
            mended[name] = _with_figures(value)
    if "token" in part:
        mended |= {"token": str(part["token"]), "logprob": mended.get("logprob", _IMPOSSIBLE)}
    return mended


def _is_odd(name: str, value: Any) -> bool:
    if name.endswith("_tokens"):
        return not (_is_number(value) and 0 <= value <= _MOST_TOKENS and value == int(value))
    if name == "usage" or name.endswith("_details"):
        return not isinstance(value, dict)
    if name == "logprob":
        return not _is_number(value)
    return name == "bytes"


def _has_logprob(entry: Any) -> bool:
    return isinstance(entry, dict) and _is_number(entry.get("logprob"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


# Replies with a status of success: a completion, a stream of one that nobody asked for, or no answer


def understood(body: bytes, content_type: str, status: int = 200) -> tuple[int, bytes]:
    """Return the status and the body that a reply with a status of success (2xx) amounts to.

    A stream becomes the completion that its events add up to. What is no completion becomes an error
    with the server's words, and the status that it names (4xx), or `NO_ANSWER`.

    >>> understood(b'{"code": 404, "message": "there is no model x"}', "application/json")
    (404, b'{"error": {"message": "HTTP 200 without an answer: there is no model x"}}')
    """
    text = body.decode("utf-8", "replace").strip()
    if "event-stream" in content_type or text.startswith("data:"):
        page: Any = _whole(text.split("\n"))
        body = json.dumps(page).encode()
    else:
        page = _parsed(text)
    whole = _completion_in(page)
    choice = _first_choice(whole)
    message = choice.get("message")
    if choice.get("error"):
        page = choice
    elif choice.get("finish_reason") == "content_filter" and not _object(message).get("content"):
        page = {"code": 400, "message": "the content filter of the service withheld it"}
    elif isinstance(message, Mapping):
        content = _content_of(message)
        if whole is page and len(page["choices"]) == 1 and content is message.get("content"):
            return 200, body
        choice = {**choice, "message": {**message, "content": content}}
        return 200, json.dumps({**whole, "choices": [choice]}).encode()
    said = " ".join((reason_in(page) or _PAGE.sub(" ", text)).split()) or "it is empty"
    error = {"message": f"HTTP {status} without an answer: {said[:_MOST_CHARS]}"}
    return _status(page), json.dumps({"error": error}).encode()


def _completion_in(page: Any) -> Mapping[str, Any]:
    """Return the completion that a reply is or, as gateways do, has in an envelope; empty without one.

    What it says in `text`, as completions did before chat, becomes its message.

    >>> _completion_in({"code": 0, "data": {"choices": [{"text": "good"}]}})
    {'choices': [{'text': 'good', 'message': {'role': 'assistant', 'content': 'good'}}]}
    """
    if isinstance(page, list) and len(page) == 1:
        page = page[0]
    whole = _object(page)
    envelopes = [whole, *(_object(whole.get(name)) for name in _ENVELOPES)]
    whole = next((each for each in envelopes if _first_choice(each)), whole)
    choice = _first_choice(whole)
    if "message" not in choice and isinstance(choice.get("text"), str):
        message = {"role": "assistant", "content": choice["text"]}
        whole = {**whole, "choices": [{**choice, "message": message}]}
    return whole


def _is_quoted(content: Any) -> bool:
    """Return whether a text is JSON that was made a JSON string."""
    return isinstance(content, str) and content.lstrip().startswith('"{')


def _content_of(message: Mapping[str, Any]) -> Any:
    """Return an answer as a text, wherever a message has it, or the parts that it comes in.

    >>> _content_of({"content": None, "tool_calls": [{"function": {"arguments": '{"level": 2}'}}]})
    '{"level": 2}'
    """
    content = message.get("content")
    if content is None:
        content = message.get("parsed") or _arguments(message)
    if _is_quoted(content):
        content = _parsed(content) or content
    if isinstance(content, Mapping):
        return json.dumps(content, ensure_ascii=False)
    return content


def _arguments(message: Mapping[str, Any]) -> Any:
    """Return what a message calls a function with: some servers make an answer by a schema one."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        calls = [{"function": message.get("function_call")}]
    return _object(_object(calls[0]).get("function")).get("arguments")


def _whole(lines: Iterable[str]) -> Any:
    """Return the completion that a stream's events add up to, or an event that is an error."""
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
