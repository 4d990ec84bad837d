import json

import dspy
import numpy as np
import pytest

from program.agent import AgenticIQA
from program.errors import ImageError, InputError
from program.images import IMAGES, ImageStore
from program.saving import load, program_sha256, save
from signatures.schemas import LevelProbabilities


@pytest.fixture
def taught(rng: np.random.Generator) -> AgenticIQA:
    program = AgenticIQA()
    ref = IMAGES.add(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    program.summarizer.score.demos = [
        dspy.Example(
            image=dspy.Image(ref.url),
            query="Rate it.",
            quality_probs=LevelProbabilities(fair=0.4, good=0.6),
            quality_reasoning="Soft edges.",
        )
    ]
    program.planner.plan.signature = program.planner.plan.signature.with_instructions("Plan briefly.")
    program.planner.plan.lm = dspy.LM("openai/gpt-4o", api_key="sk-planted-key")
    return program


def test_a_saved_program_is_self_contained_and_holds_no_model(tmp_path, taught, monkeypatch) -> None:
    folder = save(taught, tmp_path / "p", record={"chosen": "x"})
    text = (folder / "program.json").read_text("utf-8")
    assert "sk-planted-key" not in text
    assert "gpt-4o" not in text
    images = list((folder / "images").iterdir())
    assert len(images) == 1
    assert sorted(f.name for f in tmp_path.iterdir()) == ["p"]

    empty = ImageStore()  # another machine: only the folder is there
    monkeypatch.setattr("program.saving.IMAGES", empty)
    loaded = load(folder)
    demo = loaded.summarizer.score.demos[0]
    assert isinstance(demo["image"], dspy.Image)
    assert empty.read(demo["image"].url) == images[0].read_bytes()
    assert loaded.planner.plan.signature.instructions == "Plan briefly."
    assert loaded.planner.plan.lm is None
    assert program_sha256(loaded) == json.loads(text)["program_sha256"]


def test_saving_again_replaces_the_program_and_nothing_else(tmp_path, taught) -> None:
    folder = save(taught, tmp_path / "p")
    taught.summarizer.score.demos = []
    save(taught, folder)
    assert list((folder / "images").iterdir()) == []
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="holds other files; give a new or empty folder"):
        save(taught, other)
    assert (other / "thesis.txt").read_text() == "years of work"


def test_missing_and_altered_demo_images_are_refused(tmp_path, taught) -> None:
    folder = save(taught, tmp_path / "p")
    image = next((folder / "images").iterdir())
    data = image.read_bytes()
    image.write_bytes(data + b"x")
    with pytest.raises(ImageError, match="was altered; copy the whole folder again"):
        load(folder)
    image.unlink()
    with pytest.raises(ImageError, match="is missing; copy the whole folder again"):
        load(folder)


def test_a_program_of_other_signatures_is_refused(tmp_path, taught) -> None:
    folder = save(taught, tmp_path / "p")
    file = folder / "program.json"
    file.write_text(file.read_text("utf-8").replace('"schema_sha256": "', '"schema_sha256": "0'), "utf-8")
    with pytest.raises(InputError, match="compiled for other signatures"):
        load(folder)


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_what_is_no_program_is_refused_in_one_line(tmp_path, content) -> None:
    if content is not None:
        (tmp_path / "program.json").write_text(content)
    with pytest.raises(InputError, match=r"no program\.json|cannot be read") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_image_bytes_never_enter_a_saved_program(tmp_path, taught) -> None:
    taught.summarizer.score.demos[0]["image"] = dspy.Image("data:image/png;base64,iVBORw0KGgo=")
    with pytest.raises(InputError, match="holds image bytes"):
        save(taught, tmp_path / "p")
    assert list(tmp_path.iterdir()) == []
