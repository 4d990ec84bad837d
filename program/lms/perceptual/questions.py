"""Multiple choice by matching what options say to what was measured. Generic rules; English and Chinese.

Three kinds of options are understood: yes or no, names of distortions, and words on a scale (strong .. weak, good ..
poor, dark .. bright). What is left is about content the expert cannot see: the answer is then a guess and says so.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from program.lms.perceptual.findings import PRESENT, severity_word
from program.lms.perceptual.views import View
from signatures.schemas import DistortionCategory, category_of

__all__ = ("Choice", "answer_choice", "topic_of")


@dataclass(frozen=True, slots=True)
class Choice:
    """An option's letter, the category or property it was decided on, and whether it was measured at all."""

    letter: str
    topic: str
    measured: bool


_YES = re.compile(r"^(?:yes|yeah|true|correct|是|是的|有|存在|对)\b|^(?:是|有|存在|对)", re.IGNORECASE)
_NO = re.compile(r"^(?:no|nope|false|incorrect|not really)\b|^(?:否|不|没有|无)", re.IGNORECASE)
_NOTHING = re.compile(
    r"^(?:none|nothing|no\b.*(?:distortion|problem|issue|artifact)|undistorted|no visible.*)|"
    r"^(?:无失真|无明显|没有.*(?:失真|问题))",
    re.IGNORECASE,
)

# A question after a virtue ("clear?") is answered yes where the fault is absent; one after a fault where it is present.
_VIRTUE = re.compile(
    r"\b(?:clear|sharp|crisp|in focus|well[- ](?:focused|exposed|lit)|focused|good|high|rich|"
    r"vivid|vibrant|colou?rful|bright|"
    r"natural|clean|smooth|detailed|sufficient|adequate|appropriate|proper|normal|balanced|"
    r"accurate|excellent|acceptable|fine|visible details)\b"
    r"|清晰|清楚|鲜艳|丰富|明亮|自然|良好|充足|正常|合适|准确",
    re.IGNORECASE,
)
_FAULT = re.compile(
    r"\b(?:blur\w*|out of focus|defocus\w*|unclear|noise|noisy|grain\w*|dark|dim|over-?exposed|"
    r"overexposure|under-?exposed|underexposure|"
    r"over-?sharpen\w*|compress\w*|artifacts?|artefacts?|block\w*|distort\w*|too\s+\w+|lack\w*|insufficient|poor|low|bad|dull|faded|wrong|problem|"
    r"issue|degrad\w*|haz[ey]|foggy|shak\w+|flare|jagged|aliasing|washed|unnatural|cast)\b"
    r"|模糊|不清|失焦|噪|过暗|太暗|过亮|太亮|过曝|欠曝|压缩|失真|偏色|不足|缺乏|问题|太|过度",
    re.IGNORECASE,
)

_TOPICS: tuple[tuple[str, str], ...] = (
    ("too bright", r"over-?expos|too bright|过曝|过亮|太亮"),
    ("too dark", r"under-?expos|too dark|\bdim\b|欠曝|过暗|太暗"),
    ("oversharp", r"over-?sharpen|过度锐化|锐化过"),
    ("blur", r"blur|focus|shak|smear|ghost|模糊|对焦|失焦"),
    ("noise", r"nois|grain|speckle|噪"),
    ("compression", r"compress|jpeg|block|artifact|artefact|ringing|压缩|块"),
    ("contrast", r"contrast|haz[ey]|fog|对比|雾"),
    ("brightness", r"bright|dark|\blit\b|light|lumin|illumin|expos|亮|暗|曝光|光"),
    ("colour", r"colou?rful|saturat|vivid|vibran|rich.*colou?r|colou?rs?\b.*(?:rich|vivid)|饱和|鲜艳|色彩"),
    ("cast", r"colou?r|hue|tint|white balance|tone|色"),
    ("sharpness", r"sharp|clear|clarity|detail|texture|edge|crisp|definition|fidelity|清晰|清楚|锐|细节|纹理"),
    ("quality", r"quality|overall|impression|look|photo|image|picture|质量|画质"),
)
_CATEGORY_OF_TOPIC: Mapping[str, DistortionCategory] = {
    "blur": "Blurs", "noise": "Noise", "compression": "Compression", "contrast": "Contrast",
    "brightness": "Brightness change",
    "cast": "Color distortions", "oversharp": "Sharpness", "colour": "Color distortions",
    "too bright": "Brightness change",
    "too dark": "Brightness change", "sharpness": "Blurs",
}  # fmt: skip
# Words on a scale, as amount: 0 none/low .. 1 extreme/high. The longest match in an option counts.
_AMOUNTS: Mapping[str, float] = {
    "not at all": 0.0, "none": 0.0, "no": 0.02, "absent": 0.0, "invisible": 0.0, "imperceptible": 0.0, "never": 0.0,
    "slight": 0.25, "slightly": 0.25, "mild": 0.25, "minor": 0.25, "weak": 0.2, "little": 0.2, "low": 0.15,
    "light": 0.25,
    "subtle": 0.25, "few": 0.25, "small": 0.2, "somewhat": 0.4, "medium": 0.5, "moderate": 0.5, "moderately": 0.5,
    "average": 0.5,
    "fair": 0.5, "normal": 0.5, "acceptable": 0.5, "ordinary": 0.5, "general": 0.5, "so-so": 0.5, "okay": 0.5,
    "noticeable": 0.6,
    "strong": 0.85, "high": 0.85, "severe": 0.75, "severely": 0.8, "serious": 0.8, "seriously": 0.8, "heavy": 0.8,
    "obvious": 0.8,
    "large": 0.8, "much": 0.8, "very": 0.85, "extreme": 1.0, "extremely": 1.0, "very severe": 1.0, "very strong": 1.0,
    "无": 0.0, "没有": 0.0, "轻微": 0.25, "弱": 0.2, "低": 0.15, "一般": 0.5, "中等": 0.5, "中": 0.5, "强": 0.85,
    "高": 0.85, "严重": 0.75,
    "极其严重": 1.0, "非常严重": 1.0,
}  # fmt: skip
# Words of merit: 0 worst .. 1 best, for sharpness, brightness, colour, contrast and quality alike.
_MERITS: Mapping[str, float] = {
    "bad": 0.05, "very bad": 0.0, "terrible": 0.0, "awful": 0.0, "poor": 0.15, "very poor": 0.05, "blurry": 0.1,
    "very blurry": 0.0, "blurred": 0.1,
    "unclear": 0.15, "fuzzy": 0.1, "dull": 0.15, "dark": 0.1, "very dark": 0.0, "too dark": 0.0, "dim": 0.2,
    "faded": 0.15, "insufficient": 0.15, "monotonous": 0.1,
    "grainy": 0.15, "noisy": 0.15, "low": 0.15, "weak": 0.15, "underexposed": 0.05, "fair": 0.5, "average": 0.5,
    "medium": 0.5, "moderate": 0.5,
    "normal": 0.55, "acceptable": 0.5, "ordinary": 0.5, "general": 0.5, "balanced": 0.55, "good": 0.8,
    "clear": 0.85, "sharp": 0.9,
    "very clear": 1.0, "very sharp": 1.0, "rich": 0.85, "vivid": 0.9, "vibrant": 0.9, "colorful": 0.85,
    "bright": 0.9, "very bright": 1.0, "too bright": 1.0,
    "overexposed": 1.0, "sufficient": 0.8, "high": 0.85, "strong": 0.85, "excellent": 1.0, "great": 0.95,
    "perfect": 1.0, "crisp": 0.95, "clean": 0.9,
    "差": 0.1, "较差": 0.2, "很差": 0.0, "模糊": 0.1, "暗": 0.1, "昏暗": 0.1, "一般": 0.5, "中等": 0.5,
    "正常": 0.55, "好": 0.85, "良好": 0.8, "较好": 0.75, "清晰": 0.9,
    "亮": 0.9, "明亮": 0.9, "鲜艳": 0.9, "丰富": 0.85, "优秀": 1.0, "低": 0.15, "高": 0.85,
}  # fmt: skip
_FAULT_TOPICS = frozenset({"blur", "noise", "compression", "oversharp", "too bright", "too dark", "cast", "problem"})
_SEVERITY_VALUES = {"none": 0.1, "slight": 0.8, "moderate": 1.5, "severe": 2.3, "extreme": 3.1}
_COLOURS: Mapping[str, tuple[float, float, float]] = {
    "red": (0.6, 0.3, 0.4), "orange": (0.4, 0.6, 0.5), "yellow": (0.1, 0.6, 0.65), "green": (-0.35, 0.2, 0.4),
    "blue": (-0.15, -0.4, 0.4),
    "purple": (0.3, -0.35, 0.4), "brown": (0.2, 0.25, 0.3), "gray": (0.0, 0.0, 0.45), "grey": (0.0, 0.0, 0.45),
    "white": (0.0, 0.0, 0.85),
    "black": (0.0, 0.0, 0.1), "红": (0.6, 0.3, 0.4), "黄": (0.1, 0.6, 0.65), "绿": (-0.35, 0.2, 0.4),
    "蓝": (-0.15, -0.4, 0.4),
    "灰": (0.0, 0.0, 0.45), "白": (0.0, 0.0, 0.85), "黑": (0.0, 0.0, 0.1),
}  # fmt: skip


def topic_of(query: str) -> str:
    """Return the property a question is about ("blur", "brightness", "quality" ...), or "" for none.

    >>> topic_of("How is the motion blur of the humans?"), topic_of("What is the man holding?")
    ('blur', '')
    """
    folded = query.casefold()
    return next((topic for topic, pattern in _TOPICS if re.search(pattern, folded)), "")


def answer_choice(
    view: View, query: str, options: Mapping[str, str], evidence: Mapping[str, str], scores: Sequence[float]
) -> Choice:
    """Choose an option letter from measurements; `evidence` (category -> severity word) and tool scores count too."""
    severities = _with_evidence(view, evidence)
    texts = {letter: " ".join(text.casefold().strip(" .。").split()) for letter, text in options.items()}
    yes = [letter for letter, text in texts.items() if _YES.match(text)]
    no = [letter for letter, text in texts.items() if _NO.match(text) and not _NOTHING.match(text)]
    if len(yes) == 1 and len(no) == 1:
        return _yes_or_no(view, query, yes[0], no[0], severities, scores)
    graded = _graded(view, query, texts, severities, scores)
    if graded is not None:
        return graded
    named = {letter: category_of(text) for letter, text in texts.items() if not _NOTHING.match(text)}
    if sum(category is not None for category in named.values()) >= 2:
        return _which(view, texts, named, severities)
    coloured = {letter: rgb for letter, text in texts.items() for word, rgb in _COLOURS.items() if word in text}
    if len(coloured) >= 2:
        return Choice(_nearest_colour(view, coloured), "colour tone", True)
    return Choice(next(iter(texts)), "content", False)


def _with_evidence(view: View, evidence: Mapping[str, str]) -> dict[DistortionCategory, float]:
    """Average the own severities with the ones given, where a category was judged by someone else too."""
    own = dict(view.severities)
    for name, word in evidence.items():
        category = category_of(name)
        if category is not None and word in _SEVERITY_VALUES and word != severity_word(own[category]):
            own[category] = 0.5 * (own[category] + _SEVERITY_VALUES[word])
    return own


def _yes_or_no(
    view: View, query: str, yes: str, no: str, severities: Mapping[DistortionCategory, float], scores: Sequence[float]
) -> Choice:
    topic = topic_of(query)
    folded = query.casefold()
    if not topic:
        return Choice(yes, "content", False)
    fault = _FAULT.search(folded) is not None
    if topic in {"too bright", "too dark"}:
        return Choice(yes if _exposed(view, severities, bright=topic == "too bright") else no, topic, True)
    if topic == "brightness" and not fault:
        return Choice(yes if view.measured.named["brightness"] > 0.42 else no, topic, True)
    if topic == "brightness" and re.search(r"dark|dim|暗", folded):
        return Choice(yes if view.measured.named["brightness"] < 0.33 else no, topic, True)
    if fault and not _negated_virtue(folded):
        problem = _problem(view, topic, severities, scores)
        return Choice(yes if problem >= 0.5 else no, topic, True)
    virtue = _virtue(view, topic, severities, scores)
    return Choice(yes if virtue >= 0.5 else no, topic, True)


def _negated_virtue(folded: str) -> bool:
    return re.search(r"\b(?:free of|without|no)\b|没有", folded) is not None and _VIRTUE.search(folded) is not None


def _exposed(view: View, severities: Mapping[DistortionCategory, float], *, bright: bool) -> bool:
    n = view.measured.named
    shift = view.difference.named["brightness_shift"] if view.difference else 0.0
    if view.difference is not None:
        return (shift > 0.04) if bright else (shift < -0.04)
    if bright:
        return (
            n["light_share"] > 0.22
            or n["brightness"] > 0.66
            or (severities["Brightness change"] > 0.9 and n["brightness"] > 0.52)
        )
    return (
        n["dark_share"] > 0.5
        or n["brightness"] < 0.25
        or (severities["Brightness change"] > 0.9 and n["brightness"] < 0.36)
    )


def _problem(view: View, topic: str, severities: Mapping[DistortionCategory, float], scores: Sequence[float]) -> float:
    """Return how likely a fault is there: 0.5 at the severity from which distortions are reported."""
    if topic == "quality":
        worst = max(severities.values())
        return float(np.clip(0.5 + 0.35 * (worst - 1.0) + 0.2 * (3.2 - _quality(view, scores)), 0, 1))
    severity = severities[_CATEGORY_OF_TOPIC[topic]]
    return float(np.clip(0.5 + 0.4 * (severity - PRESENT), 0, 1))


def _virtue(view: View, topic: str, severities: Mapping[DistortionCategory, float], scores: Sequence[float]) -> float:
    """Return a merit 0..1 of a property; 0.5 is what half of natural photographs have."""
    n = view.measured.named
    if topic == "quality":
        return float(np.clip((_quality(view, scores) - 1) / 4 - 0.02, 0, 1))
    if topic == "brightness":
        return float(np.clip((n["brightness"] - 0.15) / 0.6, 0, 1))
    if topic == "colour":
        return float(np.clip(n["colourfulness"] / 0.8, 0, 1))
    if topic == "contrast":
        return float(np.clip(0.5 + (n["contrast_rms"] - 0.22) * 4, 0, 1))
    fault = severities[_CATEGORY_OF_TOPIC.get(topic, "Blurs")]
    fault_share = _share(view, _CATEGORY_OF_TOPIC.get(topic, "Blurs"), fault)
    if topic in {"sharpness", "blur"}:
        return float(np.clip(0.5 * (1 - fault_share) + 0.5 * (_quality(view, scores) - 1) / 4, 0, 1))
    return 1 - fault_share


def _share(view: View, category: DistortionCategory, severity: float) -> float:
    """Return the share of natural photographs with less of a distortion; against a reference, the severity over 4."""
    quantiles = view.model.quantiles.get(category)
    if not quantiles:
        return min(severity / 3.2, 1.0)
    return float(
        np.interp(
            severity,
            np.maximum.accumulate(quantiles) + 1e-6 * np.arange(len(quantiles)),
            np.linspace(0, 1, len(quantiles)),
        )
    )


def _quality(view: View, scores: Sequence[float]) -> float:
    own = view.prior.mean
    return 0.5 * (own + float(np.mean(scores))) if scores else own


def _graded(
    view: View,
    query: str,
    texts: Mapping[str, str],
    severities: Mapping[DistortionCategory, float],
    scores: Sequence[float],
) -> Choice | None:
    """Choose among words on one scale: the option whose place on it is nearest to the measured amount or merit."""
    topic = topic_of(query) or topic_of(" ".join(texts.values()))
    for table, amount in ((_AMOUNTS, True), (_MERITS, False)):
        placed = {letter: _placed(text, table) for letter, text in texts.items()}
        values = [value for value in placed.values() if value is not None]
        if len(values) < len(texts) or len(set(values)) < 2:
            continue
        if amount and topic not in _FAULT_TOPICS and not (_FAULT.search(query.casefold())):
            measured = _virtue(view, topic or "quality", severities, scores)
        elif amount:
            category = _CATEGORY_OF_TOPIC.get(topic)
            severity = severities[category] if category else max(severities.values())
            measured = _amount(severity)
        else:
            measured = _virtue(view, topic or "quality", severities, scores)
        # Ends of the list stand for everything beyond them.
        measured = float(np.clip(measured, min(values), max(values)))
        best = min(placed, key=lambda letter: abs((placed[letter] or 0.0) - measured))
        return Choice(best, topic or "quality", True)
    return None


def _amount(severity: float) -> float:
    """Place a severity on the scale of amounts: none 0, slight 0.25, moderate 0.5, severe 0.75, extreme 1."""
    return float(np.interp(severity, [0.1, 0.72, 1.45, 2.3, 3.1], [0.0, 0.25, 0.5, 0.75, 1.0]))


def _placed(text: str, table: Mapping[str, float]) -> float | None:
    found = [
        word
        for word in table
        if re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) or (word in text and not word.isascii())
    ]
    return table[max(found, key=len)] if found else None


def _which(
    view: View,
    texts: Mapping[str, str],
    named: Mapping[str, DistortionCategory | None],
    severities: Mapping[DistortionCategory, float],
) -> Choice:
    """Choose the option whose distortion is strongest; "no distortion" when none is reported."""
    strength: dict[str, float] = {}
    n = view.measured.named
    for letter, text in texts.items():
        category = named.get(letter)
        if category is None:
            strength[letter] = PRESENT if _NOTHING.match(text) else 0.05
            continue
        value = severities[category]
        if re.search(r"over-?expos|bright|过曝|过亮", text):
            value = value + 1.5 * n["light_share"] if n["brightness"] > 0.5 else 0.3 * value
        elif re.search(r"under-?expos|dark|low light|insufficient light|欠曝|过暗", text):
            value = value + 1.5 * n["dark_share"] if n["brightness"] <= 0.5 else 0.3 * value
        elif re.search(r"motion", text):
            value = value * (0.7 + 0.8 * min(n["spectrum_direction"], 1.0))
        strength[letter] = value
    return Choice(max(strength, key=lambda letter: strength[letter]), "distortion", True)


def _nearest_colour(view: View, coloured: Mapping[str, tuple[float, float, float]]) -> str:
    n = view.measured.named
    own = np.array([n["cast_red_green"], n["cast_yellow_blue"], n["brightness"]]) * np.array([2.5, 2.5, 1.0])
    return min(coloured, key=lambda letter: float(np.linalg.norm(own - np.array(coloured[letter]))))
