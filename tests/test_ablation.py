"""The benchmark that takes the program apart: what each variant leaves out, and a run that goes on."""

import json
from dataclasses import replace

import dspy
import pytest

from benchmarks import ablation
from benchmarks.ablation import ALONE, BARE, SENT, WHOLE, WITHOUT, built, holm, main
from data.manifest import Sample
from program.common.settings import load_settings

BOXES = {"left side": (0, 0, 64, 96)}


def assessed(variant, image, **given):
    settings = load_settings(overrides={"executor": {"selection": "model"}})
    return built(settings, variant)(image=image, **given)


def test_each_variant_leaves_out_its_part_alone(blurred_manifest) -> None:
    image = str(blurred_manifest.parent / "3.png")
    asked = {"query": "Rate the quality of the left side.", "regions": BOXES}
    whole = assessed(WHOLE, image, **asked).state
    assert list(whole.evidence.distortion_analysis) == list(whole.evidence.quality_scores) == ["left side"]

    assert assessed(WITHOUT["regions"], image, **asked).state.plan.query_scope == ["Global"]
    toolless = assessed(WITHOUT["tools"], image, **asked).state
    assert (toolless.evidence.tool_logs, toolless.gap) == ([], None)
    assert toolless.evidence.distortion_analysis == whole.evidence.distortion_analysis
    blind = assessed(WITHOUT["detection and analysis"], image, **asked).state
    assert (blind.evidence.distortion_analysis, list(blind.evidence.quality_scores)) == (None, ["left side"])
    one_tool = assessed(WITHOUT["choice of tools (one tool)"], image).state.evidence
    assert len(one_tool.tool_logs) == 1
    assert assessed(WITHOUT["replan"], image).state.max_replan_iterations == 0
    assert assessed(BARE, image).state.evidence.is_empty


FINDING = {"region": "Global", "type": "Blurs", "severity": "severe", "explanation": "Edges smear."}
SCRIPT = {
    "plan": {"plan": {"query_type": "IQA", "query_scope": ["Global"], "distortions": [], "required_tools": []}},
    "findings": {"findings": [FINDING]},
    "selected_tools": {"selected_tools": []},
    "quality_probs": {
        "quality_probs": {"1": 0.1, "2": 0.2, "3": 0.4, "4": 0.2, "5": 0.1},
        "quality_reasoning": "Soft.",
    },
}


@pytest.mark.parametrize(
    ("name", "line", "findings"),
    [("nothing", False, False), ("line", True, False), ("findings", False, True), ("line and findings", True, True)],
)
def test_a_model_is_sent_what_a_variant_names_and_the_tools_are_fused_all_the_same(
    name, line, findings, scripted_lm, blurred_manifest
) -> None:
    lm = scripted_lm(SCRIPT)
    settings = load_settings(overrides={"assessment": {"scoring": "probabilities", "diagnosis": "merged"}})
    with dspy.context(lm=lm):
        program = built(settings, replace(WHOLE, sent=SENT[name]))
        result = program(image=str(blurred_manifest.parent / "3.png"))
        readings = result.state.evidence.readings
        fused = program.summarizer.fusion.fuse_scores(readings.scores, result.level_probabilities, readings.precisions)
    last = lm.engine.text(lm.engine.requests[-1])
    assert ("Measured quality:" in last, "Edges smear" in last) == (line, findings)
    assert result.quality_score == pytest.approx(fused)
    assert result.usage.replans == 0


def test_a_stopped_run_goes_on_and_asks_nothing_twice(blurred_manifest, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(ablation, "QUESTIONS", 3)
    monkeypatch.setattr(ablation, "WITHOUT", {name: WITHOUT[name] for name in ("regions", "model in the fusion")})
    monkeypatch.setattr(ablation, "ALONE", {"replan": ALONE["replan"]})
    asked, real = [], ablation.asked

    def stopping(program, variant, sample: Sample):
        if len(asked) == 7:
            raise KeyboardInterrupt
        asked.append(sample.id)
        return real(program, variant, sample)

    command = ["parts", str(blurred_manifest), "--count", "3", "--timed", "0", "--work", str(tmp_path / "work")]
    monkeypatch.setattr(ablation, "asked", stopping)
    assert main(command) == 130
    file = tmp_path / "work" / "parts-expert.jsonl"
    first = file.read_text("utf-8")
    assert first.count("\n") == 7

    monkeypatch.setattr(ablation, "asked", real)
    file.write_text(first + '{"half', "utf-8")
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert file.read_text("utf-8").startswith(first)
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    keys = [(line["variant"], line["set"], line["id"]) for line in lines]
    assert len(keys) == len(set(keys)) == 6 * 3 * 3
    assert "| replan | 0 | 0 | 0 |" in printed
    assert "| model in the fusion | 3 |" in printed
    assert main(command) == 0
    assert capsys.readouterr().out == printed


def test_holm_holds_the_least_chances_to_the_whole_table() -> None:
    assert holm([0.5, 0.001, 0.02]) == 0.02
    assert holm([0.5, 0.03, 0.02]) == -1.0
