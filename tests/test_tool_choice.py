"""Which tools run on an image: those that add to the score, those that a question names, those that a model picks."""

import itertools
import json

import numpy as np
import pytest

from program import AgenticIQA
from program.common.errors import SettingsError
from program.common.settings import load_settings
from program.tools.calibration import BeliefError, Calibration, Residual
from program.tools.choice import LEAST_GAIN, tools_that_add
from program.tools.registry import ToolRegistry

SHIPPED, REGISTRY = Calibration.load(None), ToolRegistry.load()
RATE = "Rate the perceptual quality of this image."
FINDINGS = [
    {"region": "Global", "type": kind, "severity": "moderate", "explanation": "Seen."}
    for kind in ("Blurs", "Noise", "Compression")
]
SCRIPT = {
    "plan": {"plan": {"query_type": "IQA", "query_scope": ["Global"]}},
    "findings": {"findings": FINDINGS},
    "selected_tools": {"selected_tools": []},
    "quality_probs": {"quality_probs": {"3": 0.6, "4": 0.4}, "quality_reasoning": "Soft."},
}


def tools_run(result):
    return [log.tool for log in result.state.evidence.tool_logs]


@pytest.fixture(scope="module")
def expert():
    return AgenticIQA(load_settings(overrides={"cache": False}))


@pytest.mark.spec("D34/who-chooses-tools")
def test_one_reading_counts_once_whatever_distortions_are_found(scripted_iqa, fake_runner, picture):
    runner = fake_runner({"PIQE": 2.0}, ready=("PIQE",))
    result = scripted_iqa(SCRIPT, runner, {"executor": {"selection": "measured"}})(image=picture(), query=RATE)
    assert len(result.state.evidence.findings()) == 3
    assert len(runner.measured) == 1
    assert result.state.evidence.quality_scores == {"Global": {"Overall": ("PIQE", 2.0)}}
    assert result.need_replan is False


@pytest.mark.spec("D34/who-chooses-tools")
@pytest.mark.parametrize(("selection", "asked"), [("measured", 0), ("model", 1)])
def test_a_model_is_asked_for_tools_in_the_papers_way_only(scripted_iqa, picture, selection, asked):
    iqa = scripted_iqa(SCRIPT, settings={"executor": {"selection": selection}})
    iqa(image=picture(), query=RATE)
    assert len(iqa.engine.asked("selected_tools")) == asked
    assert ("executor.select_tools" in iqa.never_asked()) is (selection == "measured")


@pytest.mark.spec("D34/who-chooses-tools")
def test_no_tool_runs_that_adds_nothing_to_the_embedded_expert(expert, photo):
    result = expert(image=photo)
    assert tools_run(result) == []
    assert result.state.evidence.selected_tools == {"Global": {}}
    assert (result.status, result.usage.replans, result.unresolved_gap) == ("ok", 0, None)
    assert result.quality_reasoning.endswith(" is from the model only.")
    assert result.quality_score is not None


@pytest.mark.spec("D34/who-chooses-tools")
def test_tools_that_a_question_names_always_run(expert, photo):
    assert tools_run(expert(image=photo, query="Rate the quality of this image with LiteNR.")) == ["LiteNR"]


@pytest.mark.spec("D34/who-chooses-tools")
def test_tools_are_read_after_all_where_the_expert_gives_no_usable_answer(expert, photo, monkeypatch):
    from program.expert import engine

    monkeypatch.setattr(engine, "_ANSWERS", {**engine._ANSWERS, "quality_probs": lambda *_: {"quality_probs": {}}})
    result = expert(image=photo)
    assert tools_run(result) == ["LiteNR"]
    assert result.status == "degraded"
    assert result.quality_score == result.tool_mean == pytest.approx(result.state.evidence.readings.scores[0])


@pytest.mark.spec("D34/who-chooses-tools")
def test_beside_a_reference_the_tool_that_adds_most_has_the_weight_of_its_error(expert, picture):
    logs = expert(image=picture(1, 64, 64), reference=picture(2, 64, 64)).state.evidence.tool_logs
    assert [log.tool for log in logs] == ["HaarPSI", "SR-SIM"]
    errors = np.array([0.45, 0.4824, 0.5452])
    correlations = np.array([[1, 0.55, 0.55], [0.55, 1, 0.6692], [0.55, 0.6692, 1]])
    own, *tools = np.linalg.solve(correlations * np.outer(errors, errors), np.ones(3))
    assert [log.precision for log in logs] == pytest.approx(tools, rel=0.01)
    # The rest is the belief's, of its own precision 1 / e^2.
    assert expert.summarizer.fusion.model_weight == pytest.approx(own * errors[0] ** 2, abs=0.05)


def test_tools_join_for_as_long_as_they_lower_the_error():
    ready = [spec for spec in REGISTRY.specs() if spec.name in SHIPPED.tools and spec.mode == "FR"]
    for belief in (None, BeliefError(0.45, 0.55), BeliefError(0.8, 0.0)):
        chosen = tools_that_add(ready, SHIPPED, belief)
        assert len(set(chosen)) == len(chosen) >= 1
        errors = [SHIPPED.expected_error(chosen[: n + 1], belief) for n in range(len(chosen))]
        for before, after in itertools.pairwise(errors):
            assert after <= before * (1 - LEAST_GAIN)
        assert all(SHIPPED.precisions([(tool, None) for tool in chosen], belief))
    assert tools_that_add(ready, SHIPPED, BeliefError(0.2, 0.9)) == []


def test_what_tools_add_beside_a_belief_gives_the_mean_of_least_error(rng):
    entry = SHIPPED.tools["MDSI"]
    residuals = {"A": Residual(n=99, rmse=0.5, spread=1.0), "B": Residual(n=99, rmse=0.6, spread=1.0)}
    correlations = {"A": 0.3, "B": 0.3}
    tools = {}
    for name, residual in residuals.items():
        tools[name] = entry.model_copy(update={"residual": residual, "correlations": correlations})
    calibration = Calibration(sources=SHIPPED.sources, tools=tools)
    belief = BeliefError(0.4, 0.2, {"B": 0.5})
    covariance = [[0.16, 0.04, 0.12], [0.04, 0.25, 0.09], [0.12, 0.09, 0.36]]
    errors = rng.multivariate_normal([0, 0, 0], covariance, 40_000)
    a, b = calibration.precisions([("A", None), ("B", None)], belief)
    own = 1 / calibration.expected_error(["A", "B"], belief) ** 2 - a - b
    fused = errors @ [own, a, b] / (own + a + b)
    for other in ([1, 0, 0], [0.5, 0.5, 0], [0.4, 0.3, 0.3], [own, a * 1.3, b], [own, a, b + 0.5]):
        assert fused.std() < (errors @ other / sum(other)).std() + 1e-4


def test_the_papers_way_is_a_setting_like_others(tmp_path):
    config = tmp_path / "own.yaml"
    config.write_text(json.dumps({"executor": {"selection": "paper"}}), encoding="utf-8")
    with pytest.raises(SettingsError, match="selection"):
        load_settings(config)
