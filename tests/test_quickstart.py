"""The quickstart data: what is in it, that it is made whole or not at all, and always the same."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data import quickstart
from data.catalogue import resolve_dataset
from data.distortions import DISTORTIONS, IDENTITIES, LEVELS, distort, generator_for, level_mean, severity_of
from data.manifest import GENERATED, Sample, manifest_sha256, read_manifest
from data.quickstart import (
    FULL,
    PHOTOGRAPHS,
    HouseStandard,
    MadeQuestion,
    QuickstartPlan,
    Version,
    build_quickstart,
    load_photograph,
    make_questions,
    photograph_bytes,
)
from data.splits import check_leaks
from program.common.errors import DataError, InputError
from program.common.settings import load_settings
from program.evaluation.calibrating import LabelledSet

ROOT = Path(__file__).resolve().parents[1]
SMALL = QuickstartPlan(
    photographs=("camera", "coffee", "chelsea"),
    distortions=("gaussian_blur", "jpeg", "white_noise", "color_saturation_1", "brighten", "color_block", "mean_shift"),
    levels=(1, 3, 5),
)
TINY = QuickstartPlan(photographs=("chelsea",), distortions=("mean_shift", "jpeg"), levels=(1, 3))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_quickstart(tmp_path_factory.mktemp("cache"), progress=False, plan=SMALL)


@pytest.fixture(scope="module")
def samples(small: Path) -> list[Sample]:
    return list(read_manifest(small))


@pytest.fixture(scope="module")
def questions() -> dict[str, list[MadeQuestion]]:
    """The whole set's questions, which need no image."""
    every = (Version(), *(Version(d, n) for d in DISTORTIONS for n in LEVELS))
    return {
        split: make_questions({p.name: every for p in PHOTOGRAPHS.values() if p.split == split})
        for split in ("train", "validation", "test")
    }


def test_every_photograph_ships_and_has_a_licence_and_fits(tmp_path: Path) -> None:
    for name, photograph in PHOTOGRAPHS.items():
        pixels = load_photograph(name)
        assert max(pixels.shape[:2]) == 384
        assert pixels.shape[2] == 3
        assert photograph.licence
        assert photograph.source
    assert Counter(p.split for p in PHOTOGRAPHS.values()) == {"train": 5, "validation": 2, "test": 2}


def test_validation_and_test_photographs_are_in_colour() -> None:
    assert {photograph.split for photograph in PHOTOGRAPHS.values()} == {"train", "validation", "test"}
    for photograph in PHOTOGRAPHS.values():
        pixels = load_photograph(photograph.name).astype(int)
        assert photograph.split == "train" or np.abs(pixels[..., 0] - pixels[..., 2]).mean() > 5


def test_one_scoring_line_per_version_with_the_mean_human_score(small: Path) -> None:
    scoring = list(read_manifest(small.with_name("manifest-fr.jsonl")))
    assert not any(sample.is_made_up for sample in scoring)
    colour = 2 * len(SMALL.distortions) * 3
    grey = (len(SMALL.distortions) - 2) * 3
    assert len(scoring) == colour + grey
    for sample in scoring:
        mean = level_mean(sample.distortion or "", sample.metadata["level"])
        assert (sample.mos, sample.mos_range) == (mean.mos, (1, 5))
        # How far images lie apart is not how far people do.
        assert (sample.mos_std, sample.metadata["label_std"]) == (None, mean.mos_std)
        assert sample.metadata["severity"] == severity_of(mean.mos)
        assert sample.metadata["identity"] == ((sample.distortion, sample.metadata["level"]) in IDENTITIES)
        assert "not a score of this image" in sample.metadata["label_note"]
        assert sample.split == PHOTOGRAPHS[sample.group or ""].split
        assert sample.metadata["licence"]
    assert len({s.query for s in scoring}) == 4


@pytest.mark.spec("issue-44/house-standard")
def test_the_scores_to_learn_follow_the_standard_that_is_written_in_the_docs(samples: list[Sample]) -> None:
    """The rule is worked out again from docs/data.md: the table of weights, the shift, and KADID-10k's means."""
    text = (ROOT / "docs/data.md").read_text("utf-8").partition("### The house standard")[2]
    rows = re.findall(r"^\| ([a-z ,-]+) \| ([0-9.]+) \|", text, re.MULTILINE)
    weights = {name: float(weight) for names, weight in rows for name in names.split(", ")}
    (shift,) = re.findall(r"minus ([0-9.]+)", text)
    names = {"Noise": "noise", "Compression": "compression", "Color distortions": "wrong colour"}
    scored = [sample for sample in samples if sample.task == "scoring"]
    assert len(scored) > 50
    for sample in scored:
        mean = level_mean(sample.distortion or "", sample.metadata["level"]).mos
        weight = weights[names.get(str(sample.metadata["category"]), "everything else")]
        expected = min(5, max(1, 4.6 - weight * (4.6 - mean) - float(shift)))
        assert sample.mos == pytest.approx(expected, abs=1e-4)
        assert sample.metadata["people_mean"] == mean
    assert all(sample.is_made_up for sample in samples)


def test_tools_are_calibrated_on_people_alone(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.quickstart.build_quickstart", lambda cache_dir, progress: small)
    with pytest.raises(InputError, match="'quickstart': no sample with people's score in split 'all'"):
        LabelledSet.read("quickstart", "all", load_settings().cache_dir)


def test_calibration_knows_how_far_an_image_lies_from_its_score(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.quickstart.build_quickstart", lambda cache_dir, progress: small)
    found = LabelledSet.read("quickstart-fr", "all", load_settings().cache_dir).samples
    spreads = {level_mean(name, level).mos_std for name in SMALL.distortions for level in SMALL.levels}
    assert len({sample.metadata["label_std"] for sample in found}) > 10
    assert {sample.metadata["label_std"] for sample in found} <= spreads


def test_images_are_the_distorted_photographs(samples: list[Sample]) -> None:
    for sample in [s for s in samples if s.task == "scoring"][::9]:
        name, distortion, level = sample.id.split("/")
        expected = distort(load_photograph(name), distortion, int(level), generator_for(name, distortion, int(level)))
        np.testing.assert_array_equal(np.asarray(Image.open(sample.image)), expected)


def test_no_file_name_tells_anything(small: Path, samples: list[Sample]) -> None:
    assert len(samples) > 100
    for sample in samples:
        assert sample.image.parent == small.parent / "images"
        assert re.fullmatch(r"[0-9a-f]{20}\.png", sample.image.name)
        assert sample.image.is_file()
    # No two labels share a file unless their pixels are the same.
    labels: dict[str, set[tuple[str | None, object]]] = {}
    for sample in samples:
        labels.setdefault(sample.image.name, set()).add((sample.distortion, sample.metadata.get("level")))
    assert all(keys <= IDENTITIES | {(None, None)} for keys in labels.values() if len(keys) > 1)


def test_pngs_hold_pixels_only(samples: list[Sample]) -> None:
    with Image.open(samples[0].image) as picture:
        assert picture.info == {}


def test_groups_do_not_leak(samples: list[Sample]) -> None:
    check_leaks(samples)
    assert {s.split for s in samples} == {"train", "validation", "test"}


def test_the_full_reference_manifest_has_the_same_images_and_a_reference(small: Path, samples: list[Sample]) -> None:
    with_reference = list(read_manifest(small.with_name("manifest-fr.jsonl")))
    assert [(s.id, s.image, s.query, s.split) for s in with_reference] == [
        (s.id, s.image, s.query, s.split) for s in samples if s.task == "scoring"
    ]
    references = {sample.group: sample.reference for sample in with_reference}
    assert {sample.reference for sample in with_reference} == set(references.values())
    assert set(references) == set(SMALL.photographs)
    for name, reference in references.items():
        np.testing.assert_array_equal(np.asarray(Image.open(reference)), load_photograph(name))


def test_the_first_lines_are_a_mixture(samples: list[Sample]) -> None:
    first = samples[:30]
    assert len({s.group for s in first}) == 3
    assert {s.task for s in first} == {"scoring", "mcq"}
    assert len({s.id for s in samples}) == len(samples)


def test_two_builds_are_the_same_to_the_byte(tmp_path: Path) -> None:
    plan = SMALL._replace(photographs=("chelsea",), levels=(1, 5))
    one, again = (build_quickstart(tmp_path / name, progress=False, plan=plan) for name in "ab")
    assert again.parent.name == one.parent.name
    for name in GENERATED.values():
        assert manifest_sha256(again.with_name(name)) == manifest_sha256(one.with_name(name))
    images = sorted(p.name for p in (one.parent / "images").iterdir())
    assert len(images) > 2 * len(SMALL.distortions) - 1
    assert sorted(p.name for p in (again.parent / "images").iterdir()) == images


def test_a_second_call_makes_nothing(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickstart, "_build", None)
    started = time.thread_time()
    assert build_quickstart(small.parents[1], progress=False, plan=SMALL) == small
    assert time.thread_time() - started < 1


def test_the_revision_changes_with_plan_generator_and_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {FULL.revision(), SMALL.revision(), TINY.revision()}
    monkeypatch.setattr(quickstart, "GENERATOR_VERSION", 0)
    seen.add(TINY.revision())
    monkeypatch.setattr(quickstart, "level_means_sha256", lambda: "other")
    seen.add(TINY.revision())
    monkeypatch.setattr(quickstart, "photograph_bytes", lambda name: b"other")
    seen.add(TINY.revision())
    monkeypatch.setattr(quickstart, "HOUSE", HouseStandard({"Noise": 0.5}, shift=0))
    seen.add(TINY.revision())
    assert len(seen) == 7


def test_after_a_failure_the_next_run_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = quickstart._store
    calls = iter(range(100))

    def failing(folder: Path, pixels: object) -> str:
        if next(calls) == 3:
            raise OSError(28, "No space left on device")
        return store(folder, pixels)  # type: ignore[arg-type]

    monkeypatch.setattr(quickstart, "_store", failing)
    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\); free space"):
        build_quickstart(tmp_path, progress=False, plan=TINY)
    assert not list(tmp_path.rglob("*.json*"))
    monkeypatch.setattr(quickstart, "_store", store)
    assert build_quickstart(tmp_path, progress=False, plan=TINY).is_file()


def test_a_killed_run_leaves_nothing_that_is_taken_for_whole(tmp_path: Path) -> None:
    program = (
        "import os, data.quickstart as q\n"
        "from pathlib import Path\n"
        "q.write_manifest = lambda *a: os._exit(9)\n"
        f"plan = q.QuickstartPlan({TINY.photographs}, {TINY.distortions}, {TINY.levels})\n"
        f"q.build_quickstart(Path({str(tmp_path)!r}), progress=False, plan=plan)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert run.returncode == 9
    assert sorted(os.listdir(tmp_path)) == [f"quickstart-{TINY.revision()}", "quickstart.lock"]
    manifest = build_quickstart(tmp_path, progress=False, plan=TINY)
    assert len(list(read_manifest(manifest))) >= 4
    assert sorted(os.listdir(tmp_path)) == [manifest.parent.name, "quickstart.lock"]


@pytest.mark.parametrize("damage", ["manifest.jsonl", "manifest-fr.jsonl", "quickstart.json", "image"])
def test_a_damaged_folder_is_made_anew(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    manifest = build_quickstart(tmp_path, progress=False, plan=TINY)
    digest = manifest_sha256(manifest)
    victim = next((manifest.parent / "images").iterdir()) if damage == "image" else manifest.with_name(damage)
    victim.unlink()
    own = [manifest.parent / name for name in ("notes.txt", "images/mine.png")]
    for path in own:
        path.write_text("mine", "utf-8")
    again = build_quickstart(tmp_path, progress=False, plan=TINY)
    assert manifest_sha256(again) == digest
    assert victim.is_file()
    assert "is incomplete; it is made again" in caplog.text
    assert [path.read_text("utf-8") for path in own] == ["mine", "mine"]
    assert sorted(os.listdir(tmp_path)) == [again.parent.name, "quickstart.lock"]


def test_builders_at_once_agree(tmp_path: Path) -> None:
    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(build_quickstart(tmp_path, progress=False, plan=TINY)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(set(results)) == 1
    assert sorted(os.listdir(tmp_path)) == [results[0].parent.name, "quickstart.lock"]


def test_an_unwritable_cache_is_one_line(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x", encoding="utf-8")
    with pytest.raises(DataError, match=r"quickstart data in .*: cannot be written \(.*\); free space") as caught:
        build_quickstart(blocked, progress=False, plan=TINY)
    assert "\n" not in str(caught.value)


def test_progress_goes_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_quickstart(tmp_path, plan=TINY)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Making quickstart images" in captured.err


def test_a_photograph_that_is_missing_names_package_and_mend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(quickstart, "files", lambda package: tmp_path)
    with pytest.raises(DataError, match=r"photograph 'china': sklearn/datasets/images/china.jpg is not .*scikit-learn"):
        photograph_bytes("china")

    def absent(package: str) -> Path:
        raise ModuleNotFoundError(package)

    monkeypatch.setattr(quickstart, "files", absent)
    with pytest.raises(DataError, match=r"photograph 'chelsea': skimage is not installed; `pip install .`$"):
        build_quickstart(tmp_path, progress=False, plan=TINY)


def test_datasets_resolve_by_name_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.quickstart.build_quickstart", lambda cache, progress: cache / "q" / "manifest.jsonl")
    assert resolve_dataset("quickstart", tmp_path) == tmp_path / "q" / "manifest.jsonl"
    assert resolve_dataset("quickstart-fr", tmp_path) == tmp_path / "q" / "manifest-fr.jsonl"
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"id": "a", "image": "a.png"}), encoding="utf-8")
    assert resolve_dataset(own, tmp_path) == own
    assert resolve_dataset(str(own), tmp_path) == own
    with pytest.raises(DataError, match=r"dataset 'quikstart': neither .*; did you mean 'quickstart'\?"):
        resolve_dataset("quikstart", tmp_path)
    with pytest.raises(DataError, match=r"neither a known name nor a file; did you mean '.*own\.jsonl'\?"):
        resolve_dataset(tmp_path / "own.json", tmp_path)
    with pytest.raises(DataError, match="give a manifest's path or quickstart or quickstart-fr"):
        resolve_dataset("/nowhere/at/all", tmp_path)
    with pytest.raises(DataError, match=r"is a folder; give a manifest in it \(own\.jsonl\)"):
        resolve_dataset(tmp_path, tmp_path)


# Questions


def _all(questions: dict[str, list[MadeQuestion]]) -> Iterator[tuple[str, str, list[MadeQuestion]]]:
    for split, every in questions.items():
        for kind in ("which", "severity", "yes_no"):
            yield split, kind, [q for q in every if q.kind == kind]


def test_there_are_enough_questions_about_the_test_photographs(questions: dict[str, list[MadeQuestion]]) -> None:
    assert 60 <= len(questions["test"]) <= 90
    assert Counter(q.kind for q in questions["test"]) == {"which": 32, "severity": 20, "yes_no": 28}


def test_a_constant_answer_earns_what_chance_does(questions: dict[str, list[MadeQuestion]]) -> None:
    assert len(list(_all(questions))) >= 6
    for split, kind, asked in _all(questions):
        options = {len(q.options) for q in asked}
        assert len(options) == 1
        chance = 1 / options.pop()
        slack = 1.01 / len(asked)
        for letter in asked[0].options:
            assert abs(np.mean([q.answer == letter for q in asked]) - chance) <= slack, (split, kind, letter)
        for text in {t for q in asked for t in q.options.values()}:
            assert np.mean([q.options[q.answer] == text for q in asked]) <= chance + slack, (split, kind, text)


def test_an_option_offered_is_right_as_often_as_chance(questions: dict[str, list[MadeQuestion]]) -> None:
    # Choosing a text whenever it is offered must not pay: it would tell the answer without a look at the image.
    assert len(list(_all(questions))) >= 6
    for _, kind, asked in _all(questions):
        for text in {t for q in asked for t in q.options.values()}:
            offered = [q for q in asked if text in q.options.values()]
            right = sum(q.options[q.answer] == text for q in offered)
            assert right / len(offered) <= 1 / len(asked[0].options) + 0.25, (kind, text)


def test_questions_are_true(questions: dict[str, list[MadeQuestion]]) -> None:
    names = {
        "Blurs": "Blur", "Color distortions": "Color distortion", "Compression": "Compression artifacts",
        "Noise": "Noise", "Brightness change": "Brightness change", "Sharpness": "Over-sharpening",
        "Contrast": "Contrast change", None: "No visible distortion",
    }  # fmt: skip
    kinds = {kind for _, kind, _ in _all(questions)}
    assert {"which", "severity"} < kinds
    for _, kind, asked in _all(questions):
        for q in asked:
            right = q.options[q.answer]
            if kind == "which":
                assert right == names[q.version.category]
                assert q.version.is_clear or q.version.distortion is None
            elif kind == "severity":
                assert right.lower() == severity_of(level_mean(q.version.distortion or "", q.version.level).mos)
            elif "blurry" in q.query:
                assert (right == "Yes") == (q.version.category == "Blurs")
            elif "noise" in q.query:
                assert (right == "Yes") == (q.version.category == "Noise")
            elif "compression" in q.query:
                assert (right == "Yes") == (q.version.category == "Compression")


def test_questions_are_deterministic_with_distinct_options(questions: dict[str, list[MadeQuestion]]) -> None:
    every = (Version(), *(Version(d, n) for d in DISTORTIONS for n in LEVELS))
    test_names = [p.name for p in PHOTOGRAPHS.values() if p.split == "test"]
    assert make_questions(dict.fromkeys(test_names, every)) == questions["test"]
    for q in (q for asked in questions.values() for q in asked):
        assert len(set(q.options.values())) == len(q.options)
        assert list(q.options) == list("ABCDEFGH"[: len(q.options)])


def test_question_lines_carry_their_kind_and_truth(samples: list[Sample]) -> None:
    asked = [s for s in samples if s.task == "mcq"]
    assert {s.metadata["question_type"] for s in asked} <= {"which", "severity", "yes_no"}
    for sample in asked:
        assert sample.answer in (sample.options or {})
        assert sample.mos is None
        assert sample.group in SMALL.photographs
        assert sample.query
        assert sample.distortion is None or sample.distortion not in sample.query


def test_the_greyscale_photograph_gets_no_colour_question(samples: list[Sample]) -> None:
    grey = [sample for sample in samples if sample.group == "camera" and sample.task == "mcq"]
    assert len(grey) > 20
    for sample in grey:
        assert "Color distortion" not in (sample.options or {}).values()
        assert "colors" not in (sample.query or "")
