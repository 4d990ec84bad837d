"""One entry in the table of metrics is all that a new figure takes: everything else follows from it."""

import io
import json

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from program.evaluation.baselines import with_baselines
from program.evaluation.charts import baseline_tables, comparison_table, figures_table
from program.evaluation.figures import compare, details_of, summarize
from program.evaluation.intervals import METRICS, Metric
from program.evaluation.publishing import agreement, headlines, render
from program.evaluation.record import EvaluationRecord
from tests.rows import labelled


def _near(truth, predicted):
    return float(np.mean(np.abs(np.subtract(truth, predicted)) <= 1))


def _worst(truth, predicted):
    return float(np.max(np.abs(np.subtract(truth, predicted))))


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> None:
    near = Metric(
        "Within a point ↑", _near, bounds=(0, 1), headline=True, word="nearly right", card="scores nearly right",
        parts=("by_distortion",),
    )  # fmt: skip
    monkeypatch.setitem(METRICS, "near", near)
    monkeypatch.setitem(METRICS, "worst", Metric("Largest error ↓", _worst, direction=-1))


def _rows(noise=0.8):
    rng = np.random.default_rng(1)
    return [
        labelled(
            id=f"s{i:02}", group=f"g{i}", task="scoring", truth=1 + i / 10, predicted=1 + i / 10 + rng.normal(0, noise),
            status="ok", distortion="ab"[i % 2], baselines={"PIQE": 3.0},
        )
        for i in range(40)
    ]  # fmt: skip


def _text(*tables):
    console = Console(width=120, record=True, file=io.StringIO())
    for table in tables:
        console.print(table)
    return console.export_text()


def test_one_entry_reaches_record_comparison_tables_page_and_mlflow(entries):
    rows, better = _rows(), _rows(0.1)
    record = summarize(rows)
    record = with_baselines(record.model_copy(update={"details": details_of(rows)}))
    by_hand = _near([row.truth for row in rows], [row.predicted for row in rows])
    summary = json.loads(json.dumps(record.summary()))
    assert summary["near"]["value"] == record.near.value == pytest.approx(by_hand)
    assert summary["near"]["method"] == "bootstrap over images"
    assert 0 <= summary["near"]["low"] <= by_hand <= summary["near"]["high"] <= 1
    largest = _worst([row.truth for row in rows], [row.predicted for row in rows])
    assert summary["details"]["worst"]["value"] == pytest.approx(largest)
    assert summary["details"]["by_distortion"]["a"]["figures"]["near"]["n"] == 20
    assert summary["baselines"]["PIQE"]["gain"]["near"]["n"] == 40
    assert EvaluationRecord.model_validate_json(record.model_dump_json()) == record

    gain = compare(rows, better)
    assert gain["near"].value == pytest.approx(summarize(better).near.value - by_hand)
    assert "worst" not in gain
    assert "nearly right" in _text(comparison_table(record, summarize(better), gain))
    assert "Largest error ↓" in _text(figures_table(record))
    assert "Within a point ↑" in _text(*baseline_tables(record))
    page = render(record, [])
    for words in ("Within a point ↑", "scores nearly right", "Largest error ↓"):
        assert words in page


def test_a_record_has_the_fields_of_the_table_and_no_others():
    record = summarize(_rows())
    assert record.accuracy is None
    assert set(METRICS) == {*_figures(record.model_dump()), *_figures(details_of(_rows()).model_dump())}
    with pytest.raises(ValueError, match="near"):
        EvaluationRecord.model_validate({**record.model_dump(), "near": None})
    with pytest.raises(AttributeError, match="near"):
        _ = record.near


def _figures(fields):
    return set(METRICS) & set(fields)


def test_mlflow_lists_each_figure_under_its_own_name(service_program):
    rows = [
        labelled(
            id=f"s{i:02}", group=f"g{i}", task="scoring", truth=1 + i / 10, predicted=2 + i / 20,
            expected_level=5 - i / 10, tool_mean_equal=1 + i / 10 + i % 2,
        )
        for i in range(40)
    ]  # fmt: skip
    record = summarize(rows)
    values = headlines(record, service_program())
    of_tools = stats.spearmanr([row.truth for row in rows], [row.beliefs["tool_mean_equal"] for row in rows])[0]
    assert (values["model_srcc"], values["tools_srcc"]) == pytest.approx((-1.0, of_tools))
    figures = {name: getattr(record, name).value for name in ("srcc", "plcc", "rmse")}
    assert {name: values[name] for name in figures} == pytest.approx(figures, abs=1e-4)
    assert agreement(record) == f"SRCC {record.srcc.value_text()} {record.srcc.ends_text()} n=40"
    assert (values["failed"], values["fusion_eta"]) == (0, 1.0)
