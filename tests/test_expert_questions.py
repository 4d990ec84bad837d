"""Questions about images whose properties are known because they were made so: both languages, every kind."""

import re
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage
from skimage import data as photographs

from program.agent.loop import AgenticIQA
from program.common.errors import ModelError
from program.common.settings import load_settings
from program.expert.answer.claims import cells_in, degree_in, predicate, terms_in, topic_in
from program.expert.answer.findings import phrases_for
from program.expert.answer.questions import answer_choice, choice_reason
from program.expert.engine import answer
from program.expert.judge.views import COMPOSITES, PROPERTIES, View, Viewer, population, position
from program.images.store import IMAGES
from signatures.summarizer import AnswerQuestion, ExplainQuality
from tests.pictures import as_jpeg

Pixels = NDArray[np.uint8]
PHOTOGRAPH: Pixels = np.asarray(photographs.chelsea())[:288, 40:424]
_VIEWS: dict[str, View] = {}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all tests find what was measured of the images that they share."""
    return tmp_path_factory.mktemp("measured")


@pytest.fixture
def iqa(measured: Path, fake_runner: Callable[[], Any]) -> AgenticIQA:
    """The program with the embedded expert, and tools that say 2.6 of everything."""
    program = AgenticIQA(load_settings(overrides={"cache_dir": measured}))
    program.resources.runner = fake_runner()
    return program


def _uint8(values: NDArray[np.float64]) -> Pixels:
    return np.asarray(np.clip(values, 0, 255), dtype=np.uint8)


def _grey(pixels: Pixels, share: float) -> Pixels:
    mean = pixels.mean(axis=2, keepdims=True)
    return _uint8(mean + share * (pixels - mean))


def _half_blurred(pixels: Pixels) -> Pixels:
    made = pixels.copy()
    made[:, : pixels.shape[1] // 2] = ndimage.gaussian_filter(pixels, (5, 5, 0))[:, : pixels.shape[1] // 2]
    return made


def _made(name: str) -> Pixels:
    noise = np.random.default_rng(3).normal(0, 32, PHOTOGRAPH.shape)
    street: Pixels = np.asarray(photographs.astronaut())[:400, :400]
    versions = {
        "plain": lambda: PHOTOGRAPH,
        "sharp": lambda: street,
        "clean": lambda: np.asarray(photographs.coffee())[:288, :384],
        "blurred": lambda: ndimage.gaussian_filter(PHOTOGRAPH, (4, 4, 0)),
        "moved": lambda: ndimage.uniform_filter1d(street, 21, axis=1),
        "defocused": lambda: ndimage.gaussian_filter(street, (5, 5, 0)),
        "dark": lambda: _uint8(PHOTOGRAPH * 0.2),
        "bright": lambda: _uint8(PHOTOGRAPH * 1.5 + 90),
        "dull": lambda: _grey(PHOTOGRAPH, 0.08),
        "vivid": lambda: _grey(street, 2.2),
        "noisy": lambda: _uint8(PHOTOGRAPH + noise),
        "jpeg": lambda: as_jpeg(PHOTOGRAPH, 4),
        "flat": lambda: _uint8(128 + 0.15 * (PHOTOGRAPH.astype(float) - 128)),
        "left blurred": lambda: _half_blurred(street),
        "top dark": lambda: _uint8(PHOTOGRAPH * np.linspace(0.05, 1.4, len(PHOTOGRAPH))[:, None, None]),
    }  # fmt: skip
    return np.ascontiguousarray(versions[name]())


def _view(name: str) -> View:
    if name not in _VIEWS:
        _VIEWS[name] = Viewer().view(dspy.Image(IMAGES.add(_made(name)).url))
    return _VIEWS[name]


def _answered(name: str, query: str, options: list[str]) -> str:
    lettered = dict(zip("ABCDEFGH", options, strict=False))
    return lettered[answer_choice(_view(name), query, lettered).letter]


YES_NO = [
    # What is asked, in several wordings; images of which it is true; images of which it is not.
    (("Is this image blurry?", "Does the picture look blurred?", "Is there visible blur in the photo?",
      "Is the image not clear?", "Is the clarity of this image low?", "Does this image lack sharpness?"),
     ("blurred", "defocused"), ("sharp",)),
    (("Is this image clear?", "Is the photo sharp?", "Are the details of this image rich?", "Is the image in focus?",
      "Is the sharpness of this picture high?", "Is the image free of blur?", "Isn't this image clear?"),
     ("sharp",), ("blurred", "defocused")),
    (("Is this image too dark?", "Is the picture underexposed?", "Is the lighting insufficient?", "Is the image dark?",
      "Is the light in this picture dim?"), ("dark",), ("plain", "bright")),
    (("Is this image overexposed?", "Is the picture too bright?", "Is there overexposure in the image?"),
     ("bright",), ("plain", "dark")),
    (("Is the lighting of this image sufficient?", "Is this image well lit?", "Is the illumination adequate?"),
     ("plain",), ("dark",)),
    (("Is there noise in this image?", "Is the image noisy?", "Does this picture look grainy?",
      "Does the photo suffer from noise?"), ("noisy",), ("sharp", "blurred")),
    (("Is this image free of noise?", "Is the image clean?"), ("blurred",), ("noisy",)),
    (("Are there compression artifacts in this image?", "Is the image heavily compressed?",
      "Does the picture show blocking?"), ("jpeg",), ("plain", "sharp")),
    (("Are the colors of this image vivid?", "Is this image colorful?", "Is the color of the picture rich?"),
     ("vivid",), ("dull",)),
    (("Is the color of this image monotonous?", "Are the colors dull?", "Does this image lack color?"),
     ("dull",), ("vivid",)),
    (("Is the contrast of this image low?", "Is the image hazy?"), ("flat",), ("sharp",)),
    (("Is there motion blur in this image?", "Is the image blurry due to camera shake?"), ("moved",), ("sharp",)),
    (("Is there any distortion in this image?", "Are there quality problems in the picture?"),
     ("blurred", "jpeg"), ("clean",)),
    (("Does the image need more light?",), ("dark",), ("sharp", "bright")),
    (("Is this worse than most photographs?", "Should I delete this picture?"), ("defocused",), ("sharp",)),
    (("Is there less blur than usual?",), ("sharp",), ("blurred",)),
    (("这张图片模糊吗？", "图像是否不清晰？"), ("blurred",), ("sharp",)),
    (("这张图片清晰吗？", "图片的细节丰富吗？"), ("sharp",), ("blurred",)),
    (("这张照片曝光不足吗？", "画面是否太暗？"), ("dark",), ("plain",)),
    (("图片过曝吗？", "图像太亮吗？"), ("bright",), ("dark",)),
    (("图中有噪点吗？", "图像是否存在噪声？"), ("noisy",), ("sharp",)),
    (("图片色彩鲜艳吗？",), ("vivid",), ("dull",)),
    (("图片有压缩失真吗？",), ("jpeg",), ("sharp",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "name", "expected"),
    [(q, n, e) for qs, true, false in YES_NO for q in qs for e, ns in ((True, true), (False, false)) for n in ns],
)
def test_yes_or_no(query: str, name: str, expected: bool) -> None:
    yes, no = ("是", "否") if query.endswith("？") else ("Yes", "No")
    assert _answered(name, query, [no, yes]) == _answered(name, query, [yes, no]) == (yes if expected else no)


@pytest.mark.parametrize("query", ["Is the image blurry?", "图片清晰吗？"])
@pytest.mark.parametrize(("first", "second"), [("AB", "BA"), ("AC", "CA"), ("BC", "CB"), ("YZ", "ZY")])
def test_any_letters_in_any_order_give_the_same_answer(iqa: AgenticIQA, query: str, first: str, second: str) -> None:
    texts = ("Yes", "No") if query.endswith("?") else ("否", "是")
    for letters in (first, second):
        options = dict(zip(letters, texts, strict=True))
        result = iqa(image=_made("blurred"), query=query, options=options)
        assert (options[str(result.final_answer)], result.status) == (texts[0], "ok")
        assert "with confidence" in result.quality_reasoning or "把握较大" in result.quality_reasoning


@pytest.mark.parametrize("query", ["Is this image blurry?", "Is the image noisy?", "Is the image sharp?"])
def test_yes_and_no_as_options_give_the_answer_in_words(iqa: AgenticIQA, query: str) -> None:
    dark = (PHOTOGRAPH * 0.35).astype(np.uint8)
    words = iqa(image=dark, query=query).final_answer
    letter = iqa(image=dark, query=query, options=["Yes", "No"]).final_answer
    agreeing = {"A": ("Yes", "Probably yes", "Slightly", "Not clear"), "B": ("No", "Probably not", "Not clear")}
    assert words.startswith(agreeing[letter])


def test_a_degree_among_options_is_the_finding(iqa: AgenticIQA) -> None:
    words = ["None", "Slight", "Moderate", "Severe", "Extreme"]
    dark = (PHOTOGRAPH * 0.3).astype(np.uint8)
    blur = iqa(image=dark, query="How severe is the blur?", options=words)
    assert blur.final_answer == "A"
    assert str(iqa(image=dark, query="How severe is the blur?").final_answer).startswith("There is no blur")
    light = iqa(image=dark, query="How severe is the underexposure?", options=words)
    (found,) = [f for _, f in light.state.executor_evidence.findings() if f.type == "Brightness change"]
    assert words["ABCDE".index(str(light.final_answer))].casefold() == found.severity


def test_an_option_may_hold_what_looks_like_another(iqa: AgenticIQA) -> None:
    options = ["Not blurry: B. good", "Very blurry:\nA. bad"]
    result = iqa(image=_made("blurred"), query="How blurry is the image?", options=options)
    assert result.final_answer == "B"
    assert result.quality_reasoning.startswith("B (Very blurry: A. bad), with confidence:")


def test_options_that_cannot_be_read_are_refused_in_one_line() -> None:
    image = dspy.Image(IMAGES.add(_made("blurred")).url)
    with pytest.raises(ModelError, match="each on a line of its own"):
        answer(AnswerQuestion.output_fields, {"image": image, "query": "Is it blurry?", "options": "yes or no"})


DEGREES = [
    ("How is the clarity of this image?", ["Good", "Average", "Poor"], {"sharp": "Good", "blurred": "Poor"}),
    ("How is the sharpness of this image?", ["High", "Medium", "Low"], {"sharp": "High", "blurred": "Low"}),
    ("How clear is this picture?", ["Very clear", "Moderate", "Not clear"],
     {"sharp": "Very clear", "blurred": "Not clear"}),
    ("How blurry is this image?", ["Slightly", "Moderately", "Severely"],
     {"sharp": "Slightly", "blurred": "Severely"}),
    ("How severe is the blur?", ["Not at all", "Moderate", "Very severe"],
     {"sharp": "Not at all", "blurred": "Very severe"}),
    ("How is this image?", ["Clear", "Blurry"], {"sharp": "Clear", "blurred": "Blurry"}),
    ("How is the brightness of this image?", ["Bright", "Medium", "Dark"], {"bright": "Bright", "dark": "Dark"}),
    ("How is the exposure of this image?", ["Overexposed", "Just fine", "Underexposed"],
     {"bright": "Overexposed", "dark": "Underexposed", "sharp": "Just fine"}),
    ("How dark is the image?", ["Slight", "Severe"], {"dark": "Severe", "plain": "Slight"}),
    ("How is the lighting of the image?", ["Sufficient", "Insufficient"],
     {"plain": "Sufficient", "dark": "Insufficient"}),
    ("How are the colors of the image?", ["Vivid", "Average", "Dull"], {"vivid": "Vivid", "dull": "Dull"}),
    ("How is the color saturation?", ["High", "Medium", "Low"], {"vivid": "High", "dull": "Low"}),
    ("How severe is the noise in this image?", ["None", "Slight", "Moderate", "Severe", "Extreme"], {"sharp": "None"}),
    ("How much noise is there?", ["A lot", "A little"], {"noisy": "A lot", "sharp": "A little"}),
    ("How is the contrast of this image?", ["High", "Low"], {"flat": "Low", "sharp": "High"}),
    ("How is the overall quality of this image?", ["Good", "Poor"], {"sharp": "Good", "blurred": "Poor"}),
    ("Compared with a typical photo, how sharp is this one?", ["Sharper", "Less sharp"],
     {"sharp": "Sharper", "blurred": "Less sharp"}),
    ("How severe is the blur?", ["No blur", "Slight blur", "Strong blur"],
     {"sharp": "No blur", "blurred": "Strong blur"}),
    ("How severe are the distortions?", ["Slight", "Severe"], {"clean": "Slight", "blurred": "Severe"}),
    ("Is the exposure too high, right or too low?", ["Too high", "Right", "Too low"],
     {"bright": "Too high", "sharp": "Right", "dark": "Too low"}),
    ("图片的清晰度如何？", ["高", "中等", "低"], {"sharp": "高", "blurred": "低"}),
    ("图片的亮度怎么样？", ["明亮", "适中", "昏暗"], {"bright": "明亮", "dark": "昏暗"}),
    ("图片的噪声严重吗？", ["无", "轻微", "严重"], {"sharp": "无", "noisy": "严重"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "options", "name", "expected"),
    [(query, options, name, right) for query, options, rights in DEGREES for name, right in rights.items()],
)
def test_words_of_degree(query: str, options: list[str], name: str, expected: str) -> None:
    assert {_answered(name, query, list(order)) for order in permutations(options)} == {expected}


WHICH = [
    ("What is the most severe distortion in this image?", ["Noise", "Blur", "Overexposure", "Compression artifacts"],
     {"noisy": "Noise", "blurred": "Blur", "bright": "Overexposure", "jpeg": "Compression artifacts"}),
    ("Which of the following problems does this image have?", ["Underexposure", "Motion blur", "Noise", "None"],
     {"dark": "Underexposure", "moved": "Motion blur", "noisy": "Noise", "sharp": "None"}),
    ("What is the main problem of the picture?", ["Out of focus", "Low light", "Low contrast"],
     {"defocused": "Out of focus", "dark": "Low light"}),
    ("What kind of blur is it?", ["Motion blur", "Out of focus"],
     {"moved": "Motion blur", "defocused": "Out of focus"}),
    ("What would improve this picture most?", ["More light", "Less light", "Better focus"],
     {"dark": "More light", "bright": "Less light", "defocused": "Better focus"}),
    ("Which aspect is worst?", ["Brightness or contrast", "Colour", "Noise", "None"],
     {"dark": "Brightness or contrast", "noisy": "Noise"}),
    ("Which distortion does not exist in this image?", ["Noise", "Blur"], {"noisy": "Blur", "blurred": "Noise"}),
    ("这张图片最严重的失真是什么？", ["噪声", "模糊", "过曝"], {"noisy": "噪声", "blurred": "模糊", "bright": "过曝"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "options", "name", "expected"),
    [(query, options, name, right) for query, options, rights in WHICH for name, right in rights.items()],
)
def test_which_problem(query: str, options: list[str], name: str, expected: str) -> None:
    assert {_answered(name, query, list(order)) for order in permutations(options)} == {expected}


def test_places_are_measured_where_they_are() -> None:
    assert _answered("left blurred", "Which part of the image is blurry?", ["Left side", "Right side"]) == "Left side"
    assert _answered("left blurred", "Which part is the clearest?", ["The left", "The right side"]) == "The right side"
    assert _answered("top dark", "Which part of the picture is dark?", ["Top", "Bottom"]) == "Top"
    assert _answered("top dark", "Is the top of the image dark?", ["No", "Yes"]) == "Yes"
    assert _answered("top dark", "Is the bottom of the image dark?", ["No", "Yes"]) == "No"
    assert cells_in("Is the upper left corner dark?") == ((0, 0),)
    assert cells_in("Is the image bright?") is None
    assert cells_in("背景清晰吗") == ((0, 0), (0, 1), (0, 2), (1, 0), (1, 2))


def test_places_are_found_beside_a_reference_too(iqa: AgenticIQA) -> None:
    asked = {"query": "Which part of the image is blurry?", "options": ["Left side", "Right side"]}
    assert iqa(image=_made("left blurred"), reference=_made("sharp"), **asked).option == "Left side"
    mirrored = np.ascontiguousarray(_made("left blurred")[:, ::-1])
    assert iqa(image=mirrored, reference=_made("sharp")[:, ::-1].copy(), **asked).option == "Right side"


@pytest.mark.parametrize("query", ["Is the sky overexposed?", "Is the top too bright?"])
def test_a_bright_part_is_not_too_bright_by_itself(query: str) -> None:
    lit = np.linspace(1.15, 0.85, len(PHOTOGRAPH))[:, None, None]
    view = Viewer().view(dspy.Image(IMAGES.add(_uint8(PHOTOGRAPH * lit)).url))
    assert answer_choice(view, query, {"A": "Yes", "B": "No"}).letter == "B"


@pytest.mark.parametrize("query", ["How is the exposure of the top?", "How is the exposure of this image?"])
def test_the_exposure_of_a_part_and_beside_a_reference_has_a_reason(iqa: AgenticIQA, query: str) -> None:
    asked = {"query": query, "options": ["Overexposed", "Underexposed"], "reference": PHOTOGRAPH}
    result = iqa(image=_made("dark"), **asked)
    assert result.option == "Underexposed"
    assert "The exposure is too dark." in result.quality_reasoning
    assert iqa(image=_made("dark"), query=query, options=asked["options"]).status == "ok"
    well = {"query": "Is it not very well-exposed?", "options": ["Good", "Average", "Poor"]}
    assert iqa(image=_made("dark"), reference=PHOTOGRAPH, **well).option == "Poor"


def test_colour_tones() -> None:
    red, blue = (np.full((64, 64, 3), rgb, np.uint8) for rgb in ((190, 60, 50), (40, 70, 190)))
    for pixels, expected in ((red, "Red"), (blue, "Blue")):
        view = Viewer().view(dspy.Image(IMAGES.add(pixels).url))
        found = answer_choice(view, "What is the dominant tone?", {"A": "Blue", "B": "Red", "C": "Green"})
        assert {"A": "Blue", "B": "Red", "C": "Green"}[found.letter] == expected


def test_what_is_not_measured_is_a_guess_that_ignores_order_and_letters() -> None:
    texts = ["A helmet", "A book", "A rocket"]
    found = {_answered("sharp", "What is she holding?", list(order)) for order in permutations(texts)}
    assert len(found) == 1
    choice = answer_choice(_view("sharp"), "What is she holding?", {"A": "A helmet", "B": "A book"})
    assert not choice.measured
    assert choice.probabilities == {"A": 0.5, "B": 0.5}


def test_probabilities_are_a_distribution_whose_top_is_the_answer() -> None:
    for query, options, _ in [*DEGREES, *WHICH]:
        lettered = dict(zip("ABCDEFGH", options, strict=False))
        choice = answer_choice(_view("plain"), query, lettered)
        assert sum(choice.probabilities.values()) == pytest.approx(1)
        assert choice.probabilities[choice.letter] == max(choice.probabilities.values())


def test_more_of_a_fault_makes_yes_more_likely() -> None:
    shares = []
    for sigma in (0.01, 1.0, 2.0, 4.0):
        pixels = np.ascontiguousarray(ndimage.gaussian_filter(_made("sharp"), (sigma, sigma, 0)))
        view = Viewer().view(dspy.Image(IMAGES.add(pixels).url))
        shares.append(answer_choice(view, "Is it blurry?", {"A": "Yes", "B": "No"}).probabilities["A"])
    assert shares == sorted(shares)
    assert shares[-1] > 0.8 > 0.4 > shares[0]


def test_tool_scores_count() -> None:
    options = {"A": "Yes", "B": "No"}
    low, high = (
        answer_choice(_view("plain"), "Is the quality good?", options, [score]).probabilities["A"]
        for score in (1.2, 4.8)
    )
    assert low < high


def test_words_negations_and_modifiers() -> None:
    def place(text: str) -> tuple[str, float]:
        said = terms_in(text)
        return (said[0].axis, said[0].place) if said else ("", 0.5)

    scale = ["very blurry", "blurry", "slightly blurry", "not very blurry", "not blurry"]
    assert [place(t)[0] for t in scale] == ["sharpness"] * 5
    assert [place(t)[1] for t in scale] == sorted(place(t)[1] for t in scale)
    assert place("neither too bright nor too dark") == ("exposure", 0.5)
    assert place("without noise")[1] < 0.5 < place("noise")[1]
    assert place("不太清晰")[1] < 0.5 < place("比较清晰")[1] < place("非常清晰")[1]
    assert place("a castle in the forecast") == ("", 0.5)
    assert topic_in("What is she holding?") is None
    degrees = ["None", "Slight", "Moderate", "Severe", "Extreme"]
    assert [degree.place for text in degrees if (degree := degree_in(text))] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [s.axis for s in predicate("is the image blurry due to motion?")] == ["sharpness", "motion"]


@pytest.mark.parametrize(
    ("query", "options", "words"),
    [
        ("Is this image blurry?", "A. Yes\nB. No", ("with confidence", "Defocus blur")),
        ("How is the clarity of this image?", "A. Good\nB. Poor", ("Poor", "Defocus blur")),
        ("图片清晰吗？", "A. 是\nB. 否", ("选择 B（否）", "失焦模糊")),
        ("What is the man holding?", "A. Hat\nB. Cup", ("guess", "low confidence")),
        ("Is the left side blurry?", "A. Yes\nB. No", ('"left side" was measured',)),
    ],
)
def test_reasons_name_the_option_the_reading_and_how_sure(query: str, options: str, words: tuple[str, ...]) -> None:
    image = dspy.Image(IMAGES.add(_made("blurred")).url)
    told = answer(AnswerQuestion.output_fields, {"image": image, "query": query, "options": options})[
        "quality_reasoning"
    ]
    assert all(word in told for word in words), told


def test_a_reason_neither_denies_the_chosen_fault_nor_says_it_twice(iqa: AgenticIQA) -> None:
    query, options = "What is the most severe distortion?", {"A": "Blur", "B": "Noise", "C": "Blocking"}
    clean = iqa(image=_made("sharp"), query=query, options=options).quality_reasoning
    assert "Not clear, as none of these stands out." in clean
    assert "to speak of" not in clean
    blurred = iqa(image=_made("blurred"), query=query, options=options).quality_reasoning
    assert blurred.count("blur") == 1
    options = {"A": "Noise", "B": "Blur"}
    absent = iqa(image=_made("noisy"), query="Which distortion does not exist in this image?", options=options)
    assert absent.final_answer == "B"
    assert "Not clear" not in absent.quality_reasoning


@pytest.mark.parametrize(
    ("query", "letter", "words"),
    [
        ("Is it too dark?", "A", "The centre is slightly too dark."),
        ("Is the image blurry?", "B", "There is no blur to speak of."),
        ("Is the image sharp?", "A", "The sharpness is high."),
    ],
)
def test_the_reason_supports_the_answer(iqa: AgenticIQA, query: str, letter: str, words: str) -> None:
    """A dark picture may be exposed about right in the mean, and a photograph of little detail without blur."""
    result = iqa(image=(PHOTOGRAPH * 0.6).astype(np.uint8), query=query, options={"A": "Yes", "B": "No"})
    assert result.final_answer == letter
    assert words in result.quality_reasoning


@pytest.mark.parametrize(
    ("query", "words"),
    [("Is it noisy?", "At most, slight noise roughens"), ("有噪声吗？", "至多全图轻微噪声。")],
)
def test_a_slight_fault_that_the_answer_denies_is_the_most_there_is(query: str, words: str) -> None:
    street = _made("sharp")
    noise = np.random.default_rng(0).normal(0, 5, street.shape)
    view = Viewer().view(dspy.Image(IMAGES.add(_uint8(street + noise)).url))
    choice = answer_choice(view, query, {"A": "Yes", "B": "No"})
    denied = choice._replace(letter="B")
    assert words in choice_reason(denied, {"A": "Yes", "B": "No"}, query, phrases_for(query), 3.0)


@pytest.mark.parametrize(
    ("made", "query", "start"),
    [
        ("noisy", "Is it noisy?", "Yes."), ("noisy", "How noisy is it?", "There is severe noise."),
        ("blurred", "Is it out of focus?", "Yes."), ("blurred", "Is there motion blur?", "No."),
        ("dark", "Is the bottom too dark?", "Yes."), ("noisy", "Why is this only fair?", "Against the reference"),
    ],
)  # fmt: skip
def test_answers_beside_a_reference_agree_with_what_was_found(
    iqa: AgenticIQA, made: str, query: str, start: str
) -> None:
    """Beside a reference a distortion has no photographer's name."""
    assert iqa(image=_made(made), reference=PHOTOGRAPH, query=query).final_answer.startswith(start)


@pytest.mark.parametrize("reference", [None, PHOTOGRAPH])
def test_every_property_is_answered_with_and_without_a_reference(iqa: AgenticIQA, reference: Pixels | None) -> None:
    words = (
        "sharp", "blurry", "bright", "well lit", "vivid", "natural", "warm", "beautiful", "good", "noisy", "hazy",
        "pixelated", "unevenly lit", "underexposed", "distorted", "in motion", "too colourful", "low in contrast",
    )  # fmt: skip
    for word in words:
        result = iqa(image=_made("dark"), reference=reference, query=f"Is it {word}?", options={"A": "Yes", "B": "No"})
        assert (result.status, result.final_answer in {"A", "B"}) == ("ok", True), word


def test_a_part_is_judged_by_itself(iqa: AgenticIQA) -> None:
    dark = _uint8(1.4 * PHOTOGRAPH.astype(float))
    dark[200:] //= 6
    for query, letter in (("Is the top too dark?", "B"), ("Is the bottom too dark?", "A")):
        result = iqa(image=dark, query=query, options={"A": "Yes", "B": "No"})
        assert result.final_answer == letter
        assert ("too dark" in result.quality_reasoning) == (letter == "A"), result.quality_reasoning


_AGAINST = {
    ("Yes", "exposure"): "exposure is too",
    ("Yes", "bright"): r"\blow|too dark|rather dark",
    ("Yes", "dark"): r"high|right\b|(rather|too) bright",
    ("Yes", "property"): r"\blow",
    ("Yes", "fault"): "to speak of",
    ("No", "exposure"): "about right",
    ("No", "bright"): "high|about right|rather bright",
    ("No", "dark"): r"\blow|is too dark|rather dark",
    ("No", "property"): "high",
    ("No", "fault"): "high|Strong noise",
}
"""What a reason must not say beside yes or no, by what is asked after."""


@pytest.mark.parametrize(
    ("kind", "queries"),
    [
        ("exposure", ("Is the exposure good?", "Is it well exposed?", "Is the lighting good?")),
        ("bright", ("Is it bright?", "Is it bright enough?", "Is there enough light?")),
        ("dark", ("Is it dark?", "Is it too dark?", "Is it underexposed?")),
        ("property", ("Is it sharp?", "Is the contrast good?", "Are the colours vivid?", "Are the colours natural?",
                      "Are the colours accurate?")),
        ("fault", ("Is it noisy?", "Is there motion blur?", "Is it out of focus?", "Is it compressed?",
                   "Is there a colour cast?", "Is it oversharpened?", "Is it oversaturated?")),
    ],
)  # fmt: skip
def test_no_reason_speaks_against_its_answer(iqa: AgenticIQA, kind: str, queries: tuple[str, ...]) -> None:
    p = PHOTOGRAPH.astype(float)
    images = [_uint8(made) for made in (p, 0.35 * p, 0.6 * p, 1.5 * p, 0.4 * p + 140, p * [1.2, 1, 0.7])]
    images += [as_jpeg(PHOTOGRAPH, 12), _grey(PHOTOGRAPH, 0.4), _uint8(ndimage.gaussian_filter(p, (0, 6, 0)))]
    kept = [IMAGES.add(image) for image in images]
    sure = 0
    for query in queries:
        for image in kept:
            result = iqa(image=image, query=query, options={"A": "Yes", "B": "No"})
            said = {"A": "Yes", "B": "No"}[result.final_answer]
            if "close call" not in (reason := result.quality_reasoning):
                assert not re.search(_AGAINST[said, kind], reason), (query, reason)
                sure += 1
    assert sure > len(queries)


def test_which_is_not_there_is_asked_in_capitals_too(iqa: AgenticIQA) -> None:
    options = {"A": "Blur", "B": "Noise", "C": "Compression"}
    said = [
        iqa(image=_made("blurred"), query=query, options=options).quality_reasoning
        for query in ("Which is not present?", "Which is NOT present?")
    ]
    assert said[0] == said[1]


def test_taste_among_faults_is_explained_by_what_was_found(iqa: AgenticIQA) -> None:
    options, dark = {"A": "Motion blur", "B": "Defocus", "C": "Beauty"}, _uint8(0.75 * PHOTOGRAPH.astype(float))
    said = iqa(image=dark, reference=PHOTOGRAPH, query="What is the main problem?", options=options)
    assert said.final_answer == "C"
    assert "brightness change" in said.quality_reasoning


@pytest.mark.parametrize(
    ("query", "start"),
    [
        ("Is this image blurry?", "Yes."),
        ("Is this image clear?", "No."),
        ("How is the sharpness of this image?", "The sharpness is very low."),
        ("How strong is the noise?", "There is no noise."),
        ("How is the exposure?", "The exposure is"),
        ("How good is this photo?", "The overall quality is"),
        ("Is it sharp or blurry?", "The sharpness is very low."),
        ("Would you keep this picture?", "Probably not."),
        ("Where is the image blurry?", "It is "),
        ("图片清晰吗？", "否。"),
        ("Describe this image.", "Defocus blur"),
    ],
)
def test_open_questions_are_answered_first(query: str, start: str) -> None:
    image = dspy.Image(IMAGES.add(_made("blurred")).url)
    assert answer(ExplainQuality.output_fields, {"image": image, "query": query})["final_answer"].startswith(start)


def test_positions_follow_the_population_file() -> None:
    known = population()
    assert set(known) == {*PROPERTIES, *(f"sum of {name}" for name in COMPOSITES)}
    assert all(list(values) == sorted(values) for values in known.values())
    assert position(_view("dark"), "brightness") < 0.1 < position(_view("plain"), "brightness")
    assert position(_view("blurred"), "sharpness") < 0.15 < position(_view("sharp"), "sharpness")


@pytest.mark.parametrize(
    ("query", "good", "bad"),
    [
        ("Is this a good photo?", "A", "B"),
        ("Would you keep this picture?", "A", "B"),
        ("Is it a low-quality image?", "B", "A"),
    ],
)
def test_a_question_for_a_judgement_gets_yes_or_no(iqa: AgenticIQA, query: str, good: str, bad: str) -> None:
    for made, letter in (("sharp", good), ("defocused", bad)):
        result = iqa(image=_made(made), query=query, options={"A": "Yes", "B": "No"})
        assert result.final_answer == letter
        assert "guess" not in result.quality_reasoning
    assert str(iqa(image=_made("defocused"), query="Is this a good photo?").final_answer).startswith("No")


def test_the_main_problem_of_a_region_and_a_question_about_it_agree(iqa: AgenticIQA) -> None:
    pixels = _made("left blurred")
    boxes = {"sign": [0.0, 0.0, 0.5, 1.0]}
    problems = {"A": "Noise", "B": "Blur", "C": "Overexposure"}
    main = iqa(image=pixels, query="What is the main problem of the sign?", options=problems, regions=boxes)
    sharp = iqa(image=pixels, query="Is the sign sharp?", options={"A": "Yes", "B": "No"}, regions=boxes)
    assert (main.final_answer, sharp.final_answer) == ("B", "B")
