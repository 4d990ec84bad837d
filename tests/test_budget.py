"""A budget stops before the call that would pass it, in every thread, and keeps what was finished."""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import dspy
import pytest

from program.ask import ask
from program.budget import Budget, BudgetSpent, current_budget
from program.errors import InputError


class Question(dspy.Signature):
    """Answer."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


@pytest.fixture
def put(scripted_lm):
    def run(lm=None, question="q"):
        lm = lm or scripted_lm({"answer": {"answer": "yes"}})
        return ask(dspy.Predict(Question), {"question": question}, lm=lm, check=lambda p: p.answer, example={}).value

    return run


def test_the_call_that_would_pass_it_never_goes_out(put, scripted_lm):
    lm = scripted_lm({"answer": {"answer": "yes"}})
    with Budget(max_calls=3) as budget:
        for _ in range(3):
            put(lm)
        with pytest.raises(BudgetSpent, match=r"3 model calls are spent; allow more with --max-calls"):
            put(lm)
    assert (len(lm.engine.requests), budget.calls) == (3, 3)
    put(lm)  # outside it is free again
    assert current_budget() is None


def test_rungs_of_the_ladder_count_and_a_cached_answer_does_not(put, scripted_lm, tmp_path):
    dspy.configure_cache(disk_cache_dir=str(tmp_path), enable_disk_cache=False)
    lm = scripted_lm(["?", {"answer": "yes"}], model="scripted/budget", cache=True)
    with Budget(max_calls=2) as budget:
        put(lm)
        put(lm)
    assert budget.calls == 2
    with pytest.raises(BudgetSpent), Budget(max_calls=1):
        put(scripted_lm(["?", {"answer": "yes"}]))


def test_threads_of_python_and_of_dspy_share_it(put, scripted_lm):
    lm = scripted_lm({"answer": {"answer": "yes"}})

    class Program(dspy.Module):
        def forward(self, question):
            return dspy.Prediction(answer=put(lm, question))

    with Budget(max_calls=10) as budget:
        with ThreadPoolExecutor(4) as pool:
            contexts = [copy_context() for _ in range(4)]
            list(pool.map(lambda c: c.run(put, lm), contexts))
        examples = [dspy.Example(question=str(n)).with_inputs("question") for n in range(8)]
        parallel = dspy.Parallel(num_threads=4, max_errors=99, disable_progress_bar=True)
        got = parallel([(Program(), example) for example in examples])
    assert budget.calls == len(lm.engine.requests) == 10
    assert sum(g is not None for g in got) == 6


def test_the_outer_budget_holds_inside_an_inner_one(put, scripted_lm):
    lm = scripted_lm({"answer": {"answer": "yes"}})
    with Budget(max_calls=2) as outer, Budget(max_calls=5) as inner:
        put(lm)
        put(lm)
        with pytest.raises(BudgetSpent, match="2 model calls"):
            put(lm)
    assert (outer.calls, inner.calls, len(lm.engine.requests)) == (2, 2, 2)


def test_money_is_counted_with_histories_off_and_stops_before_the_limit(put, scripted_lm, monkeypatch):
    monkeypatch.setattr("dspy.clients.costs.estimate_cost", lambda *_args, **_named: (0.25, {}))
    lm = scripted_lm({"answer": {"answer": "yes"}})
    with dspy.context(disable_history=True), Budget(max_cost_usd=1.1) as budget:
        for _ in range(4):
            put(lm)
        with pytest.raises(BudgetSpent, match=r"1\.0000 of 1\.1 USD"):
            put(lm)
    assert budget.cost_usd == pytest.approx(1.0)


def test_an_unknown_price_cannot_hold_a_limit_of_money(put, scripted_lm):
    lm = scripted_lm({"answer": {"answer": "yes"}})
    with Budget(max_cost_usd=1):
        put(lm)
        with pytest.raises(BudgetSpent, match=r"price of 'scripted/model' is unknown"):
            put(lm)
    assert len(lm.engine.requests) == 1


@pytest.mark.parametrize("limits", [{"max_calls": 0}, {"max_cost_usd": 0}, {"max_cost_usd": float("nan")}])
def test_limits_that_allow_nothing_are_refused(limits):
    with pytest.raises(InputError, match="allow nothing"):
        Budget(**limits)
