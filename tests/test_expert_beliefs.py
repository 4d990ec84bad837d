"""What the embedded expert believes of images, alone, beside a reference and in parts."""

from functools import partial

import dspy
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special
from scipy.spatial.distance import cdist
from skimage import data as photographs
from skimage.filters import gaussian

from program.expert.answer.findings import present
from program.expert.engine import answer
from program.expert.judge.quality import OUTPUTS, level_probabilities, load_model
from program.expert.judge.views import Viewer
from program.expert.measure.features import resample
from program.expert.store import stored_arrays
from program.images.store import IMAGES
from signatures.schemas import LEVEL_WORDS
from signatures.summarizer import ScoreQuality
from tests.pictures import noisy

Pixels = NDArray[np.uint8]
PHOTOGRAPH: Pixels = np.asarray(photographs.astronaut())[:384, :384]
QUERY = "Rate the perceptual quality of this image."
_noisy = partial(noisy, PHOTOGRAPH, seed=5)


def _image(pixels: Pixels) -> dspy.Image:
    return dspy.Image(IMAGES.add(np.ascontiguousarray(pixels)).url)


def _mean(found: dict) -> float:
    return sum(level * found["quality_probs"][word] for level, word in enumerate(LEVEL_WORDS, 1))


def test_unlike_images_widen_the_probabilities() -> None:
    viewer = Viewer()
    natural = viewer.view(_image(PHOTOGRAPH)).prior
    bars = np.zeros((256, 256, 3), np.uint8)
    bars[::2] = (255, 0, 255)
    strange = viewer.view(_image(bars)).prior
    assert strange.novelty > natural.novelty + 0.2
    assert strange.deviation > natural.deviation * 1.15
    assert natural.novelty < 0.3


def test_a_reference_of_another_size_counts_as_one_of_the_images_size() -> None:
    viewer, doubled = Viewer(), np.repeat(np.repeat(PHOTOGRAPH, 2, axis=0), 2, axis=1)
    other, same = (viewer.view(_image(_noisy(20)), _image(each)) for each in (doubled, resample(doubled, PHOTOGRAPH)))
    np.testing.assert_allclose(other.features.values, same.features.values, atol=1e-6)
    assert other.severities["Noise"] > 0.5


def test_level_probabilities_are_a_distribution_that_widens() -> None:
    narrow, wide = level_probabilities(3.2, 0.3), level_probabilities(3.2, 1.2)
    assert sum(narrow) == pytest.approx(1)
    assert narrow[2] > wide[2]
    assert level_probabilities(9, 0.2)[4] == pytest.approx(1)
    assert level_probabilities(-9, 0.2)[0] == pytest.approx(1)


@pytest.mark.parametrize("kind", ["nr", "fr"])
def test_what_a_model_sees_is_the_written_formula(kind: str) -> None:
    arrays, rng = stored_arrays(), np.random.default_rng(2)
    a = {name.removeprefix(f"{kind}_"): value for name, value in arrays.items() if name.startswith(kind)}
    raw = rng.normal(0, 1.2, (5, len(a["centre"]))) * a["spread"] + a["centre"]
    seen = load_model(kind).look(raw)
    z = np.clip((raw - a["centre"]) / a["spread"], -4, 4) * a["share"]
    views = np.clip((z @ a["views"] - a["view_centre"]) / a["view_spread"], -4, 4) * a["view_share"]
    square = cdist(views, a["points"]) ** 2
    near = 0.5 * np.exp(-square / 2) + 0.5 * np.exp(-square / 0.6)
    values = a["offset"] + views @ a["slopes"] + near @ a["weights"]
    np.testing.assert_allclose(seen.values, values, atol=1e-8)
    expected = values[:, 0]
    if kind == "nr":
        share = special.expit((values[:, 2] - 0.4) / 0.1) * special.expit((values[:, 3] - 0.2) / 0.2)
        expected = (1 - share) * values[:, 0] + share * values[:, 1]
    np.testing.assert_allclose(seen.quality, expected, atol=1e-8)
    assert seen.severities.min() >= 0


def test_a_part_is_judged_beside_the_whole() -> None:
    """It differs from the whole by what it differs as a distorted image; a reference says enough by itself."""
    viewer, frame = Viewer(), PHOTOGRAPH.copy()
    frame[:, :192] = gaussian(PHOTOGRAPH, 2, channel_axis=2, preserve_range=True).astype(np.uint8)[:, :192]
    asked = {"query": "Rate the quality of the left side.", "image": _image(frame[:, :192])}
    crops = {"left side": asked["image"]}

    def score(**others) -> float:
        return _mean(answer(ScoreQuality.output_fields, {**asked, **others}))

    part, whole = viewer.view(asked["image"]), viewer.view(_image(frame))
    at = OUTPUTS["nr"].index("distorted")
    beside = part.within(whole)
    expected = whole.prior.mean + part.features.values[0, at] - whole.features.values[0, at]
    assert beside.prior.mean == pytest.approx(max(expected, 1.0), abs=1e-3)
    assert beside.severities == part.severities  # what is found in it is found by its own pixels
    assert present(beside) == present(part)
    assert score(whole=_image(frame), region_crops=crops) == pytest.approx(beside.prior.mean, abs=0.03)
    assert score(whole=asked["image"], region_crops=crops) == score(region_crops=crops)
    reference = _image(PHOTOGRAPH[:, :192])
    against = score(reference=reference, whole=_image(frame), region_crops=crops)
    assert against == score(reference=reference, region_crops=crops)


def test_effects_that_are_meant_do_not_lower_the_score() -> None:
    viewer, soft = Viewer(), gaussian(PHOTOGRAPH, 8, channel_axis=2, preserve_range=True).astype(np.uint8)
    soft[60:380, 80:320] = PHOTOGRAPH[60:380, 80:320]
    shallow, crop = _image(soft), _image(soft[:192])
    views = {
        "shallow depth": viewer.view(shallow), "noise": viewer.view(_image(_noisy(20))),
        "beside a reference": viewer.view(shallow, IMAGES.add(PHOTOGRAPH)), "a part": viewer.part(crop, shallow),
    }  # fmt: skip
    lifts = {name: round(view.prior.mean - float(view.features.quality[0]), 3) for name, view in views.items()}
    assert lifts["shallow depth"] == pytest.approx(lifts["a part"], abs=2e-3)
    assert lifts["shallow depth"] > 0.1 > 0.02 > lifts["noise"] >= 0
    assert lifts["beside a reference"] == 0
