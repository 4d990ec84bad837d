"""`python -m data.check`: every kind of fault is found, and clean data is clean."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data import check
from data.preparing import KINDS, SHOWN_PER_KIND, check_manifest
from tests.pictures import noise

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Write a manifest of rows; images `a` to `f` are there and all different."""
    for number, name in enumerate("abcdef"):
        pixels = noise(np.random.default_rng(number), 8, 8)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")

    def write(*rows: dict[str, object] | str) -> Path:
        path = tmp_path / "m.jsonl"
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), "utf-8")
        return path

    return write


def row(name: str, **more: object) -> dict[str, object]:
    return {"id": more.pop("id", name), "image": f"{name}.png", **more}


CLEAN = [
    row("a", mos=3, split="train"),
    row("b", mos=4, split="test"),
    row("c", reference="d.png", mos=2, split="train", group="g"),
]


def test_lines_without_a_split_are_counted_as_such(make: Callable[..., Path]) -> None:
    assert check_manifest(make(row("a", mos=3), row("b", mos=4, split="test"))).splits == {"no split": 1, "test": 1}


def test_clean_data_is_clean(make: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = make(*CLEAN)
    report = check_manifest(path)
    assert report.clean
    assert (report.lines, report.images, report.groups) == (3, 4, 3)
    assert report.splits == {"train": 2, "test": 1}
    assert check.main([str(path)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("clean")


CASES: list[tuple[str, list[dict[str, object] | str], str]] = [
    ("line", ["{oops"], r"is not JSON"),
    ("line", [row("a")], r'"id" "a" was there before'),
    ("missing", [row("nowhere")], r"image '.*nowhere.png' cannot be read \(No such file"),
    ("missing", [row("e", reference="nowhere.png")], r"reference '.*nowhere.png' cannot be read"),
    ("unreadable", [row("broken")], r"image '.*broken.png' cannot be decoded"),
    ("line", [row("e", mos=7)], r'"mos" is 7, far outside 1..5; correct it or "mos_range"'),
    ("line", [row("e", MOS=3)], r'"MOS" is no key; did you mean "mos"\?'),
    ("unreadable", [row("empty")], r"image '.*empty.png' cannot be decoded: not an image"),
    ("unreadable", [row("text")], r"image '.*text.png' cannot be decoded: not an image"),
    ("region", [row("e", regions={"car": [0, 0, 5000, 4]})],
     r"box \(0, 0, 5000, 4\) of 'car' passes the edge of 'e.png', 8x8; correct it"),
    ("repeated", [row("a", id="z", mos=3)], r"asks the same of 'a.png' as line 1"),
    ("duplicate", [row("copy")], r"image 'copy.png' is that of line 1, in another group"),
    ("leak", [row("e", group="g", split="test")], r"group 'g' is in train and test \(first in line 3\)"),
    ("leak", [row("copy", group="a", split="test")], r"image 'copy.png' is in train and test \(by content\)"),
    ("leak", [row("e", reference="d.png", split="test")], r"reference 'd.png' is in train and test \(by content\)"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "rows", "message"), CASES)
def test_each_fault_is_found(
    make: Callable[..., Path], tmp_path: Path, kind: str, rows: list[dict[str, object] | str], message: str
) -> None:
    whole = (tmp_path / "f.png").read_bytes()
    (tmp_path / "broken.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "copy.png").write_bytes((tmp_path / "a.png").read_bytes())
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no image", "utf-8")
    report = check_manifest(make(*CLEAN, *rows))
    found = [p for p in report.problems if p.kind == kind]
    assert {p.line for p in found} == {4}, report.problems
    assert any(re.search(message, p.message) for p in found), report.problems
    assert set(report.counts) <= {kind, "leak", "repeated", "duplicate"}
    assert kind in KINDS


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipes_and_devices_keep_nobody_waiting(make: Callable[..., Path], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    (tmp_path / "terminal.png").symlink_to("/dev/ptmx")
    manifest = make(*CLEAN, row("pipe", reference="terminal.png"))
    # In a process of its own: one that waits is ended after a while.
    code = "import sys\nfrom data.check import main\nprint([main([path]) for path in sys.argv[1:]], file=sys.stderr)"
    command = [sys.executable, "-c", code, str(manifest), str(pipe)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.stderr.splitlines()[-1] == "[1, 2]", done
    told = [line for line in (done.stdout + done.stderr).splitlines() if "not a plain file" in line]
    named = ["pipe.png", "terminal.png", "pipe.png"]
    assert [name in line for name, line in zip(named, told, strict=True)] == [True] * 3, told


def test_equal_images_within_a_group_are_no_fault(make: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "copy.png").write_bytes((tmp_path / "a.png").read_bytes())
    rows = [
        row("a", group="g", split="train"),
        row("copy", group="g", split="train"),
        row("a", id="q", query="Sharp?", group="g", split="train"),
    ]
    report = check_manifest(make(*rows))
    assert report.clean, report.problems


def test_two_questions_on_one_file_are_no_fault_and_the_file_is_read_once(make: Callable[..., Path]) -> None:
    rows = [row("a", id=str(n), query=f"Question {n}?", group="a", options={"A": "x", "B": "y"}) for n in range(3)]
    report = check_manifest(make(*rows))
    assert report.clean
    assert (report.images, report.tasks) == (1, {"mcq": 3})


def test_without_decoding_a_broken_image_passes_and_a_missing_one_does_not(
    make: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    path = make(row("broken"), row("nowhere"))
    assert check_manifest(path).counts == {"unreadable": 1, "missing": 1}
    assert check_manifest(path, decode=False).counts == {"missing": 1}


def test_scores_a_little_outside_are_no_fault(make: Callable[..., Path]) -> None:
    assert check_manifest(make(row("a", mos=104, mos_range=[0, 100]))).clean


def test_counts_are_those_of_the_release(make: Callable[..., Path]) -> None:
    path = make(*CLEAN)
    report = check_manifest(path, dataset="tid2013")
    assert [p.message for p in report.problems] == [
        "3 lines, the full release of tid2013 has 3000",
        "3 groups, the full release of tid2013 has 25",
    ]


def test_a_manifest_that_is_not_its_record_s_is_told(make: Callable[..., Path], tmp_path: Path) -> None:
    path = make(*CLEAN)
    (tmp_path / "m.prepared.json").write_text(json.dumps({"dataset": "table", "manifest_sha256": "0"}), "utf-8")
    report = check_manifest(path)
    assert (report.dataset, report.counts) == ("table", {"record": 1})


def test_the_record_of_another_file_with_the_same_stem_is_not_this_ones(make: Callable[..., Path]) -> None:
    path = make(*CLEAN)
    record = {"dataset": "table", "manifest": "m.json", "manifest_sha256": "0"}
    path.with_name("m.prepared.json").write_text(json.dumps(record), "utf-8")
    assert check_manifest(path).clean


def test_boxes_are_held_against_the_image_as_displayed(make: Callable[..., Path], tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (20, 10)).save(tmp_path / "turned.jpg", exif=exif)
    rows = [{"id": str(n), "image": "turned.jpg", "regions": {"r": box}, "query": str(n), "group": "g"}
            for n, box in enumerate(([0, 0, 10, 20], [0, 0, 20, 10]))]  # fmt: skip
    assert [(p.kind, p.line) for p in check_manifest(make(*rows)).problems] == [("region", 2)]


def test_letters_with_gaps_and_equal_texts_are_no_fault(make: Callable[..., Path]) -> None:
    rows = [row("a", query="?", options={"A": "x", "C": "y"}, answer="C"),
            row("b", query="?", options={"C": "x", "D": "x"}, answer="D")]  # fmt: skip
    assert check_manifest(make(*rows)).clean


def test_a_table_is_checked_as_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("image,mos\na.png,3\nb.png,x\n", "utf-8")
    assert check.main([str(path)]) == 1
    shown = capsys.readouterr().out
    assert "missing: line 2: image" in shown
    assert 'line: line 3: "mos" is "x"; give a number' in shown


def test_one_problem_is_one(make: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([str(make(*CLEAN, row("nowhere")))]) == 1
    assert capsys.readouterr().out.rstrip().endswith("\n1 problem")


def test_many_faults_are_counted_and_the_first_are_shown(
    make: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = make(*(row("nowhere", id=str(n), query=str(n), group="g") for n in range(600)))
    report = check_manifest(path)
    assert report.counts == {"missing": 600}
    assert len(report.problems) == SHOWN_PER_KIND
    assert check.main([str(path)]) == 1
    assert f"missing: and {600 - SHOWN_PER_KIND} more" in capsys.readouterr().out


def test_the_result_does_not_depend_on_the_number_of_threads(make: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "copy.png").write_bytes((tmp_path / "a.png").read_bytes())
    path = make(*CLEAN, row("copy", split="test"), row("nowhere"), row("e", mos=9))
    assert check_manifest(path, workers=1) == check_manifest(path, workers=5)


def test_json_and_exit_codes(make: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(*CLEAN, row("nowhere"))
    assert check.main([str(path), "--json", "--workers", "2"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["clean"], shown["counts"], shown["problems"][0]["line"]) == (False, {"missing": 1}, 4)
    for arguments in ([str(tmp_path / "none.jsonl")], [str(path), "--dataset", "kadid"]):
        assert check.main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not there")
@pytest.mark.parametrize(
    "name",
    [
        "live/manifest.jsonl",
        "clive/mcq.jsonl",
        "clive/manifest.jsonl",
        pytest.param("biq2021/manifest.jsonl", marks=pytest.mark.slow),
    ],
)
def test_the_shared_data_is_clean(name: str) -> None:
    report = check_manifest(SHARED / name)
    assert report.clean, report.problems
