"""The Summarizer on a scripted model: modes, evidence in the question, the ladder of retries, and what is logged."""

import json
import logging
import math

import dspy
import numpy as np
import pytest

from program.agent.query import QueryType
from program.agent.state import AssessmentState, ExecutorOutput, Finding, SummarizerOutput
from program.fusion import ScoreFusion
from program.fusion.scores import FittedFusion
from program.images.store import IMAGES
from signatures.schemas import Plan

RATE = "Rate the perceptual quality of this image."
SCORED = {
    "quality_probs": {"bad": 0.05, "poor": 0.15, "fair": 0.6, "good": 0.15, "excellent": 0.05},
    "quality_reasoning": "Soft.",
}
ANSWERED = {"final_answer": "B", "quality_reasoning": "Moderate blur."}
OPTIONS = {"A": "Noise", "B": "Blur", "C": "Banding"}
FINDINGS = {
    "Global": [
        Finding(type="Blurs", severity="moderate", explanation="Edges appear soft."),
        Finding(type="Brightness change", severity="slight", explanation="Image slightly bright."),
    ]
}
SCORES = {"Global": {"Blurs": ("TOPIQ_FR", 2.6), "Brightness change": ("TOPIQ_FR", 2.8)}}
EVIDENCE = ExecutorOutput(distortion_analysis=FINDINGS, quality_scores=SCORES)
REFUSAL = "I'm sorry, I cannot assist with rating this image."
ONLY_JSON = "Return ONLY valid JSON"


def planned(query_type="IQA", scope=("Global",), *, steps=True):
    return Plan(
        query_type=query_type, query_scope=list(scope), distortion_detection=steps, distortion_analysis=steps,
        tool_selection=steps, tool_execute=steps,
    )  # fmt: skip


def state_of(query=RATE, evidence=EVIDENCE, plan=None, **changes):
    return AssessmentState(
        query=query, image_path="x.png", plan=plan or planned(), executor_evidence=evidence, **changes
    )


@pytest.fixture
def summarize(scripted_iqa, picture):
    """Run the Summarizer on a script; returns its output and the scripted engine."""

    def run(script, state=None, *, reference=False, settings=None, **engine):
        iqa = scripted_iqa(script, settings=settings, **engine)
        image = IMAGES.add(picture(1))
        other = IMAGES.add(picture(2)) if reference else None
        return iqa.summarizer(state=state or state_of(), image=image, reference=other), iqa.engine

    return run


# Modes and what is asked


@pytest.mark.spec("001/use-scoring-prompt-template")
@pytest.mark.spec("001/select-prompt-mode")
@pytest.mark.spec("000/1-two-mode-prompt-strategy")
@pytest.mark.spec("004/updated-summarizer-logic")
@pytest.mark.spec("004/updated-prompt-template")
@pytest.mark.spec("D17/the-documents-prompt-templates")
def test_a_scoring_query_asks_for_level_probabilities(summarize):
    result, engine = summarize([SCORED])
    (request,) = engine.requests
    assert engine.fields(request) == ["quality_reasoning", "quality_probs"]
    asked = engine.text(request)
    role = asked.index("You are a visual quality assessment assistant")
    levels = [asked.index(f"{word} ({n})") for n, word in enumerate(("bad", "poor", "fair", "good", "excellent"), 1)]
    assert [role, *levels] == sorted([role, *levels])
    assert RATE in asked
    assert "TOPIQ_FR" in asked
    assert "Measured quality: fair (2.7 of 5).\n{" in asked
    assert isinstance(result.final_answer, float)


@pytest.mark.spec("001/use-scoring-prompt-template")
@pytest.mark.spec("003/2-prompt-templates")
@pytest.mark.spec("D4/level-probabilities-first")
@pytest.mark.spec("D17/the-documents-prompt-templates")
@pytest.mark.spec("D27/the-level-before-the-reasons")
@pytest.mark.parametrize("answer", ["B", "good", "Good.", "4"])
def test_the_prompt_for_one_level_is_selectable_and_holds_the_five_words(summarize, answer):
    result, engine = summarize(
        [{"quality_level": answer, "quality_reasoning": "r"}], settings={"assessment": {"scoring": "classification"}}
    )
    (request,) = engine.requests
    asked = engine.text(request)
    named = [name for name in engine.fields(request) if name.startswith("quality_")]
    assert named == ["quality_reasoning", "quality_level"]  # only the text is read
    places = [asked.index(option) for option in ("bad (1)", "poor (2)", "fair (3)", "good (4)", "excellent (5)")]
    assert places == sorted(places)
    assert result.level_probabilities[4] == pytest.approx(0.85)
    assert isinstance(result.final_answer, float)


@pytest.mark.spec("D26/token-probabilities-where-they-come")
def test_one_level_with_all_the_mass_is_that_levels_name_and_no_certainty(summarize):
    sure = dict.fromkeys(("bad", "poor", "fair", "good"), 0.0) | {"excellent": 1.0}
    result, _ = summarize([{**SCORED, "quality_probs": sure}])
    assert result.level_probabilities_from == "classification"
    assert result.level_probabilities[5] == pytest.approx(0.85)


@pytest.mark.spec("D28/tools-and-model-disagree")
@pytest.mark.parametrize(
    ("query", "words"),
    [
        (RATE, "The tools say 4.6 of 5 and the model 1.2: they disagree."),
        ("请给这张图片的质量打分。", "工具评分为 4.6，模型判断为 1.2：两者不一致。"),
    ],
)
def test_where_tools_and_model_disagree_both_are_said_and_the_interval_covers_both(summarize, query, words):
    probabilities = {"bad": 0.8, "poor": 0.2, "fair": 0.0, "good": 0.0, "excellent": 0.0}
    evidence = EVIDENCE.model_copy(update={"quality_scores": {"Global": {"Blurs": ("TOPIQ_FR", 4.6)}}})
    result, _ = summarize([{**SCORED, "quality_probs": probabilities}], state_of(query, evidence))
    assert words in result.quality_reasoning
    assert (result.unresolved_gap, result.need_replan) == (words, False)
    low, high = result.score_interval
    assert low <= 1.2 + 1e-9
    assert high >= 4.6


@pytest.mark.spec("001/use-explanation-qa-prompt-template")
@pytest.mark.spec("001/select-prompt-mode")
@pytest.mark.spec("000/1-two-mode-prompt-strategy")
@pytest.mark.spec("003/2-prompt-templates")
@pytest.mark.spec("D17/the-documents-prompt-templates")
@pytest.mark.parametrize(("query", "options"), [("Which distortion is worst?", OPTIONS), ("Why is it soft?", None)])
def test_other_queries_ask_in_the_four_steps(summarize, query, options):
    _, engine = summarize([ANSWERED], state_of(query, options=options))
    (request,) = engine.requests
    asked = engine.text(request)
    assert engine.fields(request) == ["final_answer", "quality_reasoning"]
    steps = [
        "You are a visual quality assessment assistant",
        "1. Understand",
        "2. Check",
        "3. If they do",
        "4. If they are unclear",
    ]
    places = [asked.index(step) for step in steps]
    assert places == sorted(places)


@pytest.mark.spec("001/format-evidence-for-explanation-qa-mode")
@pytest.mark.spec("001/format-distortion-analysis-for-vlm")
@pytest.mark.spec("001/format-quality-scores-for-vlm")
@pytest.mark.spec("001/load-images")
@pytest.mark.spec("000/8-evidence-formatting-strategy")
@pytest.mark.spec("003/1-input-and-output")
def test_the_question_holds_query_options_evidence_and_images(summarize, picture):
    _, engine = summarize([ANSWERED], state_of("Which distortion is worst?", options=OPTIONS), reference=True)
    (request,) = engine.requests
    asked = engine.text(request)
    assert "Which distortion is worst?" in asked
    assert "A. Noise\nB. Blur\nC. Banding" in asked
    sections = asked.split("[[ ## ")
    evidence = {
        s.split(" ## ]]")[0]: s.split(" ## ]]\n", 1)[-1]
        for s in sections
        if s.startswith(("distortion_a", "quality_s"))
    }
    decoder = json.JSONDecoder()
    line, evidence["quality_scores"] = evidence["quality_scores"].split("\n", 1)
    assert line == "Measured quality: fair (2.7 of 5)."
    assert decoder.raw_decode(evidence["distortion_analysis"].strip())[0] == {
        "Global": [
            {"type": "Blurs", "severity": "moderate", "explanation": "Edges appear soft."},
            {"type": "Brightness change", "severity": "slight", "explanation": "Image slightly bright."},
        ]
    }
    assert decoder.raw_decode(evidence["quality_scores"].strip())[0] == {
        "Global": {"Blurs": ["TOPIQ_FR", 2.6], "Brightness change": ["TOPIQ_FR", 2.8]}
    }
    assert engine.images(request) == [IMAGES.add(picture(1)).url, IMAGES.add(picture(2)).url]


def test_a_tools_overall_score_is_said_once_and_is_no_measure_of_a_distortion(summarize):
    for region, place in (("Global", ""), ("sky", " of sky")):
        evidence = ExecutorOutput(quality_scores={region: {"Color distortions": ("LiteNR", 3.63)}})
        _, engine = summarize([SCORED], state_of(evidence=evidence))
        asked = engine.text(engine.requests[0])
        assert f"Measured quality{place}: good (3.6 of 5, by LiteNR)." in asked
        assert "Color" not in asked
        assert asked.count("LiteNR") == 1


def test_a_question_for_a_word_says_what_the_scores_mean(summarize):
    answer = {"quality_level": "fair", "quality_reasoning": "r"}
    _, engine = summarize([answer], settings={"assessment": {"scoring": "classification"}})
    asked = engine.text(engine.requests[0])
    assert "the tools' scores" in asked
    assert "1 bad to 5 excellent" in asked
    assert "excellent (5): no visible distortion" in asked


def test_a_language_model_reads_of_faults_in_words(summarize):
    told = "Strong noise roughens the top: about 9.1 grey levels in quiet areas."
    noise = Finding(type="Noise", severity="severe", explanation=told, fault="noise")
    _, engine = summarize([SCORED], state_of(evidence=ExecutorOutput(distortion_analysis={"Global": [noise]})))
    asked = engine.text(engine.requests[0])
    assert "Strong noise roughens the top" in asked
    assert "9.1" not in asked


@pytest.mark.spec("001/load-images")
def test_no_reference_means_one_image_and_no_reference_field(summarize):
    _, engine = summarize([SCORED])
    assert len(engine.images(engine.requests[0])) == 1
    assert "reference ## ]]" not in engine.text(engine.requests[0])


@pytest.mark.spec("001/handle-missing-executor-evidence")
@pytest.mark.spec("001/empty-executor-evidence")
@pytest.mark.spec("D16/missing-evidence")
@pytest.mark.parametrize(
    "evidence", [None, ExecutorOutput(), ExecutorOutput(distortion_analysis={}, quality_scores={})]
)
@pytest.mark.parametrize(("query", "answer"), [(RATE, SCORED), ("Why is it soft?", ANSWERED)])
def test_without_evidence_the_image_decides_and_the_reasoning_says_so(summarize, evidence, query, answer):
    result, engine = summarize([answer], state_of(query, evidence, planned(steps=False)))
    asked = engine.text(engine.requests[0])
    for section in ("distortion_analysis ## ]]", "quality_scores ## ]]", "Measured quality"):
        assert section not in asked
    assert "No distortion analysis or tool score was available" in result.quality_reasoning
    assert result.status == "ok"
    assert result.used_evidence is None


@pytest.mark.spec("001/check-prerequisites")
@pytest.mark.spec("D16/missing-evidence")
@pytest.mark.parametrize(
    ("state", "missing"),
    [
        (AssessmentState(query=RATE, image_path="x", executor_evidence=EVIDENCE), "plan"),
        (AssessmentState(query=RATE, image_path="x", plan=planned()), "executor_evidence"),
    ],
)
def test_a_stage_that_never_ran_is_an_error(summarize, state, missing):
    with pytest.raises(ValueError, match=f"no {missing}"):
        summarize([SCORED], state)


@pytest.mark.spec("001/accept-state-and-config")
@pytest.mark.spec("D16/missing-evidence")
def test_a_state_goes_in_and_a_summary_comes_out(summarize):
    state = AssessmentState(query=RATE, image_path="x", plan=None, executor_evidence=None)
    result, _ = summarize([SCORED], state)
    assert type(result) is SummarizerOutput
    assert state.summarizer_result is None


# Scoring


@pytest.mark.spec("001/apply-score-fusion-in-scoring-mode")
@pytest.mark.spec("004/updated-summarizer-logic")
@pytest.mark.spec("004/decision-2-vlm-probability-extraction")
@pytest.mark.spec("D3/the-type-of-a-final-answer")
@pytest.mark.parametrize(
    "given",
    [
        SCORED["quality_probs"],
        {"1": 5, "2": 15, "3": 60, "4": 15, "5": 5},
        {"1": "5%", "2": "15%", "3": "60%", "4": "15%", "5": "5%"},
        {"E": 0.05, "D": 0.15, "C": 0.6, "B": 0.15, "A": 0.05},
        {c: math.log(p) for c, p in zip("12345", (0.05, 0.15, 0.6, 0.15, 0.05), strict=True)},
        [0.05, 0.15, 0.6, 0.15, 0.05],
    ],
)
def test_a_score_fuses_tools_and_level_probabilities(summarize, given):
    result, engine = summarize([{**SCORED, "quality_probs": given}])
    alpha = np.exp(-((2.7 - np.arange(1, 6)) ** 2))
    mass = alpha * [0.05, 0.15, 0.6, 0.15, 0.05]
    expected = float((mass * np.arange(1, 6)).sum() / mass.sum())
    assert result.final_answer == result.quality_score == pytest.approx(expected)
    assert result.level_probabilities[3] == pytest.approx(0.6)
    assert result.score_interval[0] < expected < result.score_interval[1]
    assert (result.status, result.attempt, len(engine.requests)) == ("ok", "first call", 1)
    assert f"{expected:.2f}" in result.quality_reasoning
    assert "2.60 to 2.80" in result.quality_reasoning
    assert result.query_type is QueryType.SCORING


def test_the_interval_of_a_program_with_a_fitted_fusion_is_that_of_its_score(scripted_iqa, picture):
    iqa = scripted_iqa([{**SCORED, "quality_probs": {"fair": 0.2, "good": 0.6, "excellent": 0.2}}])
    iqa.summarizer.fitted = FittedFusion(ScoreFusion(), curve=[(1, 1), (3, 1.5), (4, 2.5), (5, 3)])
    result = iqa.summarizer(state=state_of(), image=IMAGES.add(picture(1)))
    low, high = result.score_interval
    assert low < result.quality_score < 2.5 < high < 3.6


@pytest.mark.spec("D9/forms-of-probabilities")
def test_a_missing_level_has_no_mass(summarize):
    result, engine = summarize([{**SCORED, "quality_probs": {"fair": 0.75, "good": 0.25, "bad": None}}])
    assert result.level_probabilities == pytest.approx({1: 0, 2: 0, 3: 0.75, 4: 0.25, 5: 0})
    assert len(engine.requests) == 1


@pytest.mark.spec("004/edge-cases")
def test_without_tools_the_expected_level_is_the_score(summarize):
    result, _ = summarize(
        [SCORED], state_of(evidence=ExecutorOutput(distortion_analysis=FINDINGS), plan=planned(steps=False))
    )
    assert result.final_answer == pytest.approx(3.0)
    assert result.quality_reasoning.endswith("is from the model only.")


@pytest.mark.spec("D4/level-probabilities-first")
@pytest.mark.parametrize("word", ["C", '"C'])
def test_token_log_probabilities_are_used_where_the_backend_gives_them(summarize, word):
    text = '{"quality_level": "C", "quality_reasoning": "r"}'
    before, after = text.split("C", 1)
    cut = len(word) - 1
    tokens = [
        (before[: len(before) - cut], -0.1, ()),
        (
            text[len(before) - cut : len(before)] + "C",
            math.log(0.6),
            [(word, math.log(0.6)), ("B", math.log(0.2)), ("the", -3.0)],
        ),
        (after, -0.2, ()),
    ]
    result, engine = summarize([text], settings={"assessment": {"scoring": "logprobs"}}, logprobs=tokens)
    assert engine.requests[0].config.logprobs == 20
    # The levels outside the alternatives are at most as likely as the least likely of those, "the".
    floor, total = math.exp(-3.0), 0.8 + 3 * math.exp(-3.0)
    wanted = {1: floor, 2: floor, 3: 0.6, 4: 0.2, 5: floor}
    assert result.level_probabilities == pytest.approx({level: p / total for level, p in wanted.items()})
    assert (result.status, result.level_probabilities_from) == ("ok", "logprobs")


LETTER = {"quality_level": "C", "quality_reasoning": "r"}
PROMISED = ("logprobs", "top_logprobs")
LETTER_TOKENS = [
    ('{"quality_level": "', -0.1, ()),
    ("C", math.log(0.6), [("C", math.log(0.6)), ("B", math.log(0.4))]),
    ('", "quality_reasoning": "r"}', -0.1, ()),
]


@pytest.mark.spec("D4/level-probabilities-first")
@pytest.mark.parametrize(
    ("engine", "asked", "source"),
    [
        ({"logprobs": LETTER_TOKENS}, ["quality_level"], "logprobs"),
        ({"params": ()}, ["quality_probs"], "probabilities"),
        ({"params": PROMISED}, ["quality_level", "quality_probs"], "probabilities"),
    ],
)
def test_auto_asks_for_what_the_model_can_give(summarize, engine, asked, source):
    script = {"quality_level": LETTER, "quality_probs": SCORED}
    result, served = summarize(script, settings={"assessment": {"scoring": "auto"}}, **engine)
    assert [served.name(r) for r in served.requests] == asked
    assert result.level_probabilities_from == source


def test_auto_remembers_a_model_without_log_probabilities_and_a_taught_program(scripted_iqa, picture):
    script = {"quality_level": LETTER, "quality_probs": SCORED}
    image = IMAGES.add(picture(1))
    iqa = scripted_iqa(script, settings={"assessment": {"scoring": "auto"}}, params=PROMISED)
    for _ in range(2):
        iqa.summarizer(state=state_of(), image=image)
    assert [iqa.engine.name(r) for r in iqa.engine.requests] == ["quality_level", "quality_probs", "quality_probs"]
    taught = scripted_iqa(script, settings={"assessment": {"scoring": "auto"}}, logprobs=LETTER_TOKENS)
    taught.summarizer.score.demos = [dspy.Example(image=dspy.Image(image.url), query=RATE, **SCORED)]
    assert taught.summarizer(state=state_of(), image=image).level_probabilities_from == "probabilities"


def test_one_unreadable_answer_says_nothing_of_a_models_log_probabilities(summarize):
    result, served = summarize(
        ["not JSON", json.dumps(LETTER)], settings={"assessment": {"scoring": "logprobs"}}, params=PROMISED
    )
    assert (result.attempt, result.level_probabilities_from) == ("second call", "classification")
    assert [r.config.logprobs for r in served.requests] == [20, 20]


@pytest.mark.spec("D4/level-probabilities-first")
@pytest.mark.spec("000/10-fusion-algorithm-fallback")
@pytest.mark.parametrize(("params", "asked"), [((), None), (PROMISED, 20)])
def test_without_log_probabilities_the_letter_counts(summarize, params, asked):
    answer = {"quality_level": "C", "quality_reasoning": "r"}
    result, engine = summarize([answer], settings={"assessment": {"scoring": "logprobs"}}, params=params)
    assert engine.requests[0].config.logprobs == asked
    assert result.level_probabilities[3] == pytest.approx(0.85)


@pytest.mark.spec("003/7-worked-example")
@pytest.mark.spec("D15/the-worked-example")
@pytest.mark.parametrize("query", [RATE, "请评价这张图片的质量。"])
@pytest.mark.parametrize(
    "reasoning",
    ["tool 分数集中在 2.6~2.8，对应一般质量；分析显示模糊与轻微亮度提升导致细节缺失。", "Fair.", "Blurs soften it."],
)
def test_worked_example(summarize, query, reasoning):
    result, _ = summarize([{**SCORED, "quality_reasoning": reasoning}], state_of(query))
    assert result.level == "C"
    assert result.need_replan is False
    assert result.quality_reasoning.startswith(reasoning)
    chinese = ("2.60 至 2.80", "模糊", "亮度")
    for named in ("2.60 to 2.80", "blurs", "brightness change") if query == RATE else chinese:
        assert named in result.quality_reasoning.casefold()
    assert [r["score"] for r in result.used_evidence["readings"]] == [2.6, 2.8]
    assert [f["type"] for f in result.used_evidence["findings"]] == ["Blurs", "Brightness change"]


# The ladder


@pytest.mark.spec("001/retry-on-invalid-json")
@pytest.mark.spec("004/fallback-strategy")
@pytest.mark.spec("000/9-error-handling-strategy")
@pytest.mark.spec("D7/three-calls-for-level-probabilities")
def test_each_retry_is_stricter_and_logged(summarize, caplog):
    result, engine = summarize(["not json at all", "", SCORED])
    first, second, third = map(engine.text, engine.requests)
    assert ONLY_JSON not in first
    assert ONLY_JSON in second
    assert "An example of a valid answer" not in second
    assert ONLY_JSON in third
    example = third.split("An example of a valid answer:\n")[1]
    assert sum(json.JSONDecoder().raw_decode(example.strip())[0]["quality_probs"].values()) == pytest.approx(1)
    assert (result.attempt, result.status) == ("third call", "ok")
    retries = [r.message for r in caplog.records if "gave no usable answer" in r.message]
    assert len(retries) == 2
    assert "first call" in retries[0]
    assert "second call" in retries[1]


@pytest.mark.spec("001/fallback-on-all-retries-failed")
@pytest.mark.spec("000/9-error-handling-strategy")
@pytest.mark.spec("D8/all-three-calls-fail")
@pytest.mark.parametrize(
    ("query", "options", "evidence"),
    [
        (RATE, None, ExecutorOutput(distortion_analysis=FINDINGS)),
        (RATE, None, None),
        ("Why is it soft?", None, EVIDENCE),
        ("Which is worst?", OPTIONS, EVIDENCE),
    ],
)
def test_three_unreadable_answers_fail_without_an_invented_score(summarize, caplog, query, options, evidence):
    output = "%% unreadable output no. "
    result, engine = summarize([output + "1", output + "2", output + "3"], state_of(query, evidence, options=options))
    assert len(engine.requests) == 3
    assert result.final_answer == "Unable to determine"
    assert result.quality_reasoning == "VLM output parsing failed"
    assert (result.need_replan, result.replan_reason) == (False, None)
    assert (result.status, result.attempt) == ("failed", "nothing")
    assert result.error
    assert result.level_probabilities is None
    assert result.quality_score == (pytest.approx(2.7) if evidence is EVIDENCE else None)
    records = [r for r in caplog.records if r.name in {"program.agent.summarizer"}]
    errors = [r.getMessage() for r in records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert output + "3" in errors[0]


@pytest.mark.spec("D7/three-calls-for-level-probabilities")
@pytest.mark.spec("004/fallback-strategy")
@pytest.mark.parametrize(
    "refusal", [REFUSAL, "无法判断这张图片的质量。", "", "   ", "[]", "null", "42", '{"quality_probs": {}}']
)
def test_tools_stand_alone_when_the_model_gives_no_level(summarize, refusal):
    result, engine = summarize([refusal] * 3)
    assert len(engine.requests) == 3
    assert result.final_answer == result.quality_score == pytest.approx(2.7)
    assert (result.status, result.attempt, result.level_probabilities) == ("degraded", "tools alone", None)
    assert result.error
    assert "2.70" in result.quality_reasoning


@pytest.mark.spec("D7/three-calls-for-level-probabilities")
@pytest.mark.spec("D2/smoothing-of-a-level-alone")
@pytest.mark.spec("004/fallback-strategy")
@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("The quality is poor.", 2),
        ("B. Good", 4),
        ("D", 2),
        ("Rating: 3", 3),
        ("质量较差", 2),
        ('{"quality_level": "E"}', 1),
    ],
)
def test_a_level_in_the_text_is_the_last_resort_before_the_tools(summarize, text, level):
    result, engine = summarize(["?", "?", text])
    assert len(engine.requests) == 3
    expected = {c: 0.85 if c == level else 0.0375 for c in range(1, 6)}
    assert result.level_probabilities == pytest.approx(expected)
    assert result.final_answer == pytest.approx(ScoreFusion().fuse_scores([2.6, 2.8], expected))
    assert (result.status, result.attempt) == ("ok", "text")
    alone, _ = summarize(["?", "?", text], state_of(evidence=None))
    assert alone.final_answer == pytest.approx(sum(c * p for c, p in expected.items()))


@pytest.mark.spec("D9/forms-of-probabilities")
@pytest.mark.spec("004/edge-cases")
@pytest.mark.parametrize(
    "bad",
    [
        '{"quality_probs": {"1": NaN, "2": 0.5, "3": 0.5}, "quality_reasoning": "r"}',
        '{"quality_probs": {"1": 0.1, "2": Infinity}, "quality_reasoning": "r"}',
        '{"quality_probs": {"1": -Infinity, "2": -1}, "quality_reasoning": "r"}',
        '{"quality_probs": {"1": 1e308, "2": 1e308, "3": 1e308}, "quality_reasoning": "r"}',
        '{"quality_probs": {"1": 0, "2": 0, "3": 0, "4": 0, "5": 0}, "quality_reasoning": "r"}',
        '{"quality_probs": {}, "quality_reasoning": "r"}',
        '{"quality_probs": [0.5, 0.5], "quality_reasoning": "r"}',
        '{"quality_probs": "mostly fine", "quality_reasoning": "r"}',
        '{"quality_probs": {"3": "high"}, "quality_reasoning": "r"}',
    ],
)
def test_probabilities_without_meaning_are_asked_for_again(summarize, bad):
    result, engine = summarize([bad, SCORED])
    assert (len(engine.requests), result.attempt, result.status) == (2, "second call", "ok")
    alone, engine = summarize([bad] * 3)
    assert (len(engine.requests), alone.attempt, alone.final_answer) == (3, "tools alone", pytest.approx(2.7))


@pytest.mark.spec("001/extract-quality-reasoning")
@pytest.mark.spec("001/parse-and-validate-vlm-json-response")
@pytest.mark.parametrize("reasoning", ["", "   ", "\n\t", None])
@pytest.mark.parametrize(
    ("query", "answer"), [(RATE, SCORED), ("Why is it soft?", ANSWERED), ("Worst? A. Noise B. Blur", ANSWERED)]
)
def test_empty_reasoning_is_asked_for_again(summarize, query, answer, reasoning):
    result, engine = summarize([{**answer, "quality_reasoning": reasoning}, answer], state_of(query))
    assert len(engine.requests) == 2
    assert result.attempt == "second call"
    assert result.quality_reasoning.startswith(answer["quality_reasoning"])


@pytest.mark.spec("001/extract-final-answer")
@pytest.mark.spec("001/parse-and-validate-vlm-json-response")
@pytest.mark.parametrize("given", ["", "  ", "\n", None])
@pytest.mark.parametrize("query", ["Why is it soft?", "Worst? A. Noise B. Blur"])
def test_an_empty_answer_is_asked_for_again(summarize, given, query):
    result, engine = summarize(
        [{**ANSWERED, "final_answer": given}, {**ANSWERED, "final_answer": "  B \n"}], state_of(query)
    )
    assert len(engine.requests) == 2
    assert result.final_answer == "B"


@pytest.mark.spec("001/parse-and-validate-vlm-json-response")
@pytest.mark.parametrize("query", [RATE, "Why is it soft?"])
def test_missing_fields_are_asked_for_again_and_wrapped_json_is_read(summarize, query):
    good = SCORED if query == RATE else ANSWERED
    only = {k: v for k, v in good.items() if k != "quality_reasoning"}
    result, engine = summarize([only, "```json\n" + json.dumps(good) + "\n```"], state_of(query))
    assert (len(engine.requests), result.status) == (2, "ok")


# Multiple choice and explanation


@pytest.mark.spec("D3/the-type-of-a-final-answer")
@pytest.mark.spec("D6/which-words-decide-the-query-type")
@pytest.mark.parametrize(
    ("answer", "letter"),
    [("B", "B"), ("b.", "B"), ("B. Blur", "B"), ("Blur", "B"), ("The second", "B"), ("Mostly banding", "C")],
)
def test_a_choice_is_always_one_of_the_letters(summarize, answer, letter):
    result, _ = summarize([{**ANSWERED, "final_answer": answer}], state_of("Which is worst?", options=OPTIONS))
    assert result.final_answer == letter
    assert result.query_type is QueryType.MCQ
    assert result.quality_score == pytest.approx(2.7)


@pytest.mark.spec("D6/which-words-decide-the-query-type")
@pytest.mark.parametrize(
    ("answer", "letter"), [("B", "B"), ("噪声", "B"), ("B、噪声", "B"), ("答案是A", "A"), ("第三个", "C")]
)
def test_a_choice_in_chinese(summarize, answer, letter):
    state = state_of("这张图片最明显的失真是什么？A、模糊 B、噪声 C、压缩")
    assert summarize([{**ANSWERED, "final_answer": answer}], state)[0].final_answer == letter


@pytest.mark.spec("D8/all-three-calls-fail")
def test_a_wrong_letter_is_asked_for_again_and_never_kept(summarize):
    wrong = {**ANSWERED, "final_answer": "F"}
    state = state_of("Which is worst?", options=OPTIONS)
    result, engine = summarize([wrong, {**ANSWERED, "final_answer": "Z"}, ANSWERED], state)
    assert (result.final_answer, result.attempt, len(engine.requests)) == ("B", "third call", 3)
    failed, _ = summarize([wrong] * 3, state)
    assert (failed.final_answer, failed.status) == ("Unable to determine", "failed")
    assert "'F' is none of the options" in failed.error


@pytest.mark.spec("D3/the-type-of-a-final-answer")
@pytest.mark.spec("004/decision-3-output-format-compatibility")
def test_an_explanation_keeps_its_text_and_carries_the_tools_score(summarize):
    text = "The image is soft. 3.5 would be generous."
    result, _ = summarize([{**ANSWERED, "final_answer": text}], state_of("Why is it soft?"))
    assert result.final_answer == text
    assert result.quality_score == pytest.approx(2.7)
    assert (result.rating, result.level) == (None, None)
    none, _ = summarize([ANSWERED], state_of("Why is it soft?", None))
    assert none.quality_score is None


@pytest.mark.spec("D14/questions-about-something-else")
@pytest.mark.spec("001/select-prompt-mode")
@pytest.mark.parametrize("query", [RATE, "What emotion does it convey?"])
def test_other_plans_are_answered_from_the_image_without_a_score(summarize, query):
    result, engine = summarize([ANSWERED], state_of(query, ExecutorOutput(), planned("Other", steps=False)))
    assert engine.fields(engine.requests[0])[0] == "final_answer"
    assert result.quality_score is None
    assert result.need_replan is False
    assert "No distortion analysis" not in result.quality_reasoning


# Replanning


@pytest.mark.spec("001/detect-insufficient-evidence")
@pytest.mark.spec("001/provide-replan-reason")
@pytest.mark.spec("001/log-replanning-decision")
@pytest.mark.spec("003/4-reflection-and-replanning")
def test_a_gap_asks_for_a_replan_says_why_and_is_logged(summarize, caplog):
    caplog.set_level(logging.INFO, logger="program")
    evidence = ExecutorOutput(distortion_analysis=FINDINGS)
    result, _ = summarize([SCORED], state_of(evidence=evidence, iteration_count=1))
    assert (result.need_replan, result.replan_reason) == (True, "No tool scores available")
    assert "need_replan=true, iteration 1: No tool scores available" in caplog.text


@pytest.mark.spec("001/respect-max-iterations")
@pytest.mark.spec("D11/replans-are-counted-and-end")
@pytest.mark.parametrize(("count", "limit"), [(2, 2), (3, 2), (0, 0)])
def test_no_replan_at_the_limit(summarize, caplog, count, limit):
    state = state_of(
        evidence=ExecutorOutput(distortion_analysis=FINDINGS), iteration_count=count, max_replan_iterations=limit
    )
    result, _ = summarize([SCORED], state)
    assert (result.need_replan, result.replan_reason) == (False, None)
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert any("max iterations reached" in w for w in warnings)


@pytest.mark.spec("001/contradictory-evidence")
def test_a_contradiction_is_noted_and_asks_for_a_replan(summarize):
    evidence = ExecutorOutput(
        distortion_analysis={"Global": [Finding(type="Blurs", severity="severe")]},
        quality_scores={"Global": {"Blurs": ("VIF", 4.5)}},
    )
    result, _ = summarize([SCORED], state_of(evidence=evidence))
    assert "Contradictory evidence: severe Blurs in Global but a tool score of 4.50" in result.quality_reasoning
    assert result.need_replan
    assert result.replan_reason.startswith("Contradictory evidence")


@pytest.mark.spec("001/missing-query-scope-coverage")
def test_a_region_without_evidence_asks_for_a_replan(summarize):
    evidence = ExecutorOutput(
        distortion_analysis={"vehicle": FINDINGS["Global"]}, quality_scores={"vehicle": SCORES["Global"]}
    )
    result, _ = summarize([SCORED], state_of(evidence=evidence, plan=planned(scope=("vehicle", "background"))))
    assert result.need_replan
    assert "background" in result.replan_reason


# Logging


@pytest.mark.spec("001/log-summarizer-invocation")
@pytest.mark.spec("003/6-logging-and-observability")
def test_the_start_is_logged_with_mode_counts_and_images(summarize, caplog):
    caplog.set_level(logging.INFO, logger="program")
    summarize([SCORED], reference=True)
    records = [r for r in caplog.records if r.name in {"program.agent.summarizer"}]
    line = next(r.getMessage() for r in records if r.levelno == logging.INFO)
    for part in ("scoring", "scoring phrase", "2 findings", "2 tool scores", "image pixels:", "reference pixels:"):
        assert part in line


@pytest.mark.spec("001/log-prompt-and-response")
def test_prompts_and_truncated_responses_are_logged_at_debug(summarize, caplog):
    caplog.set_level(logging.DEBUG, logger="program")
    long = "x" * 5000
    summarize(["?", {**SCORED, "quality_reasoning": long}])
    debug = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG and r.name == "program.lms.ask"]
    prompts = [m for m in debug if m.startswith("prompt")]
    assert [RATE in p and "TOPIQ_FR" in p for p in prompts] == [True, True]
    assert ONLY_JSON in prompts[1]
    assert not any("base64" in p for p in prompts)
    (response,) = [m for m in debug if m.startswith("response")]
    assert 1000 < len(response) < 2500
