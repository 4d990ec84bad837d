"""Maps from raw tool values to scores 1..5."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from benchmarks import tool_strengths
from data.manifest import Sample
from program import calibrate
from program.common.errors import SettingsError, ToolError
from program.common.settings import load_settings
from program.evaluation.calibrating import LabelledSet, Surveyed, fit_all
from program.evaluation.metrics import fit_map
from program.tools.calibration import (
    Calibration,
    Provenance,
    Residual,
    Strengths,
    ToolCalibration,
    apply_map,
    least_variance,
    printed_maps,
)
from program.tools.registry import Measurement, ToolRegistry
from program.tools.runner import ToolRunner
from signatures.schemas import DISTORTION_CATEGORIES
from tests.tables import as_lines

pytestmark = pytest.mark.usefixtures("untracked")

WIDE = np.unique(np.concatenate([-np.logspace(6, -9, 400), [0.0], np.logspace(-9, 6, 400), np.linspace(-3, 100, 4000)]))
SHIPPED = Calibration.load()
REGISTRY = ToolRegistry.load()


def _curve(raw):
    return 1.2 + 3.4 / (1 + np.exp(-(raw - 32) / 3))


def _fitted(noise=0.0, n=300, sign=1, **options):
    rng = np.random.default_rng(3)
    raw = rng.uniform(18, 48, n)
    human = np.clip(_curve(raw) + noise * rng.standard_normal(n), 1, 5)
    return fit_map(sign * raw, human, higher_is_better=sign > 0, **options)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_known_logistic_is_recovered_in_either_direction(sign):
    fitted = _fitted(sign=sign)
    grid = np.linspace(20, 46, 60)
    assert fitted.kind == "logistic"
    np.testing.assert_allclose(apply_map(fitted, sign * grid), _curve(grid), atol=2e-3)


def test_noise_changes_little_where_data_is_plenty():
    grid = np.linspace(22, 44, 40)
    assert np.max(np.abs(apply_map(_fitted(noise=0.4, n=3000), grid) - _curve(grid))) < 0.12


def test_a_map_is_monotone_finite_and_within_the_scale_over_a_wide_range():
    rng = np.random.default_rng(0)
    for trial in range(4):
        n = int(rng.integers(8, 200))
        scale = 10.0 ** rng.integers(-6, 5)
        raw = scale * rng.standard_normal(n) ** int(rng.integers(1, 4)) + scale * rng.integers(-3, 3)
        better = bool(rng.integers(2))
        human = np.clip(3 + (1 if better else -1) * rng.normal(0.8) * raw / scale + rng.standard_normal(n), 1, 5)
        identity = float(raw.max() if better else raw.min()) if trial % 2 else None
        fitted = fit_map(raw, human, higher_is_better=better, identity=identity)
        scores = apply_map(fitted, WIDE)
        assert np.all(np.isfinite(scores)), trial
        assert np.all(np.diff(scores) * (1 if better else -1) >= 0), trial
        assert scores.min() >= 1, trial
        assert scores.max() <= 5, trial
        if identity is not None:
            assert apply_map(fitted, identity) == 5.0


def test_the_largest_floats_are_scored():
    fitted = _fitted()
    assert np.all(np.isfinite(apply_map(fitted, [-1.7e308, 1.7e308, 5e-324])))


def test_the_identity_gets_5_and_the_middle_stays_as_without_it():
    plain, pinned = _fitted(noise=0.2), _fitted(noise=0.2, identity=80.0)
    middle = np.linspace(19, 45, 50)
    assert apply_map(pinned, 80.0) == 5.0
    assert apply_map(plain, 80.0) < 5.0
    np.testing.assert_allclose(apply_map(pinned, middle), apply_map(plain, middle), atol=1e-9)


def test_identities_in_the_data_do_not_bend_the_map():
    rng = np.random.default_rng(1)
    raw = rng.uniform(18, 48, 200)
    with_identities = fit_map(np.append(raw, [80.0] * 60), np.append(_curve(raw), [4.6] * 60), identity=80.0)
    assert with_identities == fit_map(raw, _curve(raw), identity=80.0)


def test_a_tool_that_knows_little_gets_scores_near_the_mean():
    rng = np.random.default_rng(5)
    human = rng.uniform(1, 5, 2000)
    poor = human + rng.normal(0, 6, 2000)
    weak = fit_map(poor, human)
    strong = fit_map(human + rng.normal(0, 0.3, 2000), human)
    grid = np.linspace(1, 5, 100)
    assert np.ptp(apply_map(weak, grid)) < 0.25 * np.ptp(apply_map(strong, grid))
    assert abs(apply_map(weak, poor).mean() - human.mean()) < 0.01


def test_a_step_is_fitted_by_isotonic_regression_as_scikit_learn_does_it():
    from sklearn.isotonic import IsotonicRegression

    rng = np.random.default_rng(2)
    raw = np.sort(rng.uniform(0, 1, 400))
    human = np.select([raw < 0.2, raw < 0.4, raw < 0.6, raw < 0.8], [1.2, 2.6, 2.7, 4.0], 4.9) + rng.normal(
        0, 0.02, 400
    )
    fitted = fit_map(raw, human)
    expected = IsotonicRegression(y_min=1, y_max=5, out_of_bounds="clip").fit(raw, human)
    assert fitted.kind == "isotonic"
    np.testing.assert_allclose(apply_map(fitted, raw), expected.predict(raw), atol=1e-9)


def test_fitting_twice_gives_the_same_numbers():
    assert _fitted(noise=0.3) == _fitted(noise=0.3)


@pytest.mark.parametrize(
    ("raw", "human", "message"),
    [
        ([1.0] * 20, [3.0] * 20, "20 usable readings, 8 that are not all equal"),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], "3 usable readings"),
        ([1.0, float("nan")], [1.0, 2.0], "must be finite"),
        ([1.0, 2.0], [1.0], "of equal number"),
    ],
)
def test_what_cannot_be_fitted_says_why(raw, human, message):
    with pytest.raises(ValueError, match=message):
        fit_map(raw, human)


@pytest.mark.parametrize("name", sorted(SHIPPED.tools))
def test_every_shipped_map_is_monotone_finite_and_within_the_scale(name):
    spec, entry = REGISTRY.get(name), SHIPPED.tools[name]
    scores = apply_map(entry.map, WIDE)
    assert np.all(np.isfinite(scores))
    assert np.all(np.diff(scores) * (1 if spec.higher_is_better else -1) >= 0)
    assert 1 <= scores.min() <= scores.max() <= 5
    assert entry.map.sign == (1 if spec.higher_is_better else -1)
    assert np.ptp(apply_map(entry.map, np.linspace(*entry.raw_range, 100))) > 0.2
    if spec.mode == "FR":
        assert SHIPPED.score(name, spec.identity) == 5.0


def test_shipped_maps_say_what_they_were_fitted_on():
    affordable = {spec.name for spec in REGISTRY.specs() if spec.needs != "weights" and spec.cost != "expensive"}
    assert affordable <= set(SHIPPED.tools)
    for name, entry in SHIPPED.tools.items():
        spec = REGISTRY.get(name)
        for source in entry.sources:
            provenance = SHIPPED.sources[source]
            assert provenance.split == "train"
            assert len(provenance.manifest_sha256) == 64
            assert provenance.date
        assert entry.residual.n > 100
        assert entry.function == spec.key
        assert entry.library.startswith(f"{spec.library} ")
        # What no-reference tools know of real photographs is measured on real photographs.
        assert (entry.authentic is not None) is (spec.mode == "NR")


def test_a_calibration_survives_its_file(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text(_example().to_json(), encoding="utf-8")
    loaded = Calibration.load(path)
    assert loaded.tools == _example().tools
    assert loaded.sources == _example().sources
    assert loaded.score("PSNR", 31.25) == _example().score("PSNR", 31.25)


def test_updating_replaces_maps_and_drops_unused_sources():
    example = _example()
    entry = example.tools["PSNR"]
    other = entry.model_copy(update={"sources": ("mine (all)",)})
    kept = example.merge({"VIF": other}, {"mine (all)": example.sources["toy (train)"]})
    assert set(kept.sources) == {"toy (train)", "mine (all)"}
    assert set(kept.tools) == {"PSNR", "VIF"}
    replaced = kept.merge({"PSNR": other}, {"mine (all)": example.sources["toy (train)"]})
    assert set(replaced.sources) == {"mine (all)"}


def test_a_tool_without_a_map_or_a_value_that_is_not_finite_is_an_error():
    with pytest.raises(ToolError, match=r"tool 'VIF': has no map to 1\.\.5 .*program\.calibrate"):
        _example().score("VIF", 0.5)
    with pytest.raises(ToolError, match="tool 'PSNR': raw value nan"):
        _example().score("PSNR", float("nan"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["tools"]["PSNR"].pop("residual"), r"calibration\.json'?: tools\.PSNR\.residual: field required"),
        (lambda t: t["tools"]["PSNR"]["map"].update(scale=0), r"tools\.PSNR\.map\.scale"),
        (lambda t: t["tools"]["PSNR"]["map"].update(logistic=[1, -2, 1, 0, 0]), "b, s and c not below 0"),
        (lambda t: t["tools"]["PSNR"]["map"].update(kind="isotonic", knots=[[0, 3], [1, 2]]), "rising knots"),
        (lambda t: t["tools"]["PSNR"].update(colour="red"), r"tools\.PSNR\.colour: unknown field"),
        (lambda t: t["sources"].clear(), "no source 'toy"),
    ],
)
def test_a_malformed_file_is_named_with_its_key(tmp_path, change, message):
    tree = json.loads(_example().to_json())
    change(tree)
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(tree), encoding="utf-8")
    with pytest.raises(SettingsError, match=f"(?i){message}") as caught:
        Calibration.load(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_broken_json_are_one_line(tmp_path):
    with pytest.raises(SettingsError, match=r"none\.json.*cannot be read"):
        Calibration.load(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"broken\.json': not valid JSON"):
        Calibration.load(tmp_path / "broken.json")


def _example():
    fitted = _fitted(identity=80.0)
    entry = ToolCalibration(
        sources=("toy (train)",), function="psnr", library="pyiqa 0",
        residual=Residual(n=300, rmse=0.3, spread=1.0), srcc=1.0, raw_range=(18.0, 48.0), map=fitted,
    )  # fmt: skip
    provenance = Provenance(dataset="toy", manifest_sha256="0" * 64, split="train", samples=300, date="2026-01-01")
    return Calibration(sources={"toy (train)": provenance}, tools={"PSNR": entry})


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """Path of a manifest of 24 noisy and 24 blurred copies of two pictures, with human scores that fall."""
    from PIL import Image
    from scipy.ndimage import gaussian_filter

    folder, rng, lines = tmp_path_factory.mktemp("labelled"), np.random.default_rng(4), []
    for group in ("one", "two"):
        scene = gaussian_filter(rng.uniform(0, 255, (96, 96, 3)), (1.5, 1.5, 0)) * 2 - 128
        for level in range(-1, 24):
            for kind in ("white_noise", "gblur"):
                changed = scene + level * rng.standard_normal(scene.shape)
                pixels = gaussian_filter(scene, (level / 8, level / 8, 0)) if kind == "gblur" and level > 0 else changed
                name = f"{group}-{kind}-{level}.png"
                Image.fromarray(np.clip(scene if level < 0 else pixels, 0, 255).astype(np.uint8)).save(folder / name)
                if level >= 0:
                    lines.append(
                        {"id": name, "image": name, "reference": f"{group}-gblur--1.png", "mos": 4.8 - level / 7,
                         "distortion": kind, "group": group, "split": "train" if group == "one" else "test"}
                    )  # fmt: skip
    path = folder / "manifest.jsonl"
    path.write_text(as_lines(lines), encoding="utf-8")
    return path


def test_what_is_nearly_its_reference_says_nothing_of_how_errors_go_together(rng):
    specs = [REGISTRY.get("SSIM"), REGISTRY.get("HaarPSI")]
    human = rng.uniform(1, 5, 60)
    raw = [0.2 + 0.15 * human + rng.normal(0, 0.05, 60) for _ in specs]

    def correlations(near):
        samples = [
            Sample(id="x", image=Path("x.png"), reference=Path("y.png"), mos=score) for score in [*human, *[2.0] * near]
        ]
        rows = [
            {spec.name: Measurement(tool=spec.name, raw=value) for spec, value in zip(specs, values, strict=True)}
            for values in [*zip(*raw, strict=True), *[(1 - 4e-6, 1 - 6e-6)] * near]
        ]
        found, _ = fit_all(Surveyed.of([(LabelledSet("toy", "0" * 64, "train", samples), rows)], specs, {}))
        return {name: tool.correlations for name, tool in found.items()}

    assert correlations(30) == correlations(0)
    assert abs(correlations(0)["SSIM"]["HaarPSI"]) < 0.5


def test_a_tool_is_not_measured_on_the_scores_that_it_was_trained_on(rng):
    trained = REGISTRY.get("SSIM").model_copy(update={"trained_on": ("KADID-10k",)})
    specs, human = [trained, REGISTRY.get("HaarPSI")], rng.uniform(1, 5, 30)
    samples = [Sample(id="x", image=Path("x.png"), reference=Path("y.png"), mos=score) for score in human]
    rows = [{spec.name: Measurement(tool=spec.name, raw=0.1 + score / 6) for spec in specs} for score in human]

    def fitted(name):
        found, _ = fit_all(Surveyed.of([(LabelledSet(name, "0" * 64, "train", samples), rows)], specs, {}))
        return set(found)

    assert fitted("kadid-10k") == fitted("sets/kadid-10k") == {"HaarPSI"}
    assert fitted("another") == {"SSIM", "HaarPSI"}


@pytest.mark.slow
def test_the_command_fits_writes_keeps_other_maps_and_takes_its_time_once(tmp_path, manifest, capsys):
    out = tmp_path / "deep" / "calibration.json"
    assert calibrate.main([str(manifest), "--tools", "psnr,GMSD", "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["tools"]) == {"PSNR", "GMSD"}
    assert 40 <= report["tools"]["PSNR"]["n"] <= 48
    loaded = Calibration.load(out)
    (provenance,) = loaded.sources.values()
    assert provenance.groups == ("one",)
    assert provenance.dataset == manifest.parent.name
    assert provenance.samples == 48
    assert loaded.tools["PSNR"].srcc > 0.7
    assert loaded.score("GMSD", 0.0) == 5.0
    before = out.read_bytes()
    assert calibrate.main([str(manifest), "--tools", "PIQE", "--split", "test", "--out", str(out), "--force"]) == 0
    assert Calibration.load(out).tools["PSNR"] == loaded.tools["PSNR"]
    assert len(Calibration.load(out).sources) == 2
    assert out.read_bytes() != before
    assert [p.name for p in out.parent.iterdir()] == ["calibration.json"]


def test_two_manifests_of_a_folder_are_two_sources_and_addresses_stay_whole(tmp_path, manifest):
    other = tmp_path / "others.jsonl"
    other.write_text('{"id": "1", "image": "s3://photos/one.png", "mos": 3, "mos_range": [1, 5]}\n', "utf-8")
    read = [LabelledSet.read(str(path), "all", tmp_path, ["s3"]) for path in (manifest, other)]
    assert [each.source for each in read] == [f"{manifest.parent.name} (all)", f"{tmp_path.name}/others (all)"]
    assert read[1].samples[0].image == "s3://photos/one.png"


def test_a_bad_image_is_reported_and_the_rest_is_fitted(tmp_path, manifest, capsys):
    shutil.copytree(manifest.parent, tmp_path / "labelled")
    (tmp_path / "labelled/one-white_noise-3.png").write_bytes(b"")
    out = tmp_path / "calibration.json"
    assert calibrate.main([str(tmp_path / "labelled" / manifest.name), "--tools", "PSNR", "--out", str(out)]) == 1
    assert "PSNR: 1 of 48 failed, the first: image " in capsys.readouterr().err
    assert "PSNR" in Calibration.load(out).tools


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.jsonl"], "error: dataset 'none.jsonl'"),
        (["manifest.jsonl", "--tools", "PSNRR"], r"error: tool 'PSNRR': is not known here \(did you mean 'PSNR'\?\)"),
        (["manifest.jsonl", "--tools", "NIQE"], "no tool could be fitted .*niqe_modelparameters"),
        (["manifest.jsonl", "--split", "validation"], "no sample with people's score in split 'validation'"),
    ],
)
def test_what_cannot_be_calibrated_is_one_line_and_exit_code_2(manifest, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(manifest.parent)
    monkeypatch.setenv("TORCH_HOME", str(manifest.parent))
    assert calibrate.main([*arguments, "--out", "calibration.json"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error)
    assert not (manifest.parent / "calibration.json").exists()


@pytest.mark.parametrize("name", sorted(SHIPPED.tools))
def test_finite_values_are_scored_in_order_within_the_scale_whatever_is_damaged(name):
    usual = np.linspace(*SHIPPED.tools[name].raw_range, 20)
    values = sorted([-1.7e308, *WIDE[::400], *usual, 1.7e308], reverse=not REGISTRY.get(name).higher_is_better)
    for category in (None, "Overall", *DISTORTION_CATEGORIES):
        scores = [SHIPPED.score(name, raw, category) for raw in values]
        # The two parts of a category's score are added: a unit in the last place is no step down.
        assert np.diff(scores).min() >= -1e-12
        assert 1 <= scores[0] <= scores[-1] <= 5 + 1e-12


@pytest.mark.parametrize("category", [None, *DISTORTION_CATEGORIES])
def test_an_undistorted_image_gets_5_from_every_tool_with_a_reference(category):
    for name in SHIPPED.tools:
        spec = REGISTRY.get(name)
        if spec.mode == "FR":
            assert SHIPPED.score(name, spec.identity, category) == 5.0
    # piq's HaarPSI of equal images is up to 6e-6 off.
    assert SHIPPED.score("HaarPSI", 1 - 6e-6, category) == 5.0


@given(
    errors=st.lists(st.floats(0.1, 2), min_size=1, max_size=8), shared=st.floats(0, 0.98), seed=st.integers(0, 2**16)
)
def test_the_least_variance_is_that_of_a_quadratic_programme(errors, shared, seed):
    n = len(errors)
    loads = np.random.default_rng(seed).uniform(0.3, 1, n)
    together = shared * np.outer(loads, loads)
    np.fill_diagonal(together, 1.0)
    covariance = together * np.outer(errors, errors)
    weights, variance = least_variance(covariance)
    root = np.linalg.cholesky(covariance + 1e-12 * np.eye(n)).T
    expected, _ = nnls(np.vstack([root, 1e3 * np.ones(n)]), np.append(np.zeros(n), 1e3))
    expected /= expected.sum()
    assert weights.sum() == pytest.approx(1)
    assert weights.min() >= 0
    # Leaving items one by one may miss the optimum by a little; it is never worse than the best single one.
    assert variance <= min(np.diag(covariance)) + 1e-9
    assert variance == pytest.approx(float(expected @ covariance @ expected), rel=0.02)


def _known(**residuals):
    entry = _example().tools["PSNR"]
    tools = {
        name: entry.model_copy(update={"residual": found, "correlations": {}}) for name, found in residuals.items()
    }
    return Calibration(sources=_example().sources, tools=tools)


def test_precisions_add_up_to_that_of_the_combined_score():
    sure, same = Residual(n=99, rmse=0.5, spread=1.0), Residual(n=99, rmse=0.5, spread=1.0)
    calibration = _known(A=sure, B=same)
    assert calibration.precisions([("A", None)]) == pytest.approx([sure.precision], abs=1e-6)
    both = calibration.precisions([("A", None), ("B", None)])
    variance = 0.25 * (1 + 0.8) / 2
    assert both == pytest.approx([(1 / variance - 1) / 2] * 2, abs=1e-5)
    assert sum(calibration.precisions([("A", None), ("A", None)])) == pytest.approx(sure.precision, abs=1e-5)
    assert calibration.precisions([]) == []


def test_a_tool_that_knows_nothing_adds_nothing_and_one_without_a_map_says_nothing():
    calibration = _known(A=Residual(n=99, rmse=0.5, spread=1.0), Blind=Residual(n=99, rmse=1.0, spread=1.0))
    assert calibration.precisions([("A", None), ("Blind", None), ("VIF", None)]) == pytest.approx([3.0, 0.0, None])


def test_a_mean_over_other_images_as_label_makes_no_tool_surer_than_it_is():
    exact, label = Residual(n=9, rmse=0.2, spread=1.0), Residual(n=9, rmse=0.2, spread=1.0, label_sd=0.4)
    assert label.precision == pytest.approx(1 / (0.04 + 0.16) - 1 / 1.16)
    assert label.precision < exact.precision


def test_what_a_tool_knows_of_real_photographs_bounds_what_it_is_believed():
    for name in ("PIQE", "NIQE", "BRISQUE"):
        entry = SHIPPED.tools[name]
        for category in (None, *DISTORTION_CATEGORIES):
            assert entry.error(category).precision <= entry.authentic.precision
    piqe, niqe = (SHIPPED.precisions([(name, "Blurs")])[0] for name in ("PIQE", "NIQE"))
    assert piqe < 0.5 * niqe


def test_the_papers_maps_are_its_equation_with_the_missing_one_and_clipped():
    calibration = ToolRunner(load_settings(overrides={"tools": {"calibration": "paper"}}), REGISTRY).calibration
    b1, b2, b3, b4, b5 = 21.73, 0.1147, 0.4721, 3.5654, 1.0094
    expected = b1 * (0.5 - 1 / (1 + np.exp(b2 * (0.6 - b3)))) + b4 * 0.6 + b5
    assert calibration.score("TOPIQ_FR", 0.6) == pytest.approx(expected)
    assert calibration.score("LPIPS", 1.0) == 1.0
    assert calibration.score("WaDIQaM_FR", 0.1) == 5.0
    assert calibration.knows("VIF")
    assert not calibration.knows("PSNR")
    assert calibration.precisions([("VIF", None)]) == [None]
    with pytest.raises(ToolError, match="tool 'PSNR': has no row in the paper's Table 5"):
        calibration.score("PSNR", 30.0)
    for name in printed_maps():
        assert np.isfinite([calibration.score(name, raw) for raw in (-1e308, 1e308)]).all()


def test_strengths_are_measured_and_written_beside_those_that_are_there(tmp_path, manifest, capsys):
    out = tmp_path / "strengths.json"
    tool_strengths.main([str(manifest), "--tools", "psnr,MDSI", "--out", str(out)])
    assert "MDSI" in capsys.readouterr().out
    found = Strengths.load(out)
    assert set(found.tools) == {"PSNR", "MDSI"}
    assert set(found.tools["MDSI"].by_category) == {"Blurs", "Noise"}
    assert found.tools["MDSI"].by_category["Noise"].srcc > 0.9
    assert (
        ToolRegistry.load(strengths=out).get("MDSI").strength("Noise") == found.tools["MDSI"].by_category["Noise"].srcc
    )
    tool_strengths.main([str(manifest), "--tools", "GMSD", "--out", str(out)])
    assert set(Strengths.load(out).tools) == {"PSNR", "MDSI", "GMSD"}
