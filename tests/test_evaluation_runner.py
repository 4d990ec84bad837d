"""Running a program over samples: rows, failures, context, checkpoints, records, comparison and reports."""

import contextvars
import gc
import io
import json
import re
import threading
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import dspy
import numpy as np
import pytest
from rich.console import Console

from data import manifest
from program.agent.state import AssessmentState
from program.common.backends import Usage
from program.common.errors import InputError
from program.common.request import DEFAULT_QUERY
from program.evaluation.charts import comparison_table, figures_table, notes, scatter_plot
from program.evaluation.evaluating import Evaluating, run_samples
from program.evaluation.figures import compare, details_of, summarize
from program.evaluation.intervals import METRICS
from program.evaluation.publishing import log_origin
from program.evaluation.record import Dataset, EvaluationRecord
from tests.rows import assessment, labelled

ROOT = Path(__file__).resolve().parents[1]


def Sample(name, quality=None, image=Path("x.png"), **more):  # noqa: N802 - stands for the manifest's
    return manifest.Sample(id=name, mos=quality, image=image, **more)


_answer = assessment


def _scoring(n, **more):
    return [Sample(f"s{i}", quality=1 + 4 * i / max(n - 1, 1), image=Path(f"{i}.png"), **more) for i in range(n)]


def _by_name(*, image, **_):
    """A program whose score follows the image's number, imperfectly and deterministically."""
    number = int(Path(image).stem)
    return _answer(1 + (number * 7 % 23 + number) / 20)


def _run(program, samples, **more):
    def named(*, image, **asked):
        return program(image=str(image), **asked)

    return run_samples(named, samples, progress=False, **more)


def test_program_gets_the_sample_and_a_default_question():
    seen = []
    samples = [
        Sample("a", quality=3.0, reference=Path("r.png"), regions={"sky": (0, 0, 1, 1)}),
        Sample("b", answer="B", options={"A": "no", "B": "yes"}, query="Blurry?"),
    ]
    _run(lambda **given: seen.append(given) or _answer(3.0), samples, workers=1)
    assert seen[0] == {
        "image": "x.png", "query": DEFAULT_QUERY, "reference": Path("r.png"), "options": None,
        "regions": {"sky": (0, 0, 1, 1)}, "intended": None, "kind": None,
    }  # fmt: skip
    assert seen[1]["query"] == "Blurry?"
    assert seen[1]["options"] == {"A": "no", "B": "yes"}


def test_results_keep_the_samples_order_whatever_finishes_first():
    def slow_first(*, image, **_):
        time.sleep(0.03 if image == "0.png" else 0)
        return _by_name(image=image)

    samples = _scoring(12)
    record = _run(slow_first, samples, workers=4)
    assert [row.id for row in record.rows] == [sample.id for sample in samples]
    truth, predicted = [row.truth for row in record.rows], [row.predicted for row in record.rows]
    assert record.srcc.value == pytest.approx(METRICS["srcc"](truth, predicted), rel=1e-12)
    assert record.rmse.value == pytest.approx(METRICS["rmse"](truth, predicted), rel=1e-12)
    one = _run(_by_name, samples, workers=1)
    assert one.figures == record.figures
    shuffled = _run(_by_name, samples[::-1], workers=3)
    assert shuffled.figures == record.figures


def test_a_failing_sample_is_recorded_counted_and_left_out():
    def sometimes(*, image, **_):
        if image == "3.png":
            raise ValueError("cannot read\nthis image")
        if image == "5.png":
            return _answer("Unable to determine", status="failed", error="no answer")
        if image == "7.png":
            return _answer(float("nan"))
        if image == "9.png":
            return _answer("good")
        if image == "11.png":
            return _answer(3.0, level_probabilities={"high": "much"})
        return _by_name(image=image)

    record = _run(sometimes, _scoring(20))
    assert record.scoring.model_dump() == {"asked": 20, "used": 15, "failed": 5, "unlabelled": 0}
    assert record.srcc.n == 15
    failed = {row.id: row for row in record.rows if row.status == "failed"}
    assert failed["s3"].error == "image 's3': could not be judged (ValueError: cannot read this image)"
    assert failed["s5"].error == "no answer"
    assert "could not be judged" in failed["s7"].error
    assert "'good'" in failed["s9"].error
    assert "could not be judged" in failed["s11"].error
    assert all(row.predicted is None for row in failed.values())
    kept = _run(_by_name, [s for i, s in enumerate(_scoring(20)) if i not in {3, 5, 7, 9, 11}])
    assert {name: figure.of(20) for name, figure in kept.figures.items()} == record.figures


def test_when_everything_fails_there_is_a_record_without_figures():
    def broken(**_):
        raise RuntimeError("down")

    record = _run(broken, [*_scoring(3), Sample("m", answer="A", options={"A": "x", "B": "y"})])
    assert (record.scoring.failed, record.mcq.failed, record.failed) == (3, 1, 4)
    assert record.srcc.value is None
    assert record.accuracy.n == 0
    assert EvaluationRecord.model_validate_json(record.model_dump_json()) == record


def test_choices_are_compared_by_letter_and_unlabelled_samples_enter_no_figure():
    options = {"A": "no", "B": "yes"}
    samples = [
        Sample("m1", answer="A", options=options), Sample("m2", answer="B", options=options),
        Sample("m3", answer="A", options=options), Sample("m4", options=options), Sample("o"),
    ]  # fmt: skip
    record = _run(lambda **_: _answer(" a "), samples)
    assert record.accuracy.value == pytest.approx(2 / 3)
    assert record.mcq.model_dump() == {"asked": 4, "used": 3, "failed": 0, "unlabelled": 1}
    assert record.other.model_dump() == {"asked": 1, "used": 0, "failed": 0, "unlabelled": 1}
    assert record.srcc is None
    assert record.summary()["plcc"] is None
    assert record.rows[-1].predicted == "a"


def test_questions_about_one_image_are_one_group():
    samples = [Sample(f"m{i}", answer="A", options={"A": "x", "B": "y"}, image=Path(f"{i % 4}.png")) for i in range(12)]
    record = _run(lambda **_: _answer("A"), samples)
    assert record.accuracy.groups == 4
    assert record.accuracy.descriptive
    assert "png" not in "".join(row.group for row in record.rows)


def test_versions_of_one_photograph_are_one_group():
    samples = _scoring(12)
    samples = [s.model_copy(update={"reference": Path(f"{i % 3}.png")}) for i, s in enumerate(samples)]
    assert _run(_by_name, samples).srcc.groups == 3


def test_opinions_are_compared_on_the_scale_of_the_scores():
    # 1 and 3 of 5 with a deviation of 0.4: a score 0.9 away is an outlier, one 0.7 away is none.
    labels = {"mos_range": (0, 100), "mos_std": 10.0}
    samples = [Sample(f"s{i}", quality=q, image=Path(f"{i}.png"), **labels) for i, q in enumerate((0, 50))]
    record = _run(lambda image, **_: _answer([1.9, 3.7][int(Path(image).stem)]), samples)
    assert [row.mos_std for row in record.rows] == [0.4, 0.4]
    assert details_of(record.rows).outlier_ratio.value == 0.5


def test_the_slow_images_are_told_from_the_usual_ones():
    rows = [labelled(id=str(i), group=str(i), task="open", seconds=float(i)) for i in range(101)]
    pace = summarize(rows).pace
    assert (pace["seconds_p50"], pace["seconds_p95"]) == (50.0, 95.0)


def test_context_reaches_every_thread():
    asked = contextvars.ContextVar("asked", default="nothing")
    seen, threads = set(), set()

    def look(**_):
        time.sleep(0.005)
        seen.add((asked.get(), dspy.settings.lm))
        threads.add(threading.current_thread().name)
        return _answer(3.0)

    asked.set("something")
    with dspy.context(lm="the caller's own"):
        _run(look, _scoring(8), workers=3)
    assert seen == {("something", "the caller's own")}
    assert len(threads) > 1
    assert threading.main_thread().name not in threads


def test_costs_rungs_and_probabilities_are_kept():
    usage = Usage(lm_calls=3, input_tokens=10, output_tokens=5)
    told = {"level_probabilities": {1: 0.25, 2: 0.75}, "attempt": "first call"}
    record = _run(lambda **_: _answer(2.0, usage=usage, **told), _scoring(4))
    assert (record.lm_calls, record.tokens, record.cost_usd) == (12, 60, None)
    assert record.attempts == {"first call": 4}
    assert record.rows[0].level_probabilities == {1: 0.25, 2: 0.75}


def test_errors_hold_no_base64_and_stay_short():
    def spill(**_):
        raise ValueError("refused data:image/png;base64," + "iVBORw0KGgo" * 5000 + " " + "long words " * 200)

    row = Evaluating(spill)(Sample("a", quality=2.0))
    assert len(row.error) <= 300
    assert "iVBORw0KGgoiVBOR" not in row.error


def test_unusable_arguments_are_refused():
    with pytest.raises(InputError, match="workers: 0 is too few"):
        _run(_by_name, _scoring(2), workers=0)
    with pytest.raises(InputError, match="sample 's0' occurs twice"):
        _run(_by_name, [*_scoring(2), _scoring(1)[0]])


def test_a_stream_is_read_only_as_far_as_needed_and_memory_stays_flat():
    finished, ahead = [], []

    def stream():
        for i in range(100):
            ahead.append(i - len(finished))
            yield Sample(f"s{i}", quality=1 + i % 5, image=Path(f"{i}.png"))

    def heavy(*, image, **_):
        finished.append(image)
        state = AssessmentState(query="Rate it.", image_path=image, plan_error="x" * 1_000_000)
        return _answer(3.0 + len(image) / 10, state=state, quality_reasoning="x" * 100_000)

    gc.collect()
    tracemalloc.start()
    record = _run(heavy, stream(), workers=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(record.rows) == 100
    assert max(ahead) <= 5
    assert peak < 20_000_000  # 100 assessments would hold 110 MB


def test_a_model_service_that_is_down_ends_an_evaluation():
    def down(*, image, **_):
        if int(Path(image).stem) > 2:
            raise dspy.LMError("down")
        return _by_name(image=image)

    with pytest.raises(dspy.LMError, match="down"):
        _run(down, _scoring(9), workers=1)


def test_a_model_service_that_fails_now_and_then_costs_those_samples_alone():
    def unsteady(*, image, **_):
        if int(Path(image).stem) % 2:
            raise dspy.LMError("busy")
        return _by_name(image=image)

    record = _run(unsteady, _scoring(9), workers=1)
    assert [row.status for row in record.rows] == ["ok", "failed"] * 4 + ["ok"]


def test_no_key_stands_in_the_row_of_a_sample_that_failed(monkeypatch):
    monkeypatch.setenv("LAB_API_KEY", "planted-0c44e9a2b8")

    def refused(**_):
        raise ValueError("no such key: planted-0c44e9a2b8")

    assert _run(refused, _scoring(1)).rows[0].error.endswith("no such key: <LAB_API_KEY>)")


def test_what_samples_cost_is_summed_over_those_that_say():
    usage = Usage(lm_calls=4, input_tokens=100, replans=1, seconds={"planner": 0.5, "total": 2.0})

    def program(*, image, **_):
        if not int(Path(image).stem) % 2:
            raise ValueError("no answer")
        return _answer(3.0, usage=usage)

    record = _run(program, _scoring(10))
    assert [row.usage for row in record.rows if row.usage is not None] == 5 * [usage]
    assert record.lm_calls == 4 * 5


def test_record_names_what_it_came_from():
    context = {"settings_hash": "s", "program_hash": "p", "lms": {"planner": "perceptual/expert@1"}}
    record = _run(_by_name, _scoring(12), dataset=Dataset(name="d", split="test"), context=context, seed=3)
    assert record.context == context
    assert record.seed == 3
    assert record.wall_seconds > 0
    assert record.environment.versions["numpy"]
    assert record.environment.python.count(".") == 2
    assert EvaluationRecord.model_validate_json(record.model_dump_json()) == record
    summary = record.summary()
    assert "rows" not in summary
    assert {"value", "low", "high", "n"} <= summary["srcc"].keys()
    json.dumps(summary, allow_nan=False)
    with pytest.raises(ValueError, match="extra"):
        EvaluationRecord.model_validate({**summary, "more": 1})


def _rows(offset=0.0, n=40, wrong=()):
    scoring = [
        labelled(id=f"s{i}", group=f"g{i % 4}", task="scoring", truth=1 + i / 10, status="ok",
            predicted=1 + i / 10 + offset * (-1) ** i, distortion=f"d{i % 3}")
        for i in range(n)
    ]  # fmt: skip
    mcq = [
        labelled(
            id=f"m{i}", group=f"g{i % 4}", task="mcq", truth="A", predicted="B" if i in wrong else "A", status="ok"
        )
        for i in range(10)
    ]
    return scoring + mcq


def test_comparison_is_over_the_samples_both_answered():
    before, after = _rows(offset=1.0, wrong=range(5)), _rows(offset=0.1)
    after[0] = after[0].model_copy(update={"status": "failed"})
    differences = compare(before, after[::-1])
    assert differences["srcc"].n == 39
    assert differences["srcc"].value > 0
    assert differences["rmse"].value == pytest.approx(-0.9)
    assert differences["accuracy"].value == pytest.approx(0.5)
    assert differences["srcc"].descriptive
    assert compare(before, []) == {}
    with pytest.raises(InputError, match=r"sample 's1': its truth is 1\.1 in one and 9\.0 in the other"):
        compare(before, [row.model_copy(update={"truth": 9.0}) if row.id == "s1" else row for row in after])


def _shown(table, width=80):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_so_few_samples_that_figures_say_nothing_are_told():
    scores = {"a": 1.0, "b": 2.0, "c": 4.0}
    rows = [labelled(id=n, group=n, task="scoring", truth=s, predicted=s, status="ok") for n, s in scores.items()]
    told = notes(summarize(rows))
    assert "Only 3 scores: neither figures nor intervals of so few say anything of others." in told
    assert not any("Undefined" in line for line in told)
    alike = [row.model_copy(update={"score": 2.0}) for row in rows]
    assert "Undefined, as all answers are the same: SRCC, PLCC, KRCC." in notes(summarize(alike))
    assert not any("Only" in line for line in notes(summarize(_rows(1.0))) if "scores" in line)


def test_table_fits_80_columns_and_says_what_is_descriptive():
    failed = labelled(id="x", group="g1", task="scoring", truth=2.0, status="failed", error="e")
    before, after = summarize([*_rows(1.0, wrong=range(5)), failed]), summarize(_rows(0.1))
    text = _shown(comparison_table(before, after, compare(before.rows, after.rows)))
    for words in ("before", "after", "difference", "order (SRCC)", "error (RMSE)", "questions right", "photographs"):
        assert words in text
    assert "-0.900" in text
    assert "…" not in text
    assert "over images of only 4 photographs: they do not speak of new photographs" in " ".join(text.split())
    assert "before: 1 of 51 samples failed" in text
    many = [row.model_copy(update={"group": row.id}) for row in _rows(0.5)]
    other = summarize(many)
    assert "new photographs" not in _shown(comparison_table(other, other, compare(many, many)))
    paid = other.model_copy(update={"pace": {"tokens_per_image": 123_456.7, "model_seconds_per_image": 2.53}})
    unsure = {
        name: figure.model_copy(update={"value": 0.002, "low": -0.001, "high": 0.005, "descriptive": False})
        for name, figure in compare(before.rows, after.rows).items()
    }
    text = _shown(comparison_table(paid, paid, unsure))
    assert "+0.002 [-0.001, +0.005] no sure difference" in text
    assert re.search(r"tokens an image +123,457 +123,457", text)
    assert re.search(r"seconds an image +2.53 +2.53", text)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_table_shows_undefined_figures_as_such():
    constant = [row.model_copy(update={"score": 3.0}) for row in _rows() if row.task == "scoring"]
    record = summarize(constant)
    text = _shown(comparison_table(record, record, compare(constant, constant)))
    assert "undefined" in text
    assert "questions" not in text


def test_scatter_plot_shows_both_programs(tmp_path):
    before, after = summarize(_rows(1.0)), summarize(_rows(0.1))
    plot = scatter_plot({"uncompiled": before, "compiled": after})
    panels = plot.get_axes()
    assert [axis.get_title() for axis in panels] == ["uncompiled", "compiled"]
    assert f"SRCC {after.srcc}" in panels[1].texts[0].get_text()
    assert "n = 40 from 4 photographs" in panels[1].texts[0].get_text()
    assert [len(axis.collections[0].get_offsets()) for axis in panels] == [40, 40]
    assert {text.get_text() for text in plot.legends[0].get_texts()} == {"d0", "d1", "d2"}
    plot.savefig(tmp_path / "scatter.png")
    assert (tmp_path / "scatter.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "rows", [[], _rows(n=1), [r.model_copy(update={"group": r.id, "distortion": None}) for r in _rows()]]
)
def test_scatter_plot_takes_few_or_uncoloured_rows(tmp_path, rows):
    scatter_plot({"only": summarize(rows)}).savefig(tmp_path / "s.png")
    assert (tmp_path / "s.png").stat().st_size > 1000


@pytest.mark.parametrize("panels", [("program",), ("uncompiled", "compiled")])
@pytest.mark.parametrize("name", ["AgenticIQA/c40.jsonl", f"/home/{'folder/' * 9}{'long' * 20}.jsonl"])
def test_the_title_of_a_scatter_plot_is_whole_and_within_the_plot(name, panels):
    record = summarize(_rows(), dataset=Dataset(name=name))
    plot = scatter_plot(dict.fromkeys(panels, record))
    plot.canvas.draw()
    extent, title = plot._suptitle.get_window_extent(), plot._suptitle.get_text()
    assert 0 <= extent.x0 < extent.x1 <= plot.bbox.width
    assert extent.y1 <= plot.bbox.height
    assert "".join(title.split()) == "".join(f"Agreement with people {name} · all splits".split())


def test_progress_goes_to_stderr_only(capsys):
    run_samples(lambda **_: _answer("no score"), _scoring(12), progress=True, label="testing")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "testing: 12/12" in captured.err
    assert "12 failed" in captured.err
    run_samples(_by_name, _scoring(3), progress=False)
    assert capsys.readouterr().err == ""


def test_no_point_falls_off_the_plot_when_a_human_score_passes_its_scale():
    scoring = [row for row in _rows() if row.task == "scoring"]
    record = summarize([row.model_copy(update={"truth": row.truth + 1.5, "score": 4.0}) for row in scoring])
    low, high = scatter_plot({"one": record}).get_axes()[0].get_xlim()
    assert low < min(row.truth for row in record.rows)
    assert high > max(row.truth for row in record.rows) > 5


def _scored(truths, answers):
    return [
        labelled(id=f"s{n}", group=f"g{n}", task="scoring", truth=truth, predicted=answer, status="ok")
        for n, (truth, answer) in enumerate(zip(truths, answers, strict=True))
    ]


_COEFFICIENTS = ("srcc", "plcc", "krcc")
_AFTER_CURVE = ("plcc_logistic4", "rmse_logistic4")


@pytest.mark.spec("047/statistics-of-nothing-are-nothing")
@pytest.mark.parametrize(
    ("truths", "answers", "reason", "undefined"),
    [
        ([1.0, 2.0], [2.0, 3.0], "it takes 3 samples, not 2", _COEFFICIENTS),
        ([1.0, 2.0], [2.0, 3.0], "it takes 5 samples, not 2", _AFTER_CURVE),
        ([3.0] * 12, list(np.linspace(1, 5, 12)), "all labels are the same", _COEFFICIENTS + _AFTER_CURVE),
        (list(np.linspace(1, 5, 12)), [3.0] * 12, "all answers are the same", _COEFFICIENTS + _AFTER_CURVE),
        # A constant that rounding has moved is one all the same.
        (list(np.linspace(1, 5, 12)), [0.1 + 0.2, 0.3] * 6, "all answers are the same", _COEFFICIENTS + _AFTER_CURVE),
        (
            [1.0, 3.0, 5.0] * 5,
            list(np.linspace(1, 5, 15)),
            "3 different labels, the curve has 4",
            ("rmse_logistic4",),
        ),
        (list(np.linspace(1, 5, 15)), [1.0, 3.0, 5.0] * 5, "3 different answers, the curve has 4", ("plcc_logistic4",)),
    ],
)
def test_statistics_of_nothing_are_null_with_a_reason(truths, answers, reason, undefined):
    rows = _scored(truths, answers)
    record = summarize(rows).model_copy(update={"details": details_of(rows)})
    told = {**record.summary(), **record.summary()["details"]}
    for name in undefined:
        figure = told[name]
        assert (figure["value"], figure["low"], figure["high"]) == (None, None, None), name
        assert figure["reason"].startswith(reason)
    text = " ".join(_shown(figures_table(record)).split())
    assert f"Undefined, as {reason}" in text
    assert "[1.000, 1.000]" not in text
    assert told["rmse"]["value"] is not None


@pytest.mark.spec("047/statistics-of-nothing-are-nothing")
def test_a_perfect_order_of_a_few_has_no_interval_and_a_difference_of_nothing_is_nothing():
    few = _scored([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])
    figure = summarize(few).srcc
    assert (figure.value, figure.low, figure.reason) == (1.0, None, None)
    gain = compare(few[:2], few[:2])["srcc"]
    assert (gain.value, gain.reason) == (None, "it takes 3 samples, not 2")


@pytest.mark.spec("047/statistics-of-nothing-are-nothing")
def test_mlflow_says_why_a_figure_is_missing():
    logged = {}
    run = SimpleNamespace(log_dataset=lambda *_: None, set_tags=logged.update)
    log_origin(run, summarize(_scored([1.0, 2.0], [2.0, 3.0])), {})
    assert logged["undefined.srcc"] == "it takes 3 samples, not 2"
