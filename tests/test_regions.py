"""Regions, through the program's door: what is said of a part of a picture is one thing, whoever asks and however."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from skimage import data as photographs

from program import AgenticIQA, assess
from program.common.settings import load_settings
from tests.pictures import noisy

SIGN = {"sign": (100, 60, 320, 180)}
PROBLEM, SHARP, RATING = "What is the main problem of the sign?", "Is the sign sharp?", "Rate the quality of the sign."


@pytest.fixture(scope="module")
def iqa() -> AgenticIQA:
    return AgenticIQA()


def _blurred(pixels: np.ndarray) -> np.ndarray:
    return ndimage.gaussian_filter(pixels, (3, 3, 0))


def _burnt(pixels: np.ndarray) -> np.ndarray:
    return np.clip(pixels.astype(int) + 120, 0, 255).astype(np.uint8)


def _noisy(pixels: np.ndarray) -> np.ndarray:
    return noisy(pixels, 25, seed=1)


def _with_sign(damage=None) -> np.ndarray:
    """Return a photograph with a sign in it, black on white, perhaps damaged."""
    pixels = np.array(photographs.coffee()[:240, 200:600])
    page = Image.fromarray(photographs.page()).convert("RGB").resize((220, 120))
    pixels[60:180, 100:320] = np.asarray(page)
    if damage is not None:
        pixels[60:180, 100:320] = damage(pixels[60:180, 100:320])
    return pixels


def test_a_burnt_sign_is_a_part_of_a_photograph(iqa: AgenticIQA) -> None:
    pixels = _with_sign(_burnt)
    rated = iqa(image=pixels, query=RATING, regions=SIGN)
    assert rated.state.kind == "photograph"
    assert "document" not in str(rated)
    assert {finding.type for _, finding in rated.state.evidence.findings()} >= {"Brightness change"}
    asked = iqa(image=pixels, query="Is the sign overexposed?", regions=SIGN)
    assert asked.final_answer.startswith(("Yes", "Slightly"))


def test_a_finding_of_a_region_speaks_of_the_region(iqa: AgenticIQA) -> None:
    pixels = np.array(photographs.coffee())
    pixels[60:300, 200:520] = _blurred(pixels[60:300, 200:520])
    rated = iqa(image=pixels, query=RATING, regions={"sign": (200, 60, 520, 300)})
    explained = " ".join(finding.explanation for _, finding in rated.state.evidence.findings())
    assert "all of it" in explained
    assert "whole picture" not in explained


@pytest.mark.parametrize(("damage", "words"), [(_blurred, "blur"), (_burnt, "brightness"), (_noisy, "noise")])
def test_a_region_shown_beside_the_whole_is_compared_with_its_reference(iqa: AgenticIQA, damage, words: str) -> None:
    pixels, reference = _with_sign(damage), _with_sign()
    told = iqa(image=pixels, reference=reference, regions=SIGN).summary
    (of_sign,) = re.findall(r'Region "sign": against the reference: (.*)', told)
    assert words in of_sign
    asked = iqa(image=pixels, reference=reference, query=PROBLEM, regions=SIGN).final_answer
    assert of_sign.split(",")[0].rstrip(".") in asked
    whole = iqa(image=_with_sign(), reference=reference, regions=SIGN)
    assert "against" not in whole.summary


def test_a_reference_of_another_size_is_compared_part_by_part(iqa: AgenticIQA) -> None:
    settings = load_settings(overrides={"tools": {"resize_reference": True}})
    large = np.asarray(Image.fromarray(_with_sign()).resize((500, 300), Image.Resampling.LANCZOS))
    rated = AgenticIQA(settings)(image=_with_sign(_blurred), reference=large, query=RATING, regions=SIGN)
    assert "blur" in rated.summary
    assert rated.quality_score < 3.5


@pytest.mark.parametrize("corner", [(0, 0, 60, 50), (340, 190, 400, 240)])
def test_a_region_at_the_edge_is_compared_with_its_own_part(iqa: AgenticIQA, corner) -> None:
    reference = np.array(photographs.coffee()[:240, 200:600])
    left, top, right, bottom = corner
    pixels = reference.copy()
    pixels[top:bottom, left:right] = _noisy(pixels[top:bottom, left:right])
    rated = iqa(image=pixels, reference=reference, query=RATING, regions={"sign": corner})
    assert "noise" in rated.summary
    elsewhere = iqa(image=pixels, reference=reference, query=RATING, regions={"sign": (200, 100, 300, 200)})
    assert elsewhere.summary == "No visible difference from the reference."


@pytest.mark.parametrize("box", [(200, 100, 203, 104), (100, 60, 130, 90)])
def test_of_a_tiny_region_nothing_is_invented(iqa: AgenticIQA, box) -> None:
    pixels, regions = _with_sign(), {"sign": box}
    size = f"{box[2] - box[0]}x{box[3] - box[1]}"
    for query in (PROBLEM, SHARP, RATING):
        words = str(iqa(image=pixels, query=query, regions=regions))
        assert f"The region is too small ({size}) to judge its sharpness." in words
    assert f'Region "sign": the region is too small ({size})' in iqa(image=pixels, regions=regions).summary


@pytest.mark.parametrize("seed", range(4))
def test_what_is_said_of_a_region_never_contradicts_itself(iqa: AgenticIQA, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pixels = np.array((photographs.coffee, photographs.astronaut)[seed % 2]()[:300, :400])
    width, height = (int(side) for side in rng.integers(70, 180, 2))
    left, top = int(rng.integers(0, 400 - width)), int(rng.integers(0, 300 - height))
    part = np.s_[top : top + height, left : left + width]
    pixels[part] = (_blurred, _noisy, _burnt, lambda same: same)[seed % 4](pixels[part])
    regions = {"sign": (left, top, left + width, top + height)}
    problem, sharp = (str(iqa(image=pixels, query=query, regions=regions).final_answer) for query in (PROBLEM, SHARP))
    rated = iqa(image=pixels, query=RATING, regions=regions)
    blurs = [each for _, each in rated.state.evidence.findings() if each.type == "Blurs" and each.severity != "none"]
    assert rated.summary in problem
    assert bool(blurs) == bool(re.search("blur|low resolution", problem))
    if blurs:
        assert sharp.startswith(("No", "Slightly", "Mostly"))
    else:
        assert sharp.startswith("Yes")


def _upper_left(pixels: np.ndarray, damage) -> np.ndarray:
    """Return pixels whose upper left fifth is damaged."""
    damaged, rows, columns = pixels.copy(), int(0.45 * pixels.shape[0]), int(0.45 * pixels.shape[1])
    damaged[:rows, :columns] = damage(pixels[:rows, :columns])
    return damaged


def _compressed(pixels: np.ndarray) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=5)
    return np.asarray(Image.open(file))


@pytest.mark.parametrize(
    ("photograph", "damage", "fault"),
    [
        (photographs.chelsea, _noisy, "noise"), (photographs.rocket, _noisy, "noise"),
        (photographs.chelsea, _compressed, "compression"),
    ],
)  # fmt: skip
def test_damage_to_a_fifth_of_a_picture_is_named_with_its_place(iqa, photograph, damage, fault: str) -> None:
    pixels = photograph()
    whole, damaged = iqa(image=pixels), iqa(image=_upper_left(pixels, damage))
    assert fault not in whole.summary
    assert re.search(rf"{fault} .*(upper left|the top|the left)", damaged.summary.lower())
    assert fault in [name for name, _ in damaged.faults]


def test_a_large_picture_is_looked_at_in_its_own_size_where_it_is_worst(tmp_path: Path, capsys) -> None:
    small = Image.fromarray(photographs.chelsea())
    large = np.asarray(small.resize((1200, 800), Image.Resampling.LANCZOS))
    Image.fromarray(_upper_left(large, lambda part: noisy(part, 12, seed=2))).save(tmp_path / "noisy.png")
    assert assess.main([str(tmp_path / "noisy.png")]) == 0
    assert "oise roughens the upper left" in capsys.readouterr().out


def test_of_a_large_picture_a_region_is_judged_by_all_its_pixels(iqa: AgenticIQA) -> None:
    small = Image.fromarray(photographs.coffee())
    pixels = np.array(small.resize((1320, 880), Image.Resampling.LANCZOS))
    box = (800, 400, 1000, 550)
    pixels[400:550, 800:1000] = noisy(pixels[400:550, 800:1000], 20, seed=3)
    rated = iqa(image=pixels, query=f"{RATING} Use LiteNR.", regions={"sign": box})
    assert "oise roughens" in rated.summary
    assert {(log.box, log.note) for log in rated.state.evidence.tool_logs} == {(box, None)}
