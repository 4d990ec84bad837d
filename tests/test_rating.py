"""Ratings of a person: what the page is sent, what is kept, and what compiling, checking and evaluating read of it."""

import io
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from agentic_iqa.__main__ import main
from data.catalogue import resolve_dataset
from data.manifest import read_manifest
from program.common.errors import InputError
from program.rating.__main__ import make_parser, session_of
from program.rating.store import RatingFile

testclient = pytest.importorskip("starlette.testclient", reason="the extra [serve] is not installed")
pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(14):
        Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).save(folder / f"secret{number:02}.png")
    return folder


class Rater:
    """A page that answers by itself."""

    def __init__(self, words, tab="one", session=None):
        from program.rating.server import app_of

        self.tab, self.file = tab, None
        if session is None:
            arguments = make_parser().parse_args(list(map(str, words)))
            self.file = RatingFile(arguments.out)
            try:
                session = session_of(arguments, self.file, 10**6)
            except InputError:
                self.file.close()
                raise
        self.session, self.said = session, []
        self.client = testclient.TestClient(app_of(session, "agentic-iqa compile"), base_url="http://127.0.0.1:8010")

    def post(self, path, **values):
        reply = self.client.post(path, json={"tab": self.tab, **values})
        self.said.append(reply.text)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def queue(self):
        return self.post("/queue")["queue"]

    def rate(self, answers):
        shown = []
        for answer in answers:
            task = self.queue()[0]
            self.post("/answer", id=task["id"], answer=answer)
            shown.append(task["id"])
        return shown

    def close(self):
        self.file.close()


@pytest.fixture
def rater(photos, tmp_path):
    """Open the page of some photographs; the folder of the ratings is beside them."""
    opened = []

    def start(*words, **given):
        opened.append(Rater([photos, "--out", tmp_path / "ratings", *words], **given))
        return opened[-1]

    yield start
    for each in opened:
        if each.file is not None:
            each.close()


def lines_of(folder):
    return [json.loads(line) for line in (folder / "ratings.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.spec("issue-72/ratings-are-a-manifest")
def test_answers_are_kept_at_once_resumed_and_read_as_a_manifest(rater, photos, tmp_path, capsys):
    one = rater("--rater", "ann")
    shown = one.rate([n % 5 + 1 for n in range(6)] + ["unsure"])
    assert len(lines_of(tmp_path / "ratings")) == 7
    one.close()
    again = rater("--rater", "ann")
    progress = again.post("/queue")
    assert (progress["rated"], progress["unsure"]) == (7, 1)
    assert not {task["id"] for task in progress["queue"]} & set(shown)
    again.rate([3, 4])
    again.close()
    other = rater("--rater", "bob")
    assert other.post("/queue")["rated"] == 0
    other.rate([5] * 11)
    lines = lines_of(tmp_path / "ratings")
    samples = {sample.id: sample for sample in read_manifest(resolve_dataset(tmp_path / "ratings", tmp_path))}
    for sample in samples.values():
        by_rater = {
            name: [line["mos"] for line in lines if (line["id"], line["rater"]) == (sample.id, name) and line["mos"]]
            for name in ("ann", "bob")
        }
        assert sample.mos == pytest.approx(np.mean([np.mean(own) for own in by_rater.values() if own]))
        assert sample.image == photos / sample.id
        assert not sample.is_made_up
    assert main(["data", "check", str(tmp_path / "ratings")]) == 0, capsys.readouterr().out
    assert f"{len(samples)} lines" in capsys.readouterr().out


@pytest.mark.spec("issue-72/blind")
def test_neither_page_nor_picture_says_which_file_it_is(rater, photos):
    upright = Image.fromarray(np.arange(24 * 32 * 3, dtype=np.uint8).reshape(24, 32, 3))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "secret words"
    for old in photos.iterdir():
        old.unlink()
    upright.save(photos / "secret.jpg", exif=exif)
    one = rater()
    (task,) = one.queue()
    png = one.client.get(f"/picture/{task['id']}/0")
    with Image.open(io.BytesIO(png.content)) as picture:
        assert picture.size == (24, 32)  # turned as its EXIF says
        assert (picture.format, picture.info) == ("PNG", {})
    pages = [one.client.get(path).text for path in ("/", "/worth", "/assets/rate.js")]
    assert "secret" not in " ".join([*one.said, *pages, str(png.headers)])


def test_a_tenth_comes_again_unseen_and_is_averaged(rater, tmp_path):
    one = rater()
    ids = one.rate([2] * 14)
    lines = lines_of(tmp_path / "ratings")
    repeated = [line["id"] for line in lines if line["repeat"]]
    assert len(repeated) == 1
    assert len(ids) == len(set(ids))  # the page cannot tell a repeat from others
    for name in repeated:
        first, second = (n for n, line in enumerate(lines) if line["id"] == name)
        assert second - first > 5
    task = one.queue()[0]
    keys = {key for said in one.said for key in json.loads(said).get("queue", [{}])[0]}
    assert keys == set(task) == {"id", "sides", "given", "answers", "title"}


def test_the_last_answer_counts_and_one_can_be_taken_back(rater, tmp_path):
    one = rater()
    first, second = one.rate([1, 2])
    one.post("/answer", id=first, answer=5)
    one.post("/answer", id=first, answer=5)  # sent once more, as nobody answered
    assert len(lines_of(tmp_path / "ratings")) == 3
    assert one.post("/before", id=second)["task"]["given"] == 5
    assert one.post("/before", id=None)["task"]["id"] == second
    assert one.post("/answer", id=second, answer=None)["queue"][0]["id"] == second
    assert one.post("/queue")["rated"] == 1
    (sample,) = read_manifest(tmp_path / "ratings" / "ratings.jsonl")
    assert sample.mos == 5


@pytest.mark.spec("issue-72/two-tabs")
def test_two_tabs_share_one_file_and_a_second_server_is_refused(rater, photos, tmp_path, capsys):
    one = rater()
    two = Rater((), "two", one.session)
    assert not {task["id"] for task in one.queue()} & {task["id"] for task in two.queue()}
    for _ in range(10):
        for page in (one, two):
            if tasks := page.queue():
                page.post("/answer", id=tasks[0]["id"], answer=4)
    names = [(line["id"], line["repeat"]) for line in lines_of(tmp_path / "ratings")]
    assert len(names) == len(set(names))
    assert len({name for name, _ in names}) == 14
    assert main(["rate", str(photos), "--out", str(tmp_path / "ratings"), "--port", "0"]) == 2
    assert re.fullmatch(r"error: ratings '.*': another run writes it; wait, or give another --out\n",
                        capsys.readouterr().err)  # fmt: skip


def test_what_a_closed_tab_held_is_shown_in_another(rater):
    one = rater()
    gone = Rater((), "gone", one.session)
    held = {task["id"] for task in gone.queue()}
    shown = set()
    while tasks := one.queue():
        shown.add(tasks[0]["id"])
        one.post("/answer", id=tasks[0]["id"], answer=3)
    assert held <= shown


@pytest.mark.parametrize("torn", ['{"id": "x", "ima', '{"id": "x"}'])
def test_half_a_line_of_a_kill_is_dropped_and_said(rater, tmp_path, torn, caplog):
    one = rater()
    one.rate([3, 4])
    one.close()
    path = tmp_path / "ratings" / "ratings.jsonl"
    whole = path.read_text("utf-8")
    path.write_text(whole + torn, "utf-8")
    assert len(list(read_manifest(path))) == 2
    assert "its last line is not whole and is left out" in caplog.text
    again = rater()
    assert path.read_text("utf-8") == whole
    again.rate([5])
    assert len(lines_of(tmp_path / "ratings")) == 3


def test_ratings_that_are_none_are_refused_with_their_line(rater, tmp_path):
    folder = tmp_path / "ratings"
    folder.mkdir()
    (folder / "ratings.jsonl").write_text("notes of mine", "utf-8")
    with pytest.raises(InputError, match="holds no ratings; give another --out"):
        rater()
    (folder / "ratings.jsonl").write_text('{"id": "a"}\n', "utf-8")
    with pytest.raises(InputError, match=r'line 1: "image": Field required; correct or remove the line'):
        rater()


def test_only_the_own_page_may_ask(rater):
    one = rater()
    (task, _) = one.queue()
    asked = {"json": {"tab": "x", "id": task["id"], "answer": 1}}
    for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert one.client.post("/answer", **asked, headers=headers).status_code == 403
    assert one.client.post("/answer", content=json.dumps(asked["json"])).status_code == 415
    assert one.client.post("/answer", json={"x": "y" * 5000}).status_code == 413
    assert one.client.post("/answer", json={"tab": "x", "id": "of-no-task", "answer": 1}).status_code == 422
    for answer in (6, 0, "left", True, [1], 2.5):
        assert one.client.post("/answer", json={"id": task["id"], "answer": answer}).status_code == 422, answer
    assert one.post("/queue")["rated"] == 0
    assert "default-src 'none'" in one.client.get("/").headers["content-security-policy"]


def test_a_copy_is_shown_once_and_what_cannot_be_read_is_said(rater, photos):
    first = sorted(photos.iterdir())[0]
    (photos / "copy.png").write_bytes(first.read_bytes())
    (photos / "broken.jpg").write_text("no picture", "utf-8")
    one = rater()
    ids = []
    while tasks := one.queue():
        ids.append(tasks[0]["id"])
        one.post("/answer", id=tasks[0]["id"], answer=3)
    assert one.post("/queue")["rated"] == 14
    faults = " ".join(one.session.failed.values())
    assert "is the same as" in faults
    assert "'broken.jpg': not an image" in faults


def test_pictures_that_are_gone_are_left_out_and_their_answers_can_be_taken_back(rater, photos, tmp_path):
    one = rater()
    shown = one.rate([2] * 9)
    for path in photos.iterdir():
        path.unlink()
    while tasks := one.queue():  # the two that are held; a second showing is due, of one that is gone
        one.post("/answer", id=tasks[0]["id"], answer=2)
    state = one.post("/queue")
    assert (state["open"], state["left_out"] + state["rated"]) == (0, 14)
    one.post("/answer", id=shown[0], answer=None)
    assert one.post("/queue")["rated"] == state["rated"] - 1
    assert lines_of(tmp_path / "ratings")[-1]["mos"] is None


@pytest.mark.parametrize("words", [[], ["--pairs"]])
def test_answers_follow_photographs_that_were_moved(rater, photos, tmp_path, words):
    one = rater("--rater", "ann", *words)
    one.rate(["left"] * 6 if words else [1, 2, 3, 4, 5, "unsure"])
    one.close()
    before = {sample.id: sample for sample in read_manifest(tmp_path / "ratings" / "ratings.jsonl")}
    moved = photos.rename(tmp_path / "moved")
    for _ in range(2):
        two = Rater([moved, "--out", tmp_path / "ratings", "--rater", "bob", *words])
        two.close()
    lines = lines_of(tmp_path / "ratings")
    assert len(lines) == (12 if words else 11)
    samples = {sample.id: sample for sample in read_manifest(tmp_path / "ratings" / "ratings.jsonl")}
    assert {sample.image.parent for sample in samples.values()} == {moved}
    assert {name: sample.mos for name, sample in samples.items()} == {name: each.mos for name, each in before.items()}


@pytest.mark.skipif(sys.platform in {"win32", "darwin"}, reason="names are Unicode there")
def test_names_of_any_characters_are_kept_and_one_that_is_no_text_is_said(rater, photos):
    odd = ["a b.png", "Küste.png", "\U0001f600.png", "new\nline.png", os.fsdecode(b"caf\xe9.png")]
    for path, name in zip(sorted(photos.iterdir()), odd, strict=False):
        path.rename(photos / name)
    one = rater()
    while tasks := one.queue():
        one.post("/answer", id=tasks[0]["id"], answer=3)
    assert "its name is no UTF-8" in " ".join(one.session.failed.values())
    assert (one.post("/queue")["rated"], one.post("/queue")["left_out"]) == (13, 1)
    one.close()
    assert rater().post("/queue")["rated"] == 13


def test_pictures_of_a_burst_are_one_group_in_one_split(rater, photos, tmp_path):
    for number, path in enumerate(sorted(photos.iterdir())[:6]):
        exif = Image.Exif()
        exif[0x8769] = {36867: f"2026:05:01 10:00:{10 * (number // 3) + number % 3:02}"}
        with Image.open(path) as picture:
            picture.convert("RGB").save(path.with_suffix(".jpg"), exif=exif, quality=95)
        path.unlink()
    one = rater()
    one.rate([3] * 15)
    groups = {}
    for line in lines_of(tmp_path / "ratings"):
        groups.setdefault(line["group"], []).append((line["id"], line["split"]))
    bursts = [sorted({name for name, _ in each}) for each in groups.values() if len({name for name, _ in each}) > 1]
    assert sorted(map(len, bursts)) == [3, 3]
    assert all(len({split for _, split in each}) == 1 for each in groups.values())


def test_pairs_become_preferences_with_scores(rater, tmp_path):
    one = rater("--pairs", "--glob", "secret0*")
    place = {picture.id: n for n, picture in enumerate(one.session.pictures)}
    while tasks := one.queue():
        (left, right) = one.session.units[one.session._task_of[tasks[0]["id"]].unit].pictures
        assert tasks[0]["sides"] == 2
        assert one.client.get(f"/picture/{tasks[0]['id']}/1").status_code == 200
        one.post("/answer", id=tasks[0]["id"], answer="left" if left > right else "right")
    samples = list(read_manifest(tmp_path / "ratings" / "ratings.jsonl"))
    assert len(samples) == 10
    won = [(place[sample.id], place[other]) for sample in samples for other in sample.preferred_over]
    assert all(better > worse for better, worse in won)
    order = np.argsort([sample.mos for sample in sorted(samples, key=lambda sample: place[sample.id])])
    assert np.corrcoef(order, np.arange(10))[0, 1] > 0.8


def test_a_manifests_questions_are_asked_and_answered(photos, tmp_path):
    asked = {"query": "Is it noisy?", "options": {"A": "Yes", "B": "No"}, "group": "scene", "split": "train"}
    lines = [{"id": f"q{n}", "image": f"photos/secret{n:02}.png", **asked, "group": f"s{n}"} for n in range(3)]
    (tmp_path / "asked.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    one = Rater(["--questions", tmp_path / "asked.jsonl", "--out", tmp_path / "answers"])
    task = one.queue()[0]
    assert (task["title"], [each["label"] for each in task["answers"]]) == ("Is it noisy?", ["Yes", "No"])
    one.rate(["A", "B", "unsure"])
    one.close()
    samples = list(read_manifest(tmp_path / "answers" / "ratings.jsonl"))
    assert sorted(sample.answer for sample in samples) == ["A", "B"]
    assert {(sample.query, sample.task) for sample in samples} == {("Is it noisy?", "mcq")}
    with pytest.raises(InputError, match="hold questions, not scores; give another --out"):
        Rater([photos, "--out", tmp_path / "answers"])


def test_splits_are_stated_once_they_are_large_enough(tmp_path):
    def written(count):
        lines = [
            {"id": f"{n}", "image": f"{n}.png", "sha256": f"{n:064x}", "group": f"{n}", "mos": n % 5 + 1, "rater": "",
             "at": "2026-05-01T10:00:00Z", "repeat": False, "unsure": False,
             "split": ("validation", "test")[n % 2] if n < 20 else "train"}
            for n in range(count)
        ]  # fmt: skip
        path = tmp_path / f"{count}.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
        return [sample.split for sample in read_manifest(path)]

    assert set(written(60)) == {None}
    assert written(120).count("test") == written(120).count("validation") == 10


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "PHOTOS: give a folder of photographs, --questions MANIFEST or --review DIR: one of them"),
        (["nowhere"], "photos 'nowhere': is no folder of this machine; give one"),
    ],
)
def test_what_cannot_be_rated_is_one_line(words, line, tmp_path, capsys):
    assert main(["rate", *words, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"


def test_without_the_extra_it_is_named(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    assert main(["rate", str(photos), "--out", str(tmp_path / "out")]) == 2
    assert "pip install 'agentic-iqa[serve]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
