"""What servers send that is odd: figures that are none, refusals in other words and places, redirects, proxies."""

import json
import math
import re
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
from dspy import lm15
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from program.assess import main as assess
from program.common.errors import ModelError
from program.common.settings import load_settings
from program.lms.traits import ModelTraits, listed_traits, traits_of

pytestmark = pytest.mark.usefixtures("no_answers_kept")

RATE = "Rate the perceptual quality of this image."


@pytest.fixture
def refusing(loopback, loopback_module):
    """Start a server that refuses what `is_refused` says of a question; `server.refusals` counts how often."""

    def start(is_refused, status, body, **options):
        def first(_method, _path, question):
            if question is None or not is_refused(question):
                return None
            server.refusals += 1
            return loopback_module.Reply(status, body)

        server = loopback(first=first, **options)
        server.refusals = 0
        return server

    return start


def record():
    """Return what the cache folder holds of the one model."""
    (file,) = (load_settings().cache_dir / "models").glob("*.json")
    return json.loads(file.read_text("utf-8"))


def with_usage(**figures):
    return lambda completion: {**completion, "usage": {**completion["usage"], **figures}}


def of_each_token(change):
    """Return a spoiler that changes each token's log-probabilities."""

    def spoil(completion):
        for token in (completion["choices"][0]["logprobs"] or {}).get("content", ()):
            change(token)
        return completion

    return spoil


def last_alternative(value):
    return of_each_token(lambda token: token["top_logprobs"][-1:] and token["top_logprobs"][-1].update(logprob=value))


FIGURES = {
    "negative": with_usage(prompt_tokens=-1, completion_tokens=-7),
    "fraction": with_usage(prompt_tokens=812.5, total_tokens=0.1),
    "text": with_usage(prompt_tokens="many", completion_tokens="12"),
    "huge": with_usage(prompt_tokens=10**400),
    "true": with_usage(completion_tokens=True),
    "details": with_usage(prompt_tokens_details={"cached_tokens": -1}, completion_tokens_details=3),
    "list": lambda completion: {**completion, "usage": [1, 2]},
    "null alternative": last_alternative(None),
    "NaN alternative": last_alternative(math.nan),
    "-Infinity alternative": last_alternative(-math.inf),
    "text alternative": last_alternative("low"),
    "no alternative's bytes": of_each_token(lambda token: token.update(bytes=[-1, "x"])),
}


@pytest.mark.parametrize("kind", FIGURES)
def test_figures_that_are_none_are_left_out_and_the_answer_counts(loopback, on, picture, kind):
    result = on(loopback(spoils=FIGURES[kind]))(image=picture(), query=RATE)
    assert (result.status, result.attempt, result.level_probabilities_from) == ("ok", "first call", "logprobs")
    assert result.usage.lm_calls == 2
    assert result.usage.input_tokens >= 0
    assert result.usage.output_tokens >= 0


LIMITS_OF_LOGPROBS = [
    ("Fireworks", 400, {"error": {"message": "cannot request more than 5 logprobs"}}),
    ("vLLM", 400, {"message": "Requested sample logprobs of 20, which is greater than max allowed: 5"}),
    ("TGI", 422, {"error": "Input validation error: `top_n_tokens` must be >= 0 and <= 5. Given: 20"}),
    ("FastAPI", 422, {"detail": [{"loc": ["body", "top_logprobs"], "msg": "Input should be less than or equal to 5"}]}),
    ("a range", 400, {"error": {"message": "Invalid top_logprobs value, the valid range of top_logprobs is [0, 5]"}}),
    ("between", 400, {"detail": "logprobs must be between 0 and 5"}),
    ("limited", 400, {"error": {"message": "The number of log probabilities is limited to 5, 20 were requested"}}),
]


@pytest.mark.parametrize(("status", "body"), [row[1:] for row in LIMITS_OF_LOGPROBS])
def test_log_probabilities_are_asked_for_in_the_number_that_a_refusal_names(refusing, on, picture, status, body):
    server = refusing(lambda q: (q.body.get("top_logprobs") or 0) > 5, status, body)
    result = on(server)(image=picture(), query=RATE)
    assert (result.status, result.level_probabilities_from) == ("ok", "logprobs")
    assert server.refusals == 1
    assert record()["token_probabilities"] == 5


def test_a_number_beside_a_refusal_of_log_probabilities_is_no_limit(refusing, on, picture):
    body = {"error": {"message": "llama-3.1-8b does not support logprobs (error 4 of 7)"}}
    server = refusing(lambda q: "logprobs" in q.body, 400, body)
    result = on(server)(image=picture(), query=RATE)
    assert (result.status, result.level_probabilities_from) == ("ok", "probabilities")
    assert server.refusals == 1


def extra(*names):
    faults = [{"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}
              for name in names]  # fmt: skip
    return {"detail": faults}


REFUSED_FIELDS = [
    ({"logprobs"}, 422, extra("logprobs", "top_logprobs")),
    ({"response_format", "temperature"}, 422, extra("response_format", "temperature")),
    ({"logprobs"}, 400, {"detail": "logprobs are not enabled on this deployment"}),
    ({"response_format"}, 400, {"message": "response_format is not supported by this engine", "code": 400}),
    (
        {"logprobs"}, 400,
        {"object": "error", "type": "BadRequestError", "code": 400, "message":
         "[{'type': 'extra_forbidden', 'loc': ('body', 'logprobs'), 'msg': 'Extra inputs are not permitted'}]"},
    ),
    ({"temperature"}, 400, {"errors": [{"message": "temperature may not be set"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "status", "body"), REFUSED_FIELDS)
def test_fields_that_a_refusal_names_are_left_out_wherever_its_words_stand(refusing, on, picture, fields, status, body):
    server = refusing(lambda q: not fields.isdisjoint(q.body), status, body)
    assert [on(server)(image=picture(n), query=RATE).status for n in range(2)] == ["ok", "ok"]
    assert set(record()["refused"]) == fields
    assert server.refusals <= len(fields)


@pytest.mark.parametrize(
    "body",
    [{"detail": "the licence has run out"}, {"message": "the licence has run out"},
     {"detail": [{"loc": ["body"], "msg": "the licence has run out"}]}, {"error": "the licence has run out"},
     {"error": {"message": ["the licence has run out"]}}, {"message": {"text": "the licence has run out \ud800"}}],
)  # fmt: skip
def test_the_words_of_a_refusal_are_shown_wherever_they_stand(refusing, photo_file, capsys, body):
    server = refusing(lambda _: True, 400, body)
    assert assess([str(photo_file), "--lm", "openai/small-vlm", "--api-base", server.base]) in {1, 2}
    shown = capsys.readouterr()
    assert "the licence has run out" in shown.out + shown.err
    assert "Traceback" not in shown.err


NO_SYSTEM_ROLE = [
    (500, {"error": {"code": 500, "message": "System role not supported", "type": "server_error"}}),
    (400, {"object": "error", "message": "Conversation roles must alternate user/assistant/user/assistant/..."}),
    (400, {"message": "Only user and assistant roles are supported!"}),
    (400, {"error": {"message": "Unsupported value: 'messages[0].role' does not support 'system' with this model."}}),
    (422, {"detail": [{"loc": ["body", "messages", 0, "role"], "msg": "Input should be 'user' or 'assistant'"}]}),
]


@pytest.mark.parametrize(("status", "body"), NO_SYSTEM_ROLE)
def test_a_model_without_a_system_role_gets_its_instructions_from_the_user(refusing, on, picture, status, body):
    server = refusing(lambda q: bool(q.system), status, body)
    assert [on(server)(image=picture(n), query=RATE).status for n in range(2)] == ["ok", "ok"]
    assert server.refusals == 1
    assert record()["system_role"] is False
    for question in server.asked:
        assert [m["role"] for m in question.body["messages"]] == ["user"]
        assert "Respond with a JSON object" in question.text or "Given are" in question.text


TEXT_ONLY = [
    (400, {"error": {"message": "'messages.1' : for 'role:user' the following must be satisfied"
                                "[('messages.1.content' : value must be a string)]"}}),
    (400, {"error": {"message": "messages[1].content must be a string"}}),
    (422, {"detail": [{"loc": ["body", "messages", 1, "content"], "msg": "Input should be a valid string"}]}),
    (422, {"detail": [{"loc": ["body", "messages", 1, "content", "str"], "msg": "Input should be a valid string"}]}),
    (400, {"error": {"message": "Failed to deserialize the JSON body: invalid type: sequence, expected a string"}}),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body"), TEXT_ONLY)
def test_a_server_whose_content_must_be_text_reads_no_images(refusing, on, picture, status, body):
    server = refusing(lambda q: bool(q.images), status, body)
    result = on(server)(image=picture(), query=RATE)
    assert result.status == "ok"
    assert "reads no images" in result.notes[-1]
    assert server.refusals == 1
    assert record()["reads_images"] is False


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, "404 page not found"),
        (404, {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}),
        (404, {"detail": "Not Found"}),
        (405, {"detail": "Method Not Allowed"}),
        (200, {"error": "Unexpected endpoint or method. (POST /chat/completions)"}),
    ],
)
def test_an_address_without_its_path_is_one_line_with_the_usual_one(refusing, photo_file, capsys, status, body):
    server = refusing(lambda question: question.most_tokens != 1, status, body)
    assert assess([str(photo_file), "--lm", "openai/small-vlm", "--api-base", server.base.removesuffix("/v1")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "serves no chat completions" in line
    assert line.endswith(f"most have it at {server.base}")


def message_with(change):
    """Return a spoiler that changes a choice and its message."""

    def spoil(completion):
        choice = completion["choices"][0]
        text = choice["message"]["content"]
        if text.startswith("{"):  # not what a probe is answered
            choice["message"] = {"role": "assistant", "content": None, **change(text)}
        return completion

    return spoil


def called(text):
    """Return a message that answers by a call of a function."""
    return {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "answer", "arguments": text}}]}


def as_text_completion(completion):
    (choice,) = completion["choices"]
    return {**completion, "choices": [{"index": 0, "text": choice["message"]["content"]}]}


def beside_another(completion):
    (choice,) = completion["choices"]
    return {**completion, "choices": [choice, {**choice, "index": 1}]}


ODD_PLACES = {
    "a function's arguments": message_with(called),
    "an object": message_with(lambda text: {"content": json.loads(text)}),
    "parsed": message_with(lambda text: {"parsed": json.loads(text)}),
    "JSON in a string": message_with(lambda text: {"content": json.dumps(text)}),
    "a text completion": as_text_completion,
    "two choices": beside_another,
    "an envelope": lambda completion: {"code": 0, "msg": "ok", "data": completion},
    "a list": lambda completion: [completion],
}


@pytest.mark.parametrize("kind", ODD_PLACES)
def test_an_answer_is_read_wherever_it_stands(loopback, on, picture, kind):
    result = on(loopback(spoils=ODD_PLACES[kind], sees=True))(image=picture(), query=RATE)
    assert (result.status, result.attempt, result.usage.lm_calls) == ("ok", "first call", 2)


@pytest.mark.parametrize("blank", ["\u0120", "\u2581"])
def test_token_probabilities_are_read_from_tokens_as_a_vocabulary_spells_them(loopback, on, picture, blank):
    def spell(token):
        for each in [token, *token["top_logprobs"]]:
            each["token"] = each["token"].replace(" ", blank)

    result = on(loopback(spoils=of_each_token(spell)))(image=picture(), query=RATE)
    plain = on(loopback())(image=picture(), query=RATE)
    assert result.level_probabilities_from == "logprobs"
    assert result.level_probabilities == plain.level_probabilities


@pytest.mark.parametrize("text", ["<quality_level>poor</quality_level>", "{”quality_level”: ”poor”}"])
def test_a_level_in_a_form_that_was_not_asked_for_counts_as_a_word(loopback, on, picture, text):
    result = on(loopback(rules=[("quality_level", text)], sees=True))(image=picture(), query=RATE)
    assert (result.attempt, result.level_probabilities_from) == ("text", "classification")
    assert max(result.level_probabilities, key=result.level_probabilities.get) == 2


def test_a_picture_that_a_content_filter_withholds_is_one_failed_row(loopback, loopback_module, tmp_path, rng):
    withheld = {"choices": [{"finish_reason": "content_filter", "message": {"role": "assistant", "content": None}}]}
    asked = []

    def first(_method, _path, question):
        if question is None or not question.images or question.most_tokens == 1:
            return None
        asked.append(question)
        return loopback_module.Reply(200, withheld) if len(asked) == 1 else None

    for name in ("a.png", "b.png", "c.png"):
        Image.fromarray(rng.integers(0, 255, (48, 48, 3), dtype=np.uint8)).save(tmp_path / name)
    server = loopback(first=first, sees=True)
    table = tmp_path / "rows.jsonl"
    command = [str(tmp_path), "--lm", "openai/small-vlm", "--api-base", server.base, "--workers", "1"]
    assert assess([*command, "--out", str(table)]) == 1
    rows = [json.loads(line) for line in table.read_text("utf-8").splitlines()]
    assert [row["status"] for row in rows] == ["error", "ok", "ok"]
    assert "content filter" in rows[0]["error"]
    assert len(asked) == 3


def test_of_a_web_page_with_an_error_the_words_are_shown(loopback, loopback_module, photo_file, capsys):
    page = "<html><head><style>p {}</style></head><body><h1>413 Request Entity Too Large</h1></body></html>"
    server = loopback(first=lambda method, *_: loopback_module.Reply(413, page) if method == "POST" else None)
    assert assess([str(photo_file), "--lm", "openai/small-vlm", "--api-base", server.base]) == 2
    error = capsys.readouterr().err
    assert "413 Request Entity Too Large" in error
    assert "<" not in error


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("whole", [False, True], ids=["path", "address"])
def test_a_redirect_to_the_same_host_is_followed_with_the_same_method(
    loopback, loopback_module, on, picture, status, whole
):
    def first(method, path, _question):
        if "?moved" in path:
            return None
        to = f"{server.base if whole else '/v1'}{path.removeprefix('/v1')}?moved"
        return loopback_module.Reply(status, "", {"Location": to})

    server = loopback(first=first)
    result = on(server)(image=picture(), query=RATE)
    assert (result.status, result.usage.lm_calls) == ("ok", 2)
    assert all(q.images or q.text for q in server.asked)


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize("page", ["/v1/models", "/v1/chat/completions"])
def test_a_redirect_to_another_host_is_one_line_and_nothing_is_sent_there(
    loopback, loopback_module, photo_file, capsys, monkeypatch, status, page
):
    monkeypatch.setenv("AGENTICIQA_API_KEY", "sk-planted-0123456789")
    elsewhere, reached = loopback(), []
    elsewhere.first = lambda *_: reached.append(1)
    to = f"{elsewhere.base.replace('127.0.0.1', 'localhost')}{page.removeprefix('/v1')}"

    def first(_method, path, _question):
        return loopback_module.Reply(status, "", {"Location": to}) if path == page else None

    server = loopback(first=first)
    assert assess([str(photo_file), "--lm", "openai/small-vlm", "--api-base", server.base]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert re.search(rf"{server.base}\S* sends requests on to http://localhost:{elsewhere.port}", line)
    assert "--api-base" in line
    assert not reached


def test_a_redirect_that_never_ends_is_one_line(loopback, loopback_module, photo_file, capsys):
    server = loopback(first=lambda _m, path, _q: loopback_module.Reply(308, "", {"Location": path}))
    assert assess([str(photo_file), "--lm", "openai/small-vlm", "--api-base", server.base]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


KEYS = (
    "choices", "message", "content", "logprobs", "top_logprobs", "token", "logprob", "bytes", "usage", "prompt_tokens",
    "completion_tokens", "prompt_tokens_details", "cached_tokens", "finish_reason", "tool_calls", "function", "error",
    "detail", "loc", "msg", "code", "type", "model", "id", "reasoning_content", "data", "meta", "n_ctx", "owned_by",
    "text", "parsed", "function_call", "arguments",
)  # fmt: skip
SCALARS = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        7,
        2.5,
        10**400,
        math.nan,
        math.inf,
        -math.inf,
        "",
        "good",
        "{",
        "\ud800",
        "llamacpp",
        "library",
    ]
)
ODD = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(st.sampled_from(KEYS), SCALARS, max_size=2),
    st.dictionaries(st.sampled_from(KEYS), st.lists(SCALARS, max_size=1), min_size=1, max_size=1),
)  # fmt: skip
PLACES = (
    "usage", "usage.prompt_tokens", "usage.prompt_tokens_details", "choices", "choices.0", "choices.0.message",
    "choices.0.message.content", "choices.0.message.tool_calls", "choices.0.message.reasoning_content",
    "choices.0.message.parsed", "choices.0.text", "data",
    "choices.0.logprobs", "choices.0.logprobs.content", "choices.0.logprobs.content.0",
    "choices.0.logprobs.content.0.logprob", "choices.0.logprobs.content.0.top_logprobs",
    "choices.0.finish_reason", "model", "id", "error", "detail",
)  # fmt: skip


def with_part(place, part):
    """Return a whole completion with one part in another one's place."""
    token = {"token": "good", "logprob": -0.1, "top_logprobs": [{"token": "fair", "logprob": -3.0}]}
    choice = {"finish_reason": "stop", "message": {"content": "good"}, "logprobs": {"content": [token]}}
    whole = {"model": "m", "choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    inside = whole
    *above, last = (int(name) if name.isdigit() else name for name in place.split("."))
    for name in above:
        inside = inside[name]
    inside[last] = part
    return whole


@pytest.fixture
def odd_server(loopback, loopback_module, on):
    """A server that sends `odd.reply` (a status and a body) whatever it is asked, and a model there."""
    odd = SimpleNamespace()
    server = loopback()
    odd.lm = on(server).resources.lm("planner").copy(cache=False)
    traits_of(odd.lm)
    odd.address, odd.record = server.base, odd.lm.engine.record
    server.first = lambda method, *_: None if method == odd.is_well else loopback_module.Reply(*odd.reply)
    odd.is_well = "GET"
    return odd


PROPERTY = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


@PROPERTY
@example(place="choices", part=True, status=200)
@example(place="choices.0.finish_reason", part=[], status=200)
@given(place=st.sampled_from(PLACES), part=ODD, status=st.sampled_from([200, 200, 200, 400, 422, 500, 401]))
def test_whatever_a_server_sends_is_an_answer_or_an_error(odd_server, place, part, status):
    odd_server.reply = (status, with_part(place, part))
    message = lm15.Message.user("Is it good?")
    request = lm15.Request(model=odd_server.lm.model, messages=(message,), config=lm15.Config(logprobs=5))
    with suppress(lm15.LM15Error, ModelError):
        response = odd_server.lm.engine.complete(request)
        assert (response.usage.input_tokens or 0) + (response.usage.output_tokens or 0) < 10**13
        assert all(math.isfinite(token.logprob) for token in response.logprobs or ())
    assert odd_server.record.known.model_dump_json()


@PROPERTY
@given(part=ODD, place=st.sampled_from(["whole", "data", "entry", "meta", "id"]))
def test_whatever_a_server_lists_is_read_or_left_out(odd_server, part, place):
    entry = {"id": "small-vlm", "owned_by": "llamacpp"}
    listing = {"data": [entry]}
    if place in {"meta", "id"}:
        entry[place] = part
    elif place == "entry":
        listing["data"] = [part, entry]
    else:
        listing = {"data": part} if place == "data" else part
    odd_server.reply, odd_server.is_well = (200, json.dumps(listing)), "POST"
    listed = listed_traits(odd_server.address, "small-vlm", {})
    assert ModelTraits(**listed).model_dump_json()
