"""Evidence as the Summarizer sees it, what an answer rests on, and whether that is enough. Pure."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from program.agent.state import SAME_PIXELS, AssessmentState, ExecutorOutput, Finding
from program.common.text import is_chinese
from signatures.schemas import CATEGORIES_CHINESE, GLOBAL, LEVEL_WORDS, SEVERITIES_CHINESE, DistortionCategory, Plan

HIGH_SCORE = 4.0
LOW_SCORE = 2.0


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


def tool_precisions(output: ExecutorOutput | None) -> list[float] | None:
    """Return the precision of each of `tool_scores`, in their order; None where one is not known.

    Readings that count as one bring what they add together.
    """
    if output is None:
        return None
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
        if not finding.fault and not _is_said(finding.type, text, chinese=chinese)
    ]
    faults = [] if text else [
        _in_words(finding) if region == GLOBAL else f"{region}: {_in_words(finding)}"
        for region, finding in visible if finding.fault
    ]  # fmt: skip
    found = f"检测到：{'、'.join(names)}。" if chinese else f"Found: {', '.join(names)}."
    end = "。" if chinese else ". "
    return "".join((*(f"{fault.rstrip('.。')}{end}" for fault in faults), found if names else "")).rstrip(" ")


def _is_said(category: DistortionCategory, text: str, *, chinese: bool) -> bool:
    named = CATEGORIES_CHINESE[category][:2] if chinese else category.split()[0].casefold().rstrip("s")
    return named in text.casefold()


def _phrase(finding: Finding, region: str, *, chinese: bool) -> str:
    if chinese:
        place = "" if region == GLOBAL else f"“{region}”的"
        return f"{place}{SEVERITIES_CHINESE[finding.severity]}{CATEGORIES_CHINESE[finding.type]}"
    return f"{finding.severity} {finding.type}" + ("" if region == GLOBAL else f" in {region}")


def contradiction(output: ExecutorOutput) -> str | None:
    """Say where findings and tool scores disagree (severe with a score > 4.0, none with a score < 2.0)."""
    for region, findings in (output.distortion_analysis or {}).items():
        scores = [s for _, s in ((output.quality_scores or {}).get(region) or {}).values()]
        if not scores:
            continue
        strong = [f for f in findings if f.severity in {"severe", "extreme"}]
        if strong and max(scores) > HIGH_SCORE:
            return (
                f"Contradictory evidence: {strong[0].severity} {strong[0].type} in {region} "
                f"but a tool score of {max(scores):.2f}"
            )
        # A shift is no finding, and tools that compare pixel by pixel think little of it.
        if not output.shifted and all(f.severity == "none" for f in findings) and min(scores) < LOW_SCORE:
            return f"Contradictory evidence: no distortion found in {region} but a tool score of {min(scores):.2f}"
    return None


def compact_json(value: Any) -> str:
    """Return JSON without spaces: a prompt is paid by the token."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_UNCERTAIN = re.compile(
    r"\b(?:uncertain|not (?:sure|certain)|unsure|cannot (?:tell|determine|judge)|can't tell"
    r"|unable to (?:tell|determine|judge)"
    r"|unclear (?:whether|if)|hard to (?:tell|judge))\b|无法(?:判断|确定)|不确定",
    re.IGNORECASE,
)


def should_replan(
    executor_output: ExecutorOutput | None, query_scope: str | Sequence[str], plan: Plan | None = None
) -> tuple[bool, str]:
    """Return whether the evidence has a gap that another plan could close, and which.

    Only gaps against the plan count: what it switched off is not missed (without a plan, analysis and tools are
    expected). Checked in order: coverage of `query_scope`, scores for the planned distortions, contradiction between
    findings and scores, explicit uncertainty, a failed tool for which another ready one fits.

    >>> should_replan(ExecutorOutput(), "Global")
    (True, 'Distortion analysis does not cover Global')
    """
    scope = [query_scope] if isinstance(query_scope, str) else list(query_scope)
    output = executor_output or ExecutorOutput()
    if output.same_pixels:
        return False, ""
    wants_analysis = plan.distortion_analysis if plan else True
    wants_tools = plan.tool_execute if plan else True
    checks = (
        _uncovered(output, scope) if wants_analysis else "",
        _unscored(output, scope, plan) if wants_tools else "",
        contradiction(output) or "",
        _uncertainty(output),
        _failed_tool(output) if wants_tools else "",
    )
    reason = next((reason for reason in checks if reason), "")
    return bool(reason), reason


def next_step(state: AssessmentState) -> Literal["planner", "end"]:
    """Return "planner" when the Summarizer asks for a replan and one is left, else "end"."""
    result = state.summarizer_result
    if result is not None and result.need_replan and state.iteration_count < state.max_replan_iterations:
        return "planner"
    return "end"


def _uncovered(output: ExecutorOutput, scope: Sequence[str]) -> str:
    covered = output.distortion_analysis or {}
    missing = [region for region in scope if region not in covered]
    if not missing:
        return ""
    if scope == [GLOBAL]:
        return f"Distortion analysis does not cover {GLOBAL}"
    return f"Distortion analysis does not cover all query_scope objects: missing {', '.join(missing)}"


def _unscored(output: ExecutorOutput, scope: Sequence[str], plan: Plan | None) -> str:
    scores = output.quality_scores or {}
    if plan and plan.required_tools and scores.get(GLOBAL):
        # They measured the whole image, as nobody could say where the regions are: another plan cannot either.
        return ""
    if not any(scores.values()) and (scope == [GLOBAL] or not scope):
        return "No tool scores available"
    for region in scope:
        if not scores.get(region):
            return f"Missing tool scores for {region} region"
    planned = {r.region: r.distortions for r in (plan.distortions if plan else [])}
    if plan is None or plan.required_tools:
        # Tools that the user named measure the region as a whole, not distortion by distortion.
        return ""
    for region, distortions in planned.items():
        missing = [d for d in distortions if region in scope and d not in scores.get(region, {})]
        if missing:
            return f"Missing tool scores for {', '.join(missing)} in {region}"
    return ""


def _uncertainty(output: ExecutorOutput) -> str:
    for region, finding in output.findings():
        if _UNCERTAIN.search(finding.explanation):
            return f"Uncertain analysis of {finding.type} in {region}: {finding.explanation[:120]}"
    return ""


def _failed_tool(output: ExecutorOutput) -> str:
    scores = output.quality_scores or {}
    for log in output.tool_logs:
        if log.error and log.alternative and log.distortion not in scores.get(log.region, {}):
            return f"Tool {log.tool} failed for {log.distortion} in {log.region}; {log.alternative} is ready"
    return ""
