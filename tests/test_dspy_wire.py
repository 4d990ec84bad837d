"""DSPy's adapters, and a language model of the user's own, against a server on the loopback."""

from typing import Any

import dspy
import pytest
from dspy.adapters.baml_adapter import BAMLAdapter

from program.agent.loop import AgenticIQA
from program.common.errors import InputError
from program.common.settings import load_settings

RATE = "Rate the perceptual quality of this image."


@pytest.fixture
def by_server(fake_runner):
    """Make a program that asks a server as `--lm` does, with quick tools."""

    def make(server: Any) -> AgenticIQA:
        iqa = AgenticIQA(load_settings().with_model("openai/small-vlm", server.base))
        iqa.resources.__dict__["runner"] = fake_runner()
        return iqa

    return make


def rated(iqa: AgenticIQA, image: Any) -> tuple[Any, ...]:
    """Return what a rating came to: its status, the source of its belief, calls and score."""
    result = iqa(image=image, query=RATE)
    source = result.state.summarizer_result.level_probabilities_from
    return result.status, source, result.usage.lm_calls, result.final_answer


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter, dspy.JSONAdapter, dspy.XMLAdapter, BAMLAdapter])
def test_token_probabilities_are_read_through_each_adapter(loopback, by_server, picture, adapter) -> None:
    expected = rated(by_server(loopback()), picture())
    assert expected[:2] == ("ok", "logprobs")
    with dspy.context(adapter=adapter()):
        assert rated(by_server(loopback()), picture()) == expected


def test_token_probabilities_are_read_through_an_adapter_in_two_steps(loopback, by_server, picture) -> None:
    free = [(lambda q: "`quality_level`" in q.system, "**quality_level**: poor\n\nIt is soft.")]
    reader = loopback()
    adapter = dspy.TwoStepAdapter(dspy.LM("openai/reader", api_base=reader.base, api_key="none", cache=False))
    with dspy.context(adapter=adapter):
        blind = by_server(loopback(modalities=["text"], rules=free))
        assert rated(blind, picture())[:3] == ("ok", "logprobs", 2)
        with pytest.raises(InputError, match=r"^[^\n]*TwoStepAdapter sends no images[^\n]*ChatAdapter[^\n]*$"):
            by_server(loopback())(image=picture(), query=RATE)


# A language model of the user's own


def own_lm(server: Any, **options: Any) -> dspy.LM:
    return dspy.LM("openai/small-vlm", api_base=server.base, api_key="none", cache=False, **options)


def with_tools(iqa: AgenticIQA, runner: Any) -> AgenticIQA:
    iqa.resources.__dict__["runner"] = runner
    return iqa


def question_in(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request without what a model's own settings say."""
    return {name: value for name, value in body.items() if name not in {"temperature", "max_tokens"}}


@pytest.mark.parametrize("way", ["given", "configured", "set", "of a predictor"])
def test_a_users_own_lm_costs_what_ours_costs(loopback, by_server, fake_runner, picture, way) -> None:
    ours, theirs = loopback(), loopback()
    expected = rated(by_server(ours), picture())
    lm = own_lm(theirs)
    before = (lm.model, dict(lm.kwargs), lm.engine, lm.num_retries)
    iqa = with_tools(AgenticIQA(lm=lm if way == "given" else None), fake_runner())
    if way == "set":
        iqa.set_lm(lm)
    elif way == "of a predictor":
        iqa.planner.plan.lm = iqa.executor.select_tools.lm = iqa.summarizer.classify.lm = lm
    with dspy.context(lm=lm if way in {"configured", "of a predictor"} else None):
        assert rated(iqa, picture()) == expected
        assert iqa.get_lm() is lm if way != "of a predictor" else True
    sent, as_ours = ([question_in(q.body) for q in server.asked] for server in (theirs, ours))
    assert sent == as_ours
    assert (lm.model, dict(lm.kwargs), lm.engine, lm.num_retries) == before
    assert [entry["model"] for entry in lm.history] == [lm.model] * len(sent)


# What an optimizer sees


@pytest.mark.parametrize(
    ("options", "diagnosis", "hidden"),
    [
        ({}, "answer", {"detect", "analyse", "diagnose", "score"}),
        ({}, "merged", {"detect", "analyse", "score"}),
        ({}, "separate", {"diagnose", "score"}),
        ({"token_probabilities": 0}, "answer", {"detect", "analyse", "diagnose", "classify"}),
        ({"modalities": ["text"]}, "answer", {"detect", "analyse", "diagnose", "locate", "score"}),
    ],
)
def test_an_optimizer_sees_the_predictors_that_can_be_asked(loopback, tmp_path, options, diagnosis, hidden) -> None:
    settings = load_settings(overrides={"assessment": {"diagnosis": diagnosis}})
    iqa = AgenticIQA(settings.with_model("openai/small-vlm", loopback(**options).base))
    everything = dict(iqa.named_parameters())
    unseen = everything.keys() - dict(iqa.named_predictors()).keys()
    assert {name.partition(".")[2] for name in unseen} == hidden | {"select_tools"}
    iqa.executor.detect.signature = iqa.executor.detect.signature.with_instructions("Look at the edges.")
    iqa.save(tmp_path / "program.json")
    again = AgenticIQA(settings)
    again.load(tmp_path / "program.json")
    assert again.executor.detect.signature.instructions == "Look at the edges."


def test_a_program_is_optimized_by_what_can_be_asked_though_its_model_turns_out_otherwise(loopback, by_server) -> None:
    iqa = by_server(loopback())
    before = [name for name, _ in iqa.named_predictors()]
    iqa.resources.lm("executor").engine.record.learn(answers_at_once=False)
    assert [name for name, _ in iqa.deepcopy().named_predictors()] == before  # an optimizer numbers them


def test_a_program_shows_itself_without_a_question_to_its_server(loopback, by_server) -> None:
    server = loopback()
    assert "executor.detect" in repr(by_server(server))
    assert not server.probes
