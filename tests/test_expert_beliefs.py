"""What the embedded expert believes: priors, demos as evidence, and that keeping their projections changes nothing."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import dspy
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats
from scipy.spatial.distance import cdist
from skimage import data as photographs
from skimage.filters import gaussian

from program.expert import engine
from program.expert.answer.findings import present
from program.expert.engine import DEMOS_KEPT, answer, belief
from program.expert.judge import quality
from program.expert.judge.quality import (
    OUTPUTS,
    Features,
    believe,
    level_probabilities,
    load_model,
    most_telling,
    weigh,
)
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


def _score(pixels: Pixels, demos=()) -> float:
    return _mean(answer(ScoreQuality.output_fields, demos, {"image": _image(pixels), "query": QUERY}))


def _demo(pixels: Pixels, level: int) -> dspy.Example:
    probabilities = {word: float(i == level) for i, word in enumerate(LEVEL_WORDS, 1)}
    return dspy.Example(image=_image(pixels), query=QUERY, quality_probs=probabilities, quality_reasoning="seen")


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
    np.testing.assert_allclose(other.seen.values, same.seen.values, atol=1e-6)
    assert other.severities["Noise"] > 0.5


def test_level_probabilities_are_a_distribution_that_widens() -> None:
    narrow, wide = level_probabilities(3.2, 0.3), level_probabilities(3.2, 1.2)
    assert sum(narrow) == pytest.approx(1)
    assert narrow[2] > wide[2]
    assert level_probabilities(9, 0.2)[4] == pytest.approx(1)
    assert level_probabilities(-9, 0.2)[0] == pytest.approx(1)


def test_the_most_telling_demos_bring_beliefs_nearer_to_the_others_labels_than_any_drawn_at_random() -> None:
    rng, count = np.random.default_rng(2), 80
    points = rng.normal(0, 0.3, (count, 12))
    quality = np.clip(rng.normal(3, 0.6, count), 1, 5)
    labels = quality - 0.4 + 2 * points[:, 0] - points[:, 1] + rng.normal(0, 0.2, count)
    model, zeros = load_model("nr"), np.zeros((count, 1))
    images = [
        Features(
            *(
                np.atleast_1d(column)[[i]]
                for column in (points, zeros, quality, zeros, np.zeros((count, 9)), zeros[:, 0])
            )
        )
        for i in range(count)
    ]

    def error(places) -> float:
        evidence = weigh(model, [images[i] for i in places], labels[list(places)])
        others = [i for i in range(count) if i not in places]
        return float(np.mean([(believe(model, images[i], evidence).mean - labels[i]) ** 2 for i in others]))

    chosen = most_telling(images, labels, 8, np.random.default_rng(0))
    assert len(set(chosen)) == 8
    assert error(chosen) < 0.9 * min(error(rng.choice(count, 8, replace=False).tolist()) for _ in range(60))


def test_many_demos_reduce_the_uncertainty() -> None:
    viewer = Viewer()
    demos = [(viewer.view(_image(_noisy(s))), 2.0) for s in (10, 11, 12, 13, 15, 16)]
    query = viewer.view(_image(_noisy(14)))
    assert belief(query, demos).deviation < belief(query).deviation == query.prior.deviation


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


@pytest.mark.parametrize("versions", [False, True])
def test_a_belief_given_demos_is_a_textbook_gaussian_process(versions: bool) -> None:
    """Its noise by the likelihood of scipy, its misfit by leaving out each demo in turn."""
    model, rng = load_model("nr"), np.random.default_rng(2)
    standard = model.standard
    cells = rng.normal(0, 1, (9, 9))
    if versions:
        cells[:5], cells[5:] = cells[1], cells[5]
    seen = model.look(rng.normal(0, 0.9, (9, len(standard.centre))) * standard.spread + standard.centre, cells)
    one, others = (
        Features(*(part[:1] for part in seen)),
        [Features(*(part[i : i + 1] for part in seen)) for i in range(1, 9)],
    )
    labels = rng.uniform(1, 5, 8)
    residuals = labels - seen.quality[1:]
    points = seen.points.astype(float)
    covariance = quality.LIKENESS * points @ points.T + quality.OFFSET
    covariance += quality.SLOPE * np.outer(seen.quality - 3, seen.quality - 3)
    if versions:
        constant, likeness = quality.PHOTOGRAPH
        for photograph in (slice(0, 5), slice(5, 9)):
            of_it = points[photograph]
            covariance[photograph, photograph] += constant + likeness * of_it @ of_it.T
    within = covariance[1:, 1:]
    likely = [stats.multivariate_normal(np.zeros(8), within + n * np.eye(8)).logpdf(residuals) for n in quality.NOISES]
    noise = quality.NOISES[int(np.argmax(likely))]
    noisy = within + noise * np.eye(8)

    misfits = []
    for i in range(8):
        rest = np.arange(8) != i
        weights = np.linalg.solve(noisy[np.ix_(rest, rest)], noisy[rest, i])
        left = (noisy[i, i] - weights @ noisy[rest, i]) / noisy[i, i]
        error = model.error(seen.quality[1:])[i]
        misfits.append((residuals[i] - weights @ residuals[rest]) ** 2 / (left * error**2))
    misfit = max(1.0, (sum(misfits) + 8) / 16)

    gain = np.linalg.solve(noisy, covariance[1:, 0])
    settled = gain @ covariance[1:, 0] / (covariance[0, 0] + noise)
    found = believe(model, one, weigh(model, others, labels))
    assert found.mean == pytest.approx(np.clip(seen.quality[0] + gain @ residuals, 0.6, 5.4), abs=1e-4)
    error, novelty = float(model.error(one.quality)[0]), float(one.novelty[0])
    variance = (1 - novelty) * (1 - settled) * misfit * error**2 + novelty * quality._WIDEST**2
    assert found.deviation == pytest.approx(np.sqrt(variance), abs=1e-4)


def test_a_part_is_judged_beside_the_whole() -> None:
    """It differs from the whole by what it differs as a distorted image; a reference says enough by itself."""
    viewer, frame = Viewer(), PHOTOGRAPH.copy()
    frame[:, :192] = gaussian(PHOTOGRAPH, 2, channel_axis=2, preserve_range=True).astype(np.uint8)[:, :192]
    asked = {"query": "Rate the quality of the left side.", "image": _image(frame[:, :192])}
    crops = {"left side": asked["image"]}

    def score(**others) -> float:
        return _mean(answer(ScoreQuality.output_fields, [], {**asked, **others}))

    part, whole = viewer.view(asked["image"]), viewer.view(_image(frame))
    at = OUTPUTS["nr"].index("distorted")
    beside = part.within(whole)
    expected = whole.prior.mean + part.seen.values[0, at] - whole.seen.values[0, at]
    assert beside.prior.mean == pytest.approx(max(expected, 1.0), abs=1e-3)
    assert beside.severities == part.severities  # what is found in it is found by its own pixels
    assert present(beside) == present(part)
    assert score(region_crops={"Global": _image(frame), **crops}) == pytest.approx(beside.prior.mean, abs=0.03)
    assert score(region_crops={"Global": asked["image"], **crops}) == score(region_crops=crops)
    reference = _image(PHOTOGRAPH[:, :192])
    against = score(reference=reference, region_crops={"Global": _image(frame), **crops})
    assert against == score(reference=reference, region_crops=crops)


def test_kept_evidence_does_not_mix_demo_sets_or_labels() -> None:
    query = _noisy(14)
    sets = [[_demo(_noisy(13), a), _demo(_noisy(15), b)] for a, b in ((1, 5), (5, 1), (1, 1), (5, 5), (1, 5))]
    scores = [_score(query, demos) for demos in sets]
    assert len(set(scores)) == 4
    assert scores[0] == scores[4]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda demos: _score(query, demos), sets * 8)) == scores * 8


def test_evidence_is_kept_of_so_many_demos_and_the_oldest_goes_first(monkeypatch) -> None:
    monkeypatch.setattr(engine, "weigh", lambda model, seen, labels: SimpleNamespace(weights=labels))
    demo, sets = Viewer().view(_image(_noisy(13))), engine._evidence.cache
    sets.clear()

    def kept(label: float, count: int = DEMOS_KEPT // 4) -> SimpleNamespace:
        return engine._evidence([(demo, label)] * count, "")

    found = [kept(1 + i / 10) for i in range(4)]
    assert kept(1.0) is found[0]
    kept(5.0)
    assert sets.currsize == DEMOS_KEPT
    assert kept(1.0) is found[0]
    assert kept(1.1) is not found[1]
    assert kept(2.0, DEMOS_KEPT + 1) is kept(2.0, DEMOS_KEPT + 1)  # one set that has more is kept alone
    assert len(sets) == 1
    sets.clear()
