"""How strong a distortion is said to be: traces of a change, two judges weighed, and figures that measure it."""

import io
import json
from dataclasses import replace
from pathlib import Path

import dspy
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage, stats
from skimage import data as photographs
from sklearn.metrics import cohen_kappa_score

from data.distortions import is_grey
from program.expert.answer.findings import findings, present, reported, severity_word
from program.expert.answer.phrases import ENGLISH
from program.expert.engine import answer
from program.expert.judge.models import QualityModel, detector_of, load_model
from program.expert.judge.quality import graded, grades, look
from program.expert.judge.regression import Hyper, Regression
from program.expert.judge.standards import Standard
from program.expert.judge.views import Viewer
from program.expert.measure.features import FEATURE_NAMES, measure, shipped_books
from program.expert.measure.nss import halve
from program.expert.measure.reference import DIFFERENCE_NAMES, compare
from program.expert.store import MODEL_FILE
from program.expert.training import figures, fitting, teaching
from program.expert.training.detecting import DETECTOR, GRADING, READ, detector_arrays
from program.expert.training.fitting import PAIRED, paired_fit
from program.expert.training.regressions import standard_of
from program.expert.training.tables import GREY_VIEWS, Table, generated_images, severities
from program.expert.training.teaching import NATURAL, Judged, judged_images, without
from program.images.store import IMAGES
from signatures.summarizer import ExplainQuality

Pixels = NDArray[np.uint8]


@pytest.fixture(scope="module")
def photograph() -> Pixels:
    return np.asarray(photographs.chelsea()[:240, :320])


def _noisy(pixels: Pixels, sigma: float) -> Pixels:
    noise = np.random.default_rng(3).normal(0, sigma, pixels.shape)
    return np.asarray(np.clip(pixels + noise, 0, 255), dtype=np.uint8)


def _luma(pixels: Pixels) -> NDArray[np.float64]:
    return np.asarray(halve((pixels @ np.array([0.299, 0.587, 0.114])).astype(np.float32)), dtype=np.float64)


def _window(plane: NDArray[np.float64]) -> NDArray[np.float64]:
    taps = np.exp(-0.5 * (np.arange(-3, 4) / (7 / 6)) ** 2)
    return np.asarray(ndimage.convolve(plane, np.outer(taps, taps) / taps.sum() ** 2, mode="nearest"))


def test_traces_match_direct_formulas(photograph: Pixels) -> None:
    changed = _noisy(photograph, 12)
    changed[60:120, 40:200] //= 2
    found = compare(changed, photograph)
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
        found = [compare(*pair) for pair in zip(blurred, shown, strict=True)]
        assert found[0]["transfer1"] == pytest.approx(found[1]["transfer1"], abs=0.12)
        assert all(one["incoherence2"] < 0.15 for one in found)
    for share in (0.3, 0.6):
        for image in shown:
            grey = image.mean(axis=2, keepdims=True)
            found_one = compare(np.asarray(np.round(grey + share * (image - grey)), dtype=np.uint8), image)
            assert found_one["saturation_transfer"] == pytest.approx(share - 1, abs=0.08)
    red, blue = (np.full((32, 32, 3), colour, dtype=np.uint8) for colour in ((200, 120, 120), (120, 120, 200)))
    along, across = (np.array([[0.30, 0.04, -0.35], [0.34, -0.60, 0.17]]) @ image[0, 0] for image in (red, blue))
    turn = (along[0] * across[1] - along[1] * across[0]) / (along @ along + 4)
    assert compare(blue, red)["hue_turn"] == pytest.approx(turn, abs=1e-3)
    swept = [compare(np.asarray(ndimage.uniform_filter1d(image, 9, axis=1)), image) for image in shown]
    assert all(one["transfer_across1"] < one["transfer_down1"] - 0.1 for one in swept)


def test_traces_tell_kinds_of_change_apart(photograph: Pixels) -> None:
    noise = compare(_noisy(photograph, 12), photograph)
    speckled = photograph.copy()
    speckled[::9, ::7] = 255
    buffer = io.BytesIO()
    Image.fromarray(photograph).save(buffer, "JPEG", quality=12)
    jpeg = np.asarray(Image.open(buffer).convert("RGB"))
    assert compare(speckled, photograph)["residual_peaks"] > noise["residual_peaks"] + 1
    assert compare(jpeg, photograph)["residual_on_edges"] > noise["residual_on_edges"] + 0.2
    assert noise["texture_gain"] > 0.2 > 0 > compare(jpeg, photograph)["texture_p10"]
    alike = compare(photograph, photograph)
    assert max(abs(alike[name]) for name in DIFFERENCE_NAMES) < 1e-3


def test_grades_move_the_strongest_only_and_bound_the_others() -> None:
    rng = np.random.default_rng(1)
    found, believed = rng.uniform(0, 3, (50, 7)), rng.uniform(0, 6, 50)
    weights = np.array([0.9, -0.5, 1.5])
    out = grades(found, believed, weights)
    for row, mean, told in zip(found, believed, out, strict=True):
        strength = min(max(0.9 * max(row) - 0.5 * min(max(mean, 0.6), 4.6) + 1.5, 0), 4)
        assert told[row.argmax()] == pytest.approx(strength)
        assert told.max() == pytest.approx(strength)
        others = np.delete(np.arange(7), row.argmax())
        np.testing.assert_allclose(told[others], np.minimum(row[others], strength))
    assert (grades(np.zeros((1, 7)), np.array([1.0]), weights) == 0).all()


def _table(seed: int, dark: float = 0.0) -> Table:
    """Images of three photographs, blurred or noisy at five levels: two features say so, one is the photograph's."""
    rng, rows = np.random.default_rng(seed), []
    for number, name in enumerate(("a", "b", "c")):
        for kind, distortion in enumerate(("gaussian_blur", "white_noise", "jitter")):
            for level in range(1, 6):
                vector = np.zeros(READ + 5)
                vector[kind], vector[5] = level + rng.normal(0, 0.2), number + dark
                rows.append((vector, vector[: len(DIFFERENCE_NAMES)] / 3, 4.6 - 0.6 * level, distortion, name))
    vectors, differences, labels, distortion, group = (np.array(column) for column in zip(*rows, strict=True))
    return Table(vectors, differences, labels, np.full(len(labels), "train"), distortion, group)


def test_quality_with_a_reference_is_fitted_on_train_images_and_a_draw_of_generated_ones() -> None:
    made = _table(1)
    live = replace(_table(4), split=np.array(["train", "test", "validation"] * 15))
    arrays, settings = paired_fit(live, made)
    assert arrays["fr_vectors"].shape == (15 + len(made.labels), len(DIFFERENCE_NAMES))
    assert set(arrays["fr_labels"][:15]) == set(live.labels[live.split == "train"])
    standard = Standard(arrays["fr_centre"], arrays["fr_spread"], PAIRED.clip)
    told = Regression(arrays["fr_vectors"], arrays["fr_labels"], standard, PAIRED).project(made.differences).mean
    assert stats.spearmanr(told, made.labels).statistic > 0.95
    assert len(settings["error_scales"]) == 9
    assert min(settings["error_scales"]) > 0
    assert sum(group.weight for group in PAIRED.groups) == pytest.approx(1)
    assert {(group.start, group.stop) for group in PAIRED.groups} == {(0, len(DIFFERENCE_NAMES))}


def test_grey_versions_are_grey_and_only_of_photographs_in_colour() -> None:
    listed = generated_images(grey=True)
    assert {made.photograph for made in listed} == {"astronaut", "flower", "motorcycle", "rocket"}
    assert {made.view for made in listed} == set(GREY_VIEWS)
    first = next(made for made in listed if made.distortion == "gaussian_blur" and made.level == 4)
    pixels, shown = first.pair()
    assert is_grey(shown)
    assert is_grey(pixels)
    assert (pixels != shown).any()
    assert not any(made.distortion.startswith("color_s") for made in listed)
    coloured, _ = next(m for m in generated_images() if (m.photograph, m.view) == (first.photograph, first.view)).pair()
    assert coloured.shape == pixels.shape
    assert not is_grey(coloured)


@pytest.mark.parametrize("paired", [False, True])
def test_shipped_models_grade_by_both_judges(photograph: Pixels, paired: bool) -> None:
    model = load_model("fr" if paired else "nr")
    assert tuple(model.grading) == GRADING["fr" if paired else "nr"]
    viewer, words = Viewer(), []
    for sigma in (0.0, 6.0, 14.0, 60.0):
        view = viewer.view(_url(_noisy(photograph, sigma)), _url(photograph) if paired else None)
        assert np.array(list(view.grades.values())) == pytest.approx(graded(model, look(model, view.vector))[0])
        words.append(view.grades["Noise"])
        for finding in findings(view, "", present(view), ENGLISH):
            assert finding["severity"] == severity_word(view.grades[finding["type"]]) != "none"
    assert words == sorted(words)
    assert severity_word(words[0]) in {"none", "slight"}
    assert severity_word(words[-1]) in {"severe", "extreme"}


def _url(pixels: Pixels) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return IMAGES.add(buffer.getvalue()).url


def test_what_has_no_word_is_not_reported(photograph: Pixels) -> None:
    seen = [reported(np.full(7, severity), np.full(7, 1.0)).tolist() for severity in (0.3, 0.85, 1.0)]
    assert seen == [[False] * 7, [False, True, False, True, True, True, True], [True] * 7]
    assert not reported(np.full((2, 7), 3.0), np.full((2, 7), 0.4)).any()
    view = Viewer().view(_url(_noisy(photograph, 25)))
    assert present(view)[0] == "Noise"
    view.grades["Noise"] = 0.2
    assert "Noise" not in present(view)


def test_kappa_of_the_figures_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(6)
    truth = rng.integers(0, 5, 80)
    found = np.clip(truth + rng.integers(-1, 2, 80), 0, 4)
    told = figures._kappa(truth.tolist(), found.tolist(), np.repeat(["a", "b"], 40))
    assert told["kappa"] == pytest.approx(cohen_kappa_score(truth, found, weights="quadratic"), abs=6e-4)
    low, high = told["interval"]
    assert low < told["kappa"] < high


def test_lessons_are_distortions_of_the_train_images_people_liked_best(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(teaching, "GREY_EVERY", 2)
    monkeypatch.setattr(teaching, "HELD", (1, 3))
    lines = []
    for number, (split, mos) in enumerate((("train", 40), ("train", 90), ("test", 95), ("train", 70))):
        rows = np.random.default_rng(number).integers(0, 256, (240, 260, 3), dtype=np.uint8)
        Image.fromarray(rows).save(tmp_path / f"{number}.png")
        known = {"id": f"{number}", "image": f"{number}.png", "group": f"{number}", "split": split}
        lines.append(json.dumps({**known, "mos": mos, "mos_range": [0, 100]}))
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text("\n".join(lines), "utf-8")
    asked = []
    real = teaching.IMAGES.add
    monkeypatch.setattr(teaching.IMAGES, "add", lambda path: asked.append(path.name) or real(path))
    found = list(teaching.pairs(manifest, "train", 2, 5))
    assert asked == ["1.png", "3.png"]
    assert len(found) == 2 * (1 + 5)
    assert [is_grey(pair.shown) for pair in found] == [False] * 6 + [True] * 6
    assert [pair.group for pair in found] == ["1"] * 6 + ["3"] * 6
    assert all(pair.pixels.shape == pair.shown.shape for pair in found)
    assert [pair.pixels is pair.shown for pair in found] == [i % 6 == 0 for i in range(12)]
    assert [pair.level == 0 for pair in found] == [i % 6 == 0 for i in range(12)]
    again = teaching.pairs(manifest, "train", 2, 5)
    assert all((one.pixels == two.pixels).all() for one, two in zip(found, again, strict=True))

    asked.clear()
    held = teaching.distorted_images(manifest, shipped_books(), "test")
    assert asked == ["2.png"]
    assert (len(held.labels), held.count("test"), set(held.group)) == (3, 3, {"2"})
    assert "none" not in held.distortion
    assert held.labels.max() < 5
    assert np.abs(held.differences).sum(axis=1).min() > 0


def test_a_detector_learns_from_what_it_is_taught() -> None:
    shown, natural = _table(1), np.random.default_rng(0).normal(0, 1, (40, READ))
    other = _table(9)
    other.vectors[:, 5] += 40  # a content that none of the photographs has
    distorted = np.arange(len(other.labels)) % 4 > 0
    lesson = teaching.Lessons(other.vectors, other.differences, other.group, distorted)
    detector = detector_of("fr", detector_arrays("fr", shown, natural), DETECTOR["fr"])
    standard, hyper = standard_of(shown.differences, 4.0), Hyper(1.0, 0.0, 0.1, 4.0)
    regression = Regression(shown.differences, shown.labels, standard, hyper)
    teacher = QualityModel(regression, 1.0, detector, {}, np.array(GRADING["fr"]))
    taught = lesson.found(teacher)
    assert (taught[1] == detector.severities(other.differences)).all()
    judged = lesson.judged(teacher)
    assert len(judged[0]) == len(judged[1]) == len(judged[2]) == distorted.sum()
    np.testing.assert_allclose(
        judged[1], np.clip(regression.project(other.differences[distorted]).mean, *teaching.WORST_AND_BEST)
    )
    query = _table(10)
    query.vectors[:, 5] += 40
    errors = []
    for given in (None, taught):
        pupil = detector_of("nr", detector_arrays("nr", shown, natural, given), DETECTOR["nr"])
        errors.append(np.abs(pupil.severities(query.vectors) - severities(query)).mean())
    assert errors[1] < 0.7 * errors[0]


def test_a_region_is_measured_as_an_image_of_its_own_and_told_apart() -> None:
    sharp = np.asarray(photographs.coffee()[:240, :400])
    half = sharp.copy()
    half[:, :200] = ndimage.gaussian_filter(sharp, (4, 4, 0))[:, :200]
    whole = IMAGES.add(half)
    boxes = {"cup": (0.0, 0.0, 200.0, 240.0), "table": (200.0, 0.0, 400.0, 240.0)}
    crops = {name: dspy.Image(IMAGES.cropped(whole, box).url) for name, box in boxes.items()}
    seen = {name: Viewer().view(crop) for name, crop in crops.items()}
    assert (seen["cup"].vector == measure(half[:, :200]).vector).all()
    assert seen["cup"].grades["Blurs"] > 1.5 > 0.8 > seen["table"].grades["Blurs"]

    def told(query: str) -> str:
        inputs = {"image": dspy.Image(whole.url), "query": query, "region_crops": crops}
        return str(answer(ExplainQuality, [], inputs)["final_answer"])

    assert 'Region "cup": blur is ' in told("What is wrong with the picture?")
    assert 'Region "table": no distortion' in told("What is wrong with the picture?")
    assert told("Is the cup blurry?").startswith(("Yes", "Probably yes"))
    assert told("Is the table blurry?").startswith(("No", "Probably not"))
    assert "区域“cup”：模糊" in told("这张图片有什么问题？")


def test_images_are_sorted_by_who_judged_them_and_photographs_can_be_left_out() -> None:
    live, made = _table(3), _table(4)
    count = len(made.labels)
    names = np.array([f"c{i}" for i in range(count)])
    clive = replace(_table(2), group=names, split=np.array(["train", "test", "train"] * (count // 3)))
    made.distortion[::5] = "none"
    lesson = teaching.Lessons(made.vectors[:3], made.differences[:3], names[[2, 2, 3]], np.array([False, True, True]))
    images = judged_images(clive, live, made, lesson, load_model("fr"))
    assert set(images["photographs"].group) == set(names[clive.split == "train"])
    assert len(images["undistorted"].labels) == count // 5
    assert set(images["undistorted"].labels) == set(made.labels[::5])
    assert len(images["generated"].labels) == count - count // 5
    assert images["taught"].group.tolist() == ["c2", "c3"]
    fewer = without(images, np.array(["c3", "a"]))
    assert "c3" not in fewer["photographs"].group
    assert "a" not in fewer["generated"].group
    assert "a" not in fewer["undistorted"].group
    assert fewer["taught"].group.tolist() == ["c2"]
    assert (fewer["taught"].vectors == made.vectors[1]).all()


def test_a_blend_reads_each_kind_of_images_as_what_it_is(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    counts = {"photographs": 40, "live": 8, "undistorted": 6, "generated": 50, "taught": 30}

    def images(kind: str, number: int) -> Judged:
        vectors = rng.normal(3.0 * number, 1.0, (counts[kind], len(FEATURE_NAMES)))
        return Judged(vectors, np.full(counts[kind], 1.0 + number / 2), np.full(counts[kind], kind))

    shown = {kind: images(kind, number) for number, kind in enumerate(counts)}
    monkeypatch.setattr(fitting, "KEPT", {"generated": 20, "taught": 10})
    scores = fitting.normal_scores(shown["photographs"].vectors)
    blend, general, _ = fitting.blend_of(shown, scores)
    assert general.vectors.shape[0] == 40 + 8 + 6 + 20 + 10
    rows = np.concatenate([shown[kind].vectors for kind in NATURAL])
    np.testing.assert_allclose(general.vectors[: len(rows)], rows, atol=0.02)
    starts = np.cumsum([0, 40, 8, 6, 20, 10])
    for start, stop, kind in zip(starts, starts[1:], counts, strict=False):
        assert abs(general.vectors[start:stop].mean() - shown[kind].vectors.mean()) < 0.2
    seen = {kind: blend.project(shown[kind].vectors) for kind in counts}
    for kind in ("photographs", "generated", "taught"):
        assert np.abs(seen[kind].general.mean - shown[kind].labels).mean() < 0.3
    assert seen["photographs"].share.mean() < 0.3 < 0.7 < seen["taught"].share.mean()
    noise = fitting._natural_rows(shown)[2]
    assert set(noise[:48]) == {fitting.QUALITY["nr"].noise}
    assert set(noise[48:]) == {fitting.SURE["nr"]["undistorted"]}
    arrays, settings = fitting._without_reference(shown)
    assert settings["natural"] == 54 == len(arrays["nr_labels"])
    np.testing.assert_allclose(arrays["nr_general_weights"], general.weights)
    np.testing.assert_allclose(arrays["nr_gate"], general.gate)


def test_the_notice_names_the_weights_that_ship() -> None:
    assert MODEL_FILE in (Path(__file__).parents[1] / "NOTICE").read_text("utf-8")
