"""Result and state models: validators, JSON round trips, optional stages, and the history of replans."""

import json
import logging
import math

import pytest
from pydantic import ValidationError

from program.agent.assessment import Assessment
from program.agent.query import QueryType
from program.agent.state import (
    AssessmentState,
    ExecutorOutput,
    Finding,
    ReplanEntry,
    SummarizerOutput,
    ToolLog,
)
from program.common.backends import Usage
from signatures.schemas import Plan

PLAN = Plan(
    query_type="IQA", query_scope=["Global"], distortion_detection=True, distortion_analysis=True, tool_selection=True,
    tool_execute=True,
)  # fmt: skip


def output(**changes):
    return SummarizerOutput(**{"final_answer": "B", "quality_reasoning": "Moderate blur.", **changes})


def state(**changes):
    return AssessmentState(**{"query": "q", "image_path": "x.png", **changes})


@pytest.mark.spec("002/create-summarizeroutput-model-with-required-fields")
@pytest.mark.spec("000/4-state-model-extensions")
def test_required_fields_and_defaults():
    made = output()
    assert (made.final_answer, made.quality_reasoning) == ("B", "Moderate blur.")
    assert (made.need_replan, made.replan_reason, made.used_evidence) == (False, None, None)
    for missing in ("final_answer", "quality_reasoning"):
        fields = {"final_answer": "B", "quality_reasoning": "x"}
        del fields[missing]
        with pytest.raises(ValidationError, match=missing):
            SummarizerOutput(**fields)
    with pytest.raises(ValidationError, match="extra"):
        output(surprise=1)


@pytest.mark.spec("002/validate-quality-reasoning-is-non-empty")
@pytest.mark.spec("002/validate-quality-reasoning-content")
@pytest.mark.spec("000/9-error-handling-strategy")
def test_reasoning_is_trimmed_and_never_empty():
    assert output(quality_reasoning="  soft edges \n").quality_reasoning == "soft edges"
    for empty in ("", "   ", "\n\t"):
        with pytest.raises(ValidationError, match="quality_reasoning"):
            output(quality_reasoning=empty)


@pytest.mark.spec("002/validate-final-answer-format")
def test_answer_is_trimmed_and_never_empty():
    assert output(final_answer="  B ").final_answer == "B"
    for empty in ("", "  ", "\n"):
        with pytest.raises(ValidationError, match="final_answer"):
            output(final_answer=empty)


@pytest.mark.spec("D3/the-type-of-a-final-answer")
@pytest.mark.spec("004/decision-3-output-format-compatibility")
@pytest.mark.spec("004/backward-compatibility")
def test_a_score_is_a_float_on_the_scale():
    made = output(final_answer=3, quality_score=3)
    assert isinstance(made.final_answer, float)
    assert isinstance(output(final_answer="3.2").final_answer, str)
    for wrong in (0.99, 5.01, math.nan, math.inf, -math.inf, True, None, [3.0]):
        with pytest.raises(ValidationError, match="final_answer"):
            output(final_answer=wrong)
    for wrong in (0.9, 5.1, math.nan, math.inf):
        with pytest.raises(ValidationError, match="quality_score"):
            output(quality_score=wrong)


@pytest.mark.spec("002/validate-replan-reason-presence")
def test_a_missing_replan_reason_is_filled_in_with_a_warning(caplog):
    for reason in (None, "", "  "):
        caplog.clear()
        assert output(need_replan=True, replan_reason=reason).replan_reason == "No reason provided"
        assert [r.levelname for r in caplog.records] == ["WARNING"]
    caplog.clear()
    assert output(need_replan=True, replan_reason="gap").replan_reason == "gap"
    assert output(need_replan=False).replan_reason is None
    assert not caplog.records


@pytest.mark.spec("002/serialize-and-deserialize-summarizeroutput")
@pytest.mark.parametrize(
    "made",
    [
        output(),
        output(final_answer="解释", need_replan=True, replan_reason="gap", status="failed", error="e"),
        output(
            final_answer=2.6640000000000001, quality_score=2.664, level="C", level_probabilities={1: 0.1, 3: 0.9},
            attempt="text",
            used_evidence={"readings": [{"tool": "VIF", "score": 2.6}], "findings": []}, score_interval=(1.5, 3.25),
            query_type=QueryType.SCORING, query_rule="scoring phrase",
        ),
    ],
)  # fmt: skip
def test_json_round_trip_keeps_every_field(made):
    again = SummarizerOutput.model_validate_json(made.model_dump_json())
    assert again == made
    assert type(again.final_answer) is type(made.final_answer)


@pytest.mark.spec("002/serialize-and-deserialize-summarizeroutput")
def test_an_assessment_with_its_state_survives_json():
    whole = Assessment(
        final_answer=2.5, quality_reasoning="r", quality_score=2.5, usage=Usage(lm_calls=3, seconds={"total": 0.5}),
        state=state(
            plan=PLAN, regions={"car": (0, 1, 20, 30)}, replan_history=[ReplanEntry(iteration=0, reason="gap")],
            executor_evidence=ExecutorOutput(
                distortion_analysis={"Global": [Finding(type="Blurs", severity="severe", explanation="e")]},
                quality_scores={"Global": {"Blurs": ("VIF", 2.6)}},
                tool_logs=[ToolLog(tool="VIF", region="Global", distortion="Blurs", raw=0.5, score=2.6)],
            ),
        ),
    )  # fmt: skip
    assert Assessment.model_validate_json(whole.model_dump_json()) == whole


@pytest.mark.spec("002/provide-example-for-explanation-qa-mode")
@pytest.mark.spec("002/provide-example-for-replanning-scenario")
def test_schema_examples_are_the_documented_ones_and_valid():
    answered, replanning = SummarizerOutput.model_json_schema()["examples"]
    assert answered == {
        "final_answer": "B",
        "quality_reasoning": "The image shows moderate blur affecting sharpness, consistent with tool score of 2.6.",
        "need_replan": False,
    }
    assert replanning == {
        "final_answer": "Unable to determine",
        "quality_reasoning": "Insufficient evidence for vehicle region.",
        "need_replan": True,
        "replan_reason": "Missing tool scores for vehicle region",
    }
    for example in (answered, replanning):
        made = SummarizerOutput.model_validate_json(json.dumps(example))
        assert made.model_dump(include=set(example)) == example


@pytest.mark.spec("002/add-summarizer-result-field-to-state")
@pytest.mark.spec("002/execute-pipeline-without-summarizer")
@pytest.mark.spec("000/4-state-model-extensions")
def test_a_state_without_a_summary_is_valid():
    from program.agent.replan import next_step

    made = state(plan=PLAN, executor_evidence=ExecutorOutput())
    assert made.summarizer_result is None
    assert not made.has("summarizer_result")
    assert next_step(made) == "end"
    assert AssessmentState.model_validate_json(made.model_dump_json(exclude_unset=True)) == made
    assert state(summarizer_result=output()).summarizer_result == output()


@pytest.mark.spec("002/execute-pipeline-without-executor")
def test_a_state_without_evidence_is_valid_and_known_to_lack_it():
    made = state(plan=PLAN)
    assert made.has("plan")
    assert not made.has("executor_evidence")
    made.executor_evidence = None
    assert made.has("executor_evidence")


@pytest.mark.spec("002/add-iteration-tracking-fields")
@pytest.mark.spec("000/7-iteration-tracking")
@pytest.mark.spec("D11/replans-are-counted-and-end")
def test_iteration_fields_and_their_defaults():
    made = state()
    assert (made.iteration_count, made.max_replan_iterations, made.replan_history) == (0, 2, [])
    for field in ("iteration_count", "max_replan_iterations"):
        with pytest.raises(ValidationError, match=field):
            state(**{field: -1})


@pytest.mark.spec("002/append-replan-reasons-to-history")
@pytest.mark.spec("D11/replans-are-counted-and-end")
def test_history_holds_iteration_and_reason():
    made = state()
    made.remember_replan("first gap")
    made.remember_replan("second gap")
    assert [e.model_dump() for e in made.replan_history] == [
        {"iteration": 0, "reason": "first gap"},
        {"iteration": 1, "reason": "second gap"},
    ]
    assert made.iteration_count == 2


@pytest.mark.spec("002/limit-history-size")
@pytest.mark.spec("D11/replans-are-counted-and-end")
def test_the_oldest_of_more_than_ten_replans_goes_first_with_a_warning(caplog):
    made = state(max_replan_iterations=20)
    for i in range(10):
        made.remember_replan(f"gap {i}")
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    made.remember_replan("gap 10")
    made.remember_replan("gap 11")
    assert [e.reason for e in made.replan_history] == [f"gap {i}" for i in range(2, 12)]
    assert [e.iteration for e in made.replan_history] == list(range(2, 12))
    assert sum("excessive replanning" in r.message for r in caplog.records) == 2
    assert made.iteration_count == 12
