"""Whether the evidence has a gap that another plan could close. Pure."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from program.agent.state import AssessmentState, ExecutorOutput
from signatures.schemas import GLOBAL, GapKind, Plan

HIGH_SCORE = 4.0
LOW_SCORE = 2.0
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
    executor_output: ExecutorOutput | None, query_scope: str | Sequence[str], plan: Plan | None = None
) -> Gap | None:
    """Return the first gap in the evidence that another plan could close, or None.

    Only gaps against the plan count: what it switched off is not missed (without a plan, analysis and tools are
    expected). Checked in order: coverage of `query_scope`, scores for the planned distortions, contradiction between
    findings and scores, explicit uncertainty, a failed tool for which another ready one fits.
    """
    scope = [query_scope] if isinstance(query_scope, str) else list(query_scope)
    output = executor_output or ExecutorOutput()
    if output.same_pixels:
        return None
    wants_analysis = plan.distortion_analysis if plan else True
    wants_tools = plan.tool_execute if plan else True
    if wants_analysis and (text := _uncovered(output, scope)):
        return Gap("uncovered", text)
    if wants_tools and (text := _unscored(output, scope, plan)):
        return Gap("unscored", text)
    if text := contradiction(output) or "":
        return Gap("contradiction", text)
    if text := _uncertainty(output):
        return Gap("uncertain", text)
    if wants_tools and (text := _failed_tool(output)):
        return Gap("failed tool", text)
    return None


def should_replan(
    executor_output: ExecutorOutput | None, query_scope: str | Sequence[str], plan: Plan | None = None
) -> tuple[bool, str]:
    """Return whether the evidence has a gap that another plan could close, and which in words; see `find_gap`.

    >>> should_replan(ExecutorOutput(), "Global")
    (True, 'Distortion analysis does not cover Global')
    """
    gap = find_gap(executor_output, query_scope, plan)
    return gap is not None, gap.text if gap else ""


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
        if output.shift is None and all(f.severity == "none" for f in findings) and min(scores) < LOW_SCORE:
            return f"Contradictory evidence: no distortion found in {region} but a tool score of {min(scores):.2f}"
    return None
