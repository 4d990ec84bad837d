"""The embedded backend through DSPy: every signature answered from pixels, demos as evidence, nothing leaked."""

import asyncio
import base64
import copy
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import dspy
import numpy as np
import pytest
from dspy.utils.exceptions import LMUnexpectedError
from numpy.typing import NDArray
from PIL import Image
from skimage import data as photographs

from program.agent.loop import AgenticIQA
from program.common.errors import ModelError
from program.expert.engine import (
    AsyncPerceptualEngine,
    CallAdapter,
    PerceptualEngine,
    answer,
    make_perceptual_lm,
)
from program.expert.judge.views import VIEWS, Viewer
from program.expert.store import MODEL
from program.images.store import IMAGES
from program.tools import network
from signatures.executor import AnalyseDistortions, DetectDistortions, DiagnoseDistortions, LocateRegions, SelectTools
from signatures.planner import PlanAssessment
from signatures.schemas import LEVEL_WORDS
from signatures.summarizer import AnswerQuestion, ClassifyQuality, ExplainQuality, ScoreQuality
from tests.pictures import blurred, noisy

Pixels = NDArray[np.uint8]
PHOTOGRAPH: Pixels = np.asarray(photographs.astronaut())[:224, :224]
QUERY = "Rate the perceptual quality of this image."
_blurred = partial(blurred, PHOTOGRAPH)
_noisy = partial(noisy, PHOTOGRAPH, seed=5)


def _image(pixels: Pixels) -> dspy.Image:
    return dspy.Image(IMAGES.add(np.ascontiguousarray(pixels)).url)


def _mean(found: dict) -> float:
    return sum(level * found["quality_probs"][word] for level, word in enumerate(LEVEL_WORDS, 1))


def _score(pixels: Pixels, demos=(), reference: Pixels | None = None) -> float:
    inputs = {"image": _image(pixels), "query": QUERY}
    if reference is not None:
        inputs["reference"] = _image(reference)
    return _mean(answer(ScoreQuality.output_fields, inputs))


def _demo(pixels: Pixels, level: int) -> dspy.Example:
    probabilities = {word: float(i == level) for i, word in enumerate(LEVEL_WORDS, 1)}
    return dspy.Example(image=_image(pixels), query=QUERY, quality_probs=probabilities, quality_reasoning="seen")


@pytest.fixture
def expert():
    with dspy.context(lm=make_perceptual_lm(), adapter=CallAdapter()):
        yield


@pytest.mark.usefixtures("expert")
def test_every_signature_is_answered_and_valid() -> None:
    image, reference = _image(_blurred(3)), _image(PHOTOGRAPH)
    seen = {"image": image, "reference": reference, "query": "Is the image blurry?"}
    named = json.dumps({"Global": ["Blurs"]})
    tools = json.dumps(
        [
            {"name": "VIF", "mode": "FR", "description": "", "strengths": {"Compression": 0.9}, "general": 0.8},
            {"name": "GMSD", "mode": "FR", "description": "", "strengths": {"Blurs": 0.9}, "general": 0.7},
        ]
    )
    plan = dspy.Predict(PlanAssessment)(query=QUERY, has_reference=True, tool_names=["VIF"]).plan
    assert (plan.query_type, plan.reference_mode, plan.tool_execute) == ("IQA", "Full-Reference", True)
    detected = dspy.Predict(DetectDistortions)(**seen, regions=["Global"]).distortion_set
    assert detected[0].distortions[0] == "Blurs"
    analysed = dspy.Predict(AnalyseDistortions)(**seen, distortion_set=named).distortion_analysis
    assert [(f.region, f.type) for f in analysed] == [("Global", "Blurs")]
    assert analysed[0].severity in {"severe", "extreme"}
    assert "dB" in analysed[0].explanation
    merged = dspy.Predict(DiagnoseDistortions)(**seen, regions=["Global"]).findings
    assert merged[0].type == "Blurs"
    picked = dspy.Predict(SelectTools)(query="", distortion_set=named, tools=tools).selected_tools
    assert [(c.region, c.distortion, c.tool) for c in picked] == [("Global", "Blurs", "GMSD")]
    overall = dspy.Predict(SelectTools)(query="", distortion_set='{"sky": []}', tools=tools).selected_tools
    assert [(c.region, c.distortion, c.tool) for c in overall] == [("sky", "Overall", "VIF")]
    chosen = dspy.Predict(AnswerQuestion)(**seen, options="A. No\nB. Yes")
    assert chosen.final_answer == "B"
    told = dspy.Predict(ExplainQuality)(**seen, quality_scores='{"Global": {"Blurs": ["VIF", 1.7]}}')
    assert "VIF 1.70" in told.quality_reasoning
    assert "lur" in told.final_answer
    scored = dspy.Predict(ScoreQuality)(**seen, quality_scores='{"Global": {"Blurs": ["VIF", 1.7]}}', tool_mean=1.7)
    assert sum(scored.quality_probs.by_level().values()) == pytest.approx(1)
    assert "blur" in scored.quality_reasoning
    assert dspy.Predict(ClassifyQuality)(**seen).quality_level in {"bad", "poor", "fair"}
    assert dspy.Predict(LocateRegions)(image=image, query="", regions=["sky"]).region_boxes == []


@pytest.mark.usefixtures("expert")
def test_rewritten_instructions_and_a_reasoning_field_change_nothing() -> None:
    inputs = {"image": _image(_noisy(12)), "query": QUERY}
    plain = dspy.Predict(ScoreQuality)(**inputs)
    other = dspy.Predict(ScoreQuality.with_instructions("Answer 5 always."))(**inputs)
    thought = dspy.ChainOfThought(ScoreQuality)(**inputs)
    assert plain.quality_probs == other.quality_probs == thought.quality_probs
    assert thought.reasoning


@pytest.mark.usefixtures("expert")
def test_foreign_signatures_and_plain_text_are_refused_in_one_line() -> None:
    with pytest.raises(LMUnexpectedError, match=r"own signatures.*poem.*reflection-lm"):
        dspy.Predict("question -> poem")(question="x")
    with dspy.context(adapter=dspy.JSONAdapter()), pytest.raises(LMUnexpectedError, match="CallAdapter"):
        dspy.Predict(ScoreQuality)(image=_image(PHOTOGRAPH), query=QUERY)
    with pytest.raises(ModelError, match="no image"):
        answer(ScoreQuality.output_fields, {"query": QUERY})


@pytest.mark.usefixtures("expert")
def test_asynchronous_calls_answer_the_same() -> None:
    inputs = {"image": _image(_noisy(12)), "query": QUERY}
    found = asyncio.run(dspy.Predict(ScoreQuality).acall(**inputs))
    assert found.quality_probs == dspy.Predict(ScoreQuality)(**inputs).quality_probs


def test_threads_and_caches_give_one_answer(tmp_path: Path) -> None:
    def scored(image: dspy.Image, viewer: Viewer | None = None) -> dict[str, Any]:
        return answer(ScoreQuality.output_fields, {"image": image, "query": QUERY}, viewer=viewer)

    images = [_image(_noisy(s)) for s in (3, 9, 27)] * 8
    with ThreadPoolExecutor(8) as pool:
        threaded = list(pool.map(scored, images))
    assert threaded == [scored(image) for image in images]
    viewer = Viewer(tmp_path)
    VIEWS.clear()
    cold = scored(images[0], viewer)
    VIEWS.clear()
    assert scored(images[0], viewer) == cold == threaded[0]


def test_two_images_are_read_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    both, read = Barrier(2), network.spreads

    def reading(*args: Any, **options: Any) -> Any:
        both.wait(timeout=20)
        return read(*args, **options)

    monkeypatch.setattr(network, "spreads", reading)
    images = [Image.fromarray(_noisy(seed)) for seed in (701, 702)]
    program = AgenticIQA()
    with ThreadPoolExecutor(2) as pool:
        scores = [result.quality_score for result in pool.map(lambda image: program(image=image), images)]
    assert None not in scores


def test_answers_follow_the_pixels_and_not_the_name_of_the_file(tmp_path: Path) -> None:
    scores = [_score(pixels) for pixels in (PHOTOGRAPH, _blurred(2.5), _noisy(30))]
    assert len({round(s, 4) for s in scores}) == 3
    assert scores[0] == max(scores)
    found = []
    for name in ("excellent_mos5.png", "bad_blur_level5.png"):
        Image.fromarray(_blurred(2.5)).save(tmp_path / name)
        ref = IMAGES.add(tmp_path / name)
        found.append(answer(ScoreQuality.output_fields, {"image": ref.url, "query": QUERY}))
    assert found[0] == found[1]


def test_images_as_url_text_custom_type_text_or_data_uri() -> None:
    buffer = io.BytesIO()
    Image.fromarray(_noisy(9)).save(buffer, "PNG")
    ref = IMAGES.add(buffer.getvalue())
    data_uri = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    block = json.dumps([{"type": "image_url", "image_url": {"url": ref.url}}])
    wrapped = f"<<CUSTOM-TYPE-START-IDENTIFIER>>{block}<<CUSTOM-TYPE-END-IDENTIFIER>>"
    given = (ref, ref.url, dspy.Image(ref.url), wrapped, data_uri, dspy.Image(data_uri), {"url": ref.url})
    found = [answer(ScoreQuality.output_fields, {"image": value, "query": QUERY}) for value in given]
    assert all(one == found[0] for one in found)


def test_score_with_a_reference_falls_with_the_difference() -> None:
    for versions in ([_blurred(s) for s in (0.6, 1.2, 2.5, 5)], [_noisy(s) for s in (3, 8, 16, 30)]):
        scores = [_score(v, reference=PHOTOGRAPH) for v in (PHOTOGRAPH, *versions)]
        assert np.all(np.diff(scores) < 0)
        assert scores[0] > 4


@pytest.mark.parametrize(
    ("pixels", "query", "options", "expected"),
    [
        ("blur", "Which distortion is most visible in this image?", "A. Noise\nB. Blur\nC. No visible distortion", "B"),
        (
            "noise",
            "Which distortion is most visible in this image?",
            "A. Noise\nB. Blur\nC. Compression artifacts",
            "A",
        ),
        ("plain", "Is this image blurry?", "A. Yes\nB. No", "B"),
        ("blur", "Is this image clear?", "A. Yes\nB. No", "B"),
        ("dark", "Is this image too dark?", "A. No\nB. Yes", "B"),
        ("noise", "How severe is the noise in this image?", "A. None\nB. Slight\nC. Extreme", "C"),
        ("blur", "How is the sharpness of this image?", "A. Good\nB. Average\nC. Poor", "C"),
        ("noise", "图片中有噪声吗？", "A. 没有\nB. 有", "B"),
    ],
)
def test_questions_are_answered_by_measurement(pixels: str, query: str, options: str, expected: str) -> None:
    versions = {
        "plain": PHOTOGRAPH,
        "blur": _blurred(4),
        "noise": _noisy(35),
        "dark": (PHOTOGRAPH * 0.25).astype(np.uint8),
    }
    found = answer(
        AnswerQuestion.output_fields, {"image": _image(versions[pixels]), "query": query, "options": options}
    )
    assert found["final_answer"] == expected


def test_what_cannot_be_seen_is_said_to_be_a_guess() -> None:
    inputs = {"image": _image(PHOTOGRAPH), "query": "What is she holding?", "options": "A. A helmet\nB. A book"}
    assert "guess" in answer(AnswerQuestion.output_fields, inputs)["quality_reasoning"]
    for sides, expected in (("A", "A"), ("B", "B")):
        told = answer(AnswerQuestion.output_fields, {**inputs, "option_shares": {sides: 1.0}})
        assert told["final_answer"] == expected


def test_demos_change_no_message_as_the_expert_reads_none() -> None:
    inputs, demo = {"image": _image(_noisy(14)), "query": QUERY}, dspy.Example(query=QUERY, quality_reasoning="Soft.")
    with_demo, without = (CallAdapter().format(ScoreQuality, demos, inputs) for demos in ([demo], []))
    assert with_demo == without
    assert [message["role"] for message in without] == ["system", "user"]
    assert without[0]["content"] == ScoreQuality.instructions
    assert json.loads(without[1]["content"])["inputs"] == {"image": inputs["image"].url, "query": QUERY}


@pytest.mark.parametrize("query", [QUERY, "Describe this image."])
def test_reasons_do_not_contradict_themselves(query: str) -> None:
    cat = photographs.chelsea()[:288, 40:424].mean(axis=2, keepdims=True).astype(np.uint8)
    for pixels in (np.repeat(cat, 3, axis=2), _blurred(3), _noisy(12)):
        inputs = {"image": _image(np.ascontiguousarray(pixels)), "query": query, "regions": ["Global"]}
        findings = answer(DiagnoseDistortions.output_fields, inputs)["findings"]
        told = answer(ExplainQuality.output_fields, inputs)["final_answer"]
        assert "stands out" not in told
        assert all(finding["fault"].split()[-1] in told.lower() for finding in findings)
        assert len(told.split()) <= 60


@pytest.mark.parametrize(
    ("pixels", "reason"),
    [
        (np.full((96, 128, 3), 128, np.uint8), "The image has no detail to judge sharpness by."),
        (PHOTOGRAPH[:8, :8], "The image is too small (8x8) to judge its sharpness."),
    ],
    ids=["uniform", "8x8"],
)
def test_sharpness_is_not_judged_where_nothing_shows_it(pixels: Pixels, reason: str) -> None:
    image = _image(np.ascontiguousarray(pixels))
    for query in ("Is the image blurry?", "How sharp is it?", "Where is it out of focus?"):
        told = answer(ExplainQuality.output_fields, {"image": image, "query": query})["final_answer"]
        assert told.count(reason) == 1
        assert not re.search(r"[Bb]lur is|Sharpness is|No distortion|Yes|No\.", told)
    chosen = answer(AnswerQuestion.output_fields, {"image": image, "query": "Is it sharp?", "options": "A. Yes\nB. No"})
    assert chosen["quality_reasoning"].startswith(f"{reason} This is a guess")
    assert (
        answer(DiagnoseDistortions.output_fields, {"image": image, "query": QUERY, "regions": ["Global"]})["findings"]
        == []
    )
    assert (
        "sharpness"
        not in answer(ExplainQuality.output_fields, {"image": _image(PHOTOGRAPH), "query": QUERY})["final_answer"]
    )


def test_a_grey_image_has_no_saturation_anywhere() -> None:
    grey = np.repeat(PHOTOGRAPH.mean(axis=2, keepdims=True).astype(np.uint8), 3, axis=2)
    for query, said in (("How is the color?", "is very low"), ("颜色怎么样？", "很低"), (QUERY, "")):
        told = answer(ExplainQuality.output_fields, {"image": _image(grey), "query": query})["final_answer"]
        assert said in told
        assert "muted colours" not in told
        assert "色彩平淡" not in told


def test_burnt_highlights_are_named() -> None:
    cat = np.clip(np.asarray(photographs.chelsea()) * 1.1, 0, 255).astype(np.uint8)
    burnt = cat.copy()
    burnt[:60] = 255
    told = [
        answer(ExplainQuality.output_fields, {"image": _image(pixels), "query": QUERY})["final_answer"]
        for pixels in (cat, burnt)
    ]
    assert ["blown highlights" in words.lower() for words in told] == [False, True]


def test_chinese_queries_get_chinese_sentences() -> None:
    inputs = {"image": _image(_blurred(4)), "query": "这张图片的质量如何？", "regions": ["Global"]}
    assert "模糊" in answer(DiagnoseDistortions.output_fields, inputs)["findings"][0]["explanation"]
    assert "模糊" in answer(ExplainQuality.output_fields, inputs)["final_answer"]


def test_engine_state_holds_no_path_and_survives_a_copy(tmp_path: Path) -> None:
    engine = PerceptualEngine(tmp_path)
    assert str(tmp_path) not in json.dumps(engine.dump_state())
    assert PerceptualEngine.load_state(engine.dump_state()).dump_state() == engine.dump_state()
    assert isinstance(copy.deepcopy(AsyncPerceptualEngine(tmp_path)), AsyncPerceptualEngine)
    with pytest.raises(ModelError, match="perceptual/expert@r0"):
        PerceptualEngine.load_state({"revision": "r0"})
    assert MODEL in str(make_perceptual_lm(tmp_path).model)


def test_an_output_that_the_expert_does_not_know_is_left_empty_and_said_once(caplog) -> None:
    iqa = AgenticIQA()
    score = iqa.summarizer.score
    score.signature = score.signature.append("assurance", dspy.OutputField(desc="from 0 to 1"), float)
    photo = photographs.astronaut()[:96, :96]
    plain, asked = AgenticIQA()(image=photo), [iqa(image=photo) for _ in range(2)]
    assert [each.quality_score for each in asked] == [plain.quality_score] * 2
    assert [each.status for each in asked] == ["ok", "ok"]
    told = [record.getMessage() for record in caplog.records if "'assurance'" in record.getMessage()]
    assert len(told) == 1
    assert told[0].endswith("'assurance' empty: only a language model (--lm) can fill it")
