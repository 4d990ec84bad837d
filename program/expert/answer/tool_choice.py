"""Tools by the names that questions give them, and by declared strength. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from program.expert.answer.inputs import parsed_json
from program.expert.answer.vocabulary import form, word_set
from signatures.schemas import GLOBAL

__all__ = ("choose_tools", "named_tools")


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
    stated, listed = parsed_json(inputs.get("distortion_set")), parsed_json(inputs.get("tools"))
    wanted = stated if stated and isinstance(stated, dict) else {GLOBAL: []}
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
