"""Evidence as the Summarizer sees it, and what an answer rests on. Pure."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from program.agent.state import SAME_PIXELS, AssessmentState, ExecutorOutput, Finding
from program.common.text import is_chinese
from signatures.schemas import CATEGORIES_CHINESE, GLOBAL, LEVEL_WORDS, SEVERITIES_CHINESE, DistortionCategory

_UNDISTORTED = ("Nothing is distorted: every pixel is the reference's.", "没有任何失真：每个像素都与参考图像相同。")
"""English and Chinese."""


def of_same_pixels(output: ExecutorOutput, state: AssessmentState) -> ExecutorOutput:
    """Return the evidence on an image that is its own reference: of each region the one finding that nothing is wrong.

    What tools measured stays on record. What the model failed to say is nothing that lacks.
    """
    scope = state.plan.query_scope if state.plan else [GLOBAL]
    none = Finding(type="Compression", severity="none", explanation=_UNDISTORTED[is_chinese(state.query)])
    return output.model_copy(
        update={
            "distortion_set": {region: [] for region in scope},
            "distortion_analysis": {region: [none] for region in scope},
            "notes": [SAME_PIXELS, *output.notes],
            "failed_steps": [],
        }
    )


def rating_of_same_pixels(*, chinese: bool) -> dict[str, Any]:
    """Return what an answer says of the quality of an image that is its own reference: 5, and no doubt."""
    return {
        "final_answer": 5.0,
        "quality_score": 5.0,
        "quality_reasoning": _UNDISTORTED[chinese],
        "summary": _UNDISTORTED[chinese],
        "level_probabilities": {level: float(level == 5) for level in range(1, 6)},
        "score_interval": (5.0, 5.0),
        "status": "ok",
    }


def quality_line(mean: float) -> str:
    """Say in level words what a mean of tools' scores (1..5) means.

    >>> quality_line(3.6), quality_line(2.1)
    ('Measured quality: between fair and good (3.6 of 5).', 'Measured quality: poor (2.1 of 5).')
    """
    lower = min(int(mean), len(LEVEL_WORDS) - 1)
    words = LEVEL_WORDS[lower - 1], LEVEL_WORDS[lower]
    near = round(4 * (mean - lower))
    named = words[0] if near == 0 else words[1] if near == 4 else f"between {words[0]} and {words[1]}"
    return f"Measured quality: {named} ({mean:.1f} of 5)."


def findings_json(analysis: Mapping[str, Sequence[Finding]] | None) -> str | None:
    """Render findings as `{"Global": [{"type", "severity", "explanation"}]}`, or None when there are none."""
    if not analysis or not any(analysis.values()):
        return None
    return compact_json({region: [f.facts() for f in findings] for region, findings in analysis.items()})


def findings_in_words(analysis: Mapping[str, Sequence[Finding]] | None) -> str | None:
    """Render findings for a language model: faults by their words alone, a line a region; without any, as JSON.

    Figures, category and severity beside a fault's words cost a small model tokens and agreement.

    >>> blur = Finding(type="Blurs", severity="severe", explanation="Strong blur smears it: 9 % is left.", fault="blur")
    >>> findings_in_words({"Global": [blur, Finding(type="Noise", severity="none")]})
    'Strong blur smears it; no Noise'
    """
    if not any(finding.fault for findings in (analysis or {}).values() for finding in findings):
        return findings_json(analysis)
    told = {region: "; ".join(map(_in_words, findings)) for region, findings in (analysis or {}).items()}
    return "\n".join(words if region == GLOBAL else f"{region}: {words}" for region, words in told.items() if words)


def _in_words(finding: Finding) -> str:
    words = re.split("[:：]", finding.explanation, maxsplit=1)
    if finding.fault and len(words) > 1:
        return words[0]
    named = f"{'no' if finding.severity == 'none' else finding.severity} {finding.fault or finding.type}"
    return f"{named} ({finding.explanation.rstrip('.')})" if finding.fault and finding.explanation else named


def scores_json(scores: Mapping[str, Mapping[str, tuple[str, float]]] | None) -> str | None:
    """Render calibrated scores as `{"Global": {"Blurs": ["VIF", 2.6]}}`, in hundredths; None when there are none."""
    if not scores or not any(scores.values()):
        return None
    return compact_json({r: {d: [tool, round(s, 2)] for d, (tool, s) in by.items()} for r, by in scores.items() if by})


def tool_scores(scores: Mapping[str, Mapping[str, tuple[str, float]]] | None) -> list[float]:
    """Return the scores to average: one per distinct reading, however many distortions share it."""
    return [score for _, _, score in _distinct(scores)]


def tool_precisions(output: ExecutorOutput) -> list[float] | None:
    """Return the precision of each of `tool_scores`, in their order; None where one is not known.

    Readings that count as one bring what they add together.
    """
    added: dict[tuple[str, str, float | None], list[float | None]] = {}
    for log in output.tool_logs:
        added.setdefault((log.region, log.tool, log.score), []).append(log.precision)
    precisions = []
    for reading in _distinct(output.quality_scores):
        shares = [share for share in added.get(reading, ()) if share is not None]
        if not shares or len(shares) < len(added[reading]):
            return None
        precisions.append(math.fsum(shares))
    return precisions or None


def _distinct(scores: Mapping[str, Mapping[str, tuple[str, float]]] | None) -> list[tuple[str, str, float]]:
    return sorted({(region, tool, score) for region, by in (scores or {}).items() for tool, score in by.values()})


def used_evidence(output: ExecutorOutput) -> dict[str, Any] | None:
    """Name the readings and findings an answer rests on, or None when it rests on the image alone."""
    if output.is_empty:
        return None
    readings = [
        {"region": region, "distortion": distortion, "tool": tool, "score": round(score, 4)}
        for region, by in (output.quality_scores or {}).items()
        for distortion, (tool, score) in by.items()
    ]
    findings = [{"region": region, **finding.facts("explanation")} for region, finding in output.findings()]
    return {"readings": readings, "findings": findings}


def lacking(output: ExecutorOutput) -> str:
    """Say what gave nothing usable in all attempts.

    >>> lacking(ExecutorOutput(failed_steps=["plan", "tools"]))
    'the model gave no usable plan; every tool of the plan failed'
    """
    steps = [step for step in output.failed_steps if step != "tools"]
    parts = [f"the model gave no usable {' and no usable '.join(steps)}"] if steps else []
    return "; ".join([*parts, *(["every tool of the plan failed"] if "tools" in output.failed_steps else [])])


def looked_at(output: ExecutorOutput, region: str) -> str:
    """Name what was looked at for a region: without a box, that is the whole image.

    >>> looked_at(ExecutorOutput(), "dog"), looked_at(ExecutorOutput(region_boxes={"dog": (0, 0, 9, 9)}), "dog")
    ('dog (whole image)', 'dog')
    """
    if region == GLOBAL:
        return "whole image"
    return region if region in (output.region_boxes or {}) else f"{region} (whole image)"


def findings_note(output: ExecutorOutput, text: str, *, chinese: bool = False) -> str:
    """Name the visible distortions that a text does not name yet in its language, or return an empty text.

    Who wrote a text has seen the faults that have words of their own; without a text, these are its sentences.
    """
    visible = [(region, finding) for region, finding in output.findings() if finding.severity != "none"]
    names = [
        _phrase(finding, region, chinese=chinese)
        for region, finding in visible
        if not finding.fault and _short(finding.type, chinese=chinese) not in text.casefold()
    ]
    faults = [] if text else [
        _in_words(finding) if region == GLOBAL else f"{region}: {_in_words(finding)}"
        for region, finding in visible if finding.fault
    ]  # fmt: skip
    found = f"检测到：{'、'.join(names)}。" if chinese else f"Found: {', '.join(names)}."
    end = "。" if chinese else ". "
    return "".join((*(f"{fault.rstrip('.。')}{end}" for fault in faults), found if names else "")).rstrip(" ")


def _short(category: DistortionCategory, *, chinese: bool) -> str:
    return CATEGORIES_CHINESE[category][:2] if chinese else category.split()[0].casefold().rstrip("s")


def _phrase(finding: Finding, region: str, *, chinese: bool) -> str:
    if chinese:
        place = "" if region == GLOBAL else f"“{region}”的"
        return f"{place}{SEVERITIES_CHINESE[finding.severity]}{CATEGORIES_CHINESE[finding.type]}"
    return f"{finding.severity} {finding.type}" + ("" if region == GLOBAL else f" in {region}")


def compact_json(value: Any) -> str:
    """Return JSON without spaces: a prompt is paid by the token."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
