"""What a question asks for, read by grammar: its inputs, its plan, its tools. English and Chinese. Pure."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from program.common.text import asks_for_score, is_chinese, options_shown, parse_options
from program.expert.answer.claims import form, terms_in, topic_in, word_set
from signatures.schemas import (
    DISTORTION_CATEGORIES,
    GLOBAL,
    SEVERITIES,
    DistortionCategory,
    GapKind,
    ScoreShift,
    category_of,
    steps,
)

Inputs = Mapping[str, Any]


@functools.lru_cache(maxsize=1024)
def region_pattern(name: str) -> re.Pattern[str]:
    """Return what finds a region's name in a question, however it is typed.

    >>> [bool(region_pattern("Dog face").search(text)) for text in ("the dog's face", "dog-faces", "Dogface", "a dog")]
    [True, True, True, False]
    """
    words = r"(?:'s|[\s_-])*".join(map(re.escape, re.findall(r"[^\W_]+", name))) or re.escape(name)
    return re.compile(words if is_chinese(name) else rf"(?<!\w){words}s?(?!\w)", re.IGNORECASE)


def parsed_json(text: Any) -> Any:
    """Return what JSON text holds, None for text that is none; anything but text is returned as it is."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def _object(inputs: Inputs, name: str) -> Mapping[str, Any]:
    """Return the JSON object that an input holds; an empty one for anything else."""
    stated = parsed_json(inputs.get(name))
    return stated if isinstance(stated, dict) else {}


def regions_of(inputs: Inputs) -> list[str]:
    """Return the regions that are asked about; the whole image if none is."""
    names = parsed_json(inputs.get("regions"))
    if isinstance(names, str):
        names = [names]
    return [str(name) for name in names] if names else [GLOBAL]


def region_crops(inputs: Inputs) -> dict[str, Any]:
    """Return the regions that were cut out of the image, to be measured as images are; "Global" is the whole of it."""
    crops = inputs.get("region_crops")
    return {str(name): crop for name, crop in crops.items()} if isinstance(crops, Mapping) else {}


def categories_by_region(inputs: Inputs) -> dict[str, list[DistortionCategory]]:
    """Return the categories of each region in `distortion_set`; regions without any are left out."""
    stated = _object(inputs, "distortion_set").items()
    listed = {str(region): names if isinstance(names, list) else [names] for region, names in stated if names}
    return {
        region: list(dict.fromkeys(c for n in names if (c := category_of(str(n))))) for region, names in listed.items()
    }


def options_of(inputs: Inputs) -> dict[str, str]:
    """Return the options by letter; none where they cannot be read."""
    stated = inputs.get("options")
    if isinstance(stated, Mapping):
        return {str(letter): str(text) for letter, text in stated.items()}
    return options_shown(str(stated or "")) or {}


def severities_of(inputs: Inputs, query: str) -> dict[str, str]:
    """Return the strongest severity word per category in the given analysis: of the regions asked about, or of all."""
    regions = _object(inputs, "distortion_analysis")
    in_query = [name for name in regions if name != GLOBAL and region_pattern(name).search(query)]
    given = [regions[name] for name in in_query or regions]
    found = [finding for region in given if isinstance(region, list) for finding in region if isinstance(finding, dict)]
    words = [(str(each.get("type")), each["severity"]) for each in found if each.get("severity") in SEVERITIES]
    # In the order given, and of each category the strongest, which comes last when they are sorted.
    return dict(words) | dict(sorted(words, key=lambda pair: SEVERITIES.index(pair[1])))


def scores_of(inputs: Inputs) -> list[tuple[str, float]]:
    """Return each distinct tool and its score, in the order given."""
    regions = [by for by in _object(inputs, "quality_scores").values() if isinstance(by, dict)]
    given = [reading for by in regions for reading in by.values() if isinstance(reading, list) and len(reading) == 2]
    return list(dict.fromkeys((str(tool), float(score)) for tool, score in given if isinstance(score, int | float)))


def score_shift_of(inputs: Inputs) -> ScoreShift:
    """Return how labels move the score in a question; by nothing where none are known."""
    return ScoreShift(*inputs.get("score_shift") or ())


def option_shares(inputs: Inputs) -> dict[str, float]:
    """Return by option's letter the share of similar photographs it is right for; empty where none is known."""
    shares = _object(inputs, "similar_photographs")
    return {str(letter): float(share) for letter, share in shares.items()}


def named_tools(query: str, ready: Sequence[str]) -> list[str]:
    """Return the tools that a query names: ready ones exactly as listed, others as the user wrote them.

    `MS_SSIM`, `ms-ssim tool` and `MS-SSIM` are one. A tool that is not listed is returned too, so that the program can
    say that it was not used.

    >>> named_tools("Rate it with FancyIQA, not with vif.", ["VIF", "PSNR"])
    ['VIF', 'FancyIQA']
    """
    text = _plain(query)
    words = re.findall(r"[A-Za-z0-9][A-Za-z0-9_+-]*", query)
    tokens = {form for word in words for form in (_plain(word), _plain(_bare(word)))}
    named = [tool for tool in ready if _plain(tool) in tokens or (len(_plain(tool)) > 5 and _plain(tool) in text)]
    plain_names = {_plain(tool) for tool in named}
    published = word_set("tools")
    candidates = [w for w in words if len(w) > 2 and _plain(_bare(w)) in published and not w.islower()]
    for beside in ("after_verb", "after_with", "before_noun", "after_chinese"):
        for match in form(f"tool_{beside}").finditer(query):
            candidates += re.split(r"\s*,\s*|\s+and\s+|\s*&\s*", match[1])
    for candidate in map(_bare, candidates):
        plain = _plain(candidate)
        if plain not in word_set("no_tools") and not any(plain in name for name in plain_names):
            plain_names.add(plain)
            named.append(candidate)
    return named


def _bare(word: str) -> str:
    return re.sub(r"_tool$", "", word, flags=re.IGNORECASE)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.casefold())


def choose_tools(inputs: Mapping[str, Any]) -> list[dict[str, str]]:
    """Pick for each region and distortion the listed tool of the best declared strength, then the best in general."""
    wanted, listed = _object(inputs, "distortion_set") or {GLOBAL: []}, parsed_json(inputs.get("tools"))
    tools = [t for t in listed if isinstance(t, dict) and t.get("name")] if isinstance(listed, list) else []
    return [
        {
            "region": str(region), "distortion": str(distortion),
            "tool": str(max(tools, key=lambda tool: _merit(tool, distortion))["name"]),
        }
        for region, distortions in wanted.items()
        for distortion in distortions or ["Overall"]
        if tools
    ]  # fmt: skip


def _merit(tool: Mapping[str, Any], distortion: str) -> tuple[float, float]:
    general = float(tool.get("general") or 0.0)
    strengths = tool.get("strengths") or {}
    strength = float(strengths.get(distortion, 0.0)) if isinstance(strengths, dict) else 0.0
    return (general, strength) if distortion == "Overall" else (strength, general)


_OTHER_SCRIPT = re.compile(r"[\u0370-\u1fff\u3040-\u30ff\uac00-\ud7af]")
"""Greek to the Latin supplements (Cyrillic, Arabic, the scripts of India ...), kana and Hangul."""


def is_about_quality(query: str) -> bool:
    """Return whether a question names a property, a distortion, a tool or a judgement, or the image as such.

    Taste (composition, mood) is none of them, as nothing here measures it.

    >>> is_about_quality("How sharp is the dog?"), is_about_quality("Is there a dog?"), is_about_quality("画质如何？")
    (True, False, True)
    """
    text = query.strip()
    if not text or (parse_options(text) is None and asks_for_score(text)) or form("general").search(text):
        return True
    topic = topic_in(text)
    if form("content").search(text) and (topic is None or topic.axis != "distortion"):
        return False
    named = [claim.axis for claim in terms_in(text)] + ([topic.axis] if topic is not None else [])
    if any(axis not in {"taste", "quality"} for axis in named) or named_tools(text, []):
        return True
    return "taste" not in named and form("judgement").search(text) is not None


def is_read(query: str) -> bool:
    """Return whether a question is in a language that is read: English or Chinese.

    >>> is_read("Is she happy?"), is_read("图里有狗吗？"), is_read("¿Es borrosa la imagen?")
    (True, True, False)
    """
    return not _OTHER_SCRIPT.search(query) and (is_chinese(query) or form("english").search(query) is not None)


def plan_assessment(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Plan one question: the paper's rule table applied to what its words name. Returns the fields of `Plan`."""
    query = str(inputs.get("query", ""))
    listed = [str(n) for n in inputs.get("region_names") or []]
    tools = named_tools(query, [str(n) for n in inputs.get("tool_names") or []])
    question = _without_options(query)
    is_iqa = not (form("beauty").search(question) and not form("technical").search(question))
    scope = named_regions(question, listed)
    named = named_distortions(question) if is_iqa else []
    boxed = {name.casefold() for name in listed}
    is_measurable = any(region == GLOBAL or region.casefold() in boxed for region in scope)
    plan = {
        "query_type": "IQA" if is_iqa else "Other",
        "query_scope": scope,
        "distortion_source": "explicit" if named else "inferred",
        "distortions": [{"region": region, "distortions": named} for region in scope] if named else [],
        "reference_mode": "Full-Reference" if inputs.get("has_reference") else "No-Reference",
        "required_tools": tools,
        **steps(is_iqa=is_iqa, names_distortions=bool(named), names_tools=bool(tools), is_measurable=is_measurable),
    }  # fmt: skip
    return _closing(inputs.get("gap"), plan, is_measurable=is_measurable)


def _closing(gap: GapKind | None, plan: dict[str, Any], *, is_measurable: bool) -> dict[str, Any]:
    """Change what an earlier plan left open; a gap that no plan of ours closes leaves the plan as it is."""
    if plan["query_type"] == "Other":
        return plan
    if gap in {"contradiction", "uncertain"}:
        # Look at everything: what was named in the question may not be what spoils the image.
        return plan | {"distortion_detection": True, "distortion_source": "inferred", "distortions": []}
    if gap in {"unscored", "failed tool"} and is_measurable:
        return plan | {"tool_selection": True, "tool_execute": True, "required_tools": []}
    return plan


def _without_options(query: str) -> str:
    options = parse_options(query)
    if not options:
        return query
    first = next(iter(options.values()))
    head = query[: query.rfind(first)] if first in query else query
    return re.split(r"[(（\[]?\bA\s*[)）.．、:：]\s*$", head.rstrip() + " ")[0] if head.strip() else query


def named_distortions(question: str) -> list[DistortionCategory]:
    """Return the distortion categories that a question names, in their fixed order.

    >>> named_distortions("Is the vehicle blurry or too dark?")
    ['Blurs', 'Brightness change']
    """
    words = [word for word in re.findall(r"[\w-]+", question.casefold()) if not form("no_distortion").fullmatch(word)]
    chinese = re.findall(r"[一-鿿]+", question)
    pieces = [part[i : i + 2] for part in chinese for i in range(max(1, len(part) - 1))]
    categories = set(map(category_of, [*pieces, *(word for word in words if not is_chinese(word))]))
    return [c for c in DISTORTION_CATEGORIES if c in categories]


@functools.cache
def _after(opening: str) -> re.Pattern[str]:
    """Find the name of an object after one of `forms`; it ends before a stop word."""
    stop = "|".join(sorted(word_set("stop")))
    return re.compile(rf"{form(opening).pattern}\s+((?:(?!(?:{stop})\b)[\w-]+\s*){{1,4}})", re.IGNORECASE)


def named_regions(question: str, listed: Sequence[str] = ()) -> list[str]:
    """Return the objects or regions a question names, listed ones first; `["Global"]` if none.

    >>> named_regions("How sharp is the face of the woman?", ["woman"])
    ['woman', 'face']
    """
    names = [name for name in listed if region_pattern(name).search(question)]
    for name in names:  # as it was given, so that what is found below is known to be it
        question = region_pattern(name).sub(name.replace("\\", r"\\"), question)
    folded = question.casefold()
    question = re.sub(r"[,\s]+please\b", "", question, flags=re.IGNORECASE)
    candidates: list[str] = []
    objects, requests = _after("before_object"), _after("request")
    for named in (objects, form("possessive"), requests, form("part")):
        for match in named.finditer(question):
            candidates += form("several").split(match[1])
    if objects.search(question) or requests.search(question):  # the second of "the X and the Y"
        candidates += form("second_object").findall(question)
    if is_chinese(question):
        candidates += [form("before_chinese_object").sub("", m) for m in form("chinese_object").findall(question)]
    for candidate in candidates:
        name = _object_name(candidate)
        if name and not any(name in f.casefold() for f in names):
            names.append(name)
    if names:
        return list(dict.fromkeys(names))
    no_whole = word_set("whole").isdisjoint(re.findall(r"\w+", folded)) and not re.search(r"图|照片|画面", question)
    return list(listed) if listed and no_whole else [GLOBAL]


def _object_name(phrase: str) -> str:
    words = re.findall(r"[\w-]+", phrase.casefold())
    if is_chinese(phrase):
        return "" if form("no_chinese_object").search(phrase) or len(phrase) > 6 else phrase
    if not word_set("whole").isdisjoint(words):
        return ""
    while words and words[0] in word_set("qualifiers"):
        words = words[1:]
    while words and words[-1] in word_set("parts"):
        words = words[:-1]
    return " ".join(words) if word_set("not_objects").isdisjoint(words) else ""
