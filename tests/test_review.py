"""Second opinions on the worst misses of an evaluation: kept, in MLflow, and in the next compile."""

import hashlib
import io
import json
import shutil
from pathlib import Path

import httpx
import pytest
from PIL import Image

from optimizers.job import prepare_job
from program.common.errors import InputError
from program.common.outputs import PROGRAM, check_outputs_in, remove_outputs
from program.common.settings import load_settings
from program.compile import main as compile_command
from program.rating.__main__ import main as rate_command
from program.rating.review import Reviewing, review_app
from program.tracking.store import open_client
from program.tracking.traces import traces_of


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def evaluated(scenario, tmp_path, monkeypatch):
    """An evaluation's folder with its store, to change; one score and one option have a trace."""
    folder = Path(shutil.copytree(scenario("evaluation").folder, tmp_path / "evaluated"))
    monkeypatch.setenv("AGENTICIQA_MLRUNS_DIR", str(folder / "mlruns"))
    return folder


@pytest.fixture
def ask(served):
    """Serve the page of a report's folder to a client."""
    opened = []

    def asked(folder, rater="ann"):
        review = Reviewing(folder, load_settings(), rater)
        client = httpx.Client(base_url=served(app=review_app(review)), trust_env=False)
        opened.extend((review, client))
        return client

    yield asked
    for each in opened:
        each.close()


def test_an_answer_is_kept_and_is_feedback_on_the_trace_of_its_miss(evaluated, ask):
    report = evaluated / "report"
    misses = lines_of(report / "misses.jsonl")
    client = ask(report)
    shown = client.get("/misses").json()["misses"]
    assert [each["id"] for each in shown] == [each["id"] for each in misses]
    sizes = [abs(each["people"] - each["program"]) for each in shown if not each["options"]]
    assert sizes == sorted(sizes, reverse=True)
    assert shown[0]["reason"]
    assert "image" not in shown[0]
    with Image.open(io.BytesIO(client.get("/picture/0").content)) as png, Image.open(misses[0]["image"]) as own:
        assert png.tobytes() == own.convert("RGB").tobytes()

    assert client.post("/answer", json={"number": 0, "who": "program"}).json() == {
        "kept": "kept in review.jsonl and in MLflow"
    }
    client.post("/answer", json={"number": 0, "who": "neither", "mos": 3})
    assert client.post("/answer", json={"number": 1, "who": "people"}).json() == {
        "kept": "kept in review.jsonl; MLflow has no trace of it"
    }
    kept = lines_of(report / "review.jsonl")
    assert [(each["id"], each["who"], each["mos"]) for each in kept] == [
        (misses[0]["id"], "program", None), (misses[0]["id"], "neither", 3.0), (misses[1]["id"], "people", None),
    ]  # fmt: skip
    for name in ("sha256", "run_id"):
        assert kept[0][name] == misses[0][name]

    store, _ = open_client(evaluated / "mlruns")
    trace = store.get_trace(traces_of(store, misses[0]["run_id"])[misses[0]["id"]])
    (feedback,) = [each for each in trace.info.assessments if each.name == "who is right"]
    assert (feedback.value, feedback.source.source_type, feedback.source.source_id) == ("neither", "HUMAN", "ann")
    assert (feedback.metadata["mos"], feedback.metadata["labels"]) == ("3", "second opinion")


@pytest.mark.usefixtures("untracked")
def test_what_is_no_answer_is_refused_in_a_line_and_nothing_is_kept(evaluated, ask):
    report = evaluated / "report"
    lines = lines_of(report / "misses.jsonl")
    own = shutil.copy(lines[0]["image"], evaluated / "own.png")
    write = [{**lines[0], "image": str(own)}, {**lines[1], "image": "s3://bucket/1.png"}, *lines[2:]]
    (report / "misses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in write), "utf-8")
    client = ask(report)
    for sent, status, words in (
        ({"number": 0, "who": "nobody"}, 422, '"who": Input should be'),
        ({"number": 0, "who": "program", "mos": 6}, 422, '"mos": Input should be'),
        ({"number": len(lines), "who": "people"}, 422, "load the page again"),
    ):
        answer = client.post("/answer", json=sent)
        assert answer.status_code == status
        assert words in answer.json()["error"]
    foreign = client.post("/answer", json={"number": 0, "who": "people"}, headers={"Origin": "http://elsewhere"})
    assert foreign.status_code == 403
    assert client.get("/misses", headers={"Host": "elsewhere.example"}).status_code == 403
    assert (report / "review.jsonl").read_bytes() == b""
    Path(own).write_bytes(b"other")
    assert client.get("/picture/0").status_code == 410
    shutil.copy(lines[2]["image"], own)
    changed = client.get("/picture/0")
    assert (changed.status_code, "has changed since it was judged" in changed.text) == (410, True)
    assert "cannot be read" in client.get("/picture/1").json()["error"]


@pytest.mark.usefixtures("untracked")
@pytest.mark.parametrize("before", [0, 1])
def test_what_a_kill_left_is_cut_off_and_a_second_server_is_refused(evaluated, ask, before, capsys):
    report = evaluated / "report"
    miss = lines_of(report / "misses.jsonl")[0]
    opinion = {"id": miss["id"], "sha256": miss["sha256"], "who": "neither", "mos": 2, "rater": "ann", "at": "now"}
    whole = f"{json.dumps(opinion)}\n".replace(": ", ":")
    (report / "review.jsonl").write_text(whole * before + whole[:40], "utf-8")
    client = ask(report)
    assert client.get("/misses").json()["misses"][0]["opinion"] == ({"who": "neither", "mos": 2.0} if before else None)
    client.post("/answer", json={"number": 1, "who": "people"})
    assert len(lines_of(report / "review.jsonl")) == before + 1
    assert rate_command(["--review", str(report), "--port", "0"]) == 2
    assert "review.jsonl': another run writes it" in capsys.readouterr().err


def test_a_folder_without_misses_or_with_another_file_is_refused(tmp_path, capsys):
    assert rate_command(["--review", str(tmp_path), "--port", "0"]) == 2
    assert "holds no misses.jsonl; give the folder of agentic-iqa evaluate --report" in capsys.readouterr().err
    (tmp_path / "misses.jsonl").write_text("", "utf-8")
    with pytest.raises(InputError, match="missed nothing"):
        Reviewing(tmp_path, load_settings(), "ann")
    (tmp_path / "misses.jsonl").write_text('{"id": 1}\n', "utf-8")
    with pytest.raises(InputError, match=r"misses.jsonl' line 1: "):
        Reviewing(tmp_path, load_settings(), "ann")


def test_opinions_stay_where_a_program_and_its_report_are_replaced(tmp_path):
    for name in ("review.jsonl", "other.txt"):
        (tmp_path / name).write_text("{}\n", "utf-8")
    with pytest.raises(InputError, match=r"other.txt"):
        check_outputs_in(tmp_path, PROGRAM)
    (tmp_path / "other.txt").unlink()
    check_outputs_in(tmp_path, PROGRAM)
    remove_outputs(tmp_path, PROGRAM)
    assert (tmp_path / "review.jsonl").is_file()


@pytest.fixture
def opinions(tmp_path):
    """Write opinions on samples of the blurred photographs, each (sample, who, own score, rater)."""

    def write(*given):
        file = tmp_path / "review.jsonl"
        lines = []
        for sample, who, mos, rater in given:
            image = tmp_path / f"{sample[1:]}.png"
            sha256 = hashlib.sha256(image.read_bytes()).hexdigest() if image.is_file() else "0" * 64
            facts = {"id": sample, "sha256": sha256, "run_id": None, "at": "2026-01-01T00:00:00+00:00"}
            lines.append(json.dumps(facts | {"who": who, "mos": mos, "rater": rater}))
        file.write_text("".join(f"{line}\n" for line in lines) + '{"id": "half', "utf-8")
        return file

    return write


@pytest.mark.parametrize("is_divided", [True, False], ids=["splits", "folds"])
def test_opinions_change_what_is_learned_from_and_not_what_is_tested_on(
    blurred_manifest, tmp_path, opinions, is_divided, capsys
):
    if not is_divided:
        lines = [line | {"split": None} for line in lines_of(blurred_manifest)]
        blurred_manifest.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    file = opinions(
        ("s0", "people", None, "ann"), ("s0", "neither", 2, "ann"),
        ("s1", "program", 3, "ann"), ("s1", "neither", 4, "bob"),
        ("s2", "people", 1, "ann"),
        ("s3", "program", None, "ann"), ("q3", "neither", None, "ann"),
        ("s5", "program", None, "ann"), ("s5", "people", None, "bob"),
        ("s6", "people", None, "ann"), ("s6", "neither", 4.4, "bob"),
        ("s4", "program", 3, "ann"), ("s9", "program", None, "ann"),
        ("s99", "neither", 1, "ann"),
    )  # fmt: skip
    command = ["--data", str(blurred_manifest), "--review", str(file), "--out", str(tmp_path / "out"), "--dry-run"]
    assert compile_command(command) == 0
    expected = ["4 labels replaced, 3 left out"]
    if is_divided:
        kept = "2 in the test stay people's: who has seen a score must not judge scores"
        expected = ["3 labels replaced, 2 left out", kept]
    expected.append("1 on pictures that this data does not have")
    assert f"second opinions: {'; '.join(expected)}" in capsys.readouterr().err.splitlines()

    job = prepare_job(load_settings(), str(blurred_manifest), out=tmp_path / "out", review=file)
    before = {line["id"]: line.get("mos", line.get("answer")) for line in lines_of(blurred_manifest)}
    learned, tested = {}, {}
    for part in job.folds or (job.splits,):
        learned |= {sample.id: sample for name in ("train", "validation") for sample in part[name]}
        tested |= {sample.id: sample for sample in part["test"]}
    changed = {name: sample.quality for name, sample in learned.items() if sample.truth != before[name]}
    assert changed == pytest.approx({"s0": 2, "s1": 3.5, "s6": 3.4} | ({} if is_divided else {"s4": 3}))
    assert all(learned[name].metadata == {"labels": "second opinion"} for name in changed)
    left_out = {"s3", "q3"} if is_divided else {"s3", "q3", "s9"}
    assert before.keys() - learned.keys() - (tested.keys() if is_divided else set()) == left_out
    assert all(sample.truth == pytest.approx(before[name]) for name, sample in tested.items() if name[0] == "s")
    assert {"s4", "s9"} <= tested.keys()


def test_a_review_that_cannot_be_used_is_refused_in_a_line(blurred_manifest, tmp_path, opinions, capsys):
    validation = [line["id"] for line in lines_of(blurred_manifest) if line["split"] == "validation"]
    file = opinions(*((name, "program", None, "ann") for name in validation))
    command = ["--data", str(blurred_manifest), "--out", str(tmp_path / "out"), "--dry-run", "--review"]
    assert compile_command([*command, str(file)]) == 2
    assert "leaves out every label of validation" in capsys.readouterr().err
    file.write_text('{"id": "s0", "who": "nobody"}\n', "utf-8")
    assert compile_command([*command, str(file)]) == 2
    assert "review.jsonl' line 1: " in capsys.readouterr().err
    assert compile_command([*command, str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl': cannot be read (No such file or directory)" in capsys.readouterr().err
