"""What the Summarizer's model is shown: figures for the embedded expert, words for others."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from program.agent.labels import Corrections, Neighbours
from program.agent.resources import Resources
from program.agent.state import AssessmentState, ExecutorOutput, Finding, ImagePair, ToolReadings, compact_json
from program.fusion.levels import nearest_level
from program.images.store import IMAGES, Box, ImageRef
from signatures.schemas import CATEGORIES_CHINESE, GLOBAL, LEVEL_WORDS, SEVERITIES_CHINESE, DistortionCategory

if TYPE_CHECKING:
    from program.expert import View

Inputs = Mapping[str, Any]

NOTHING_STANDS_OUT = ("No distortion stands out.", "未见明显失真。")
"""English and Chinese."""


@dataclass(frozen=True)
class _Presentation:
    resources: Resources
    neighbours: Neighbours | None
    corrections: Corrections | None
    tools_mean: float | None
    """As they read the image, 1..5."""

    def readings(self, read: ToolReadings, images: ImagePair) -> ToolReadings:
        """Return what is fused of the tools: what they read. Labels move the expert's own belief."""
        return read

    def _view_of_whole(self, inputs: Inputs) -> "View":
        """View the whole image, even where one region is shown; with a reference, what is shown."""
        image, reference = inputs["image"], inputs["reference"]
        if reference is None:
            image = inputs.get("whole") or image
        return self.resources.viewer.view(image, reference)


class ForExpert(_Presentation):
    """Figures, and a region as an image of its own."""

    def images(self, state: AssessmentState, image: ImageRef, reference: ImageRef | None) -> Inputs:
        """Return the one region that is asked about as the image, beside the whole and all regions."""
        boxes = {**(state.regions or {}), **(state.evidence.region_boxes or {})}
        crops, originals = _crops(image, boxes), _crops(reference, boxes)
        scope = state.plan.query_scope if state.plan else []
        shown = {"region_crops": crops or None, "reference_crops": originals or None}
        if len(scope) != 1 or scope[0] not in boxes:
            return {"image": image, "reference": reference, **shown}
        (region,) = scope
        return {"image": crops[region], "reference": originals.get(region), "whole": image, **shown}

    def evidence(self, evidence: ExecutorOutput) -> dict[str, str | None]:
        """Return readings and findings as JSON."""
        return {
            "quality_scores": scores_json(evidence.quality_scores),
            "distortion_analysis": findings_json(evidence.distortion_analysis),
        }

    def beside_ratings(self, inputs: Inputs) -> Inputs:
        """Return inputs with the shift that labels of other photographs give the score."""
        inputs = {**inputs, "similar_photographs": None}
        if self.corrections is not None:
            inputs["score_shift"] = self.corrections.shift(self._view_of_whole(inputs))
        return inputs

    def beside_answers(self, inputs: Inputs, query: str, options: Mapping[str, str]) -> Inputs:
        """Return inputs with the share of the nearest photographs that each option is right for."""
        inputs = {**inputs, "similar_photographs": None}
        if self.neighbours is not None:
            shares = self.neighbours.option_shares(self._view_of_whole(inputs), query, options)
            inputs["option_shares"] = shares or None
        return inputs


class ForLanguageModel(_Presentation):
    """Words, with the gist first; regions beside the whole."""

    def images(self, state: AssessmentState, image: ImageRef, reference: ImageRef | None) -> Inputs:
        """Return the regions beside the whole, which models see reduced."""
        crops = _crops(image, state.evidence.region_boxes or {})
        return {"image": image, "reference": reference, "region_crops": crops or None}

    def evidence(self, evidence: ExecutorOutput) -> dict[str, str | None]:
        """Return readings and findings in words."""
        readings = scores_in_words(evidence.quality_scores or {}, self.tools_mean)
        findings = findings_in_words(evidence.distortion_analysis)
        if evidence.distortion_analysis and not findings:
            findings = NOTHING_STANDS_OUT[0]
        return {"quality_scores": readings, "distortion_analysis": findings}

    def beside_ratings(self, inputs: Inputs) -> Inputs:
        """Return inputs with how people rated others, in words.

        All others where something was fitted on their labels, else the nearest.
        """
        text = None
        if self.corrections is not None:
            text = self.corrections.level_text(self._view_of_whole(inputs), self.tools_mean)
        if text is None and self.neighbours is not None:
            text = self.neighbours.levels_text(self._view_of_whole(inputs))
        return {**inputs, "similar_photographs": text}

    def beside_answers(self, inputs: Inputs, query: str, options: Mapping[str, str]) -> Inputs:
        """Return inputs with the option that was right for most of the nearest photographs."""
        text = None
        if self.neighbours is not None:
            text = self.neighbours.option_text(self._view_of_whole(inputs), query, options)
        return {**inputs, "similar_photographs": text}

    def readings(self, read: ToolReadings, images: ImagePair) -> ToolReadings:
        """Return what is fused of the tools: what labels predict by their mean, else what they read."""
        if self.tools_mean is None or self.corrections is None:
            return read
        view = self.resources.viewer.view(*images)
        predicted = self.corrections.predict(view, self.tools_mean)
        if predicted is None:
            return read
        return ToolReadings([predicted], [self.corrections.by_kind[view.model.kind].precision])


def _crops(image: ImageRef | None, boxes: Mapping[str, Box]) -> dict[str, ImageRef]:
    if image is None:
        return {}
    return {region: IMAGES.crop(image, box) for region, box in boxes.items()}


def scores_in_words(scores: Mapping[str, Mapping[str, tuple[str, float]]], mean: float | None) -> str | None:
    """Say in a level word what tools' scores mean, with the scores as JSON where there are several.

    A tool rates the quality as a whole: a single score is no measure of the distortion that it stands
    under. None without any score.

    >>> scores_in_words({"Global": {"Color distortions": ("LiteNR", 3.63)}}, 3.63)
    'Measured quality: good (3.6 of 5, by LiteNR).'
    """
    shown = scores_json(scores)
    if shown is None or mean is None:
        return shown
    readings = set()
    for region, named in scores.items():
        readings |= {(region, tool, score) for tool, score in named.values()}
    if len(readings) > 1:
        return f"{quality_line(mean)}\n{shown}"
    ((region, tool, _),) = readings
    of = "" if region == GLOBAL else f" of {region}"
    return quality_line(mean, by=f", by {tool}", of=of)


def quality_line(mean: float, *, by: str = "", of: str = "") -> str:
    """Say in a level word what a mean of tools' scores (1..5) means.

    One word: "between bad and poor" made a model of 1.5 billion weights say "excellent".

    >>> quality_line(3.6), quality_line(2.1)
    ('Measured quality: good (3.6 of 5).', 'Measured quality: poor (2.1 of 5).')
    """
    word = LEVEL_WORDS[nearest_level(mean) - 1]
    return f"Measured quality{of}: {word} ({mean:.1f} of 5{by})."


def findings_json(analysis: Mapping[str, Sequence[Finding]] | None) -> str | None:
    """Render findings as `{"Global": [{"type", "severity", "explanation"}]}`; None without any."""
    if not analysis or not any(analysis.values()):
        return None
    return compact_json({region: [f.facts() for f in findings] for region, findings in analysis.items()})


def findings_in_words(analysis: Mapping[str, Sequence[Finding]] | None) -> str | None:
    """Render findings for a language model: faults in words, a line a region; without any, as JSON.

    Figures, category and severity beside a fault's words cost a small model tokens and agreement.

    >>> blur = Finding(type="Blurs", severity="severe", explanation="Strong blur smears it: 9 % is left.", fault="blur")
    >>> findings_in_words({"Global": [blur, Finding(type="Noise", severity="none")]})
    'Strong blur smears it; no Noise'
    """
    lines, has_faults = [], False
    for region, findings in (analysis or {}).items():
        has_faults = has_faults or any(finding.fault for finding in findings)
        if findings:
            lines.append(_prefix(region) + "; ".join(map(finding_in_words, findings)))
    return "\n".join(lines) if has_faults else findings_json(analysis)


def _prefix(region: str) -> str:
    return "" if region == GLOBAL else f"{region}: "


def finding_in_words(finding: Finding) -> str:
    """Return a fault's words alone; of another finding its severity, category and explanation."""
    strength = "no" if finding.severity == "none" else finding.severity
    named = f"{strength} {finding.fault or finding.type}"
    if not finding.fault or not finding.explanation:
        return named
    words, *figures = re.split("[:：]", finding.explanation, maxsplit=1)
    if figures:
        return words
    return f"{named} ({finding.explanation.rstrip('.')})"


def scores_json(scores: Mapping[str, Mapping[str, tuple[str, float]]] | None) -> str | None:
    """Render calibrated scores as `{"Global": {"Blurs": ["VIF", 2.6]}}`; None when there are none."""
    if not scores or not any(scores.values()):
        return None
    rounded = {}
    for region, readings in scores.items():
        if readings:
            rounded[region] = {name: [tool, round(score, 2)] for name, (tool, score) in readings.items()}
    return compact_json(rounded)


def findings_note(output: ExecutorOutput, text: str, *, chinese: bool = False) -> str:
    """Name the visible distortions that a text does not name yet in its language, if any.

    Whoever wrote the text has seen the faults that have words of their own; without a text, these
    are its sentences.
    """
    faults, names = [], []
    for region, finding in output.findings():
        if finding.severity == "none":
            continue
        if finding.fault and not text:
            faults.append(f"{_prefix(region)}{finding_in_words(finding)}".rstrip(".。"))
        elif not finding.fault and _short(finding.type, chinese=chinese) not in text.casefold():
            names.append(_phrase(finding, region, chinese=chinese))
    if chinese:
        named = f"检测到：{'、'.join(names)}。"
        sentences = [f"{fault}。" for fault in faults]
    else:
        named = f"Found: {', '.join(names)}."
        sentences = [f"{fault}. " for fault in faults]
    if names:
        sentences.append(named)
    return "".join(sentences).rstrip(" ")


def _short(category: DistortionCategory, *, chinese: bool) -> str:
    if chinese:
        return CATEGORIES_CHINESE[category][:2]
    return category.split()[0].casefold().rstrip("s")


def _phrase(finding: Finding, region: str, *, chinese: bool) -> str:
    if chinese:
        place = "" if region == GLOBAL else f"“{region}”的"
        return f"{place}{SEVERITIES_CHINESE[finding.severity]}{CATEGORIES_CHINESE[finding.type]}"
    place = "" if region == GLOBAL else f" in {region}"
    return f"{finding.severity} {finding.type}{place}"
