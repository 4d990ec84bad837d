"""What a model can do is asked of its server once, learnt from refusals, kept, and never asked for again in vain."""

import json
import re

import numpy as np
import pytest
from PIL import Image, ImageFilter
from skimage import data as photographs

from program.agent.loop import AgenticIQA
from program.assess import main as assess
from program.common.errors import EndpointError
from program.common.settings import load_settings
from program.doctor import main as doctor
from tests.pictures import noise, noisy
from tests.tables import read_lines

pytestmark = pytest.mark.usefixtures("no_answers_kept")

RATE = "Rate the perceptual quality of this image."
WHOSE_EYES = r"reads no images: the embedded expert's findings are used$"
BLIND = ("llamacpp", "vllm", "lmstudio", "openrouter", "ollama", "")
ANSWERS = {"quality_level", "quality_probs", "final_answer"}


def kept():
    """Return what the cache folder holds of models."""
    folder = load_settings().cache_dir / "models"
    return [json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("*.json"))]


@pytest.mark.spec("D29/a-text-only-model-is-a-full-citizen")
@pytest.mark.parametrize("flavour", BLIND)
@pytest.mark.parametrize(
    ("query", "options"), [(RATE, None), ("Which is worst?", ["Blur", "Noise"]), ("图像为何模糊？", None)]
)
def test_a_model_that_reads_no_images_is_shown_none_and_the_result_says_whose_eyes(
    loopback, on, picture, flavour, query, options
):
    server = loopback(flavour=flavour, sees=False)
    result = on(server)(image=picture(), query=query, options=options)
    assert result.status == "ok"
    assert sum("small-vlm" in note and re.search(WHOSE_EYES, note) is not None for note in result.notes) == 1
    assert result.state.executor_evidence.distortion_analysis
    assert {q.name for q in server.asked} <= {"plan", "selected_tools", *ANSWERS}
    assert result.usage.lm_calls == len(server.asked) <= 3
    assert server.stats()["images"] == 0
    for question in server.asked:
        assert "[[ ## image ## ]]" not in question.text
        assert "look at the image" not in question.text
        assert not question.images


@pytest.mark.parametrize(
    ("query", "options"), [("Which is worst?", ["Blur", "Noise"]), ("What is wrong with it?", None)]
)
@pytest.mark.parametrize("sees", [True, False])
def test_reworded_instructions_reach_the_model_whole_and_speak_of_looking_only_beside_an_image(
    loopback, on, picture, sees, query, options
):
    server = loopback(flavour="llamacpp", sees=sees)
    iqa = on(server)
    predictor = iqa.summarizer.answer if options else iqa.summarizer.explain
    # As an optimizer rewrites what it is shown: the sense stays, the words do not.
    reworded = predictor.signature.instructions.replace("unclear or insufficient, look", "thin, look").upper()
    predictor.signature = predictor.signature.with_instructions(reworded)
    iqa(image=picture(), query=query, options=options)
    (question,) = [q for q in server.asked if q.name == "final_answer"]
    assert reworded in question.text
    assert (
        ("4. if they are unclear or insufficient, look at the image itself" in question.text.lower())
        is sees
        is bool(question.images)
    )


@pytest.mark.spec("D29/a-text-only-model-is-a-full-citizen")
@pytest.mark.parametrize("flavour", BLIND)
def test_sight_is_asked_with_one_picture_at_most_and_never_again(loopback, on, picture, flavour):
    server = loopback(flavour=flavour, sees=False)
    on(server)(image=picture())
    shown = [q for q in server.probes if q.images]
    assert len(shown) == (0 if flavour in {"llamacpp", "ollama"} else 1)  # those say it themselves
    assert len(server.probes) <= len(shown) + 1
    before = len(server.probes)
    again = on(server)(image=picture(2))
    assert len(server.probes) == before
    assert re.search(WHOSE_EYES, again.notes[-1])
    (record,) = kept()
    assert record["reads_images"] is False
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["asked"])


@pytest.mark.spec("D29/a-text-only-model-is-a-full-citizen")
@pytest.mark.parametrize("flavour", ["llamacpp", "vllm", "lmstudio", "openrouter", ""])
def test_a_refusal_of_an_image_is_met_once_whatever_was_promised(loopback, loopback_module, on, picture, flavour):
    promised = loopback(flavour=flavour, modalities=("text", "image"), sees=False)
    if flavour == "llamacpp":  # whose own page says the truth
        status, words, code = promised.flavour.no_images
        reply = loopback_module.Reply(status, {"error": {"message": words, "type": code}})
        promised = loopback(rules=[(lambda q: bool(q.images), reply)], modalities=("text", "image"))
    iqa = on(promised)
    results = [iqa(image=picture(n)) for n in range(2)]
    assert [r.status for r in results] == ["ok", "ok"]
    assert all(re.search(WHOSE_EYES, r.notes[-1]) for r in results)
    assert sum(bool(q.images) for q in promised.asked) == 1
    assert on(promised)(image=picture(3)).status == "ok"
    assert sum(bool(q.images) for q in promised.asked) == 1


@pytest.mark.spec("D29/a-text-only-model-is-a-full-citizen")
@pytest.mark.parametrize("flavour", [*BLIND, "azure"])
def test_a_model_that_sees_gets_the_original_bytes(loopback, on, photo_file, flavour):
    server = loopback(flavour=flavour, modalities=("text", "image") if flavour == "openrouter" else None)
    result = on(server)(image=photo_file)
    assert (result.status, result.notes) == ("ok", [])
    shown = [q.images for q in server.asked if q.images]
    assert shown == [[photo_file.read_bytes()]]  # score and distortions at once
    assert len(server.asked) == result.usage.lm_calls == 2


@pytest.mark.spec("D29/a-text-only-model-is-a-full-citizen")
def test_what_a_list_of_models_says_is_believed_without_a_picture(loopback, on, picture):
    for modalities in (("text",), ("text", "image")):
        server = loopback(modalities=modalities)
        result = on(server)(image=picture())
        assert not any(q.images for q in server.probes)
        assert any(q.images for q in server.asked) == ("image" in modalities)
        assert bool(result.notes) == ("image" not in modalities)


@pytest.mark.spec("43/an-endpoints-record")
def test_configuration_goes_before_what_a_server_says(loopback, on, picture):
    server = loopback()
    entry = {"provider": "openai", "model": "small-vlm", "api_base": server.base, "vision": False}
    result = on(server, "mine", models={"backends": {"mine": entry}})(image=picture())
    assert re.search(WHOSE_EYES, result.notes[-1])
    assert not any(q.images for q in [*server.asked, *server.probes])


@pytest.mark.spec("43/an-endpoints-record")
@pytest.mark.parametrize("field", ["response_format", "logprobs", "temperature"])
def test_a_refused_field_is_met_once_and_left_out_by_later_processes(loopback, on, picture, field):
    server = loopback(refuses=[field])
    results = [on(server)(image=picture(n)) for n in range(2)]
    assert [r.status for r in results] == ["ok", "ok"]
    refused = [q for q in [*server.probes, *server.asked] if field in q.body]
    assert len(refused) == 1
    others = {"response_format", "temperature"} - {field}
    assert all(name in q.body for q in server.asked for name in others)
    assert all(field not in q.body for q in server.asked[len(server.asked) // 2 :])
    (record,) = kept()
    assert list(record["refused"]) == [field]
    assert f"argument supplied: {field}" in record["refused"][field]
    if field == "logprobs":
        assert results[1].level_probabilities_from == "probabilities"


@pytest.mark.spec("D26/token-probabilities-where-they-come")
@pytest.mark.parametrize(
    ("options", "source"),
    [({}, "logprobs"), ({"flavour": "lmstudio"}, "probabilities"), ({"token_probabilities": 0}, "probabilities")],
)
def test_token_probabilities_are_used_where_they_come_and_not_asked_for_else(loopback, on, picture, options, source):
    server = loopback(**options)
    assert on(server)(image=picture()).level_probabilities_from == source
    (asked,) = [q for q in server.asked if {"quality_level", "quality_probs"} & set(q.fields)]
    assert ("logprobs" in asked.body) == (source == "logprobs")
    if source == "logprobs":
        assert asked.fields[:3] == ["quality_level", "findings", "quality_reasoning"]
    else:
        assert asked.fields[:3] == ["findings", "quality_reasoning", "quality_probs"]


@pytest.mark.spec("43/an-endpoints-record")
@pytest.mark.parametrize("model", ["openai/my-azure-o3", "openai/small-vlm"])
def test_the_other_field_for_the_most_tokens_is_taken_once(loopback, on, picture, model):
    server = loopback(flavour="azure", models=[model.partition("/")[2]])
    for number in range(2):
        assert on(server, model)(image=picture(number)).status == "ok"
    assert sum("max_tokens" in q.body for q in [*server.probes, *server.asked]) == 1
    assert not any("max_tokens" in q.body for q in server.asked)
    (record,) = kept()
    assert record["max_tokens_field"] == "max_completion_tokens"


def test_a_server_that_still_loads_its_model_is_asked_again(loopback, on, picture):
    server = loopback(flavour="llamacpp", sees=False, loading=1)
    assert on(server)(image=picture(), query=RATE).status == "ok"
    (record,) = kept()
    assert record["token_probabilities"] > 0
    assert record["asked"]


@pytest.mark.spec("43/an-endpoints-record")
def test_on_a_server_of_one_model_any_name_means_that_one(loopback, on, picture):
    server = loopback(flavour="vllm", models=["Qwen/Qwen2.5-VL-7B"])
    assert on(server, "openai/qwen")(image=picture()).status == "ok"
    assert {q.model for q in [*server.asked, *server.probes]} == {"Qwen/Qwen2.5-VL-7B"}


@pytest.mark.spec("43/errors-name-the-cause")
def test_a_wrong_name_on_a_server_of_several_names_those(loopback, on, picture, photo_file, capsys):
    server = loopback(flavour="vllm", models=["qwen", "llava"])
    for _ in range(2):
        with pytest.raises(EndpointError, match=r"^openai/qwem: [^\n]*not on [^\n]*server[^\n]*qwen, llava[^\n]*$"):
            on(server, "openai/qwem")(image=picture())
    assert not server.asked
    assert assess([str(photo_file), "--lm", "openai/qwem", "--api-base", server.base]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.spec("43/errors-name-the-cause")
@pytest.mark.parametrize("flavour", ["llamacpp", "vllm"])
def test_a_full_context_is_one_line_and_one_request(loopback, photo_file, capsys, flavour):
    server = loopback(flavour=flavour, context_tokens=100)
    assert assess([str(photo_file), "--lm", "openai/small-vlm", "--api-base", server.base]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert re.search(r"openai/small-vlm at http://\S+: the context of 100 tokens is full; [^\n]*--demos 4", line)
    assert len(server.asked) == 1


@pytest.mark.spec("43/errors-name-the-cause")
def test_a_server_that_is_not_there_is_one_line(loopback, photo_file, capsys):
    server = loopback()
    server.stop()
    assert assess([str(photo_file), "--lm", "openai/small-vlm", "--api-base", server.base]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"no server answers at {server.base}" in line


@pytest.mark.spec("43/an-endpoints-record")
def test_a_record_is_of_one_model_at_one_address(loopback, on, picture):
    blind, sighted = loopback(sees=False), loopback(models=["small-vlm", "other"])
    on(blind)(image=picture())
    assert on(sighted)(image=picture()).notes == []
    assert on(sighted, "openai/other")(image=picture()).notes == []
    assert len(sighted.probes) == 2
    assert sorted(record["reads_images"] for record in kept()) == [False, True, True]


@pytest.mark.spec("43/an-endpoints-record")
def test_all_roles_and_threads_share_one_record(loopback, on, rng):
    server = loopback(latency_s=0.05)
    images = [noise(rng, 48, 64) for _ in range(6)]
    assert {r.status for r in on(server).batch(images, workers=6)} == {"ok"}
    assert len(server.probes) == 1


@pytest.mark.slow
@pytest.mark.spec("43/an-endpoints-record")
def test_the_doctor_asks_again(loopback, on, picture, forget_models, capsys):
    server = loopback(rules=[("left", lambda q: {"left": "red", "right": "red"})])
    on(server)(image=picture())
    assert len(server.probes) == 1
    server.sees = False
    forget_models()
    assert doctor(["--lm", "openai/any-name", "--api-base", server.base]) == 0
    assert "reads none" in capsys.readouterr().out


@pytest.mark.spec("43/errors-name-the-cause")
def test_a_folder_ends_with_the_second_failure_of_the_endpoint_and_keeps_what_is_done(
    loopback, loopback_module, tmp_path, encoded, capsys
):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.png").write_bytes(encoded(number))
    gone = loopback_module.Reply(404, {"error": {"message": "model small-vlm not found, try pulling it first"}})
    shown = []

    def answer_two(question):
        shown.append(question)
        return len(shown) > 2

    server = loopback(rules=[(lambda q: bool(q.images) and answer_two(q), gone)])
    results = tmp_path / "results.jsonl"
    arguments = ["--lm", "openai/small-vlm", "--api-base", server.base, "--workers", "1", "--out", str(results)]
    assert assess([str(folder), *arguments]) == 2
    assert "not on the server" in capsys.readouterr().err
    assert results.with_name("results.jsonl.partial").read_text("utf-8").count('"status": "ok"') == 2
    assert len(shown) <= 5  # one may be on its way
    server.rules.clear()
    before = sum(bool(q.images) for q in server.asked)
    assert assess([str(folder), *arguments]) in {0, 1}
    assert sum(bool(q.images) for q in server.asked) - before <= 6
    lines = read_lines(results)
    assert [line["status"] for line in lines].count("ok") >= 7


@pytest.mark.spec("43/one-answer-for-score-and-distortions")
def test_a_model_with_eyes_names_the_distortions_in_its_score(loopback, on, picture):
    found = [{"region": "Global", "type": "Noise", "severity": "severe", "explanation": "Grain all over."}]
    level = {"quality_level": "poor", "findings": found, "quality_reasoning": "Grain hides the detail."}
    server = loopback(rules=[("quality_level", level)])
    iqa = on(server)
    results = [iqa(image=picture(n), query=RATE) for n in range(3)]
    assert sum(bool(q.images) for q in server.asked) == 3
    assert {r.usage.lm_calls for r in results} == {2}  # no answer is kept here: plan, and the one
    for result in results:
        assert (result.status, result.level_probabilities_from) == ("ok", "logprobs")
        assert result.state.evidence.distortion_set == {"Global": ["Noise"]}
        assert [(r, f.type, f.severity) for r, f in result.state.evidence.findings()] == [("Global", "Noise", "severe")]
        assert result.used_evidence["findings"] == [{"region": "Global", "type": "Noise", "severity": "severe"}]
    answer = iqa(image=picture(0), query="Why is it so?")  # other questions look first
    assert [q.name for q in server.asked][-3:] == ["plan", "findings", "final_answer"]
    assert answer.status == "ok"
    clean = loopback(rules=[("quality_level", {**level, "quality_level": "excellent", "findings": []})])
    result = on(clean)(image=picture(0), query=RATE)
    assert (result.status, result.state.evidence.distortion_analysis) == ("ok", {"Global": []})


@pytest.mark.spec("43/one-answer-for-score-and-distortions")
def test_a_model_that_cannot_answer_both_at_once_is_asked_one_after_the_other(loopback, on, picture):
    server = loopback(rules=[(lambda q: {"quality_level", "findings"} <= set(q.fields), "I see some grain here.")])
    iqa = on(server)
    first, second = (iqa(image=picture(n), query=RATE) for n in range(2))
    assert (first.status, second.status) == ("ok", "ok")
    assert first.state.evidence.findings()
    assert first.usage.lm_calls == 1 + 3 + 2  # plan, three attempts at both, then findings and the score
    assert second.usage.lm_calls == 1 + 2
    assert kept()[0]["answers_at_once"] is False


@pytest.mark.spec("43/one-answer-for-score-and-distortions")
def test_one_unreadable_picture_says_nothing_of_the_model(loopback, on, picture):
    server = loopback(rules=[(lambda q: bool({"quality_level", "findings"} & set(q.fields)), "I cannot say.")])
    result = on(server)(image=picture(), query=RATE)
    assert (result.status, result.attempt) == ("degraded", "tools alone")
    assert "analysis failed" in result.quality_reasoning
    assert "answers_at_once" not in kept()[0]


@pytest.mark.spec("43/one-word-an-image")
@pytest.mark.parametrize(("options", "source"), [({}, "logprobs"), ({"token_probabilities": 0}, "classification")])
def test_a_score_alone_costs_one_word_an_image(loopback, on, picture, options, source):
    server = loopback(**options)
    iqa = on(server, assessment={"score_only": True})
    results = [iqa(image=picture(n), query=RATE) for n in range(3)]
    assert [(r.status, r.level_probabilities_from, r.usage.lm_calls) for r in results] == [("ok", source, 1)] * 3
    assert all(r.quality_reasoning for r in results)
    assert len(server.asked) == 3
    for question in server.asked:
        assert question.is_word
        assert question.most_tokens <= 8
        assert "response_format" not in question.body


@pytest.mark.spec("43/one-word-an-image")
def test_a_choice_alone_costs_one_letter_an_image_and_its_reasons_are_what_was_found(loopback, on):
    server = loopback(rules=[("final_answer", "B")])
    iqa = on(server, assessment={"score_only": True})
    for query, word in (("Is this image blurred?", "noise"), ("这张图片模糊吗？", "噪")):
        result = iqa(image=noisy(photographs.chelsea(), 25), query=query, options=["Yes", "No"])
        assert (result.status, result.final_answer, result.usage.lm_calls) == ("ok", "B", 1)
        assert result.faults[0][0] == "noise"
        assert word in result.quality_reasoning
    for question in server.asked:
        assert question.fields == ["final_answer"]
        assert question.most_tokens <= 8


@pytest.mark.spec("43/one-word-an-image")
def test_one_word_of_a_model_comes_with_the_faults_in_the_experts_words(loopback, on):
    photo = Image.fromarray(np.ascontiguousarray(photographs.coffee()[:288, :384]))
    blurred = np.asarray(photo.filter(ImageFilter.GaussianBlur(5)))
    iqa = on(loopback(rules=[("final_answer", "B")]), assessment={"score_only": True})
    for query, word in ((RATE, "blur"), ("Is it noisy?", "blur"), ("请评分。", "模糊")):
        result = iqa(image=blurred, query=query, options=["Yes", "No"] if "noisy" in query else None)
        assert result.faults[0][1] == "strong"
        assert word in result.summary.lower()
        assert word in result.quality_reasoning.lower()
        assert not re.search(r"\d", result.summary)


@pytest.mark.spec("43/errors-name-the-cause")
def test_a_refused_key_is_named_by_its_own_variable(loopback, picture, monkeypatch):
    monkeypatch.setenv("MY_KEY", "another")
    entry = {"provider": "openai", "model": "small-vlm", "api_base": loopback(key="k").base, "key_env": "MY_KEY"}
    settings = load_settings(overrides={"models": {"backends": {"mine": entry}}}).with_model("mine")
    with pytest.raises(EndpointError, match=r"^[^\n]*refuses the key[^\n]*MY_KEY[^\n]*$"):
        AgenticIQA(settings)(image=picture())


def test_what_the_embedded_expert_is_told_reaches_no_language_model(loopback, on, picture):
    server = loopback()
    result = on(server)(image=picture(), query="Is it sharp?", options=["Yes", "No"], intended=["night"])
    assert result.state.intended == ["night"]
    assert server.asked
    assert not [question for question in server.asked if "night" in json.dumps(question.body)]
