import base64
import copy
import hashlib
import json
from pathlib import Path

import dspy
import numpy as np
import pytest

from program.agent import saving
from program.agent.loop import AgenticIQA
from program.agent.saving import program_sha256, save
from program.common.errors import ImageError, InputError
from program.common.settings import load_settings
from program.expert.store import MODEL
from program.fusion.scores import FittedFusion
from program.images.store import IMAGES, ImageStore
from signatures.schemas import LevelProbabilities
from tests.pictures import noise


def load(folder, settings=None, lm=None, **named) -> AgenticIQA:
    """Load a program with a language model, which reads demos; it is asked nothing."""
    return saving.load(folder, settings, lm=lm or dspy.LM("openai/gpt-4o", api_key="sk-planted-key"), **named)


@pytest.fixture
def taught(rng: np.random.Generator) -> AgenticIQA:
    program = AgenticIQA()
    ref = IMAGES.add(noise(rng, 24, 32))
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
    monkeypatch.setattr("program.agent.saving.IMAGES", empty)
    loaded = load(folder)
    demo = loaded.summarizer.score.demos[0]
    assert isinstance(demo["image"], dspy.Image)
    assert empty.read(demo["image"].url) == images[0].read_bytes()
    assert loaded.planner.plan.signature.instructions == "Plan briefly."
    assert loaded.planner.plan.lm is None
    assert program_sha256(loaded) == json.loads(text)["program_sha256"]


def test_saving_again_replaces_the_program_and_nothing_else(tmp_path, monkeypatch, taught) -> None:
    folder = save(taught, tmp_path / "p")
    taught.summarizer.score.demos = []
    save(taught, folder)
    assert list((folder / "images").iterdir()) == []
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="holds other files; give a new or empty folder"):
        save(taught, other)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="holds other files; give a new or empty folder"):
        save(taught, Path("new", "..", "mine"))
    Path("link").symlink_to(folder)
    with pytest.raises(InputError, match="is a link; give the folder that it leads to"):
        save(taught, Path("new", "..", "link"))
    with pytest.raises(InputError, match="is a file; give a new or empty folder"):
        save(taught, Path("new", "..", "mine", "thesis.txt"))
    assert (other / "thesis.txt").read_text() == "years of work"


def test_a_link_is_refused_and_what_it_leads_to_stays(tmp_path, taught) -> None:
    link, demos = tmp_path / "p", taught.summarizer.score.demos
    link.symlink_to(save(taught, tmp_path / "mine"))
    taught.summarizer.score.demos = []
    with pytest.raises(InputError, match="is a link; give the folder that it leads to"):
        save(taught, link)
    assert link.is_symlink()
    assert len(load(link).summarizer.score.demos) == len(demos) > 0


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


def altered(folder, change, *, hashed=True):
    """Write a program's file again with a change made to it, with the hash that goes with it unless told otherwise."""
    file = folder / "program.json"
    document = json.loads(file.read_text("utf-8"))
    change(document)
    if hashed:
        parts = json.dumps([document["state"], document["fusion"]], sort_keys=True, ensure_ascii=False)
        document["program_sha256"] = hashlib.sha256(parts.encode()).hexdigest()
    file.write_text(json.dumps(document), "utf-8")
    return folder


def refused(folder, **options):
    with pytest.raises(InputError) as caught:
        load(folder, **options)
    message = str(caught.value)
    assert repr(str(folder)) in message
    assert "\n" not in message
    assert len(message) < 700
    return message


def loaded_with(planted, way, folder, lm):
    """Load a program whose every predictor's state holds more, from our folder or from DSPy's own file."""
    if way == "load":
        save(AgenticIQA(), folder)
        add = lambda document: [part.update(planted) for part in document["state"].values()]  # noqa: E731
        return load(altered(folder, add), lm=lm)
    file = folder.with_suffix(".json")
    AgenticIQA().save(file)
    state = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({n: {**p, **planted} if n != "metadata" else p for n, p in state.items()}))
    program = AgenticIQA(lm=lm)
    program.load(file, allow_unsafe_lm_state=True)
    return program


@pytest.mark.parametrize("way", ["load", "module"])
@pytest.mark.parametrize(
    "planted",
    [
        {"lm": {"model": "openai/x", "api_base": "{url}", "num_retries": 0}},
        {"lm": {"model": "openai/x", "api_key": "sk-x", "extra_headers": {"X-Image": "1"}, "num_retries": 0}},
        {"config": {"api_base": "{url}"}},
        {"fields": {"quality_probs": {"model": "openai/x"}}},
        {"callbacks": []},
    ],
    ids=lambda planted: next(iter(planted)),
)
def test_no_file_says_where_images_and_keys_go(planted, way, tmp_path, loopback, picture, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-key")
    stranger, own = loopback(), loopback()
    lm = dspy.LM("openai/gpt-4o", api_base=own.base, api_key="sk-planted-key", num_retries=0)
    planted = json.loads(json.dumps(planted).replace("{url}", stranger.base))
    with pytest.raises(InputError):
        loaded_with(planted, way, tmp_path / "p", lm)(image=picture())
    assert stranger.stats()["requests"] == own.stats()["requests"] == 0


def test_dspys_own_files_are_loaded_still(tmp_path, taught) -> None:
    taught.set_lm(None)
    taught.save(tmp_path / "state.json")
    fresh = AgenticIQA()
    fresh.load(tmp_path / "state.json")
    assert fresh.planner.plan.signature.instructions == "Plan briefly."


def test_an_altered_program_is_loaded_by_force_only(tmp_path, taught, caplog) -> None:
    def plant(document):
        document["state"]["planner.plan"]["demos"] = [{"query": "Rate it."}]

    folder = altered(save(taught, tmp_path / "p"), plant, hashed=False)
    refused(folder)
    assert load(folder, force=True).planner.plan.demos == [{"query": "Rate it."}]
    assert str(folder) in caplog.text


@pytest.mark.spec("issue-44/edited-instructions")
def test_instructions_edited_by_hand_are_taken_with_a_note_and_nothing_else_is(tmp_path, taught, caplog) -> None:
    def reword(document):
        document["state"]["planner.plan"]["signature"]["instructions"] = "Plan at length."

    folder = altered(save(taught, tmp_path / "p"), reword, hashed=False)
    loaded = load(folder)
    assert loaded.planner.plan.signature.instructions == "Plan at length."
    assert len(loaded.summarizer.score.demos) == 1
    assert f"program {str(folder)!r}: its instructions were edited since it was saved" in caplog.text
    plant = lambda document: document["state"]["planner.plan"].update(lm={"model": "openai/x", "api_base": "x"})  # noqa: E731
    assert "planner.plan.lm" in refused(altered(folder, plant, hashed=False), force=True)


def test_a_program_names_the_embedded_engine_it_was_taught_with(tmp_path, taught, scripted_lm) -> None:
    def engine(program):
        return json.loads((save(program, tmp_path / "p") / "program.json").read_text("utf-8")).get("engine")

    assert engine(taught) == MODEL
    assert engine(load(tmp_path / "p", lm=scripted_lm([]))) is None
    fitted = AgenticIQA()
    fitted.summarizer.fitted = FittedFusion(fitted.resources.fusion, eta=2.0)
    assert engine(fitted) == MODEL


def test_demos_for_the_embedded_expert_are_refused_in_one_line_and_left_out_by_force(tmp_path, taught, caplog) -> None:
    folder = save(taught, tmp_path / "p")
    line = f"program {str(folder)!r}: holds demos, which the embedded expert does not read"
    with pytest.raises(InputError) as caught:
        saving.load(folder)
    assert str(caught.value) == f"{line}; compile again, or give the language model it was compiled for (--lm)"
    forced = saving.load(folder, force=True)
    assert forced.summarizer.score.demos == []
    assert forced.planner.plan.signature.instructions == "Plan briefly."
    assert line in caplog.text


@pytest.mark.spec("D24/a-program-of-another-revision")
def test_another_revision_of_the_engine_gives_demos_by_force_and_never_its_fusion(tmp_path, taught, caplog) -> None:
    taught.summarizer.fitted = FittedFusion(taught.resources.fusion, eta=2.0, curve=[(1, 1.5), (5, 4.5)])
    folder = save(taught, tmp_path / "p")
    assert load(folder).summarizer.fitted.to_json() == taught.summarizer.fitted.to_json()
    # Programs were saved without the engine once.
    altered(folder, lambda document: document.pop("engine"))
    assert program_sha256(load(folder)) == program_sha256(taught)
    altered(folder, lambda document: document.update(engine="perceptual/expert@r0"))
    assert "perceptual/expert@r0" in refused(folder)
    forced = load(folder, force=True)
    assert forced.summarizer.fitted is None
    assert forced.planner.plan.signature.instructions == "Plan briefly."
    assert len(forced.summarizer.score.demos) == 1
    assert "perceptual/expert@r0" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000, b'{"state":' * 200_000, b"\xff\xfe{}", b'"\\ud800"', b"null", b"9" * 5000,
        "{}".encode("utf-16"),
    ],
    ids=lambda content: repr(content[:6]),
)  # fmt: skip
def test_what_is_no_json_object_is_refused_in_one_line(tmp_path, content) -> None:
    (tmp_path / "program.json").write_bytes(content)
    refused(tmp_path)


@pytest.mark.parametrize("demos", [5, ["a"], [None], {}, [[1]], [{"tool_mean": float("nan")}]])
def test_demos_that_are_none_are_refused_by_their_name(demos, tmp_path, taught) -> None:
    def plant(document):
        document["state"]["summarizer.score"]["demos"] = demos

    assert "summarizer.score.demos" in refused(altered(save(taught, tmp_path / "p"), plant))


def test_no_demo_shows_what_lies_elsewhere(tmp_path, taught) -> None:
    def plant(document):
        shown = document["state"]["summarizer.score"]["demos"][0]["image"]
        moved = shown.replace("https://images.invalid/", "https://elsewhere.example/")
        document["state"]["summarizer.score"]["demos"][0]["query"] = moved

    refused(altered(save(taught, tmp_path / "p"), plant), force=True)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2}, {"format": "1"}, {"engine": 6}, {"state": {}}, {"state": []}, {"extra": 1},
        {"fusion": {"eta": 10**400, "model_weight": 1, "curve": []}}, {"fusion": []},
        {"fusion": {"eta": 1, "model_weight": None, "curve": 3}},
    ],
    ids=str,
)  # fmt: skip
def test_other_content_is_refused_in_one_line(change, tmp_path, taught) -> None:
    refused(altered(save(taught, tmp_path / "p"), lambda document: document.update(change)))


ODD = [
    None, True, 0, -1, 3.5, 10**40, 1e308, float("nan"), float("inf"), "", "a", "\x00", "x" * 5000, [], ["a"], {},
    {"": None},
]  # fmt: skip


def places(value, way=()):
    """Return where every value inside a JSON value stands."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(place for key, inside in items for place in places(inside, (*way, key)))]


def mutated(document, rng):
    changed = copy.deepcopy(document)
    for _ in range(rng.integers(1, 3)):
        inside = places(changed)[1:]
        *way, key = inside[rng.integers(len(inside))]
        parent = changed
        for step in way:
            parent = parent[step]
        kind = rng.integers(3)
        if kind == 0:
            del parent[key]
        elif kind == 1 or isinstance(parent, list):
            parent[key] = copy.deepcopy(ODD[rng.integers(len(ODD))])
        else:
            parent[str(rng.integers(9))] = parent.pop(key)
    return changed


def test_whatever_is_changed_in_a_file_gives_a_program_or_one_line(tmp_path, taught, rng) -> None:
    taught.summarizer.fitted = FittedFusion(taught.resources.fusion, eta=2.0, curve=[(1, 1.5), (5, 4.5)])
    folder = save(taught, tmp_path / "p")
    file = folder / "program.json"
    document, text = json.loads(file.read_text("utf-8")), file.read_bytes()
    settings, loaded = load_settings(), 0
    for number in range(100):
        if number % 3:
            data = json.dumps(mutated(document, rng)).encode()
        else:
            data = bytearray(text)
            for place in rng.integers(0, len(data), 3):
                data[place] = rng.integers(256)
        file.write_bytes(data)
        try:
            load(folder, settings, force=number % 5 > 0)
            loaded += 1
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017
    assert 0 < loaded < 50


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


def test_image_bytes_never_enter_a_saved_program(tmp_path, taught, encoded) -> None:
    demo, image = taught.summarizer.score.demos[0], encoded(7)
    demo["image"] = dspy.Image(f"data:image/png;base64,{base64.b64encode(image).decode()}")
    folder = save(taught, tmp_path / "p")
    assert "base64" not in (folder / "program.json").read_text()
    assert (folder / "images" / f"{hashlib.sha256(image).hexdigest()}.png").read_bytes() == image
    demo["region_crops"] = {"sky": demo["image"]}
    with pytest.raises(InputError, match="holds image bytes"):
        save(taught, tmp_path / "q")
    demo["image"] = dspy.Image("data:image/png;base64,iVBORw0KGgo=")
    with pytest.raises(ImageError, match="not an image"):
        save(taught, tmp_path / "q")
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_a_folder_that_cannot_be_written_is_named_and_left_as_it_was(tmp_path, taught, monkeypatch) -> None:
    folder = save(taught, tmp_path / "p")
    before = (folder / "program.json").read_bytes()

    def full(self, *_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match=r"^folder '.*p': cannot be written \(No space left on device\)"):
        save(taught, folder)
    assert (folder / "program.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
