"""The recipe `finetune`: what every label adds to the embedded expert's reading, kept as numbers beside the program."""

import json
import re
import shutil
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter
from scipy.stats import multivariate_normal, rankdata

import optimizers.job
from optimizers.job import prepare_job
from program.agent.loop import AgenticIQA
from program.agent.saving import load
from program.common.errors import InputError
from program.common.settings import load_settings
from program.compile import main
from program.expert import Labels, QualityBelief
from program.expert.judge import learning
from program.expert.judge.learning import LEFT, OFFSET, _solved
from program.expert.judge.views import VIEWS, Viewer
from program.images.store import IMAGES
from signatures.schemas import DISTORTION_CATEGORIES
from tests.pictures import blocks
from tests.tables import as_lines

pytestmark = pytest.mark.usefixtures("undrawn", "unlogged", "untracked", "measured_once")

SMALL = "compile: {workers: 2, baselines: false, train_scoring: 20}\ntracking: {traces: 0}\ntools: {device: cpu}\n"
TRAIN, VALIDATION, TEST = 40, 12, 8
LABELS = TRAIN + VALIDATION
PLANTED = 3
"""A grey photograph of train that alone among the grey ones has the best label."""


@pytest.fixture
def data(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A manifest of photographs of which people like the grey ones a level and a half less than the others."""
    lines = []
    for number in range(TRAIN + VALIDATION + TEST):
        squares = blocks(rng, 6, 8, 8)
        image, grey = Image.fromarray(squares).filter(ImageFilter.GaussianBlur(number % 3)), number % 2
        name = f"{number}.png"
        (image.convert("L").convert("RGB") if grey else image).save(tmp_path / name)
        split = "train" if number < TRAIN else "validation" if number < TRAIN + VALIDATION else "test"
        mos = 5.0 if number == PLANTED else (2.0 if grey else 3.5) + 0.1 * (number % 3)
        lines.append({"id": name, "image": name, "mos": mos, "group": name, "split": split})
    (tmp_path / "manifest.jsonl").write_text(as_lines(lines), "utf-8")
    (tmp_path / "small.yaml").write_text(SMALL, "utf-8")
    return tmp_path


def compiled(data: Path, optimizer: str, *flags: str) -> int:
    return main(
        ["--data", str(data / "manifest.jsonl"), "--config", str(data / "small.yaml"), "--optimizer", optimizer,
         "--out", str(data / "program"), "--json", "--force", *flags]
    )  # fmt: skip


@pytest.mark.spec("48/finetune")
@pytest.mark.spec("48/finetune-saved-as-arrays")
def test_every_label_moves_scores_towards_people_wherever_the_program_is_loaded(data, capsys, tmp_path_factory):
    assert compiled(data, "finetune") == 0
    result = json.loads(capsys.readouterr().out)
    assert (
        f"finetune: fitted on {LABELS} labels; better in folds of the labels" in result["notes"]
    )  # the settings' 20 are for recipes that run the program
    assert result["chosen"] == "finetune"
    difference = (data / "program" / "diff.md").read_text("utf-8")
    assert f"- A correction fitted on {LABELS} labels moves its scores" in difference
    assert any(
        re.fullmatch(rf"A correction fitted on {LABELS} labels moves its scores by about \d\.\d\d\.", sentence)
        for sentence in result["learned"]
    )

    plain, program = AgenticIQA(load_settings()), load(data / "program")
    test = [TRAIN + VALIDATION + number for number in range(TEST)]

    def scores(of: AgenticIQA, folder: Path) -> dict[int, float]:
        return {number: of(image=folder / f"{number}.png").rating for number in (*test, PLANTED)}

    before, after = scores(plain, data), scores(program, data)
    moved = {number: after[number] - before[number] for number in after}
    assert max(moved[n] for n in test if n % 2) < min(moved[n] for n in test if not n % 2)
    assert moved[PLANTED] < np.mean([moved[n] for n in test if not n % 2])  # its own label is never told

    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(data, elsewhere, dirs_exist_ok=True)
    shutil.rmtree(data)
    assert scores(load(elsewhere / "program"), elsewhere) == after
    file = elsewhere / "program" / "program.json"
    document = json.loads(file.read_text("utf-8"))
    saved = document["corrections"]
    assert saved["nr"]["labels"] == LABELS
    assert saved["nr"]["after"] < saved["nr"]["before"]
    levels, curve = np.linspace(1, 5, 81), saved["nr"]["curve"]
    rise = np.interp([3.7, 3.5, 3.0, 2.8], levels, curve)  # people gave 3.5 to 3.7, and nothing from 2.3 to 3.4
    assert rise[0] - rise[1] > rise[2] - rise[3] > 0
    saved["nr"]["penalty"] /= 2
    file.write_text(json.dumps(document), "utf-8")
    with pytest.raises(InputError, match="was altered since it was saved"):
        load(elsewhere / "program")


def test_few_labels_choose_in_folds_of_all_that_are_not_tested(data, monkeypatch):
    settings = load_settings(data / "small.yaml")
    job = prepare_job(settings, str(data / "manifest.jsonl"), "finetune", data / "program")
    taught, folds = job.in_choice_folds()
    assert [len(taught.splits[name]) for name in ("train", "test")] == [LABELS, TEST]
    judged = [sample.id for fold in folds for sample in fold.splits["test"]]
    assert sorted(judged) == sorted(sample.id for sample in taught.splits["train"])
    for fold in folds:
        parts = {name: {sample.group for sample in fold.splits[name]} for name in fold.splits}
        assert not parts["test"] & (parts["train"] | parts["validation"])
        assert len(parts["train"] | parts["test"]) == LABELS
    assert not job.measured_ids
    # With more labels validation chooses, and the images beyond the settings' 20 are measured alone.
    monkeypatch.setattr(optimizers.job, "_CHOSEN_IN_FOLDS", LABELS - 1)
    job = prepare_job(settings, str(data / "manifest.jsonl"), "finetune", data / "program")
    assert not job.is_chosen_in_folds
    assert len(job.measured_ids) == TRAIN - 20


@pytest.mark.spec("48/finetune-infinite-penalty")
def test_labels_that_say_nothing_of_other_photographs_move_nothing(data, capsys, rng):
    program, lines = AgenticIQA(load_settings()), []
    for line in (data / "manifest.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        row["mos"] = float(np.clip(program(image=data / row["image"]).rating + rng.choice([-1, 1]), 1, 5))
        lines.append(json.dumps(row) + "\n")
    (data / "manifest.jsonl").write_text("".join(lines), "utf-8")
    assert compiled(data, "finetune") == 0
    result = json.loads(capsys.readouterr().out)
    assert "say nothing that carries over" in " ".join(result["notes"])
    assert result["chosen"] == "uncompiled"
    assert "corrections" not in json.loads((data / "program" / "program.json").read_text("utf-8"))


def test_a_language_model_is_refused_with_what_serves_it(data, loopback, capsys):
    server = loopback()
    assert compiled(data, "finetune", "--lm", "openai/small", "--api-base", server.base) == 2
    said = "error: optimizer 'finetune': corrects the embedded expert alone; use nearest for a language model"
    assert capsys.readouterr().err.splitlines()[-1] == said
    assert server.stats()["requests"] == 0


@pytest.mark.spec("48/finetune-leaves-groups-out")
def test_errors_are_those_of_fits_without_the_group(rng):
    inputs, residuals, codes = rng.normal(size=(24, 40)), rng.normal(size=24), np.repeat(np.arange(8), 3)
    products = inputs @ inputs.T
    most = LEFT * 24
    learnt = most * np.linalg.solve(products + most * np.eye(24), products)
    expected = learnt + OFFSET
    fit, likelihood = _solved(np.asfortranarray(np.tril(products)), residuals, codes, 0.5)
    solved = np.linalg.solve(expected + 0.5 * np.eye(24), residuals)
    assert fit.offset == pytest.approx(OFFSET * solved.sum())
    np.testing.assert_allclose(products @ fit.weights, learnt @ solved)
    other = _solved(np.asfortranarray(np.tril(products)), residuals, codes, 0.2)[1]
    known, less = (multivariate_normal(cov=expected + each * np.eye(24)).logpdf(residuals) for each in (0.5, 0.2))
    assert likelihood - other == pytest.approx(known - less)
    for code in range(8):
        out, rest = codes == code, codes != code
        others = np.linalg.solve(expected[np.ix_(rest, rest)] + 0.5 * np.eye(21), residuals[rest])
        np.testing.assert_allclose(fit.errors[out], residuals[out] - expected[np.ix_(out, rest)] @ others)


BELIEVED = QualityBelief(3.0, 0.5, 0.0)


def view_of(key: str, features: SimpleNamespace, own_quality: float) -> Any:
    """Return what a fit reads of an image, of which the expert believes something else than the first look says."""
    severities = dict.fromkeys(DISTORTION_CATEGORIES, 0.0)
    return SimpleNamespace(
        key=(key, ""), features=features, own_quality=own_quality, severities=severities, prior=BELIEVED
    )


def test_whole_stars_are_fitted_as_such_whatever_the_second_look_changed(rng):
    """Their ranks would differ as chance has it, where each star were moved by what it changed."""
    labels, stars = Labels(), rng.integers(1, 6, 60).astype(float)
    for number, star in enumerate(stars):
        points = np.append(star - 3, rng.normal(size=20)) / 2
        view = view_of(str(number), SimpleNamespace(points=points[None]), 3 + 0.05 * rng.normal())
        labels.add(view, BELIEVED, star, str(number))
    curve = np.interp(stars, np.linspace(1, 5, 81), labels.correction(0).curve)
    shares = (rankdata(stars) - 0.5) / 60 - 0.5
    np.testing.assert_allclose(curve, (stars + stars.mean() + np.sqrt(12) * stars.std() * shares) / 2, atol=1e-3)


def test_a_fit_of_many_images_multiplies_few_of_them_at_a_time(rng, monkeypatch):
    monkeypatch.setattr(learning, "_ROWS", 8)
    monkeypatch.setattr(learning, "_BESIDE", 4)
    monkeypatch.setattr(learning, "REMEMBERED", 199)
    Viewer().view(IMAGES.add(rng.integers(0, 256, (64, 64, 3)).astype(np.uint8)))
    wide, apart = 20_000, rng.normal(size=20_000)
    labels = Labels()
    for number in range(200):
        good = number % 2
        points = (apart * (good - 0.5) + rng.normal(size=wide)) / np.sqrt(wide)
        features = SimpleNamespace(points=points[None])
        labels.add(view_of(str(number), features, 3.0), BELIEVED, 2.5 + good, str(number))
    tracemalloc.start()
    fitted = labels.correction(0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert fitted is not None
    assert fitted.after < 0.9 * fitted.before
    assert peak < 200 * 2 * wide / 2  # half of what is held of the images
    assert not VIEWS
