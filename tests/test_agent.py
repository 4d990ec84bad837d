"""The whole program on a scripted model and fake tools: the loop, replanning, what a caller may give and gets back."""

import io
import logging
import re

import dspy
import numpy as np
import pytest
from PIL import Image

from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.agent.state import ReplanEntry
from program.common.errors import ImageError, ImagesRefused, InputError, ModelError
from program.common.request import DEFAULT_QUERY
from program.common.settings import load_settings
from program.fusion.scores import FittedFusion
from program.images.store import HOST, IMAGES
from tests.pictures import file_of, noise

STEPS = dict.fromkeys(("distortion_detection", "distortion_analysis", "tool_selection", "tool_execute"), True)
PLAN = {"query_type": "IQA", "query_scope": ["Global"], "reference_mode": "No-Reference", **STEPS}
BLUR = {"region": "Global", "type": "Blurs", "severity": "moderate", "explanation": "Soft."}
CHOICE = {"region": "Global", "distortion": "Blurs", "tool": "PIQE"}
PROBS = {"quality_probs": {"1": -3.2, "2": -0.5, "3": -0.1, "4": -2.1, "5": -4.5}, "quality_reasoning": "Soft."}
SCRIPT = {
    "plan": {"plan": PLAN},
    "findings": {"findings": [BLUR]},
    "selected_tools": {"selected_tools": [CHOICE]},
    "quality_probs": PROBS,
    "final_answer": {"final_answer": "B", "quality_reasoning": "Soft."},
}
RATE = "Rate the perceptual quality of this image."
ALL_CALLS = ["plan", "findings", "selected_tools", "quality_probs"]


def asked(engine):
    return [engine.name(request) for request in engine.requests]


# One pass


@pytest.mark.spec("002/state-merging-with-summarizer-result")
@pytest.mark.spec("001/return-state-update")
@pytest.mark.spec("001/accept-state-and-config")
@pytest.mark.spec("004/updated-summarizer-logic")
@pytest.mark.spec("003/1-input-and-output")
def test_one_pass_asks_four_questions_and_keeps_every_stage(scripted_iqa, picture):
    iqa = scripted_iqa(SCRIPT)
    result = iqa(image=picture(), query=RATE)
    assert asked(iqa.engine) == ALL_CALLS
    assert isinstance(result, Assessment)
    assert result.final_answer == result.quality_score == pytest.approx(2.66, abs=0.01)
    assert (result.level, result.need_replan, result.status) == ("C", False, "ok")
    state = result.state
    assert (state.plan.query_type, state.iteration_count, state.replan_history) == ("IQA", 0, [])
    assert state.executor_evidence.quality_scores == {"Global": {"Blurs": ("PIQE", 2.6)}}
    assert state.summarizer_result.final_answer == result.final_answer
    assert Assessment.model_validate_json(result.model_dump_json()) == result


def test_reasons_without_a_full_stop_get_one_before_the_sources(scripted_iqa, picture):
    said = {**SCRIPT["quality_probs"], "quality_reasoning": "The bottom is too dark"}
    result = scripted_iqa({**SCRIPT, "quality_probs": said})(image=picture(), query=RATE)
    assert result.quality_reasoning.startswith("The bottom is too dark. ")
    assert result.summary == "The bottom is too dark"


def test_tools_count_by_their_reliability_from_the_reading_to_the_interval(scripted_iqa, fake_runner, picture):
    runner = fake_runner({"PIQE": 2.0, "BRISQUE": 4.0}, ready=("PIQE", "BRISQUE"))
    runner.precisions = lambda readings, belief=None: [{"PIQE": 3.0, "BRISQUE": 1.0}[tool] for tool, _ in readings]
    script = {
        **SCRIPT,
        "findings": {"findings": [BLUR, {**BLUR, "type": "Noise"}]},
        "selected_tools": {"selected_tools": [CHOICE, {**CHOICE, "distortion": "Noise", "tool": "BRISQUE"}]},
        "quality_probs": {
            "quality_probs": {"1": 0.05, "2": 0.15, "3": 0.6, "4": 0.15, "5": 0.05},
            "quality_reasoning": "Soft.",
        },
    }
    iqa = scripted_iqa(script, runner=runner)
    result = iqa(image=picture(), query=RATE)
    # Mean (3 * 2 + 1 * 4) / 4 = 2.5, precision 4; alpha = exp(-4 / 2 (2.5 - c)^2) = .01111, .60653, .60653, .01111, 0.
    # Times p: .00056, .09098, .36392, .00167, 0: mean 1.28094 / .45712 = 2.8022, variance .07698 / .45712 = .41037^2.
    assert result.quality_score == pytest.approx(2.8022, abs=1e-4)
    assert result.score_interval == pytest.approx((2.8022 - 1.96 * 0.41037, 2.8022 + 1.96 * 0.41037), abs=1e-3)
    assert result.quality_reasoning.endswith(
        "Score 2.80 combines the tools' 2.00 to 4.00 with the model's expected level of 3.00."
    )
    question = iqa.engine.text(iqa.engine.asked("quality_probs")[0])
    assert "Measured quality: fair (2.5 of 5).\n{" in question


@pytest.mark.spec("003/6-logging-and-observability")
def test_what_an_assessment_cost_is_told(scripted_iqa, picture):
    usage = scripted_iqa(SCRIPT)(image=picture(), query=RATE).usage
    assert (usage.lm_calls, usage.input_tokens, usage.output_tokens) == (4, 28, 12)
    assert (usage.tool_readings, usage.tool_cache_hits, usage.replans) == (1, 1, 0)
    assert {"planner", "executor", "tools", "summarizer", "total"} == set(usage.seconds)
    assert usage.seconds["total"] >= usage.seconds["executor"] >= usage.seconds["tools"] >= 0


@pytest.mark.spec("D3/the-type-of-a-final-answer")
@pytest.mark.spec("D6/which-words-decide-the-query-type")
@pytest.mark.parametrize(
    ("query", "options", "answer"),
    [
        ("Which is worst?", {"A": "Noise", "B": "Blur"}, "B"),
        ("Which is worst?", ["Noise", "Blur"], "B"),
        ("Which is worst? A. Noise B. Blur", None, "B"),
        ("Why is it soft?", None, "B"),
    ],
)
def test_other_queries_end_in_the_answer(scripted_iqa, picture, query, options, answer):
    iqa = scripted_iqa(SCRIPT)
    result = iqa(image=picture(), query=query, options=options)
    assert result.final_answer == answer
    assert result.quality_score == pytest.approx(2.6)
    assert (result.rating, result.level) == (None, None)
    assert asked(iqa.engine) == [*ALL_CALLS[:3], "final_answer"]


@pytest.mark.spec("D14/questions-about-something-else")
@pytest.mark.parametrize("query", ["What emotion does it convey?", RATE])
def test_other_plans_cost_two_questions_and_no_tool(scripted_iqa, fake_runner, picture, query):
    runner = fake_runner()
    iqa = scripted_iqa({**SCRIPT, "plan": {"plan": {**PLAN, "query_type": "Other"}}}, runner)
    result = iqa(image=picture(), query=query)
    assert asked(iqa.engine) == ["plan", "final_answer"]
    assert runner.measured == []
    assert (result.quality_score, result.need_replan, result.state.iteration_count) == (None, False, 0)


@pytest.mark.spec("001/load-images")
@pytest.mark.spec("000/8-evidence-formatting-strategy")
def test_image_and_reference_reach_the_model(scripted_iqa, picture, tmp_path):
    from PIL import Image

    path = tmp_path / "distorted.png"
    Image.fromarray(picture(11)).save(path)
    iqa = scripted_iqa({**SCRIPT, "selected_tools": {"selected_tools": [{**CHOICE, "tool": "VIF"}]}})
    result = iqa(image=path, reference=picture(2), query=RATE)
    images = iqa.engine.images(iqa.engine.asked("quality_probs")[0])
    assert images == [IMAGES.add(path).url, IMAGES.add(picture(2)).url]
    assert result.state.image_path == "distorted.png"
    assert result.state.plan.reference_mode == "Full-Reference"


@pytest.mark.spec("D13/local-regions")
@pytest.mark.parametrize("planned", ["car", "Car"])
def test_a_callers_region_is_scored_under_its_name(scripted_iqa, fake_runner, picture, planned):
    runner = fake_runner({"PIQE": 1.4})
    script = {
        **SCRIPT,
        "plan": {"plan": {**PLAN, "query_scope": [planned]}},
        "findings": {"findings": [{**BLUR, "region": "car"}]},
        "selected_tools": {"selected_tools": [{**CHOICE, "region": "car"}]},
    }
    iqa = scripted_iqa(script, runner)
    result = iqa(image=picture(), query="Rate the quality of the car.", regions={"car": (2, 3, 30, 28)})
    assert [m[3] for m in runner.measured] == [(2, 3, 30, 28)]
    assert result.state.executor_evidence.quality_scores == {"car": {"Blurs": ("PIQE", 1.4)}}
    assert result.used_evidence["readings"][0]["region"] == "car"


@pytest.mark.spec("D13/local-regions")
def test_a_named_tool_measures_the_whole_image_where_nobody_finds_the_region(scripted_iqa, fake_runner, picture):
    runner = fake_runner({"PIQE": 1.4})
    script = {
        **SCRIPT,
        "plan": {"plan": {**PLAN, "query_scope": ["car"], "required_tools": ["PIQE"]}},
        "findings": {"findings": [{**BLUR, "region": "car"}]},
        "region_boxes": {"region_boxes": []},
    }
    iqa = scripted_iqa(script, runner)
    result = iqa(image=picture(), query="Use PIQE to rate the quality of the car.")
    assert [(m[0], m[3]) for m in runner.measured] == [("PIQE", None)]
    assert result.state.executor_evidence.quality_scores == {"Global": {"Overall": ("PIQE", 1.4)}}
    assert "region 'car': no box is known, so no tool measures it" in result.quality_reasoning
    assert "the whole image is measured with PIQE instead." in result.quality_reasoning
    # No other plan could measure the car: none is asked for.
    assert len(iqa.engine.asked("plan")) == 1
    assert "Planning again" not in result.quality_reasoning


@pytest.mark.spec("003/7-worked-example")
@pytest.mark.spec("D15/the-worked-example")
def test_the_worked_example_on_the_embedded_model(tmp_path):
    from data.distortions import distort, generator_for
    from data.quickstart import load_photograph

    photograph = load_photograph("astronaut")
    blurred = distort(photograph, "gaussian_blur", 3, generator_for("astronaut", "gaussian_blur", 3))
    result = AgenticIQA(load_settings(overrides={"cache_dir": tmp_path}))(
        image=blurred, reference=photograph, query=RATE
    )
    assert (result.level, result.need_replan, result.status, result.usage.lm_calls) == ("C", False, "ok", 0)
    readings = result.used_evidence["readings"]
    assert [reading["distortion"] for reading in readings] == ["Overall (HaarPSI)", "Overall (SR-SIM)"]
    for reading in readings:
        assert f"{reading['score']:.2f}" in result.quality_reasoning
    assert "blur" in result.quality_reasoning.casefold()


# Replanning


@pytest.mark.spec("D10/gaps-count-against-the-plan")
@pytest.mark.spec("D12/a-replan-that-changes-nothing")
def test_a_plan_that_rightly_runs_no_tools_is_not_planned_again(scripted_iqa, fake_runner, picture):
    runner = fake_runner()
    script = {
        **SCRIPT,
        "plan": {"plan": {**PLAN, "query_scope": ["car"]}},
        "region_boxes": {"region_boxes": []},
        "findings": {"findings": [{**BLUR, "region": "car"}]},
    }
    iqa = scripted_iqa(script, runner)
    result = iqa(image=picture(), query="Rate the quality of the car.")
    assert asked(iqa.engine) == ["plan", "region_boxes", "findings", "quality_probs"]
    assert (result.need_replan, result.state.iteration_count, runner.measured) == (False, 0, [])
    assert "no box is known" in result.quality_reasoning


UNSURE = {"findings": [{**BLUR, "explanation": "I am not sure whether it is soft."}]}


@pytest.mark.spec("D12/a-replan-that-changes-nothing")
@pytest.mark.spec("D21/a-gap-that-stays")
@pytest.mark.spec("001/detect-insufficient-evidence")
def test_the_same_plan_again_stops_and_says_so(scripted_iqa, picture):
    iqa = scripted_iqa({**SCRIPT, "findings": UNSURE}, None)
    result = iqa(image=picture(), query=RATE)
    assert asked(iqa.engine) == [*ALL_CALLS, "plan"]
    assert (result.need_replan, result.replan_reason, result.state.iteration_count) == (False, None, 1)
    assert result.unresolved_gap.startswith("Uncertain analysis")
    assert result.state.replan_history == [ReplanEntry(iteration=0, reason=result.unresolved_gap)]
    assert result.usage.replans == 1
    assert result.state.summarizer_result.need_replan is False
    assert "this gap remains: Uncertain analysis" in result.quality_reasoning


@pytest.mark.spec("001/contradictory-evidence")
@pytest.mark.spec("D21/a-gap-that-stays")
def test_without_new_evidence_nothing_is_asked_again(scripted_iqa, picture):
    severe = {"findings": [{**BLUR, "severity": "severe"}]}
    iqa = scripted_iqa({**SCRIPT, "findings": severe})
    iqa.resources.runner.scores["PIQE"] = 4.6  # the only tool
    result = iqa(image=picture(), query=RATE)
    assert asked(iqa.engine) == ALL_CALLS
    assert (result.need_replan, result.usage.replans, result.state.replan_history) == (False, 0, [])
    assert result.unresolved_gap.startswith("Contradictory evidence")


@pytest.mark.spec("001/contradictory-evidence")
def test_a_contradiction_is_settled_by_another_tool_and_the_model_is_not_asked_again(
    scripted_iqa, fake_runner, picture
):
    severe = {"findings": [{**BLUR, "severity": "severe"}]}
    runner = fake_runner({"PIQE": 4.6, "NIQE": 2.0}, ready=("PIQE", "NIQE"))
    iqa = scripted_iqa({**SCRIPT, "findings": severe}, runner)
    result = iqa(image=picture(), query=RATE)
    assert asked(iqa.engine) == ALL_CALLS
    assert [measured[0] for measured in runner.measured] == ["PIQE", "NIQE"]
    assert (result.usage.tool_readings, result.usage.replans, result.tool_mean) == (2, 1, pytest.approx(3.3))
    (entry,) = result.state.replan_history
    assert entry.reason.startswith("Contradictory evidence: severe Blurs in Global but a tool score of 4.60")
    assert result.quality_reasoning.startswith("Soft.")


LOOK_AGAIN = {"assessment": {"look_again": True}}


def test_the_middle_of_a_picture_that_was_judged_reduced_is_looked_at_in_full_size(scripted_iqa, fake_runner, picture):
    iqa = scripted_iqa(SCRIPT, fake_runner(ready=("PIQE",)), LOOK_AGAIN)
    result = iqa(image=picture(height=40, width=1600), query=RATE)
    assert asked(iqa.engine) == ALL_CALLS
    (whole, closer) = result.state.evidence.tool_logs
    assert (whole.box, closer.box) == (None, (288, 0, 1312, 40))
    (entry,) = result.state.replan_history
    assert entry.reason == "It was judged at 1/1.6 of its size"
    assert (result.need_replan, result.unresolved_gap, result.usage.tool_readings) == (False, None, 2)
    once = scripted_iqa(SCRIPT)(image=picture(height=40, width=1600), query=RATE)
    assert once.usage.replans == 0


@pytest.mark.parametrize(("precision", "readings"), [(4.0, ["PIQE", "NIQE"]), (0.02, ["PIQE"])])
def test_another_tool_is_asked_where_it_would_narrow_the_interval(
    scripted_iqa, fake_runner, picture, monkeypatch, precision, readings
):
    runner = fake_runner({"PIQE": 4.6, "NIQE": 2.0}, ready=("PIQE", "NIQE"))
    monkeypatch.setattr(runner, "precisions", lambda asked, belief=None: [4.0, precision][: len(asked)])
    sure = {**PROBS, "quality_probs": {"bad": 0.7, "poor": 0.3, "fair": 0.0, "good": 0.0, "excellent": 0.0}}
    iqa = scripted_iqa({**SCRIPT, "quality_probs": sure}, runner, LOOK_AGAIN)
    result = iqa(image=picture(), query=RATE)
    assert [measured[0] for measured in runner.measured] == readings
    assert asked(iqa.engine) == ALL_CALLS
    reasons = [entry.reason for entry in result.state.replan_history]
    assert reasons == ["The tools say 4.6 of 5 and the model 1.3, 4.9 standard deviations apart"][: len(readings) - 1]
    assert result.need_replan is False


@pytest.mark.spec("002/append-replan-reasons-to-history")
@pytest.mark.spec("002/state-merging-with-summarizer-result")
@pytest.mark.spec("001/return-state-update")
@pytest.mark.spec("003/4-reflection-and-replanning")
@pytest.mark.spec("000/6-graph-conditional-edge-strategy")
@pytest.mark.spec("D11/replans-are-counted-and-end")
def test_a_replan_closes_the_gap_and_is_remembered(scripted_iqa, picture, caplog):
    caplog.set_level(logging.INFO, logger="program")
    explicit = {
        **PLAN,
        "distortion_source": "explicit",
        "distortions": {"Global": ["Blurs"]},
        "distortion_detection": False,
    }
    script = {
        **SCRIPT,
        "plan": [{"plan": PLAN}, {"plan": explicit}],
        "findings": [UNSURE, {"findings": [BLUR]}],
    }
    iqa = scripted_iqa(script)
    result = iqa(image=picture(), query=RATE)
    assert asked(iqa.engine) == ALL_CALLS * 2
    reason = "Uncertain analysis of Blurs in Global: I am not sure whether it is soft."
    assert result.state.replan_history == [ReplanEntry(iteration=0, reason=reason)]
    assert (result.state.iteration_count, result.need_replan, result.usage.replans) == (1, False, 1)
    second = iqa.engine.text(iqa.engine.asked("plan")[1])
    assert reason in second
    assert '"query_scope":["Global"]' in second
    assert result.state.plan.distortion_source == "explicit"
    assert "need_replan=true, iteration 0" in caplog.text


def test_the_embedded_expert_takes_another_tool_for_one_that_was_named_and_failed(fake_runner, picture):
    iqa = AgenticIQA()
    iqa.resources.__dict__["runner"] = fake_runner(ready=("PIQE", "BRISQUE"), failing=["PIQE"])
    result = iqa(image=picture(), query="Rate the quality of this image with PIQE.")
    assert [entry.reason for entry in result.state.replan_history] == ["No tool scores available"]
    assert (result.usage.tool_readings, result.usage.tool_failures) == (2, 1)
    assert {tool for tool, _ in result.state.evidence.quality_scores["Global"].values()} == {"BRISQUE"}
    assert "tool 'PIQE' was asked for and gave no score" in result.quality_reasoning


@pytest.mark.spec("001/respect-max-iterations")
@pytest.mark.spec("000/7-iteration-tracking")
@pytest.mark.spec("D11/replans-are-counted-and-end")
@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_the_loop_ends_at_the_limit(scripted_iqa, picture, caplog, limit):
    other = {**PLAN, "distortion_source": "explicit", "distortions": {"Global": ["Blurs"]}}
    script = {
        **SCRIPT,
        "plan": [{"plan": PLAN if i % 2 else other} for i in range(limit + 1)],
        "findings": UNSURE,
    }
    iqa = scripted_iqa(script, settings={"assessment": {"max_replan_iterations": limit}})
    result = iqa(image=picture(), query=RATE)
    assert asked(iqa.engine) == ALL_CALLS * (limit + 1)
    assert (result.state.iteration_count, len(result.state.replan_history), result.need_replan) == (limit, limit, False)
    assert "max iterations reached" in caplog.text
    assert result.unresolved_gap.startswith("Uncertain analysis")


REGIONS = ["vehicle", "background"]


@pytest.mark.spec("001/missing-query-scope-coverage")
@pytest.mark.spec("D19/when-a-region-is-covered")
@pytest.mark.spec("D21/a-gap-that-stays")
@pytest.mark.parametrize("diagnosis", ["merged", "separate"])
def test_a_region_that_the_analysis_leaves_out_is_a_gap(scripted_iqa, picture, diagnosis):
    named = {region: ["Noise"] for region in REGIONS}
    plan = {**PLAN, "query_scope": REGIONS, "distortion_source": "explicit", "distortions": named}
    only_vehicle = [{**BLUR, "region": "vehicle"}]
    script = {
        **SCRIPT,
        "plan": {"plan": plan},
        "region_boxes": {"region_boxes": []},
        "distortion_set": {"distortion_set": [{"region": "vehicle", "distortions": ["Blurs"]}]},
        "findings": {"findings": only_vehicle},
        "distortion_analysis": {"distortion_analysis": only_vehicle},
    }
    iqa = scripted_iqa(script, settings={"assessment": {"diagnosis": diagnosis}})
    result = iqa(image=picture(), query="Rate the quality of the vehicle and the background.")
    assert list(result.state.executor_evidence.distortion_analysis) == ["vehicle"]
    assert "missing background" in result.unresolved_gap
    assert [entry.reason for entry in result.state.replan_history] == [result.unresolved_gap]
    assert (result.state.iteration_count, result.usage.replans, result.status) == (1, 1, "ok")


@pytest.mark.spec("D19/when-a-region-is-covered")
def test_a_region_without_distortion_is_covered_by_saying_so(scripted_iqa, picture):
    clean = {"region": "background", "type": "Noise", "severity": "none", "explanation": "No noise."}
    script = {
        **SCRIPT,
        "plan": {"plan": {**PLAN, "query_scope": REGIONS}},
        "region_boxes": {"region_boxes": []},
        "findings": {"findings": [{**BLUR, "region": "The Vehicle"}, clean]},
    }
    result = scripted_iqa(script)(image=picture(), query="Rate the quality of the vehicle and the background.")
    assert list(result.state.executor_evidence.distortion_analysis) == REGIONS
    assert (result.unresolved_gap, result.state.iteration_count) == (None, 0)


@pytest.mark.parametrize("words", ["none", "No distortion", "No visible distortions."])
def test_a_model_may_say_that_there_is_no_distortion(scripted_iqa, picture, words):
    clean = {"region": "Global", "type": words, "severity": "none", "explanation": "Nothing stands out."}
    iqa = scripted_iqa({**SCRIPT, "findings": {"findings": [clean]}})
    result = iqa(image=picture(), query=RATE)
    assert (result.status, result.state.executor_evidence.distortion_analysis) == ("ok", {"Global": []})
    assert result.state.executor_evidence.distortion_set == {"Global": []}
    assert "No distortion stands out." in iqa.engine.text(iqa.engine.asked("quality_probs")[0])


def test_a_region_whose_place_nobody_knows_is_no_gap_beside_one_that_is_measured(scripted_iqa, picture):
    plan = {**PLAN, "query_scope": ["dog", "car"]}
    findings = [{**BLUR, "region": "dog"}, {**BLUR, "region": "car"}]
    answer = {"final_answer": "The dog.", "quality_reasoning": "Soft."}
    iqa = scripted_iqa({
        "plan": {"plan": plan}, "findings": {"findings": findings}, "selected_tools": {"selected_tools": []},
        "region_boxes": {"region_boxes": []}, "final_answer": answer,
    })  # fmt: skip
    result = iqa(image=picture(), query="Which is sharper, the dog or the car?", regions={"dog": (0, 0, 24, 24)})
    assert (result.usage.replans, result.unresolved_gap) == (0, None)
    assert "region 'car': no box is known" in result.quality_reasoning


def test_the_faults_of_an_image_are_told_the_worst_first(scripted_iqa, picture):
    faults = [("Noise", "slight", "noise"), ("Blurs", "severe", "motion blur"), ("Contrast", "moderate", "haze")]
    findings = [
        {"region": "Global", "type": kind, "severity": severity, "explanation": "Seen.", "fault": fault}
        for kind, severity, fault in faults
    ]
    result = scripted_iqa({**SCRIPT, "findings": {"findings": findings}})(image=picture(), query=RATE)
    assert [fault for fault, _ in result.faults] == ["motion blur", "haze or flare", "noise"]


def test_a_chinese_answer_holds_no_english_note(scripted_iqa, fake_runner, picture):
    findings = {"findings": [{**BLUR, "explanation": "模糊。"}]}
    answer = {"final_answer": "很模糊。", "quality_reasoning": "模糊。"}
    script = {**SCRIPT, "findings": findings, "final_answer": answer}
    iqa = scripted_iqa(script, fake_runner(failing=["PIQE"], ready=["PIQE"]))
    result = iqa(image=picture(), query="用PIQE和FancyIQA看，这张图片模糊吗？")
    words = re.sub(r"PIQE|FancyIQA|Blurs|Global", "", result.quality_reasoning)
    assert not re.search(r"[A-Za-z]{3,}", words), words


@pytest.mark.spec("D19/when-a-region-is-covered")
def test_a_finding_is_never_filed_under_another_region_than_its_own(scripted_iqa, picture):
    elsewhere = {"region": "vehicle", "type": "Noise", "severity": "extreme", "explanation": "Grain."}
    script = {
        **SCRIPT,
        "plan": {"plan": {**PLAN, "query_scope": ["background"]}},
        "region_boxes": {"region_boxes": []},
        "findings": {"findings": [elsewhere]},
    }
    result = scripted_iqa(script)(image=picture(), query="How noisy is the background?")
    evidence = result.state.executor_evidence
    assert not evidence.distortion_analysis
    assert any("'vehicle'" in note for note in evidence.notes)
    assert "background" in result.unresolved_gap


@pytest.mark.spec("D20/what-counts-as-degraded")
def test_without_a_usable_plan_the_named_tool_and_box_still_count(scripted_iqa, fake_runner, picture):
    runner = fake_runner({"PIQE": 2.0, "NIQE": 4.0}, ready=("PIQE", "NIQE"))
    iqa = scripted_iqa({**SCRIPT, "plan": "%%%", "findings": {"findings": [{**BLUR, "region": "car"}]}}, runner)
    result = iqa(image=picture(), query="Use niqe to rate the car and the sky.", regions={"car": (0, 0, 24, 24)})
    assert [measured[0] for measured in runner.measured] == ["NIQE"]
    assert result.state.plan.query_scope == ["car"]
    assert result.status == "degraded"
    assert "no usable plan" in result.error
    assert result.state.plan_error
    assert "no usable plan" in result.quality_reasoning
    unknown = iqa(image=picture(), query="Use FancyIQA to rate the car.")
    assert "FancyIQA" in unknown.quality_reasoning


@pytest.mark.spec("D20/what-counts-as-degraded")
def test_an_assessment_whose_every_tool_failed_is_degraded(scripted_iqa, fake_runner, picture):
    result = scripted_iqa(SCRIPT, fake_runner(failing=["PIQE"], ready=("PIQE",)))(image=picture(), query=RATE)
    assert (result.status, result.error) == ("degraded", "every tool of the plan failed")


@pytest.mark.spec("D22/logs-of-a-fusion")
def test_a_fusion_is_in_the_log_and_in_the_result(scripted_iqa, picture, caplog):
    caplog.set_level(logging.INFO, logger="program")
    result = scripted_iqa(SCRIPT)(image=picture(), query=RATE)
    # alpha_c = exp(-(2.6 - c)^2) / sum, by hand: .0773, .6977, .8521, .1409, .0031 over 1.7711.
    assert result.tool_mean == pytest.approx(2.6)
    assert list(result.perceptual_weights.values()) == pytest.approx([0.0436, 0.3939, 0.4811, 0.0795, 0.0018], abs=1e-4)
    line = next(r.getMessage() for r in caplog.records if r.getMessage().startswith("fusion:"))
    for part in ("2.6", "alpha", "0.39", " p ", f"q {result.quality_score:.4f}"):
        assert part in line


@pytest.mark.spec("D10/gaps-count-against-the-plan")
@pytest.mark.spec("D11/replans-are-counted-and-end")
def test_another_tool_stands_in_for_one_that_failed_and_no_call_is_repeated(scripted_iqa, fake_runner, picture):
    runner = fake_runner({"PSNR": 3.0}, failing=["VIF"])
    script = {
        **SCRIPT,
        "selected_tools": {"selected_tools": [{**CHOICE, "tool": "VIF"}]},
        "plan": {"plan": {**PLAN, "reference_mode": "Full-Reference"}},
    }
    iqa = scripted_iqa(script, runner)
    result = iqa(image=picture(1), reference=picture(2), query=RATE)
    assert [m[0] for m in runner.measured] == ["VIF", "PSNR"]
    assert result.state.executor_evidence.quality_scores == {"Global": {"Blurs": ("PSNR", 3.0)}}
    assert (result.state.iteration_count, asked(iqa.engine), result.status) == (1, ALL_CALLS, "ok")


@pytest.mark.spec("D10/gaps-count-against-the-plan")
def test_a_named_tool_that_failed_gives_its_place_to_another(scripted_iqa, fake_runner, picture):
    runner = fake_runner({"PSNR": 3.0}, failing=["VIF"])
    made = {**PLAN, "reference_mode": "Full-Reference", "required_tools": ["VIF"], "tool_selection": False}
    iqa = scripted_iqa({**SCRIPT, "plan": {"plan": made}}, runner)
    result = iqa(image=picture(1), reference=picture(2), query="Use VIF to rate the quality.")
    assert [m[0] for m in runner.measured] == ["VIF", "PSNR"]
    assert result.state.iteration_count == 1
    assert "PSNR measures instead" in result.quality_reasoning


def test_of_two_named_tools_the_one_that_failed_is_replaced_under_its_own_name(scripted_iqa, fake_runner, picture):
    made = {**PLAN, "required_tools": ["PIQE", "NIQE"], "tool_selection": False}
    runner = fake_runner(failing=["NIQE", "ILNIQE"], ready=("PIQE", "NIQE", "ILNIQE", "BRISQUE"))
    iqa = scripted_iqa({**SCRIPT, "plan": {"plan": made}}, runner)
    result = iqa(image=picture(), query="Use PIQE and NIQE to rate the quality.")
    scores = result.state.evidence.quality_scores["Global"]
    assert scores == {"Overall (PIQE)": ("PIQE", 2.6), "Overall (BRISQUE)": ("BRISQUE", 2.6)}
    assert (result.usage.replans, result.usage.tool_readings, result.unresolved_gap) == (1, len(runner.measured), None)
    assert "BRISQUE measures instead" in result.quality_reasoning


def test_a_named_tool_that_failed_is_told(scripted_iqa, fake_runner, picture):
    made = {**PLAN, "required_tools": ["NIQE"], "tool_selection": False}
    iqa = scripted_iqa({**SCRIPT, "plan": {"plan": made}}, fake_runner(failing=["NIQE"]))
    result = iqa(image=picture(), query="Use NIQE to rate the quality.")
    assert "tool 'NIQE' was asked for and gave no score (failed; use another tool)" in result.quality_reasoning


@pytest.mark.spec("D8/all-three-calls-fail")
@pytest.mark.spec("D10/gaps-count-against-the-plan")
def test_a_failed_tool_without_another_is_reported_once(scripted_iqa, fake_runner, picture):
    runner = fake_runner(failing=["PIQE"])
    iqa = scripted_iqa(SCRIPT, runner)
    result = iqa(image=picture(), query=RATE)
    assert len(runner.measured) == 1
    assert result.status == "degraded"
    assert result.state.executor_evidence.tool_logs[0].error
    assert result.quality_score == pytest.approx(sum(c * p for c, p in result.level_probabilities.items()))


@pytest.mark.spec("001/fallback-on-all-retries-failed")
@pytest.mark.spec("D8/all-three-calls-fail")
def test_an_unreadable_model_never_loops_and_never_scores(scripted_iqa, fake_runner, picture):
    names = ("plan", "findings", "selected_tools", "quality_probs")
    iqa = scripted_iqa(dict.fromkeys(names, "%%%"), fake_runner(ready=[]))
    result = iqa(image=picture(), query=RATE)
    assert asked(iqa.engine) == ["plan"] * 3 + ["findings"] + ["quality_probs"] * 3
    assert (result.final_answer, result.quality_score, result.status) == ("Unable to determine", None, "failed")
    assert result.state.iteration_count == 0
    tools = scripted_iqa(dict.fromkeys(names, "%%%"))(image=picture(), query=RATE)
    assert (tools.final_answer, tools.status, tools.attempt) == (2.6, "degraded", "tools alone")


# What a caller gives


@pytest.mark.spec("001/load-images")
@pytest.mark.parametrize("bad", ["missing.png", b"", b"not an image", np.zeros((4, 4), np.uint8), None])
def test_an_unusable_image_is_one_clear_line(scripted_iqa, bad):
    iqa = scripted_iqa(SCRIPT)
    with pytest.raises(ImageError, match=r"^image") as caught:
        iqa(image=bad, query=RATE)
    assert "\n" not in str(caught.value)
    assert iqa.engine.requests == []


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"query": "  "}, "query"),
        ({"options": {"A": "only"}}, "options"),
        ({"options": ["Yes", "Yes"]}, "options A and B: are both 'Yes'"),
        ({"regions": {"car": (0, 0, 99, 10)}}, r"'car': box .* passes the edge of the 48x32 image; keep it within"),
        ({"regions": {"car": (9, 0, 3, 10)}}, r"'car': box .* is empty; give left < right and top < bottom"),
        ({"regions": {"car": (1, 2)}}, r"'car': box \(1, 2\) has 2 numbers; give left, top, right, bottom"),
        ({"query": 5}, "query 5: is no text"),
    ],
)
def test_unusable_input_is_refused_before_anything_is_asked(scripted_iqa, picture, inputs, words):
    iqa = scripted_iqa(SCRIPT)
    with pytest.raises(InputError, match=words):
        iqa(**{"image": picture(), "query": RATE, **inputs})
    assert iqa.engine.requests == []


def test_the_default_query_asks_for_a_score(scripted_iqa, picture):
    result = scripted_iqa(SCRIPT)(image=picture())
    assert result.state.query == DEFAULT_QUERY
    assert isinstance(result.final_answer, float)


@pytest.mark.spec("001/load-vlm-client-from-config")
@pytest.mark.spec("000/5-vlm-client-reuse")
@pytest.mark.parametrize("backend", ["openai.gpt-4o", "openai/gpt-4o"])
def test_a_roles_model_comes_from_the_settings(tmp_path, backend):
    config = tmp_path / "mine.yaml"
    config.write_text(
        f"models:\n  summarizer:\n    backend: {backend}\n    temperature: 0.0\n    max_tokens: 512\n", "utf-8"
    )
    lm = AgenticIQA(load_settings(config)).resources.lm("summarizer")
    assert (lm.model, lm.kwargs["temperature"], lm.kwargs["max_tokens"]) == ("openai/gpt-4o", 0.0, 512)


@pytest.mark.spec("000/5-vlm-client-reuse")
def test_a_callers_model_goes_before_dspys_setting_and_the_configs(scripted_lm):
    given, setting = scripted_lm([]), scripted_lm([])
    iqa = AgenticIQA(lm=given)
    with dspy.context(lm=setting):
        assert iqa.resources.lm("planner") is given
        assert AgenticIQA().resources.lm("executor") is setting
    with pytest.raises(ModelError, match="lm of type str"):
        AgenticIQA(lm="openai/gpt-4o")


def test_a_model_given_by_set_lm_is_shown_what_any_language_model_is(scripted_lm, fake_runner, picture):
    iqa = AgenticIQA()
    iqa.resources.__dict__["runner"] = fake_runner()
    iqa.set_lm(scripted_lm(SCRIPT))
    result = iqa(image=picture(), query=RATE)
    engine = iqa.get_lm().engine
    assert asked(engine) == ["plan", "findings", "quality_probs"]
    assert "Measured quality: " in engine.text(engine.asked("quality_probs")[0])
    assert (result.state.kind, result.level_probabilities_from) == (None, "probabilities")


def test_two_models_that_both_refuse_images_are_each_asked_without(scripted_lm, fake_runner, picture):
    def blind(name):
        lm = scripted_lm(SCRIPT, model=name)
        answer = lm.engine.complete

        def complete(request):
            if lm.engine.images(request):
                lm.engine.record.learn(reads_images=False)
                raise ImagesRefused(f"{name} reads no images")
            return answer(request)

        lm.engine.complete = complete
        return lm

    iqa = AgenticIQA()
    iqa.resources.__dict__["runner"] = fake_runner()
    executor, summarizer = blind("scripted/one"), blind("scripted/two")
    iqa.resources._built |= {"planner": executor, "executor": executor, "summarizer": summarizer}
    result = iqa(image=picture(), query=RATE)
    assert result.status == "ok"
    assert any("reads no images: the embedded expert's findings are used" in note for note in result.notes)


def test_the_predictors_are_these(scripted_iqa):
    assert [name for name, _ in scripted_iqa([]).named_parameters()] == [
        "planner.plan", "executor.detect", "executor.analyse", "executor.diagnose", "executor.select_tools",
        "executor.locate", "summarizer.score", "summarizer.classify", "summarizer.answer", "summarizer.explain",
    ]  # fmt: skip


def test_a_named_tool_that_cannot_be_used_is_told_in_the_reasoning(scripted_iqa, picture):
    made = {**PLAN, "required_tools": ["VIF", "SuperIQA"]}
    result = scripted_iqa({**SCRIPT, "plan": {"plan": made}})(image=picture(), query="Rate it with VIF and SuperIQA.")
    assert "tool 'VIF': needs a reference image and none is given" in result.quality_reasoning
    assert "tool 'SuperIQA': is not known here" in result.quality_reasoning
    assert isinstance(result.final_answer, float)


def test_a_reference_of_another_size_is_refused_or_resampled_for_all_stages(scripted_iqa, fake_runner, picture):
    image, reference = picture(1, 40, 60), picture(2, 20, 30)
    with pytest.raises(InputError, match=r"reference 'pixels:\w+': is 30x20, image .* is 60x40; .*resize_reference"):
        scripted_iqa(SCRIPT)(image=image, reference=reference)
    runner = fake_runner()
    script = {**SCRIPT, "selected_tools": {"selected_tools": [{**CHOICE, "tool": "VIF"}]}}
    iqa = scripted_iqa(script, runner, {"tools": {"resize_reference": True}})
    result = iqa(image=image, reference=reference, query=RATE)
    (measured,) = runner.measured
    used = IMAGES.find(f"{HOST}{measured[2]}.png")
    assert (used.width, used.height) == (60, 40)
    assert {url for request in iqa.engine.requests for url in iqa.engine.images(request)} >= {used.url}
    assert result.state.image_notes[:1] == ["reference resampled from 30x20 to 60x40"]


FULL = {**PLAN, "reference_mode": "Full-Reference"}
BAD = {"quality_probs": {"bad": 1, "poor": 0, "fair": 0, "good": 0, "excellent": 0}, "quality_reasoning": "Awful."}


@pytest.mark.spec("D30/image-and-reference-are-the-same")
def test_an_image_that_is_its_own_reference_scores_5_whatever_model_tools_and_fusion_say(
    scripted_iqa, fake_runner, picture
):
    pixels = picture(1, 64, 64)
    runner = fake_runner({"VIF": 1.2}, ready=("VIF",))
    script = {**SCRIPT, "plan": {"plan": FULL}, "quality_probs": BAD}
    iqa = scripted_iqa(script, runner)
    iqa.summarizer.fitted = FittedFusion(iqa.resources.fusion, curve=[(1, 1), (5, 3)])
    for image, reference in (
        (pixels, pixels),
        (file_of(pixels, "BMP"), file_of(pixels)),
        (file_of(np.dstack([pixels, np.full((64, 64), 255, np.uint8)])), file_of(pixels, "TIFF")),
        (file_of(pixels, "JPEG", quality=50), Image.open(io.BytesIO(file_of(pixels, "JPEG", quality=50)))),
    ):
        result = iqa(image=image, reference=reference, query=RATE)
        assert (result.final_answer, result.quality_score, result.level, result.status) == (5.0, 5.0, "A", "ok")
        assert (result.score_interval, result.need_replan, result.unresolved_gap) == ((5.0, 5.0), False, None)
        assert [finding.severity for _, finding in result.state.evidence.findings()] == ["none"]
    assert [tool for tool, *_ in runner.measured] == ["VIF"] * 4
    one = pixels.copy()
    one[0, 0, 0] ^= 1
    assert iqa(image=one, reference=pixels, query=RATE).final_answer < 3
    assert iqa(image=pixels, query=RATE).final_answer < 3


@pytest.mark.spec("D30/image-and-reference-are-the-same")
def test_questions_on_an_image_that_is_its_own_reference_are_still_answered(scripted_iqa, picture):
    pixels = picture(1, 64, 64)
    iqa = scripted_iqa({**SCRIPT, "plan": {"plan": FULL}})
    for options in (["Noise", "Nothing"], None):
        result = iqa(image=pixels, reference=pixels, query="Which distortion is there?", options=options)
        assert (result.final_answer, result.quality_score, result.level) == ("B", 5.0, "A")
        assert "image and reference are the same" in result.quality_reasoning
        assert [finding.severity for _, finding in result.state.evidence.findings()] == ["none"]


@pytest.mark.spec("D30/image-and-reference-are-the-same")
def test_an_image_that_is_its_own_reference_scores_5_where_model_and_tools_fail(scripted_iqa, fake_runner, picture):
    pixels = picture(1, 64, 64)
    iqa = scripted_iqa(dict.fromkeys(SCRIPT, "%%%"), fake_runner(failing=["VIF", "PSNR", "PIQE"]))
    result = iqa(image=pixels, reference=pixels, query=RATE)
    assert (result.final_answer, result.status, result.need_replan, result.unresolved_gap) == (5.0, "ok", False, None)
    assert [finding.severity for _, finding in result.state.evidence.findings()] == ["none"]


@pytest.mark.spec("D30/image-and-reference-are-the-same")
def test_no_lossy_version_scores_above_the_picture_itself(rng):
    grid = np.mgrid[:96, :128] / 20.0
    pixels = np.clip(128 + 90 * np.sin(grid[0])[..., None] + rng.normal(0, 12, (96, 128, 3)), 0, 255).astype(np.uint8)
    iqa = AgenticIQA()
    scores = [
        iqa(image=image, reference=pixels).final_answer
        for image in (pixels, file_of(pixels, "JPEG", quality=95), file_of(pixels, "JPEG", quality=30))
    ]
    assert scores[0] == 5.0
    assert scores[0] > scores[1] > scores[2]


@pytest.mark.spec("001/empty-executor-evidence")
@pytest.mark.spec("001/handle-missing-executor-evidence")
@pytest.mark.spec("001/log-summarizer-invocation")
@pytest.mark.spec("D16/missing-evidence")
def test_without_any_evidence_the_answer_rests_on_the_image_and_says_so(scripted_iqa, fake_runner, picture, caplog):
    caplog.set_level(logging.INFO, logger="program")
    iqa = scripted_iqa({**SCRIPT, "findings": "%%%"}, fake_runner(ready=[]))
    result = iqa(image=picture(), query=RATE)
    assert result.state.executor_evidence.is_empty
    assert (result.used_evidence, result.tool_mean) == (None, None)
    assert "rests on the image alone" in result.quality_reasoning
    question = iqa.engine.text(iqa.engine.asked("quality_probs")[0])
    assert "distortion_analysis ## ]]\n" not in question.split("[[ ## query ## ]]")[-1]
    assert "0 findings, 0 tool scores" in caplog.text


@pytest.mark.parametrize("shape", [(1, 1), (1, 4000), (4000, 1), (8, 8), (31, 200)])
def test_an_image_too_small_is_not_judged_and_its_score_is_no_more_than_a_guess(rng, shape):
    for pixels in (rng.integers(0, 256, (*shape, 3), dtype=np.uint8), np.zeros((*shape, 3), np.uint8)):
        result = AgenticIQA()(image=pixels)
        assert result.score_interval == (1.0, 5.0)
        assert (result.not_judged, result.notes) == ("too small", [])
    assert AgenticIQA()(image=noise(rng, 64, 64)).not_judged != "too small"


def test_what_a_user_sets_of_the_fusion_holds_for_the_embedded_expert_too(picture) -> None:
    image = picture(7, 96, 128)

    def rating(**fusion: float) -> float | None:
        return AgenticIQA(load_settings(overrides={"fusion": fusion}))(image=image, reference=image // 2).rating

    assert rating() == rating(model_weight=0.7, smoothing=0)
    assert len({rating(), rating(model_weight=0), rating(smoothing=0.5)}) == 3
