"""Plans by grammar: what a question's words name. English and Chinese. Pure."""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from program.common.questions import is_chinese, parse_options
from program.expert.answer.inputs import region_pattern
from program.expert.answer.tool_choice import named_tools
from program.expert.answer.vocabulary import form, word_set
from signatures.schemas import DISTORTION_CATEGORIES, GLOBAL, DistortionCategory, category_of, steps

__all__ = ("named_distortions", "named_regions", "plan_assessment")


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
    return _after_feedback(plan, str(inputs.get("feedback") or ""), is_measurable=is_measurable)


def _after_feedback(plan: dict[str, Any], feedback: str, *, is_measurable: bool) -> dict[str, Any]:
    """Change what the feedback says was missing; a gap that no plan of ours closes leaves the plan as it was."""
    if not feedback or plan["query_type"] == "Other":
        return plan
    folded = feedback.casefold()
    if "contradict" in folded or "uncertain" in folded or "disagree" in folded:
        # Look at everything: what was named in the question may not be what spoils the image.
        plan |= {"distortion_detection": True, "distortion_source": "inferred", "distortions": []}
    if is_measurable and ("tool scores" in folded or ("tool" in folded and "failed" in folded)):
        plan |= {"tool_selection": True, "tool_execute": True, "required_tools": []}
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
