"""What people read of an assessment by the embedded expert: one set of findings in every view, regions and maps."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter
from scipy import ndimage
from skimage import data as photographs

from data.distortions import distort, generator_for
from program import AgenticIQA, assess
from program.agent.assessment import Assessment
from program.agent.comparison import compare_images
from program.common.errors import ImageError, InputError
from program.common.request import Request
from program.fusion.scores import score_line
from program.images.store import IMAGES
from program.running.row import Row, side_of_minimum
from signatures.schemas import LEVEL_WORDS
from tests.pictures import noisy
from tests.tables import read_csv

INTERNAL = re.compile(
    r"Global|Blurs|Overall \(|level [A-E]\b|Contradict|Planning again|deviation|belief|first call|-0 ?%|fuses|\d\.\d\d"
)
NOISY = noisy(photographs.astronaut()[:288, :288], 25, seed=0)


@pytest.fixture(scope="module")
def iqa() -> AgenticIQA:
    return AgenticIQA()


def _halves() -> tuple[np.ndarray, dict[str, tuple[float, float, float, float]]]:
    """Return a photograph whose left half is blurred, and its halves."""
    pixels = np.array(photographs.coffee()[:192, :256])
    pixels[:, :128] = ndimage.gaussian_filter(pixels, (4, 4, 0))[:, :128]
    return pixels, {"cup": (0, 0, 128, 192), "table": (128, 0, 256, 192)}


@pytest.mark.parametrize(
    "query",
    ["Rate the quality.", "Is it noisy?", "Is it sharp?", "Describe the quality.", "请评分。", "图片有噪声吗？"],
)
def test_every_view_says_the_same(iqa: AgenticIQA, query: str) -> None:
    result: Assessment = iqa(image=NOISY, query=query)
    words, row = str(result), Row.of(Request(id="a"), result)
    assert not INTERNAL.search(words), words
    assert len(words.split()) <= 60
    assert row.score == result.quality_score
    assert row.level == result.level == "EDCBA"[round(result.quality_score) - 1]
    findings = [f for f in result.state.executor_evidence.distortion_analysis["Global"] if f.severity != "none"]
    strongest = {f.type: f.severity for f in reversed(findings)}
    assert {f"{name}: {severity}" for name, severity in strongest.items()} == set(row.distortions.split("; "))
    noise = next(f for f in findings if f.type == "Noise")
    if "noisy" in query:
        assert words.startswith("Slightly." if noise.severity == "slight" else "Yes.")
    if query.isascii() and "?" not in query:
        assert "noise" in words.lower()
        assert LEVEL_WORDS[round(result.quality_score) - 1] in words.lower()


def test_a_question_has_the_score_of_a_rating(iqa: AgenticIQA) -> None:
    rated, asked = (iqa(image=NOISY, query=query) for query in ("Rate the quality.", "Is it noisy?"))
    assert asked.quality_score == pytest.approx(rated.quality_score, abs=0.05)
    assert asked.rating is None
    assert score_line(3.25, (2.0, 4.5)) == "Fair (3.2 of 5, likely 2.0 to 4.5)"


def test_a_region_is_rated_by_its_own_pixels(iqa: AgenticIQA) -> None:
    pixels, regions = _halves()
    scores = {n: iqa(image=pixels, query=f"Rate the {n.title()}.", regions=regions).quality_score for n in regions}
    assert scores["cup"] < scores["table"] - 0.8
    sharp = photographs.coffee()[:192, :256]
    beside = {n: iqa(image=pixels, reference=sharp, query=f"Rate the {n}.", regions=regions) for n in regions}
    assert beside["cup"].quality_score < beside["table"].quality_score - 0.8
    assert re.search(r'Region "cup": \w+ (\w+ )?blur', str(iqa(image=pixels, regions=regions)))


def test_the_map_shows_where_quality_is_lost(iqa: AgenticIQA) -> None:
    pixels, _ = _halves()
    red = np.asarray(iqa.heatmap(pixels)).astype(float)
    assert red.shape == pixels.shape
    loss = red[..., 0] - red[..., 1]
    assert loss[:, :128].mean() > loss[:, 128:].mean() + 20
    assert np.asarray(iqa.heatmap(pixels[:50, :50])).shape == (50, 50, 3)  # too small for tiles


def test_the_map_of_one_distortion_shows_that_alone(iqa: AgenticIQA) -> None:
    pixels, _ = _halves()
    lost = {}
    for kind in ("blur", "noise"):
        red = np.asarray(iqa.heatmap(pixels, distortion=kind)).astype(float)
        lost[kind] = (red[..., 0] - red[..., 1])[:, :128].mean()
    assert lost["blur"] > lost["noise"] + 20
    with pytest.raises(InputError, match="'taste': unknown; name one of blur"):
        iqa.heatmap(pixels, distortion="taste")


def test_region_and_heatmap_from_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels, _ = _halves()
    Image.fromarray(pixels).save(tmp_path / "a.png")
    asked = [str(tmp_path / "a.png"), "--query", "Rate the cup", "--region", "cup=0,0,128,192"]
    assert assess.main([*asked, "--heatmap", str(tmp_path / "new" / "map.png")]) == 0
    assert capsys.readouterr().out.startswith(("Bad", "Poor"))
    with Image.open(tmp_path / "new" / "map.png") as written:
        assert written.size == (256, 192)
    assert assess.main([*asked, "--heatmap", str(tmp_path / "noise.png"), "--heatmap-of", "noise"]) == 0
    assert (tmp_path / "noise.png").read_bytes() != (tmp_path / "new" / "map.png").read_bytes()
    capsys.readouterr()
    assert assess.main([*asked, "--heatmap-of", "blur"]) == 2
    assert "--heatmap" in capsys.readouterr().err
    assert assess.main([*asked, "--heatmap", str(tmp_path / "map.nothing")]) == 2
    assert "map.nothing" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        assess.main([str(tmp_path / "a.png"), "--region", "cup=0,0,192"])
    assert "left, top, right, bottom" in capsys.readouterr().err


def test_a_gate_may_be_not_sure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = Row(id="a", status="ok", score=3.0, low=2.02, high=3.98)  # deviation .5
    assert [side_of_minimum(row, m, 0.9) for m in (2.3, 2.4, 3.6, 3.7)] == ["above", "not sure", "not sure", "below"]
    assert [side_of_minimum(row, m) for m in (2.9, 3.1)] == ["above", "below"]
    Image.fromarray(NOISY).save(tmp_path / "a.png")
    image = str(tmp_path / "a.png")
    assert assess.main([image, "--out", str(tmp_path / "t.csv")]) == 0
    assert re.search(r"noise: (slight|moderate|strong)", capsys.readouterr().out)
    score = float(read_csv(tmp_path / "t.csv")[0]["score"])
    near = f"{max(1.0, score - 0.1):.3f}"
    assert assess.main([image, "--min-score", near, "--sure", "0.9"]) == 4
    assert assess.main([image, image, "--min-score", "5", "--sure", "0.9"]) == 3
    assert assess.main([image, "--sure", "0.9"]) == 2
    assert "--min-score" in capsys.readouterr().err


def test_a_score_at_the_minimum_passes_the_gate() -> None:
    assert side_of_minimum(Row(id="a", status="ok", score=3.0), 3.0) == "above"


def test_a_score_near_an_end_of_the_scale_is_no_surer_than_its_longer_side() -> None:
    top = Row(id="a", status="ok", score=4.8, low=3.8, high=5.0)  # the scale cuts the upper end
    bottom = Row(id="a", status="ok", score=1.2, low=1.0, high=2.2)
    assert [side_of_minimum(top, m, 0.9) for m in (4.0, 4.4)] == ["above", "not sure"]
    assert [side_of_minimum(bottom, m, 0.9) for m in (1.6, 2.0)] == ["not sure", "below"]


def test_a_notebook_shows_picture_map_answer_and_escaped_words(iqa: AgenticIQA) -> None:
    pixels, boxes = _halves()
    result = iqa(image=pixels, regions={"<i>cup</i>": boxes["cup"]})
    text = result._repr_html_()
    assert text.count("<img") == text.count('src="data:image/jpeg;base64,') == 2
    assert str(result).splitlines()[0] in text
    assert "<i>" not in text
    assert "&lt;i&gt;cup" in text
    assert not re.search(r"<script|http|url\(", text)
    np.testing.assert_array_equal(np.asarray(result.heatmap()), np.asarray(iqa.heatmap(pixels)))
    read = Assessment.model_validate_json(result.model_dump_json())
    assert "<img" not in read._repr_html_()
    with pytest.raises(ImageError, match="not part of this record"):
        read.heatmap()


def test_pictures_of_different_things_are_told_so(iqa: AgenticIQA) -> None:
    cup, person = np.array(photographs.coffee()[:288, :288]), NOISY
    assert "seems to show something else" in " ".join(iqa(image=cup, reference=person).notes)
    assert iqa(image=person, reference=photographs.astronaut()[:288, :288]).notes == []
    results = [compare_images(iqa, IMAGES.add(person), IMAGES.add(other)) for other in (cup, cup[::-1])]
    assert all("different things" in result.reasons[-1] for result in results)
    same = compare_images(iqa, IMAGES.add(person), IMAGES.add(photographs.astronaut()[:288, :288]))
    assert "different things" not in " ".join(same.reasons)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("Rate the Left-Side, please", "left side"), ("How good is region1?", "Region 1"),
        ("Rate the dog's face.", "dog face"), ("Are the cups sharp?", "cup"), ("请给杯子打分", "杯子"),
    ],
)  # fmt: skip
def test_a_region_is_known_however_its_name_is_typed(iqa: AgenticIQA, query: str, name: str) -> None:
    pixels, boxes = _halves()
    result = iqa(image=pixels, query=query, regions={name: boxes["cup"]})
    assert result.state.plan.query_scope == [name]
    assert result.quality_score < iqa(image=pixels, query=query, regions={name: boxes["table"]}).quality_score - 0.5


def test_a_difference_from_the_reference_is_never_called_invisible(iqa: AgenticIQA) -> None:
    cup = np.ascontiguousarray(photographs.coffee()[:192, :256])
    assert iqa(image=cup, reference=cup).summary == "Nothing is distorted: every pixel is the reference's."
    for distortion in ("quantization", "jitter", "pixelate", "color_block", "white_noise"):
        for level in (2, 4):
            changed = distort(cup, distortion, level, generator_for("cup", distortion, level))
            judged = iqa(image=changed, reference=cup)
            assert ("No visible difference" in judged.summary) == (judged.quality_score > 4.1), judged.summary
            if distortion == "white_noise":
                assert "noise" in judged.summary
            elif level == 4:
                assert "change of content" in judged.summary


def _shifted(right: int, down: int, of=photographs.coffee) -> tuple[np.ndarray, np.ndarray]:
    """Return a photograph that lies so many pixels to the right and below its reference, and that."""
    whole = np.ascontiguousarray(of()[:260, :320])
    rows, columns = (slice(40 - by, size - 40 - by) for by, size in ((down, 260), (right, 320)))
    return np.ascontiguousarray(whole[rows, columns]), np.ascontiguousarray(whole[40:-40, 40:-40])


@pytest.mark.spec("047/a-shift-is-measured-and-said")
@pytest.mark.parametrize(
    ("shift", "words"),
    [
        ((1, 0), "shifted by 1 px to the right against"), ((-3, 0), "shifted by 3 px to the left against"),
        ((0, -2), "shifted by 2 px up against"), ((5, 3), "shifted by 5 px to the right and 3 px down against"),
        ((0, 21), "shifted by 21 px down against"),
    ],
)  # fmt: skip
def test_a_shift_is_measured_and_said_instead_of_blur(shift, words):
    pixels, reference = _shifted(*shift)
    result = AgenticIQA()(pixels, reference=reference)
    assert f"{words} its reference" in result.summary
    assert result.state.evidence.shift == shift
    assert "blur" not in result.summary
    assert "Contradictory" not in result.quality_reasoning
    assert not [f.type for _, f in result.state.evidence.findings() if f.severity != "none"]
    assert result.rating < 3.5  # what is seen beside the reference differs all the same
    chinese = AgenticIQA()(pixels, "请评价图像质量", reference=reference)
    assert "像素" in chinese.summary


@pytest.mark.spec("047/a-shift-is-measured-and-said")
def test_what_else_happened_to_a_shifted_image_is_said_too():
    pixels, reference = _shifted(2, 0, photographs.astronaut)
    noise = np.random.default_rng(0).normal(0, 18, pixels.shape)
    noisy = np.clip(pixels + noise, 0, 255).astype(np.uint8)
    told = AgenticIQA()(noisy, reference=reference).summary
    assert "shifted by 2 px to the right" in told
    assert "noise" in told
    assert "blur" not in told
    dark = (pixels * 0.6).astype(np.uint8)
    told = AgenticIQA()(dark, reference=reference).summary
    assert "shifted by 2 px" in told
    assert "brightness" in told


@pytest.mark.spec("047/a-shift-is-measured-and-said")
def test_what_is_no_shift_is_not_called_one():
    pixels, reference = _shifted(0, 0)
    blurred = np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(2)))
    small = Image.fromarray(pixels).resize((120, 90), Image.Resampling.BILINEAR).resize(pixels.shape[1::-1])
    flat = np.full_like(pixels, 90)
    for image in (blurred, np.asarray(small), flat, np.ascontiguousarray(pixels[:, ::-1])):
        assert "shifted" not in AgenticIQA()(image, reference=reference).quality_reasoning
    assert "shifted" not in AgenticIQA()(pixels, reference=flat).quality_reasoning
