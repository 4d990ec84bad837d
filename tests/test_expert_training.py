"""Fitting the expert: what is made to learn from, and regressions beside scikit-learn's."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy import optimize
from skimage import data as photographs

from benchmarks.training import capture, figures, fitting, images, tool, train
from data.distortions import is_grey
from program.expert.judge.quality import OUTPUTS, SEVERITIES, UNDISTORTED, Standard, model_from
from program.expert.measure.differences import DIFFERENCE_NAMES
from program.expert.measure.features import FEATURE_NAMES
from signatures.schemas import DISTORTION_CATEGORIES

PHOTOGRAPH: NDArray[np.uint8] = np.asarray(photographs.chelsea()[:200, :240])


def test_motion_smears_along_its_direction_by_its_length() -> None:
    point = np.zeros((81, 81, 3), np.uint8)
    point[40, 40] = 255
    for angle, axis in ((0.0, 1), (np.pi / 2, 0)):
        smeared = capture.motion(point, 25, angle)[..., 0].astype(float)
        along, across = smeared.sum(axis=1 - axis), smeared.sum(axis=axis)
        assert np.count_nonzero(along) in (25, 26)
        assert np.count_nonzero(across) == 1
    slanted = capture.motion(point, 25, np.pi / 4)[..., 0]
    rows, columns = np.nonzero(slanted)
    assert np.abs(rows - columns).max() <= 1
    assert np.hypot(np.ptp(rows), np.ptp(columns)) == pytest.approx(25, abs=2)


def test_defocus_is_a_disc_and_light_is_kept() -> None:
    point = np.zeros((41, 41, 3), np.uint8)
    point[20, 20] = 255
    disc = capture.defocus(point, 2)[..., 0]
    assert np.count_nonzero(disc) == pytest.approx(np.pi * 2.5**2, rel=0.15)
    for pixels in (capture.defocus(PHOTOGRAPH, 6), capture.motion(PHOTOGRAPH, 20, 1.0)):
        assert pixels.mean() == pytest.approx(PHOTOGRAPH.mean(), abs=1)


def test_camera_noise_has_its_strength_and_is_greatest_in_the_dark() -> None:
    rng = np.random.default_rng(0)
    spreads = []
    for level in (40, 128, 200):
        flat = np.full((200, 200, 3), level, np.uint8)
        noisy = capture.camera_noise(flat, 6.0, rng)
        spreads.append((noisy.astype(float) @ [0.299, 0.587, 0.114]).std())
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[1] == pytest.approx(6.0, rel=0.25)
    assert is_grey(capture.camera_noise(np.full((20, 20, 3), 90, np.uint8), 6.0, rng))


def test_every_fault_is_scored_by_how_strong_it_is() -> None:
    rng = np.random.default_rng(1)
    for name, make in capture.FAULTS.items():
        made = make(PHOTOGRAPH, rng)
        assert made.pixels.shape == PHOTOGRAPH.shape
        assert (made.pixels != PHOTOGRAPH).any()
        assert set(made.scores) <= set(DISTORTION_CATEGORIES), name
        assert all(1 <= score <= 4.6 for score in made.scores.values())
    assert capture.expose(PHOTOGRAPH, -2).mean() < PHOTOGRAPH.mean() < capture.expose(PHOTOGRAPH, 1).mean()


def _manifest(folder: Path) -> Path:
    lines = []
    for number, (split, mos) in enumerate((("train", 40), ("train", 90), ("test", 95), ("train", 70))):
        pixels = np.roll(np.asarray(photographs.astronaut()[:160, :180]), 40 * number, axis=0)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        known = {"id": f"{number}", "image": f"{number}.png", "group": f"{number}", "split": split}
        lines.append(json.dumps({**known, "mos": mos, "mos_range": [0, 100]}))
    (folder / "manifest.jsonl").write_text("\n".join(lines), "utf-8")
    return folder / "manifest.jsonl"


def test_distorted_images_are_of_the_photographs_people_liked_best(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(images, "GREY_EVERY", 2)
    kinds = {"kadid": 3, "capture": 2, "pair": 2}
    manifest = _manifest(tmp_path)
    made = list(images.distorted(manifest, "train", 2, kinds))
    assert list(dict.fromkeys(example.group for example in made)) == ["1", "3"]
    assert {example.split for example in made} == {"train"}
    plain = [example for example in made if example.source == "undistorted"]
    assert [is_grey(example.pixels) for example in plain] == [False, True]
    assert all(example.score == UNDISTORTED and not any(example.severities) for example in plain)
    for example in made:
        drop = np.sqrt(np.square(example.severities).sum())
        assert example.score == pytest.approx(max(UNDISTORTED - drop, 1.0))
        assert example.pixels.shape == example.reference.shape
        assert np.count_nonzero(example.severities) <= 3 if " + " in example.distortion else 2
    assert sum(" + " in example.distortion for example in made) >= 2
    again = list(images.distorted(manifest, "train", 2, kinds))
    assert all((one.pixels == two.pixels).all() for one, two in zip(made, again, strict=True))


def test_photographs_teach_at_half_their_size_as_well(tmp_path: Path) -> None:
    manifest = _manifest(tmp_path)
    whole = [example for example in images.scored(manifest) if example.split == "train"]
    halved = list(images.halved(manifest))
    assert [(half.group, half.score) for half in halved] == [(example.group, example.score) for example in whole]
    assert {half.source for half in halved} == {"halved"}
    assert {half.pixels.shape for half in halved} == {(80, 90, 3)}


NO_STEPS = fitting.Steps(*[np.zeros(0, int)] * 2, *[np.zeros(0)] * 2)


def _smooth():
    from sklearn.gaussian_process.kernels import RBF, DotProduct

    return 0.35 * RBF(1.0) + 0.35 * RBF(np.sqrt(0.3)) + 0.3 * DotProduct(0.0, "fixed")


def _unmeasured(examples: list[images.Example]) -> images.Table:
    columns = (np.array([getattr(example, name) for example in examples]) for name in images.Example._fields[2:])
    return images.Table(*[np.zeros((len(examples), 1))] * 4, *columns)


@pytest.mark.parametrize(("count", "lost"), [(10, ()), (10, (2,)), (10, (0,)), (8, ())])
def test_measuring_goes_on_where_it_was_and_makes_no_image_of_parts_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, lost: tuple[int, ...]
) -> None:
    monkeypatch.setattr(train, "PART", 4)
    monkeypatch.setattr(images, "measured", _unmeasured)
    made = []

    def examples():
        for number in range(count):
            made.append(number)
            yield images.Example(PHOTOGRAPH, None, float(number), (0.0,) * 8, "photographs", "1", "train", "none")

    first = train._measured(tmp_path, "some", examples())
    assert made == list(first.scores) == list(range(count))
    for part in lost:
        (tmp_path / f"some-{part}.npz").unlink()
    made.clear()
    again = train._measured(tmp_path, "some", examples())
    np.testing.assert_array_equal(again.scores, first.scores)
    # Where the last part is full, only the end of the examples tells that it is the last one.
    assert len(made) == (8 if count == 8 else max((min(4 * part + 4, count) for part in lost), default=0))


def test_series_of_a_distortion_get_stronger(tmp_path: Path) -> None:
    series = list(images.rising(_manifest(tmp_path), 2))
    assert {example.source for example in series} == {"rising"}
    table = _unmeasured(series)
    weaker, stronger, fall, noise = fitting.steps_of(table, np.ones(len(series), bool), "photograph")
    kinds = {(example.group, example.distortion) for example in series}
    assert len(kinds) == 2 * images.SERIES
    assert len(weaker) == len(series) - len(kinds)
    assert (stronger == weaker + 1).all()
    assert (table.distortion[weaker] == table.distortion[stronger]).all()
    assert set(fall) == {0.05}
    assert set(noise) == {fitting.FALL_NOISE["photograph"]["rising"]}
    assert len(fitting.steps_of(table, table.group == "1", "photograph").weaker) < len(weaker)


def test_parts_of_a_photograph_are_shown_beside_each_other(tmp_path: Path) -> None:
    parts = list(images.beside(_manifest(tmp_path), 2))
    first = [place for place, example in enumerate(parts) if example.distortion == "none"]
    shown = [(parts[place].group, parts[place].source) for place in first]
    assert shown == [("1", "beside"), ("1", "tiles"), ("3", "beside"), ("3", "tiles")]
    whole = images._pixels(tmp_path / "1.png")
    for place in first[:2]:
        sound, other = parts[place : place + 2]
        assert sound.pixels.size == other.pixels.size
        assert sound.score == UNDISTORTED > other.score
        assert not any(sound.severities)
        assert sum(other.severities) == pytest.approx(UNDISTORTED - other.score)
        windows = np.lib.stride_tricks.sliding_window_view(whole, sound.pixels.shape)[:, :, 0]
        assert (windows == sound.pixels).all(axis=(2, 3, 4)).any()
    assert parts[0].pixels.size == 160 * 180 * 3 // 2
    assert parts[first[1]].pixels.shape == (53, 60, 3)
    table = _unmeasured(parts + list(images.rising(_manifest(tmp_path), 2)))
    weaker, stronger, fall, _ = fitting.steps_of(table, np.ones(len(table.scores), bool), "distorted")
    from_part = table.source[weaker] != "rising"
    assert set(weaker[from_part]) == set(first)
    assert sorted({*stronger[from_part], *first}) == list(range(len(parts)))
    assert (table.source[stronger] == table.source[weaker]).all()
    assert (table.group[stronger] == table.group[weaker]).all()
    drop = table.scores[weaker] - table.scores[stronger]
    np.testing.assert_allclose(fall[from_part], np.clip(drop[from_part], 0.05, 1.5))
    photograph = fitting.steps_of(table, np.ones(len(table.scores), bool), "photograph")
    assert len(photograph.weaker) == np.count_nonzero(~from_part)


def test_a_line_falls_at_steps_as_a_penalty_of_its_rises_makes_it() -> None:
    """The active steps, found in rounds, minimise ridge's loss with a squared penalty of every step that rises."""
    rng = np.random.default_rng(3)
    points, source = rng.normal(size=(60, 8)), np.repeat(["photographs", "rising"], 30)
    target = (points[:, :1] + rng.normal(0, 0.3, (60, 1))).round(3)
    steps = fitting.Steps(np.arange(30, 59), np.arange(31, 60), rng.uniform(0, 0.1, 29), rng.uniform(0.1, 0.3, 29))
    every = np.ones(60, bool)
    weights, offset = fitting.ridge(points, {"photograph": target}, source, fitting.products(points), every, steps)
    middle, moved = target[:30].mean(), points[steps.stronger] - points[steps.weaker]

    def loss(line) -> float:
        misfit = target[:30, 0] - middle - points[:30] @ line[:-1] - line[-1]
        rise = np.maximum(moved @ line[:-1] + steps.fall, 0)
        return misfit @ misfit / 0.2 + line @ line + rise @ (rise / steps.noise)

    best = optimize.minimize(loss, np.zeros(9), tol=1e-12).x
    np.testing.assert_allclose(weights[:, 0], best[:-1], atol=2e-3)
    assert offset[0] == pytest.approx(middle + best[-1], abs=2e-3)
    free = fitting.ridge(points, {"photograph": target}, source, fitting.products(points), every, NO_STEPS)[0]
    assert np.maximum(moved @ weights, 0).sum() < 0.5 * np.maximum(moved @ free, 0).sum()


def test_the_score_of_a_distorted_image_falls_at_steps() -> None:
    rng = np.random.default_rng(4)
    views, source = rng.normal(size=(60, 4)), np.repeat(["distorted", "rising"], 30)
    target, places = views[:, :1] + 0.5 * views[:, 1:2], (np.arange(30, 59, 2), np.arange(31, 60, 2))
    steps = fitting.Steps(*places, rng.uniform(0, 0.1, 15), rng.uniform(0.05, 0.2, 15))
    unit = Standard(np.zeros(4), np.ones(4), np.full(4, 0.5))
    kernel = _smooth()(unit.apply(views), unit.apply(views)[:30])
    middle, moved = target[:30].mean(), kernel[steps.stronger] - kernel[steps.weaker]

    def loss(dual) -> float:
        misfit, rise = target[:30, 0] - middle - kernel[:30] @ dual, np.maximum(moved @ dual + steps.fall, 0)
        penalty = rise @ (rise / steps.noise)
        return misfit @ misfit / 0.1 + dual @ kernel[:30] @ dual + penalty

    best = optimize.minimize(loss, np.zeros(30), tol=1e-10, options={"maxiter": 5000}).x
    found = fitting.kernel_fit(views, {"distorted": target}, source, unit, "nr", steps).values(views)[:, 0]
    free = fitting.kernel_fit(views, {"distorted": target}, source, unit, "nr", NO_STEPS).values(views)[:, 0]
    np.testing.assert_allclose(found, middle + kernel @ best, atol=0.02)
    rises, before = (np.maximum(values[steps.stronger] - values[steps.weaker], 0).sum() for values in (found, free))
    assert rises < 0.7 * before


def test_ridge_with_its_noise_is_a_linear_gaussian_process() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import DotProduct

    rng = np.random.default_rng(0)
    points, source = rng.normal(size=(30, 50)) / 7, np.repeat(["photographs", "undistorted", "distorted"], 10)
    target = rng.normal(3, 1, (30, 2))
    taken = np.ones(30, bool)
    weights, offset = fitting.ridge(points, {"photograph": target}, source, fitting.products(points), taken, NO_STEPS)
    rows = source != "distorted"
    noise = np.array([fitting.NOISE["photograph"][name] for name in source[rows]])
    middle = target[rows].mean(axis=0)
    process = GaussianProcessRegressor(DotProduct(1.0), alpha=noise, optimizer=None)
    expected = process.fit(points[rows], target[rows] - middle).predict(points) + middle
    np.testing.assert_allclose(points @ weights + offset, expected, atol=1e-4)


def test_a_kernel_that_keeps_every_image_is_a_gaussian_process() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor

    rng = np.random.default_rng(0)
    views, source = rng.normal(size=(60, 4)), np.repeat(["undistorted", "distorted"], 30)
    target = np.stack([np.sin(views[:, 0]), views[:, 1]], axis=1)
    unit = Standard(np.zeros(4), np.ones(4), np.full(4, 0.5))
    kernel = fitting.kernel_fit(views, {"damage": target}, source, unit, "nr", NO_STEPS)
    z, new = unit.apply(views), unit.apply(rng.normal(size=(9, 4)))
    middle = target.mean(axis=0)
    process = GaussianProcessRegressor(_smooth(), alpha=0.1, optimizer=None).fit(z, target - middle)
    np.testing.assert_allclose(kernel.values(new / 0.5), process.predict(new) + middle, atol=0.02)


def _table(seed: int, photographs: int = 24) -> images.Table:
    """Images whose first measurements say their quality, and the strength of blur or noise."""
    rng, rows = np.random.default_rng(seed), []
    for number in range(photographs):
        quality = rng.uniform(1.5, 4.5)
        rows.append((quality, 0.0, 0.0, "photographs", "authentic", number))
        rows.append((UNDISTORTED, 0.0, 0.0, "undistorted", "none", number))
        for kind, name in enumerate(("motion", "white_noise")):
            for severity in (0.8, 2.0, 3.0):
                blur, noise = severity * (kind == 0), severity * (kind == 1)
                rows.append((UNDISTORTED - severity, blur, noise, "distorted", name, number))
    score, blur, noise, source, distortion, group = (np.array(column) for column in zip(*rows, strict=True))
    told = np.stack([score, blur, noise, source != "photographs"], axis=1).astype(float)
    spreads = np.repeat(told, 10, axis=1) + rng.normal(0, 0.1, (len(told), 40))
    severities = np.zeros((len(told), len(SEVERITIES)))
    severities[:, 0], severities[:, DISTORTION_CATEGORIES.index("Noise")] = blur, noise
    differences = rng.normal(0, 0.05, (len(told), len(DIFFERENCE_NAMES)))
    differences[:, :80] += np.repeat(np.stack([blur, noise], axis=1), 40, axis=1)
    features = rng.normal(0, 1, (len(told), len(FEATURE_NAMES)))
    names = np.array([f"p{number}" for number in group])
    split = np.full(len(told), "train")
    moved = np.where((source == "distorted")[:, None], spreads - spreads[source == "undistorted"].mean(axis=0), 0.0)
    return images.Table(
        spreads, features, moved, differences, score, severities, source, names, split, distortion, np.zeros(len(told))
    )


def test_fitted_models_know_photographs_they_have_not_seen(monkeypatch) -> None:
    monkeypatch.setattr(fitting, "KEPT", {"nr": 120, "fr": 120})
    learned, held = _table(0), _table(1)
    alone, paired = fitting.alone(learned), fitting.paired(learned)
    arrays = alone.arrays() | paired.arrays()
    single, pair = (model_from(kind, arrays) for kind in ("nr", "fr"))
    vectors = np.hstack([held.spreads, held.features])
    seen = single.look(vectors)
    for source in ("photographs", "distorted"):
        rows = held.source == source
        assert np.corrcoef(seen.quality[rows], held.scores[rows])[0, 1] > 0.9
        assert np.corrcoef(alone.quality[rows], learned.scores[rows])[0, 1] > 0.9
    made = held.source == "distorted"
    against = pair.look(np.hstack([held.moved, held.differences]))
    assert np.corrcoef(against.quality[made], held.scores[made])[0, 1] > 0.95
    assert np.abs(against.severities[made] - held.severities[made]).mean() < 0.15
    motion = seen.values[:, OUTPUTS["nr"].index("motion")]
    assert motion[held.distortion == "motion"].mean() > motion[held.distortion == "white_noise"].mean() + 1
    assert figures.detection(seen.severities[made], held.severities[made], paired=False)["macro_f1"] > 0.2
    stated = figures.figures(learned, held, alone, paired, {"nr": single, "fr": pair}, learned.scores)
    assert stated["photographs, no reference, ten folds"]["n"] == 24
    assert "photographs validation, with reference" not in stated
    assert stated["the tool alone, photographs, ten folds"]["srcc"][0] == 1
    assert 0.7 < stated["interval"]["covered"] <= 1
    gate = stated["gate, train left out and validation"]
    assert gate["photographs"] == 48
    assert 0 <= gate["share"][1] <= gate["share"][0] <= gate["share"][2] <= 1
    assert len(figures.population(learned, alone)["quantiles"]["brightness"]) == 21


def test_folds_keep_what_shows_one_photograph_together() -> None:
    group = np.repeat([f"p{i}" for i in range(23)], 3)
    fold = fitting.folds(group)
    assert set(fold) == set(range(fitting.FOLDS))
    assert all(len(set(fold[group == name])) == 1 for name in group)


def test_the_tool_reads_spreads_alone() -> None:
    learned = _table(0)
    predicted, seen = np.zeros(len(learned.scores)), []
    for out, fit in tool.fits(learned):
        predicted[out] = fit.predict(learned.spreads[out])
        seen.append(out)
    assert fit.weights.shape == (40, 4)
    assert (np.sum(seen, axis=0) == 1).all()
    assert not seen[-1].any()
    rows = learned.source == "photographs"
    assert np.corrcoef(predicted[rows], learned.scores[rows])[0, 1] > 0.9


def test_errors_are_those_of_predictions_near_by() -> None:
    predicted = np.repeat([1.5, 4.5], 400)
    scores = predicted + np.tile([1.0, -1.0], 400) * np.repeat([0.8, 0.2], 400)
    found = fitting.errors_of(predicted, scores)
    assert found[1] == pytest.approx(0.8, abs=0.05)
    assert found[-2] == pytest.approx(0.2, abs=0.1)
