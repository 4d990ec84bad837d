"""Level probabilities from a model's true token log-probabilities: what else could have stood there. Pure."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from program.fusion import LETTERS
from signatures.schemas import LEVEL_WORDS

__all__ = ("level_masses",)

_KEY = re.compile(r"[\"'](?:quality_level|final_answer)[\"']\s*:\s*[\"']?\s*")
_VALUE = re.compile(rf"(?:(?P<letter>[A-E])|(?P<number>[1-5])|(?P<word>{'|'.join(LEVEL_WORDS)}))(?!\w)", re.IGNORECASE)
_ALONE = re.compile(r"[ \t]*(?:[.)\]:,\"'`*\n]|\Z)")
_SHORTEST_PREFIX = 2
"""A level word may be split into several tokens; two letters tell the five words apart."""


def level_masses(content: Sequence[Any]) -> dict[int, float]:
    """Return the probability of each quality level 1..5 where an answer names its level; they sum to one.

    `content` holds an answer's tokens in order, each with `token`, `logprob` and `top_logprobs` (its alternatives,
    with `token` and `logprob`), as attributes or keys. The level is the value of "quality_level" in JSON, or what
    the answer begins with: a letter (A..E = 5..1), a number or a word. Spellings of one level (" C", "c") are added
    up, other tokens ignored, a level outside the alternatives has no mass. Raises ValueError where no level is found.

    >>> token = {"token": "C", "logprob": -0.5, "top_logprobs": [{"token": "B", "logprob": -0.5}]}
    >>> level_masses([token])[3], level_masses([token])[4]
    (0.5, 0.5)
    """
    text = "".join(str(_get(token, "token")) for token in content)
    key = _KEY.search(text)
    start = key.end() if key else len(text) - len(text.lstrip(" \n\t\"'`*([{"))
    value = _VALUE.match(text, start)
    # Outside JSON a letter must stand alone: "A good photo" names no level.
    if value is None or (key is None and value["letter"] and not _ALONE.match(text, value.end())):
        raise ValueError("token log-probabilities: the answer names no quality level")
    kind = str(value.lastgroup)
    masses = dict.fromkeys(range(1, len(LEVEL_WORDS) + 1), 0.0)
    for word, logprob in _alternatives(_token_at(content, start)):
        level = _level(word, kind)
        if level is not None:
            masses[level] += math.exp(0.0 if logprob > 0 else logprob)
    total = math.fsum(masses.values())
    if not (math.isfinite(total) and total > 0):
        raise ValueError(f"token log-probabilities: no mass on the levels ({masses})")
    return {level: mass / total for level, mass in masses.items()}


def _token_at(content: Sequence[Any], position: int) -> Any:
    end = 0
    for token in content:
        end += len(str(_get(token, "token")))
        if end > position:
            return token
    raise ValueError("token log-probabilities: they end before the answer does")


def _alternatives(token: Any) -> Iterator[tuple[str, float]]:
    """Yield each alternative once, the chosen token among them."""
    seen: dict[str, float] = {}
    for entry in (token, *(_get(token, "top_logprobs") or ())):
        seen.setdefault(str(_get(entry, "token")), float(_get(entry, "logprob")))
    yield from seen.items()


def _level(token: str, kind: str) -> int | None:
    word = token.strip(" \n\t\"'`*()[]{}:,.").casefold()
    if kind == "letter":
        return LETTERS.index(word.upper()) + 1 if len(word) == 1 and word in "abcde" else None
    if kind == "number":
        return int(word) if len(word) == 1 and word in "12345" else None
    if len(word) < _SHORTEST_PREFIX:
        return None
    return next((i for i, level in enumerate(LEVEL_WORDS, 1) if level.startswith(word)), None)


def _get(entry: Any, name: str) -> Any:
    return entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)
