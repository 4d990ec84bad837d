"""The Planner on a scripted model: what it is told, and the rules that hold whatever it answers."""

import json
import logging

import pytest

from program.agent.planner import apply_rules
from program.agent.state import AssessmentState
from program.tools.registry import ToolRegistry
from signatures.schemas import Plan

REGISTRY = ToolRegistry.load()
STEPS = ("distortion_detection", "distortion_analysis", "tool_selection", "tool_execute")
ANSWER = {
    "query_type": "IQA", "query_scope": ["Global"], "distortion_source": "inferred", "distortions": [],
    "reference_mode": "No-Reference", "required_tools": [], **dict.fromkeys(STEPS, True),
}  # fmt: skip


def ruled(*, reference=False, boxes=(), **changes):
    plan = Plan(**{**ANSWER, **changes})
    return apply_rules(plan, has_reference=reference, boxes=boxes, registry=REGISTRY)[:2]


@pytest.mark.parametrize("named", ["VIF", "vif", "vif_tool"])
def test_a_tool_is_known_by_what_the_question_calls_it(named):
    plan = Plan(**{**ANSWER, "required_tools": ["VIF", "PIQE"]})
    asked_for = [named, "FancyIQA"]
    kept, repairs, *_ = apply_rules(plan, has_reference=True, boxes=(), registry=REGISTRY, asked_for=asked_for)
    assert kept.required_tools == ["VIF"]
    assert [line for line in repairs if "does not name" in line] == [
        "required_tools: the question does not name PIQE; left out"
    ]


def flags(plan):
    return tuple(getattr(plan, step) for step in STEPS)


@pytest.fixture
def planned(scripted_iqa):
    """Run the Planner on a script; returns plan, repairs and the scripted engine."""

    def run(answers, state=None, **inputs):
        iqa = scripted_iqa([{"plan": a} if isinstance(a, dict) else a for a in answers])
        state = state or AssessmentState(query="Rate it.", image_path="x")
        reading = iqa.planner(**{"state": state, "tool_names": ["VIF"], **inputs})
        state.plan_error = reading.error
        return reading.plan, reading.repairs, iqa.engine

    return run


@pytest.mark.spec("paper/planner")
def test_a_good_plan_is_kept_without_repairs(planned):
    plan, repairs, engine = planned([ANSWER])
    assert plan == Plan(**ANSWER)
    assert repairs == []
    assert engine.images(engine.requests[0]) == []


@pytest.mark.spec("43/calls")
@pytest.mark.parametrize(
    ("query", "scope", "distortions", "kept", "named"),
    [
        ("Rate the quality of this image.", ["IQA"], ["Noise", "Blurs"], ["Global"], []),
        ("Is the vehicle blurry?", ["vehicle", "IQA"], ["Noise", "Blurs"], ["vehicle"], ["Blurs"]),
        ("How sharp is the dog's face?", ["face of the dog"], [], ["face of the dog"], []),
        ("狗的脸清晰吗？", ["dog's face"], [], ["dog's face"], []),
    ],
)
def test_a_plan_holds_what_its_question_names_and_no_more(planned, query, scope, distortions, kept, named):
    answer = {"query_type": "IQA", "query_scope": scope, "required_tools": ["VIF"],
              "distortions": [{"region": scope[0], "distortions": distortions}]}  # fmt: skip
    plan, repairs, _ = planned([answer], AssessmentState(query=query, image_path="x"))
    assert plan.query_scope == kept
    assert [d for r in plan.distortions for d in r.distortions] == named
    assert plan.distortion_detection is not bool(named)
    assert plan.required_tools == []
    assert any("left out" in repair or "未使用" in repair for repair in repairs)


@pytest.mark.spec("paper/planner")
def test_the_papers_looser_words_are_understood(planned):
    loose = {
        "task_type": "iqa", "required_object_names": "vehicle", "distortion_source": "Explict",
        "distortions": {"vehicle": ["Motion blur", "Overexposure", "composition"]}, "reference_Mode": "FR",
        "required_tool": "TopIQ_FR_tool", "tool_execution": True, "distortion_detection": False,
        "distortion_analysis": True, "tool_selection": False,
    }  # fmt: skip
    plan, _, _ = planned([loose], AssessmentState(query="Is the vehicle blurred or too bright?", image_path="x"))
    assert (plan.query_type, plan.query_scope, plan.distortion_source) == ("IQA", ["vehicle"], "explicit")
    assert plan.distortions[0].distortions == ["Blurs", "Brightness change"]


@pytest.mark.spec("paper/planner")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (True, True, True, True)),
        ({"distortion_source": "explicit", "distortions": {"Global": ["Blurs"]}}, (False, True, True, True)),
        ({"required_tools": ["PIQE"]}, (True, True, False, True)),
        ({"required_tools": ["PIQE"], "query_scope": ["car"]}, (True, True, False, True)),
        ({"query_scope": ["car"]}, (True, True, False, False)),
        ({"query_scope": ["car"], "boxes": ["car"]}, (True, True, True, True)),
        ({"query_scope": ["car", "sky"], "boxes": ["car"]}, (True, True, True, True)),
        ({"query_type": "Other"}, (False, False, False, False)),
    ],
)
@pytest.mark.parametrize("answered", [True, False])
def test_the_four_flags_follow_the_rules_whatever_the_model_says(changes, expected, answered):
    plan, repairs = ruled(**{**dict.fromkeys(STEPS, answered), **changes})
    assert flags(plan) == expected
    changed = [step for step, flag in zip(STEPS, expected, strict=True) if flag is not answered]
    assert [step for step in STEPS if any(line.startswith(f"{step}:") for line in repairs)] == changed


@pytest.mark.spec("paper/planner")
@pytest.mark.spec("D14/questions-about-something-else")
def test_an_other_plan_runs_nothing_and_lists_no_distortion():
    plan, repairs = ruled(query_type="Other", distortion_source="explicit", distortions={"Global": ["Blurs"]})
    assert flags(plan) == (False,) * 4
    assert plan.distortions == []
    assert len(repairs) >= 5


@pytest.mark.spec("paper/planner")
@pytest.mark.parametrize("reference", [True, False])
def test_the_reference_mode_is_what_was_given(reference):
    plan, repairs = ruled(reference=reference, reference_mode="No-Reference" if reference else "Full-Reference")
    assert plan.reference_mode == ("Full-Reference" if reference else "No-Reference")
    assert len(repairs) == 1


@pytest.mark.spec("paper/planner")
def test_unusable_named_tools_leave_the_plan_with_a_reason():
    plan, repairs = ruled(required_tools=["psnr_tool", "SuperIQA", "PIQE", "piqe"])
    assert plan.required_tools == ["PIQE"]
    assert any("'PSNR': needs a reference" in line for line in repairs)
    assert any("'SuperIQA': is not known here" in line for line in repairs)
    plan, _ = ruled(required_tools=["SuperIQA"])
    assert flags(plan) == (True, True, True, True)
    plan, repairs = ruled(required_tools=["psnr_tool"], reference=True, reference_mode="FR", tool_selection=False)
    assert (plan.required_tools, repairs) == (["PSNR"], [])


@pytest.mark.spec("D13/local-regions")
def test_a_region_is_that_of_the_box_whatever_its_case():
    explicit = {"distortion_source": "explicit", "distortions": {"Sign": ["Blurs"]}, "distortion_detection": False}
    plan, repairs = ruled(query_scope=["Sign", "CAR", "sky"], boxes=["sign", "Car"], **explicit)
    assert plan.query_scope == ["sign", "Car", "sky"]
    assert plan.distortions[0].region == "sign"
    assert (plan.tool_selection, plan.tool_execute) == (True, True)
    assert "query_scope: ['Sign', 'CAR', 'sky'] -> ['sign', 'Car', 'sky']" in repairs
    assert ruled(query_scope=["Sign", "sign"], boxes=["sign"])[0].query_scope == ["sign"]
    assert ruled(query_scope=["Sign", "sign"], boxes=["sign", "Sign"])[0].query_scope == ["Sign", "sign"]


@pytest.mark.spec("paper/planner")
def test_the_whole_image_leaves_a_scope_that_names_regions():
    assert ruled(query_scope=["Global", "car", "car"])[0].query_scope == ["car"]
    assert ruled(query_scope=[])[0].query_scope == ["Global"]
    assert ruled(query_scope=["the image"])[0].query_scope == ["Global"]


@pytest.mark.spec("paper/planner")
def test_named_distortions_need_an_explicit_source():
    plan, _ = ruled(distortions={"Global": ["Blurs"]}, distortion_source="inferred")
    assert (plan.distortions, plan.distortion_detection) == ([], True)
    plan, _ = ruled(distortions={"Global": ["composition"]}, distortion_source="explicit")
    assert (plan.distortion_source, plan.distortion_detection) == ("inferred", True)


@pytest.mark.spec("000/9-error-handling-strategy")
def test_an_unreadable_plan_is_replaced_by_the_general_one(planned, caplog):
    unread = AssessmentState(query="q", image_path="x")
    plan, _, engine = planned(["no", "no", "no"], unread)
    assert len(engine.requests) == 3
    assert plan == Plan(query_type="IQA", query_scope=["Global"])
    assert unread.plan_error
    state = AssessmentState(query="q", image_path="x", regions={"car": (0, 0, 9, 9)})
    plan, _, engine = planned(["no", "no", ANSWER], state)
    assert plan.query_scope == ["Global"]


@pytest.mark.spec("D11/replans-are-counted-and-end")
@pytest.mark.spec("003/4-reflection-and-replanning")
def test_a_replan_is_told_why_and_what_the_plan_was(planned):
    plan = Plan(**{**ANSWER, "query_scope": ["car"]})
    state = AssessmentState(query="Rate it.", image_path="x", plan=plan)
    _, _, engine = planned([ANSWER], state, feedback="Missing tool scores for car region")
    text = engine.text(engine.requests[0])
    assert "Missing tool scores for car region" in text
    previous = text.split("[[ ## previous_plan ## ]]\n")[-1]
    assert json.JSONDecoder().raw_decode(previous)[0]["query_scope"] == ["car"]
    _, _, engine = planned([ANSWER], state)
    text = engine.text(engine.requests[0])
    assert "feedback ## ]]" not in text
    assert "previous_plan ## ]]" not in text


@pytest.mark.spec("paper/planner")
def test_the_planner_knows_reference_boxes_and_tools(planned):
    state = AssessmentState(query="Rate it.", image_path="x", reference_path="y", regions={"car": (0, 0, 9, 9)})
    _, _, engine = planned([ANSWER], state, tool_names=["VIF", "PSNR"])
    text = engine.text(engine.requests[0])
    assert "[[ ## has_reference ## ]]\nTrue" in text
    assert '[[ ## region_names ## ]]\n["car"]' in text
    assert '[[ ## tool_names ## ]]\n["VIF", "PSNR"]' in text


def test_the_plan_is_logged_with_its_repairs(planned, caplog):
    caplog.set_level(logging.INFO, logger="program")
    planned([{**ANSWER, "tool_selection": False}])
    assert "tool_selection: False -> True" in caplog.text
