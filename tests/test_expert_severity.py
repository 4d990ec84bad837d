"""How strong a distortion is said to be: traces of a change, two judges weighed, and figures that measure it."""

import io
from copy import copy
from pathlib import Path

import dspy
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage, stats
from skimage import data as photographs

from program import AgenticIQA
from program.expert.answer.findings import ENGLISH, findings, present, reported_categories, severity_word
from program.expert.engine import answer
from program.expert.judge.views import Viewer
from program.expert.measure.differences import DIFFERENCE_NAMES, reference_differences
from program.expert.measure.features import measure
from program.expert.measure.naturalness import halve
from program.expert.store import MODEL_FILE
from program.images.store import IMAGES, ImageRef
from signatures.summarizer import ExplainQuality
from tests.pictures import file_of, noisy

Pixels = NDArray[np.uint8]


def _url(pixels: Pixels) -> str:
    return IMAGES.add(file_of(pixels)).url


@pytest.fixture(scope="module")
def photograph() -> Pixels:
    return np.asarray(photographs.chelsea()[:240, :320])


def _luma(pixels: Pixels) -> NDArray[np.float64]:
    return np.asarray(halve((pixels @ np.array([0.299, 0.587, 0.114])).astype(np.float32)), dtype=np.float64)


def _window(plane: NDArray[np.float64]) -> NDArray[np.float64]:
    taps = np.exp(-0.5 * (np.arange(-3, 4) / (7 / 6)) ** 2)
    return np.asarray(ndimage.convolve(plane, np.outer(taps, taps) / taps.sum() ** 2, mode="nearest"))


def test_traces_match_direct_formulas(photograph: Pixels) -> None:
    changed = noisy(photograph, 12)
    changed[60:120, 40:200] //= 2
    found = reference_differences(changed, photograph)[0]
    one, two = _luma(photograph), _luma(changed)
    residual = two - one - (two - one).mean()
    fine = residual - _window(residual)
    kurtosis = stats.kurtosis(np.r_[fine.ravel(), -fine.ravel()], fisher=False)
    assert np.expm1(found["residual_peaks"]) == pytest.approx(kurtosis, rel=0.01)
    sideways = (fine[:, 1:] * fine[:, :-1]).mean() / (fine.var() + 1)
    assert found["residual_across"] == pytest.approx(sideways, abs=0.01)
    size = np.abs(fine).ravel()
    assert found["residual_in_light"] == pytest.approx(np.corrcoef(size, one.ravel())[0, 1], abs=0.01)

    power1, power2 = (_window((plane - _window(plane)) ** 2) for plane in (one, two))
    texture = np.log((power2 + 5) / (power1 + 5))
    assert found["texture_gain"] == pytest.approx(texture.mean(), abs=1e-3)
    assert found["texture_change"] == pytest.approx(np.abs(texture).mean(), abs=1e-3)

    fine1, fine2 = one - _window(one), two - _window(two)
    slope = np.vdot(fine1, fine2) / np.vdot(fine1, fine1)
    assert found["transfer1"] == pytest.approx(slope - 1, abs=0.01)
    shared = np.vdot(fine1, fine2) ** 2 / (np.vdot(fine1, fine1) * np.vdot(fine2, fine2))
    assert found["incoherence1"] == pytest.approx(1 - shared, abs=0.01)
    assert found["changed"] == (changed != photograph).any(axis=2).mean()
    assert found["changed_channels"] == pytest.approx((changed != photograph).mean())


def test_transfer_tells_the_blur_and_the_saturation_whatever_is_shown() -> None:
    shown = [np.asarray(image[:256, :256]) for image in (photographs.chelsea(), photographs.coffee())]
    for sigma in (1.0, 2.0):
        blurred = [np.asarray(ndimage.gaussian_filter(image, (sigma, sigma, 0))) for image in shown]
        found = [reference_differences(*pair)[0] for pair in zip(blurred, shown, strict=True)]
        assert found[0]["transfer1"] == pytest.approx(found[1]["transfer1"], abs=0.12)
        assert all(one["incoherence2"] < 0.15 for one in found)
    for share in (0.3, 0.6):
        for image in shown:
            grey = image.mean(axis=2, keepdims=True)
            found_one = reference_differences(
                np.asarray(np.round(grey + share * (image - grey)), dtype=np.uint8), image
            )[0]
            assert found_one["saturation_transfer"] == pytest.approx(share - 1, abs=0.08)
    red, blue = (np.full((32, 32, 3), colour, dtype=np.uint8) for colour in ((200, 120, 120), (120, 120, 200)))
    along, across = (np.array([[0.30, 0.04, -0.35], [0.34, -0.60, 0.17]]) @ image[0, 0] for image in (red, blue))
    turn = (along[0] * across[1] - along[1] * across[0]) / (along @ along + 4)
    assert reference_differences(blue, red)[0]["hue_turn"] == pytest.approx(turn, abs=1e-3)
    swept = [reference_differences(np.asarray(ndimage.uniform_filter1d(image, 9, axis=1)), image)[0] for image in shown]
    assert all(one["transfer_across1"] < one["transfer_down1"] - 0.1 for one in swept)


def test_traces_tell_kinds_of_change_apart(photograph: Pixels) -> None:
    noise = reference_differences(noisy(photograph, 12), photograph)[0]
    speckled = photograph.copy()
    speckled[::9, ::7] = 255
    buffer = io.BytesIO()
    Image.fromarray(photograph).save(buffer, "JPEG", quality=12)
    jpeg = np.asarray(Image.open(buffer).convert("RGB"))
    assert reference_differences(speckled, photograph)[0]["residual_peaks"] > noise["residual_peaks"] + 1
    assert reference_differences(jpeg, photograph)[0]["residual_on_edges"] > noise["residual_on_edges"] + 0.2
    assert noise["texture_gain"] > 0.2 > 0 > reference_differences(jpeg, photograph)[0]["texture_p10"]
    alike = reference_differences(photograph, photograph)[0]
    assert max(abs(alike[name]) for name in DIFFERENCE_NAMES) < 1e-3


@pytest.mark.parametrize("paired", [False, True])
def test_more_noise_is_more_severe(photograph: Pixels, paired: bool) -> None:
    viewer, words = Viewer(), []
    for sigma in (0.0, 6.0, 14.0, 60.0):
        view = viewer.view(_url(noisy(photograph, sigma)), _url(photograph) if paired else None)
        words.append(view.severities["Noise"])
        for finding in findings(view, "", present(view), ENGLISH):
            assert finding["severity"] != "none"
            assert not paired or finding["severity"] == severity_word(view.severities[finding["type"]])
    assert words == sorted(words)
    assert severity_word(words[0]) in {"none", "slight"}
    assert severity_word(words[-1]) in {"severe", "extreme"}


def test_what_has_no_word_is_not_reported(photograph: Pixels) -> None:
    assert not reported_categories(np.full(7, 0.3), paired=False).any()
    assert reported_categories(np.full(7, 1.5), paired=True).all()
    view = Viewer().view(_url(noisy(photograph, 25)), _url(photograph))
    assert present(view)[0] == "Noise"
    quiet = copy(view)
    quiet.severities = {**view.severities, "Noise": 0.2}
    assert "Noise" not in present(quiet)


def test_a_region_is_measured_as_an_image_of_its_own_and_told_apart() -> None:
    sharp = np.asarray(photographs.coffee()[:240, :400])
    half = sharp.copy()
    half[:, :200] = ndimage.gaussian_filter(sharp, (4, 4, 0))[:, :200]
    whole = IMAGES.add(half)
    boxes = {"cup": (0.0, 0.0, 200.0, 240.0), "table": (200.0, 0.0, 400.0, 240.0)}
    crops = {name: dspy.Image(IMAGES.crop(whole, box).url) for name, box in boxes.items()}
    seen = {name: Viewer().view(crop) for name, crop in crops.items()}
    assert (seen["cup"].measured.vector == np.array([*measure(half[:, :200])[0].values()])).all()
    assert seen["cup"].severities["Blurs"] > 1.5 > 0.8 > seen["table"].severities["Blurs"]

    def told(query: str) -> str:
        named = [crop for name, crop in crops.items() if name in query]
        inputs = {"image": named[0] if named else dspy.Image(whole.url), "query": query, "region_crops": crops}
        return str(answer(ExplainQuality.output_fields, inputs)["final_answer"])

    assert 'Region "cup": defocus blur softens all of it.' in told("What is wrong with the picture?")
    assert "blur" not in told("What is wrong with the picture?").split('Region "table"')[1]
    assert told("Is the cup blurry?").startswith(("Yes", "Probably yes"))
    assert told("Is the table blurry?").startswith(("No", "Probably not"))
    assert "subject" not in told("Is the table sharp?")
    assert "区域“cup”：整个区域失焦模糊" in told("这张图片有什么问题？")


@pytest.fixture(scope="module")
def iqa() -> AgenticIQA:
    return AgenticIQA()


@pytest.fixture(scope="module")
def halves() -> ImageRef:
    """A photograph whose left half is blurred."""
    pixels = np.asarray(photographs.coffee()[:400, :600]).copy()
    pixels[:, :300] = ndimage.gaussian_filter(pixels[:, :300], (4, 4, 0))
    return IMAGES.add(pixels)


@pytest.mark.parametrize("options", [["cup", "table"], ["table", "cup"]])
@pytest.mark.parametrize(
    ("query", "chosen", "reason"),
    [
        ("Which part is sharper?", "table", 'Region "cup": strong defocus blur softens all of it.'),
        ("Which region is less sharp?", "cup", "Strong defocus blur softens all of it."),
        ("Which has the least blur?", "table", "The sharpness is very high"),
        ("Which is better?", "table", 'Region "cup": strong defocus blur'),
        ("Which looks worst?", "cup", "Strong defocus blur softens all of it."),
        ("Which has the worst blur?", "cup", 'Region "table": the sharpness is very high'),
        ("Which has low quality?", "cup", "Strong defocus blur softens all of it."),
        ("Which is sharper and less noisy?", "table", "The sharpness is very high"),
        ("Which is not as sharp as the other?", "cup", "Strong defocus blur softens all of it."),
        ("哪个区域更清晰？", "table", "区域“cup”：整个区域严重失焦模糊"),
        ("哪个清晰度较低？", "cup", "整个区域严重失焦模糊"),
    ],
)
def test_of_regions_the_one_is_chosen_that_the_question_asks_for(iqa, halves, query, chosen, reason, options) -> None:
    regions = {"cup": (0, 0, 300, 400), "table": (300, 0, 600, 400)}
    result = iqa(image=halves, query=query, options=options, regions=regions)
    assert result.option == chosen
    assert reason in result.summary


def test_the_notice_names_the_weights_that_ship() -> None:
    assert MODEL_FILE in (Path(__file__).parents[1] / "NOTICE").read_text("utf-8")
