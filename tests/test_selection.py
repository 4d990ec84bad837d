"""What is taken and what is said: small steps decide nothing, a fitted fusion has to gain clearly, losses are told."""

import re
from dataclasses import replace

import numpy as np
import pytest

from optimizers.compiling import compile_program
from optimizers.job import prepare_job
from optimizers.recipes import fits
from optimizers.report import learned_sentences, reasons
from optimizers.search import Candidate
from optimizers.selection import (
    CLEAR,
    CLEARLY_NEARER,
    IN_FOLDS,
    SCORE_STEP,
    VALIDATION,
    Ranking,
    clear_gain,
    validation_score,
    verdict_of,
)
from program.agent.loop import AgenticIQA
from program.common.backends import Usage
from program.common.settings import load_settings
from program.evaluation.figures import compare, summarize
from program.evaluation.metrics import srcc
from program.fusion.scores import FittedFusion
from tests.rows import labelled

pytestmark = pytest.mark.usefixtures("undrawn", "unlogged", "untracked", "untraced", "coarse", "measured_once")

N = 200
TRUTH = np.random.default_rng(5).uniform(1, 5, N)
NOISE = np.random.default_rng(6).normal(0, 1, N)


def record(predicted, photographs=N, tokens=None):
    usage = None if tokens is None else Usage(lm_calls=1, input_tokens=tokens)
    rows = [
        labelled(
            usage=usage,
            id=str(i),
            group=str(i % photographs),
            task="scoring",
            truth=float(t),
            predicted=None if np.isnan(p) else float(p),
            status="failed" if np.isnan(p) else "ok",
        )
        for i, (t, p) in enumerate(zip(TRUTH, predicted, strict=True))
    ]
    return summarize(rows)  # nan: the sample failed


def value(found, name):
    return found.figures[name].value


PLAIN = TRUTH + 0.5 * NOISE


def better_by(gain, than=PLAIN):
    """Return predictions whose SRCC is higher by `gain` or a little more."""
    least = srcc(TRUTH, than) + gain
    return next(p for share in np.linspace(0.5, 0, 4001) if srcc(TRUTH, p := TRUTH + share * NOISE) >= least)


def test_a_map_is_taken_for_a_scale_that_comes_clearly_nearer_and_no_other() -> None:
    shifted = record(PLAIN + 0.3)
    whole = record(PLAIN)
    assert value(whole, "srcc") == pytest.approx(value(shifted, "srcc"), abs=1e-12)
    assert value(whole, "rmse") < (1 - CLEARLY_NEARER) * value(shifted, "rmse")
    assert clear_gain(whole, shifted)
    little = record(PLAIN + 0.28)
    assert value(little, "rmse") < value(shifted, "rmse")
    assert not clear_gain(little, shifted)
    assert not clear_gain(shifted, shifted)
    assert not clear_gain(shifted, whole)


def test_ranks_are_changed_for_a_clear_gain_only_however_near_the_scale_comes() -> None:
    base = record(PLAIN + 0.6)
    gains = {by: record(better_by(by)) for by in (CLEAR / 2, CLEAR)}
    assert all(value(found, "rmse") < value(base, "rmse") for found in gains.values())
    assert not clear_gain(gains[CLEAR / 2], base)
    assert clear_gain(gains[CLEAR], base)
    lower = record(TRUTH + 0.53 * NOISE)
    assert validation_score(lower) < validation_score(base) - SCORE_STEP
    assert value(lower, "rmse") < 0.85 * value(base, "rmse")
    assert not clear_gain(lower, base)


def test_no_map_is_taken_by_few_photographs_however_much_it_gains() -> None:
    shifted, whole = (record(predicted, photographs=2) for predicted in (PLAIN + 0.6, PLAIN))
    assert value(whole, "rmse") < (1 - CLEARLY_NEARER) * value(shifted, "rmse")
    assert not clear_gain(whole, shifted)
    found = ranking([shifted, whole])
    (candidate,) = named("uncompiled+map")
    assert found.add([candidate], clearly=True).startswith("not taken, as the photographs are too few")
    assert found.best.candidate.name == "uncompiled"


def ranking(records, where=VALIDATION):
    given = iter(records)
    return Ranking(lambda candidate: next(given), *named("uncompiled"), keep=6, where=where)


def taken(records, *names, where=VALIDATION):
    """Return the name of the candidate that is best once these were judged."""
    found = ranking(records, where)
    found.add(named(*names))
    return found.best.candidate.name


def named(*names):
    """Return candidates of these names, each taught something of its own."""
    found = [Candidate(name, AgenticIQA()) for name in names]
    for candidate in found:
        predictor = candidate.program.summarizer.score
        predictor.signature = predictor.signature.with_instructions(f"Be {candidate.name}.")
    return found


def test_among_equal_scores_the_nearer_scale_is_taken_and_else_the_earlier_program() -> None:
    base = record(PLAIN + 0.1)
    found = ranking([base, record(PLAIN), base])
    assert found.add(named("nearer", "same")) == "better on validation"
    assert found.best.candidate.name == next(iter(found.table())) == "nearer"
    assert ranking([base]).best.candidate.name == "uncompiled"


def test_of_few_labels_the_error_decides_beside_the_old_scores_on_their_best_line() -> None:
    other = np.random.default_rng(7).normal(0, 1, N)
    base, nearer = record(TRUTH + NOISE), record(3 + 0.55 * (TRUTH + 0.8 * NOISE + 0.62 * other - 3))
    assert value(nearer, "srcc") < value(base, "srcc")
    assert taken([base, nearer], "nearer", where=IN_FOLDS) == "nearer"
    assert taken([base, nearer], "nearer") == "uncompiled"  # labels of validation tell the order
    rescaled = record(3 + 0.8 * (TRUTH + NOISE - 3))
    assert value(rescaled, "rmse") < value(base, "rmse")
    assert taken([base, rescaled], "rescaled", where=IN_FOLDS) == "uncompiled"
    # Beside answers in no order those near the mean err less.
    in_no_order = record(3 + 4 * other), record(3 + np.roll(other, 1) / 100)
    assert taken(in_no_order, "the mean", where=IN_FOLDS) == "uncompiled"


def test_a_verdict_says_what_order_costs_where_the_error_decided() -> None:
    base, nearer = record(PLAIN), record(3 + 0.8 * (TRUTH + 0.6 * NOISE - 3))
    text = verdict_of(nearer, base, compare(base.rows, nearer.rows), IN_FOLDS).text
    lost = value(nearer, "srcc") - value(base, "srcc")
    assert f"In folds of the labels it is {lost:+.3f} in order and nearer to the labels (RMSE" in text


def test_an_optimizer_that_changed_no_answer_is_not_taken() -> None:
    assert taken([record(PLAIN), record(PLAIN)], "same") == "uncompiled"


def test_a_fusion_that_gains_too_little_is_left_and_that_is_told() -> None:
    found = ranking([record(PLAIN + 0.3), record(PLAIN + 0.28), record(PLAIN)])
    little, clear = named("uncompiled+fusion", "uncompiled+map")
    told = found.add([little], clearly=True)
    assert found.best.candidate.name == "uncompiled"
    # The sign of a correlation's rounding differs between processors.
    assert re.fullmatch(
        r"not taken, as on validation it gains too little \(SRCC \+0\.000, PLCC [+-]0\.000, RMSE -2%\)", told
    )
    assert found.add([clear], clearly=True) == "better on validation"
    assert found.best.candidate is clear


@pytest.mark.spec("45/no-cost-without-a-sure-gain")
def test_a_candidate_that_costs_more_is_taken_for_a_sure_gain_alone() -> None:
    other = np.random.default_rng(7).normal(0, 1, N)
    better = next(
        p for share in np.linspace(0.6, 0, 601) if srcc(TRUTH, p := TRUTH + share * other) > srcc(TRUTH, PLAIN) + 0.004
    )
    base, cheap, dear, sure = (
        record(PLAIN, tokens=100.0), record(better, tokens=101.0), record(better, tokens=200.0),
        record(TRUTH + 0.02 * NOISE, tokens=200.0),
    )  # fmt: skip
    assert taken([base, cheap], "cheap") == "cheap"
    found = ranking([base, dear])
    assert found.add(named("dear")) == (
        "not taken, as it costs more (200 after 100 tokens an image), and on validation it shows no sure gain"
    )
    assert found.best.candidate.name == "uncompiled"
    assert taken([base, sure], "sure") == "sure"


def test_a_candidate_that_is_an_earlier_program_is_not_judged_again() -> None:
    found = ranking([record(PLAIN), record(PLAIN + 0.1)])
    (first,) = named("uncompiled+map")
    again, plain = replace(first, name="uncompiled+fusion"), replace(found.uncompiled.candidate, name="later")
    found.add([first, again, plain])
    assert found.add([again]) == "not taken, as it changes nothing"
    assert set(found.table()) == {"uncompiled", "uncompiled+map"}


def test_a_program_does_not_gain_by_failing_on_the_hard_samples() -> None:
    hard = np.abs(PLAIN - TRUTH) > 0.4
    whole, failing = record(PLAIN), record(np.where(hard, np.nan, PLAIN))
    assert value(failing, "srcc") > value(whole, "srcc") + CLEAR
    assert validation_score(failing) == pytest.approx(value(failing, "srcc") * (N - hard.sum()) / N)
    assert validation_score(failing) < validation_score(whole)
    assert taken([whole, failing], "failing") == "uncompiled"


@pytest.mark.slow
def test_a_compile_asks_a_clear_gain_of_a_fusion(few_photographs, tmp_path, monkeypatch) -> None:
    def proposed(search):
        found = []
        for name, curve in (("higher", [(1, 1.05), (5, 5)]), ("lower", [(1, 1), (5, 4.95)])):
            copy = search.base.program.deepcopy()
            copy.summarizer.fitted = FittedFusion(search.base.program.resources.fusion, curve=curve)
            found.append(Candidate(name, copy))
        search.note = "fusion: fitted"
        return found

    monkeypatch.setattr(fits, "FUSION", replace(fits.FUSION, run=proposed))
    settings = load_settings(overrides={"compile": {"baselines": False}})
    result = compile_program(prepare_job(settings, str(few_photographs), "fusion", tmp_path / "out"))
    plain = result.validation["uncompiled"]
    nearer = min((result.validation[name] for name in ("higher", "lower")), key=lambda values: values["rmse"])
    assert nearer["rmse"] < plain["rmse"]
    assert nearer["score"] == pytest.approx(plain["score"])
    assert result.chosen == "uncompiled"
    assert result.notes[0].startswith("fusion: fitted; not taken, as in folds of the labels it gains too little (SRCC ")


def test_the_verdict_says_what_got_worse_with_what_got_better() -> None:
    before, after = record(PLAIN), record(TRUTH + 0.3 * NOISE + 0.7)
    found = verdict_of(after, before, compare(before.rows, after.rows))
    assert found.helped
    assert "RMSE +0." in found.text
    assert "(worse)" in found.text.partition("RMSE")[2]
    assert "(better)" in found.text.partition("SRCC")[2].partition(";")[0]
    assert "compare, do not grade" in found.text


@pytest.mark.spec("issue-44/summary")
def test_a_verdict_opens_with_what_the_test_shows() -> None:
    """A gain on validation that test does not have is no gain."""
    other = np.random.default_rng(8).normal(0, 0.05, len(PLAIN))
    before, after, better = record(PLAIN), record(PLAIN + other), record(TRUTH + 0.1 * NOISE)
    found = verdict_of(better, before, compare(before.rows, after.rows))
    assert found.text.startswith("No sure gain on test: SRCC ")
    assert "random-search" not in found.text
    worse = verdict_of(better, before, compare(better.rows, before.rows))
    assert worse.text.startswith("Compiling did harm on test: SRCC -")
    assert verdict_of(better, before, compare(before.rows, better.rows)).text.startswith("Compiling helped")


@pytest.mark.spec("issue-44/summary")
def test_why_nothing_was_gained_is_said_and_not_where_something_was(few_photographs, tmp_path) -> None:
    job = prepare_job(load_settings(), str(few_photographs), "none", tmp_path / "out")
    before, after = record(PLAIN), record(TRUTH + 0.1 * NOISE)
    assert reasons(job, before, compare(before.rows, after.rows)) is None
    told = reasons(job, before, compare(before.rows, before.rows))
    assert f"in the labels' order already (SRCC {value(before, 'srcc'):.2f})" in told
    few = [row for row in record(TRUTH + NOISE).rows if int(row.id) < 20]
    moved = [row.model_copy(update={"score": row.predicted + 0.5 * (int(row.id) % 3)}) for row in few]
    gains = compare(few, moved)
    half = (gains["srcc"].high - gains["srcc"].low) / 2
    assert f"on 20 test samples a gain below {half:.2f} could be chance" in reasons(job, summarize(few), gains)


def test_the_verdict_of_a_map_tells_the_scale_that_it_was_taken_for() -> None:
    before, after = record(PLAIN + 0.5), record(PLAIN)
    found = verdict_of(after, before, compare(before.rows, after.rows))
    shown = f"(RMSE {value(after, 'rmse'):.3f} after {value(before, 'rmse'):.3f})"
    assert f"On validation it is as good in order and nearer to the labels {shown}." in found.text
    assert "(better)" in found.text.partition("RMSE -")[2]
    assert "do not grade" not in found.text


def test_what_a_fusion_learned_is_said_in_figures() -> None:
    def said(**fitted):
        after = AgenticIQA()
        after.summarizer.fitted = FittedFusion(after.resources.fusion, **fitted)
        return learned_sentences(AgenticIQA(), after)

    assert said(eta=0.0, model_weight=1.0, curve=[(1, 2), (5, 4)]) == [
        "The model alone gives the score; the tools no longer count.",
        "Scores follow the scale of the labels: 2 becomes 2.5, 3 becomes 3.0, 4 becomes 3.5.",
    ]
    assert said(model_weight=0.0) == ["The tools alone give the score; the model no longer counts."]
    assert said(model_weight=4.0) == ["The model counts more next to the tools."]
    assert said(eta=6.0) == ["The model counts less next to the tools."]
