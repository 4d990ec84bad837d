"""What the evidence lacks, and whether anything is left that would close the gap. Pure."""

import math
import re
from collections.abc import Sequence
from typing import Literal

from program.agent.state import AssessmentState, ExecutorOutput, Gap
from program.agent.tool_choice import OVERALL
from signatures.schemas import GLOBAL, Plan

HIGH_SCORE = 4.0
LOW_SCORE = 2.0
APART = 2.0
"""Standard deviations of both from which on model and tools disagree: one in twenty does by chance."""
WIDE = 2.5
"""Levels from which on a 95 % interval is wide."""
REDUCED = 1.5
"""From this factor on a picture's details are lost where it is judged as a whole."""
CLOSER = "closer look"
"""The name of the part that was looked at in full size, among the regions."""
_QUOTED_CHARACTERS = 120
_UNCERTAIN = re.compile(
    r"\b(?:uncertain|unsure|unclear (?:whether|if)|not (?:sure|certain))\b"
    r"|\b(?:cannot|can't|unable to|hard to) (?:tell|determine|judge)\b|无法(?:判断|确定)|不确定",
    re.IGNORECASE,
)


def find_gap(
    executor_output: ExecutorOutput | None,
    query_scope: str | Sequence[str],
    plan: Plan | None = None,
) -> Gap | None:
    """Return the first gap in the evidence that another look could close, or None.

    Only gaps against the plan count (without one, analysis and tools are expected): coverage of
    `query_scope`, scores for the planned distortions, contradiction between findings and scores,
    explicit uncertainty, a failed tool for which another ready one fits.
    """
    scope = [query_scope] if isinstance(query_scope, str) else list(query_scope)
    output = executor_output or ExecutorOutput()
    if output.same_pixels:
        return None
    gaps = [contradiction(output), _uncertainty(output)]
    if (plan is None or plan.tool_execute) and not output.spares_tools:
        gaps = [_unscored(output, scope, plan), *gaps, _failed_tool(output)]
    if plan is None or plan.distortion_analysis:
        gaps = [_uncovered(output, scope), *gaps]
    return next((gap for gap in gaps if gap is not None), None)


def find_doubt(
    model: tuple[float, float],
    tools: tuple[float, float] | None,
    interval: tuple[float, float],
    reduced_by: float = 1.0,
) -> Gap | None:
    """Return why a score is doubtful though nothing is missing, or None.

    Model and tools, each a score with its standard deviation, disagree beyond these; or the picture was
    judged `reduced_by` a factor; or the interval is wide.

    >>> find_doubt((1.8, 0.4), (4.2, 0.6), (1.0, 4.2)).text()
    'The tools say 4.2 of 5 and the model 1.8, 3.3 standard deviations apart'
    """
    if tools is not None:
        apart = abs(model[0] - tools[0]) / max(math.hypot(model[1], tools[1]), 1e-9)
        if apart >= APART:
            return Gap(kind="disagreement", score=tools[0], expected=model[0], size=apart)
    if reduced_by >= REDUCED:
        return Gap(kind="reduced", size=reduced_by)
    width = interval[1] - interval[0]
    return Gap(kind="wide", size=width) if width >= WIDE else None


def should_replan(
    executor_output: ExecutorOutput | None,
    query_scope: str | Sequence[str],
    plan: Plan | None = None,
) -> tuple[bool, str]:
    """Return whether the evidence has a gap that another look could close, and which in words.

    >>> should_replan(ExecutorOutput(), "Global")
    (True, 'Distortion analysis does not cover Global')
    """
    gap = find_gap(executor_output, query_scope, plan)
    if gap is None:
        return False, ""
    return True, gap.text()


def next_step(state: AssessmentState) -> Literal["planner", "end"]:
    """Return "planner" when the Summarizer asks for a replan and one is left, else "end"."""
    result = state.summarizer_result
    is_one_left = state.iteration_count < state.max_replan_iterations
    if result is not None and result.need_replan and is_one_left:
        return "planner"
    return "end"


def _uncovered(output: ExecutorOutput, scope: Sequence[str]) -> Gap | None:
    covered = output.distortion_analysis or {}
    missing = [region for region in scope if region not in covered]
    return Gap(kind="uncovered", regions=missing) if missing else None


def _unscored(output: ExecutorOutput, scope: Sequence[str], plan: Plan | None) -> Gap | None:
    scores, boxes = output.quality_scores or {}, output.region_boxes or {}
    if plan and plan.required_tools and scores.get(GLOBAL):
        # They measured the whole image, as nobody could say where the regions are.
        return None
    if not any(scores.values()) and (scope == [GLOBAL] or not scope):
        return Gap(kind="unscored")
    for region in scope:
        is_nowhere = region != GLOBAL and boxes and region not in boxes  # beside others that are measured
        if not scores.get(region) and not is_nowhere:
            return Gap(kind="unscored", regions=[region])
    if plan is None or plan.required_tools:
        # Tools that the user named measure the region as a whole, not distortion by distortion.
        return None
    for part in plan.distortions:
        labels = scores.get(part.region, {})
        missing = [kind for kind in part.distortions if kind not in labels]
        is_whole_measured = any(label.startswith(OVERALL) for label in labels)
        if missing and part.region in scope and not is_whole_measured:
            return Gap(kind="unscored", regions=[part.region], distortions=missing)
    return None


def _uncertainty(output: ExecutorOutput) -> Gap | None:
    for region, finding in output.findings():
        if _UNCERTAIN.search(finding.explanation):
            words = finding.explanation[:_QUOTED_CHARACTERS]
            return Gap(kind="uncertain", regions=[region], distortions=[finding.type], explanation=words)
    return None


def _failed_tool(output: ExecutorOutput) -> Gap | None:
    scores = output.quality_scores or {}
    for log in output.tool_logs:
        if log.error and log.alternative and log.distortion not in scores.get(log.region, {}):
            return Gap(
                kind="failed tool", regions=[log.region], distortions=[log.distortion], tool=log.tool,
                alternative=log.alternative,
            )  # fmt: skip
    return None


def contradiction(output: ExecutorOutput) -> Gap | None:
    """Return where findings and tool scores disagree: severe with a score > 4.0, none with < 2.0."""
    quality_scores = output.quality_scores or {}
    for region, findings in (output.distortion_analysis or {}).items():
        scores = [score for _, score in quality_scores.get(region, {}).values()]
        if not scores:
            continue
        strong = [finding for finding in findings if finding.severity in {"severe", "extreme"}]
        # A shift is no finding, and tools that compare pixel by pixel think little of it.
        is_clean = output.shift is None and all(each.severity == "none" for each in findings)
        if strong and max(scores) > HIGH_SCORE:
            kind, severity = strong[0].type, strong[0].severity
            return Gap(kind="contradiction", regions=[region], distortions=[kind], severity=severity, score=max(scores))
        if is_clean and min(scores) < LOW_SCORE:
            return Gap(kind="contradiction", regions=[region], score=min(scores))
    return None
