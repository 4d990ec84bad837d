"""Plans by grammar, tools by declared strength: what the expert answers from text alone. English, Chinese. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from program.query import is_chinese, parse_options
from signatures.rules import steps
from signatures.schemas import DISTORTION_CATEGORIES, GLOBAL, DistortionCategory, category_of

__all__ = (
    "choose_tools",
    "named_distortions",
    "named_regions",
    "named_tools",
    "parsed_json",
    "plan_assessment",
)

_BEAUTY = re.compile(
    r"\b(?:aesthetic\w*|beaut\w+|pretty|gorgeous|attractive|appealing|pleasing|artistic\w*|art\s*style|style|"
    r"styli[sz]\w+|mood\w*|"
    r"emotion\w*|feelings?|atmosphere|vibe|story|meaning|message|compos(?:ition|ed)|framing|rule "
    r"of thirds|creativ\w+|genre|"
    r"sad|happy|joyful|cheerful|melanchol\w+|lonely|calm\w*|romantic|interesting|evokes?|convey\w*)\b"
    r"|美感|美学|美丽|漂亮|好看|艺术|风格|情感|情绪|心情|氛围|意境|构图|感受|故事",
    re.IGNORECASE,
)
_TECHNICAL = re.compile(
    r"\b(?:(?<!aesthetic )(?<!artistic )quality|distort\w*|degrad\w*|artifacts?|artefacts?|blur\w*|nois[ey]\w*|"
    r"grain\w*|sharp\w*|"
    r"compress\w*|jpeg|block(?:y|iness|ing)|over-?expos\w*|under-?expos\w*|exposure|focus\w*|pixelat\w*)\b"
    r"|(?<!美学)(?<!艺术)质量|画质|失真|模糊|噪|清晰|压缩|曝光|对焦|失焦",
    re.IGNORECASE,
)

_WHOLE = frozenset(
    (
        "image images picture pictures photo photos photograph photographs shot frame screenshot "
        "scene whole entire overall it this that everything anything view snapshot figure pic "
        "wallpaper 图片 图像 照片 画面 整体 全图 图 影像 整张图 整个画面 "
    ).split()
)
_NOT_OBJECTS = frozenset(
    (
        "quality level degree amount kind type sort extent severity distortion distortions degradation problem "
        "problems issue issues score rating scale reference original version user option options following answer "
        "most main worst best least human perceptual visual technical aspect aspects terms term impression effect "
        "effects reason reasons cause tool tools metric question tone tones style color colour colors colours "
        "light lighting brightness contrast sharpness clarity saturation focus noise blur exposure compression "
        "detail details texture textures edges edge hue richness artifacts way one ones presence pixels pixel lens "
        "camera shutter content information resolution factor factors attribute attributes condition conditions "
        "composition mood emotion atmosphere more less much very naturalness fidelity illumination "
    ).split()
)
_QUALIFIERS = frozenset("main most worst best least first second same entire whole overall".split())
_PLACES = frozenset("region regions area areas part parts portion portions section sections".split())
_STOP = (
    "(?:of|in|on|at|for|with|by|from|to|and|or|is|are|was|were|be|has|have|looks?|appears?|seems?|that|which|who|due|than|as|"
    "compared|suffers?|clear|clearest|clearer|blurry|blurred|sharp|sharper|sharpest|noisy|bright|brightest|dark|darkest|too|very|over\\w*|"
    "under\\w*|well|out|affect\\w*|visible|caused?|using|during|when|while|not|rich|enough|good|bad|poor|distorted|degraded|grainy|"
    "compressed|washed|saturated|focused|exposed|lit|convey\\w*|evoke\\w*|vivid|high|low|strong|weak|severe|serious|obvious|show\\w*|"
    "contain\\w*|exhibit\\w*|make\\w*|reduce\\w*|damage\\w*|natural|real|acceptable|fine|ok|okay|look|present|noticeable|there|any|most|"
    "more|less|worse|better|if|because|after|before|only|holding|wearing|doing|sitting|standing|looking|riding|playing|"
    "walking|eating|carrying|lying|facing|smiling|running|driving|suffering|having)"
)
_OBJECT = re.compile(
    r"\b(?:of|in|on|at|for|does|do|did|is|are|was|were|about|around|inside|behind|has|have)\s+"
    rf"(?:the|this|that|these|those|his|her|their|its)\s+((?:(?!{_STOP}\b)[\w-]+\s*){{1,4}})",
    re.IGNORECASE,
)
_LEADING = re.compile(
    rf"^(?:please\s+)?(?:rate|score|assess|evaluate|judge|describe|check|compare|analy[sz]e)\s+the\s+((?:(?!{_STOP}\b)[\w-]+\s*){{1,4}})",
    re.IGNORECASE,
)
_POSSESSIVE = re.compile(r"\b(?:the|this|that)\s+([\w-]+(?:\s[\w-]+)?)['’]s\b", re.IGNORECASE)
_PART = re.compile(r"\b(?:the\s+)?(background|foreground)\b", re.IGNORECASE)
_CHINESE_OBJECT = re.compile(
    r"(?=(?:[中里上]的?|^|[，,。]|请?(?:评价|评估|判断|描述|分析)(?:一下)?)([一-鿿]{1,6}?)(?:区域|部分)?(?:的|是否|有没有|看起来|够不够|清楚|清晰|模糊))"
)
_CHINESE_NOISE = re.compile(r"^(?:这|那|该|本|此)?(?:张|幅|个|副|里|中|些)?")
_CHINESE_NOT = re.compile(
    r"图|照片|画面|整体|质量|画质|失真|噪|模糊|清晰|亮|暗|色|曝光|对比|压缩|什么|哪|主要|最|为什么|如何|怎|评|描述|分析|判断|存在|是否|它|感知|视觉|技术|^请|参考"
)
_MULTIPLE = re.compile(r"\s+(?:and|&)\s+(?:the\s+)?|\s*,\s*(?:the\s+)?", re.IGNORECASE)


def plan_assessment(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Plan one question: the paper's rule table applied to what its words name. Returns the fields of `Plan`."""
    query = str(inputs.get("query", ""))
    known = [str(n) for n in inputs.get("region_names") or []]
    tools = named_tools(query, [str(n) for n in inputs.get("tool_names") or []])
    question = _without_options(query)
    is_iqa = not (_BEAUTY.search(question) and not _TECHNICAL.search(question))
    scope = named_regions(question, known)
    named = named_distortions(question) if is_iqa else []
    unboxed = [r for r in scope if r != GLOBAL and r.casefold() not in {k.casefold() for k in known}]
    plan = {
        "query_type": "IQA" if is_iqa else "Other",
        "query_scope": scope,
        "distortion_source": "explicit" if named else "inferred",
        "distortions": [{"region": region, "distortions": named} for region in scope] if named else [],
        "reference_mode": "Full-Reference" if inputs.get("has_reference") else "No-Reference",
        "required_tools": tools,
        **steps(
            is_iqa=is_iqa, names_distortions=bool(named), names_tools=bool(tools),
            is_measurable=len(unboxed) < len(scope),
        ),
    }  # fmt: skip
    return _after_feedback(plan, str(inputs.get("feedback") or ""), is_measurable=len(unboxed) < len(scope))


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
    words = re.findall(r"[\w-]+(?:\s+of\s+focus)?|[一-鿿]+", question.casefold())
    found = {category for word in words if not _is_generic(word) and (category := category_of(word)) is not None}
    if re.search(r"out of focus|in focus", question, re.IGNORECASE):
        found.add("Blurs")
    for part in re.findall(r"[一-鿿]+", question):
        found |= {category for piece in _pieces(part) if (category := category_of(piece)) is not None}
    return [c for c in DISTORTION_CATEGORIES if c in found]


def _is_generic(word: str) -> bool:
    # Matched by a category's letters, but naming no distortion.
    other = (
        r"clearly|broadcast|forecast|castle|delight\w*|highlight\w*|slight\w*|light(?:ly|er)?-?weight|"
        r"flight\w*|knowledge"
    )
    return re.fullmatch(other, word) is not None or is_chinese(word)


def _pieces(text: str) -> list[str]:
    return [text[i : i + 2] for i in range(max(1, len(text) - 1))]


def named_regions(question: str, known: Sequence[str] = ()) -> list[str]:
    """Return the objects or regions a question names, known ones first; `["Global"]` if none.

    >>> named_regions("How sharp is the face of the woman?", ["woman"])
    ['woman', 'face']
    """
    folded = question.casefold()
    found = [
        name
        for name in known
        if re.search(rf"(?<!\w){re.escape(name.casefold())}s?(?!\w)", folded) or (is_chinese(name) and name in question)
    ]
    candidates: list[str] = []
    for pattern in (_OBJECT, _POSSESSIVE, _LEADING, _PART):
        for match in pattern.finditer(question):
            candidates += _MULTIPLE.split(match[1])
    candidates += _joined(question)
    if is_chinese(question):
        candidates += [_CHINESE_NOISE.sub("", m) for m in _CHINESE_OBJECT.findall(question)]
    for candidate in candidates:
        name = _object_name(candidate)
        if name and name not in {f.casefold() for f in found} and not any(name in f.casefold() for f in found):
            found.append(name)
    if found:
        return list(dict.fromkeys(found))
    mentions_whole = any(word in _WHOLE for word in re.findall(r"\w+", folded)) or re.search(r"图|照片|画面", question)
    return list(known) if known and not mentions_whole else [GLOBAL]


def _joined(question: str) -> list[str]:
    """Find the second of "the X and the Y" after a preposition."""
    named = _OBJECT.search(question) or _LEADING.search(question)
    return re.findall(r"\band\s+the\s+([\w-]+)", question, re.IGNORECASE) if named else []


def _object_name(phrase: str) -> str:
    words = re.findall(r"[\w-]+", phrase.casefold())
    if not words:
        return ""
    if is_chinese(phrase):
        return "" if _CHINESE_NOT.search(phrase) or len(phrase) > 6 else phrase
    if any(word in _WHOLE for word in words):
        return ""
    while words and words[0] in _QUALIFIERS:
        words = words[1:]
    while words and words[-1] in _PLACES:
        words = words[:-1]
    return "" if any(word in _NOT_OBJECTS for word in words) else " ".join(words)


_FAMOUS = frozenset(
    (
        "psnr ssim msssim cwssim fsim fsimc vif vsi vifp gmsd msgmsd nlpd mad lpips stlpips dists pieapp ahiq ckdn "
        "wadiqam topiq topiqfr topiqnr niqe ilniqe brisque piqe pi nrqm nima dbcnn hyperiqa musiq maniqa tres clipiqa "
        "clipiqa+ clipscore liqe qalign unique arniqa paq2piq cnniqa compare2score deqa qualiclip maclip laionaes fid "
        "inceptionscore mdtvsfa vmaf uranker topiqnrface "
    ).split()
)
"""Names by which published tools are known, without spaces, hyphens and underscores: a user may ask for any of them."""
_TOOL_WORD = re.compile(
    r"\b(?i:use|using|via|run|apply|call|try|employ)\s+(?:the\s+)?"
    r"((?:[A-Za-z0-9]+[A-Z0-9_+-]*[A-Z][A-Za-z0-9_+-]*|\w+_tool|\w*(?:IQA|iqa)\w*)(?:(?:\s*,\s*|\s+and\s+|\s*&\s*)"
    r"[A-Za-z0-9]*[A-Z]{2}[A-Za-z0-9_+-]*)*)"
)
_TOOL_WITH = re.compile(r"\b(?i:with|by|through)\s+(?:the\s+)?(\w+_tool|\w*(?:IQA|iqa)\w*)\b")
_TOOL_BEFORE = re.compile(r"\b([A-Za-z0-9]*[A-Z]{2}[A-Za-z0-9_+-]*)\s+(?:tool|metric|model|score|工具|指标)\b")
_TOOL_CHINESE = re.compile(r"(?:用|使用|调用|采用|通过)\s*([A-Za-z][A-Za-z0-9_+-]{2,})")
_NO_TOOLS = frozenset("jpeg jpg png rgb hdr iqa mos ai vlm llm json gpt usa uk tv hd 4k iso dslr mcq srcc plcc".split())


def named_tools(query: str, ready: Sequence[str]) -> list[str]:
    """Return the tools that a query names: ready ones exactly as listed, others as the user wrote them.

    `MS_SSIM`, `ms-ssim tool` and `MS-SSIM` are one. A tool that is not listed is returned too, so that the program can
    say that it was not used.

    >>> named_tools("Rate it with vif and FancyIQA.", ["VIF", "PSNR"])
    ['VIF', 'FancyIQA']
    """
    text = _plain(query)
    words = re.findall(r"[A-Za-z0-9][A-Za-z0-9_+-]*", query)
    tokens = {form for word in words for form in (_plain(word), _plain(word.lower().removesuffix("_tool")))}
    named = [tool for tool in ready if _plain(tool) in tokens or (len(_plain(tool)) > 5 and _plain(tool) in text)]
    known = {_plain(tool) for tool in named}
    asked = [w for w in words if len(w) > 2 and _plain(w.lower().removesuffix("_tool")) in _FAMOUS and not w.islower()]
    for pattern in (_TOOL_WORD, _TOOL_WITH, _TOOL_BEFORE, _TOOL_CHINESE):
        for match in pattern.finditer(query):
            asked += re.split(r"\s*,\s*|\s+and\s+|\s*&\s*", match[1])
    for word in asked:
        plain = _plain(re.sub(r"_tool$", "", word, flags=re.IGNORECASE))
        if plain not in known and plain not in _NO_TOOLS and not any(plain in name for name in known):
            known.add(plain)
            named.append(re.sub(r"_tool$", "", word, flags=re.IGNORECASE))
    return named


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.casefold())


def choose_tools(inputs: Mapping[str, Any]) -> list[dict[str, str]]:
    """Pick for each region and distortion the listed tool of the best declared strength, then the best in general."""
    wanted = _json(inputs.get("distortion_set"))
    tools = [t for t in _json_list(inputs.get("tools")) if isinstance(t, dict) and t.get("name")]
    if not tools:
        return []
    chosen = []
    for region, distortions in (wanted or {GLOBAL: []}).items():
        for distortion in distortions or ["Overall"]:
            best = max(tools, key=lambda t: _merit(t, distortion))
            chosen.append({"region": str(region), "distortion": str(distortion), "tool": str(best["name"])})
    return chosen


def _merit(tool: Mapping[str, Any], distortion: str) -> tuple[float, float]:
    general = float(tool.get("general") or 0.0)
    strengths = tool.get("strengths") or {}
    strength = float(strengths.get(distortion, 0.0)) if isinstance(strengths, dict) else 0.0
    return (general, strength) if distortion == "Overall" else (strength, general)


def _json(text: Any) -> dict[str, Any]:
    value = parsed_json(text)
    return value if isinstance(value, dict) else {}


def _json_list(text: Any) -> list[Any]:
    value = parsed_json(text)
    return value if isinstance(value, list) else []


def parsed_json(text: Any) -> Any:
    """Return what JSON text holds, None for text that is none; anything but text is returned as it is."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None
