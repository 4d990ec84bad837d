"""Types that cross the boundary to a language model: what it may answer, checked and normalised.

Lists of small objects instead of nested dicts: strict JSON schemas turn a nested dict into `{}`.
Validators accept the paper's looser words (mild, heavy, "Explict") and store one form.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import core_schema

GLOBAL = "Global"
"""The region name that stands for the whole image."""

DistortionCategory = Literal[
    "Blurs",
    "Color distortions",
    "Compression",
    "Noise",
    "Brightness change",
    "Sharpness",
    "Contrast",
]
FindingType = Literal[DistortionCategory, "none"]
"""What a model may answer: a category, or that a region has no distortion."""
Severity = Literal["none", "slight", "moderate", "severe", "extreme"]
LevelWord = Literal["bad", "poor", "fair", "good", "excellent"]

DISTORTION_CATEGORIES: tuple[DistortionCategory, ...] = get_args(DistortionCategory)
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
LEVEL_WORDS: tuple[LevelWord, ...] = get_args(LevelWord)
"""Level words from 1 (bad) to 5 (excellent)."""
LEVELS_CHINESE = ("很差", "较差", "一般", "良好", "优秀")
CATEGORY_WORDS: Mapping[DistortionCategory, str] = {
    "Blurs": "blur", "Color distortions": "colour", "Compression": "compression", "Noise": "noise",
    "Brightness change": "brightness", "Sharpness": "over-sharpening", "Contrast": "contrast",
}  # fmt: skip
"""The categories as people call them."""
FAULTS: Mapping[str, DistortionCategory] = {
    "motion blur": "Blurs", "defocus blur": "Blurs", "noise": "Noise",
    "too dark": "Brightness change", "too bright": "Brightness change",
    "blown highlights": "Brightness change", "crushed shadows": "Brightness change",
    "colour cast": "Color distortions", "low contrast": "Contrast", "haze or flare": "Contrast",
    "oversaturated": "Color distortions", "muted colours": "Color distortions",
    "oversharpened": "Sharpness", "low resolution": "Blurs", "compression": "Compression",
}  # fmt: skip
"""The faults that photographers name, each with its category in the paper's schema."""
Intention = Literal[
    "high-key", "low-key", "night", "coloured-light", "silhouette", "monochrome", "grade", "shallow-depth", "panning",
    "long-exposure", "mist",
]  # fmt: skip
EXPLAINED: Mapping[Intention, tuple[str, ...]] = {
    "high-key": ("too bright", "blown highlights", "low contrast", "haze or flare"),
    "low-key": ("too dark", "crushed shadows"), "night": ("too dark", "crushed shadows"),
    "coloured-light": ("colour cast", "oversaturated"), "silhouette": ("too dark", "crushed shadows"),
    "monochrome": ("colour cast", "muted colours"),
    "grade": ("colour cast", "muted colours", "oversaturated", "low contrast", "crushed shadows"),
    "shallow-depth": ("defocus blur",), "panning": ("motion blur",), "long-exposure": ("motion blur",),
    "mist": ("haze or flare", "low contrast", "muted colours"),
}  # fmt: skip
"""Effects that a photographer may mean, and the faults that are none then."""
PictureKind = Literal[
    "photograph", "packshot", "screenshot or graphic", "document", "drawing", "view through an instrument",
    "black frame", "white frame", "flat frame", "noise",
]  # fmt: skip
"""What a picture is taken for. The faults of photographs apply to the first two."""
CATEGORIES_CHINESE: Mapping[DistortionCategory, str] = {
    "Blurs": "模糊", "Color distortions": "颜色失真", "Compression": "压缩失真", "Noise": "噪声",
    "Brightness change": "亮度变化", "Sharpness": "过度锐化", "Contrast": "对比度变化",
}  # fmt: skip
SEVERITIES_CHINESE: Mapping[Severity, str] = {
    "none": "无", "slight": "轻微", "moderate": "中等", "severe": "严重", "extreme": "极其严重",
}  # fmt: skip

# The paper's worked examples use none/mild/moderate/heavy/severe. "severe" is kept as written:
# it is level 4 on the scale stored here, and nothing in an answer tells which scale it meant.
_SEVERITY_WORDS = {
    "no": "none", "absent": "none", "invisible": "none",
    "mild": "slight", "minor": "slight", "light": "slight", "low": "slight", "weak": "slight",
    "subtle": "slight", "medium": "moderate", "noticeable": "moderate",
    "heavy": "severe", "strong": "severe", "high": "severe", "serious": "severe",
    "very severe": "extreme",
    "无": "none", "轻微": "slight", "中等": "moderate", "严重": "severe", "极其严重": "extreme",
}  # fmt: skip

_CATEGORY_PATTERNS: tuple[tuple[DistortionCategory, str], ...] = (
    ("Blurs", r"blur|out of focus|defocus|\bfocus|smear|shak|模糊|失焦|对焦|虚"),
    ("Compression", r"compress|jpeg|jp2k|block|artifact|artefact|ringing|压缩|块效应"),
    ("Noise", r"nois|grain|speckle|噪"),
    ("Color distortions", r"colou?r|saturat|hue|tint|white balance|cast|chroma|色|饱和"),
    ("Brightness change", r"bright|dark|expos|(?<!s)light|luminance|illumination|亮|暗|曝光|光"),
    ("Sharpness", r"sharp|clarity|clear|detail|edge|清晰|锐"),
    ("Contrast", r"contrast|haze|hazy|fog|faded|washed|对比|雾"),
)

_FAULT_PATTERNS: tuple[tuple[str, str], ...] = (
    ("motion blur", r"motion|shak|smear"),
    ("defocus blur", r"focus|blur"),
    ("oversharpened", r"sharpen|halo"),
    ("noise", r"nois|grain"),
    ("too dark", r"too dark|under-?expos"),
    ("blown highlights", r"blown|highlight|clipped"),
    ("crushed shadows", r"crush|shadow"),
    ("too bright", r"too bright|over-?expos"),
    ("oversaturated", r"over-?saturat|garish"),
    ("muted colours", r"muted|dull|desaturat|faded"),
    ("colour cast", r"cast|tint|white balance"),
    ("low contrast", r"contrast|flat"),
    ("haze or flare", r"haz|flare|fog|veil"),
    ("low resolution", r"resolution|pixelat"),
    ("compression", r"compress|block|jpeg|artefact|artifact|banding"),
)


def faults_explained(intended: Iterable[Intention]) -> frozenset[str]:
    """Return the faults that are none where these effects are meant.

    >>> sorted(faults_explained(["panning", "night"]))
    ['crushed shadows', 'motion blur', 'too dark']
    """
    return frozenset(fault for effect in intended for fault in EXPLAINED[effect])


def category_of(text: str) -> DistortionCategory | None:
    """Return the distortion category a word or phrase names, or None.

    >>> category_of("Motion blur"), category_of("overexposure"), category_of("composition")
    ('Blurs', 'Brightness change', None)
    """
    for category, pattern in _CATEGORY_PATTERNS:
        if re.search(pattern, text.casefold()):
            return category
    return None


def fault_of(text: str) -> str:
    """Return the fault of `FAULTS` that a word or phrase names, or "".

    >>> fault_of("Overexposed"), fault_of("color cast"), fault_of("crooked horizon")
    ('too bright', 'colour cast', '')
    """
    for fault, pattern in _FAULT_PATTERNS:
        if re.search(pattern, text.casefold()):
            return fault
    return ""


def level_of(key: str) -> int | None:
    """Return the level 1..5 that a word, number or letter (A excellent .. E bad) names, or None.

    >>> level_of("Good"), level_of("A"), level_of("level_2"), level_of("6")
    (4, 5, 2, None)
    """
    name = key.strip().casefold().removeprefix("level").strip(" _-")
    for names in (LEVEL_WORDS, ("1", "2", "3", "4", "5"), ("e", "d", "c", "b", "a")):
        if name in names:
            return names.index(name) + 1
    return None


def _read_by(read: Callable[[str], Any]) -> BeforeValidator:
    """Return what reads a text so; anything else stays as it is."""

    def read_text(value: Any) -> Any:
        return read(value) if isinstance(value, str) else value

    return BeforeValidator(read_text)


def _severity(text: str) -> str:
    folded = text.strip().casefold()
    return _SEVERITY_WORDS.get(folded, folded)


def _as_fault(value: Any) -> str:
    return fault_of(value) if isinstance(value, str) else ""


def _region(text: str) -> str:
    name = " ".join(text.split())
    if name.casefold() in {"", "global", "image", "whole image", "the image", "全局", "整体"}:
        return GLOBAL
    return name


def _as_list(value: Any) -> Any:
    """Return a list for one text, and for nothing."""
    return [value] if isinstance(value, str) else (value or [])


def _as_level(value: Any) -> Any:
    if not isinstance(value, str | int):
        return value
    levels = {level_of(word) for word in re.findall(r"\w+", str(value))}
    level = levels.pop() if len(levels) == 1 else None  # "B. Good" names one level twice
    return LEVEL_WORDS[level - 1] if level else value


def _finding_type(text: str) -> str:
    if re.match(r"\W*(?:none|nothing|no (?:visible )?(?:distortion|fault|issue)|无)", text.casefold()):
        return "none"
    return category_of(text) or text


Category = Annotated[DistortionCategory, _read_by(lambda text: category_of(text) or text)]
RegionName = Annotated[str, _read_by(_region)]


class _ModelAnswer(BaseModel):
    """Base of what a model answers: unknown keys are dropped, instances do not change.

    The docstring of each kind stands in its JSON schema, which models are sent: rewording one makes
    another prompt.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class QualityLevel(str):
    """A level's word; its letter (A excellent .. E bad) or number is read too."""

    # A type of its own, as DSPy checks an annotated field against the bare type.
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        words = core_schema.literal_schema(list(LEVEL_WORDS))
        return core_schema.no_info_before_validator_function(_as_level, words)


class RegionDistortions(_ModelAnswer):
    """The distortion categories present in one region."""

    region: RegionName = Field(GLOBAL, description='object or region name, or "Global"')
    distortions: list[Category] = Field(description="distortion categories, most visible first")

    @field_validator("distortions", mode="before")
    @classmethod
    def _known_categories(cls, value: Any) -> Any:
        categories = dict.fromkeys(category_of(str(name)) for name in _as_list(value))
        # A word outside the seven categories says nothing that the rest of the program can use.
        categories.pop(None, None)
        return list(categories)


class DistortionFinding(_ModelAnswer):
    """One distortion in one region, how strong it is and what it does to the picture."""

    region: RegionName = Field(GLOBAL, description='object or region name, or "Global"')
    type: Annotated[FindingType, _read_by(_finding_type)] = Field(description="distortion category, or none")
    severity: Annotated[Severity, _read_by(_severity)]
    explanation: str = Field(description="one sentence on what is visible")
    fault: Annotated[str, BeforeValidator(_as_fault)] = Field("", json_schema_extra={"enum": [*FAULTS, ""]})
    """What a photographer calls it, of `FAULTS`, or ""; the category is its family."""


class ToolChoice(_ModelAnswer):
    """The tool that measures one distortion of one region."""

    region: RegionName = Field(GLOBAL, description='object or region name, or "Global"')
    distortion: str = Field(description="the distortion category this tool is for")
    tool: str = Field(description="tool name, exactly as listed")


class RegionBox(_ModelAnswer):
    """Where a named region is, as fractions of the image's width and height."""

    region: RegionName
    x0: float = Field(ge=0, le=1)
    y0: float = Field(ge=0, le=1)
    x1: float = Field(ge=0, le=1)
    y1: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def _ordered(self) -> "RegionBox":
        if self.x0 >= self.x1 or self.y0 >= self.y1:
            raise ValueError(f"region {self.region!r}: x0 < x1 and y0 < y1 are needed")
        return self


class LevelProbabilities(_ModelAnswer):
    """A model's belief in each quality level, as it gave it: probabilities, percents or log-probabilities.

    Levels by word, number or letter (A excellent .. E bad); a level left out is None.
    """

    bad: float | None = Field(None, description="level 1")
    poor: float | None = Field(None, description="level 2")
    fair: float | None = Field(None, description="level 3")
    good: float | None = Field(None, description="level 4")
    excellent: float | None = Field(None, description="level 5")

    @model_validator(mode="before")
    @classmethod
    def _from_any_key(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and len(value) == len(LEVEL_WORDS):
            return dict(zip(LEVEL_WORDS, value, strict=True))
        if not isinstance(value, dict):
            return value
        levels = {}
        for key, mass in value.items():
            if isinstance(mass, bool):
                raise ValueError(f"level {key}: {mass} is no number")
            if isinstance(mass, str):
                mass = mass.strip().rstrip("%")
            level = level_of(str(key))
            if level is not None:
                levels[LEVEL_WORDS[level - 1]] = mass
        return levels

    def by_level(self) -> dict[int, float]:
        """Return the given masses keyed by level 1..5; levels left out are missing."""
        masses = {level: getattr(self, word) for level, word in enumerate(LEVEL_WORDS, 1)}
        return {level: mass for level, mass in masses.items() if mass is not None}


class ScoreShift(NamedTuple):
    """What labels of other photographs say of an image's score."""

    levels: float = 0.0
    """By so many levels, up or down, the score moves."""
    error_left: float = 1.0
    """The share of the usual error that is left then, 0 to 1."""


_PLAN_WORDS = {
    "iqa": "IQA", "other": "Other",
    "explicit": "explicit", "explict": "explicit", "inferred": "inferred",
    "full-reference": "Full-Reference", "fr": "Full-Reference",
    "no-reference": "No-Reference", "nr": "No-Reference",
}  # fmt: skip


class Plan(_ModelAnswer):
    """What the Planner decided to look at, and with which steps.

    A model is asked for what only the question tells; what follows from that by rule is read where it is given.
    """

    query_type: Literal["IQA", "Other"] = Field(
        validation_alias=AliasChoices("query_type", "task_type"),
        description="IQA: technical quality; Other: beauty, style, emotion",
    )
    query_scope: list[RegionName] = Field(
        validation_alias=AliasChoices("query_scope", "required_object_names"),
        description='objects or regions named in the query, or ["Global"]',
    )
    distortion_source: SkipJsonSchema[Literal["explicit", "inferred"]] = "inferred"
    distortions: list[RegionDistortions] = Field(
        default_factory=list, description="distortions named in the query, per region"
    )
    reference_mode: SkipJsonSchema[Literal["Full-Reference", "No-Reference"]] = Field(
        "No-Reference",
        validation_alias=AliasChoices("reference_mode", "reference_Mode", "reference_type"),
    )
    required_tools: list[str] = Field(
        default_factory=list,
        validation_alias=AliasChoices("required_tools", "required_tool"),
        description="tools the user named",
    )
    distortion_detection: SkipJsonSchema[bool] = True
    distortion_analysis: SkipJsonSchema[bool] = True
    tool_selection: SkipJsonSchema[bool] = True
    tool_execute: SkipJsonSchema[bool] = Field(True, validation_alias=AliasChoices("tool_execute", "tool_execution"))

    @field_validator("query_type", "distortion_source", "reference_mode", mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        word = re.sub(r"[\s_]", "-", value.strip().casefold())
        return _PLAN_WORDS.get(word, value)

    @field_validator("query_scope", "required_tools", mode="before")
    @classmethod
    def _several(cls, value: Any, info: ValidationInfo) -> Any:
        names = _as_list(value)
        if not names and info.field_name == "query_scope":
            return [GLOBAL]
        return names

    @field_validator("distortions", mode="before")
    @classmethod
    def _distortions_as_list(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return [{"region": region, "distortions": names} for region, names in value.items()]
        return value or []


def steps(*, is_iqa: bool, names_distortions: bool, names_tools: bool, is_measurable: bool) -> dict[str, bool]:
    """Return which steps a plan takes, by the fields of `Plan`: the paper's rule table.

    "Other" takes none. Detection only where no distortion is named; analysis always. A named tool
    runs without selection; a scope of which no part can be measured (objects without a box) has no
    tools; otherwise both.

    >>> taken = steps(is_iqa=True, names_distortions=False, names_tools=True, is_measurable=True)
    >>> taken["tool_selection"], taken["tool_execute"]
    (False, True)
    """
    return {
        "distortion_detection": is_iqa and not names_distortions,
        "distortion_analysis": is_iqa,
        "tool_selection": is_iqa and not names_tools and is_measurable,
        "tool_execute": is_iqa and (names_tools or is_measurable),
    }
