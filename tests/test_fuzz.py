"""Two thousand random and mutated model outputs: never an exception out of the Summarizer, never an invented score."""

import json
import logging
import random
import re
import string
import time

import pytest

from program.agent.query import read_query
from program.agent.state import AssessmentState, ExecutorOutput, SummarizerOutput
from program.common.text import normalise_choice
from program.fusion import ScoreFusion, level_in_text
from program.images.store import IMAGES
from signatures.schemas import Plan

PLAN = Plan(
    query_type="IQA", query_scope=["Global"], distortion_detection=False, distortion_analysis=False,
    tool_selection=False,
    tool_execute=False,
)  # fmt: skip
TOOLS = ExecutorOutput(quality_scores={"Global": {"Blurs": ("VIF", 2.5), "Noise": ("PSNR", 3.5)}})
QUERIES = (
    ("Rate the perceptual quality of this image.", None),
    ("Why is it soft?", None),
    ("Which is worst?", {"A": "Noise", "B": "Motion blur", "C": "None"}),
)
GOOD = (
    '{"quality_probs": {"bad": 0.05, "poor": 0.15, "fair": 0.6, "good": 0.15, "excellent": 0.05}, '
    '"quality_reasoning": "Soft."}',
    '{"quality_probs": {"1": -3.2, "2": -0.5, "3": -0.1, "4": -2.1, "5": -4.5}, "quality_reasoning": "Soft; VIF 2.5"}',
    '{"final_answer": "B", "quality_reasoning": "Motion blur."}',
    '{"quality_level": "C", "quality_reasoning": "一般"}',
    '```json\n{"quality_probs": [5, 15, 60, 15, 5], "quality_reasoning": "percent"}\n```',
    "The quality is poor.",
    "B. Good",
)
PIECES = (
    "null", "NaN", "Infinity", "-Infinity", "1e999", "-1", "true", "[]", "{}", '""', '" "', "{", "}", "[", "]", ":",
    ",",
    '"quality_probs"', '"quality_reasoning"', '"final_answer"', '"A"', "\\u0000", "\\", '"', "\n", "％", "评分",
    "\ud83d\ude00",
    "None", "-", "e", "9" * 400, "[[ ## quality_probs ## ]]", "<<CUSTOM-TYPE-START-IDENTIFIER>>", "good", "bad", "5",
    "0.5",
)  # fmt: skip
WITHOUT_A_LEVEL = (
    "", " ", "\n", "%%%", "I'm sorry, I can't help with that.", "I cannot rate the quality of this image.",
    "As a model I am unable to assign a quality level such as good or poor.", "抱歉，无法评价图像质量。",
    "null", "[]", "{}",
    '{"quality_probs": null, "quality_reasoning": "x"}', '{"quality_probs": {"1": NaN}, "quality_reasoning": "x"}',
    '{"quality_probs": {"level 5": NaN}, "quality_reasoning": "x"}', '{"quality_probs": {"level 5":',
    '{"quality_probs": [1, 2], "quality_reasoning": "x"}', '{"quality_probs": {"5": true}, "quality_reasoning": "x"}',
    '{"quality_probs": {"5": 0, "4": 0}, "quality_reasoning": "x"}', '{"error": "overloaded", "code": 4}', "Error 503",
    "Please upload an image.", '{"quality_probs": {"6": 1.0}, "quality_reasoning": "x"}', "<html>502</html>",
    "The picture shows 3 dogs and 5 cats.", "7/10", "A photo of a good dog.", "{" * 300, "[" * 300, "\x00\x01\x02",
)  # fmt: skip
COUNT, QUICK = 2000, 200
SEEN_LEVEL = re.compile(
    r"excellent|perfect|outstanding|good|fair|average|moderate|poor|bad|terrible|awful|优|好|良|一般|中|普通|差|糟糕|劣|\d|\b[A-Ea-e]\b"
)


def mutated(rng):
    """A random text, or a good answer with pieces cut, doubled, swapped in or put in."""
    if rng.random() < 0.15:
        return "".join(rng.choice(string.printable + "质量一般评分好差：") for _ in range(rng.randrange(60)))
    text = rng.choice(GOOD)
    for _ in range(rng.randrange(4)):
        start = rng.randrange(len(text) + 1)
        stop = min(len(text), start + rng.randrange(25))
        text = rng.choice((
            text[:start] + text[stop:],
            text[:start],
            text[:stop] + text[start:],
            text[:start] + rng.choice(PIECES) + text[stop:],
            text[:start] + rng.choice(PIECES) + text[start:],
        ))  # fmt: skip
    return text


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(slice(QUICK), id="first"),
        pytest.param(slice(QUICK, COUNT), id="rest", marks=pytest.mark.slow),
    ],
)
def answers(request):
    rng = random.Random(20260102)
    return [mutated(rng) for _ in range(COUNT)][request.param]


@pytest.fixture
def summarize(scripted_iqa, picture):
    """Run the Summarizer on the answers of one assessment."""
    logging.disable(logging.CRITICAL)
    iqa = scripted_iqa([])
    image = IMAGES.add(picture())

    def run(script, query, options, evidence):
        iqa.engine.script = list(script)
        state = AssessmentState(query=query, image_path="x", options=options, plan=PLAN, executor_evidence=evidence)
        return iqa.summarizer(state=state, image=image)

    yield run
    logging.disable(logging.NOTSET)


@pytest.mark.spec("D7/three-calls-for-level-probabilities")
@pytest.mark.spec("D8/all-three-calls-fail")
@pytest.mark.spec("004/error-handling")
@pytest.mark.spec("000/9-error-handling-strategy")
def test_no_output_breaks_the_summarizer_or_invents_a_score(summarize, answers):
    statuses = {"ok": 0, "degraded": 0, "failed": 0}
    for i, text in enumerate(answers):
        query, options = QUERIES[(0, 1, 0, 2)[i % 4]]
        evidence = TOOLS if i % 8 < 4 else None
        script = [text, answers[-i], text]
        result = summarize(script, query, options, evidence)
        statuses[result.status] += 1
        assert SummarizerOutput.model_validate_json(result.model_dump_json()) == result, script
        assert result.quality_reasoning.strip(), script
        if result.status == "failed":
            assert (result.final_answer, result.level_probabilities) == ("Unable to determine", None), script
        if options and result.status == "ok":
            assert result.final_answer in options, script
        if isinstance(result.final_answer, float):
            assert 1 <= result.final_answer <= 5, script
            readable = any(SEEN_LEVEL.search(text) for text in script)
            assert readable or (evidence is not None and result.final_answer == pytest.approx(3.0)), script
        if evidence is None and result.level_probabilities is None:
            assert result.quality_score is None, script
    assert sum(statuses.values()) >= QUICK
    assert min(statuses.values()) > len(answers) / 100


@pytest.mark.spec("D7/three-calls-for-level-probabilities")
@pytest.mark.spec("D8/all-three-calls-fail")
@pytest.mark.parametrize("text", WITHOUT_A_LEVEL)
def test_outputs_without_a_level_never_become_a_score(summarize, text):
    query, _ = QUERIES[0]
    alone = summarize([text] * 3, query, None, None)
    assert (alone.final_answer, alone.quality_score, alone.status) == ("Unable to determine", None, "failed")
    tools = summarize([text] * 3, query, None, TOOLS)
    assert (tools.final_answer, tools.level_probabilities, tools.status) == (pytest.approx(3.0), None, "degraded")


@pytest.mark.parametrize(
    "piece", [" ", "\n", "quality ", "is ", "a ", "A) ", "rate ", "why ", "1 ", "(", '"', "从", "质量的"]
)
@pytest.mark.parametrize("start", ["", "quality", "rate", "A. x B. y", "质量"])
def test_no_text_takes_the_parsers_long(piece, start):
    text = start + piece * 2000 + "x"
    started = time.thread_time()
    level_in_text(text)
    read_query(text)
    normalise_choice(text, QUERIES[2][1])
    assert time.thread_time() - started < 3


@pytest.mark.spec("D9/forms-of-probabilities")
def test_parsers_raise_nothing_but_value_errors(answers):
    fusion = ScoreFusion()
    logging.disable(logging.CRITICAL)
    for text in (*answers, *WITHOUT_A_LEVEL):
        reading = read_query(text)
        assert reading.options is None or len(reading.options) >= 2
        assert normalise_choice(text, QUERIES[2][1]) in {"A", "B", "C", None}
        for given in (text, _loaded(text)):
            try:
                found = fusion.extract_vlm_probabilities(given)
            except ValueError:
                continue
            assert sum(found.values()) == pytest.approx(1), text
    logging.disable(logging.NOTSET)


def _loaded(text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
