"""Which questions measurements can answer: what is said where they cannot, and that it is not said where they can."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from skimage import data as photographs

from program import assess
from program.agent.loop import AgenticIQA
from program.common.settings import load_settings
from program.expert.answer.planning import is_about_quality, is_read

QUALITY = [
    "Is the image blurry?", "Is this image sharp?", "How is the clarity?", "Is there noise?",
    "What are its weak points?", "How would you fix this?", "What is wrong with it?", "What's wrong with this photo?",
    "Describe this image.", "Tell me about this photo",
    "How good is it?", "Is it any good?", "Why is it soft?", "Why is the score so low?",
    "What distortions do you see?", "What is the most severe distortion?", "How many distortions are there?",
    "Is the dog's face in focus?", "Where is the image blurry?", "How is the exposure?", "Is the sky overexposed?",
    "Which part is the darkest?", "What is the dominant colour?", "Is it warm or cool?",
    "How can I improve this photo?", "Is this good enough to print?", "Should I retake this picture?",
    "Rate this image.", "Give it a score from 1 to 5", "What is the quality of the man's hat?",
    "Which distortion affects the man wearing a hat?", "Is the man wearing a hat blurry?", "How does it look?",
    "How does the sky look?", "Are there compression artifacts?", "Any JPEG blocking?", "Is the lighting sufficient?",
    "Is the texture of the grass rich?", "Explain the quality of this image", "What does BRISQUE say?",
    "What is the problem with this image?", "How is this image?", "What do you think of this picture?",
    "Is the background clear?", "Is it hazy?", "Does this photo suffer from motion blur?",
    "Is the image well exposed?", "Is the photo underexposed or overexposed?", "Are the colors vivid?",
    "Is the white balance correct?", "How natural does it look?", "Is the contrast low?", "Is this picture okay?",
    "Why does the picture look washed out?", "这张图片清晰吗？", "图片的清晰度如何？", "画面是否太暗？",
    "图中有噪点吗？", "这张照片有什么问题？", "描述这张图片", "请分析一下这幅图像", "图片的颜色怎么样？",
    "哪里最模糊？", "这张照片拍得怎么样？", "为什么质量差？", "图片有压缩失真吗？", "光线充足吗？", "对焦准确吗？",
    "色彩鲜艳吗？", "这张图片最严重的失真是什么？", "给这张图打分", "画质如何？", "背景清楚吗？", "照片好不好？",
    "有没有过曝？", "细节丰富吗？", "请描述这张图的质量",
]  # fmt: skip
CONTENT = [
    "How many people?", "How many people are there in this image?", "What is she holding?",
    "Is there a dog in the image?", "Who took this photo?", "Is this image AI generated?", "What is the man doing?",
    "Where was this picture taken?", "When was this taken?", "What breed is the dog?",
    "What is the man in the dark coat holding?", "Is she happy?", "What is written on the sign?",
    "What time of day is it?", "Which city is this?", "What does the man look like?", "Is the composition good?",
    "What mood does it convey?", "Is this beautiful?", "Does it contain text?", "Is there a watermark?",
    "What animal is this?", "Who is in the dark?", "How old is the woman?", "What camera was used?",
    "Is the horizon straight?", "What is in this picture?", "What does this image show?",
    "What is shown in this shot?", "Describe the scene.", "Are there any cars?", "Is anyone smiling?",
    "What are they eating?", "Can you identify this person?", "Is this copyrighted?", "Why is he laughing?",
    "画面里的人在做什么？", "图里有几只狗？", "她手里拿着什么？", "这是哪个城市？", "图中有狗吗？", "他是谁？",
    "这张照片是谁拍的？", "这张图片是AI生成的吗？", "画面里有月亮吗？", "构图好吗？", "有多少个人？",
    "这是什么动物？", "图片里写了什么字？", "她穿着什么衣服？",
]  # fmt: skip
OTHER_LANGUAGES = [
    "¿Es borrosa la imagen?", "L'image est-elle floue ?", "Ist das Bild scharf?", "この画像はぼやけていますか？",
    "이 이미지는 흐릿합니까?", "Изображение размыто?", "هل الصورة ضبابية؟", "A imagem está desfocada?",
    "L'immagine è sfocata?", "Görüntü bulanık mı?", "De foto is onscherp?", "Jak ostry jest ten obraz?",
]  # fmt: skip


@pytest.fixture
def iqa(tmp_path: Path, fake_runner: Callable[[], Any]) -> AgenticIQA:
    """The program with the embedded expert, and tools that say 2.6 of everything."""
    program = AgenticIQA(load_settings(overrides={"cache_dir": tmp_path}))
    program.resources.runner = fake_runner()
    return program


PHOTOGRAPH = np.ascontiguousarray(photographs.chelsea()[:288, 40:424])


def test_a_question_about_quality_is_taken_for_one() -> None:
    assert [query for query in QUALITY if not is_about_quality(query)] == []


def test_a_question_about_content_or_taste_is_not() -> None:
    assert [query for query in CONTENT if is_about_quality(query) or not is_read(query)] == []


@pytest.mark.parametrize("query", OTHER_LANGUAGES)
def test_a_question_in_another_language_is_known_for_one(query: str) -> None:
    assert not is_read(query)
    assert not is_about_quality(query)


@pytest.mark.parametrize(
    ("query", "start"),
    [
        (
            "How many people?",
            "The embedded expert knows no objects: it measures quality, and the question is about something else.",
        ),
        (
            "Who took this photo?",
            "The embedded expert knows no objects: it measures quality, and the question is about something else.",
        ),
        (
            "What mood does it convey?",
            "The embedded expert knows no objects: it measures quality, and the question is about something else.",
        ),
        ("画面里的人在做什么？", "内置专家不识别物体：它只测量画质，问题涉及其他内容。"),
        ("¿Es borrosa la imagen?", "The question names nothing that measurements see; questions are read in English"),
        ("この画像はぼやけていますか？", "问题中没有测量看得到的内容：只能读懂中文和英文。"),
    ],
)
def test_an_open_answer_first_says_what_cannot_be_seen(iqa: AgenticIQA, query: str, start: str) -> None:
    result = iqa(image=PHOTOGRAPH, query=query)
    assert str(result.final_answer).startswith(start)


def test_what_is_no_question_is_rated_and_told_so(iqa: AgenticIQA) -> None:
    result = iqa(image=PHOTOGRAPH, query="asdf qwer")
    assert isinstance(result.final_answer, float)
    assert result.quality_reasoning.startswith("The question names nothing that measurements see; questions are read")
    for asked in ("Rate this image.", "image quality", "画质评分"):
        assert "measurements" not in iqa(image=PHOTOGRAPH, query=asked).quality_reasoning


@pytest.mark.parametrize("query", ["Is it blurry?", "How is the exposure?", "Describe this image.", "图片清晰吗？"])
def test_an_answer_about_quality_says_nothing_of_the_kind(iqa: AgenticIQA, query: str) -> None:
    result = iqa(image=PHOTOGRAPH, query=query)
    assert "measurements" not in f"{result.final_answer} {result.quality_reasoning}"
    assert "测量看" not in f"{result.final_answer} {result.quality_reasoning}"


@pytest.mark.parametrize(
    "query", ["What could be improved?", "What is wrong with it?", "How would you fix this picture?"]
)
def test_who_asks_for_faults_is_told_where_there_are_none(iqa: AgenticIQA, query: str) -> None:
    assert str(iqa(image=PHOTOGRAPH, query=query).final_answer).startswith("Nothing stands out. ")
    assert "Nothing" not in str(iqa(image=PHOTOGRAPH, query="Describe this image.").final_answer)


def test_an_open_answer_says_each_fault_once(iqa: AgenticIQA) -> None:
    blurred = ndimage.gaussian_filter(PHOTOGRAPH, (4, 4, 0))
    answer = str(iqa(image=blurred, query="Are there any problems?").final_answer)
    assert answer.startswith("Yes. ")
    assert answer.casefold().count("blur") == 1, answer


def test_a_guess_among_options_names_the_language_as_its_reason(iqa: AgenticIQA) -> None:
    told = iqa(image=PHOTOGRAPH, query="¿Es borrosa la imagen?", options=["Sí", "No"]).quality_reasoning
    assert told.startswith("The question names nothing that measurements see; questions are read in English")
    assert "a guess from the prior, with low confidence" in told


@pytest.mark.parametrize(
    ("query", "options", "headline"),
    [
        ("Is there a dog in the picture?", ["Yes", "No"], "Cannot tell (a guess: A. Yes)"),
        ("What is she holding?", ["Hat", "Cup"], "Cannot tell (a guess: B. Cup)"),
        ("图里有狗吗？", ["有", "没有"], "无法判断（猜测：A. 有）"),
        ("Is the image blurry?", ["Yes", "No"], "B. No"),
    ],
)
def test_the_headline_of_a_guess_says_that_nobody_can_tell(
    iqa: AgenticIQA, query: str, options: list[str], headline: str
) -> None:
    result = iqa(image=PHOTOGRAPH, query=query, options=options)
    assert result.headline == str(result).splitlines()[0] == headline
    assert result.option == options["AB".index(str(result.final_answer))]


def test_a_table_of_answers_calls_a_guess_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.png", "b.png"):
        Image.fromarray(PHOTOGRAPH).save(tmp_path / name)
    asked = ["--query", "Is there a dog in the picture?", "--option", "Yes", "--option", "No"]
    assert assess.main([str(tmp_path), *asked]) == 0
    assert "Cannot tell (a guess: A. Yes)" in " ".join(capsys.readouterr().out.split())


def test_an_answer_in_chinese_is_chinese_to_its_end(iqa: AgenticIQA) -> None:
    blurred = np.ascontiguousarray(ndimage.gaussian_filter(PHOTOGRAPH, (4, 4, 0)))
    for image in (PHOTOGRAPH, blurred):
        told = iqa(image=image, query="这张图片的质量如何？").quality_reasoning
        assert not re.search(r"[A-Za-z]{3,}", told.replace("PIQE", "")), told


def test_an_open_answer_names_each_tool_score_once(iqa: AgenticIQA) -> None:
    result = iqa(image=PHOTOGRAPH, query="Is it blurry?")
    assert f"{result.final_answer} {result.quality_reasoning}".count("PIQE") == 1
