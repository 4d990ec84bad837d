"""What a reply holds is read, bounded or quoted: thoughts, answers among them, streams, errors with status 200."""

import json
import time
from types import SimpleNamespace

import dspy
import pytest
from PIL import Image

from program.assess import main as assess
from program.lms.replies import NO_ANSWER, understood

NOISE = [{"region": "Global", "type": "Noise", "severity": "severe", "explanation": "Grain all over."}]
RATE = "Rate the perceptual quality of this image."
THOUGHTS = {
    "reasoning": {"content": "", "reasoning": "Let me look at the sky"},
    "reasoning_content": {"content": None, "reasoning_content": "Let me look at the sky"},
    "never closed": {"content": "<think>Let me look at the sky"},
    "with a draft": {"content": '<think>Perhaps {"quality_level": "bad"}, but let me look at'},
    "hidden": {"content": ""},
}


def report(kind, requests):
    print(f"{kind}: {requests} requests for the first picture")  # noqa: T201 (pytest -s shows it)


@pytest.fixture
def command(forget_models, tmp_path, photo, capsys, monkeypatch):
    """Judge a picture on a server by the command; return its exit code and what it says."""
    clock = SimpleNamespace(sleep=lambda _: None, perf_counter=time.perf_counter)
    monkeypatch.setattr("program.lms.call.time", clock)

    def run(server):
        forget_models()
        Image.fromarray(photo).save(tmp_path / "photo.png")
        code = assess([str(tmp_path / "photo.png"), "--lm", "openai/small-vlm", "--api-base", server.base])
        return code, capsys.readouterr()

    return run


@pytest.fixture
def thinking(loopback, loopback_module):
    """Start a server whose model thinks, and answers only where it may take so many tokens."""

    def start(message, *, needs=1000, **options):
        def reply(question):
            if (question.most_tokens or 128) < needs:
                choice = {"finish_reason": "length", "message": {"role": "assistant", **message}}
                return loopback_module.Reply(body={"choices": [choice]})
            if "findings" not in question.fields:
                return loopback_module.answers.plausible(question)
            # The same in each picture, so that the same tools are asked for.
            return loopback_module.answers.fields_of(question) | {"findings": NOISE}

        return loopback(rules=[(lambda _: True, reply)], rules_for_probes=True, **options)

    return start


@pytest.mark.parametrize(
    ("thought", "needs", "score_only"),
    [*((thought, 1000, False) for thought in THOUGHTS), ("hidden", 7000, False), ("reasoning", 2500, True)],
)
def test_a_model_that_thinks_gets_room_at_once_and_keeps_it(thinking, on, picture, thought, needs, score_only):
    server = thinking(THOUGHTS[thought], needs=needs)
    iqa = on(server, assessment={"score_only": score_only})
    first = iqa(image=picture(0), query=RATE)
    spent = server.stats()["requests"]
    asked = spent + len(server.probes)
    report(f"thoughts ({thought}, {needs} tokens)", asked)
    assert (first.status, first.attempt) == ("ok", "first call")
    assert first.usage.lm_calls == spent < asked <= 5
    # The record outlives the process that made it.
    second = on(server, assessment={"score_only": score_only})(image=picture(1), query=RATE)
    assert second.status == "ok"
    assert second.usage.lm_calls == server.stats()["requests"] - spent == 1


def test_room_for_thoughts_is_half_of_a_known_context_at_most(thinking, on, picture):
    server = thinking(THOUGHTS["reasoning"], needs=1500, flavour="vllm", context_tokens=4096)
    assert on(server)(image=picture(), query=RATE).status == "ok"
    assert max(q.most_tokens for q in server.asked) == 2048


@pytest.mark.parametrize("limit", [None, 500])
def test_a_users_own_model_gets_room_for_its_thoughts(thinking, on, picture, limit):
    server = thinking(THOUGHTS["reasoning_content"], needs=2500)
    lm = dspy.LM("openai/gpt-4o", api_base=server.base, api_key="none", max_tokens=limit)
    iqa = on(server)
    iqa.set_lm(lm)
    for number in range(2):
        result = iqa(image=picture(number), query=RATE)
        assert (result.status, result.attempt) == ("ok", "first call")
    report("thoughts of a user's own model", result.usage.lm_calls)


def test_a_model_that_never_stops_thinking_costs_few_calls(thinking, on, picture):
    server = thinking(THOUGHTS["never closed"], needs=10**9)
    iqa = on(server)
    assert iqa(image=picture(0), query=RATE).status == "degraded"
    first = server.stats()["requests"]
    assert first <= 7
    iqa(image=picture(1), query=RATE)
    report("never stops thinking", first)
    assert server.stats()["requests"] - first <= 6


def test_an_answer_that_is_cut_is_asked_for_again_with_more_room_though_it_cannot_be_read(thinking, on, picture):
    server = thinking({"content": '{"quality_reasoning": "The sky is'}, needs=500)
    result = on(server)(image=picture(), query=RATE)
    assert result.status == "ok"
    report("cut in the middle", result.usage.lm_calls)
    assert result.usage.lm_calls <= 5


@pytest.mark.parametrize(
    ("field", "content", "score_only"), [("reasoning", "\n\n", False), ("reasoning_content", None, True)]
)
def test_an_answer_that_stands_where_thoughts_do_is_read(
    loopback, loopback_module, on, picture, field, content, score_only
):
    def reply(question):
        answer = loopback_module.answers.plausible(question)
        message = {"role": "assistant", "content": content, field: answer}
        return loopback_module.Reply(body={"choices": [{"finish_reason": "stop", "message": message}]})

    plain = on(loopback(token_probabilities=0), assessment={"score_only": score_only})(image=picture(), query=RATE)
    result = on(loopback(rules=[(lambda _: True, reply)]), assessment={"score_only": score_only})(
        image=picture(), query=RATE
    )
    report(f"answer in {field}", result.usage.lm_calls)
    assert (result.status, result.quality_score) == ("ok", plain.quality_score)
    assert result.usage.lm_calls <= 4  # one more where no token probabilities came


def test_a_draft_among_thoughts_is_no_answer(loopback, loopback_module, on, picture):
    thought = 'Perhaps {"quality_level": "bad", "findings": [], "quality_reasoning": "x"}? No, it is better than that'
    message = {"role": "assistant", "content": None, "reasoning_content": thought}
    reply = loopback_module.Reply(body={"choices": [{"finish_reason": "stop", "message": message}]})
    result = on(loopback(rules=[("quality_level", lambda _: reply)]))(image=picture(), query=RATE)
    assert result.attempt == "tools alone"


def streamed(completion, loopback_module, ending="data: [DONE]\n\n"):
    """Return a completion as the events of a stream, a few characters in each."""
    (choice,) = completion["choices"]
    content, tokens = choice["message"]["content"], (choice.get("logprobs") or {}).get("content") or []
    pieces = [{"delta": {"role": "assistant", "content": ""}}]
    pieces += [{"delta": {"content": content[at : at + 7]}} for at in range(0, len(content), 7)]
    pieces += [{"delta": {}, "logprobs": {"content": [token]}} for token in tokens]
    pieces.append({"delta": {}, "finish_reason": choice["finish_reason"]})
    shared = {"id": "1", "object": "chat.completion.chunk", "model": completion["model"]}
    chunks = [{**shared, "choices": [{"index": 0, **piece}]} for piece in pieces]
    chunks.append({**shared, "choices": [], "usage": completion["usage"]})
    lines = ": proxy\n\n" + "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + ending
    return loopback_module.Reply(body=lines, headers={"Content-Type": "text/event-stream"})


@pytest.mark.parametrize(("score_only", "ending"), [(False, "data: [DONE]\n\n"), (True, "")])
def test_a_stream_that_nobody_asked_for_is_read(loopback, loopback_module, on, picture, score_only, ending):
    plain_server = loopback()
    rules = [(lambda _: True, lambda q: streamed(completion_of(q), loopback_module, ending))]
    server = loopback(rules=rules, rules_for_probes=True)

    def completion_of(question):
        return plain_server._completed(question, loopback_module.answers.plausible(question))

    plain = on(plain_server, assessment={"score_only": score_only})(image=picture(), query=RATE)
    result = on(server, assessment={"score_only": score_only})(image=picture(), query=RATE)
    report("a stream", result.usage.lm_calls)
    assert (result.status, result.level_probabilities) == ("ok", plain.level_probabilities)
    assert result.level_probabilities_from == plain.level_probabilities_from == "logprobs"
    assert result.usage.lm_calls == plain.usage.lm_calls
    assert result.usage.output_tokens == plain.usage.output_tokens


NO_ANSWERS = {
    "error": ({"error": {"message": "the engine is dead", "type": "x", "code": None}}, "the engine is dead"),
    "error as text": ({"error": "the engine is dead"}, "the engine is dead"),
    "code and message": ({"code": 404, "message": "model x does not exist"}, "the model is not on the server"),
    "status as text": ({"status": "403", "detail": "this model is not yours"}, "this model is not yours"),
    "error 500": ({"error": {"message": "the engine is dead", "code": 500}}, "the engine is dead"),
    "error 503": ({"error": {"message": "the engine is dead", "code": "503"}}, "the engine is dead"),
    "error of a choice": (
        {"choices": [{"message": {"content": ""}, "error": {"code": 502, "message": "no provider"}}]}, "no provider",
    ),
    "no choice": ({"choices": []}, "choices"),
    "no message": ({"choices": [{"message": None}]}, "message"),
    "without choices": ({"object": "nothing", "words": "come later"}, "come later"),
    "a list": ([1, 2], "[1, 2]"),
    "empty": ("", "empty"),
    "a page": ("<html><style>p {}</style><body><h1>Please\nlog in</h1></body></html>", "Please log in"),
    "a stream's error": ('data: {"error": {"message": "the engine is dead"}}\n\n', "the engine is dead"),
    "an empty stream": ("data: [DONE]\n\n", "[DONE]"),
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_ANSWERS)
def test_what_is_no_answer_is_quoted_in_one_line(loopback, loopback_module, command, kind):
    body, says = NO_ANSWERS[kind]
    headers = {"Content-Type": "text/html"} if kind == "a page" else {}
    rules = [(lambda _: True, lambda _: loopback_module.Reply(body=body, headers=headers))]
    server = loopback(rules=rules, rules_for_probes=True)
    code, printed = command(server)
    spent = server.stats()["requests"] + len(server.probes)
    report(kind, spent)
    assert code != 0
    assert spent <= 3
    (line,) = [line for line in printed.err.splitlines() if says in line]
    assert len(line) < 500


def test_a_reply_that_is_no_answer_once_is_asked_for_again(loopback, loopback_module, on, picture):
    replies = [loopback_module.Reply(body={"error": {"message": "try again", "code": 502}})]
    server = loopback(rules=[(lambda _: bool(replies), lambda _: replies.pop())])
    result = on(server)(image=picture(), query=RATE)
    assert (result.status, result.attempt) == ("ok", "first call")
    assert result.usage.lm_calls == server.stats()["requests"] == 3


def test_a_key_that_a_reply_repeats_is_not_shown(loopback, loopback_module, command, monkeypatch):
    key = "sk-planted-0123456789abcdef"
    monkeypatch.setenv("AGENTICIQA_API_KEY", key)
    reply = loopback_module.Reply(body={"error": {"message": f"{key} has no credit"}})
    code, printed = command(loopback(rules=[(lambda _: True, lambda _: reply)]))
    assert code != 0
    assert "has no credit" in printed.err
    assert key not in printed.err + printed.out


def test_a_reply_without_content_is_named_by_its_status():
    status, read = understood(b"", "", 204)
    assert status == NO_ANSWER
    assert json.loads(read)["error"]["message"] == "HTTP 204 without an answer: it is empty"


@pytest.mark.parametrize("streams", [False, True])
def test_whatever_a_reply_holds_is_a_completion_or_a_status(rng, streams):
    values = [None, "", "x", -1, 2.5, True, [], {}, [None], [{}], ["x"], [{"delta": []}], [{"message": {}}]]
    names = ["error", "choices", "message", "delta", "logprobs", "code", "status", "detail", "usage", "content"]
    for _ in range(100):
        page = {name: values[rng.integers(len(values))] for name in rng.choice(names, 3)}
        page["choices"] = [{**page, "error": values[rng.integers(len(values))]}, page.get("choices")][rng.integers(2)]
        body = json.dumps(page)
        body = f"data: {body}\n\ndata: {json.dumps({'choices': [page]})}\n\n" if streams else body
        status, read = understood(body.encode(), "application/json")
        assert status == 200 or 400 <= status <= NO_ANSWER
        assert isinstance(json.loads(read), dict)
