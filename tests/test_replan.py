"""Whether evidence suffices: gaps against the plan, in order, with specific reasons; and where to go next."""

import pytest

from program.agent.replan import find_doubt, next_step, should_replan
from program.agent.state import AssessmentState, ExecutorOutput, Finding, SummarizerOutput, ToolLog
from signatures.schemas import Plan


def plan(scope=("Global",), *, analysis=True, tools=True, distortions=None, required=()):
    return Plan(
        query_type="IQA",
        query_scope=list(scope),
        distortion_source="explicit" if distortions else "inferred",
        distortions=distortions or {},
        required_tools=list(required),
        distortion_detection=not distortions,
        distortion_analysis=analysis,
        tool_selection=tools,
        tool_execute=tools,
    )


def evidence(findings=None, scores=None, logs=()):
    analysis = {
        region: [Finding(type=t, severity=s, explanation=e) for t, s, e in found]
        for region, found in (findings or {}).items()
    }
    return ExecutorOutput(distortion_analysis=analysis or None, quality_scores=scores or None, tool_logs=list(logs))


BLUR = ("Blurs", "moderate", "Edges appear soft.")
COMPLETE = evidence({"Global": [BLUR]}, {"Global": {"Blurs": ("VIF", 2.6)}})


@pytest.mark.spec("000/3-replanning-decision-logic")
@pytest.mark.spec("003/4-reflection-and-replanning")
def test_complete_evidence_needs_no_replan():
    assert should_replan(COMPLETE, ["Global"], plan()) == (False, "")
    assert should_replan(COMPLETE, "Global") == (False, "")


@pytest.mark.spec("001/detect-insufficient-evidence")
@pytest.mark.spec("000/3-replanning-decision-logic")
@pytest.mark.parametrize("output", [None, ExecutorOutput(), evidence(None, {"Global": {"Blurs": ("VIF", 2.6)}})])
def test_missing_analysis_is_a_gap(output):
    assert should_replan(output, "Global") == (True, "Distortion analysis does not cover Global")


@pytest.mark.spec("001/detect-insufficient-evidence")
@pytest.mark.spec("000/3-replanning-decision-logic")
def test_missing_scores_are_a_gap():
    assert should_replan(evidence({"Global": [BLUR]}), "Global", plan()) == (True, "No tool scores available")


@pytest.mark.spec("001/missing-query-scope-coverage")
def test_a_region_of_the_scope_without_analysis_is_a_gap_that_names_it():
    scope = ["vehicle", "background"]
    scores = {region: {"Blurs": ("VIF", 2.6)} for region in scope}
    wanted, reason = should_replan(evidence({"vehicle": [BLUR]}, scores), scope, plan(scope))
    assert wanted
    assert "background" in reason
    assert "vehicle" not in reason


@pytest.mark.spec("001/provide-replan-reason")
@pytest.mark.spec("003/4-reflection-and-replanning")
@pytest.mark.spec("D10/gaps-count-against-the-plan")
def test_missing_scores_of_a_region_are_named():
    scope = ["vehicle", "background"]
    output = evidence({r: [BLUR] for r in scope}, {"background": {"Blurs": ("VIF", 2.6)}})
    assert should_replan(output, scope, plan(scope)) == (True, "Missing tool scores for vehicle region")


@pytest.mark.spec("001/provide-replan-reason")
@pytest.mark.spec("D10/gaps-count-against-the-plan")
def test_missing_scores_of_a_planned_distortion_are_named():
    wanted, reason = should_replan(COMPLETE, ["Global"], plan(distortions={"Global": ["Blurs", "Noise"]}))
    assert (wanted, reason) == (True, "Missing tool scores for Noise in Global")
    overall = evidence({"Global": [BLUR]}, {"Global": {"Overall": ("PSNR", 2.6)}})
    named = plan(distortions={"Global": ["Blurs"]}, required=["PSNR"])
    assert should_replan(overall, ["Global"], named) == (False, "")


@pytest.mark.spec("001/contradictory-evidence")
@pytest.mark.spec("001/detect-insufficient-evidence")
@pytest.mark.spec("D10/gaps-count-against-the-plan")
@pytest.mark.parametrize(
    ("severity", "score", "contradicts"),
    [
        ("severe", 4.01, True), ("extreme", 4.6, True), ("severe", 4.0, False), ("moderate", 4.9, False),
        ("none", 1.99, True), ("none", 2.0, False), ("slight", 1.2, False),
    ],
)  # fmt: skip
def test_contradictions_between_findings_and_scores(severity, score, contradicts):
    output = evidence({"Global": [("Blurs", severity, "x")]}, {"Global": {"Blurs": ("VIF", score)}})
    wanted, reason = should_replan(output, ["Global"], plan())
    assert wanted is contradicts
    assert reason.startswith("Contradictory evidence") is contradicts
    if contradicts:
        assert f"{score:.2f}" in reason
        assert "Global" in reason


@pytest.mark.spec("D10/gaps-count-against-the-plan")
def test_finding_nothing_contradicts_a_low_score():
    output = ExecutorOutput(distortion_analysis={"Global": []}, quality_scores={"Global": {"Overall": ("VIF", 1.3)}})
    assert should_replan(output, ["Global"], plan())[1].startswith(
        "Contradictory evidence: no distortion found in Global"
    )


@pytest.mark.spec("000/3-replanning-decision-logic")
@pytest.mark.spec("D10/gaps-count-against-the-plan")
@pytest.mark.parametrize(
    "words", ["I am not sure whether it is blurred.", "Cannot determine from this view.", "无法判断是否模糊"]
)
def test_explicit_uncertainty_is_a_gap(words):
    output = evidence({"Global": [("Blurs", "slight", words)]}, {"Global": {"Blurs": ("VIF", 2.6)}})
    wanted, reason = should_replan(output, ["Global"], plan())
    assert wanted
    assert reason.startswith("Uncertain analysis of Blurs in Global")


@pytest.mark.spec("D10/gaps-count-against-the-plan")
def test_a_failed_tool_is_a_gap_only_while_another_fits():
    scores = {"Global": {"Blurs": ("VIF", 2.6)}}
    failed = ToolLog(tool="PSNR", region="Global", distortion="Noise", error="out of memory", alternative="VIF")
    output = evidence({"Global": [BLUR]}, scores, [failed])
    reason = "Tool PSNR failed for Noise in Global; VIF is ready"
    assert should_replan(output, ["Global"], plan()) == (True, reason)
    alone = failed.model_copy(update={"alternative": None})
    assert should_replan(evidence({"Global": [BLUR]}, scores, [alone]), ["Global"], plan()) == (False, "")
    measured = failed.model_copy(update={"distortion": "Blurs"})
    assert should_replan(evidence({"Global": [BLUR]}, scores, [measured]), ["Global"], plan()) == (False, "")


@pytest.mark.spec("D10/gaps-count-against-the-plan")
def test_what_the_plan_switched_off_is_not_missed():
    assert should_replan(evidence({"Global": [BLUR]}), ["Global"], plan(tools=False)) == (False, "")
    scores_only = evidence(None, {"Global": {"Overall": ("VIF", 2.6)}})
    assert should_replan(scores_only, ["Global"], plan(analysis=False)) == (False, "")
    assert should_replan(ExecutorOutput(), ["Global"], plan(analysis=False, tools=False)) == (False, "")


@pytest.mark.spec("D10/gaps-count-against-the-plan")
def test_gaps_are_told_in_order():
    uncertain = ("Blurs", "severe", "not sure")
    scope = ["vehicle", "sky"]
    failed = [ToolLog(tool="PSNR", region="sky", distortion="Noise", error="x", alternative="VIF")]
    high = {"vehicle": {"Blurs": ("VIF", 4.5)}}
    steps = [
        (evidence({"vehicle": [uncertain]}, high, failed), "Distortion analysis does not cover"),
        (evidence({r: [uncertain] for r in scope}, high, failed), "Missing tool scores for sky"),
        (evidence({r: [uncertain] for r in scope}, {**high, "sky": {"Blurs": ("VIF", 3.0)}}, failed), "Contradictory"),
        (evidence({r: [uncertain] for r in scope}, {r: {"Blurs": ("VIF", 3.0)} for r in scope}, failed), "Uncertain"),
        (evidence({r: [BLUR] for r in scope}, {r: {"Blurs": ("VIF", 3.0)} for r in scope}, failed), "Tool PSNR failed"),
    ]
    for output, start in steps:
        assert should_replan(output, scope, plan(scope))[1].startswith(start)


@pytest.mark.parametrize(
    ("model", "tools", "interval", "reduced_by", "kind"),
    [
        ((2.0, 0.6), (4.0, 0.8), (2.0, 4.0), 1.0, "disagreement"), ((2.0, 0.6), (3.9, 0.8), (2.0, 4.0), 1.0, None),
        ((2.0, 0.6), None, (1.0, 3.4), 1.0, None), ((2.0, 0.6), None, (1.0, 3.5), 1.0, "wide"),
        ((2.0, 0.6), None, (1.0, 3.5), 1.5, "reduced"), ((2.0, 0.6), None, (1.0, 3.0), 1.49, None),
    ],
)  # fmt: skip
def test_a_score_is_doubtful_beyond_stated_errors_where_it_was_judged_reduced_or_may_lie_anywhere(
    model, tools, interval, reduced_by, kind
):
    doubt = find_doubt(model, tools, interval, reduced_by)
    assert (doubt and doubt.kind) == kind
    if doubt is not None:
        assert "{" not in doubt.text() + doubt.text("清晰吗？")


@pytest.mark.spec("000/6-graph-conditional-edge-strategy")
@pytest.mark.parametrize(
    ("result", "count", "limit", "step"),
    [
        (None, 0, 2, "end"), (False, 0, 2, "end"), (True, 0, 2, "planner"), (True, 1, 2, "planner"), (True, 2, 2,
        "end"),
        (True, 3, 2, "end"), (True, 0, 0, "end"),
    ],
)  # fmt: skip
def test_next_step(result, count, limit, step):
    state = AssessmentState(query="q", image_path="x", iteration_count=count, max_replan_iterations=limit)
    if result is not None:
        state.summarizer_result = SummarizerOutput(
            final_answer="B", quality_reasoning="r", need_replan=result, replan_reason="gap" if result else None
        )
    assert next_step(state) == step
