"""A budget stops before the call that would pass it, in every thread, and keeps what was finished."""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import dspy
import pytest
from dspy import lm15
from dspy.utils.exceptions import LMError

from program.common.errors import InputError
from program.lms.ask import ask
from program.lms.call import meter
from program.lms.limits import Budget, BudgetSpent, current_budget
from signatures.forms import QuestionForm


class Question(dspy.Signature):
    """Answer."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


@pytest.fixture
def put(scripted_lm):
    def run(lm=None, question="q"):
        lm = lm or scripted_lm({"answer": {"answer": "yes"}})
        return ask(dspy.Predict(Question), {"question": question}, QuestionForm({}), lambda p: p.answer, lm=lm).value

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


def test_a_call_that_a_cache_answered_is_given_back_to_every_budget():
    with Budget(max_calls=1) as outer, Budget(max_calls=1) as inner:
        for _ in range(2):
            inner.charge()
            inner.refund()
        inner.charge()
        assert (outer.calls, inner.calls) == (1, 1)


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
        with pytest.raises(BudgetSpent, match=r"budget: 1 of 1\.1 USD are spent in 4 model calls"):
            put(lm)
    assert budget.cost_usd == pytest.approx(1.0)


def test_tokens_stop_before_the_limit_however_many_threads_ask(put, hosted):
    lm, server = hosted()
    with meter() as usage:
        put(lm)
    each = usage.input_tokens + usage.output_tokens
    with Budget(max_tokens=4 * each + each // 2) as budget:
        got = at_once(put, lm, 12)
    spent = [str(g) for g in got if isinstance(g, BudgetSpent)]
    assert server.stats()["requests"] == 1 + 4
    assert len(spent) == 8
    assert all("tokens are spent in 4 model calls; allow more with --max-tokens" in text for text in spent)
    assert budget.tokens == pytest.approx(4 * each, abs=each // 4)


def test_a_model_that_counts_no_tokens_cannot_be_held_to_them(put, scripted_lm, monkeypatch):
    lm = scripted_lm({"answer": {"answer": "yes"}})
    answer = lm.engine.complete
    monkeypatch.setattr(lm.engine, "complete", lambda r: dataclasses.replace(answer(r), usage=lm15.Usage()))
    with Budget(max_tokens=1000):
        put(lm)
        with pytest.raises(BudgetSpent, match="'scripted/model' counts no tokens"):
            put(lm)


def test_an_unknown_price_cannot_hold_a_limit_of_money(put, scripted_lm):
    lm = scripted_lm({"answer": {"answer": "yes"}})
    with Budget(max_cost_usd=1):
        put(lm)
        with pytest.raises(BudgetSpent, match=r"price of 'scripted/model' is unknown"):
            put(lm)
    assert len(lm.engine.requests) == 1


@pytest.mark.parametrize(("limit", "calls"), [(1.0, 4), (10.1, 40)])
def test_no_more_money_is_spent_however_many_threads_ask(put, scripted_lm, monkeypatch, limit, calls):
    monkeypatch.setattr("dspy.clients.costs.estimate_cost", lambda *_args, **_named: (0.25, {}))
    lm = scripted_lm({"answer": {"answer": "yes"}})
    answer = lm.engine.complete
    monkeypatch.setattr(lm.engine, "complete", lambda request: (time.sleep(0.01), answer(request))[1])
    with Budget(max_cost_usd=limit) as budget:
        got = at_once(put, lm, 64)
    assert sum(isinstance(g, BudgetSpent) for g in got) == 64 - calls
    assert (len(lm.engine.requests), budget.cost_usd) == (calls, pytest.approx(0.25 * calls))


@pytest.mark.parametrize("fault", ["a failure", "an unknown price"])
def test_who_waits_for_a_price_goes_on_when_none_comes(put, scripted_lm, monkeypatch, fault):
    if fault == "a failure":
        monkeypatch.setattr("dspy.clients.costs.estimate_cost", lambda *_args, **_named: (0.25, {}))
    lm = scripted_lm({"answer": {"answer": "yes"}})
    answer, failing = lm.engine.complete, [fault == "a failure"] * 3

    def complete(request):
        time.sleep(0.05)
        if failing and failing.pop():
            raise lm15.AuthError("no such key", status=401)
        return answer(request)

    monkeypatch.setattr(lm.engine, "complete", complete)
    with Budget(max_cost_usd=100) as budget:
        got = at_once(put, lm, 8)
    answered = 5 if fault == "a failure" else 1
    assert got.count("yes") == answered
    assert sum(isinstance(g, BudgetSpent) for g in got) == (0 if fault == "a failure" else 7)
    assert budget.cost_usd == pytest.approx(1.25 if fault == "a failure" else 0)


def test_several_answers_to_one_question_leave_nobody_waiting(put, scripted_lm, monkeypatch):
    monkeypatch.setattr("dspy.clients.costs.estimate_cost", lambda *_args, **_named: (0.25, {}))
    lm = scripted_lm({"answer": {"answer": "yes"}}).copy(n=2, temperature=1.0)
    with Budget(max_cost_usd=2.1) as budget:
        assert at_once(put, lm, 4) == ["yes"] * 4
    assert budget.calls == 8


def test_the_embedded_experts_calls_wait_for_no_price(tmp_path, picture):
    from program.agent.loop import AgenticIQA

    with Budget(max_cost_usd=0.01) as budget:
        assert AgenticIQA()(image=picture()).status == "ok"
        with budget._changed:  # as if a call to a priced model were under way
            budget._in_flight += 1
        assert AgenticIQA()(image=picture(1)).status == "ok"


def test_a_hosted_models_calls_are_priced_by_its_answers_tokens(put, hosted):
    lm, server = hosted()
    with meter() as usage, Budget(max_cost_usd=1) as budget:
        put(lm)
        put(lm, "another")
    assert server.stats()["requests"] == 2
    assert usage.cost_usd == pytest.approx(budget.cost_usd)
    assert usage.cost_usd == pytest.approx(2.5e-6 * usage.input_tokens + 1e-5 * usage.output_tokens)


def at_once(put, lm, count):
    """Return what each of so many threads got, or the error it met."""

    def tried(number):
        try:
            return put(lm, str(number))
        except (BudgetSpent, LMError) as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        contexts = [copy_context() for _ in range(count)]
        return list(pool.map(lambda n: contexts[n].run(tried, n), range(count)))


@pytest.mark.parametrize(
    "limits", [{"max_calls": 0}, {"max_tokens": 0}, {"max_cost_usd": 0}, {"max_cost_usd": float("nan")}]
)
def test_limits_that_allow_nothing_are_refused(limits):
    with pytest.raises(InputError, match="allow nothing"):
        Budget(**limits)
