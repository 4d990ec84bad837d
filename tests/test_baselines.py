"""Baselines: what each one sees, that all answer the same samples, and how the table shows them."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from data.manifest import Sample
from program.evaluation import evaluate
from program.evaluation.baselines import BaselineAnswers, with_baselines
from program.evaluation.charts import baseline_tables, figures_table
from program.evaluation.figures import summarize
from program.evaluation.intervals import interval, paired_difference
from program.evaluation.record import LabelledRow
from program.fusion import ScoreFusion
from program.fusion.scores import FittedFusion
from program.lms.limits import Budget, BudgetSpent
from tests.pictures import noise
from tests.rows import labelled

PROBABILITIES = {"bad": 0.05, "poor": 0.15, "fair": 0.5, "good": 0.2, "excellent": 0.1}
SCRIPT = {
    "plan": {
        "query_type": "IQA", "query_scope": ["Global"], "distortion_source": "Inferred",
        "reference_mode": "No-Reference", "distortion_detection": True, "distortion_analysis": True,
        "tool_selection": True, "tool_execute": True,
    },
    "findings": {"findings": [{"region": "Global", "type": "Blurs", "severity": "moderate", "explanation": "Soft."}]},
    "selected_tools": {"selected_tools": [{"region": "Global", "distortion": "Blurs", "tool": "PIQE"}]},
    "quality_probs": {"quality_probs": PROBABILITIES, "quality_reasoning": "Moderate blur."},
    "final_answer": {"final_answer": "A", "quality_reasoning": "Blurry."},
}  # fmt: skip


@pytest.fixture
def samples(tmp_path: Path, rng: np.random.Generator) -> list[Sample]:
    found = []
    for i in range(6):
        path = tmp_path / f"{i}.png"
        Image.fromarray(noise(rng, 32, 48)).save(path)
        more = {"reference": path} if i < 2 else {}
        found.append(Sample(id=f"s{i}", image=path, mos=1 + 0.7 * i, mos_std=0.4, **more))
    options = {"A": "Yes", "B": "No"}
    found.append(Sample(id="q", image=path, query="Is it blurry?", options=options, answer="A"))
    return found


def _run(iqa, samples, **more):
    return evaluate(iqa, samples, baselines=True, progress=False, workers=1, **more)


def test_a_budget_that_ends_in_a_baseline_ends_the_run(scripted_iqa, fake_runner, samples):
    iqa = scripted_iqa(SCRIPT, fake_runner({"PIQE": 2.0}))
    calls = evaluate(iqa, samples[3:4], progress=False, workers=1).lm_calls
    # Not a sample without this baseline: the figures of the others would be of more samples.
    with pytest.raises(BudgetSpent), Budget(max_calls=calls):
        _run(scripted_iqa(SCRIPT, fake_runner({"PIQE": 2.0})), samples[3:4])


def test_every_way_answers_the_same_samples_and_nothing_leaks_into_the_model_alone(scripted_iqa, fake_runner, samples):
    runner = fake_runner({"PSNR": 4.0, "VIF": 3.0, "PIQE": 2.0})
    iqa = scripted_iqa(SCRIPT, runner)
    record = _run(iqa, samples)
    assert record.failed == 0
    rows = {row.id: row for row in record.rows}
    with_reference, without = rows["s0"], rows["s3"]
    assert with_reference.baselines == pytest.approx(
        {"PSNR": 4.0, "VIF": 3.0, "PIQE": 2.0, "all tools": 3.0, "model only": 3.15}
    )
    assert without.baselines == pytest.approx({"PIQE": 2.0, "all tools": 2.0, "model only": 3.15})
    assert rows["q"].baselines == {"model only": "A"}

    asked = iqa.engine.asked("quality_probs")
    texts = [iqa.engine.text(request) for request in asked]
    sighted = [text for text in texts if "PIQE" in text or "VIF" in text]
    blind = [text for text in texts if text not in sighted]
    assert (len(sighted), len(blind)) == (4, 6)  # two are their own references: 5, whatever a model says
    assert all("Soft." in text and "Measured quality: " in text for text in sighted)
    assert not any("Soft." in text or "Measured quality: " in text for text in blind)
    assert all(iqa.engine.images(request) for request in asked)


def test_beliefs_and_both_formulas_are_kept_and_right(scripted_iqa, fake_runner, samples):
    record = _run(scripted_iqa(SCRIPT, fake_runner({"PIQE": 2.0})), samples[3:6])
    row = record.rows[0]
    p = {level: mass for level, mass in zip(range(1, 6), PROBABILITIES.values(), strict=True)}
    assert row.beliefs["tool_mean_equal"] == 2.0
    assert row.beliefs["expected_level"] == pytest.approx(3.15)
    alpha = {c: math.exp(-((2.0 - c) ** 2)) for c in p}
    alpha = {c: a / sum(alpha.values()) for c, a in alpha.items()}
    printed = sum(alpha[c] * p[c] * c for c in p)
    assert row.beliefs["fusion_printed"] == pytest.approx(max(1.0, printed), abs=1e-6)
    assert row.beliefs["fusion_normalised"] == pytest.approx(printed / sum(alpha[c] * p[c] for c in p), abs=1e-6)
    assert row.predicted == pytest.approx(ScoreFusion().fuse_scores([2.0], p))
    assert row.level == "D"
    assert row.mos_std == 0.4
    assert set(record.baselines) == {
        "PIQE", "tools used", "all tools", "model only", "model with evidence", "mean of tools and model",
        "printed fusion", "normalised fusion",
    }  # fmt: skip
    assert record.baselines["normalised fusion"].rmse.value == pytest.approx(record.rmse.value, abs=1e-5)


def test_the_formulas_are_those_of_the_settings_whatever_a_compile_fitted(scripted_iqa, fake_runner, samples):
    iqa = scripted_iqa(SCRIPT, fake_runner({"PIQE": 2.0}), settings={"fusion": {"eta": 0.5}})
    plain = _run(iqa, samples[3:4]).rows[0]
    iqa.summarizer.fitted = FittedFusion(iqa.resources.fusion, eta=4.0, model_weight=0.5, curve=[(1, 2), (5, 4)])
    fitted = _run(iqa, samples[3:4]).rows[0]
    assert fitted.predicted != plain.predicted
    assert fitted.beliefs == plain.beliefs
    assert plain.beliefs["fusion_normalised"] == pytest.approx(plain.predicted, abs=1e-6)


def test_what_a_baseline_cannot_answer_is_counted_and_the_run_goes_on(scripted_iqa, fake_runner, samples):
    (samples[4].image).write_bytes(b"broken")
    record = _run(scripted_iqa(SCRIPT, fake_runner(failing=["PIQE"], ready=("PIQE",))), samples[2:6])
    assert record.failed == 1
    assert "PIQE" not in record.baselines
    assert "all tools" not in record.baselines
    alone = record.baselines["model only"]
    assert (alone.srcc.n, alone.srcc.asked) == (3, 4)


def test_a_failing_model_alone_is_no_answer(scripted_iqa, fake_runner, samples, monkeypatch):
    iqa = scripted_iqa(SCRIPT, fake_runner())
    answers = BaselineAnswers(iqa)
    assessment = iqa(image=samples[3].image)

    def broken(**_):
        raise RuntimeError("down")

    monkeypatch.setattr(iqa.summarizer, "forward", broken)
    assert "model only" not in answers(samples[3], assessment)
    assert answers(samples[3], assessment)["PIQE"] == 2.6


def _rows(n=60, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        truth = float(rng.uniform(1, 5))
        near, far = (float(np.clip(truth + rng.normal(0, s), 1, 5)) for s in (0.4, 1.5))
        p = {c: 0.2 for c in range(1, 6)}
        rows.append(
            labelled(
                id=f"s{i}", group=f"g{i}", task="scoring", truth=truth, predicted=near, status="ok",
                tool_mean_equal=far, expected_level=near, level_probabilities=p,
                fusion_printed=1.0 + near / 5, fusion_normalised=near,
                baselines={"PIQE": far, "Tool-with-a-long-name": 6 - truth, "all tools": far, "model only": near},
            )
        )  # fmt: skip
    return rows


def test_figures_and_gains_equal_the_interval_functions():
    rows = _rows()
    record = with_baselines(summarize(rows, seed=3))
    ordered = sorted(rows, key=lambda row: row.id)
    truth, program = [r.truth for r in ordered], [r.predicted for r in ordered]
    piqe, groups = [r.baselines["PIQE"] for r in ordered], [r.group for r in ordered]
    way = record.baselines["PIQE"]
    assert way.srcc == interval("srcc", truth, piqe, groups, seed=3).of(60)
    assert way.gain["rmse"] == paired_difference("rmse", truth, piqe, program, groups, seed=3).of(60)
    assert way.gain["srcc"].low > 0
    half = record.baselines["mean of tools and model"]
    mean = [(r.beliefs["tool_mean_equal"] + r.beliefs["expected_level"]) / 2 for r in ordered]
    assert half.plcc == interval("plcc", truth, mean, groups, seed=3).of(60)
    assert type(record).model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_80_columns_without_cutting_anything(width):
    record = with_baselines(summarize(_rows()))
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(figures_table(record))
    for table in baseline_tables(record):
        console.print(table)
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for words in ("program", "PIQE alone", "model only, no", "fusion as", "SRCC ↑", "PLCC ↑", "RMSE ↓"):
        assert words in text
    way = record.baselines["Tool-with-a-long-name"]
    assert f"{way.srcc.value:.3f}" in text
    assert f"{way.gain['srcc'].value:+.3f}" in text
    assert f"[{way.srcc.low:.3f}, {way.srcc.high:.3f}]" in text
    assert f"[{record.srcc.low:.3f}, {record.srcc.high:.3f}]" in text


def test_choices_have_a_table_of_their_own():
    rows = [
        labelled(id=f"q{i}", group=f"g{i}", task="mcq", truth="A", predicted="AB"[i % 2], status="ok", choices=4,
            baselines={"model only": "A"})
        for i in range(20)
    ]  # fmt: skip
    record = with_baselines(summarize(rows))
    assert list(record.baselines) == ["model only"]
    assert record.baselines["model only"].accuracy.value == 1.0
    assert record.baselines["model only"].gain["accuracy"].value == -0.5
    assert len(list(baseline_tables(record))) == 1
    assert record.baselines["model only"].srcc is None


def test_a_row_is_small_and_its_line_holds_no_defaults():
    row = _rows(1)[0]
    assert LabelledRow.model_validate_json(row.line()) == row
    assert "question_type" not in row.line()
    assert row.model_copy(update={"level": "A"}).level == "A"
    assert row.level is None


def test_every_row_is_told_apart_by_its_own_name():
    """The page sorts the rows by their figures: a name that leans on the row above says nothing there."""
    titles = [way.label for way in with_baselines(summarize(_rows(4))).baselines.values()]
    assert len(titles) > 8
    assert len(set(titles)) == len(titles)
    assert not [title for title in titles if "the same" in title]
