"""Level probabilities from a model's true token log-probabilities: what else could have stood there. Pure."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from program.fusion.levels import LETTERS
from signatures.schemas import LEVEL_WORDS

__all__ = ("level_masses", "tokens_of")

_KEY = re.compile(r"[\"'](?:quality_level|final_answer|quality|level|rating|answer)[\"']\s*:\s*[\"'*(\[]*\s*")
_LEAD_IN = re.compile(
    r"\b(?:answer|rating|level|quality|score|grade|option|image|it)\b[^.\n\"']{0,40}?(?:\bis\b|\bas\b|:|=)[\s\"'`*(\[{]*",
    re.IGNORECASE,
)
"""Words before a level in a sentence: "The quality of the image is", "Rating:", "Answer: **"."""
_VALUE = re.compile(rf"(?:(?P<letter>[A-E])|(?P<number>[1-5])|(?P<word>{'|'.join(LEVEL_WORDS)}))(?!\w)", re.IGNORECASE)
_ALONE = re.compile(r"[ \t]*(?:[.)\]:,\"'`*\n]|\Z)")
_OPENING = " \n\t\"'`*([{"
_SHORTEST_PREFIX = 2
"""A level word may be split into several tokens; two letters tell the five words apart from most others."""
_ROUNDING = 1e-3
"""Servers round: a log-probability this little above zero still means certainty."""


def level_masses(content: Sequence[Any]) -> dict[int, float]:
    """Return the probability of each quality level 1..5 where an answer names its level; they sum to one.

    `content` holds an answer's tokens in order, each with `token`, `logprob` and `top_logprobs` (its alternatives,
    with `token` and `logprob`), as attributes or keys. The level is the value of "quality_level" in JSON, what the
    answer begins with, or what follows a lead-in ("Rating: "): a letter (A..E = 5..1), a number or a word. Spellings
    of one level (" C", "c") are added up and other tokens ignored: a softmax over the five levels, as Q-Align's
    (Wu et al., 2023), over the alternatives that the server returns. A level outside them is at most as likely
    as the least likely of them, and the levels outside share at most what is left over: it gets the smaller of both.
    Raises ValueError where no level is found, or a log-probability on the way is not one.

    >>> chosen = {"token": "C", "logprob": math.log(0.5), "top_logprobs": [{"token": "B", "logprob": math.log(0.25)}]}
    >>> {level: round(mass, 4) for level, mass in level_masses([chosen]).items()}
    {1: 0.0833, 2: 0.0833, 3: 0.5, 4: 0.25, 5: 0.0833}
    """
    text = "".join(str(_get(token, "token")) for token in content)
    start, kind = _place(text)
    token, begin = _token_at(content, start)
    masses: dict[int, float] = {}
    seen: list[float] = []
    for word, probability in _alternatives(token):
        seen.append(probability)
        level = _level(word, kind, str(_get(token, "token"))[: start - begin])
        if level is not None:
            masses[level] = masses.get(level, 0.0) + probability
    if not math.fsum(masses.values()) > 0:
        raise ValueError(f"token log-probabilities: no mass on the levels ({masses})")
    missing = [level for level in range(1, len(LEVEL_WORDS) + 1) if level not in masses]
    left_over = max(0.0, 1.0 - math.fsum(seen))
    masses |= dict.fromkeys(missing, min(min(filter(None, seen)), left_over / max(1, len(missing))))
    total = math.fsum(masses.values())
    return {level: masses[level] / total for level in sorted(masses)}


def tokens_of(logprobs: Any) -> list[Any]:
    """Return the tokens of a prediction's `logprobs`, whichever client they came through; [] where there are none."""
    content = _get(logprobs, "content") if logprobs is not None else None
    return list(content) if isinstance(content, Sequence) and not isinstance(content, str) else []


def _place(text: str) -> tuple[int, str]:
    """Return where the level stands in an answer and whether it is a letter, a number or a word."""
    keys = [match.end() for match in _KEY.finditer(text)]
    opening = len(text) - len(text.lstrip(_OPENING))
    for start in keys or [opening, *(match.end() for match in _LEAD_IN.finditer(text))]:
        value = _VALUE.match(text, start)
        # Outside JSON a letter must stand alone: "A good photo" names no level.
        if value and (keys or value["word"] or _ALONE.match(text, value.end())):
            return start, str(value.lastgroup)
    raise ValueError("token log-probabilities: the answer names no quality level")


def _token_at(content: Sequence[Any], position: int) -> tuple[Any, int]:
    """Return the token that holds a character, and where the token begins."""
    end = 0
    for token in content:
        begin, end = end, end + len(str(_get(token, "token")))
        if end > position:
            return token, begin
    raise ValueError("token log-probabilities: they end before the answer does")


def _alternatives(token: Any) -> Iterator[tuple[str, float]]:
    """Yield each alternative once with its probability, the chosen token first."""
    seen: set[str] = set()
    for entry in (token, *(_get(token, "top_logprobs") or ())):
        word = str(_get(entry, "token"))
        if word not in seen:
            seen.add(word)
            yield word, _probability(_get(entry, "logprob"))


def _probability(logprob: Any) -> float:
    try:
        value = float(logprob)
    except (TypeError, ValueError):
        value = math.nan
    if math.isnan(value) or value > _ROUNDING:
        raise ValueError(f"token log-probabilities: {logprob!r} is no log-probability")
    return math.exp(min(0.0, value))


def _level(token: str, kind: str, before: str) -> int | None:
    """Return the level a token names; `before` is what the chosen token holds ahead of its own."""
    match = re.match(r"[\W_]*(\w+)(?!\w)", token.removeprefix(before))
    word = match[1].casefold() if match else ""
    if kind == "letter":
        return LETTERS.index(word.upper()) + 1 if len(word) == 1 and word in "abcde" else None
    if kind == "number":
        return int(word) if len(word) == 1 and word in "12345" else None
    if len(word) < _SHORTEST_PREFIX:
        return None
    return next((i for i, level in enumerate(LEVEL_WORDS, 1) if level.startswith(word)), None)


def _get(entry: Any, name: str) -> Any:
    return entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)
