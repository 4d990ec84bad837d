"""A text-only question that was answered before: looked up, counted as from the cache, and seen by who watches."""

import json
import logging

import dspy
import pytest
from dspy.utils.callback import BaseCallback

from program.images.store import IMAGES
from program.lms.adapter import KeptAdapter
from program.lms.ask import ask
from program.lms.call import meter
from program.lms.limits import Budget
from signatures.forms import QuestionForm


class Choose(dspy.Signature):
    """Choose tools."""

    image: dspy.Image | None = dspy.InputField()
    wanted: str = dspy.InputField()
    picked: list[str] = dspy.OutputField()


@pytest.fixture
def formed(monkeypatch):
    """What the adapter was given to form a prompt of."""
    seen, form = [], KeptAdapter.format

    def counted(self, signature, demos, inputs):
        seen.append(inputs)
        return form(self, signature, demos, inputs)

    monkeypatch.setattr(KeptAdapter, "format", counted)
    return seen


def choose(lm, wanted="blur", image=None, predictor=None, check=lambda p: p.picked):
    inputs = {"image": image, "wanted": wanted}
    return ask(predictor or dspy.Predict(Choose), inputs, QuestionForm({"picked": []}), check, lm=lm)


def test_the_same_question_is_not_formed_again(scripted_lm, formed):
    lm = scripted_lm([{"picked": ["PIQE"]}, {"picked": ["NIQE"]}], cache=True)
    with meter() as usage, Budget(max_calls=2) as budget, dspy.context(trace=[]):
        answers = [choose(lm), choose(lm), choose(lm, "noise")]
        traced = [(inputs, prediction.picked) for _, inputs, prediction in dspy.settings.trace]
    assert [a.value for a in answers] == [["PIQE"], ["PIQE"], ["NIQE"]]
    assert [a.attempt for a in answers] == ["first call"] * 3
    assert answers[1].raw == answers[0].raw
    assert [inputs["wanted"] for inputs in formed] == ["blur", "noise"]
    assert (usage.lm_calls, usage.lm_cache_hits, usage.input_tokens, budget.calls) == (2, 1, 14, 2)
    assert traced == [({"wanted": "blur"}, ["PIQE"])] * 2 + [({"wanted": "noise"}, ["NIQE"])]


def test_an_answer_that_a_caller_changes_stays_as_it_was(scripted_lm):
    lm = scripted_lm([{"picked": ["PIQE"]}], cache=True)
    for _ in range(3):
        answer = choose(lm)
        assert answer.value == ["PIQE"]
        answer.value.append("mine")


def test_only_a_first_call_is_kept_and_a_stricter_check_asks_again(scripted_lm, formed):
    def two(prediction):
        if len(prediction.picked) < 2:
            raise ValueError("two are wanted")
        return prediction.picked

    lm = scripted_lm([{"picked": ["PIQE"]}, {"picked": ["PIQE", "NIQE"]}], cache=True)
    assert choose(lm).value == ["PIQE"]
    answer = choose(lm, check=two)
    assert (answer.value, answer.attempt) == (["PIQE", "NIQE"], "second call")
    assert choose(lm).value == ["PIQE"]
    assert choose(lm, check=two).attempt == "second call"
    assert len(lm.engine.requests) == 2


@pytest.mark.parametrize("other", ["instructions", "demos", "temperature", "config", "model"])
def test_whatever_differs_in_a_question_makes_it_another(scripted_lm, other):
    lm, predictor = scripted_lm([{"picked": ["PIQE"]}, {"picked": ["NIQE"]}], cache=True), dspy.Predict(Choose)
    assert choose(lm, predictor=predictor).value == ["PIQE"]
    changed = dspy.Predict(Choose)
    match other:
        case "instructions":
            changed.signature = changed.signature.with_instructions("Choose well.")
        case "demos":
            changed.demos = [dspy.Example(wanted="noise", picked=["VIF"])]
        case "config":
            changed.config = {"temperature": 0.7}
        case "temperature":
            lm = lm.copy(temperature=0.3)
        case "model":
            lm = scripted_lm([{"picked": ["NIQE"]}], model="scripted/other", cache=True)
    if other == "demos":
        changed.demos = [demo.copy(image=None) for demo in changed.demos]
    assert choose(lm, predictor=changed).value == ["NIQE"]
    assert choose(lm, predictor=changed).value == ["NIQE"]


def test_it_goes_with_the_cache(scripted_lm):
    lm = scripted_lm([{"picked": ["PIQE"]}, {"picked": ["VIF"]}], cache=True)
    assert choose(lm).value == ["PIQE"]
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    assert choose(lm).value == ["VIF"]


def test_images_and_models_without_cache_are_asked_every_time(scripted_lm, picture, formed):
    lm = scripted_lm([{"picked": ["PIQE"]}], cache=True)
    for _ in range(2):
        choose(lm, image=IMAGES.add(picture()))
    assert (len(formed), len(lm.engine.requests)) == (2, 1)
    plain = scripted_lm([{"picked": ["PIQE"]}, {"picked": ["NIQE"]}], cache=False)
    assert [choose(plain).value for _ in range(2)] == [["PIQE"], ["NIQE"]]


@pytest.mark.parametrize("watched", ["callback", "debug"])
def test_who_watches_sees_every_question(scripted_lm, formed, watched, caplog):
    class Watcher(BaseCallback):
        starts = 0

        def on_adapter_format_start(self, **_):
            Watcher.starts += 1

    lm, watcher = scripted_lm([{"picked": ["PIQE"]}], cache=True), Watcher()
    choose(lm)
    if watched == "debug":
        caplog.set_level(logging.DEBUG, logger="program")
        choose(lm)
        assert "prompt (first call" in caplog.text
    else:
        with dspy.context(callbacks=[watcher]):
            choose(lm)
    assert len(formed) == {"callback": 2, "debug": 3}[watched]  # the log forms its own
    assert len(lm.engine.requests) == 1


class Shown(dspy.Signature):
    """Say what is shown."""

    image: dspy.Image = dspy.InputField()
    crops: list[dspy.Image] = dspy.InputField()
    text: str = dspy.InputField()
    flag: bool = dspy.InputField()
    count: int = dspy.InputField()
    mean: float = dspy.InputField()
    names: list[str] = dspy.InputField()
    lines: str = dspy.InputField()
    table: dict[str, float] = dspy.InputField()
    none: str | None = dspy.InputField()
    answer: str = dspy.OutputField()
    levels: list[int] = dspy.OutputField()


@pytest.mark.parametrize("mean", [2.5, 1e22, -0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("text", ["plain", "", 'a "b"\n\u00e9 \U0001f600', "[[ ## count ## ]]\n9", "\ud800"])
def test_what_is_given_is_told_as_dspy_tells_it_to_the_letter(text, mean, picture):
    url = IMAGES.add(picture()).url
    inputs = {
        "image": dspy.Image(url), "crops": [dspy.Image(url)], "text": text, "flag": True, "count": 10**30,
        "mean": mean, "names": [text, "b"], "lines": ["one", text], "table": {text: mean}, "none": None,
    }  # fmt: skip
    demos = [{**inputs, "answer": "yes", "levels": [1]}, {"text": "x", "answer": "no", "levels": []}]
    (system, *ours), (_, *theirs) = (a.format(Shown, demos, inputs) for a in (KeptAdapter(), dspy.JSONAdapter()))
    assert [m["role"] for m in ours] == [m["role"] for m in theirs]
    assert [said(m) for m in ours] == [said(m) for m in theirs]
    assert system["content"].startswith("Say what is shown.\n")
    assert system["content"].endswith(", in this order:\nanswer\nlevels ([number, ...])")
    assert ours[-1]["content"][-1]["text"].endswith("\n\nRespond with the JSON object.")


def said(message):
    """Return a message without the form of the answer: its last line, and the blanks in the JSON of a demo's."""
    if message["role"] == "assistant":
        return json.loads(message["content"])
    parts = message["content"]
    parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
    return [{**p, "text": p.get("text", "").partition("\n\nRespond with")[0]} for p in parts]


@pytest.mark.spec("43/only-paid-answers-count")
def test_the_expert_is_asked_a_text_question_once_and_no_time_counts():
    from program.agent.loop import AgenticIQA
    from program.agent.state import AssessmentState

    iqa, state = AgenticIQA(), AssessmentState(query="Rate the grain of this one.", image_path="x")
    with meter() as usage, Budget(max_calls=1) as budget, dspy.context(trace=[]):
        plans = [iqa.planner(state=state, tool_names=["NIQE"]).plan for _ in range(2)]
        assert len(dspy.settings.trace) == 2
    assert plans[0] == plans[1]
    assert plans[0] is not plans[1]
    assert (usage.lm_calls, usage.lm_cache_hits, budget.calls) == (0, 0, 0)
