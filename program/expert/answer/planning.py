"""What a question asks for: the plan, regions, distortions and tools that it names. English and Chinese."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from program.common.text import asks_for_score, is_chinese, parse_options
from program.expert.answer.claims import form, terms_in, topic_in, word_set
from signatures.schemas import (
    DISTORTION_CATEGORIES,
    GLOBAL,
    DistortionCategory,
    category_of,
    steps,
)

Inputs = Mapping[str, Any]


@functools.lru_cache(maxsize=1024)
def region_pattern(name: str) -> re.Pattern[str]:
    """Return what finds a region's name in a question, however it is typed.

    >>> face = region_pattern("Dog face")
    >>> [bool(face.search(text)) for text in ("the dog's face", "dog-faces", "Dogface", "a dog")]
    [True, True, True, False]
    """
    words = r"(?:'s|[\s_-])*".join(map(re.escape, re.findall(r"[^\W_]+", name))) or re.escape(name)
    if not is_chinese(name):
        words = rf"(?<!\w){words}s?(?!\w)"
    return re.compile(words, re.IGNORECASE)


def named_tools(query: str, ready: Sequence[str]) -> list[str]:
    """Return the tools that a query names: ready ones as listed, others as the user wrote them.

    `MS_SSIM`, `ms-ssim tool` and `MS-SSIM` are one. A tool that is not listed is returned too, so
    that the program can say that it was not used.

    >>> named_tools("Rate it with FancyIQA, not with vif.", ["VIF", "PSNR"])
    ['VIF', 'FancyIQA']
    """
    words = re.findall(r"[A-Za-z0-9][A-Za-z0-9_+-]*", query)
    tokens, text = set(map(_folded, words)), _folded(query)
    named = []
    for tool in ready:
        folded = _folded(tool)
        if folded in tokens or (len(folded) >= _LONG_NAME and folded in text):
            named.append(tool)
    candidates = [word for word in words if not word.islower() and _folded(word) in word_set("tools")]
    for match in form("tool").finditer(query):
        candidates += form("several_tools").split(match[match.lastindex or 0])
    folded_names = set(map(_folded, named))
    for candidate in candidates:
        folded = _folded(candidate)
        if folded not in word_set("no_tools") and not any(folded in name for name in folded_names):
            folded_names.add(folded)
            named.append(re.sub("_tool$", "", candidate, flags=re.IGNORECASE))
    return named


_LONG_NAME = 6
"""Letters of a tool's name from which it is found within other words."""


def _folded(name: str) -> str:
    return re.sub(r"_tool$|[\s_-]+", "", name.casefold())


_OTHER_SCRIPT = re.compile(r"[\u0370-\u1fff\u3040-\u30ff\uac00-\ud7af]")
"""Greek to the Latin supplements (Cyrillic, Arabic, the scripts of India ...), kana and Hangul."""


def is_about_quality(query: str) -> bool:
    """Return whether a question names a property, distortion, tool, judgement, or the image as such.

    Taste (composition, mood) is none of them, as nothing here measures it.

    >>> is_about_quality("How sharp is the dog?"), is_about_quality("Is there a dog?")
    (True, False)
    """
    text = query.strip()
    if not text or form("general").search(text):
        return True
    if parse_options(text) is None and asks_for_score(text):
        return True
    topic = topic_in(text)
    if form("content").search(text) and (topic is None or topic.axis != "distortion"):
        return False
    vague = "" if topic is None else topic.axis
    if terms_in(text) or vague not in {"", "taste", "quality"} or named_tools(text, []):
        return True
    return vague != "taste" and form("judgement").search(text) is not None


def is_read(query: str) -> bool:
    """Return whether a question is in a language that is read: English or Chinese.

    >>> is_read("Is she happy?"), is_read("图里有狗吗？"), is_read("¿Es borrosa la imagen?")
    (True, True, False)
    """
    if _OTHER_SCRIPT.search(query):
        return False
    return is_chinese(query) or form("english").search(query) is not None


def plan_assessment(inputs: Inputs) -> dict[str, Any]:
    """Return the fields of `Plan`: the paper's rule table applied to what a question names."""
    query = str(inputs.get("query", ""))
    listed = list(map(str, inputs.get("region_names") or []))
    tools = named_tools(query, list(map(str, inputs.get("tool_names") or [])))
    question = without_options(query, (parse_options(query) or {}).values()) or query
    is_iqa = form("technical").search(question) is not None or not form("beauty").search(question)
    scope = named_regions(question, listed)
    named = named_distortions(question) if is_iqa else []
    measurable = {GLOBAL.casefold(), *map(str.casefold, listed)}
    return {
        "query_type": "IQA" if is_iqa else "Other",
        "query_scope": scope,
        "distortion_source": "explicit" if named else "inferred",
        "distortions": [{"region": region, "distortions": named} for region in scope if named],
        "reference_mode": "Full-Reference" if inputs.get("has_reference") else "No-Reference",
        "required_tools": tools,
        **steps(
            is_iqa=is_iqa, names_distortions=bool(named), names_tools=bool(tools),
            is_measurable=not measurable.isdisjoint(map(str.casefold, scope)),
        ),
    }  # fmt: skip


def without_options(query: str, texts: Iterable[str]) -> str:
    """Return a question without the options that it repeats in its text."""
    for text in sorted(texts, key=len, reverse=True):
        if len(text) > 1:
            query = re.sub(rf"[(（\[]?(?<![A-Za-z])[A-Za-z]\s*[\])）.:：、．]\s*{re.escape(text)}", " ", query)
    return " ".join(query.split())


def named_distortions(question: str) -> list[DistortionCategory]:
    """Return the distortion categories that a question names, in their fixed order.

    >>> named_distortions("Is the vehicle blurry or too dark?")
    ['Blurs', 'Brightness change']
    """
    named = set()
    for word in re.findall(r"[\w-]+", question.casefold()):
        if not is_chinese(word) and not form("no_distortion").fullmatch(word):
            named.add(category_of(word))
    for run in re.findall(r"[一-鿿]+", question):
        for start in range(max(1, len(run) - 1)):
            named.add(category_of(run[start : start + 2]))
    return [category for category in DISTORTION_CATEGORIES if category in named]


@functools.cache
def _objects() -> re.Pattern[str]:
    """Find the names of objects: what `forms` calls NAME ends before a stop word."""
    stop = "|".join(sorted(word_set("stop")))
    name = rf"((?:(?!(?:{stop})\b)[\w-]+\s*){{1,4}})"
    return re.compile(form("object").pattern.replace("NAME", name), re.IGNORECASE)


def named_regions(question: str, listed: Sequence[str] = ()) -> list[str]:
    """Return the objects or regions a question names, listed ones first; `["Global"]` if none.

    >>> named_regions("How sharp is the face of the woman?", ["woman"])
    ['woman', 'face']
    """
    names = [name for name in listed if region_pattern(name).search(question)]
    for name in names:  # as it was given, so that what is found below is known to be it
        question = region_pattern(name).sub(name.replace("\\", r"\\"), question)
    for phrase in _named_phrases(question):
        name = _object_name(phrase)
        if name and not any(name in known.casefold() for known in names):
            names.append(name)
    if names:
        return list(dict.fromkeys(names))
    words = re.findall(r"\w+", question.casefold())
    is_of_whole = not word_set("whole").isdisjoint(words) or re.search(r"图|照片|画面", question)
    if is_of_whole or not listed:
        return [GLOBAL]
    return list(listed)


def _named_phrases(question: str) -> list[str]:
    """Return the phrases of a question that may name an object."""
    if is_chinese(question):
        return [form("before_chinese_object").sub("", name) for name in form("chinese_object").findall(question)]
    phrases: list[str] = []
    for match in _objects().finditer(question):
        for name in filter(None, match.groups()):
            phrases += form("several").split(name)
    return phrases


_LONGEST_CHINESE_NAME = 6


def _object_name(phrase: str) -> str:
    words = re.findall(r"[\w-]+", phrase.casefold())
    if is_chinese(phrase):
        if form("no_chinese_object").search(phrase) or len(phrase) > _LONGEST_CHINESE_NAME:
            return ""
        return phrase
    if not word_set("whole").isdisjoint(words):
        return ""
    while words and words[0] in word_set("qualifiers"):
        words = words[1:]
    while words and words[-1] in word_set("parts"):
        words = words[:-1]
    return " ".join(words) if word_set("not_objects").isdisjoint(words) else ""
