"""Level probabilities from words, letters, numbers, masses or token log-probabilities. Pure."""

import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from pydantic import ValidationError

from program.common.errors import first_fault
from program.common.text import answer_span, final_answer
from signatures.schemas import LEVEL_WORDS, LevelProbabilities, level_of

logger = logging.getLogger(__name__)

LEVELS = (1, 2, 3, 4, 5)
LETTERS = "EDCBA"
"""Letter of each level, 1 (E, bad) to 5 (A, excellent)."""
SMOOTHING = 0.15
"""Mass taken from a single named level and shared by the four others."""

Mode = Literal["auto", "probabilities", "classification"]

_WORD_LEVELS = {
    "excellent": 5, "perfect": 5, "outstanding": 5, "good": 4, "fair": 3, "average": 3, "moderate": 3, "poor": 2,
    "bad": 1, "terrible": 1, "awful": 1,
    "优秀": 5, "极好": 5, "很好": 5, "优": 5, "良好": 4, "好": 4, "良": 4, "一般": 3, "中等": 3, "普通": 3, "中": 3,
    "较差": 2, "差": 2, "很差": 1, "极差": 1, "糟糕": 1, "非常差": 1, "劣": 1,
}  # fmt: skip
_WORD = "|".join(sorted(map(re.escape, _WORD_LEVELS), key=len, reverse=True))
_LEAD = (
    r"(?:(?:quality|level|rating|rate[sd]?|score[sd]?|grade[sd]?|answer|overall|judg\w*)(?![a-z])"
    r"|质量|等级|评级|级别|评分|得分|答案)"
)
_REFUSAL = re.compile(
    r"\b(?:sorry|cannot|can't|can not|unable|not able|won't|impossible|refuse)\b|无法|不能|抱歉", re.IGNORECASE
)
# One token a turn and no nested repeats: a model that runs off into blanks must not cost seconds here.
_LINK = (
    r"(?:of|for|the|this|image|picture|photo|is|as|be|it|would|i|a|an|to|at|是|为|图像|图片|整体|的|[\s=:：*\"'“”])*"
)
_NAMED = (
    r"(?P<number>[1-5](?:\.\d+)?)(?!\d|\.\d)(?:\s*(?:/|out\s+of|分，?满分)\s*(?P<top>\d+))?"
    rf"|(?P<word>{_WORD})(?![a-z])"
)
_LETTER = r"(?:[b-e]|(?-i:A)(?!\s+(?!because|since|as|for|due|and|or|to)[a-z]))(?![\w'])"
"""A letter in a sentence, where "a" is a word."""
_WHOLE = re.compile(
    rf"[\s\"'`*(\[]*(?:level\s*|等级\s*|grade\s*)?(?:level\s*)?(?:{_NAMED}|(?P<letter>[A-E])(?![\w']))"
    rf"(?:\s*(?:[.．:：()（）\]、-]+|分)\s*(?:(?P<other>{_WORD}|[1-5])\b)?)?(?:\s*quality)?[\s\"'`*.)\]。]*",
    re.IGNORECASE,
)
_LED = re.compile(
    rf"{_LEAD}{_LINK}(?:level\s*)?(?:{_NAMED}|(?P<letter>{_LETTER}))"
    rf"(?:\s*(?:[-–—~/(（或至到和]|-?\b(?:to|or|and)\b-?)\s*(?P<other>(?:{_WORD})(?![a-z])|[1-5](?!\d|\.\d)|{_LETTER}))?",
    re.IGNORECASE,
)
_BOUND = r"\d{1,3}(?:\.\d{1,2})?(?:\s?[(（][^()（）]{0,30}[)）])?"
_RANGE = re.compile(
    r"[\s,，(（]{0,3}(?:\b(?:on|from|in)\s)?(?:\b(?:a|the)\s)?(?:\b(?:scale|range)\s)?(?:\b(?:of|from)\s)?"
    rf"(?<![\d.]){_BOUND}\s?(?:-|–|—|~|to|through|至|到)\s?{_BOUND}分?[\s,，:：)）]{{0,3}}"
    r"|[(（][^()（）]{0,80}?\d\s?[=:：][^()（）]{0,80}[)）]\s?[:：]?",
    re.IGNORECASE,
)
"""A scale ("1-5", "on a scale of 1 (bad) to 5", "(1 = bad, 5 = excellent)") or two levels: not the
number it opens."""
_COUNT = re.compile(
    r"(?<![\d.])\d{1,6}(?:\.\d{1,6})?[\s-]?(?:[%％‰°×张幅个处种项倍]|像素|(?:MP|megapixels?|px|pixels?|dpi|bits?|bpp|dB|stops?"
    r"|[mc]m|[KMG]B|EV|Hz|fps|x|times|seconds?|degrees?|images|photos|photographs|pictures|frames|shots|regions|areas"
    r"|distortions|artifacts|artefacts|faults|tools|scores|findings|objects|faces|people|options|levels)(?![a-z]))",
    re.IGNORECASE,
)
"""A number with a unit, or of things."""
_LEVEL_KEY = re.compile(rf"""["'](?:level[ _]?)?(?:[1-5A-E]|{_WORD})["']\s*[:：]""", re.IGNORECASE)
"""A level as the key of broken JSON says nothing of how likely it is."""
_TAGS = re.compile(r"<(\w{3,40})>(?=[^<>]{1,2000}</\1>)|</?\w{1,40}>")
"""Tags around an answer's parts, which name them as a key does."""
_FIELDS = ("quality_level", "quality_reasoning")
"""What the object holds that answers the question for a level."""
_FIELD = r"(?:quality_level|final_answer|quality|level|rating|answer)"
_KEY = re.compile(
    rf"(?:[\"'“”‘’]{_FIELD}[\"'“”‘’]\s*:|<quality_level>|\[\[ ## quality_level ## \]\]"
    r"|^[^\w\n]{0,8}quality_level[^\w\n]{0,4}:)\s*[\"'“‘*(\[]*\s*",
    re.MULTILINE,
)
"""A field's name in JSON, in tags, in DSPy's marks, or at the beginning of a line."""
_LEAD_IN = re.compile(
    r"\b(?:answer|rating|level|quality|score|grade|option|image|it)\b[^.\n\"']{0,40}?(?:\bis\b|\bas\b|:|=)[\s\"'`*(\[{]*",
    re.IGNORECASE,
)
"""Words before a level in a sentence: "The quality of the image is", "Rating:", "Answer: **"."""
_TOKEN_VALUE = re.compile(
    rf"(?:(?P<letter>[A-E])|(?P<number>[1-5])|(?P<word>{'|'.join(LEVEL_WORDS)}))(?!\w)", re.IGNORECASE
)
_ALONE = re.compile(r"[ \t]*(?:[.)\]:,\"'`*\n]|\Z)")
_OPENING = " \n\t\"'`*([{"
_BLANKS = str.maketrans({"\u0120": " ", "\u010a": "\n", "\u2581": " "})
"""What stands in tokens that a server never decoded: GPT-2's marks, and SentencePiece's."""
_SHORTEST_PREFIX = 2
"""A level word may be split into several tokens; two letters tell the five words apart from most
others."""
_ROUNDING = 1e-3
"""Servers round: a log-probability this little above zero still means certainty."""


def expected_level(probabilities: Mapping[int, float]) -> float:
    """Return the mean of a belief over the levels 1..5."""
    return math.fsum(level * p for level, p in probabilities.items())


def level_probabilities(output: Any, mode: Mode) -> dict[int, float]:
    """Return level probabilities as `ScoreFusion.extract_vlm_probabilities` says; or ValueError."""
    if isinstance(output, str):
        with suppress(ValueError, RecursionError):
            output = json.loads(output[output.index("{") : output.rindex("}") + 1])
    masses = _masses(output) if mode != "classification" else None
    if masses is not None:
        return _normalised(masses)
    if mode == "probabilities":
        raise ValueError(f"no level probabilities in {_short(output)}")
    name = output.get("quality_level") if isinstance(output, Mapping) else output
    level = level_in_text(str(name)) if name is not None else None
    if level is None:
        raise ValueError(f"no quality level in {_short(output)}")
    others = dict.fromkeys(LEVELS, SMOOTHING / (len(LEVELS) - 1))
    return {**others, level: 1 - SMOOTHING}


def softmax(logits: Mapping[int, float]) -> dict[int, float]:
    """Return exp(logit) over their sum, for each level."""
    top = max(logits.values())
    exponentials = {c: math.exp(v - top) for c, v in logits.items()}
    total = math.fsum(exponentials.values())
    return {c: e / total for c, e in exponentials.items()}


def level_in_text(text: str) -> int | None:
    """Return the quality level (1..5) a text names, or None if it names none, several, or refuses.

    The text is a level on its own (word, letter A..E = 5..1, number 1..5) or holds one after a word
    such as "quality", "rating" or "level". Fractions go to the nearest level, halves up. English
    and Chinese. Thoughts, scales ("1-5"), counts ("4 images") and numbers with a unit ("2 px") name
    none.

    >>> level_in_text("B. Good"), level_in_text("I would rate the quality as poor."), level_in_text("I cannot rate it")
    (4, 2, None)
    >>> level_in_text("Score (1-5): 4"), level_in_text("4 images"), level_in_text("Quality: fair to good")
    (4, None, None)
    """
    text = final_answer(text)
    if _REFUSAL.search(text):
        return None
    text = _TAGS.sub(r"\1: ", text)
    text = _COUNT.sub(" ", _RANGE.sub(": ", _LEVEL_KEY.sub(" ", text)))
    whole = _WHOLE.fullmatch(text.lstrip(" \n:"))
    levels: set[int] = set()
    for match in [whole] if whole else _LED.finditer(text):
        levels |= _levels_of_match(match)
    if len(levels) == 1:
        return levels.pop()
    return None


def _levels_of_match(match: re.Match[str]) -> set[int]:
    """Return the level that a match names, and another beside it ("good to excellent")."""
    levels = set() if match["other"] is None else {_level_named(match["other"])}
    if not match["number"]:
        return levels | {_level_named(match["word"] or match["letter"])}
    value = float(match["number"])
    if match["top"] in {None, "5"} and 1 <= value <= 5:
        return levels | {nearest_level(value)}
    return set()


def _level_named(name: str) -> int:
    name = name.casefold()
    if name in _WORD_LEVELS:
        return _WORD_LEVELS[name]
    if name.isdigit():
        return int(name)
    return LETTERS.casefold().index(name) + 1


def _masses(output: Any) -> dict[int, float] | None:
    if isinstance(output, Mapping):
        output = next((output[key] for key in ("quality_probs", "probabilities") if key in output), output)
    if not (hasattr(output, "by_level") or isinstance(output, Mapping | list | tuple)):
        return None
    if isinstance(output, list | tuple) and len(output) != len(LEVEL_WORDS):
        raise ValueError(f"{len(output)} level probabilities; {len(LEVEL_WORDS)} are needed")
    try:
        return LevelProbabilities.model_validate(output).by_level() or None
    except ValidationError as error:
        raise ValueError(f"level probabilities {_short(output)}: {first_fault(error, 'all')}") from error


def _normalised(masses: Mapping[int, float]) -> dict[int, float]:
    if not all(math.isfinite(mass) for mass in masses.values()):
        raise ValueError(f"level probabilities {dict(masses)}: not all finite")
    if any(mass < 0 for mass in masses.values()):
        given = softmax(masses)
        return {level: given.get(level, 0.0) for level in LEVELS}
    total = sum(masses.values())
    if not (math.isfinite(total) and total > 0):
        raise ValueError(f"level probabilities {dict(masses)}: no mass")
    if min(abs(total - 1), abs(total / 100 - 1)) > 0.01:
        logger.warning("level probabilities sum to %.3g; renormalised", total)
    return {level: masses.get(level, 0.0) / total for level in LEVELS}


def _short(value: Any) -> str:
    text = repr(value)
    if len(text) <= 80:
        return text
    return text[:77] + "..."


def level_masses(content: Sequence[Any]) -> dict[int, float]:
    """Return the probability of each level 1..5 where an answer names its level; their sum is 1.

    `content` holds an answer's tokens in order, each with `token`, `logprob` and `top_logprobs`
    (its alternatives, with `token` and `logprob`), as attributes or keys. The level is the value of
    "quality_level" in the final answer (JSON, or as any of DSPy's adapters has it), what that answer
    begins with, or what follows a lead-in ("Rating: "): a letter (A..E = 5..1), a number or a word.
    Spellings of one level (" C", "c") are added up and other tokens ignored: a softmax over the
    five levels, as Q-Align's (Wu et al., 2023), over the alternatives that the server returns. A
    level outside them is at most as likely as the least likely of them, and the levels outside
    share at most what is left over: it gets the smaller of both. Raises ValueError where no level
    is found, or a log-probability on the way is not one.

    >>> chosen = {"token": "C", "logprob": math.log(0.5), "top_logprobs": [{"token": "B", "logprob": math.log(0.25)}]}
    >>> {level: round(mass, 4) for level, mass in level_masses([chosen]).items()}
    {1: 0.0833, 2: 0.0833, 3: 0.5, 4: 0.25, 5: 0.0833}
    """
    start, kind = _place("".join(_spelling(token) for token in content))
    token, begin = _token_at(content, start)
    alternatives: dict[str, float] = {}  # each once, the chosen token first
    for entry in (token, *(_get(token, "top_logprobs") or ())):
        alternatives.setdefault(_spelling(entry), _probability(_get(entry, "logprob")))
    masses: dict[int, float] = {}
    for word, probability in alternatives.items():
        level = _level_of_token(word, kind, _spelling(token)[: start - begin])
        if level is not None:
            masses[level] = masses.get(level, 0.0) + probability
    if not math.fsum(masses.values()) > 0:
        raise ValueError(f"token log-probabilities: no mass on the levels ({masses})")
    missing = [level for level in LEVELS if level not in masses]
    left_over = max(0.0, 1.0 - math.fsum(alternatives.values()))
    least = min(filter(None, alternatives.values()))
    masses |= dict.fromkeys(missing, min(least, left_over / max(1, len(missing))))
    total = math.fsum(masses.values())
    return {level: masses[level] / total for level in sorted(masses)}


def tokens_of(logprobs: Any) -> list[Any]:
    """Return the tokens of a prediction's `logprobs`, of whichever client; [] without any."""
    content = _get(logprobs, "content") if logprobs is not None else None
    if isinstance(content, Sequence) and not isinstance(content, str):
        return list(content)
    return []


def _place(text: str) -> tuple[int, str]:
    """Return where the level stands in an answer and whether it is a letter, a number or a word."""
    begin, end = answer_span(text, _FIELDS)
    keys = [match.end() for match in _KEY.finditer(text, begin, end)]
    opening = end - len(text[begin:end].lstrip(_OPENING))
    for start in keys or [opening, *(match.end() for match in _LEAD_IN.finditer(text, begin, end))]:
        value = _TOKEN_VALUE.match(text, start, end)
        # Outside JSON a letter must stand alone: "A good photo" names no level.
        if value and (keys or value["word"] or _ALONE.match(text, value.end())):
            return start, str(value.lastgroup)
    raise ValueError("token log-probabilities: the answer names no quality level")


def _token_at(content: Sequence[Any], position: int) -> tuple[Any, int]:
    """Return the token that holds a character, and where the token begins."""
    end = 0
    for token in content:
        begin, end = end, end + len(_spelling(token))
        if end > position:
            return token, begin
    raise ValueError("token log-probabilities: they end before the answer does")


def _spelling(token: Any) -> str:
    """Return a token's text, whatever its tokenizer writes for a space or the end of a line."""
    return str(_get(token, "token")).translate(_BLANKS)


def _probability(logprob: Any) -> float:
    try:
        value = float(logprob)
    except (TypeError, ValueError):
        value = math.nan
    if math.isnan(value) or value > _ROUNDING:
        raise ValueError(f"token log-probabilities: {logprob!r} is no log-probability")
    return math.exp(min(0.0, value))


def _level_of_token(token: str, kind: str, before: str) -> int | None:
    """Return the level a token names; `before` is what the chosen token holds ahead of its own."""
    match = re.match(r"[\W_]*(\w+)(?!\w)", token.removeprefix(before))
    word = match[1].casefold() if match else ""
    if kind != "word":
        accepted = "abcde" if kind == "letter" else "12345"
        if len(word) == 1 and word in accepted:
            return level_of(word)
        return None
    if len(word) < _SHORTEST_PREFIX:
        return None
    return next((i for i, level in enumerate(LEVEL_WORDS, 1) if level.startswith(word)), None)


def nearest_level(score: float) -> int:
    """Return the level 1..5 nearest to a score, halves up."""
    return min(5, max(1, math.floor(score + 0.5)))


def _get(entry: Any, name: str) -> Any:
    if isinstance(entry, Mapping):
        return entry.get(name)
    return getattr(entry, name, None)
