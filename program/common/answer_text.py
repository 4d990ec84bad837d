"""The final answer in what a model wrote, after its thoughts and among drafts and remarks. Pure; linear in the text."""

import functools
import json
import re
from collections.abc import Collection

__all__ = ("answer_span", "breaks_off", "final_answer")

_THOUGHT = re.compile(
    r"(?P<opens><(?:think|thinking|thought)>|\[think\]|◁think▷|<\|channel\|>analysis<\|message\|>)"
    r"|</(?:think|thinking|thought)>|\[/think\]|◁/think▷|<\|channel\|>final<\|message\|>",
    re.IGNORECASE,
)
"""Where a thought begins and ends: Qwen and DeepSeek, Magistral, Kimi, gpt-oss."""
_QUOTES = "[\"'“”‘’`*]"
_STRING = r'"(?:[^"\\\n]|\\.|\n(?![ \t]{0,8}\{)|"(?!\s*[,:}\]]|[ \t]*(?:\n|\Z)))*+(?:"|\Z|(?=\n))'
"""A string in an object. A quote that nothing of an object follows is its text's ("the "soft" edges"); one that breaks
off ends where the next object begins."""


def final_answer(text: str, names: Collection[str] = ()) -> str:
    r"""Return an answer's text without thoughts and, where an object or tags hold these fields, without all else.

    >>> final_answer('<think>{"level": 1}?</think>\n```json\n{"level": 2}\n``` {sic}', ["level"])
    '{"level": 2}'
    >>> final_answer("<level>2</level>", ["level"]), final_answer("<think>1 or 2?</think>2")
    ('{"level": "2"}', '2')
    """
    start, stop = answer_span(text, names)
    said = text[start:stop]
    if not names or said.startswith("{"):
        return said
    tagged = {name: _tagged(said, name) for name in names}
    return said if None in tagged.values() else json.dumps(tagged, ensure_ascii=False)


def _tagged(text: str, name: str) -> str | None:
    start = text.rfind(f"<{name}>")
    stop = text.find(f"</{name}>", start)
    return None if start < 0 or stop < 0 else text[start + len(name) + 2 : stop].strip()


def answer_span(text: str, names: Collection[str] = ()) -> tuple[int, int]:
    """Return where the final answer begins and ends: the last object with the most of these fields, else all said.

    What stands in a thought is no answer, unless nothing follows the thought and it ends with an object.
    """
    if names and _holds(text, names):
        return 0, len(text)
    start, stop, is_thought = _said(text)
    best: tuple[int, int] = (0, -1)
    answer = (stop, stop) if is_thought else (start, stop)
    for begin, end, held in _objects(text, start, stop, tuple(names)):
        in_place = not is_thought or (end is not None and not text[end:stop].strip("` \t\r\n"))
        if held and in_place and (held, begin) > best:
            best, answer = (held, begin), (begin, stop if end is None else end)
    return answer


def _holds(text: str, names: Collection[str]) -> bool:
    """Return whether a text is one JSON object with these fields, and no more."""
    if not text.startswith("{"):
        return False
    try:
        return bool(json.loads(text).keys() >= set(names))
    except (ValueError, RecursionError):
        return False


def _said(text: str) -> tuple[int, int, bool]:
    """Return where the text after the last thought lies; without any, where that thought does, and True."""
    tags = [*_THOUGHT.finditer(text)]
    if not tags:
        return 0, len(text), False
    last = tags[-1]
    if last["opens"] or text[last.end() :].strip():
        return last.end(), len(text), bool(last["opens"])
    return next((tag.end() for tag in reversed(tags) if tag["opens"]), 0), last.start(), True


def _objects(text: str, start: int, stop: int, names: tuple[str, ...]) -> list[tuple[int, int | None, int]]:
    """Return where each object begins and ends (None: it breaks off), and how many of the names are its keys."""
    opened: list[tuple[int, set[str]]] = []
    found: list[tuple[int, int | None, int]] = []
    position, tokens = start, _tokens(names)
    while token := (tokens if opened else _opening(names)).search(text, position, stop):
        position = token.end()
        match token[0][0]:
            case "{":
                opened.append((token.start(), set()))
            case "}":
                begin, held = opened.pop()
                found.append((begin, position, len(held)))
            case _ if token["key"]:
                opened[-1][1].add(token["key"])
    return [*found, *((begin, None, len(held)) for begin, held in opened)]


@functools.lru_cache(maxsize=256)
def _opening(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return what an object of these names begins with in prose: a brace before a key ("{edges}" is none)."""
    return re.compile(rf"\{{(?=\s*(?:{_QUOTES}|(?:{'|'.join(map(re.escape, names))})\b))" if names else r"\{")


@functools.lru_cache(maxsize=256)
def _tokens(names: tuple[str, ...]) -> re.Pattern[str]:
    keys = "|".join(map(re.escape, names)) or "(?!)"
    return re.compile(rf"[{{}}]|{_QUOTES}{{0,2}}(?<!\w)(?P<key>{keys}){_QUOTES}{{0,2}}\s*+[:：]|{_STRING}", re.DOTALL)


def breaks_off(text: str) -> bool:
    """Return whether a JSON object in a text is opened and not closed.

    >>> breaks_off('{"a": [1, 2'), breaks_off('```json {"a": "}"} ```'), breaks_off("no object")
    (True, False, False)
    """
    if text.rstrip("` \t\r\n").endswith("}") and text.count("{") == text.count("}"):
        return False
    return any(end is None for _, end, _ in _objects(text, 0, len(text), ()))
