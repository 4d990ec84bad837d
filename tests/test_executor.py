"""The Executor on a scripted model and fake tools: each step behind its flag, regions, named tools, failures."""

import json

import numpy as np
import pytest

from program.agent.state import AssessmentState
from program.agent.tool_choice import OVERALL
from program.images.store import IMAGES
from signatures.schemas import Plan

BLUR = {"region": "Global", "type": "Motion blur", "severity": "mild", "explanation": " Edges appear soft. "}
NOISE = {"region": "Global", "type": "Noise", "severity": "heavy", "explanation": "Grain."}
CHOICE = {"region": "Global", "distortion": "Blurs", "tool": "vif_tool"}
SCRIPT = {"findings": {"findings": [BLUR]}, "selected_tools": {"selected_tools": [CHOICE]}}


def plan(**changes):
    steps = dict.fromkeys(("distortion_detection", "distortion_analysis", "tool_selection", "tool_execute"), True)
    return Plan(**{"query_type": "IQA", "query_scope": ["Global"], "reference_mode": "FR", **steps, **changes})


@pytest.fixture
def execute(scripted_iqa, fake_runner, picture):
    """Run the Executor; returns its evidence, the scripted engine and the runner."""

    def run(made=None, script=SCRIPT, runner=None, *, reference=True, regions=None, settings=None):
        runner = runner if runner is not None else fake_runner({"VIF": 2.5, "PSNR": 3.5, "PIQE": 1.5})
        iqa = scripted_iqa(script, runner, settings)
        state = AssessmentState(query="Rate it.", image_path="x", plan=made or plan(), regions=regions)
        target = IMAGES.add(picture(2)) if reference else None
        output = iqa.executor(state=state, image=IMAGES.add(picture(1)), reference=target)
        return output, iqa.engine, runner

    return run


def sent(engine, field, name):
    """Return the JSON input of one question."""
    (request,) = engine.asked(field)
    return json.JSONDecoder().raw_decode(engine.text(request).split(f"[[ ## {name} ## ]]\n")[-1].strip())[0]


@pytest.mark.spec("paper/executor")
def test_a_whole_plan_gives_findings_scores_and_a_log(execute):
    output, engine, runner = execute()
    assert output.distortion_set == {"Global": ["Blurs"]}
    (finding,) = output.distortion_analysis["Global"]
    assert (finding.type, finding.severity, finding.explanation) == ("Blurs", "slight", "Edges appear soft.")
    assert output.selected_tools == {"Global": {"Blurs": "VIF"}}
    assert output.quality_scores == {"Global": {"Blurs": ("VIF", 2.5)}}
    (log,) = output.tool_logs
    assert (log.tool, log.region, log.distortion, log.raw, log.score) == ("VIF", "Global", "Blurs", 25.0, 2.5)
    assert (log.seconds, log.cached, log.error) == (0.25, True, None)
    assert len(engine.requests) == 2
    assert len(runner.measured) == 1


@pytest.mark.spec("paper/executor")
def test_tool_selection_sees_text_only_and_only_ready_tools_of_the_mode(execute):
    _, engine, _ = execute()
    assert engine.images(engine.asked("selected_tools")[0]) == []
    assert sent(engine, "selected_tools", "distortion_set") == {"Global": ["Blurs"]}
    offered = sent(engine, "selected_tools", "tools")
    assert [t["name"] for t in offered] == ["VIF", "PSNR"]  # the strongest first
    assert set(offered[0]) == {"name", "description", "strengths", "general"}
    assert set(offered[0]["strengths"]) == {"Blurs"}
    _, engine, _ = execute(plan(reference_mode="NR"), reference=False)
    assert [t["name"] for t in sent(engine, "selected_tools", "tools")] == ["PIQE"]


@pytest.mark.spec("D14/questions-about-something-else")
def test_other_plans_ask_and_measure_nothing(execute):
    output, engine, runner = execute(plan(query_type="Other"))
    assert output.is_empty
    assert engine.requests == runner.measured == []


@pytest.mark.spec("paper/executor")
@pytest.mark.parametrize(
    ("flags", "asked", "measured"),
    [
        ({"distortion_analysis": False, "distortion_detection": False}, ["selected_tools"], 1),
        ({"tool_selection": False, "tool_execute": False}, ["findings"], 0),
        ({k: False for k in ("distortion_detection", "distortion_analysis", "tool_selection", "tool_execute")}, [], 0),
    ],
)
def test_each_step_is_behind_its_flag(execute, flags, asked, measured):
    script = {**SCRIPT, "selected_tools": {"selected_tools": [{**CHOICE, "distortion": OVERALL}]}}
    output, engine, runner = execute(plan(**flags), script)
    assert [engine.fields(r)[0] for r in engine.requests] == asked
    assert len(runner.measured) == len(output.tool_logs) == measured


@pytest.mark.spec("paper/executor")
def test_separate_diagnosis_detects_then_analyses(execute):
    script = {
        "distortion_set": {
            "distortion_set": [{"region": "Global", "distortions": ["Overexposure", "composition", "grain", "grain"]}]
        },
        "distortion_analysis": {"distortion_analysis": [NOISE]},
        "selected_tools": {"selected_tools": []},
    }
    output, engine, _ = execute(script=script, settings={"assessment": {"diagnosis": "separate"}})
    assert [engine.fields(r)[0] for r in engine.requests] == list(script)
    assert output.distortion_set == {"Global": ["Brightness change", "Noise"]}
    assert sent(engine, "distortion_analysis", "distortion_set") == {"Global": ["Brightness change", "Noise"]}
    assert [f.severity for f in output.distortion_analysis["Global"]] == ["severe"]


def test_separate_detection_of_nothing_ends_the_diagnosis(execute):
    script = {
        "distortion_set": {"distortion_set": [{"region": "Global", "distortions": []}]},
        "selected_tools": {"selected_tools": [{**CHOICE, "distortion": OVERALL, "tool": "PSNR"}]},
    }
    output, _, _ = execute(script=script, settings={"assessment": {"diagnosis": "separate"}})
    assert output.distortion_analysis == {"Global": []}
    assert output.quality_scores == {"Global": {OVERALL: ("PSNR", 3.5)}}


@pytest.mark.spec("paper/executor")
def test_named_distortions_are_analysed_without_detection(execute):
    made = plan(distortion_source="explicit", distortions={"Global": ["Blurs"]}, distortion_detection=False)
    output, engine, _ = execute(made)
    assert sent(engine, "findings", "distortion_set") == {"Global": ["Blurs"]}
    assert output.distortion_set == {"Global": ["Blurs"]}


@pytest.mark.spec("paper/executor")
def test_a_severity_outside_the_scale_is_asked_for_again(execute):
    script = {**SCRIPT, "findings": [{"findings": [{**BLUR, "severity": "purple"}]}, {"findings": [BLUR]}]}
    output, engine, _ = execute(script=script)
    assert len(engine.asked("findings")) == 2
    assert output.distortion_analysis["Global"][0].severity == "slight"


@pytest.mark.spec("paper/executor")
def test_a_failed_step_is_noted_and_the_others_go_on(execute):
    output, engine, runner = execute(script={"findings": "no JSON", "selected_tools": "no JSON"})
    assert len(engine.requests) == 6
    assert any(note.startswith("analysis failed") for note in output.notes)
    assert output.distortion_analysis is None
    assert len(runner.measured) == 1
    assert set(output.quality_scores["Global"]) == {OVERALL}


@pytest.mark.spec("paper/executor")
@pytest.mark.parametrize("tool", ["SuperIQA", "PIQE", "MUSIQ"])
def test_a_choice_that_does_not_fit_is_replaced_and_noted(execute, tool):
    output, _, runner = execute(script={**SCRIPT, "selected_tools": {"selected_tools": [{**CHOICE, "tool": tool}]}})
    (measured,) = runner.measured
    assert measured[0] in {"VIF", "PSNR"}
    assert any(tool in note and measured[0] in note for note in output.notes)


def test_a_distortion_the_model_forgot_gets_the_best_ready_tool(execute):
    script = {"findings": {"findings": [BLUR, NOISE]}, "selected_tools": {"selected_tools": [CHOICE]}}
    output, _, _ = execute(script=script)
    assert set(output.quality_scores["Global"]) == {"Blurs", "Noise"}


@pytest.mark.spec("paper/executor")
@pytest.mark.spec("D10/gaps-count-against-the-plan")
def test_a_failed_tool_is_recorded_with_its_alternative_and_the_run_goes_on(execute, fake_runner):
    script = {
        "findings": {"findings": [BLUR, NOISE]},
        "selected_tools": {"selected_tools": [CHOICE, {**CHOICE, "distortion": "Noise", "tool": "PSNR"}]},
    }
    output, _, _ = execute(script=script, runner=fake_runner({"PSNR": 3.5}, failing=["VIF"]))
    failed, good = output.tool_logs
    assert (failed.tool, failed.score, failed.alternative) == ("VIF", None, "PSNR")
    assert "failed" in failed.error
    assert good.score == 3.5
    assert output.quality_scores == {"Global": {"Noise": ("PSNR", 3.5)}}
    alone, _, _ = execute(runner=fake_runner(failing=["VIF"], ready=["VIF"]))
    assert (alone.tool_logs[0].alternative, alone.quality_scores) == (None, None)


@pytest.mark.spec("paper/planner")
def test_named_tools_run_without_selection_and_count_each(execute):
    output, engine, _ = execute(plan(required_tools=["PSNR"], tool_selection=False))
    assert output.quality_scores == {"Global": {OVERALL: ("PSNR", 3.5)}}
    assert engine.asked("selected_tools") == []
    output, _, _ = execute(plan(required_tools=["PSNR", "PIQE"], tool_selection=False))
    assert list(output.quality_scores["Global"].values()) == [("PSNR", 3.5), ("PIQE", 1.5)]


def test_a_no_reference_tool_gets_no_reference(execute):
    _, _, runner = execute(plan(required_tools=["PSNR", "PIQE"], tool_selection=False))
    (_, _, psnr, _), (_, _, piqe, _) = runner.measured
    assert psnr is not None
    assert piqe is None


def test_the_image_in_question_is_measured_against_its_reference_and_not_the_other_way_round(execute, picture):
    image, reference = (IMAGES.add(picture(seed)).sha256 for seed in (1, 2))
    for chosen in (plan(), plan(required_tools=["PSNR"], tool_selection=False)):
        _, _, runner = execute(chosen)
        assert [measured[1:3] for measured in runner.measured] == [(image, reference)]


@pytest.mark.spec("D10/gaps-count-against-the-plan")
def test_without_any_ready_tool_that_is_said(execute, fake_runner):
    output, _, runner = execute(runner=fake_runner(ready=[]))
    assert runner.measured == []
    assert "no tool is ready for this image" in output.notes


@pytest.mark.spec("D13/local-regions")
def test_a_callers_box_is_cropped_shown_measured_and_filed(execute, picture):
    findings = {"findings": [{**BLUR, "region": "the car"}]}
    output, engine, runner = execute(
        plan(query_scope=["car"]), {**SCRIPT, "findings": findings}, regions={"car": (4, 8, 20, 24)}
    )
    crop, reference = (IMAGES.add(np.ascontiguousarray(picture(i)[8:24, 4:20])).url for i in (1, 2))
    assert engine.images(engine.asked("findings")[0]) == [crop, reference]
    assert output.distortion_analysis["car"][0].type == "Blurs"
    assert runner.measured[0][3] == (4, 8, 20, 24)
    assert list(output.quality_scores) == ["car"]
    assert output.tool_logs[0].box == (4, 8, 20, 24)
    assert engine.asked("region_boxes") == []


@pytest.mark.spec("D13/local-regions")
def test_the_model_locates_a_region_nobody_boxed(execute):
    script = {
        "region_boxes": {"region_boxes": [{"region": "car", "x0": 0.25, "y0": 0.5, "x1": 0.75, "y1": 1.0}]},
        "findings": {"findings": [{**BLUR, "region": "car"}]},
        "selected_tools": {"selected_tools": [{**CHOICE, "region": "car"}]},
    }
    made = plan(query_scope=["car"], tool_selection=False, tool_execute=False)
    output, engine, runner = execute(made, script)
    assert len(engine.asked("region_boxes")) == 1
    assert runner.measured[0][3] == (12, 16, 36, 32)
    assert output.quality_scores == {"car": {"Blurs": ("VIF", 2.5)}}


@pytest.mark.spec("D13/local-regions")
@pytest.mark.parametrize(
    "located",
    [{"region_boxes": []}, "no JSON", {"region_boxes": [{"region": "car", "x0": 0.9, "y0": 0, "x1": 0.1, "y1": 1}]}],
)
def test_a_region_that_is_not_found_is_reported_and_not_measured(execute, located):
    script = {"region_boxes": located, "findings": {"findings": [{**BLUR, "region": "car"}]}}
    made = plan(query_scope=["car"], tool_selection=False, tool_execute=False)
    output, engine, runner = execute(made, script)
    assert runner.measured == []
    assert "region 'car': no box is known, so no tool measures it" in output.notes
    assert output.distortion_analysis["car"][0].type == "Blurs"
    assert len(engine.images(engine.asked("findings")[0])) == 2


@pytest.mark.spec("D13/local-regions")
def test_two_regions_are_looked_at_apart(execute):
    script = {
        "findings": [{"findings": [{**NOISE, "region": "sky"}]}, {"findings": [{**BLUR, "region": "car"}]}],
        "selected_tools": {"selected_tools": []},
    }
    boxes = {"car": (0, 0, 16, 16), "sky": (16, 0, 48, 16)}
    output, _, runner = execute(plan(query_scope=["sky", "car"]), script, regions=boxes)
    assert {r: [f.type for f in found] for r, found in output.distortion_analysis.items()} == {
        "sky": ["Noise"],
        "car": ["Blurs"],
    }
    assert {m[3] for m in runner.measured} == set(boxes.values())
    assert set(output.quality_scores) == {"sky", "car"}


@pytest.mark.spec("D13/local-regions")
def test_a_box_below_a_tools_minimum_grows_and_the_log_says_so(execute, monkeypatch):
    from program.common.settings import load_settings
    from program.tools.runner import ToolRunner

    class Halves:
        def score(self, *_args, **_named):
            return 2.5

        def precisions(self, readings, belief=None):
            return [4.0] * len(readings)

    runner = ToolRunner.__new__(ToolRunner)
    monkeypatch.setattr("program.tools.runner.open_calibration", lambda *_: Halves())
    monkeypatch.setattr("program.tools.runner.evaluate", lambda *_args, **_named: 30.0)
    runner.__init__(load_settings(overrides={"cache": False, "tools": {"device": "cpu"}}))
    minimum = runner.registry.get("PSNR").minimum_size_px
    made = plan(query_scope=["car"], required_tools=["PSNR"], tool_selection=False)
    output, _, _ = execute(made, runner=runner, regions={"car": (20, 10, 22, 12)})
    (log,) = output.tool_logs
    assert (log.error, log.region, log.score, log.precision) == (None, "car", 2.5, 4.0)
    x0, y0, x1, y1 = log.box
    assert x1 - x0 >= minimum
    assert y1 - y0 >= minimum
    assert x0 <= 20 < 22 <= x1
    assert y0 <= 10 < 12 <= y1


def test_a_state_without_a_plan_is_an_error(scripted_iqa, picture):
    iqa = scripted_iqa([])
    with pytest.raises(ValueError, match="no plan"):
        iqa.executor(state=AssessmentState(query="q", image_path="x"), image=IMAGES.add(picture()))
