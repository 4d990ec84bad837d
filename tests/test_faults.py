"""What is wrong with a photograph, as a photographer says it: one set of findings for every view."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from scipy import ndimage
from skimage import data as photographs

from agentic_iqa import AgenticIQA
from benchmarks.reasons import Annotated, reason_figures
from benchmarks.reasons import main as count_reasons
from program.common.request import Request
from program.expert import belief
from program.expert.judge.faults import faults_to_name, tint_of, unsupported
from program.expert.judge.heads import OUTPUTS, load_heads
from program.expert.judge.views import Viewer
from program.expert.measure.signs import SIGN_NAMES, signs
from program.images.store import IMAGES
from program.running.row import Row
from signatures.schemas import FAULTS, DistortionFinding, category_of, fault_of

Pixels = NDArray[np.uint8]
CAT = np.ascontiguousarray(photographs.chelsea())


@pytest.fixture(scope="module")
def iqa() -> AgenticIQA:
    return AgenticIQA()


def _smeared(length: int) -> Pixels:
    return ndimage.uniform_filter1d(CAT, length, axis=1, mode="nearest")


def _page() -> Pixels:
    image = Image.new("RGB", (600, 800), (250, 249, 245))
    draw = ImageDraw.Draw(image)
    for line in range(30):
        draw.text((50, 40 + 24 * line), "a line of words that are read and not looked at " * 2, fill=(25, 25, 25))
    scanned = np.asarray(image) + np.random.default_rng(0).normal(0, 2, (800, 600, 1))
    return np.clip(scanned, 0, 255).astype(np.uint8)


@pytest.mark.spec("issue-49/faults")
def test_sentence_row_map_and_question_tell_of_the_same_fault(iqa: AgenticIQA) -> None:
    result = iqa(_smeared(25))
    row = Row.of(Request(id="a"), result)
    assert result.faults[0][0] == row.fault_1 == "motion blur"
    assert row.strength_1 in {"moderate", "strong"}
    assert "motion blur" in result.summary.lower().split(";")[0]
    assert (row.kind, row.subject_sharp) == ("photograph", "no")
    types = [each.partition(":")[0] for each in str(row.distortions).split("; ")]
    assert len(types) == len(set(types))
    finding = result.state.evidence.findings()[0][1]
    assert (finding.type, finding.fault) == ("Blurs", "motion blur")
    assert str(iqa(_smeared(25), "Is there motion blur?").final_answer).startswith("Yes")
    red = np.asarray(result.heatmap("motion blur"), dtype=float)
    assert (red[..., 0] - red[..., 1]).mean() > 20


@pytest.mark.spec("issue-49/faults")
def test_a_clean_photograph_has_no_fault_and_no_blemish(iqa: AgenticIQA) -> None:
    result = iqa(CAT)
    assert result.summary.startswith("Sharp, well exposed")
    assert result.faults == []
    assert (Row.of(Request(id="a"), result).subject_sharp, result.state.evidence.findings()) == ("yes", [])


@pytest.mark.spec("issue-49/kinds")
def test_what_is_no_photograph_is_not_judged_as_one(iqa: AgenticIQA) -> None:
    page, photograph = iqa(_page()), iqa(CAT)
    assert page.state.kind == "document"
    assert page.faults == []
    assert page.summary.startswith("A document, not judged as a photograph.")
    assert page.not_judged == "document"
    wide, usual = (np.ptp(result.score_interval) for result in (page, photograph))
    assert wide > 1.3 * usual
    view = iqa.resources.viewer.view(page.images[0])  # people scored photographs: nothing is known of the rest
    assert belief(view).novelty == 1 > view.prior.novelty


@pytest.mark.spec("issue-71/not-judged")
def test_sand_under_the_sky_is_a_photograph_and_tinted_paper_a_document(iqa: AgenticIQA) -> None:
    sand = np.tile(np.array([150.0, 180.0, 220.0]), (512, 512, 1))
    grains = np.random.default_rng(1).normal(0, 60, (192, 512, 1))
    sand[320:] = np.clip(np.array([215, 170, 115]) + grains, 0, 255)
    assert iqa(np.rint(sand).astype(np.uint8)).not_judged is None
    cream = np.asarray(_page()) * np.array([1.0, 0.96, 0.86])
    assert iqa(np.rint(cream).astype(np.uint8)).not_judged == "document"


@pytest.mark.spec("issue-71/advice")
def test_a_subject_that_is_not_sharp_comes_with_what_to_do(iqa: AgenticIQA, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("program.expert.answer.findings.sharpness_of", lambda _: 0.1)
    assert str(iqa(CAT).advice).startswith("Focus on the subject and reshoot")
    blurred = str(iqa(_smeared(25)).advice)
    assert "faster shutter speed" in blurred
    assert "subject" not in blurred


@pytest.mark.spec("issue-49/faults")
def test_what_nobody_annotated_as_strong_can_be_strong(iqa: AgenticIQA, tmp_path: Path) -> None:
    Image.fromarray(CAT).save(tmp_path / "a.jpg", quality=6)
    assert iqa(tmp_path / "a.jpg").faults[0] == ("compression", "strong")


@pytest.mark.spec("issue-49/kinds")
def test_a_sharp_subject_before_an_even_backdrop_is_a_photograph(iqa: AgenticIQA) -> None:
    picture = np.repeat(np.linspace(90, 114, 480)[:, None, None] - np.array([0, 15, 40]), 640, axis=1)
    y, x = np.mgrid[:300, :451]
    inside = ((x - 225) / 200) ** 2 + ((y - 150) / 130) ** 2 < 1
    behind = picture[180:, 94:545]
    behind += ndimage.gaussian_filter(inside.astype(float), 6)[..., None] * (CAT - behind)
    assert iqa(np.rint(picture).astype(np.uint8)).state.kind == "photograph"


@pytest.mark.spec("issue-49/content")
def test_objects_are_not_answered_for(iqa: AgenticIQA) -> None:
    assert "knows no objects" in str(iqa(CAT, "Is there a dog?").final_answer)


def test_highlights_are_blown_and_shadows_crushed_only_where_pixels_clip(iqa: AgenticIQA) -> None:
    bright, dark = 130 + CAT * 0.45, 20 + CAT * 0.15
    for picture in (bright, dark):
        faults = {fault for fault, _ in iqa(np.rint(picture).astype(np.uint8)).faults}
        assert not faults & {"blown highlights", "crushed shadows"}


def _sharpened(amount: float) -> Pixels:
    soft = ndimage.gaussian_filter(CAT.astype(float), (1.5, 1.5, 0))
    return np.clip(np.rint(soft + amount * (CAT - soft)), 0, 255).astype(np.uint8)


def _patched(side: int, value: int, ground: Pixels) -> Pixels:
    patched = ground.copy()
    patched[:side, :side] = value
    return patched


@pytest.mark.parametrize(
    ("fault", "less", "more"),
    [
        ("crushed shadows", _patched(100, 0, CAT // 2 + 70), _patched(220, 0, CAT // 2 + 70)),
        ("blown highlights", _patched(26, 255, CAT // 2), _patched(80, 255, CAT // 2)),
        ("oversharpened", _sharpened(0.0), _sharpened(4.0)),
    ],
)
def test_a_fault_needs_enough_of_what_shows_it(fault: str, less: Pixels, more: Pixels) -> None:
    is_barred = [fault in unsupported(Viewer().view(IMAGES.add(pixels))) for pixels in (less, more)]
    assert is_barred == [True, False]


def test_contrast_is_not_low_where_lights_clip(iqa: AgenticIQA) -> None:
    flat = np.rint(110 + CAT * 0.25).astype(np.uint8)
    assert "low contrast" in dict(iqa(flat).faults)
    flat[:12] = 255
    assert "low contrast" not in dict(iqa(flat).faults)


def test_texture_hides_noise_unless_flat_parts_have_as_much() -> None:
    rng = np.random.default_rng(0)
    gravel = np.full((300, 480, 3), 128.0)
    gravel[:, 160:] = np.kron(rng.uniform(0, 255, (150, 160, 1)), np.ones((2, 2, 3)))
    for deviation, is_hidden in ((1, True), (30, False)):
        noisy = np.clip(gravel + rng.normal(0, deviation, gravel.shape), 0, 255).astype(np.uint8)
        assert ("noise" in unsupported(Viewer().view(IMAGES.add(noisy)))) is is_hidden


@pytest.mark.parametrize(("chroma", "is_cast"), [(0.15, False), (0.8, True)])
def test_light_is_tinted_by_each_estimate_of_its_colour(chroma: float, is_cast: bool) -> None:
    grey = CAT.mean(axis=2, keepdims=True) * 0.7
    tinted = np.clip(grey * np.exp(chroma * np.array([0.25, 0.0, -0.5])), 0, 255).astype(np.uint8)
    assert ("colour cast" not in unsupported(Viewer().view(IMAGES.add(tinted)))) is is_cast


@pytest.mark.parametrize(("axis", "way", "chinese"), [(1, "horizontally", "水平"), (0, "vertically", "垂直")])
def test_motion_blur_all_over_is_told_with_its_direction(iqa: AgenticIQA, axis: int, way: str, chinese: str) -> None:
    smeared = ndimage.uniform_filter1d(CAT, 25, axis=axis, mode="nearest")
    assert f"motion blur smears the whole picture {way}" in iqa(smeared).summary.lower()
    assert chinese in str(iqa(smeared, "请描述这张图片的质量。").final_answer)


def test_a_bright_picture_is_never_too_dark_and_a_dark_one_never_too_bright(iqa: AgenticIQA) -> None:
    white = np.full_like(CAT, 255)
    white[200:240, :60] = CAT[200:240, :60]
    white[120:160, 150:300] = 255 - CAT[120:160, 150:300] // 8
    for picture, wrong in ((white, "too dark"), (CAT // 3, "too bright")):
        assert wrong not in dict(iqa(picture).faults)


def test_light_of_two_colours_is_no_cast(iqa: AgenticIQA) -> None:
    side = np.linspace(0, 1, CAT.shape[1])[None, :, None]
    light = side * np.array([1.5, 0.2, 0.9]) + (1 - side) * np.array([0.1, 0.4, 1.5])
    lit = np.clip(CAT.mean(axis=2, keepdims=True) * light, 0, 255).astype(np.uint8)
    assert "colour cast" not in {fault for fault, _ in iqa(lit).faults}


def test_a_grey_picture_has_no_colours_to_be_wrong(iqa: AgenticIQA) -> None:
    grey = np.repeat(photographs.camera()[..., None], 3, axis=2)
    assert not {fault for fault, _ in iqa(grey).faults} & {"colour cast", "muted colours", "oversaturated"}


@pytest.mark.parametrize(
    ("gains", "tone"),
    [((0.45, 1, 1.15), "blue"), ((0.5, 0.7, 1.1), "blue"), ((0.6, 1.1, 0.6), "green"), ((1.1, 0.7, 0.35), "orange"),
     ((1.1, 0.5, 1.0), "magenta"), ((1.1, 0.95, 0.5), "yellow"), ((1, 1.05, 0.6), "green"),
     ((0.8, 0.75, 1.1), "magenta")],
)  # fmt: skip
def test_a_cast_has_the_colour_that_people_see(gains: tuple[float, float, float], tone: str) -> None:
    grey = CAT.mean(axis=2, keepdims=True)
    view = Viewer().view(IMAGES.add(np.clip(grey * gains, 0, 255).astype(np.uint8)))
    assert tint_of(view) == tone


def test_the_likeliest_worst_fault_comes_first_unless_another_one_is_strong() -> None:
    heads = load_heads()

    def named(noise: float, dark_is_worst: float) -> list[tuple[str, str]]:
        values = np.zeros(len(OUTPUTS))
        for output, value in {"noise": noise, "too dark": 0.9, "too dark worst": dark_is_worst}.items():
            values[OUTPUTS.index(output)] = value
        return [(each.fault, each.strength) for each in faults_to_name(heads, values)]

    assert named(1.5, 0.0) == [("noise", "moderate"), ("too dark", "slight")]
    assert named(1.5, 1.0) == [("too dark", "slight"), ("noise", "slight")]
    assert ("noise", "strong") in named(2.5, 1.0)


def test_signs_of_light_and_smear_are_what_they_say() -> None:
    measured = signs(CAT)[0]
    small = CAT[::2, ::2].astype(float)
    white = CAT.copy()
    white[:150, :150] = 255
    clipped, maps = signs(white)
    assert measured["chroma_mean"] == pytest.approx((small.max(2) - small.min(2))[::2, ::2].mean() / 255, abs=1e-4)
    assert clipped["white"] == pytest.approx((white[::2, ::2].min(2) >= 250).mean(), abs=1e-6)
    assert int(np.argmax(maps["white_at"])) == 0
    smeared = signs(_smeared(15))[0]
    assert smeared["all_apart"] > measured["all_apart"] + 0.3
    red = signs(np.clip(CAT * np.array([1.4, 1.0, 0.7]), 0, 255).astype(np.uint8))[0]
    assert red["shades_r"] > measured["shades_r"]
    assert red["shades_b"] < measured["shades_b"]


@pytest.mark.parametrize("pixels", [np.zeros((1, 1, 3)), np.full((5, 40, 3), 255), np.full((300, 20, 3), 128)])
def test_signs_are_finite_on_any_image(pixels: NDArray[np.float64]) -> None:
    found = signs(pixels.astype(np.uint8))[0]
    assert tuple(found) == SIGN_NAMES
    assert np.isfinite([*found.values()]).all()


@pytest.mark.spec("issue-49/faults")
def test_a_fault_is_told_where_it_is(iqa: AgenticIQA) -> None:
    white = CAT.copy()
    white[:100, -150:] = 255
    result = iqa(white)
    assert "blown highlights at the upper right" in result.summary.lower()
    assert "whole image" not in result._repr_html_()
    red = np.asarray(result.heatmap("blown highlights"), dtype=float)
    reddened = (red[..., 0] - red[..., 1])[[50, 50, 250], [380, 60, 60]]
    assert reddened[0] > 2 * max(reddened[1:])


def test_a_subject_that_is_not_sharp_is_told_where_no_blur_is_named(
    iqa: AgenticIQA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("program.expert.answer.findings.sharpness_of", lambda _: 0.1)
    assert iqa(CAT).summary == "The subject is not sharp."
    assert "subject" not in iqa(_smeared(25)).summary


def test_a_model_names_faults_in_the_same_words() -> None:
    assert [fault_of(fault) for fault in FAULTS] == list(FAULTS)
    told = {"type": "blur", "severity": "strong", "explanation": "Shaken.", "fault": "Camera shake"}
    assert DistortionFinding.model_validate(told).fault == "motion blur"
    assert DistortionFinding.model_validate({**told, "fault": None}).fault == ""


@pytest.mark.spec("issue-49/reasons")
def test_a_language_models_reasons_are_counted_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loopback: Callable[[], Any]
) -> None:
    server, line = loopback(), {"faults": [{"fault": fault, "strength": "strong"} for fault in FAULTS], "main": "noise"}
    for name, pixels in (("a.png", CAT), ("b.png", _smeared(25)), ("c.png", _page())):
        Image.fromarray(pixels).save(tmp_path / name)
    lines = [json.dumps({"id": name, "image": name, **line}) for name in ("a.png", "b.png", "c.png")]
    (tmp_path / "faults.jsonl").write_text("\n".join(lines), "utf-8")
    flags = ["--json", "--lm", "openai/x", "--api-base", server.base]
    assert count_reasons([str(tmp_path / "faults.jsonl"), *flags]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["right"]["right"] == figures["right"]["n"] >= 1
    assert any(all(fault in str(question.body) for fault in FAULTS) for question in server.asked)


def test_heads_are_a_line_and_gaussians_around_kept_pictures() -> None:
    heads, view = load_heads(), Viewer().view(IMAGES.add(CAT))
    z = np.clip((view.numbers - heads.centre) / heads.spread, -3, 3)
    kernel = [np.exp(-((z - kept) ** 2).sum() / heads.width) for kept in heads.kept]
    slow = heads.offset + view.features.points[0].astype(float) @ heads.lines + np.array(kernel) @ heads.weights
    assert heads.values(view.features.points.astype(float), view.numbers[None])[0] == pytest.approx(slow, abs=1e-9)
    assert heads.curves.shape == (3, 2, len(FAULTS))


def test_reasons_are_counted_as_the_table_says() -> None:
    strong = {"noise": "strong", "too dark": "slight"}
    pictures = [
        Annotated("a", Path("a"), strong, "noise"), Annotated("b", Path("b"), {}, None),
        Annotated("c", Path("c"), {"motion blur": "moderate"}, "motion blur"),
        Annotated("d", Path("d"), {"noise": "slight"}, "noise"),
    ]  # fmt: skip
    told = {"a": ["noise", "haze or flare"], "b": ["noise"], "c": [], "d": ["too dark"]}
    found = reason_figures(pictures, lambda picture: told[picture.id])
    counts = {name: (of["right"], of["n"]) for name, of in found.items()}
    assert counts == {"main": (1, 3), "found": (1, 2), "right": (1, 4), "clean": (1, 1), "silent": (1, 2)}
    assert found["main"]["constant"] == pytest.approx(2 / 3)


@pytest.mark.spec("issue-49/reasons")
def test_how_often_the_faults_are_named_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(_smeared(25)).save(tmp_path / "a.png")
    line = {
        "id": "a",
        "image": "a.png",
        "faults": [{"fault": "motion blur", "strength": "strong"}],
        "main": "motion blur",
    }
    (tmp_path / "faults.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
    assert count_reasons([str(tmp_path / "faults.jsonl")]) == 0
    told = capsys.readouterr().out
    assert "main fault named first" in told
    assert "1 of 1" in told
    (tmp_path / "faults.jsonl").write_text('{"id": "a"}\n', "utf-8")
    assert count_reasons([str(tmp_path / "faults.jsonl")]) == 2
    assert "line 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "category"),
    [
        ("slight haze", "Contrast"), ("slightly over-sharpened", "Sharpness"), ("slight", None),
        ("low light", "Brightness change"), ("clipped highlights", "Brightness change"),
        ("slight change of light", "Brightness change"),
    ],
)  # fmt: skip
def test_a_slight_fault_is_not_taken_for_one_of_light(words, category):
    assert category_of(words) == category
