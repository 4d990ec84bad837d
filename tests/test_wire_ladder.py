"""One retry ladder over the real wire: bounded calls, Retry-After, accounting by stage, and no call in vain."""

import asyncio
import base64
import contextlib
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import dspy
import pytest
from PIL import Image

from data.manifest import Sample
from program.agent.loop import AgenticIQA
from program.common.errors import EndpointError, ImageError
from program.common.settings import load_settings
from program.evaluation.evaluating import run_samples
from program.images.store import IMAGES
from program.lms.ask import ask
from program.lms.limits import Budget, BudgetSpent
from signatures.forms import QuestionForm

KEY = "sk-planted-0123456789abcdef"
TRANSPORT = ("rate_limit", "rate_limit_bare", "error_500", "error_503", "drop", "truncate")
UNUSABLE = ("invalid_json", "wrong_schema", "refusal", "empty_choices")
NO_REPLY = ("empty_choices", "invalid_body")
ATTEMPTS = 4
WIRE = {"attempts": ATTEMPTS, "backoff_s": 0.01}


@pytest.fixture
def iqa_on(fake_runner):
    """Make a program on a server: our native client, or a user's own LM over LiteLLM."""

    def make(server, *, client="native", wire=None, **assessment):
        tree = {
            "wire": {**WIRE, **(wire or {})},
            "assessment": {"max_replan_iterations": 0, "diagnosis": "merged", **assessment},
        }
        settings = load_settings(overrides=tree)
        if client == "native":
            iqa = AgenticIQA(settings.with_model("openai/small-vlm", server.base))
        else:
            lm = dspy.LM("openai/gpt-4o", api_base=server.base, api_key="none", engine=client, cache=False)
            iqa = AgenticIQA(settings, lm=lm)
        iqa.resources.__dict__["runner"] = fake_runner()
        return iqa

    return make


@pytest.mark.parametrize("client", ["native", "lm15", "litellm"])
@pytest.mark.parametrize("fault", [*TRANSPORT, *UNUSABLE, "invalid_body"])
def test_calls_per_question_never_pass_the_bound(loopback, iqa_on, picture, fault, client):
    server = loopback(faults=lambda _n, q: fault if "findings" in q.fields else None, retry_after_s=0.01)
    iqa = iqa_on(server, client=client)
    if fault in TRANSPORT or (fault, client) == ("invalid_body", "litellm"):
        with pytest.raises(dspy.utils.exceptions.LMError):
            iqa(image=picture())
        assert server.stats()["by_field"]["findings"] == ATTEMPTS
    elif fault in NO_REPLY and client != "litellm":
        with pytest.raises(dspy.utils.exceptions.LMServerError, match="HTTP 200 without an answer"):
            iqa(image=picture())
        assert server.stats()["by_field"]["findings"] == 2
    else:
        result = iqa(image=picture())
        assert "analysis failed" in result.quality_reasoning
        assert (result.status, result.error) == ("degraded", "the model gave no usable analysis")
        assert server.stats()["by_field"]["findings"] == 3
        assert result.usage.lm_calls == server.stats()["requests"]


def test_ladder_and_repeats_share_one_allowance(loopback, iqa_on, picture):
    mix = iter(["error_500", "invalid_json", "drop", "invalid_json", "error_503", "error_503"])
    server = loopback(faults=lambda _n, q: next(mix) if "findings" in q.fields else None)
    result = iqa_on(server)(image=picture())
    assert server.stats()["by_field"]["findings"] == ATTEMPTS
    assert "analysis failed" in result.quality_reasoning


def test_a_whole_assessment_under_a_mix_stays_within_the_formula(loopback, loopback_module, iqa_on, picture):
    faults = loopback_module.Faults(rate=0.6, kinds=[*TRANSPORT, *UNUSABLE], seed=5)
    server = loopback(faults=faults, retry_after_s=0.01)
    iqa = iqa_on(server, max_replan_iterations=2)
    judged = 0
    for seed in range(10):
        server.reset()
        with contextlib.suppress(dspy.utils.exceptions.LMError):
            judged += iqa(image=picture(seed)).status != "failed"
        # plan, diagnosis, tool choice and answer, each at most ATTEMPTS times, for each of three rounds
        assert 0 < server.stats()["requests"] <= ATTEMPTS * 4 * 3
    assert judged > 5


def _refusing(loopback, loopback_module, *features):
    """A server that names one feature after the other as unsupported, as long as requests have it."""
    rules = [
        (lambda q, f=feature: f in q.body, loopback_module.Reply(400, {"error": {"message": f"no {feature} here"}}))
        for feature in features
    ]
    return loopback(rules=rules)


def test_what_dspys_cache_answers_for_a_users_own_model_costs_no_call(loopback, picture):
    server = loopback()
    lm = dspy.LM("openai/gpt-4o", api_base=server.base, api_key="none", engine="lm15")
    shown = {"image": IMAGES.add(picture()), "question": "q"}
    with Budget(max_calls=2) as budget:
        for _ in range(3):
            ask(dspy.Predict("image: dspy.Image, question -> answer"), shown, QuestionForm({}), str, lm=lm)
    assert budget.calls == server.stats()["requests"] == 1


def test_a_call_repeated_without_a_refused_feature_is_counted_and_charged(loopback, loopback_module, iqa_on, picture):
    server = _refusing(loopback, loopback_module, "response_format", "temperature")
    with Budget(max_calls=50) as budget:
        result = iqa_on(server)(image=picture())
    assert result.status == "ok"
    sent = server.stats()["requests"]
    assert sent == 3 + 2
    assert (budget.calls, result.usage.lm_calls, result.usage.stages["planner"].lm_calls) == (sent, sent, 3)


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_a_budget_is_never_passed_for_a_refused_feature(loopback, loopback_module, iqa_on, picture, calls):
    server = _refusing(loopback, loopback_module, "response_format", "temperature")
    with Budget(max_calls=calls) as budget, pytest.raises(BudgetSpent, match=f"{calls} model calls are spent"):
        iqa_on(server)(image=picture())
    assert server.stats()["requests"] == budget.calls == calls


def test_two_ways_to_ask_for_the_levels_share_one_allowance(loopback, iqa_on, picture):
    drops = ["drop", "drop"]

    def fault(_number, question):
        if "quality_level" in question.fields:
            return drops.pop() if drops else "no_logprobs"
        return "drop" if "quality_probs" in question.fields else None

    server = loopback(faults=fault)
    with pytest.raises(dspy.utils.exceptions.LMError):
        iqa_on(server, scoring="auto")(image=picture())
    asked = server.stats()["by_field"]
    assert asked["quality_level"] + asked["quality_probs"] == ATTEMPTS


def test_a_letter_stands_where_no_call_is_left_for_the_numbers(loopback, iqa_on, picture):
    drops = ["drop"] * (ATTEMPTS - 1)
    server = loopback(
        faults=lambda _n, q: (drops.pop() if drops else "no_logprobs") if "quality_level" in q.fields else None
    )
    result = iqa_on(server, scoring="auto")(image=picture())
    assert (result.status, result.level_probabilities_from) == ("ok", "classification")
    assert "quality_probs" not in server.stats()["by_field"]


def test_refused_features_share_the_allowance_of_their_question(loopback, loopback_module, iqa_on, picture):
    def fault(_n, question):
        return "drop" if "findings" in question.fields or "plan" in question.fields else None

    server = loopback(
        faults=lambda n, q: None if "response_format" in q.body else fault(n, q),
        rules=[(lambda q: "response_format" in q.body,
                loopback_module.Reply(400, {"error": {"message": "no response_format here"}}))],
    )  # fmt: skip
    with pytest.raises(dspy.utils.exceptions.LMError):
        iqa_on(server)(image=picture())
    assert server.stats()["requests"] == ATTEMPTS


def test_money_of_a_refused_call_is_not_expected_for_ever(loopback, loopback_module, iqa_on, picture, monkeypatch):
    monkeypatch.setattr("dspy.clients.costs.estimate_cost", lambda *_args, **_named: (0.1, {}))
    server = _refusing(loopback, loopback_module, "response_format")
    with Budget(max_cost_usd=0.41) as budget:
        assert iqa_on(server)(image=picture()).status == "ok"
    assert (budget.calls, budget.cost_usd) == (4, pytest.approx(0.3))


def test_retry_after_goes_before_the_backoff_and_holds_every_thread(loopback, iqa_on, picture):
    server = loopback(faults=["rate_limit"], retry_after_s=0.3)
    iqa = iqa_on(server)
    begun = time.perf_counter()
    assert iqa(image=picture()).status == "ok"
    assert time.perf_counter() - begun >= 0.3


def test_a_pause_that_a_host_asks_for_holds_the_questions_of_other_threads(loopback, iqa_on, picture, monkeypatch):
    server = loopback(faults=["rate_limit"], retry_after_s=3)
    iqa, waited = iqa_on(server), []

    def meanwhile(_seconds):
        begun = time.perf_counter()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(iqa, image=picture(1), query="How sharp is it?").result().status == "ok"
        waited.append(time.perf_counter() - begun)

    clock = SimpleNamespace(sleep=meanwhile, perf_counter=time.perf_counter)
    monkeypatch.setattr("program.lms.call.time", clock)
    assert iqa(image=picture()).status == "ok"
    assert len(waited) == 1
    assert waited[0] >= 2  # a busy machine asks a while after the pause began, and answers late


def test_each_repeat_waits_twice_as_long_as_the_one_before(loopback, iqa_on, picture, monkeypatch):
    waits = []
    monkeypatch.setattr("program.lms.call.time", SimpleNamespace(sleep=waits.append, perf_counter=time.perf_counter))
    monkeypatch.setattr("program.lms.call.random", SimpleNamespace(uniform=lambda low, high: high))
    server = loopback(faults=["error_500"] * 3)
    assert iqa_on(server, wire={"backoff_s": 0.5, "longest_wait_s": 1.5})(image=picture()).status == "ok"
    assert waits == [0.5, 1.0, 1.5]  # and never longer than the longest


def test_a_pause_longer_than_allowed_is_not_waited_for(loopback, iqa_on, picture):
    server = loopback(faults=["rate_limit"], retry_after_s=3600)
    begun = time.perf_counter()
    with pytest.raises(dspy.utils.exceptions.LMRateLimitError):
        iqa_on(server)(image=picture())
    assert time.perf_counter() - begun < 10
    assert server.stats()["requests"] == 1


def test_litellm_keeps_the_retry_after_of_its_host(loopback, iqa_on, picture):
    import litellm  # noqa: F401 - its import alone takes longer than the pause

    server = loopback(faults=["rate_limit"], retry_after_s=0.4)
    begun = time.perf_counter()
    assert iqa_on(server, client="litellm", wire={"backoff_s": 0.001})(image=picture()).status == "ok"
    assert time.perf_counter() - begun >= 0.4


@pytest.mark.parametrize("client", ["native", "litellm"])
def test_an_image_altered_meanwhile_is_told_as_that_and_not_asked_about(loopback, iqa_on, tmp_path, client):
    file = tmp_path / "photo.png"
    Image.effect_noise((48, 32), 40).convert("RGB").save(file)

    def alter(_number, question):
        if "plan" in question.fields:
            Image.effect_noise((48, 32), 80).convert("RGB").save(file)

    server = loopback(faults=alter)
    with pytest.raises(ImageError, match=r"changed since it was opened; start again with the new file"):
        iqa_on(server, client=client)(image=file)
    assert server.stats()["by_field"] == {"plan": 1}


def test_a_refused_key_is_told_at_once(loopback, iqa_on, picture):
    server = loopback(key="another")
    with pytest.raises(EndpointError, match=r"^http[^\n]* refuses the key; set [^\n]*AGENTICIQA_API_KEY$"):
        iqa_on(server)(image=picture())


def test_unreadable_logprobs_cost_no_call_and_the_letter_stands(loopback, iqa_on, picture):
    server = loopback(faults=lambda _n, q: "nan_logprobs" if q.body.get("logprobs") else None)
    result = iqa_on(server, scoring="logprobs")(image=picture())
    assert (result.status, result.attempt) == ("ok", "first call")
    assert max(result.level_probabilities.values()) == pytest.approx(0.85)


def test_a_huge_answer_is_kept_short_and_right(loopback, iqa_on, picture):
    plain = iqa_on(loopback())(image=picture())
    server = loopback(faults=lambda _n, _q: "huge", huge_bytes=100_000)
    result = iqa_on(server)(image=picture())
    assert result.quality_score == plain.quality_score
    assert len(result.model_dump_json()) < 60_000


def test_tokens_and_calls_are_booked_by_stage_with_histories_off(loopback, iqa_on, picture):
    server = loopback()
    with dspy.context(disable_history=True):
        usage = iqa_on(server)(image=picture()).usage
    stats = server.stats()
    assert {name: s.lm_calls for name, s in usage.stages.items()} == {"planner": 1, "executor": 1, "summarizer": 1}
    assert usage.input_tokens == stats["prompt_tokens"] == sum(s.input_tokens for s in usage.stages.values())
    assert usage.output_tokens == stats["completion_tokens"]


def test_identical_questions_of_many_threads_go_out_once(loopback, iqa_on, picture):
    server = loopback(latency_s=0.1)
    iqa = iqa_on(server)
    images = [picture(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda image: iqa(image=image), images))
    assert server.stats()["by_field"]["plan"] == 1
    assert server.stats()["by_field"]["findings"] == 8


def test_a_batch_keeps_order_and_failures_are_values(loopback, iqa_on, picture, tmp_path):
    server = loopback(latency_s=0.02)
    iqa = iqa_on(server)
    images = [picture(seed) for seed in range(6)]
    alone = [iqa(image=image).quality_score for image in images]
    missing = str(tmp_path / "missing.png")
    got = iqa.batch([*images[:3], missing, {"image": images[3]}, *images[4:]], workers=4)
    assert [r.status for r in got] == ["ok", "ok", "ok", "failed", "ok", "ok", "ok"]
    assert [r.quality_score for r in got if r.status == "ok"] == alone
    assert (got[3].index, "missing.png" in got[3].error) == (3, True)


def test_sixteen_acalls_are_under_way_at_once_and_keep_the_context(loopback, iqa_on, picture):
    server = loopback(latency_s=0.5)
    iqa = iqa_on(server)
    iqa(image=picture())
    images = [picture(seed) for seed in range(1, 17)]
    server.reset()

    async def all_at_once():
        return await asyncio.gather(*(iqa.acall(image=image) for image in images))

    with Budget(max_calls=100) as budget, dspy.context(async_max_workers=16):
        got = asyncio.run(all_at_once())
    assert [r.status for r in got] == ["ok"] * 16
    assert budget.calls == server.stats()["requests"]
    assert server.stats()["most_in_flight"] >= 12


def test_a_spent_budget_ends_an_evaluation_and_a_repeated_one_goes_on(loopback, iqa_on, picture, tmp_path):
    server = loopback()
    iqa = iqa_on(server)
    samples = []
    for seed in range(10):
        Image.fromarray(picture(seed)).save(tmp_path / f"{seed}.png")
        samples.append(Sample(id=str(seed), image=tmp_path / f"{seed}.png", mos=3.0))
    with pytest.raises(BudgetSpent, match=r"\d samples are finished; a repeated run takes"), Budget(max_calls=12):
        run_samples(iqa, samples, workers=2, progress=False)
    assert server.stats()["requests"] == 12
    record = run_samples(iqa, samples, workers=2, progress=False)
    assert record.failed == 0
    assert len(record.rows) == 10
    assert server.stats()["requests"] - 12 == sum(row.lm_calls for row in record.rows) < 12


@pytest.mark.parametrize("client", ["native", "lm15"])
def test_no_key_and_no_image_in_logs_histories_or_results(loopback, iqa_on, picture, client, monkeypatch, caplog):
    monkeypatch.setenv("AGENTICIQA_API_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    logging.getLogger("program").setLevel(logging.DEBUG)
    server = loopback()
    iqa = iqa_on(server, client=client)
    result = iqa(image=picture())
    lm = iqa.resources.lm("planner")
    written = caplog.text + result.model_dump_json() + json.dumps(lm.history, default=repr)
    assert len(lm.history) >= 2 or client == "native"
    assert KEY not in written
    image = server.asked[-1].images[0]
    assert base64.b64encode(image).decode()[:60] not in written
