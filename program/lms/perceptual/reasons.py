"""Why the expert answers as it does, in sentences: what was measured, how strong, where, and how sure that makes it."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from program.lms.perceptual.amounts import FAULTS, Look, amount, support
from program.lms.perceptual.asked import unseen
from program.lms.perceptual.findings import PRESENT, describe, present, severity_word, spread, undetailed, where
from program.lms.perceptual.places import place_name
from program.lms.perceptual.quality import Belief
from program.lms.perceptual.questions import GRIDS, Choice, asked_of, predicate
from program.lms.perceptual.scales import asked_property
from program.lms.perceptual.views import View
from program.lms.perceptual.wording import Said, terms_in, topic_in
from signatures.schemas import LEVEL_WORDS, SEVERITIES_CHINESE, DistortionCategory

__all__ = ("chosen", "direct_answer", "fact", "grounds", "level_word", "region_told", "summary")

_AXES: Mapping[str, tuple[str, str]] = {
    "sharpness": ("sharpness", "清晰度"),
    "brightness": ("brightness", "亮度"), "lighting": ("lighting", "光照"),
    "exposure": ("exposure", "曝光"), "colour": ("colourfulness", "色彩丰富度"), "saturation": ("saturation", "饱和度"),
    "contrast": ("contrast", "对比度"),
    "quality": ("overall quality", "整体质量"), "fidelity": ("naturalness", "自然度"),
    "noise": ("noise", "噪声"), "compression": ("compression damage", "压缩失真"), "cast": ("colour error", "颜色失真"),
    "oversaturation": ("over-saturation", "过饱和"), "oversharp": ("over-sharpening", "过度锐化"),
    "overexposure": ("overexposure", "过曝"),
    "underexposure": ("underexposure", "曝光不足"),
    "brightness fault": ("the brightness problem", "亮度问题"),
    "contrast fault": ("the contrast problem", "对比度问题"),
    "motion": ("motion blur", "运动模糊"), "defocus": ("focus blur", "失焦模糊"), "distortion": ("distortion", "失真"),
    "uneven": ("unevenness of the light", "光照不均"), "warmth": ("warmth of the colours", "色调冷暖"),
    "colour tone": ("the colour tone", "色调"),
}  # fmt: skip
_GRID: Mapping[str, tuple[str, str, str]] = {
    "sharpness": ("detail", "detail", "细节"), "brightness": ("brightness", "light", "亮度"),
    "lighting": ("brightness", "light", "亮度"), "exposure": ("brightness", "light", "亮度"),
    "colour": ("saturation", "saturation", "饱和度"), "saturation": ("saturation", "saturation", "饱和度"),
    "contrast": ("contrast", "local contrast", "局部对比"),
}  # fmt: skip

_DETAIL = frozenset({"sharpness", "motion", "defocus", "oversharp"})


def fact(look: Look, axis: str, *, chinese: bool) -> str:
    """Say in one sentence what was measured for an axis, how it compares and where it is strongest."""
    view = look.view
    if axis in _DETAIL and view.unjudged:
        return undetailed(view, chinese=chinese)
    if axis == "colour tone":
        return _tone(view, chinese=chinese)
    if axis in {"overexposure", "underexposure", "exposure", "lighting"}:
        return _light(look, chinese=chinese)
    if axis in FAULTS and axis != "uneven":
        category = FAULTS[axis].category
        if axis == "distortion":
            category = max(look.severities, key=lambda c: look.severities[c])
        if look.severities[category] > view.severities[category] and severity_word(view.grades[category]) == "none":
            # The analysis found it in a region; the whole image does not show it.
            return "在部分区域检测到失真。" if chinese else "The analysis found it in a part of the image."
        return describe(view, category, chinese=chinese) + _direction(look, axis, chinese=chinese)
    name, share = _AXES.get(axis, (axis, axis))[chinese], look.position(axis)
    more = share >= 0.5
    key, english, native = _GRID.get(axis, ("", "", ""))
    if chinese:
        place = f"，{spread(native, view.measured.maps[key], chinese=True)}" if key and not look.cells else ""
        return f"{name}{'高' if more else '低'}于 {share if more else 1 - share:.0%} 的自然照片{place}。"
    place = f"; {spread(english, view.measured.maps[key])}" if key and not look.cells else ""
    beside = f"{'higher' if more else 'lower'} than in {share if more else 1 - share:.0%} of natural photographs"
    return f"{name[0].upper()}{name[1:]} is {beside}{place}."


def _light(look: Look, *, chinese: bool) -> str:
    n, share = look.view.measured.named, look.position("brightness")
    mean, dark, light = 255 * n["brightness"], n["dark_share"], n["light_share"]
    more = share >= 0.5
    beside = f"{share if more else 1 - share:.0%}"
    if chinese:
        told = f"平均亮度 {mean:.0f}/255，比 {beside} 的自然照片更{'亮' if more else '暗'}"
        return f"{told}；{dark:.0%} 接近全黑，{light:.0%} 接近全白。"
    return (
        f"The mean is {mean:.0f} of 255, {'brighter' if more else 'darker'} than {beside} of natural photographs; "
        f"{dark:.0%} of the pixels are near black and {light:.0%} near white."
    )


def _direction(look: Look, axis: str, *, chinese: bool) -> str:
    if axis not in {"motion", "defocus"} or support(look, Said("sharpness", 0.15)) < 0:
        return ""
    one_way = look.position("direction") > FAULTS["motion"].seen_from
    if chinese:
        return "模糊有明显方向，像是运动所致。" if one_way else "模糊没有明显方向，像是失焦所致。"
    if one_way:
        return " It runs in one direction, as motion leaves it."
    return " It has no direction, as missed focus leaves it."


def _tone(view: View, *, chinese: bool) -> str:
    n = view.measured.named
    red, yellow = 100 * n["cast_red_green"], 100 * n["cast_yellow_blue"]
    if chinese:
        return f"平均颜色：红减绿 {red:+.0f}，黄减蓝 {yellow:+.0f}。"
    return f"On average the pixels lean {red:+.0f} from green to red and {yellow:+.0f} from blue to yellow."


def chosen(
    look: Look, letter: str, choice: Choice, options: Mapping[str, str], query: str, *, chinese: bool, voted: bool
) -> str:
    """Say which option was chosen, how sure that is, and the reading that decided it."""
    text = options.get(letter, "")
    if voted:
        return (
            f"选择 {letter}（{text}）：与示例中相近图像的答案一致。"
            if chinese
            else f"{letter} ({text}): the answer that the demonstrations give for images like this one."
        )
    axis = choice.topic if choice.topic != "distortion" else _claimed(text)
    blind = undetailed(look.view, chinese=chinese) if axis in _DETAIL else ""
    if blind or not choice.measured:
        guess = "此选项只是先验猜测，可信度低。" if chinese else "This is a guess from the prior, with low confidence."
        return f"{blind or unseen(query)}{'' if chinese else ' '}{guess}"
    sure = _sureness(choice, letter, options, chinese=chinese)
    told = fact(look, axis, chinese=chinese)
    if axis == "sharpness" and look.view.severities["Blurs"] >= PRESENT:
        told += ("" if chinese else " ") + describe(look.view, "Blurs", chinese=chinese)
    lead = f"选择 {letter}（{text}），{sure}：" if chinese else f"{letter} ({text}), {sure}: "
    return f"{lead}{told}{_about_place(look, query, chinese=chinese)}"


def _claimed(text: str) -> str:
    said = terms_in(text)
    if said:
        return said[0].axis
    topic = topic_in(text)
    return topic.axis if topic is not None else "distortion"


def _sureness(choice: Choice, letter: str, options: Mapping[str, str], *, chinese: bool) -> str:
    share = choice.probabilities.get(letter, 0.0)
    others = {other: p for other, p in choice.probabilities.items() if other != letter}
    second = max(others, key=lambda other: others[other], default="")
    if share >= 0.75:
        return "把握较大" if chinese else "with confidence"
    if share >= 0.55 or not second:
        return "较有可能" if chinese else "probably"
    rival = f"{second} ({options.get(second, '')})"
    return f"把握不大，{rival} 也有可能" if chinese else f"a close call with {rival}"


def _about_place(look: Look, query: str, *, chinese: bool) -> str:
    if not look.cells:
        return ""
    place = place_name(query)
    if chinese:
        return f"“{place}”按九宫格中的相应部分测量。"
    return f' "{place}" was measured as a part of a 3 x 3 grid.'


def direct_answer(look: Look, query: str, *, chinese: bool) -> str:
    """Answer an open question about a property in its own terms, or return "" when it asks for none."""
    text = asked_of(query, {}).text
    gap = "" if chinese else " "
    if _asks_yes_or_no(text):
        said = predicate(text)
        if not said or said[-1].axis == "taste":
            return ""
        if said[-1].axis in _DETAIL and look.view.unjudged:
            return undetailed(look.view, chinese=chinese)
        odds = min(support(look, one) for one in said)
        return f"{_yes(odds, chinese=chinese)}{gap}{fact(look, said[-1].axis, chinese=chinese)}"
    asked = asked_property(text)
    if asked is None or asked.axis in {"quality", "distortion", "taste"}:
        return ""
    if asked.axis in _DETAIL and look.view.unjudged:
        return undetailed(look.view, chinese=chinese)
    if re.search(r"\bwhere\b|\bwh(?:ich|at) (?:part|area|region|place|side)|哪", text):
        return _placed(look, asked, chinese=chinese)
    return f"{_graded(look, asked, chinese=chinese)}{gap}{fact(look, asked.axis, chinese=chinese)}"


def _placed(look: Look, asked: Said, *, chinese: bool) -> str:
    if asked.axis not in GRIDS:
        return fact(look, asked.axis, chinese=chinese)
    key, high = GRIDS[asked.axis]
    lowest = not high if asked.axis in FAULTS else high != asked.more
    place = where(look.view.measured.maps[key], lowest=lowest, chinese=chinese)
    return f"{place}。" if chinese else f"It is {place}."


def _asks_yes_or_no(text: str) -> bool:
    first = text.lstrip("\"' ").split(" ")[0]
    words = {
        "is",
        "are",
        "was",
        "were",
        "does",
        "do",
        "did",
        "has",
        "have",
        "can",
        "isn't",
        "aren't",
        "doesn't",
        "don't",
    }
    return first in words or "吗" in text or "是否" in text or "有没有" in text


def _yes(odds: float, *, chinese: bool) -> str:
    sure = abs(odds) >= 2
    if chinese:
        return f"{'' if sure else '很可能'}{'是' if odds >= 0 else '否'}。"
    if sure:
        return "Yes." if odds >= 0 else "No."
    return "Probably yes." if odds >= 0 else "Probably not."


def _graded(look: Look, asked: Said, *, chinese: bool) -> str:
    name, share = _AXES.get(asked.axis, (asked.axis, asked.axis))[chinese], amount(look, asked.axis)
    if asked.axis in {"lighting", "exposure", "overexposure", "underexposure"}:
        step = int(np.digitize(amount(look, "exposure"), (0.25, 0.4, 0.6, 0.75)))
        if chinese:
            return f"曝光{('不足', '偏暗', '正常', '偏亮', '过度')[step]}。"
        return f"The exposure is {('too dark', 'rather dark', 'about right', 'rather bright', 'too bright')[step]}."
    if asked.axis in FAULTS:
        category = FAULTS[asked.axis].category
        own = look.severities[category]
        word = severity_word(look.view.grades[category] if own == look.view.severities[category] else own)
        return (
            f"{name}程度：{SEVERITIES_CHINESE[word]}。"
            if chinese
            else f"There is {'no' if word == 'none' else word} {name}."
        )
    step = int(np.clip(share * 5, 0, 4))
    if chinese:
        return f"{name}{('很低', '较低', '中等', '较高', '很高')[step]}。"
    return f"The {name} is {('very low', 'low', 'average', 'high', 'very high')[step]}."


def summary(
    view: View,
    scores: Sequence[tuple[str, float]],
    *,
    chinese: bool,
    limit: int,
    first: Sequence[DistortionCategory] = (),
    besides: str = "",
) -> str:
    """Name the strongest distortions with their readings, or say that there is none; then the tools.

    What `besides` says already is not said again.
    """
    shown = list(dict.fromkeys([*first, *present(view)]))[:limit]
    if shown:
        told = [describe(view, category, chinese=chinese) for category in shown]
    else:
        worst = max(view.severities, key=lambda category: view.severities[category])
        plain = "未测到明显失真。" if chinese else "No distortion stands out."
        if severity_word(view.grades[worst]) != "none":
            plain = describe(view, worst, chinese=chinese)
        elif view.unjudged:
            plain = undetailed(view, chinese=chinese)
        told = [plain, *_weakest(view, chinese=chinese)]
    if view.unjudged:
        told.insert(0, undetailed(view, chinese=chinese))
    if scores:
        listed = ", ".join(f"{tool} {score:.2f}" for tool, score in scores)
        told.append(f"工具评分（1-5）：{listed}。" if chinese else f"Tool scores on 1 to 5: {listed}.")
    return ("" if chinese else " ").join(one for one in dict.fromkeys(told) if one not in besides)


def region_told(region: str, view: View, *, chinese: bool) -> str:
    """Say what stands out in one region, cut out and measured by itself."""
    found = present(view)[:1]
    plain = "未测到明显失真。" if chinese else "no distortion stands out."
    told = describe(view, found[0], chinese=chinese) if found else plain
    return f"区域“{region}”：{told}" if chinese else f'Region "{region}": {told[0].lower()}{told[1:]}'


def _weakest(view: View, *, chinese: bool) -> list[str]:
    """Name the property that stands lowest among natural photographs, if it stands low: it is what to mend first."""
    look = Look(view, view.severities)
    lowest = min(("sharpness", "lighting", "colour", "contrast"), key=look.position)
    return [fact(look, lowest, chinese=chinese)] if look.position(lowest) < 0.35 and not look.paired else []


def grounds(view: View, belief: Belief, *, chinese: bool) -> str:
    """State the believed score with its width, and how familiar such images are."""
    unlike = belief.novelty > 0.5
    if chinese:
        kind = "与参考图的差异" if view.difference is not None else "图像自身的统计特征"
        text = f"根据{kind}估计为 {belief.mean:.1f} ± {belief.deviation:.1f}"
        return text + ("，与训练图像差别较大，范围因此放宽。" if unlike else "。")
    basis = "the differences from the reference" if view.difference is not None else "the image's own statistics"
    text = f"From {basis} the score is {belief.mean:.1f} give or take {belief.deviation:.1f}"
    return text + (", widened because the image is unlike those it was fitted on." if unlike else ".")


def level_word(mean: float, *, chinese: bool) -> str:
    """Return the word of the level nearest to a score on 1..5."""
    level = int(np.clip(np.floor(mean + 0.5), 1, 5))
    return ("很差", "较差", "一般", "良好", "优秀")[level - 1] if chinese else LEVEL_WORDS[level - 1]
