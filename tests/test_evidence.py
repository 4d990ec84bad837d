"""Evidence as JSON in the documents' shape, the readings that count, and what an answer rests on."""

import json

import pytest

from program.agent.presentation import findings_in_words, findings_json, findings_note, scores_json
from program.agent.replan import contradiction
from program.agent.state import ExecutorOutput, Finding, ToolLog

ANALYSIS = {"Global": [Finding(type="Blurs", severity="moderate", explanation="Edges appear soft.")]}
SCORES = {"Global": {"Blurs": ("TOPIQ_FR", 2.6)}}


@pytest.mark.spec("001/format-distortion-analysis-for-vlm")
@pytest.mark.spec("000/8-evidence-formatting-strategy")
def test_findings_are_rendered_in_the_documents_shape():
    rendered = findings_json(ANALYSIS)
    assert json.loads(rendered) == {
        "Global": [{"type": "Blurs", "severity": "moderate", "explanation": "Edges appear soft."}]
    }
    assert list(json.loads(rendered)["Global"][0]) == ["type", "severity", "explanation"]


def test_a_language_model_is_told_faults_by_their_words_alone():
    smear = "Strong motion blur smears the top: fine detail makes up 12% of the local contrast."
    faults = [
        Finding(type="Blurs", severity="severe", explanation=smear, fault="motion blur"),
        Finding(type="Noise", severity="none", explanation="There is no noise to speak of: about 0.1 grey levels."),
    ]
    told = findings_in_words({"Global": faults, "车辆": [Finding(type="Noise", severity="slight")], "sky": []})
    assert told == "Strong motion blur smears the top; no Noise\n车辆: slight Noise"
    chinese = Finding(type="Noise", severity="slight", explanation="全图噪声：平坦区域约 8 个灰度级。", fault="noise")
    assert findings_in_words({"Global": [chinese]}) == "全图噪声"
    assert findings_in_words(ANALYSIS) == findings_json(ANALYSIS)  # a model's own findings stay as it gave them
    assert findings_in_words({"Global": []}) is findings_in_words(None) is None


@pytest.mark.spec("001/format-quality-scores-for-vlm")
@pytest.mark.spec("000/8-evidence-formatting-strategy")
def test_scores_are_rendered_in_the_documents_shape():
    assert json.loads(scores_json(SCORES)) == {"Global": {"Blurs": ["TOPIQ_FR", 2.6]}}
    assert json.loads(scores_json({"车辆": {"Noise": ("VIF", 2.123456)}, "sky": {}})) == {
        "车辆": {"Noise": ["VIF", 2.12]}
    }
    assert "车辆" in scores_json({"车辆": {"Noise": ("VIF", 2.1)}})


@pytest.mark.spec("001/handle-missing-executor-evidence")
@pytest.mark.parametrize("nothing", [None, {}, {"Global": []}, {"Global": {}}])
def test_nothing_renders_as_nothing(nothing):
    assert findings_json(nothing) is None
    assert scores_json(nothing) is None


@pytest.mark.spec("003/3-score-fusion")
def test_a_reading_shared_by_distortions_counts_once():
    shared = {
        "Global": {"Blurs": ("VIF", 2.6), "Noise": ("VIF", 2.6), "Contrast": ("PSNR", 3.0)},
        "car": {"Blurs": ("VIF", 2.6)},
    }
    assert sorted(ExecutorOutput(quality_scores=shared).readings.scores) == [2.6, 2.6, 3.0]
    assert ExecutorOutput().readings == ([], None)


def test_what_equal_scores_of_a_tool_add_counts_together():
    # Two categories, one reading at the end of the scale: the calibration shares the tool's weight among them at will.
    logs = [
        ToolLog(tool="VIF", region="Global", distortion=distortion, raw=1.0, score=5.0, precision=precision)
        for distortion, precision in (("Blurs", 6.95), ("Noise", 0.0))
    ]
    logs.append(ToolLog(tool="PSNR", region="Global", distortion="Contrast", raw=40.0, score=4.0, precision=1.5))
    scores = {"Global": {"Blurs": ("VIF", 5.0), "Noise": ("VIF", 5.0), "Contrast": ("PSNR", 4.0)}}
    output = ExecutorOutput(quality_scores=scores, tool_logs=logs)
    assert output.readings == ([4.0, 5.0], [1.5, 6.95])
    unknown = [logs[0], logs[1].model_copy(update={"precision": None}), logs[2]]
    assert output.model_copy(update={"tool_logs": unknown}).readings.precisions is None


@pytest.mark.spec("003/6-logging-and-observability")
def test_used_evidence_names_readings_and_findings():
    used = ExecutorOutput(distortion_analysis=ANALYSIS, quality_scores=SCORES).basis()
    assert used == {
        "readings": [{"region": "Global", "distortion": "Blurs", "tool": "TOPIQ_FR", "score": 2.6}],
        "findings": [{"region": "Global", "type": "Blurs", "severity": "moderate"}],
    }
    assert ExecutorOutput().basis() is None


@pytest.mark.spec("D15/the-worked-example")
def test_distortions_that_a_text_leaves_unsaid_are_named():
    car = [Finding(type="Noise", severity="severe"), Finding(type="Contrast", severity="none")]
    output = ExecutorOutput(distortion_analysis={**ANALYSIS, "car": car})
    assert findings_note(output, "Fair.") == "Found: moderate Blurs, severe Noise in car."
    assert findings_note(output, "Some blur is visible.") == "Found: severe Noise in car."
    assert findings_note(output, "Blurred and noisy, with noise.") == ""
    assert findings_note(output, "模糊。", chinese=True) == "检测到：“car”的严重噪声。"
    assert findings_note(ExecutorOutput(), "Fair.") == ""


@pytest.mark.spec("001/contradictory-evidence")
def test_a_contradiction_is_told_with_its_region_distortion_and_score():
    severe = {"car": [Finding(type="Noise", severity="severe")]}
    output = ExecutorOutput(distortion_analysis=severe, quality_scores={"car": {"Noise": ("VIF", 4.4)}})
    assert contradiction(output).text() == "Contradictory evidence: severe Noise in car but a tool score of 4.40"
    elsewhere = ExecutorOutput(distortion_analysis=severe, quality_scores={"Global": {"Noise": ("VIF", 4.4)}})
    assert contradiction(elsewhere) is None
