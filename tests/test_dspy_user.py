"""The program as a DSPy user meets it: called, streamed, evaluated, optimized, saved, each as with any module."""

import asyncio
import base64
import copy
import inspect
import io
import json
import pickle
import re
from pathlib import Path

import cloudpickle
import dspy
import pytest
from dspy import lm15
from dspy.adapters.baml_adapter import BAMLAdapter
from PIL import Image

from program import AgenticIQA, Assessment, load
from program.agent.module import FailedSample
from program.agent.saving import save
from program.common.errors import ImageError, InputError, ModelError
from program.expert.engine import make_perceptual_lm
from program.expert.store import MODEL
from program.images.store import HOST, IMAGES
from program.lms.traits import ModelRecord
from signatures.summarizer import ScoreQuality

RATE = "Rate the perceptual quality of this image."
KEY = "sk-planted-for-a-dspy-user"
STEPS = dict.fromkeys(("distortion_detection", "distortion_analysis", "tool_selection", "tool_execute"), True)
PLAN = {"query_type": "IQA", "query_scope": ["Global"], "reference_mode": "No-Reference", **STEPS}
SCRIPT = {
    "plan": {"plan": PLAN},
    "findings": {"findings": [{"region": "Global", "type": "Blurs", "severity": "moderate", "explanation": "Soft."}]},
    "selected_tools": {"selected_tools": [{"region": "Global", "distortion": "Blurs", "tool": "PIQE"}]},
    "quality_probs": {
        "quality_probs": {"bad": 0.1, "poor": 0.2, "fair": 0.4, "good": 0.2, "excellent": 0.1},
        "quality_reasoning": "Soft edges.",
    },
    "final_answer": {"final_answer": "B", "quality_reasoning": "Soft edges."},
}
ANSWERS = {name: value for fields in SCRIPT.values() for name, value in fields.items()}
ANSWERS |= {"reasoning": "I looked.", "advice": {"summarizer.score": "Mind the noise."}}
PREDICTORS = [
    "planner.plan", "executor.detect", "executor.analyse", "executor.diagnose", "executor.select_tools",
    "executor.locate", "summarizer.score", "summarizer.classify", "summarizer.answer", "summarizer.explain",
]  # fmt: skip


@pytest.fixture(autouse=True)
def papers_way(monkeypatch, tmp_path):
    """Every predictor is asked, the one that picks tools too."""
    config = tmp_path / "papers-way.yaml"
    config.write_text("executor: {selection: model}", encoding="utf-8")
    monkeypatch.setenv("AGENTICIQA_CONFIG", str(config))


class Speaker:
    """A model without structured output: it reads in the prompt which fields are asked for, and in which format."""

    supports_response_schema = supports_function_calling = supports_reasoning = False
    supported_params = frozenset({"temperature", "max_tokens"})

    def __init__(self):
        self.requests, self.refuses = [], ""
        self.record = ModelRecord(declared={"takes_references": True, "token_probabilities": 0})

    def complete(self, request):
        self.requests.append(request)
        text = self.spoken(request)
        usage = lm15.Usage(input_tokens=7, output_tokens=3)
        return lm15.Response(
            id=None, model=request.model, message=lm15.Message.assistant(text), finish_reason="stop", usage=usage
        )

    def spoken(self, request):
        system = str(request.system)
        listed = re.search(
            r"(?:output fields are|fields, in this order):\n((?:(?:\d+\. `\w+`|\w+(?:: | \(|$)).*\n?)+)", system, re.M
        )
        names = re.findall(r"^(?:\d+\. `)?(\w+)(?:`|: | \(|$)", listed[1], re.MULTILINE) if listed else []
        if not names:  # GEPA's reflection
            return "```\nJudge with care.\n```"
        if self.refuses and self.refuses in system:
            return "I would rather not."
        if f"<{names[0]}>" in system:
            return "\n".join(f"<{name}>\n{self.text(name)}\n</{name}>" for name in names)
        if "JSON object" in system or f"Output field `{names[0]}` should be of type" in system:  # BAML
            return self.json(names)
        return "\n\n".join(f"[[ ## {name} ## ]]\n{self.text(name)}" for name in [*names, "completed"])

    @staticmethod
    def json(names):
        return json.dumps({name: ANSWERS.get(name, "Judge with care.") for name in names})

    @staticmethod
    def text(name):
        value = ANSWERS.get(name, "Judge with care.")
        return value if isinstance(value, str) else json.dumps(value)


def speaker(**options):
    return dspy.LM("scripted/speaker", engine=Speaker(), cache=False, **options)


def prompts(lm):
    return [str(request.system) for request in lm.engine.requests]


@pytest.fixture
def iqa(fake_runner):
    """`AgenticIQA()` as it comes, the tools quick."""
    made = AgenticIQA()
    made.resources.__dict__["runner"] = fake_runner()
    return made


@pytest.fixture
def spoken(fake_runner):
    made = AgenticIQA(lm=speaker())
    made.resources.__dict__["runner"] = fake_runner()
    return made


@pytest.fixture
def trainset(encoded):
    return [
        dspy.Example(image=_data_image(encoded(n)), query=RATE, mos=2.0 + n / 2).with_inputs("image", "query")
        for n in range(4)
    ]


def _data_image(data):
    return dspy.Image(f"data:image/png;base64,{base64.b64encode(data).decode()}")


def close_to_people(example, prediction, trace=None):
    error = abs(example.mos - prediction.final_answer)
    return error < 1 if trace is not None else 1 - error / 4


def told(example, prediction, trace=None, predictor=None, predictor_trace=None):
    return dspy.Prediction(score=close_to_people(example, prediction), feedback="Look at the edges.")


def test_the_page_of_the_documentation_runs(encoded, fake_runner, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).resolve().parents[1] / "docs" / "dspy.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("program.agent.resources.ToolRunner", lambda *_: fake_runner())
    for seed, name in enumerate(("sharp.png", "blurred.png")):
        (tmp_path / name).write_bytes(encoded(seed))
    exec(re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1], {})  # noqa: S102
    shown = capsys.readouterr().out
    assert "close_to_people" in shown
    assert "blurred.png" in shown
    assert "CUSTOM-TYPE" not in shown
    assert (tmp_path / "program.json").is_file()


# What a call returns


@pytest.mark.spec("D23/what-a-call-returns")
def test_an_answer_is_a_prediction_and_reads_as_before(iqa, picture):
    r = iqa(image=picture(), query=RATE)
    assert isinstance(r, dspy.Prediction)
    assert isinstance(r, Assessment)
    assert r.final_answer == r["final_answer"] == r.get("final_answer") == r.quality_score
    assert "final_answer" in r
    assert "mos" not in r
    listed = ["final_answer", "level", "quality_score", "quality_reasoning", "status", "error"]
    assert list(dict(r)) == r.keys() == list(r.toDict()) == listed
    assert r["state"] is r.state
    assert r.state.plan.query_type == "IQA"
    assert Assessment.model_validate_json(r.model_dump_json()) == r
    for again in (pickle.loads(pickle.dumps(r)), copy.deepcopy(r), r.copy()):  # noqa: S301
        assert again == r
        assert type(again) is Assessment
    assert r.copy(status="degraded") != r
    assert "tool_logs" not in repr(r)
    assert str(r.final_answer) in repr(r)


@pytest.mark.spec("D23/what-a-call-returns")
def test_usage_is_tracked(spoken, picture):
    with dspy.context(track_usage=True):
        usage = spoken(image=picture(), query=RATE).get_lm_usage()
    assert {name: used["prompt_tokens"] for name, used in usage.items()} == {"scripted/speaker": 28}
    with dspy.track_usage() as tracker:
        r = spoken(image=picture(), query=RATE)
    assert tracker.get_total_tokens()["scripted/speaker"]["completion_tokens"] == 12
    assert r.get_lm_usage() is None


def test_help_shows_the_call_and_no_machinery():
    assert list(inspect.signature(AgenticIQA.forward).parameters)[1:] == [
        "image", "query", "reference", "options", "regions", "intended", "kind",
    ]  # fmt: skip
    assert "Judge the quality of an image" in inspect.getdoc(AgenticIQA)
    assert [name for name, _ in AgenticIQA().named_parameters()] == PREDICTORS


# Streaming


def streamed(program, **inputs):
    async def run():
        return [value async for value in program(**inputs)]

    return asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.spec("D23/what-a-call-returns")
@pytest.mark.parametrize("is_async", [False, True])
def test_streamify_tells_each_stage_and_ends(iqa, picture, is_async):
    class Stages(dspy.streaming.StatusMessageProvider):
        def module_start_status_message(self, instance, inputs):
            name = type(instance).__name__
            return name if name in {"Planner", "Executor", "Summarizer"} else None

    program = dspy.streamify(iqa, is_async_program=is_async, status_message_provider=Stages())
    values = streamed(program, image=picture(), query=RATE)
    said = [value.message for value in values if isinstance(value, dspy.streaming.StatusMessage)]
    assert said == ["Planner", "Executor", "Summarizer"]
    assert isinstance(values[-1], Assessment)
    assert values[-1] == iqa(image=picture(), query=RATE).copy(usage=values[-1].usage, state=values[-1].state)


def test_streamify_hands_on_the_words_of_a_field_and_counts_the_calls(spoken, picture):
    listener = dspy.streaming.StreamListener("quality_reasoning", predict=spoken.summarizer.score)
    with dspy.context(adapter=dspy.ChatAdapter()):
        values = streamed(dspy.streamify(spoken, stream_listeners=[listener]), image=picture(), query=RATE)
    words = [v.chunk for v in values if isinstance(v, dspy.streaming.StreamResponse)]
    assert "".join(words).strip() == "Soft edges."
    assert values[-1].usage.lm_calls == 4
    assert values[-1].usage.input_tokens == 28


def test_the_embedded_model_streams_to_a_bare_predictor(iqa, encoded):
    ref = IMAGES.add(encoded())
    lm = iqa.get_lm()
    with dspy.context(lm=lm, adapter=lm.engine.traits.adapter):
        for is_async in (False, True):
            predict = dspy.streamify(dspy.Predict(ScoreQuality), is_async_program=is_async)
            values = streamed(predict, image=dspy.Image(ref.url), query=RATE)
            assert values[-1].quality_probs


# Images


def test_an_image_may_be_dspys_own(iqa, encoded, tmp_path):
    (tmp_path / "photo.png").write_bytes(encoded())
    expected = iqa(image=encoded(), query=RATE).final_answer
    lossless = Image.open(io.BytesIO(encoded())).copy()
    for image in (dspy.Image.from_path(str(tmp_path / "photo.png")), _data_image(encoded()), _data_image(encoded()).url,
                  dspy.Image(lossless), dspy.Image(encoded()), dspy.Image(IMAGES.add(encoded()).url)):  # fmt: skip
        result = iqa(image=image, query=RATE)
        assert result.final_answer == expected
        assert "base64" not in result.model_dump_json()
    again = iqa(image=_data_image(encoded(1)), reference=_data_image(encoded()), query=RATE)
    assert again.state.reference_path


def test_nothing_is_fetched_and_broken_data_is_one_line(iqa):
    for image in ("https://example.com/photo.jpg", dspy.Image("https://example.com/photo.jpg")):
        with pytest.raises(InputError, match=r"example\.com.*download"):
            iqa(image=image)
    for text in ("data:image/png;base64,AAAA", "data:image/png;base64,%%%", "data:text/plain,hello"):
        with pytest.raises(ImageError, match=r"^[^\n]*(data|bytes):[^\n]*$"):
            iqa(image=dspy.Image(text))


# Many at once


def test_batch_takes_dspys_arguments_and_ours(iqa, trainset, picture):
    ours = iqa.batch(trainset, workers=2)
    assert [type(r) for r in ours] == [Assessment] * 4
    scores = [r.final_answer for r in ours]
    assert [r.final_answer for r in iqa.batch(trainset, num_threads=2, disable_progress_bar=True)] == scores
    assert [r.final_answer for r in iqa.batch(examples=trainset[:2], disable_progress_bar=True)] == scores[:2]
    missing = dspy.Example(image="/nowhere.png", query=RATE).with_inputs("image", "query")
    good, failed, errors = iqa.batch(
        [*trainset[:1], missing], num_threads=1, return_failed_examples=True, max_errors=5, disable_progress_bar=True
    )
    assert [r and r.final_answer for r in good] == [*scores[:1], None]
    assert [type(error) for error in errors] == [ImageError]
    assert len(failed) == 1
    assert isinstance(iqa.batch([picture(), "/nowhere.png"])[1], FailedSample)


@pytest.mark.spec("D23/what-a-call-returns")
def test_parallel_asyncify_and_evaluate(iqa, trainset, tmp_path, capsys):
    scores = [r.final_answer for r in iqa.batch(trainset)]
    found = dspy.Parallel(num_threads=2, disable_progress_bar=True)([(iqa, x.inputs()) for x in trainset[:2]])
    assert [r.final_answer for r in found] == scores[:2]
    assert asyncio.run(dspy.asyncify(iqa)(**trainset[0].inputs())).final_answer == scores[0]
    evaluate = dspy.Evaluate(
        devset=trainset, metric=close_to_people, num_threads=2, display_table=3, max_errors=5,
        save_as_json=str(tmp_path / "table.json"), save_as_csv=str(tmp_path / "table.csv"),
    )  # fmt: skip
    result = evaluate(iqa)
    assert [p.final_answer for _, p, _ in result.results] == scores
    shown = capsys.readouterr().out
    for column in ("query", "mos", "final_answer", "level", "quality_reasoning", "status", "close_to_people"):
        assert column in shown
    for bulk in ("tool_logs", "executor_evidence", "lm_calls"):
        assert bulk not in shown
    assert json.loads((tmp_path / "table.json").read_text())[0]["final_answer"] == scores[0]


# The user's adapter, predictor, history


@pytest.mark.parametrize(
    ("adapter", "mark"),
    [(dspy.ChatAdapter(), "[[ ## completed ## ]]"), (dspy.XMLAdapter(), "<plan>"), (BAMLAdapter(), "query_type:"),
     (None, "JSON object")],
    ids=["chat", "xml", "baml", "none"],
)  # fmt: skip
def test_the_users_adapter_asks_language_models(spoken, picture, adapter, mark):
    with dspy.context(adapter=adapter):
        result = spoken(image=picture(), query=RATE)
    assert (result.status, result.attempt, result.usage.lm_calls) == ("ok", "first call", 4)
    assert mark in prompts(spoken.get_lm())[0]


def test_an_adapter_repeats_nothing_beside_the_ladder(spoken, picture):
    spoken.get_lm().engine.refuses = "[[ ## completed ## ]]"
    with dspy.context(adapter=dspy.ChatAdapter()):
        result = spoken(image=picture(), query=RATE)
    assert (result.attempt, result.usage.lm_calls) == ("second call", 8)
    assert "JSON object" in prompts(spoken.get_lm())[1]


def test_the_embedded_expert_keeps_its_own_adapter(iqa, picture):
    plain = iqa(image=picture(), query=RATE)
    with dspy.context(adapter=dspy.ChatAdapter()):
        assert iqa(image=picture(), query=RATE).final_answer == plain.final_answer


def test_a_predictor_may_think_first(spoken, iqa, picture):
    plain = iqa(image=picture(), query=RATE).final_answer
    for program in (spoken, iqa):
        program.summarizer.score = dspy.ChainOfThought(ScoreQuality)
        assert "summarizer.score.predict" in dict(program.named_predictors())
        with dspy.context(trace=[]):
            assert program(image=picture(), query=RATE).status == "ok"
            assert dspy.settings.trace[-1][2].reasoning
    assert iqa(image=picture(), query=RATE).final_answer == plain
    assert "\nreasoning\n" in prompts(spoken.get_lm())[-1]


def test_a_predictor_that_cannot_stand_there_is_refused_in_one_line(spoken, picture):
    spoken.summarizer.score = dspy.ChainOfThought("image -> poem")
    with pytest.raises(InputError, match=r"^[^\n]*quality_probs[^\n]*signatures[^\n]*$"):
        spoken(image=picture(), query=RATE)
    spoken.summarizer.score = dspy.ReAct(ScoreQuality, tools=[])
    with pytest.raises(InputError, match=r"^[^\n]*ReAct[^\n]*ChainOfThought[^\n]*$"):
        spoken(image=picture(), query=RATE)


def test_histories_hold_references_and_no_bytes(iqa, spoken, encoded):
    for program in (iqa, spoken):
        program(image=_data_image(encoded()), query=RATE)
        shown = io.StringIO()
        program.inspect_history(n=3, file=shown)
        dspy.inspect_history(n=3, file=shown)
        assert shown.getvalue().count(RATE) >= 2
        assert HOST in shown.getvalue()
        assert "base64" not in shown.getvalue()


# Modules around it


def test_best_of_n_and_refine_need_no_default_lm(iqa, picture):
    assert iqa.get_lm().model == MODEL
    for module in (dspy.BestOfN, dspy.Refine):
        best = module(iqa, N=2, reward_fn=lambda args, pred: pred.final_answer / 5, threshold=0.0)
        assert isinstance(best(image=picture(), query=RATE), Assessment)


@pytest.mark.parametrize("added", [None, str], ids=["as-it-is", "one-output-more"])
def test_refine_takes_the_advice_of_a_language_model(spoken, picture, added):
    score = spoken.summarizer.score
    if added is not None:
        score.signature = score.signature.append("impression", dspy.OutputField(desc="in a word"), added)
    with dspy.context(lm=speaker(), adapter=dspy.ChatAdapter()):
        refine = dspy.Refine(spoken, N=2, reward_fn=lambda args, pred: 0.5, threshold=1.0)
        assert refine(image=picture(), query=RATE).status == "ok"
    users = [r.messages[-1].text or str(r.messages[-1].parts) for r in spoken.get_lm().engine.requests]
    assert any("Mind the noise." in text for text in users)


def test_an_added_output_that_cannot_be_read_costs_the_users_adapter_one_call_more(spoken, picture):
    score = spoken.summarizer.score
    score.signature = score.signature.append("certainty", dspy.OutputField(desc="from 0 to 1"), float)
    with dspy.context(adapter=dspy.ChatAdapter(), trace=[]):
        result = spoken(image=picture(), query=RATE)
        ended = dspy.settings.trace[-1]
    assert (result.status, result.attempt, result.usage.lm_calls) == ("ok", "second call", 5)
    assert (ended[0] is score, ended[2].certainty) == (True, None)


def test_get_lm_says_what_to_do_where_the_roles_differ(iqa):
    iqa.resources._built |= {"planner": speaker()}
    with pytest.raises(ModelError, match=r"^[^\n]*scripted/speaker[^\n]*set_lm[^\n]*$"):
        iqa.get_lm()
    lm = speaker()
    iqa.set_lm(lm)
    assert iqa.get_lm() is lm


# Optimizers


def test_a_trainset_with_labelled_demos_in_dspys_images(spoken, trainset, tmp_path):
    labelled = [example.copy(**SCRIPT["quality_probs"]) for example in trainset]
    program = dspy.LabeledFewShot(k=2).compile(spoken, trainset=labelled)
    program(**trainset[3].inputs())
    request = program.get_lm().engine.requests[-1]
    assert len(re.findall(r"images\.invalid", repr(request))) == 3
    assert "base64" not in repr(request)
    save(program, tmp_path / "compiled")
    assert any((tmp_path / "compiled" / "images").iterdir())
    again = load(tmp_path / "compiled", lm=speaker())
    again.resources.__dict__["runner"] = spoken.resources.runner
    again(**trainset[3].inputs())
    assert len(re.findall(r"images\.invalid", repr(again.get_lm().engine.requests[-1]))) == 3


def test_bootstrap_mipro_save_and_load(spoken, trainset, tmp_path):
    bootstrapped = dspy.BootstrapFewShot(metric=close_to_people, max_bootstrapped_demos=1, max_labeled_demos=0)
    program = bootstrapped.compile(spoken, trainset=trainset)
    assert len(program.summarizer.score.demos) == 1
    prompter = speaker()
    mipro = dspy.MIPROv2(
        metric=close_to_people, auto=None, num_candidates=2, prompt_model=prompter, task_model=spoken.get_lm(),
        max_bootstrapped_demos=0, max_labeled_demos=0, num_threads=1,
    )  # fmt: skip
    student = spoken.predictors_used_by(trainset[:1])
    assert [name for name, _ in student.named_predictors()] == [
        "planner.plan", "executor.diagnose", "executor.select_tools", "summarizer.score",
    ]  # fmt: skip
    optimized = mipro.compile(
        student, trainset=trainset[:2], valset=trainset[2:], num_trials=2, minibatch=False,
        program_aware_proposer=False, data_aware_proposer=False, tip_aware_proposer=False,
        fewshot_aware_proposer=False,
    )  # fmt: skip
    assert len(prompter.engine.requests) <= 2 * 4  # candidates x asked predictors
    assert max(len(repr(request)) for request in prompter.engine.requests) < 8000  # characters: they fit 8k tokens
    optimized.summarizer.score.signature = optimized.summarizer.score.signature.with_instructions("Judge with care.")
    optimized.save(tmp_path / "program.json")
    again = AgenticIQA(lm=speaker())
    again.resources.__dict__["runner"] = spoken.resources.runner
    again.load(tmp_path / "program.json")
    assert again(**trainset[0].inputs()).status == "ok"
    assert "Judge with care." in prompts(again.get_lm())[-1]
    assert [name for name, _ in again.named_parameters()] == PREDICTORS
    save(optimized, tmp_path / "compiled")
    assert load(tmp_path / "compiled").summarizer.score.signature.instructions == "Judge with care."


def test_gepa_spends_nothing_on_predictors_that_the_data_never_asks(spoken, trainset):
    reflection = speaker()
    gepa = dspy.GEPA(
        metric=told, max_metric_calls=24, reflection_lm=reflection, reflection_minibatch_size=1, num_threads=1,
        track_stats=True,
    )  # fmt: skip
    student = spoken.predictors_used_by(trainset[:1])
    optimized = gepa.compile(student, trainset=trainset[:2], valset=trainset[2:])
    assert reflection.engine.requests
    asked = {name for name, _ in student.named_predictors()}
    assert asked == {"planner.plan", "executor.diagnose", "executor.select_tools", "summarizer.score"}
    own = {name: repr(p.signature.instructions)[1:60] for name, p in AgenticIQA().named_parameters()}
    shown = " ".join(map(repr, reflection.engine.requests))
    assert {name for name, words in own.items() if words in shown} <= asked
    assert isinstance(optimized, AgenticIQA)
    assert optimized(**trainset[0].inputs()).status == "ok"


# Copies


def test_a_copy_keeps_its_model_and_no_pickle_takes_its_key(tmp_path):
    iqa = AgenticIQA(lm=dspy.LM("openai/gpt-4o", api_key=KEY))
    iqa.set_lm(dspy.LM("openai/gpt-4o-mini", api_key=KEY))
    copied = copy.deepcopy(iqa)
    assert copied.get_lm().kwargs["api_key"] == KEY
    assert copied.resources is iqa.resources
    assert copied.planner.plan is not iqa.planner.plan
    with pytest.raises(InputError, match=r"^[^\n]*is not pickled[^\n]*saving.save[^\n]*$"):
        cloudpickle.dumps(iqa)


# The structured call


def test_the_structured_call_is_in_the_request_alone(encoded):
    lm = make_perceptual_lm()
    seen = []

    class Watching(type(lm.engine)):
        def complete(self, request):
            seen.append(request)
            return super().complete(request)

    watched = lm.copy(engine=Watching())
    image = dspy.Image(IMAGES.add(encoded()).url)
    demo = dspy.Example(image=image, query=RATE, **SCRIPT["quality_probs"])
    with dspy.context(lm=watched, adapter=lm.engine.traits.adapter):
        expected = dspy.Predict(ScoreQuality)(image=image, query=RATE, demos=[demo]).quality_probs
    answered = lm.engine.complete(seen[0])  # outside of any call: nothing travels beside the request
    probabilities = json.loads(answered.text)["quality_probs"]
    assert probabilities == expected.model_dump()


def test_help_names_what_a_call_takes():
    import inspect

    import program

    assert list(inspect.signature(program.AgenticIQA.__call__).parameters) == [
        "self", "image", "query", "reference", "options", "regions", "intended", "kind",
    ]  # fmt: skip
    assert "Assess one image" in program.AgenticIQA.__call__.__doc__
    assert {"AgenticIQA", "Assessment", "load"} <= set(dir(program))
