"""What the program takes from inside DSPy still does what it is taken for: each test names what an upgrade broke."""

import re
from pathlib import Path

import dspy
import pytest
from dspy import lm15
from dspy.utils.callback import BaseCallback

from program.lms import dspy_private
from program.lms.adapter import KeptAdapter
from program.lms.dspy_private import (
    CUSTOM_TYPE_END_IDENTIFIER,
    CUSTOM_TYPE_START_IDENTIFIER,
    LM15Engine,
    StdlibTransport,
    estimated_cost_usd,
    response_format,
)

ROOT = Path(__file__).resolve().parents[1]


class Rate(dspy.Signature):
    """Rate."""

    question: str = dspy.InputField()
    score: int = dspy.OutputField()


def test_a_transport_sends_one_request_through_stream_and_the_body_can_be_replaced(loopback):
    bodies = []

    class Watching(StdlibTransport):
        def stream(self, request):
            bodies.append(request.body)
            return super().stream(request)

    server = loopback()
    transport = Watching()
    connection = {"base_urls": {"openai-chat": server.base}, "api_keys": {"openai-chat": "none"}}
    engine = LM15Engine(lm15.RouterConfig(env={}, transport=transport, **connection))
    assert engine.config.transport is transport
    engine.complete(lm15.Request(model="openai/gpt-4o", messages=(lm15.Message.user("Give a JSON object"),)))
    engine.close()
    transport.close()
    assert [b"Give a JSON object" in body for body in bodies] == [True]


def test_an_engine_tells_where_it_would_go_without_going_there():
    route = LM15Engine(lm15.RouterConfig(env={})).resolve("openai/gpt-4o")
    assert (route.provider, route.model) == ("openai-chat", "gpt-4o")
    with pytest.raises((lm15.UnknownModelError, lm15.UnsupportedFeatureError)):
        LM15Engine(lm15.RouterConfig(env={})).resolve("nobody/nothing")


def test_callbacks_see_the_steps_of_our_adapter_as_often_as_of_dspys(scripted_lm):
    def steps_of(adapter):
        steps = []

        class Watching(BaseCallback):
            def on_adapter_format_start(self, call_id, instance, inputs):
                steps.append("format")

            def on_adapter_parse_start(self, call_id, instance, inputs):
                steps.append("parse")

        with dspy.context(lm=scripted_lm({"score": {"score": 3}}), adapter=adapter, callbacks=[Watching()]):
            dspy.Predict(Rate)(question="?")
        return steps

    assert steps_of(KeptAdapter()) == steps_of(dspy.JSONAdapter())


@pytest.mark.parametrize("takes_schemas", [True, False])
def test_an_lm_is_asked_for_dspys_own_form_a_strict_schema_where_it_takes_one(takes_schemas):
    form = response_format(Rate, by_schema=takes_schemas)
    if not takes_schemas:
        assert form == {"type": "json_object"}
    else:
        schema = form["json_schema"]["schema"]
        assert list(schema["properties"]) == schema["required"] == ["score"]
        assert (form["type"], form["json_schema"]["strict"], schema["additionalProperties"]) == (
            "json_schema",
            True,
            False,
        )


def test_the_price_list_knows_a_hosted_model_and_no_server():
    usage = lm15.Usage(input_tokens=1_000_000, output_tokens=0)
    response = lm15.Response(
        id=None, model="gpt-4o", message=lm15.Message.assistant("x"), finish_reason="stop", usage=usage
    )
    assert estimated_cost_usd(response, provider="openai-chat", model="gpt-4o") == pytest.approx(2.5)
    assert estimated_cost_usd(response, provider=None, model="gpt-4o") is None


def test_an_engines_price_and_history_come_through_a_copy_of_the_lm(scripted_lm):
    entries = []
    lm = scripted_lm({"score": {"score": 3}}).copy(num_retries=0)
    lm.update_history = entries.append
    with dspy.context(lm=lm, adapter=KeptAdapter(), disable_history=False):
        dspy.Predict(Rate)(question="?")
    (entry,) = entries
    assert '"score": 3' in str(entry["outputs"][0])
    assert entry["usage"]["prompt_tokens"] == 7
    assert {"messages", "cost"} <= entry.keys()


def test_an_image_stands_between_the_markers_in_a_prompt():
    text = str(dspy.Image("https://host.example/a.png").model_dump(mode="json"))
    assert text.startswith(CUSTOM_TYPE_START_IDENTIFIER)
    assert text.endswith(CUSTOM_TYPE_END_IDENTIFIER)


def test_private_names_are_used_in_one_file_only():
    names = re.compile(
        r"dspy\._|dspy\.(clients|adapters|dsp|predict)\.|_engine_spec|_forward_postprocess|dspy\.cache\._|"
        r"_prepare_response_format|dspy\.teleprompt\.\w+\.|_propose_instructions"
    )
    files = [file for room in ("program", "optimizers", "data", "signatures") for file in (ROOT / room).rglob("*.py")]
    users = [file for file in files if names.search(file.read_text("utf-8"))]
    assert users == [Path(dspy_private.__file__)]


def test_a_prediction_keeps_its_fields_completions_and_usage_where_assessments_give_them():
    made = vars(dspy.Prediction(a=1))
    assert {name: made[name] for name in ("_store", "_completions", "_lm_usage")} == {
        "_store": {"a": 1}, "_completions": None, "_lm_usage": None,
    }  # fmt: skip
    assert set(made) == {"_store", "_completions", "_lm_usage"}


def test_an_answer_is_handed_out_as_the_list_that_the_history_notes(scripted_lm):
    lm = scripted_lm({"score": {"score": 3}}).copy(num_retries=0)
    lm.update_history = lambda entry: entry["outputs"].__setitem__(slice(None), ['{"score": 4}'])
    with dspy.context(lm=lm, adapter=KeptAdapter(), disable_history=False):
        assert dspy.Predict(Rate)(question="?").score == 4
