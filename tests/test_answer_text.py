"""Answers as models give them: thoughts, drafts, fences and remarks around the answer cost no further call."""

import json
import time

import dspy
import pytest

from program.agent.loop import AgenticIQA
from program.common.settings import load_settings
from program.common.text import answer_span, breaks_off, final_answer
from program.lms.adapter import KeptAdapter

NAMES = ("quality_level", "quality_reasoning")
ANSWER = '{"quality_level": "C", "quality_reasoning": "Soft {edges}."}'


def _smart(text):
    """Write a JSON object in typographic quotes."""
    for opening in ('{"', ' "', '["'):
        text = text.replace(opening, opening[:-1] + "“")
    return text.replace('"', "”")


def _pythonic(text):
    return str(json.loads(text))


def _tagged(text):
    """Write an object's fields as tags."""
    fields = {n: v if isinstance(v, str) else json.dumps(v) for n, v in json.loads(text).items()}
    return "".join(f"<{name}>{value}</{name}>\n" for name, value in fields.items())


WRAPPINGS = {
    "think": lambda a: f"<think>\nThe sky is soft.\n</think>\n\n{a}",
    "empty think": lambda a: f"<think>\n\n</think>\n\n{a}",
    "braces in think": lambda a: f"<think>\nThe set {{blur, noise}} and then {{\"a\": {{\n</think>\n\n{a}",
    "quotes in think": lambda a: f'<think>\nIt\'s 5" wide, "soft {{ and so on.\n</think>\n{a}',
    "empty draft in think": lambda a: f"<think>I return {{}} or {{...}}.</think>{a}",
    "draft in think": lambda a: f"<think>\nMaybe\n{_draft(a)}\nno.\n</think>\n\n{a}",
    "cut draft in think": lambda a: f"<think>\nMaybe\n{_draft(a)[:-9]}\nno.\n</think>\n\n{a}",
    "two thoughts": lambda a: f"<think>One {{.</think>\n{_draft(a)}\n<think>Two {{.</think>\n{a}",
    "never opened": lambda a: f"Okay, let me look at {{it}}.\n{_draft(a)}\n</think>\n\n{a}",
    "never closed": lambda a: f"<think>\nOkay, let me look at {{it}}.\n\n{a}",
    "never closed, with a draft": lambda a: f"<think>\nMaybe {_draft(a)}. No:\n\n{a}\n",
    "never closed, fenced": lambda a: f"<think>\nOkay.\n```json\n{a}\n```",
    "closed after the answer": lambda a: f"<think>\nOkay {{.\n{a}\n</think>",
    "thinking": lambda a: f"<thinking>It may be {{soft}}.</thinking>{a}",
    "bracketed think": lambda a: f"[THINK]It may be {{soft.[/THINK]{a}",
    "kimi": lambda a: f"◁think▷It may be {{soft.◁/think▷{a}",
    "channels": lambda a: f"<|channel|>analysis<|message|>Maybe {_draft(a)}<|end|><|channel|>final<|message|>{a}",
    "fence": lambda a: f"```json\n{a}\n```",
    "bare fence": lambda a: f"```\n{a}\n```\n",
    "fence in think and after": lambda a: f"<think>\n```json\n{_draft(a)}\n```\n</think>\n```json\n{a}\n```",
    "unclosed fence": lambda a: f"```json\n{a}",
    "lead-in": lambda a: f"Sure! Here is the JSON:\n\n{a}",
    "lead-in with braces": lambda a: f"Here is {{the answer}} as a JSON object {{}}:\n{a}",
    "stray brace before": lambda a: f"The set {{ of faults:\n{a}",
    "prose after": lambda a: f"{a}\n\nLet me know if you need more.",
    "braces after": lambda a: f"{a}\n\nNote: {{edges}} were judged {{at 100 %}}.",
    "an object after": lambda a: f'{a}\n\n{{"confidence": 0.9}}',
    "stray brace after": lambda a: f"{a}\n\nWhere {{ is the left edge.",
    "doubled brace": lambda a: f"{a}}}",
    "draft in the open": lambda a: f"First:\n{_draft(a)}\nOn a second look:\n{a}",
    "cut draft in the open": lambda a: f"First:\n{_draft(a)[:-4]}\nOn a second look:\n{a}",
    "draft not closed, in the open": lambda a: f"First:\n{_draft(a)[:-1]}\nOn a second look:\n{a}",
    "answer tag": lambda a: f"<answer>\n{a}\n</answer>",
    "think and answer tag": lambda a: f"<think>{_draft(a)}</think>\n<answer>{a}</answer>",
    "wrapped": lambda a: f'{{"answer": {a}}}',
    "in a list": lambda a: f"[{a}]",
    "tags": _tagged,
    "tags after think": lambda a: f"<think>{_draft(a)}</think>\n{_tagged(a)}",
    "smart quotes": _smart,
    "smart quotes after think": lambda a: f"<think>It’s {{soft}}.</think>{_smart(a)}",
    "Python": _pythonic,
    "trailing comma": lambda a: f"{a[:-1]},}}",
    "indented": lambda a: json.dumps(json.loads(a), indent=4),
    "end of turn": lambda a: f"{a}<|im_end|>",
}  # fmt: skip


def _draft(answer):
    """Write another answer to the same question: every text is a draft, every number another one."""

    def other(value):
        if isinstance(value, dict):
            return {k: other(v) for k, v in value.items()}
        if isinstance(value, list):
            return []
        return 0.123 if isinstance(value, float) else value if isinstance(value, bool) else "draft"

    return json.dumps(other(json.loads(answer)))


@pytest.fixture
def assess(loopback, loopback_module, fake_runner, picture):
    """Assess one picture with a model that wraps each answer; returns the result and the calls by first field."""

    def run(wrapped, adapter=None, query=None, options=None, **assessment):
        plausible = loopback_module.answers.plausible
        server = loopback(rules=[(lambda q: bool(q.fields), lambda q: wrapped(plausible(q)))])
        settings = load_settings(overrides={"assessment": {"max_replan_iterations": 0, **assessment}})
        iqa = AgenticIQA(settings.with_model("openai/small-vlm", server.base))
        iqa.resources.__dict__["runner"] = fake_runner()
        with dspy.context(adapter=adapter):
            result = iqa(image=picture(), query=query or "Rate the quality.", options=options)
        return result, server.stats()["by_field"]

    return run


def _told(result):
    told = result.model_dump(mode="json", exclude={"usage", "schema_version"})
    told["state"] = {k: told["state"][k] for k in ("plan", "executor_evidence")}
    return told


@pytest.fixture(scope="module")
def clean():
    """What an answer without anything around it gives: asked once, by the first test that compares with it."""
    return []


@pytest.mark.spec("D7/three-calls-for-level-probabilities")
@pytest.mark.parametrize("way", WRAPPINGS)
def test_whatever_stands_around_an_answer_it_costs_the_calls_of_a_clean_one(assess, clean, way):
    if not clean:
        clean += assess(str)
        dspy.cache.reset_memory_cache()
    clean, calls = clean
    assert (clean.status, set(calls.values())) == ("ok", {1})
    dressed, dressed_calls = assess(WRAPPINGS[way])
    assert dressed_calls == calls
    assert _told(dressed) == _told(clean)
    assert dressed.state.plan is not None
    assert dressed.state.evidence.findings()


@pytest.mark.parametrize("way", ["draft in think", "never closed, with a draft", "an object after", "tags"])
def test_an_option_and_a_sentence_cost_the_calls_of_clean_ones(assess, way):
    for asked in ({"options": ["Noise", "Blur"], "query": "Which is worse?"}, {"query": "Why is it soft?"}):
        dspy.cache.reset_memory_cache()
        clean, calls = assess(str, **asked)
        dspy.cache.reset_memory_cache()
        dressed, dressed_calls = assess(WRAPPINGS[way], **asked)
        assert (_told(dressed), dressed_calls) == (_told(clean), calls)


def _choosing(*answers):
    """Answer a question for an option in these words, one a call; every other question plausibly."""
    left = list(answers)

    def wrapped(text):
        if '"final_answer"' not in text:
            return text
        return json.dumps({**json.loads(text), "final_answer": left.pop(0)})

    return wrapped


@pytest.mark.spec("D8/all-three-calls-fail")
@pytest.mark.parametrize(
    ("answers", "letter"),
    [
        (["B\n\nNot A: nothing is blurred."], "B"),
        (["Answer: **B**"], "B"),
        (["\\boxed{B}"], "B"),
        (["<answer>B</answer>"], "B"),
        (["I think the answer is B"], "B"),
        (["The image is not blurry.", "B"], "B"),
        (["A, B", "A. Blurry\nB. Sharp", "B. Sharp"], "B"),
        (["Is the image blurry?", "A", "B"], "A"),
        (["A or B"] * 3, "Unable to determine"),
    ],
)
def test_an_option_is_read_as_it_is_named_or_asked_for_again(assess, answers, letter):
    result, calls = assess(_choosing(*answers), query="Which is it?", options={"A": "Blurry", "B": "Sharp"})
    assert result.final_answer == letter
    assert calls["final_answer"] == (answers.index("A") + 1 if "A" in answers else len(answers))


@pytest.mark.spec("D7/three-calls-for-level-probabilities")
@pytest.mark.parametrize(
    ("text", "level"),
    [("Score 1-5: 4", 4), ("On a scale of 1 to 5, 3.", 3), ("<think>Good?</think>The quality is poor.", 2)],
)
def test_a_level_is_read_from_what_a_model_said_at_last(assess, text, level):
    result, calls = assess(lambda answer: text if "quality_level" in answer else answer)
    assert (result.attempt, result.level_probabilities_from, calls["quality_level"]) == (
        "text",
        "classification",
        6,
    )  # both at once, then the level
    assert max(result.level_probabilities, key=result.level_probabilities.get) == level


@pytest.mark.spec("D26/token-probabilities-where-they-come")
@pytest.mark.parametrize("way", ["draft in think", "two thoughts", "draft in the open", "never closed, with a draft"])
def test_token_probabilities_are_read_at_the_final_answer(assess, way):
    clean, calls = assess(str, scoring="logprobs")
    assert clean.level_probabilities_from == "logprobs"
    dspy.cache.reset_memory_cache()
    level = '"quality_level": "{}"'.format
    dressed, dressed_calls = assess(
        lambda text: WRAPPINGS[way](text).replace(level("draft"), level("A")), scoring="logprobs"
    )
    assert (dressed.level_probabilities, dressed_calls) == (clean.level_probabilities, calls)


@pytest.mark.spec("D7/three-calls-for-level-probabilities")
def test_an_answer_lost_in_a_thought_is_asked_for_again_and_never_a_draft(assess):
    texts = {}

    def cut(text):
        first = texts.setdefault(text, []) == []
        texts[text].append(1)
        return f"<think>Perhaps {_draft(text)}, but let me look once more at the" if first else text

    result, calls = assess(cut)
    assert set(calls.values()) == {2}
    assert "draft" not in json.dumps(_told(result))
    assert result.attempt == "second call"


def test_a_users_own_adapter_reads_as_it_did(assess):
    class Own(dspy.JSONAdapter):
        def parse(self, signature, completion):
            seen.append(completion)
            return super().parse(signature, completion)

    seen = []
    result, _ = assess(lambda text: f"```json\n{text}\n```", adapter=Own())
    assert result.status == "ok"
    assert all(text.startswith("```json\n{") for text in seen)


@pytest.mark.spec("D8/all-three-calls-fail")
def test_what_a_model_said_is_logged_whole_where_nothing_could_be_read(assess, caplog):
    result, _ = assess(lambda text: "<think>Hmm, a very soft sky</think>I am not sure.", query="Why is it soft?")
    assert result.status == "failed"
    assert "Full output: <think>Hmm, a very soft sky</think>I am not sure." in caplog.text


class Level(dspy.Signature):
    """Name the level."""

    image: str = dspy.InputField()
    quality_level: str = dspy.OutputField()
    quality_reasoning: str = dspy.OutputField()


@pytest.mark.parametrize("way", WRAPPINGS)
def test_the_final_answers_fields_are_read(way):
    assert KeptAdapter().parse(Level, WRAPPINGS[way](ANSWER)) == json.loads(ANSWER)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<think>A or B?</think>\nB", "B"), ("A or B?</think>B", "B"), ("B", "B"), ("", ""),
        ("<think>The level is good, or", ""), ("<think>good</think>", ""), ("<think>one</think>C<think>two", ""),
        ('{"quality_level": "C", "quality_reasoning": "It says </think> here"}',) * 2,
    ],
)  # fmt: skip
def test_a_thought_is_no_part_of_what_is_said(text, said):
    start, stop = answer_span(text, NAMES)
    assert text[start:stop].strip() == said


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ('{"a": [1, 2', True), ('{"a": "b", "c": "d', True), ('{"a": [{"b": 1}', True), ('{"a": "{"}', False),
        ('```json\n{"a": 1}\n```', False), ("fair", False), ('{"a": 1,}', False), ('{"a": "x \\" {", "b": [', True),
        ('{"a": "the "soft" {edges"}', False), ('{"a": "5" tall {", "b": "C"}', False),
    ],
)  # fmt: skip
def test_an_answer_that_breaks_off_is_recognised(text, broken):
    assert breaks_off(text) is broken


@pytest.mark.parametrize(
    "piece",
    ["{", "}", '{"a":', '{"quality_level":', '{"quality_level": "', "<think>", "</think>", "<think></think>", '"', '" ',
     "\\", "<quality_level>", "</quality_level>", "{}", '{"a": {}}', "“", "quality_level: ", "[", "` \n", "◁think▷"],
)  # fmt: skip
@pytest.mark.parametrize("start", ["", '{"quality_level": "C", "x": ', "<think>", '{"', "<quality_level>"])
def test_a_hostile_text_takes_no_time(start, piece):
    for text in (start + piece * 10_000, (start + piece) * 3_000 + ANSWER):
        assert any(_seconds(text) < 1 for _ in range(3))  # a collection of garbage may fall into one of them


def _seconds(text: str) -> float:
    begun = time.thread_time()
    final_answer(text, NAMES)
    breaks_off(text)
    return time.thread_time() - begun
