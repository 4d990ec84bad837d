"""Many images from the command: tables, resume, gate, summary and comparison."""

import errno
import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

import dspy
import pyarrow.parquet
import pytest

from benchmarks.malformed import MUTATIONS, write_mutated
from program import assess
from program.agent.comparison import compare_images, sureness, verdict
from program.batch.command import judge
from program.batch.inputs import find_items
from program.batch.output import write_rows
from program.common.cells import plain_cell, text_cell
from program.common.errors import InputError
from program.common.files import place_of
from program.common.request import Request
from program.images.store import IMAGES
from program.lms.limits import BudgetSpent
from program.running.journal import Journal
from program.running.row import Row
from program.service.requests import assess_rows
from tests.pictures import blocks
from tests.rows import judged
from tests.tables import as_lines, read_lines
from tests.tables import read_csv as cells_of

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def folder(tmp_path, encoded):
    """Four images, one damaged, in folders with names of every kind."""
    root = tmp_path / "photos"
    (root / "deep" / "模糊").mkdir(parents=True)
    names = ["a.png", "=cmd().png", "deep/ü 1.PNG", "deep/模糊/b.png", "deep/bad.jpg"]
    for seed, name in enumerate(names, start=4):
        (root / name).write_bytes(encoded(seed))
    (root / "deep" / "bad.jpg").write_bytes(b"\xff\xd8 no image")
    (root / "notes.txt").write_text("no image")
    (root / ".hidden.png").write_bytes(encoded())
    return root


@pytest.mark.skipif(os.name == "nt", reason="no such locks on Windows")
def test_a_second_run_into_the_same_table_is_told_so(folder, tmp_path, program, capsys):
    arguments = [str(folder), "--out", str(tmp_path / "rows.csv")]
    with Journal(tmp_path / "rows.csv.partial", {"journal": "batch"}, Row, mend=""):
        assert assess.main(arguments) == 2
    assert "another run writes it; wait, or give another --out" in capsys.readouterr().err


def read_csv(path):
    return [{name: plain_cell(cell) for name, cell in row.items()} for row in cells_of(path)]


def test_a_folder_becomes_a_table_and_no_image_is_lost(program, folder, tmp_path, capsys):
    out = tmp_path / "results.csv"
    assert assess.main([str(folder), "--out", str(out), "--recursive"]) == 1
    rows = read_csv(out)
    assert [row["id"] for row in rows] == ["=cmd().png", "a.png", "deep/bad.jpg", "deep/ü 1.PNG", "deep/模糊/b.png"]
    assert [row["status"] for row in rows] == ["ok", "ok", "error", "ok", "ok"]
    assert "not an image" in rows[2]["error"] or "damaged" in rows[2]["error"]
    assert rows[1]["distortions"] == "Blurs: moderate"
    assert rows[1]["tools"] == "PIQE 2.60"
    assert rows[1]["reasoning"] == "Soft edges."
    assert list(rows[1])[:5] == ["id", "status", "score", "low", "high"]
    assert float(rows[1]["low"]) < float(rows[1]["score"]) < float(rows[1]["high"])
    shown = capsys.readouterr()
    assert "Worst 4" in shown.out
    assert "deep/bad.jpg" in shown.out
    assert "5 images · mean score 2.73 · fair 4 · 1 failed" in " ".join(shown.out.split())
    assert sorted(p.name for p in tmp_path.iterdir() if "results" in p.name) == ["results.csv"]
    assert not any(entry.borrowers for entry in IMAGES._entries.values())


@pytest.mark.skipif(os.name == "nt", reason="no such names on Windows")
def test_a_table_names_files_as_they_are(program, folder, tmp_path):
    (folder / "two\nlines.png").write_bytes((folder / "a.png").read_bytes())
    out = tmp_path / "results.csv"
    assert assess.main([str(folder), "--out", str(out)]) == 0
    rows = read_csv(out)
    assert "two\nlines.png" in [row["id"] for row in rows]
    assert all(Path(row["image"]).is_file() for row in rows)


def test_a_finished_table_is_not_replaced_unless_told(program, folder, tmp_path, capsys):
    out = tmp_path / "results.csv"
    out.write_text("mine\n", "utf-8")
    assert assess.main([str(folder), "--out", str(out)]) == 2
    assert "is there already; give another name, or --force to replace it" in capsys.readouterr().err
    assert out.read_text("utf-8") == "mine\n"
    # A run that replaces and is stopped goes on with the same words or without --force.
    assert assess.main([str(folder), "--out", str(out), "--force", "--workers", "1", "--max-calls", "2"]) == 2
    assert out.read_text("utf-8") == "mine\n"
    assert assess.main([str(folder), "--out", str(out)]) == 0
    assert len(read_csv(out)) == 2


@pytest.mark.parametrize("limit", [["--max-calls", "4"], ["--max-tokens", "40"], ["--max-cost", "1"]])
def test_no_more_is_spent_than_each_flag_of_the_budget_allows(program, folder, monkeypatch, capsys, limit):
    monkeypatch.setattr("dspy.clients.costs.estimate_cost", lambda *_args, **_named: (0.25, {}))
    images = [str(folder / name) for name in ("a.png", "=cmd().png", "deep/ü 1.PNG")]
    assert assess.main([*images, "--workers", "1", *limit]) == 2
    assert f"allow more with {limit[0]}" in capsys.readouterr().err
    assert len(program.engine.requests) == 4


def test_so_many_images_are_judged_at_once_as_were_asked_for(program, folder, monkeypatch):
    both, forward = threading.Barrier(2), type(program).forward

    def beside_another(self, **given):
        both.wait(10)
        return forward(self, **given)

    monkeypatch.setattr(type(program), "forward", beside_another)
    assert assess.main([str(folder / "a.png"), str(folder / "=cmd().png"), "--workers", "2"]) == 0


def test_a_question_is_put_of_each_image_of_a_folder(program, folder, tmp_path):
    out = tmp_path / "out.csv"
    assert assess.main([str(folder), "--out", str(out), "--query", "Is it noisy?"]) == 0
    assert [row["query"] for row in read_csv(out)] == ["Is it noisy?"] * 2
    assert not program.engine.asked("quality_probs")


def test_a_score_and_its_ends_have_equal_decimals_in_a_csv(program, folder, tmp_path):
    out, exact = tmp_path / "results.csv", tmp_path / "results.jsonl"
    assert assess.main([str(folder), "--out", str(out)]) == assess.main([str(folder), "--out", str(exact)]) == 0
    rows = read_lines(exact)
    for cells, row in zip(read_csv(out), rows, strict=True):
        for name in ("score", "low", "high"):
            assert len(cells[name].partition(".")[2]) <= 6
            assert float(cells[name]) == pytest.approx(row[name], abs=5.1e-7)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_other_formats_hold_the_same(program, folder, tmp_path, capsys, suffix):
    out = tmp_path / f"results{suffix}"
    assert assess.main([str(folder), "--out", str(out), "-r", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["images"], facts["scored"], facts["failed"], facts["levels"]) == (5, 4, 1, {"C": 4})
    if suffix == ".jsonl":
        rows = read_lines(out)
    else:
        rows = pyarrow.parquet.read_table(out).to_pylist()
    assert [row["id"] for row in rows] == ["=cmd().png", "a.png", "deep/bad.jpg", "deep/ü 1.PNG", "deep/模糊/b.png"]
    assert [Row.model_validate(row) for row in rows]
    assert rows[0]["score"] == pytest.approx(2.734, abs=1e-3)


def test_globs_depth_and_references_choose(folder, tmp_path):
    def names(*globs, **more):
        return [item.id for item in find_items([str(folder)], globs=globs, **more)]

    assert names() == ["=cmd().png", "a.png"]
    assert names("*.jpg", recursive=True) == ["deep/bad.jpg"]
    assert names("deep/*", "!*.jpg", recursive=True) == ["deep/ü 1.PNG", "deep/模糊/b.png"]
    references = tmp_path / "references"
    references.mkdir()
    (references / "a.bmp").write_bytes(b"x")
    found = {item.id: item for item in find_items([str(folder)], reference=references)}
    assert found["a.png"].reference == references / "a.bmp"
    assert "no reference of that name" in found["=cmd().png"].error
    with pytest.raises(InputError, match="holds no image to judge"):
        find_items([str(folder)], globs=["*.tif"])
    with pytest.raises(InputError, match="no such file or folder"):
        find_items(["none"])


def tree(root, *names, data=b"x"):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


@pytest.mark.spec("047/a-folder-run-says-what-it-left-out")
def test_a_folder_run_says_what_it_left_out(program, tmp_path, capsys, encoded):
    photos = tree(tmp_path / "photos", "a.JFIF", "b.jpe", "c.mpo", "d/e.JPG", data=encoded())
    tree(photos, "r1.CR3", "r2.cr3", "d/r3.CR3", "d/r4.CR3", "x.jxl", "y.jxl", ".hidden.png", "notes")
    tree(photos, "@eaDir/a.JFIF/SYNOPHOTO_THUMB_M.jpg", "#recycle/old.png", "d/__MACOSX/._e.jpg", "Thumbs/a.jpg")
    (tmp_path / "elsewhere").mkdir()
    (photos / "linked").symlink_to(tmp_path / "elsewhere")
    assert assess.main([str(photos), "-r", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["images"] == 4
    assert facts["left_out"] == {
        ".CR3": 4, ".jxl": 2, "#recycle folder": 1, "@eaDir folder": 1, "Thumbs folder": 1, "__MACOSX folder": 1,
        "linked folder": 1, "without a suffix": 1,
    }  # fmt: skip
    assert assess.main([str(photos)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "10 left out: .CR3 2, .jxl 2, 1 #recycle folder, 1 @eaDir folder" in shown
    assert "1 other folder not looked into (--recursive does)" in shown
    only = tree(tmp_path / "raw", "a.NEF", "b.nef")
    with pytest.raises(InputError, match=r"holds no image to judge .*; 2 left out: \.NEF 2$"):
        find_items([str(only)])


@pytest.mark.spec("047/a-folder-run-says-what-it-left-out")
def test_globs_know_no_case_and_what_they_leave_out_was_meant(tmp_path):
    photos = tree(tmp_path, "IMG_1.JPG", "b.jpg", "Draft-1.jpg", "c.png", "r.CR3")
    items = find_items([str(photos)], globs=["*.jpg", "!DRAFT-*"])
    assert [item.id for item in items] == ["IMG_1.JPG", "b.jpg"]
    assert items.left_out() == {}
    assert find_items([str(photos)], globs=["!*.PNG"]).left_out() == {".CR3": 1}


@pytest.mark.spec("047/file-addresses-are-unquoted")
@pytest.mark.parametrize("start", ["file://", "file://localhost", "FILE://", "file:"])
def test_file_addresses_are_unquoted(tmp_path, start):
    photos = tree(tmp_path / "my photos #1", "ü 100%.png", "refs/ü 100%.png")
    (item,) = find_items(
        [start + quote(str(photos / "ü 100%.png"))], reference=place_of(start + quote(str(photos / "refs")))
    )
    assert (item.image, item.reference) == (photos / "ü 100%.png", photos / "refs" / "ü 100%.png")
    table = tmp_path / "m.jsonl"
    table.write_text(json.dumps({"image": start + quote(str(photos / "ü 100%.png"))}) + "\n", "utf-8")
    (item,) = find_items([str(table)])
    assert item.image == photos / "ü 100%.png"


@pytest.mark.spec("047/a-reference-found-by-its-stem-is-an-image")
def test_a_reference_found_by_its_stem_is_an_image(tmp_path):
    photos = tree(tmp_path / "in", "a.jpg", "b.jpg", "c.jpg", "deep/d.jpg")
    references = tree(tmp_path / "refs", "a.json", "a.xmp", "a.png", ".b.png", "b.txt", "c.bmp", "c.TIF", "deep/d.png")
    found = {item.id: item for item in find_items([str(photos)], reference=references, recursive=True)}
    assert found["a.jpg"].reference == references / "a.png"
    assert "no reference of that name" in found["b.jpg"].error
    assert "several references of that name ('c.TIF', 'c.bmp'); leave one" in found["c.jpg"].error
    assert found["deep/d.jpg"].reference == references / "deep" / "d.png"
    assert assess.main([str(photos / "c.jpg"), "--reference", str(references)]) == 2


@pytest.fixture
def without_rights(monkeypatch):
    """Take the right to look into a folder away, from root too."""
    plain = os.scandir

    def of(folder):
        def scandir(path="."):
            if Path(path) == folder:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return plain(path)

        monkeypatch.setattr(os, "scandir", scandir)

    return of


def test_a_folder_below_that_cannot_be_read_is_a_row_with_its_error(
    program, folder, tmp_path, capsys, without_rights
):  # fmt: skip
    without_rights(folder / "deep")
    out = tmp_path / "out.csv"
    assert assess.main([str(folder), "--recursive", "--out", str(out), "--min-score", "1"]) == 1
    rows = read_csv(out)
    assert [(row["id"], row["status"]) for row in rows] == [("=cmd().png", "ok"), ("a.png", "ok"), ("deep", "error")]
    assert "cannot be read (Permission denied)" in rows[2]["error"]


def test_a_folder_that_cannot_be_read_is_not_called_empty(folder, without_rights):
    without_rights(folder)
    with pytest.raises(InputError, match=r"folder '.+photos': cannot be read \(Permission denied\)"):
        find_items([str(folder)])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_among_the_images_keeps_nobody_waiting(program, tmp_path, encoded):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(encoded())
    os.mkfifo(tmp_path / "in" / "b.png")
    rows = sorted(judged(program, find_items([str(tmp_path / "in")])), key=lambda row: row.id)
    assert [row.status for row in rows] == ["ok", "error"]
    assert "not a plain file" in rows[1].error


def test_a_row_that_is_too_long_costs_its_own_image_alone(program, tmp_path, encoded, capsys):
    images = tmp_path / "in"
    images.mkdir()
    (images / "a.png").write_bytes(encoded())
    head = struct.pack("<IiiHHIIiiII", 40, 119_999_999, 1, 1, 24, 0, 100, 2835, 2835, 0, 0)
    (images / "b.bmp").write_bytes(b"BM" + struct.pack("<IHHI", 154, 0, 0, 54) + head + bytes(100))
    out = tmp_path / "results.csv"
    assert assess.main([str(images), "--out", str(out)]) == 1
    assert [row["status"] for row in read_csv(out)] == ["ok", "error"]
    assert "b.bmp" in read_csv(out)[1]["error"]
    assert assess.main([str(images / "b.bmp")]) == 2
    assert capsys.readouterr().err.startswith("error: image")


def test_each_of_many_mutated_images_has_its_row(program, tmp_path, capsys):
    write_mutated(tmp_path / "in", 49, seed=8)  # holds rows that are too long for Pillow
    out = tmp_path / "results.csv"
    assert assess.main([str(tmp_path / "in"), "--out", str(out)]) == 1
    rows = read_csv(out)
    assert len(rows) == 49
    by_mutation = {m: {row["status"] for row in rows if f"-{m}." in row["id"]} for m in MUTATIONS}
    assert (by_mutation["empty"], by_mutation["suffix"], by_mutation["junk"]) == ({"error"}, {"ok"}, {"ok"})
    assert all(row["id"] in row["error"] for row in rows if row["status"] == "error")


def test_a_fault_after_decoding_costs_its_own_image_alone(program, folder, tmp_path, monkeypatch):
    whole = type(program).forward

    def faulty(self, image, **more):
        if image.name == "a.png":
            raise RecursionError("too deep")
        return whole(self, image, **more)

    monkeypatch.setattr(type(program), "forward", faulty)
    out = tmp_path / "results.csv"
    assert assess.main([str(folder), "--out", str(out)]) == 1
    rows = {row["id"]: row for row in read_csv(out)}
    assert rows["a.png"]["status"] == "error"
    assert "too deep" in rows["a.png"]["error"]
    assert rows["=cmd().png"]["status"] == "ok"


def test_an_out_that_is_a_folder_is_told_before_anything_is_judged(program, folder, tmp_path, capsys):
    out = tmp_path / "results.csv"
    out.mkdir()
    assert assess.main([str(folder), "--out", str(out)]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert not program.engine.requests
    assert list(tmp_path.glob("*.partial")) == []


def test_names_that_no_system_holds_are_one_line(program, capsys):
    for name in ("x" * 5000, "x" * 5000 + ".jsonl"):
        assert assess.main([name]) == 2
        captured = capsys.readouterr().err
        assert captured.startswith("error: ")
        assert captured.count("\n") == 1


def test_equal_names_of_two_folders_stay_apart(tmp_path, encoded):
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(encoded())
    items = find_items([str(tmp_path / "x"), str(tmp_path / "y"), str(tmp_path / "x" / "a.png")])
    assert [item.id for item in items] == [(tmp_path / n / "a.png").as_posix() for n in "xy"]


def test_names_that_are_no_utf8_are_kept(program, tmp_path, encoded, capsys):
    (tmp_path / "in").mkdir()
    path = os.fsencode(tmp_path / "in") + b"/\xff.png"
    try:
        with open(path, "wb") as file:
            file.write(encoded())
    except OSError:
        pytest.skip("this file system keeps UTF-8 names only")
    assert assess.main([str(tmp_path / "in"), "--out", str(tmp_path / "out.csv")]) == 0
    assert read_csv(tmp_path / "out.csv")[0]["id"] == "\\xff.png"
    assert "· 0 failed" in " ".join(capsys.readouterr().out.split())
    assert assess.main([os.fsdecode(path), "--json"]) == 0
    assert "\\\\xff.png" in capsys.readouterr().out


def test_a_manifest_brings_its_own_questions_and_its_bad_lines_stay(program, folder, tmp_path, capsys):
    lines = [
        {"id": "1", "image": str(folder / "a.png"), "query": "Is it blurry?", "options": {"A": "Yes", "B": "No"}},
        {"id": "2", "image": str(folder / "a.png")},
        {"id": "3"},
        {"id": "4", "image": "none.png"},
    ]
    manifest = tmp_path / "m.jsonl"
    manifest.write_text(as_lines(lines), "utf-8")
    assert assess.main([str(manifest), "--out", str(tmp_path / "out.csv")]) == 1
    rows = read_csv(tmp_path / "out.csv")
    assert [row["status"] for row in rows] == ["ok", "ok", "error", "error"]
    assert (rows[0]["answer"], rows[0]["query"]) == ("B", "Is it blurry?")
    assert rows[1]["answer"] == ""
    assert rows[2]["id"].endswith("m.jsonl:3")
    assert "no such file" in rows[3]["error"]


def test_the_gate_has_a_code_of_its_own(program, folder, capsys):
    image = str(folder / "a.png")
    good = [image, str(folder / "=cmd().png")]
    assert assess.main([image, "--min-score", "2.5"]) == 0
    assert assess.main([image, "--min-score", "3"]) == 3
    assert assess.main([*good, "--min-score", "2.5"]) == 0
    assert assess.main([*good, "--min-score", "3"]) == 3
    assert assess.main([str(folder), "-r", "--min-score", "2.5"]) == 1  # one image cannot be read: it does not pass
    capsys.readouterr()
    assert assess.main([*good, "--min-score", "3", "--sure", "0.9"]) == 4
    summary = "2 images · mean score 2.73 · fair 2 · 0 failed · 2 below 3 (0 surely) · 2 not sure"
    assert summary in " ".join(capsys.readouterr().out.split())
    assert assess.main([*good, "--min-score", "3", "--sure", "0.9", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["not_sure"] == 2


def test_an_image_that_surely_fails_the_gate_fails_it_beside_one_that_is_not_sure(
    service_program, folder, monkeypatch, capsys
):
    beliefs = ({"1": 0.95, "2": 0.05}, {"2": 0.3, "3": 0.6, "4": 0.1})
    script = {"quality_probs": [{"quality_probs": each, "quality_reasoning": "So."} for each in beliefs]}
    monkeypatch.setattr("program.agent.saving.AgenticIQA", lambda *_: service_program(script=script))
    images = [str(folder / name) for name in ("a.png", "=cmd().png")]
    assert assess.main([*images, "--min-score", "3", "--sure", "0.9"]) == 3
    assert "2 below 3 (1 surely) · 1 not sure" in " ".join(capsys.readouterr().out.split())


@pytest.mark.spec("issue-50/gate-by-fault")
def test_faults_that_are_as_strong_as_a_limit_fail_the_gate(tmp_path, capsys):
    from PIL import Image, ImageFilter
    from skimage.data import astronaut

    photo = Image.fromarray(astronaut()).resize((256, 256))
    photo.save(tmp_path / "sharp.png")
    photo.filter(ImageFilter.GaussianBlur(5)).save(tmp_path / "soft.png")
    sharp, soft = str(tmp_path / "sharp.png"), str(tmp_path / "soft.png")
    assert assess.main([soft, "--fail-on", "Defocus blur>=moderate, too dark"]) == 3
    assert assess.main([sharp, "--fail-on", "defocus blur>=moderate,too dark"]) == 0
    assert assess.main([soft, "--fail-on", "too dark"]) == 0
    capsys.readouterr()
    assert assess.main([sharp, soft, "--fail-on", "defocus blur"]) == 3
    assert "1 with a fault of --fail-on" in " ".join(capsys.readouterr().out.split())
    assert assess.main([sharp, soft, "--fail-on", "defocus blur", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["barred_faults"] == 1
    for words, told in (
        (["--fail-on", "bluriness"], "'bluriness' is not known"), (["--fail-on", "noise>=huge"], "'huge' is not known"),
        (["--fail-on", "noise", "--query", "Is it noisy?"], "--fail-on: 'Is it noisy?' asks for no score"),
        (["--fail-on", "noise", "--compare"], "leave --query, --option, --out, --min-score, --fail-on out"),
    ):  # fmt: skip
        assert assess.main([sharp, *([soft] if "--compare" in words else []), *words]) == 2
        assert told in capsys.readouterr().err


def test_no_gate_rests_on_a_question(program, folder, tmp_path, capsys):
    image = str(folder / "a.png")
    for asked in (["--query", "Is it blurry?"], ["--query", "Blurry?", "--option", "x", "--option", "y"]):
        for images in ([image], [image, str(folder / "=cmd().png")]):
            assert assess.main([*images, *asked, "--min-score", "2"]) == 2
            error = capsys.readouterr().err
            assert error.startswith("error: --min-score: ")
            assert "asks for no score" in error
    assert program.engine.requests == []
    manifest = tmp_path / "m.jsonl"
    manifest.write_text(json.dumps({"id": "1", "image": image, "query": "Is it blurry?"}) + "\n", "utf-8")
    assert assess.main([str(manifest), "--min-score", "5"]) == 1  # no score is no pass, and no score below


def test_the_tools_mean_is_no_score_of_a_question(program, folder, tmp_path, capsys):
    asked = ["--query", "Which is it?", "--option", "Poodle", "--option", "Beagle"]
    images = [str(folder / name) for name in ("a.png", "=cmd().png")]
    assert assess.main([images[0], *asked]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("B. Beagle\n")
    assert "Fair (2.6 of 5) by the tools alone" in shown
    assert assess.main([*images, *asked, "--out", str(tmp_path / "out.csv")]) == 0
    shown = capsys.readouterr().out
    assert "B. Beagle" in shown
    assert "Worst" not in shown
    assert "mean score" not in shown
    row = read_csv(tmp_path / "out.csv")[0]
    assert (row["answer"], row["option"], row["score"], row["level"]) == ("B", "Beagle", "", "")
    assert float(row["tool_mean"]) == pytest.approx(2.6)
    assert assess.main([images[0], "--query", "Which? A. Poodle B. Beagle"]) == 0
    assert capsys.readouterr().out.startswith("B. Beagle\n")


@pytest.mark.parametrize("query", [None, "Which is it?"])
def test_a_field_holds_the_same_in_json_in_a_table_and_in_mlflow(program, folder, tmp_path, capsys, query):
    image, options = str(folder / "a.png"), ["Poodle", "Beagle"] if query else []
    asked = [*(["--query", query] if query else []), *(f"--option={text}" for text in options)]
    assert assess.main([image, *asked, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert assess.main([str(folder), *asked, "--out", str(tmp_path / "out.jsonl")]) == 0
    row = json.loads((tmp_path / "out.jsonl").read_text("utf-8").splitlines()[0])
    cells = {"image_path": image, "query": query, "options": json.dumps(options) if options else None}
    (answer,) = assess_rows(program, [cells], program.resources.settings, local=True)
    shared = whole.keys() & row.keys()
    assert shared >= {"error", "level", "status", "tool_mean"}
    assert {name: whole[name] for name in shared} == {name: row[name] for name in shared}
    assert whole["tool_mean"] == pytest.approx(2.6)
    assert [*answer] == [*Row.model_fields, "assessment"]
    own = {"id", "image", "seconds"}
    assert {k: v for k, v in answer.items() if k in row.keys() - own} == {k: row[k] for k in row.keys() - own}
    assert json.loads(answer["assessment"])["final_answer"] == whole["final_answer"]


def test_equal_options_are_refused_before_anything_is_judged(program, folder, capsys):
    for images in ([str(folder / "a.png")], [str(folder)]):
        assert assess.main([*images, "--query", "Blurry?", "--option", "Yes", "--option", "Yes"]) == 2
        assert capsys.readouterr().err == "error: options A and B: are both 'Yes'; give each a text of its own\n"
    assert program.engine.requests == []


def test_a_finding_of_a_region_without_a_box_is_of_the_whole_image(program, folder, tmp_path, capsys):
    from program.batch.output import show

    result = program(image=folder / "a.png")
    evidence = result.state.executor_evidence
    evidence.distortion_analysis = {"dog": evidence.distortion_analysis["Global"]}
    show(result)
    assert "dog (whole image)" in capsys.readouterr().out
    assert Row.of(Request(id="a"), result).distortions == "Blurs: moderate (dog (whole image))"
    evidence.region_boxes = {"dog": (0, 0, 20, 20)}
    assert Row.of(Request(id="a"), result).distortions == "Blurs: moderate (dog)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{f}", "--out", "x.xlsx"], "end its name in .csv, .jsonl, .parquet"),
        (["{f}", "--out", "{f}/a.png/x.csv"], "cannot be written"),
        (["{f}/a.png", "--query", "Sharp?", "--option", "Yes"], "--option 'Yes': is the only one; give --option twice"),
        (["{f}/a.png", "--compare"], "--compare: needs two images; 1 given"),
        (["{f}/a.png", "{f}/a.png", "--compare", "--query", "x"], "leave --query"),
    ],
)
def test_what_cannot_run_is_told_in_one_line(program, folder, capsys, arguments, message):
    assert assess.main([a.format(f=folder) for a in arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_cells_are_no_formulas():
    for text in ("=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", " =1", "\r=1", "＝1"):
        assert text_cell(text).startswith("'"), text
    assert text_cell("a=1") == "a=1"
    assert text_cell("x\n=1") == "x =1"
    assert text_cell(2.5) == 2.5


def test_a_resumed_run_judges_only_what_is_open(program, folder, tmp_path):
    items = find_items([str(folder)], recursive=True)
    out = tmp_path / "out.jsonl"

    class StoppedError(BaseException):  # as an interrupt: a plain fault would be the image's
        pass

    calls = []
    plain = type(program).forward

    def counted(self, image, **given):
        result = plain(self, image=image, **given)
        calls.append(image.name)
        if len(calls) == 3:
            raise StoppedError
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(program), "forward", counted)
        with pytest.raises(StoppedError):
            judge(program, items, out=out, workers=1, progress=False)
        journal = out.with_name("out.jsonl.partial")
        done = journal.read_text("utf-8").count('"status": "ok"')
        assert 2 <= done < 4
        assert not out.exists()
        with journal.open("a", encoding="utf-8") as file:
            file.write('{"stamp": [1, 2')  # as a kill leaves it
        calls[:] = [""] * 10
        judge(program, items, out=out, workers=1, progress=False)
        rows = [Row.model_validate_json(line) for line in out.read_text("utf-8").splitlines()]
    assert len(calls) - 10 == 4 - done  # four images can be read
    assert [row.status for row in rows] == ["ok", "ok", "error", "ok", "ok"]
    assert not journal.exists()


def test_a_changed_image_is_judged_anew_and_another_question_is_refused(program, folder, tmp_path, encoded):
    items = find_items([str(folder / "a.png")])
    out = tmp_path / "out.csv"
    rows = judged(program, items)
    context_out = out.with_name("out.csv.partial")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("program.batch.output.write_rows", lambda *_: (_ for _ in ()).throw(InputError("full disk")))
        with pytest.raises(InputError, match="full disk"):
            judge(program, items, out=out, progress=False)
    assert context_out.exists()
    with pytest.raises(InputError, match=r"belongs to another run .*context\.query"):
        judge(program, items, out=out, query="Is it noisy?", progress=False)
    (folder / "a.png").write_bytes(encoded(77, height=40))
    before = len(program.engine.requests)
    judge(program, items, out=out, progress=False)
    assert len(program.engine.requests) > before
    assert float(read_csv(out)[0]["score"]) == round(rows[0].score, 6)


def test_a_model_service_that_is_down_ends_the_run(program, folder, monkeypatch):
    monkeypatch.setattr(type(program), "forward", lambda *_, **__: (_ for _ in ()).throw(dspy.LMError("down")))
    with pytest.raises(dspy.LMError):
        judged(program, find_items([str(folder)], recursive=True), workers=1)


_KILLED = """
import os, signal, sys
from program.agent.loop import AgenticIQA
from program.assess import main
judge, left = AgenticIQA.forward, iter(range(5))
def forward(*given, **more):
    if next(left, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    return judge(*given, **more)
AgenticIQA.forward = forward
main([*sys.argv[1:], "--workers", "1"])
"""


@pytest.mark.slow
def test_a_killed_process_goes_on_where_it_stopped(tmp_path, encoded, capsys):
    photos = tmp_path / "photos"
    photos.mkdir()
    for seed in range(8):
        (photos / f"{seed}.png").write_bytes(encoded(seed))
    out = tmp_path / "out.csv"
    # A question of taste asks no tool: nothing heavy is loaded for it.
    words = [str(photos), "--out", str(out), "--query", "Is it beautiful?"]
    journal = out.with_name("out.csv.partial")
    process = subprocess.run([sys.executable, "-c", _KILLED, *words], cwd=ROOT, capture_output=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert not out.exists()
    done = journal.read_bytes().count(b"\n") - 1
    assert 0 < done <= 5
    assert assess.main(words) == 0
    assert f"resuming: {done} of 8 done" in capsys.readouterr().err
    assert [row["id"] for row in read_csv(out)] == [f"{seed}.png" for seed in range(8)]
    assert not journal.exists()


# Two images


def test_comparison_says_which_how_much_how_sure_and_why(scripted_iqa, fake_runner, tmp_path, encoded, capsys):
    script = json.loads(json.dumps({
        "plan": {"plan": {"query_type": "IQA", "query_scope": ["Global"], "reference_mode": "No-Reference",
                          **dict.fromkeys(("distortion_detection", "distortion_analysis", "tool_selection",
                                           "tool_execute"), True)}},
        "selected_tools": {"selected_tools": [{"region": "Global", "distortion": "Blurs", "tool": "PIQE"}]},
    }))  # fmt: skip
    blur = {"region": "Global", "type": "Blurs", "explanation": "Soft."}
    found = (("severe", "slight"), ("slight",))  # of two of one name the worse one counts
    script["findings"] = [{"findings": [{**blur, "severity": s} for s in each]} for each in found]
    script["quality_probs"] = [
        {"quality_probs": p, "quality_reasoning": "So."} for p in ({"2": 0.9, "3": 0.1}, {"3": 0.1, "4": 0.9})
    ]

    class Runner(fake_runner):
        def measure(self, tool_name, image, *given, **more):
            self.default = 1.5 if len(self.measured) == 0 else 4.0
            return super().measure(tool_name, image, *given, **more)

    program = scripted_iqa(script, runner=Runner())
    found = compare_images(program, IMAGES.add(encoded(1)), IMAGES.add(encoded(2)))
    assert found.better == "B"
    assert found.difference == pytest.approx(found.score_b - found.score_a)
    assert found.score_a < 2.2
    assert found.score_b > 3.7
    assert found.probability_b_better > 0.95
    assert found.verdict == "B is clearly better"
    assert found.reasons[:2] == ["Blur: severe in A, slight in B.", "PIQE scores A 1.50 and B 4.00."]


@pytest.mark.parametrize("curve", [(), [(1, 1.0), (5, 3.0)]])
def test_a_comparison_is_as_sure_as_the_beliefs_behind_its_scores(service_program, encoded, curve):
    from program.fusion.scores import FittedFusion

    even, narrow = dict.fromkeys("12345", 0.2), {"2": 0.1, "3": 0.8, "4": 0.1}
    beliefs = [{"quality_probs": p, "quality_reasoning": "So."} for p in (even, narrow)]
    program = service_program(script={"quality_probs": beliefs})
    program.resources.runner.precisions = lambda readings, belief=None: [0.5] * len(readings)
    program.resources.runner.default = 2.0
    program.summarizer.fitted = FittedFusion(program.resources.fusion, curve=curve)
    found = compare_images(program, IMAGES.add(encoded(1)), IMAGES.add(encoded(2)))
    # alpha_c ~ exp(-0.5 / 2 (2 - c)^2) = 0.779, 1, 0.779, 0.368, 0.105 beside each belief.
    a = {1: 0.7788, 2: 1.0, 3: 0.7788, 4: 0.3679, 5: 0.1054}
    b = {2: 0.1 * a[2], 3: 0.8 * a[3], 4: 0.1 * a[4]}
    moments = []
    for belief in (a, b):
        mean = sum(p * c for c, p in belief.items()) / sum(belief.values())
        moments.append((mean, sum(p * (c - mean) ** 2 for c, p in belief.items()) / sum(belief.values())))
    (mean_a, variance_a), (mean_b, variance_b) = moments
    # The curve halves differences and deviations alike.
    assert found.difference == pytest.approx((mean_b - mean_a) / (2 if curve else 1), abs=1e-3)
    z = (mean_b - mean_a) / (variance_a + variance_b) ** 0.5
    assert found.probability_b_better == pytest.approx(0.5 * (1 + math.erf(z / 2**0.5)), abs=1e-3)


def test_sureness_is_symmetric_and_grows_with_the_difference():
    for a, b, sd in ((2.0, 3.0, 0.4), (1.0, 5.0, 0.9), (3.0, 3.1, 0.0)):
        assert sureness([a, b], [sd, sd]) == pytest.approx(1 - sureness([b, a], [sd, sd]))
    assert sureness([2, 2.5], [0.5, 0.5]) < sureness([2, 3], [0.5, 0.5])
    # Against a simulation with another generator of normal numbers.
    import numpy as np

    draws = np.random.default_rng(0).normal([[2.0], [2.6]], [[0.5], [0.3]], (2, 200_000))
    assert sureness([2.0, 2.6], [0.5, 0.3]) == pytest.approx((draws[1] > draws[0]).mean(), abs=0.004)
    assert verdict(0.5) == "no clear difference"


@pytest.mark.parametrize(
    ("probability", "stated"),
    [(0.97, "97% sure"), (1e-9, "over 99% sure"), (0.9999, "over 99% sure"), (0.3, "70% sure")],
)
def test_no_comparison_is_stated_as_certain(probability, stated):
    from program.agent.comparison import Comparison
    from program.batch.output import comparison_text

    found = Comparison(
        better="B" if probability > 0.5 else "A", score_a=2, score_b=3, difference=1,
        probability_b_better=probability, verdict=verdict(probability), reasons=[],
    )  # fmt: skip
    assert stated in comparison_text(found, ["a.png", "b.png"])


def test_one_image_finds_its_reference_in_a_folder(program, tmp_path, encoded, capsys):
    (tmp_path / "references").mkdir()
    for name in ("a.png", "b.png", "references/a.png"):
        (tmp_path / name).write_bytes(encoded(1 if "a" in name.split("/")[-1] else 2))
    flags = ["--reference", str(tmp_path / "references")]
    assert assess.main([str(tmp_path / "a.png"), *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"]["reference_path"].endswith("a.png")
    assert assess.main([str(tmp_path / "b.png"), *flags]) == 2
    assert "no reference of that name" in capsys.readouterr().err


def test_a_table_judged_again_compares_with_the_same_references(program, tmp_path, monkeypatch, encoded):
    for name in ("photos/a.png", "references/a.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(encoded(len(name)))
    monkeypatch.chdir(tmp_path / "photos")
    assert assess.main([".", "--reference", "../references", "--out", "../first.csv"]) == 0
    assert assess.main(["../first.csv", "--out", "../again.csv"]) == 0
    (first,), (again,) = (read_csv(tmp_path / name) for name in ("first.csv", "again.csv"))
    assert Path(first["reference"]).resolve() == tmp_path / "references" / "a.png"
    assert first["score"] == again["score"]


def test_no_image_is_its_own_reference(tmp_path, encoded):
    (tmp_path / "references").mkdir()
    for name in ("a.png", "b.png", "references/a.png"):
        (tmp_path / name).write_bytes(encoded())
    items = list(find_items([str(tmp_path / "a.png"), str(tmp_path / "b.png")], reference=tmp_path / "references"))
    assert [item.reference for item in items] == [tmp_path / "references" / "a.png", None]
    assert "no reference of that name" in items[1].error


def test_a_real_comparison_of_a_blurred_copy(tmp_path, capsys):
    import numpy as np
    from PIL import Image, ImageFilter

    pixels = blocks(np.random.default_rng(3), 24, 32, 8)
    sharp = Image.fromarray(pixels)
    sharp.save(tmp_path / "sharp.png")
    sharp.filter(ImageFilter.GaussianBlur(4)).save(tmp_path / "blurred.png")
    names = [str(tmp_path / "blurred.png"), str(tmp_path / "sharp.png")]
    assert assess.main([*names, "--compare", "--reference", names[1]]) == 0
    shown = capsys.readouterr().out
    assert "B is clearly better, by" in shown
    assert assess.main([names[0], names[0], "--compare", "--json"]) == 0
    same = json.loads(capsys.readouterr().out)
    assert (same["better"], same["difference"], same["reasons"]) == (None, 0, ["Both are the same file."])
    write_rows(tmp_path / "empty.csv", [])
    assert read_csv(tmp_path / "empty.csv") == []


def test_an_interrupted_batch_keeps_what_was_in_flight_and_says_how_to_go_on(
    program, folder, tmp_path, capsys, monkeypatch
):
    from concurrent.futures import wait

    turns = iter([1])

    def interrupted(futures, **how):
        next(turns, None) or (_ for _ in ()).throw(KeyboardInterrupt)
        return wait(futures, **how)

    started, plain = [], type(program).forward

    def slow(self, image, **given):
        started.append(image.name)
        time.sleep(0.2)
        return plain(self, image=image, **given)

    monkeypatch.setattr(type(program), "forward", slow)
    monkeypatch.setattr("program.common.pool.wait", interrupted)
    out = tmp_path / "out.csv"
    command = [str(folder), "--recursive", "--workers", "2"]
    assert assess.main([*command, "--out", str(out)]) == 130
    assert "interrupted; what was judged is kept, and the same command continues there" in capsys.readouterr().err
    journal = [json.loads(line) for line in out.with_name("out.csv.partial").read_text("utf-8").splitlines()[1:]]
    answered = sorted(entry["row"]["id"].split("/")[-1] for entry in journal if entry["row"]["status"] == "ok")
    assert answered == sorted(name for name in started if name != "bad.jpg")
    turns = iter(())
    assert assess.main(command) == 130
    assert "interrupted; what was judged is lost; --out FILE keeps it" in capsys.readouterr().err


def test_a_budget_ends_a_batch_and_what_was_judged_is_kept(program, folder, tmp_path, capsys):
    out = tmp_path / "out.csv"
    command = [str(folder), "--recursive", "--out", str(out), "--workers", "1"]
    assert assess.main([*command, "--max-calls", "9"]) == 2
    assert "9 model calls are spent" in capsys.readouterr().err
    assert out.with_name("out.csv.partial").read_text("utf-8").count('"status": "ok"') >= 1
    assert not out.exists()
    assert assess.main(command) == 1
    assert len(read_csv(out)) == 5


@pytest.mark.parametrize(("error", "times"), [(BudgetSpent("spent"), 1), (dspy.LMError("down"), 2)])
def test_what_ends_a_batch_leaves_what_another_worker_has_in_hand(
    program, tmp_path, encoded, monkeypatch, error, times
):  # fmt: skip
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(encoded(number))
    raised, plain, lock = [], type(program).forward, threading.Lock()
    began, over = threading.Event(), threading.Event()

    def ending(self, image, **given):
        if image.name == "0.png":  # goes on while the other worker meets what ends the run
            began.set()
            assert over.wait(60)
            time.sleep(0.1)
            return plain(self, image=image, **given)
        assert began.wait(60)
        with lock:
            raised.append(image.name)
            if len(raised) == times:
                over.set()
        raise error

    monkeypatch.setattr(type(program), "forward", ending)
    out = tmp_path / "out.csv"
    with pytest.raises(type(error)):
        judge(program, find_items([str(tmp_path)]), out=out, workers=2, progress=False)
    lines = out.with_name("out.csv.partial").read_text("utf-8").splitlines()[1:]
    kept = [json.loads(line)["row"] for line in lines]
    assert [row["id"] for row in kept if row["status"] == "ok"] == ["0.png"]


@pytest.mark.parametrize("kind", ["many", "one", "broken"])
def test_no_name_steers_the_terminal(program, tmp_path, encoded, capsys, kind):
    names = ["\x1b[31mred.png", "[bold]b[_bold].png", "\u202egnp.exe.png", "<script>.png"]
    folder = tmp_path / "in"
    folder.mkdir()
    for name in names[: None if kind == "many" else 1]:
        (folder / name).write_bytes(b"no image" if kind == "broken" else encoded())
    code = assess.main([str(folder if kind == "many" else folder / names[0])])
    assert code == (2 if kind == "broken" else 0)
    said = "".join(capsys.readouterr())
    assert not {"\x1b", "\u202e"} & set(said)
    assert ("\\x1b[31mred.png" in said) is (kind != "one")
    assert all(name in said for name in names[1::2] if kind == "many")


@pytest.mark.spec("047/the-guard-changes-no-id")
def test_what_would_run_as_a_formula_has_an_apostrophe_and_is_read_without(program, tmp_path, encoded, monkeypatch):
    names = ["+1.png", "-draft.png", "=1+1.png", "@home.png"]
    photos = tree(tmp_path / "in", *names, data=encoded())
    monkeypatch.chdir(photos)
    table = tmp_path / "m.jsonl"
    rows = [{"id": name, "image": f"in/{name}", "group": f"={name}", "query": "=HYPERLINK(1)"} for name in names]
    table.write_text(as_lines(rows), "utf-8")
    out = tmp_path / "first.csv"
    assert assess.main([str(table), "--out", str(out)]) == 0
    columns = ("id", "group", "query")
    assert [[row[column] for column in columns] for row in cells_of(out)] == [
        [f"'{name}", f"'={name}", "'=HYPERLINK(1)"] for name in names
    ]
    first = read_csv(out)
    assert [row["id"] for row in first] == names
    assert [row["group"] for row in first] == [f"={name}" for name in names]
    assert all(Path(row["image"]).is_file() for row in first)
    # A second pass over the table itself, and a resumed one.
    again = tmp_path / "second.csv"
    assert assess.main([str(out), "--out", str(again), "--workers", "1", "--max-calls", "2"]) == 2
    assert assess.main([str(out), "--out", str(again)]) == 0
    assert [(row["id"], row["status"]) for row in read_csv(again)] == [(name, "ok") for name in names]
    assert assess.main([".", "--out", str(tmp_path / "third.csv")]) == 0
    assert [row["id"] for row in read_csv(tmp_path / "third.csv")] == names
