"""Whether the evidence has a gap that another plan could close. Pure."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from program.agent.notes import note
from program.agent.state import AssessmentState, ExecutorOutput
from program.agent.tool_choice import OVERALL
from signatures.schemas import CATEGORIES_CHINESE, GLOBAL, SEVERITIES_CHINESE, GapKind, Plan

HIGH_SCORE = 4.0
LOW_SCORE = 2.0
_QUOTED_CHARACTERS = 120
_UNCERTAIN = re.compile(
    r"\b(?:uncertain|not (?:sure|certain)|unsure|cannot (?:tell|determine|judge)|can't tell"
    r"|unable to (?:tell|determine|judge)"
    r"|unclear (?:whether|if)|hard to (?:tell|judge))\b|无法(?:判断|确定)|不确定",
    re.IGNORECASE,
)


class Gap(NamedTuple):
    """What evidence lacks: as the embedded expert goes by it, and as models and people read it."""

    kind: GapKind
    text: str


def find_gap(
    executor_output: ExecutorOutput | None,
    query_scope: str | Sequence[str],
    plan: Plan | None = None,
) -> Gap | None:
    """Return the first gap in the evidence that another plan could close, or None.

    Only gaps against the plan count: what it switched off is not missed (without a plan, analysis
    and tools are expected). Checked in order: coverage of `query_scope`, scores for the planned
    distortions, contradiction between findings and scores, explicit uncertainty, a failed tool for
    which another ready one fits.
    """
    scope = [query_scope] if isinstance(query_scope, str) else list(query_scope)
    output = executor_output or ExecutorOutput()
    if output.same_pixels:
        return None
    wants_analysis = plan is None or plan.distortion_analysis
    wants_tools = (plan is None or plan.tool_execute) and not output.spares_tools
    if wants_analysis and (text := _uncovered(output, scope)):
        return Gap("uncovered", text)
    if wants_tools and (text := _unscored(output, scope, plan)):
        return Gap("unscored", text)
    if text := contradiction(output):
        return Gap("contradiction", text)
    if text := _uncertainty(output):
        return Gap("uncertain", text)
    if wants_tools and (text := _failed_tool(output)):
        return Gap("failed tool", text)
    return None


def should_replan(
    executor_output: ExecutorOutput | None,
    query_scope: str | Sequence[str],
    plan: Plan | None = None,
) -> tuple[bool, str]:
    """Return whether the evidence has a gap that another plan could close, and which in words.

    >>> should_replan(ExecutorOutput(), "Global")
    (True, 'Distortion analysis does not cover Global')
    """
    gap = find_gap(executor_output, query_scope, plan)
    if gap is None:
        return False, ""
    return True, gap.text


def next_step(state: AssessmentState) -> Literal["planner", "end"]:
    """Return "planner" when the Summarizer asks for a replan and one is left, else "end"."""
    result = state.summarizer_result
    is_one_left = state.iteration_count < state.max_replan_iterations
    if result is not None and result.need_replan and is_one_left:
        return "planner"
    return "end"


def _uncovered(output: ExecutorOutput, scope: Sequence[str]) -> str:
    covered = output.distortion_analysis or {}
    missing = [region for region in scope if region not in covered]
    if not missing:
        return ""
    if scope == [GLOBAL]:
        return f"Distortion analysis does not cover {GLOBAL}"
    names = ", ".join(missing)
    return f"Distortion analysis does not cover all query_scope objects: missing {names}"


def _unscored(output: ExecutorOutput, scope: Sequence[str], plan: Plan | None) -> str:
    scores = output.quality_scores or {}
    if plan and plan.required_tools and scores.get(GLOBAL):
        # They measured the whole image, as nobody could say where the regions are: another plan
        # cannot either.
        return ""
    if not any(scores.values()) and (scope == [GLOBAL] or not scope):
        return "No tool scores available"
    for region in scope:
        if not scores.get(region) and not _is_nowhere(region, output):
            return f"Missing tool scores for {region} region"
    if plan is None or plan.required_tools:
        # Tools that the user named measure the region as a whole, not distortion by distortion.
        return ""
    planned = {part.region: part.distortions for part in plan.distortions}
    for region, kinds in planned.items():
        labels = scores.get(region, {})
        missing = [kind for kind in kinds if kind not in labels]
        is_whole_measured = any(label.startswith(OVERALL) for label in labels)
        if missing and region in scope and not is_whole_measured:
            return f"Missing tool scores for {', '.join(missing)} in {region}"
    return ""


def _is_nowhere(region: str, output: ExecutorOutput) -> bool:
    """Return whether others have a box and this region has none: no plan can measure it."""
    boxes = output.region_boxes or {}
    return region != GLOBAL and bool(boxes) and region not in boxes


def _uncertainty(output: ExecutorOutput) -> str:
    for region, finding in output.findings():
        if _UNCERTAIN.search(finding.explanation):
            words = finding.explanation[:_QUOTED_CHARACTERS]
            return f"Uncertain analysis of {finding.type} in {region}: {words}"
    return ""


def _failed_tool(output: ExecutorOutput) -> str:
    scores = output.quality_scores or {}
    for log in output.tool_logs:
        if log.error and log.alternative and log.distortion not in scores.get(log.region, {}):
            fault = f"Tool {log.tool} failed for {log.distortion} in {log.region}"
            return f"{fault}; {log.alternative} is ready"
    return ""


def contradiction(output: ExecutorOutput, query: str = "") -> str:
    """Say where findings and tool scores disagree: severe with a score > 4.0, none with < 2.0.

    It is said in the question's language.
    """
    quality_scores = output.quality_scores or {}
    for region, findings in (output.distortion_analysis or {}).items():
        scores = [score for _, score in quality_scores.get(region, {}).values()]
        if not scores:
            continue
        strong = [finding for finding in findings if finding.severity in {"severe", "extreme"}]
        # A shift is no finding, and tools that compare pixel by pixel think little of it.
        is_clean = output.shift is None and all(each.severity == "none" for each in findings)
        if strong and max(scores) > HIGH_SCORE:
            severity, category = strong[0].severity, strong[0].type
            return note(
                "contradiction", query, severity=severity, category=category, region=region, score=max(scores),
                severity_chinese=SEVERITIES_CHINESE[severity], category_chinese=CATEGORIES_CHINESE[category],
            )  # fmt: skip
        if is_clean and min(scores) < LOW_SCORE:
            return note("clean contradiction", query, region=region, score=min(scores))
    return ""
