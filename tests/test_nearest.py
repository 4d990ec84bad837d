"""The recipe `nearest`: levels of the most similar labelled photographs, in words, beside what tools measured."""

import json
import math
import re
import shutil
import zlib
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from PIL import Image, ImageFilter

from program.agent.comparison import compare_images
from program.agent.labels import Neighbour, Neighbours
from program.agent.loop import AgenticIQA
from program.agent.saving import load
from program.common.errors import InputError
from program.common.settings import load_settings
from program.compile import main
from program.expert import likeness
from program.images.store import IMAGES
from program.lms.call import MAX_TOKENS_OF_FIRST_FIELD
from tests.pictures import blocks
from tests.tables import as_lines, read_lines

pytestmark = pytest.mark.usefixtures("undrawn", "unlogged", "untracked", "measured_once")

SMALL = "compile: {workers: 2, baselines: false, train_mcq: 8}\ntracking: {traces: 0}\ntools: {device: cpu}\n"
QUERY = "Rate the perceptual quality of this image."
PLANTED = 7
"""The group whose two photographs alone have the lowest label, and look like no other."""


@pytest.fixture
def data(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A manifest of 28 groups of two photographs that look alike; the blurred half is rated lower."""
    lines = []
    for number in range(28):
        squares = blocks(rng, 12, 16, 8)
        for version in range(2):
            image = Image.fromarray(np.roll(squares, 8 * version, axis=1))
            mos = 2.0 if number % 2 else 4.0
            if number == PLANTED:
                image, mos = image.convert("L").convert("RGB"), 1.0
            elif number % 2:
                image = image.filter(ImageFilter.GaussianBlur(3))
            name = f"{number}-{version}.png"
            image.save(tmp_path / name)
            split = "train" if number < 16 else "validation" if number < 26 else "test"
            lines.append({"id": name, "image": name, "mos": mos, "group": str(number), "split": split,
                          "labels": "made-up"})  # fmt: skip
    (tmp_path / "manifest.jsonl").write_text(as_lines(lines), "utf-8")
    (tmp_path / "small.yaml").write_text(SMALL, "utf-8")
    return tmp_path


@pytest.fixture
def server(loopback):
    """A model that reads no images and answers by the line of neighbours, where it gets one."""

    def probabilities(question):
        told = re.findall(r"\w+", question.inputs.get("similar_photographs", ""))
        masses = {word: told.count(word) + 0.1 for word in ("bad", "poor", "fair", "good", "excellent")}
        return {"quality_reasoning": "By what is known.", "quality_probs": masses}

    return loopback(modalities=("text",), token_probabilities=0, rules=[("quality_probs", probabilities)])


def compiled(data: Path, base: str, *flags: str) -> int:
    return main(
        ["--data", str(data / "manifest.jsonl"), "--config", str(data / "small.yaml"), "--lm", "openai/small",
         "--api-base", base, "--optimizer", "nearest", "--out", str(data / "program"), "--json", *flags]
    )  # fmt: skip


def asked(data: Path, query: str) -> None:
    """Ask a question of each photograph, which is answered by Yes for the blurred ones, in place of its score."""
    rows = read_lines(data / "manifest.jsonl")
    for number, row in enumerate(rows):
        blurred = row.pop("mos") < 3
        options = ["Yes", "No"] if number % 3 else ["No", "Yes"]
        right = "Yes" if blurred else "No"
        answer = "AB"[options.index(right)]
        row |= {"query": query, "options": dict(zip("AB", options, strict=True)), "answer": answer}
    (data / "manifest.jsonl").write_text(as_lines(rows), "utf-8")


def lines(server) -> list[str]:
    return [q.inputs["similar_photographs"] for q in server.asked if "similar_photographs" in q.inputs]


@pytest.mark.slow
@pytest.mark.spec("45/nearest")
@pytest.mark.spec("45/nearest-without-leakage")
def test_the_levels_of_similar_photographs_of_other_groups_reach_the_model(data, server, capsys, tmp_path_factory):
    assert compiled(data, server.base) == 0
    result = json.loads(capsys.readouterr().out)
    assert "nearest: what people said of the" in " ".join(result["notes"])
    assert result["chosen"] == "nearest"
    assert "correction fitted on 32 labels" in (data / "program" / "diff.md").read_text("utf-8")
    assert all(text.startswith("Judging by 32 rated photographs, people would rate") for text in lines(server))
    unaware = [q for q in server.asked if "quality_probs" in q.fields and "similar_photographs" not in q.inputs]
    assert 0 < len(unaware) <= 20 + 4  # of validation and test: what the uncompiled program says of train is not asked
    assert not any("similar" in q.system for q in unaware)
    document = json.loads((data / "program" / "program.json").read_text("utf-8"))
    assert len(document["neighbours"]["photographs"]) == 32
    settings = load_settings().with_model("openai/small", server.base)
    program = load(data / "program", settings)

    def level(path: Path) -> float:
        masses = program(image=path, query=QUERY).level_probabilities
        return sum(level * mass for level, mass in masses.items())

    assert level(data / "26-0.png") > level(data / "27-0.png") + 0.5
    blurred = program(image=data / "27-0.png", query=QUERY)
    read = AgenticIQA(settings)(image=data / "27-0.png", query=QUERY).tool_mean
    assert abs(blurred.tool_mean - 2.0) < abs(read - 2.0) - 0.1  # what is fused lies nearer to people than the reading
    way = "lower" if blurred.tool_mean < read else "higher"
    assert f"By the labels people rate it {abs(blurred.tool_mean - read):.1f} {way} than the tools do." in (
        blurred.quality_reasoning
    )
    pair = [program(image=data / f"{number}-0.png", query=QUERY) for number in (27, 26)]
    reaches = [max(abs(end - each.quality_score) for end in each.score_interval) / 1.96 for each in pair]
    z = (pair[1].quality_score - pair[0].quality_score) / math.hypot(*reaches)
    better = compare_images(
        program, *(IMAGES.add(data / f"{number}-0.png") for number in (27, 26))
    ).probability_b_better
    assert better == pytest.approx(NormalDist().cdf(z), abs=1e-6)  # as sure as the two intervals are
    for version in range(2):
        level(data / f"{PLANTED}-{version}.png")
    assert not any("bad" in text for text in lines(server))
    own = level(data / f"{PLANTED}-0.png")
    Image.open(data / f"{PLANTED}-0.png").transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(data / "stranger.png")
    assert level(data / "stranger.png") < own  # of a photograph that is none of theirs these labels may speak

    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(data / "program", elsewhere / "program")
    photo = Path(shutil.copy(data / "26-0.png", elsewhere / "photo.png"))
    before = level(photo)
    shutil.rmtree(data)
    program = load(elsewhere / "program", settings)
    assert level(photo) == before
    file = elsewhere / "program" / "program.json"
    file.write_text(file.read_text("utf-8").replace('"label": 4.0', '"label": 1.0', 1), "utf-8")
    with pytest.raises(InputError, match="was altered since it was saved"):
        load(elsewhere / "program", settings)


@pytest.mark.spec("45/nearest")
def test_levels_that_spread_too_widely_count_as_labels_say(data, loopback, capsys):
    def certain(question):
        told = question.inputs.get("similar_photographs")
        good = "good" in told if told else zlib.crc32(question.inputs["quality_scores"].encode()) % 2
        return {"quality_reasoning": "Surely.", "quality_probs": {"excellent" if good else "bad": 0.9, "fair": 0.1}}

    server = loopback(modalities=("text",), token_probabilities=0, rules=[("quality_probs", certain)])
    assert compiled(data, server.base) == 0
    result, asked = json.loads(capsys.readouterr().out), len(server.asked)
    assert result["chosen"] == "nearest"
    assert asked == len({json.dumps(q.inputs) for q in server.asked}), "no question is asked twice"
    program = load(data / "program", load_settings().with_model("openai/small", server.base))
    share = program.summarizer.neighbours.even_share
    masses = program(image=data / "26-0.png", query=QUERY).level_probabilities
    raw = {5: 0.9, 3: 0.1} if masses[5] > masses[1] else {1: 0.9, 3: 0.1}
    assert 0.3 < share < 1.0
    assert masses == pytest.approx({c: (1 - share) * raw.get(c, 0) + share / 5 for c in range(1, 6)}, abs=0.006)


def by_the_line(question):
    """Answer with the level that the line of evidence names, before the reasons."""
    told = re.findall(r"\b(bad|poor|fair|good|excellent)\b", question.inputs.get("similar_photographs", "fair"))
    return {"quality_level": told[0], "quality_reasoning": "By what is known. " * 5}


@pytest.mark.spec("45/nearest")
def test_what_only_ranks_costs_the_level_and_no_reasons(data, loopback, capsys, caplog):
    server = loopback(modalities=("text",), rules=[("quality_level", by_the_line)])
    assert compiled(data, server.base) == 0
    assert json.loads(capsys.readouterr().out)["chosen"] == "nearest"
    rooms = [question.most_tokens for question in server.asked if "quality_level" in question.fields]
    # Validation by both programs, and train to weigh the level, less what was asked of an equal photograph.
    assert 30 <= rooms.count(MAX_TOKENS_OF_FIRST_FIELD) <= 20 + 20 + 32
    # The test, whose worst rows are shown with their reasons.
    assert len(rooms) - rooms.count(MAX_TOKENS_OF_FIRST_FIELD) <= 8
    assert "truncated" not in caplog.text


@pytest.mark.spec("45/nearest")
def test_a_recipe_that_rewrites_no_role_is_planned_for_the_summarizer_alone(data, server, capsys):
    assert compiled(data, server.base, "--dry-run") == 0
    plan = json.loads(capsys.readouterr().out)
    assert compiled(data, server.base, "--dry-run", "--roles", "summarizer") == 0
    assert json.loads(capsys.readouterr().out) == plan
    assert compiled(data, server.base, "--dry-run", "--roles", "planner,summarizer") == 0
    assert json.loads(capsys.readouterr().out)["expected_calls"] > plan["expected_calls"]


@pytest.mark.parametrize("obeys", [True, False])
def test_a_level_is_the_same_with_its_reasons_cut_off(data, loopback, obeys):
    """`obeys`: or the model thinks before the level, so that what is cut holds none and is asked for in full."""

    def answer(question):
        given = by_the_line(question)
        return given if obeys else f"So. {'I look again. ' * 5}{json.dumps(given)}"

    server = loopback(modalities=("text",), rules=[("quality_level", answer)])
    program = AgenticIQA(load_settings().with_model("openai/small", server.base))
    whole = program(image=data / "26-0.png", query=QUERY)
    assert "By what is known." in whole.quality_reasoning
    program.summarizer.answer_part = "decision"
    alone = program(image=data / "26-0.png", query=QUERY)
    assert alone.level_probabilities == whole.level_probabilities
    assert (alone.quality_score, alone.status) == (whole.quality_score, "ok")
    assert "By what is known." not in alone.quality_reasoning
    rooms = [question.most_tokens for question in server.asked if "quality_level" in question.fields]
    assert rooms[0] > rooms[1] == MAX_TOKENS_OF_FIRST_FIELD


def test_where_no_schema_forms_an_answer_none_is_cut(data, loopback):
    server = loopback(modalities=("text",), rules=[("quality_level", by_the_line)], refuses=["response_format"])
    program = AgenticIQA(load_settings().with_model("openai/small", server.base))
    program(image=data / "27-0.png", query=QUERY)  # learns of the refusal
    program.summarizer.answer_part = "decision"
    program(image=data / "26-0.png", query=QUERY)
    rooms = [question.most_tokens for question in server.asked if "quality_level" in question.fields]
    assert len(rooms) >= 2
    assert MAX_TOKENS_OF_FIRST_FIELD not in rooms


@pytest.mark.spec("45/nearest")
def test_scores_beyond_those_that_are_trained_on_are_left_out(data, server, capsys):
    (data / "small.yaml").write_text(SMALL.replace("train_mcq: 8", "train_scoring: 31"), "utf-8")
    assert compiled(data, server.base) == 0  # a reading of the tools is corrected, so a score needs a run
    assert "of 31 photographs" in " ".join(json.loads(capsys.readouterr().out)["notes"])


@pytest.mark.spec("45/nearest-questions")
def test_what_most_similar_photographs_are_answered_reaches_the_model_as_the_options_put_it(data, loopback, capsys):
    asked(data, "Is it blurred?")

    def answered(question):
        told = question.inputs.get("similar_photographs", "the right option is A.").partition("option is ")[2]
        return {"final_answer": told[0], "quality_reasoning": "By what is known."}

    server = loopback(modalities=("text",), token_probabilities=0, rules=[("final_answer", answered)])
    assert compiled(data, server.base) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["chosen"] == "nearest"
    rows = read_lines(data / "manifest.jsonl")
    known = sum(row["split"] == "train" for row in rows)
    told = re.compile(rf"Judging by {known} answered questions, the right option is [AB]\. (Yes|No)\.")
    assert known == 32  # labels cost no call: train_mcq does not bound them
    assert all(told.fullmatch(line) for line in lines(server))
    assert "The right answers for the" in (data / "program" / "diff.md").read_text("utf-8")
    program = load(data / "program", load_settings().with_model("openai/small", server.base))
    for number, right in ((26, "No"), (27, "Yes")):
        for options in (["Yes", "No"], ["No", "Yes"]):
            answer = program(image=data / f"{number}-0.png", query="is it  blurred", options=options)
            assert options["AB".index(answer.final_answer)] == right
    before = len(lines(server))
    program(image=data / "26-0.png", query="Is it noisy?", options=["Yes", "No"])
    program(image=data / "26-0.png", query="Is it blurred?", options=["Perhaps", "Hardly"])
    assert len(lines(server)) == before


@pytest.mark.spec("45/nearest-without-leakage")
def test_no_label_of_an_images_own_photograph_or_of_another_kind_speaks_of_it(picture):
    image = IMAGES.add(picture())
    view = AgenticIQA().resources.viewer.view(image)
    names = [("own", "nr"), ("own", "nr"), ("other", "nr"), ("third", "fr")]
    photographs = tuple(
        Neighbour(sha256=image.sha256 if n == 0 else f"{n:064}", group=group, kind=kind, label=3.0)
        for n, (group, kind) in enumerate(names)
    )
    known = Neighbours(count=8, photographs=photographs, vectors=np.stack([likeness(view)] * len(names)))
    assert [each.group for each in known.nearest(view, lambda _: True)] == ["other"]


def test_what_is_no_record_of_neighbours_is_refused():
    for saved in ({}, {"count": 8, "photographs": [], "vectors": ""}, {"count": 8, "photographs": 3, "vectors": "!"}):
        with pytest.raises(ValueError, match=r"Field required|photographs"):
            Neighbours.model_validate(saved)


@pytest.mark.spec("45/nearest-questions")
def test_answered_questions_teach_the_embedded_expert_what_it_cannot_measure(data, capsys):
    """Of photographs on which it guesses, the blurred ones are "old": it learns that from the answers alone."""
    asked(data, "Is it an old picture?")
    manifest, program = data / "manifest.jsonl", data / "program"
    command = ["--data", str(manifest), "--config", str(data / "small.yaml"), "--optimizer", "nearest", "--json"]
    assert main([*command, "--out", str(program)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["chosen"] == "nearest"
    assert "nearest: what people said of the" in " ".join(result["notes"])
    learned = load(program)
    answers = {}
    for number, right in ((26, "No"), (27, "Yes")):
        answer = learned(image=data / f"{number}-0.png", query="is it an  old picture", options=["Yes", "No"])
        answers[number] = ["Yes", "No"]["AB".index(answer.final_answer)]
        assert answers[number] == right
    assert "the right answer for most images like this one" in answer.quality_reasoning
    plain = AgenticIQA()(image=data / "27-0.png", query="Is it an old picture?", options=["Yes", "No"])
    other = learned(image=data / "27-0.png", query="Is it a new picture?", options=["Yes", "No"])
    assert "guess" in plain.quality_reasoning
    assert "guess" in other.quality_reasoning


@pytest.mark.spec("45/nearest-questions")
def test_scores_alone_teach_the_embedded_expert_no_answers(data, capsys):
    arguments = ["--data", str(data / "manifest.jsonl"), "--config", str(data / "small.yaml"), "--optimizer", "nearest"]
    assert main([*arguments, "--out", str(data / "program"), "--json"]) == 0
    told = " ".join(json.loads(capsys.readouterr().out)["notes"])
    assert "nearest: 0 training photographs have an answered question; 30 are needed" in told
