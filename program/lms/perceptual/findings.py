"""Distortions as findings: category, severity word, and a sentence that quotes the measurement and says where."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from program.lms.perceptual.regression import Matrix
from program.lms.perceptual.views import View
from signatures.schemas import CATEGORIES_CHINESE, GLOBAL, SEVERITIES_CHINESE, DistortionCategory, Severity

__all__ = ("PRESENT", "describe", "findings", "named", "present", "severity_word", "spread", "undetailed", "where")

PRESENT = 0.8
"""Severity from which a distortion is there: between imperceptible (0.1) and slightly annoying (1.1)."""
_LIMITS = np.array([0.9, 0.8, 0.9, 0.8, 0.8, 0.8, 0.4])
"""Severity from which each category (in their order) is reported; the detector of contrast hardly dares. Chosen by the
F1 on the quickstart's validation photographs, on its train photographs left out one by one, and on distorted CLIVE
validation images, none fitted on."""
_STEPS: tuple[tuple[float, Severity], ...] = ((0.45, "none"), (1.0, "slight"), (1.9, "moderate"), (2.8, "severe"))
_PLACES = (("upper left", "top", "upper right"), ("left", "centre", "right"), ("lower left", "bottom", "lower right"))
_EVERYWHERE = ("all over the image", "全图")
_NOTHING = 0.005
"""Highest mean of a cell (of a share, or in grey levels) that is called nothing."""
_PLACES_CHINESE = (("左上", "上方", "右上"), ("左侧", "中央", "右侧"), ("左下", "下方", "右下"))


def severity_word(severity: float) -> Severity:
    """Return none, slight, moderate, severe or extreme for a severity (4.6 minus the mean human score).

    >>> severity_word(0.2), severity_word(2.0)
    ('none', 'severe')
    """
    return next((word for bound, word in _STEPS if severity < bound), "extreme")


def named(severities: Matrix, grades: Matrix) -> NDArray[np.bool_]:
    """Say which of the seven categories (last axis) are reported: seen by a detector, and strong enough for a word."""
    return np.asarray((severities >= _LIMITS) & (grades >= _STEPS[0][0]))


def present(view: View) -> list[DistortionCategory]:
    """Return the categories that are there, strongest first."""
    found = named(np.array(list(view.severities.values())), np.array(list(view.grades.values())))
    shown = [category for category, there in zip(view.severities, found, strict=True) if there]
    return sorted(shown, key=lambda category: -view.severities[category])


def findings(
    view: View, region: str, asked: Sequence[DistortionCategory] | None, *, chinese: bool
) -> list[dict[str, str]]:
    """Return a finding per asked category, or per category present when none is asked after."""
    categories = list(asked) if asked is not None else present(view)
    return [
        {
            "region": region or GLOBAL, "type": category, "severity": severity_word(view.grades[category]),
            "explanation": describe(view, category, chinese=chinese),
        }
        for category in categories
    ]  # fmt: skip


def where(cells: Sequence[Sequence[float]], *, lowest: bool = False, chinese: bool = False) -> str:
    """Return the place of the strongest (or weakest) of 3 x 3 cells, or "everywhere" when they hardly differ."""
    values = np.array(cells, dtype=float)
    spread = float(values.std()) / (abs(float(values.mean())) + 1e-6)
    if spread < 0.08:
        return _EVERYWHERE[chinese]
    row, column = divmod(int(values.argmin() if lowest else values.argmax()), 3)
    place = (_PLACES_CHINESE if chinese else _PLACES)[row][column]
    return f"{place}最明显" if chinese else f"strongest at the {place}"


def spread(name: str, cells: Sequence[Sequence[float]], *, chinese: bool = False) -> str:
    """Say where in 3 x 3 cells a property is strongest, that it is even, or that there is none of it."""
    if np.max(cells) < _NOTHING:
        return f"没有{name}" if chinese else f"there is no {name}"
    place = where(cells, chinese=chinese)
    if chinese:
        return f"{name}各处相近" if place == _EVERYWHERE[True] else f"{name}{place}"
    return f"{name} is much the same {place}" if place == _EVERYWHERE[False] else f"{name} is {place}"


def undetailed(view: View, *, chinese: bool = False) -> str:
    """Say why nothing can be said of an image's sharpness, or return ""."""
    if view.unjudged is None:
        return ""
    if view.unjudged == "flat":
        return "图像没有可供判断清晰度的细节。" if chinese else "The image has no detail to judge sharpness by."
    width, height = view.size
    if chinese:
        return f"图像太小（{width}x{height}），无法判断清晰度。"
    return f"The image is too small ({width}x{height}) to judge its sharpness."


def _opening(name: str, severity: str) -> str:
    """Begin an English sentence on a distortion: "Noise is severe", "There is no noise to speak of"."""
    return f"There is no {name} to speak of" if severity == "none" else f"{name[0].upper()}{name[1:]} is {severity}"


def _chinese_opening(name: str, severity: Severity) -> str:
    return f"基本没有{name}" if severity == "none" else f"{name}程度{SEVERITIES_CHINESE[severity]}"


def describe(view: View, category: DistortionCategory, *, chinese: bool = False) -> str:
    """Say in one sentence what was measured for a category, and where."""
    if category in {"Blurs", "Sharpness"} and view.unjudged:
        return undetailed(view, chinese=chinese)
    severity = severity_word(view.grades[category])
    if view.difference is not None:
        return _against_reference(view, category, severity, chinese)
    told = _ALONE[category](view.measured.named, view.measured.maps, severity, chinese)
    return told if severity == "none" else f"{told[:-1]}{_usual(view, category, chinese)}{told[-1]}"


def _usual(view: View, category: DistortionCategory, chinese: bool) -> str:
    """Say how such a severity compares with natural photographs, which set some detectors off by themselves."""
    quantiles = view.model.quantiles.get(category)
    if not quantiles:
        return ""
    share = min(float(np.interp(view.severities[category], quantiles, np.linspace(0, 1, len(quantiles)))), 0.99)
    if chinese:
        return f"（强于 {share:.0%} 的自然照片）"
    return f" (more than in {share:.0%} of natural photographs)"


_Named = Mapping[str, float]
_Maps = Mapping[str, Sequence[Sequence[float]]]


def _blur(n: _Named, m: _Maps, severity: Severity, chinese: bool) -> str:
    place = where(m["detail"], lowest=True, chinese=chinese)
    if chinese:
        return (
            f"{_chinese_opening('模糊', severity)}：再模糊后仍保留 {n['reblur']:.0%} 的边缘变化，细节占比 "
            f"{n['detail_median']:.2f}，{place}。"
        )
    return (
        f"{_opening('blur', severity)}: a further blur keeps {n['reblur']:.0%} of the edge steps and fine detail "
        f"makes up {n['detail_median']:.2f} of the local contrast, {place}."
    )


def _noise(n: _Named, m: _Maps, severity: Severity, chinese: bool) -> str:
    place, level = where(m["noise"], chinese=chinese), float(np.expm1(n["noise_p20"]))
    if chinese:
        return f"{_chinese_opening('噪声', severity)}：平坦区域约 {level:.1f} 个灰度级，{place}。"
    return f"{_opening('noise', severity)}: about {level:.1f} grey levels in quiet areas, {place}."


def _compression(n: _Named, m: _Maps, severity: Severity, chinese: bool) -> str:
    place, ratio = where(m["blocking"], chinese=chinese), float(np.exp(n["blocking"]))
    if chinese:
        return f"{_chinese_opening('压缩失真', severity)}：8 像素块边界的跳变为块内的 {ratio:.2f} 倍，{place}。"
    return (
        f"{_opening('compression damage', severity)}: steps at 8-pixel block borders are {ratio:.2f} times "
        f"those inside, {place}."
    )


def _brightness(n: _Named, m: _Maps, severity: Severity, chinese: bool) -> str:
    dark = n["brightness"] < 0.45
    place = where(m["brightness"], lowest=dark, chinese=chinese)
    mean, black, white = 255 * n["brightness"], n["dark_share"], n["light_share"]
    if chinese:
        return (
            f"{_chinese_opening('亮度问题', severity)}：平均亮度 {mean:.0f}/255，{black:.0%} 接近全黑，{white:.0%} "
            f"接近全白，{place}。"
        )
    return (
        f"{_opening('brightness problem', severity)}: mean {mean:.0f} of 255, {black:.0%} of the "
        f"pixels near black and {white:.0%} near "
        f"white, {place}."
    )


def _colour(n: _Named, m: _Maps, severity: Severity, chinese: bool) -> str:
    place = spread("饱和度" if chinese else "saturation", m["saturation"], chinese=chinese)
    if chinese:
        return (
            f"{_chinese_opening('颜色失真', severity)}：饱和度 {n['saturation']:.2f}，色彩丰富度 "
            f"{n['colourfulness']:.2f}，偏色 {n['cast']:.2f}，{place}。"
        )
    return (
        f"{_opening('color distortion', severity)}: saturation {n['saturation']:.2f}, colourfulness "
        f"{n['colourfulness']:.2f}, cast "
        f"{n['cast']:.2f}; {place}."
    )


def _oversharp(n: _Named, m: _Maps, severity: Severity, chinese: bool) -> str:
    place, edges = where(m["sharpness"], chinese=chinese), float(np.expm1(n["edge1_p99"]))
    if chinese:
        return f"{_chinese_opening('过度锐化', severity)}：最强边缘每像素 {edges:.0f} 级，{place}。"
    return (
        f"{_opening('over-sharpening', severity)}: the strongest edges rise {edges:.0f} grey levels a pixel, {place}."
    )


def _contrast(n: _Named, m: _Maps, severity: Severity, chinese: bool) -> str:
    place = where(m["contrast"], lowest=True, chinese=chinese)
    if chinese:
        return (
            f"{_chinese_opening('对比度问题', severity)}：亮度跨度 {n['contrast_range']:.0%}，标准差 "
            f"{n['contrast_rms']:.2f}，{place}。"
        )
    return (
        f"{_opening('contrast problem', severity)}: brightness spans {n['contrast_range']:.0%} of the "
        "range with a deviation of "
        f"{n['contrast_rms']:.2f}, {place}."
    )


_ALONE: Mapping[DistortionCategory, Callable[[_Named, _Maps, Severity, bool], str]] = {
    "Blurs": _blur, "Noise": _noise, "Compression": _compression, "Brightness change": _brightness,
    "Color distortions": _colour, "Sharpness": _oversharp, "Contrast": _contrast,
}  # fmt: skip


def _against_reference(view: View, category: DistortionCategory, severity: Severity, chinese: bool) -> str:
    if view.difference is None:
        raise ValueError("a view without a reference has no difference; describe it alone")
    d, maps = view.difference.named, view.difference.maps
    gain = 4.343 * d["detail_gain"]
    facts: dict[DistortionCategory, tuple[str, str, str]] = {
        "Blurs": (f"fine detail changed by {gain:+.1f} dB", f"细节能量变化 {gain:+.1f} dB", "difference"),
        "Sharpness": (f"fine detail changed by {gain:+.1f} dB", f"细节能量变化 {gain:+.1f} dB", "difference"),
        "Noise": (
            f"{np.expm1(d['residual_quiet']):.1f} grey levels were added in quiet areas",
            f"平坦区域增加 {np.expm1(d['residual_quiet']):.1f} 个灰度级", "residual",
        ),
        "Compression": (
            f"block-border steps rose by {100 * np.expm1(max(d['blocking_rise'], 0)):.0f} % and "
            f"structure lost {d['structure_loss1']:.2f}",
            f"块边界跳变增加 {100 * np.expm1(max(d['blocking_rise'], 0)):.0f}%，"
            f"结构损失 {d['structure_loss1']:.2f}",
            "difference",
        ),
        "Brightness change": (
            f"mean brightness moved by {255 * d['brightness_shift']:+.0f} of 255",
            f"平均亮度变化 {255 * d['brightness_shift']:+.0f}/255", "shift",
        ),
        "Color distortions": (
            f"colour moved by {np.expm1(d['colour_shift']):.1f} on average",
            f"颜色平均偏移 {np.expm1(d['colour_shift']):.1f}", "colour",
        ),
        "Contrast": (
            f"contrast changed by a factor of {np.exp(d['contrast_change']):.2f}",
            f"对比度变为 {np.exp(d['contrast_change']):.2f} 倍", "difference",
        ),
    }  # fmt: skip
    english, native, key = facts[category]
    cells = [[abs(v) for v in row] for row in maps[key]]
    if chinese:
        opening = _chinese_opening(CATEGORIES_CHINESE[category], severity)
        return f"与参考图相比，{opening}：{native}，{where(cells, chinese=True)}。"
    opening = _opening(_NAMES[category], severity)
    return f"Against the reference, {opening[0].lower()}{opening[1:]}: {english}, {where(cells)}."


_NAMES: Mapping[DistortionCategory, str] = {
    "Blurs": "blur", "Color distortions": "color distortion", "Compression": "compression damage", "Noise": "noise",
    "Brightness change": "brightness change", "Sharpness": "over-sharpening", "Contrast": "contrast change",
}  # fmt: skip
