"""A model that never answers: what it costs, what is kept, and how a run ends."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from agentic_iqa import AgenticIQA
from program import assess, evaluate
from program import compile as compiler
from program.agent.summarizer import Summarizer
from program.common.settings import load_settings
from program.gallery.__main__ import main as gallery
from program.lms.ask import Answer
from tests.scenarios import grain, write_lines
from tests.test_serving import post

pytestmark = pytest.mark.usefixtures("undrawn", "coarse", "untraced", "unlogged")

UNUSABLE = ["wrong_schema", "refusal"]
MOST_REQUESTS = 15


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of six pictures."""
    return write_pictures(tmp_path / "pictures", 6)


def write_pictures(folder: Path, count: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(3)
    for number in range(count):
        grain(rng, 6, 8, 8).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def labelled(pictures: Path) -> Path:
    """A manifest of the six pictures."""
    lines = [{"id": f"s{n}", "image": f"{n}.png", "mos": 1 + n % 4, "split": "test"} for n in range(6)]
    return write_lines(pictures / "data.jsonl", lines)


def on(server, *more: str) -> list[str]:
    return ["--lm", "openai/small-vlm", "--api-base", server.base, "--workers", "1", *more]


@pytest.mark.parametrize("fault", UNUSABLE)
def test_a_model_that_never_answers_ends_a_run_after_three_pictures(loopback, pictures, tmp_path, capsys, fault):
    server, out = loopback(faults=lambda *_: fault), tmp_path / "out.csv"
    assert assess.main([str(pictures), *on(server, "--out", str(out))]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert server.stats()["requests"] <= MOST_REQUESTS
    assert "3 times in a row" in last
    assert "what was judged is kept, and the same command continues there" in last
    assert not out.exists()


def test_levels_of_broken_answers_are_read_from_the_first_of_each_picture(loopback, pictures, capsys):
    server = loopback(faults=lambda *_: "invalid_json")
    assert assess.main([str(pictures), *on(server, "--json")]) == 1
    summary = json.loads(capsys.readouterr().out)
    assert (summary["images"], summary["failed"]) == (6, 0)
    assert server.stats()["by_field"] == {"plan": 3, "findings": 6, "quality_level": 3 + 5}


@pytest.mark.usefixtures("answers_on_disk")
def test_what_rests_on_the_tools_alone_is_tried_again(loopback, pictures, tmp_path, capsys):
    server, out = loopback(faults=lambda *_: "wrong_schema"), tmp_path / "out.csv"
    command = [str(pictures), *on(server, "--out", str(out))]
    assert assess.main(command) == 1
    assert server.stats()["requests"] <= MOST_REQUESTS
    kept = [json.loads(line)["row"] for line in (tmp_path / "out.csv.partial").read_text("utf-8").splitlines()[1:]]
    assert [(row["status"], row["attempt"]) for row in kept] == [("degraded", "tools alone")] * 2
    server.faults.schedule = None
    capsys.readouterr()
    assert assess.main(command) == 0
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["status"], row["attempt"]) for row in rows] == [("ok", "first call")] * 6
    assert "0 failed" in capsys.readouterr().out


@pytest.mark.usefixtures("answers_on_disk")
def test_an_evaluation_ends_and_goes_on_likewise(loopback, labelled, capsys):
    server = loopback(faults=lambda *_: "refusal")
    command = [str(labelled), *on(server, "--json")]
    assert evaluate.main(command) == 1
    assert "the same command goes on from there" in capsys.readouterr().err.splitlines()[-1]
    assert server.stats()["requests"] <= MOST_REQUESTS
    server.faults.schedule = None
    assert evaluate.main(command) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["scoring"]["used"], record["degraded"]) == (6, 0)


def test_a_gallery_ends_likewise(loopback, pictures, tmp_path, capsys):
    server = loopback(faults=lambda *_: "refusal")
    assert gallery([str(pictures), "--out", str(tmp_path / "gallery"), *on(server)]) == 1
    assert "the same command continues there" in capsys.readouterr().err.splitlines()[-1]
    assert server.stats()["requests"] <= MOST_REQUESTS


def test_a_compile_ends_likewise(loopback, tmp_path, capsys):
    server, pictures = loopback(faults=lambda *_: "refusal"), write_pictures(tmp_path / "pictures", 12)
    splits = ["train"] * 4 + ["validation"] * 4 + ["test"] * 4
    lines = [{"id": f"s{n}", "image": f"{n}.png", "mos": 1 + n % 4, "split": splits[n]} for n in range(12)]
    data = write_lines(pictures / "data.jsonl", lines)
    settings = tmp_path / "small.yaml"
    settings.write_text("compile: {workers: 1, baselines: false}\ntracking: {traces: 0}\n", "utf-8")
    command = ["--data", str(data), "--config", str(settings), "--out", str(tmp_path / "program"), "--optimizer",
               "random-search", *on(server)[:4]]  # fmt: skip
    assert compiler.main(command) == 1
    assert "continue with --resume" in capsys.readouterr().err.splitlines()[-1]
    assert server.stats()["requests"] <= MOST_REQUESTS


def test_a_question_that_is_never_answered_counts_as_a_score_does(loopback, pictures, capsys):
    server = loopback(faults=lambda *_: "refusal")
    question = ["--query", "Is it sharp?", "--option", "Yes", "--option", "No"]
    assert assess.main([str(pictures), *on(server, *question)]) == 1
    assert "3 times in a row" in capsys.readouterr().err.splitlines()[-1]
    assert server.stats()["requests"] <= MOST_REQUESTS


def test_an_answer_between_begins_the_count_anew(loopback, pictures, capsys):
    """Of three pictures the third is answered."""
    seen: list[bytes] = []

    def fault(_number, question):
        if not question.images:
            return None
        if question.images[-1] not in seen:
            seen.append(question.images[-1])
        return "refusal" if len(seen) % 3 else None

    server = loopback(faults=fault)
    assert assess.main([str(pictures), *on(server, "--json")]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["images"], summary["degraded"], summary["failed"]) == (6, 4, 0)


@pytest.mark.parametrize("shape", [[], ["--json"]])
def test_degraded_rows_are_counted_and_all_degraded_is_a_problem(loopback, pictures, capsys, shape):
    server = loopback(faults=lambda *_: "refusal")
    assert assess.main([str(pictures / "0.png"), str(pictures / "1.png"), *on(server, *shape)]) == 1
    shown = capsys.readouterr().out
    if shape:
        assert json.loads(shown)["degraded"] == 2
    else:
        assert "2 degraded · 0 failed" in shown


@pytest.mark.parametrize("unread", ["plan", "quality_level"])
def test_nothing_is_planned_again_after_an_answer_that_cannot_be_read(loopback, pictures, capsys, unread):
    server = loopback(faults=lambda _, q: "refusal" if unread in q.fields else None)
    assert assess.main([str(pictures / "0.png"), *on(server, "--json")]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["status"], result["usage"]["replans"]) == ("degraded", 0)
    assert server.stats()["by_field"]["plan"] == (3 if unread == "plan" else 1)


@pytest.mark.usefixtures("answers_on_disk")
def test_a_model_that_is_understood_again_is_asked_everything_again(loopback, pictures):
    server = loopback(faults=lambda *_: "refusal")
    iqa = AgenticIQA(load_settings().with_model("openai/small-vlm", server.base))
    first = iqa(pictures / "0.png")
    server.faults.schedule = None
    second = iqa(pictures / "1.png")
    assert (first.status, first.attempt) == ("degraded", "tools alone")
    assert (second.status, second.state.evidence.failed_steps) == ("ok", [])
    assert second.state.evidence.distortion_analysis


def test_the_embedded_expert_never_counts(pictures, capsys, monkeypatch):
    monkeypatch.setattr(Summarizer, "_level_belief", lambda *_, **__: Answer(None, None, "", ()))
    assert assess.main([str(pictures), "--workers", "1", "--json"]) == 1
    summary = json.loads(capsys.readouterr().out)
    assert (summary["images"], summary["degraded"]) == (6, 6)


def test_a_service_says_what_its_answer_lacks(loopback, pictures, served):
    server = loopback(faults=lambda *_: "refusal")
    program = AgenticIQA(load_settings().with_model("openai/small-vlm", server.base))
    url = served(program)
    for _ in range(4):  # it goes on, whoever asks
        answer = post(url, files={"image": (pictures / "0.png").read_bytes()})
        assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
        assert "not readable" in answer.json()["error"]


def test_an_agent_reads_what_an_answer_lacks(loopback, pictures):
    pytest.importorskip("mcp", reason="the extra [mcp] is not installed")
    from program.service import agents
    from tests.test_mcp import asked

    server = loopback(faults=lambda *_: "refusal")
    program = AgenticIQA(load_settings().with_model("openai/small-vlm", server.base))
    tools, _ = agents.server_of(program, local=True)
    (judged,) = asked(tools, ("assess_image", {"image": str(pictures / "0.png")}))
    assert judged.structured_content["status"] == "degraded"
    assert "less than usual: not readable" in judged.content[0].text
