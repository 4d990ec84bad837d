"""Labels as people keep them, through the commands: scales, separators, several raters, and the kinds of table."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest

from data import check
from data.manifest import Layout, read_manifest
from program import assess, calibrate, evaluate
from program import compile as compile_command
from tests.scenarios import SMALL_COMPILE
from tests.tables import as_lines

pytestmark = pytest.mark.usefixtures("undrawn", "coarse", "unlogged", "untracked", "untraced", "measured_once")


def scored(path: Path, scores: list[Any], **more: Any) -> Path:
    """Write rows of these scores, without their images."""
    path.write_text(as_lines({"image": f"{n}.png", "mos": mos, **more} for n, mos in enumerate(scores)), "utf-8")
    return path


def table(path: Path, *lines: str) -> Path:
    """Write the lines of a text table."""
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def workbook(path: Path, *rows: list[Any]) -> Path:
    """Write a workbook whose second sheet holds the rows."""
    book = openpyxl.Workbook()
    book.active.append(["about these scores"])
    sheet = book.create_sheet("scores")
    for row in rows:
        sheet.append(row)
    book.save(path)
    return path


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a Parquet table."""
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def refusal(command: str, path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """Return the one line with which a command refuses a table."""
    if command == "check":
        assert check.main([str(path), "--no-decode", *flags]) == 2
    elif command == "compile":
        assert compile_command.main(["--data", str(path), "--dry-run", *flags]) == 2
    else:
        assert evaluate.main([str(path), "--split", "all", *flags]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1), captured
    return str(captured.err)


ON_0_TO_1 = [0.13, 0.3, 0.52, 0.7, 0.89]
OFF = [
    (ON_0_TO_1, (), "its 5 scores lie in 0.13..0.89, most of them outside 1..5; ", "--mos-range 0,1 "),
    ([3.2, 40, 55, 72, 91], (), "its 5 scores lie in 3.2..91, most of them outside 1..5; ", "--mos-range 0,100 "),
    (ON_0_TO_1, ("--mos-range", "0,100"), "within a fiftieth of 0..100; ", "--mos-range 0,1 "),
    ([900, 1100, 1900], ("--mos-range", "0,100"), "most of them outside 0..100; ", "--mos-range LOW,HIGH "),
]


@pytest.mark.spec("047/labels-in-0-to-1-are-questioned")
@pytest.mark.spec("issue-68/forgotten-scale")
@pytest.mark.parametrize("command", ["compile", "evaluate"])
@pytest.mark.parametrize(("scores", "flags", "fault", "mend"), OFF)
def test_scores_that_cannot_be_on_their_scale_are_refused(tmp_path, capsys, command, scores, flags, fault, mend):
    said = refusal(command, scored(tmp_path / "m.jsonl", scores), capsys, *flags)
    assert fault in said
    assert mend in said


@pytest.mark.spec("issue-68/forgotten-scale")
def test_check_reports_the_same_and_takes_the_same_flags(tmp_path, capsys):
    path = scored(tmp_path / "m.jsonl", ON_0_TO_1, mos_range=[0, 100])
    assert check.main([str(path), "--no-decode"]) == 1
    assert "scale: its 5 scores lie in 0.13..0.89, all within a fiftieth of 0..100; " in capsys.readouterr().out
    assert check.main([str(path), "--no-decode", "--mos-range", "0,1", "--json"]) == 1
    assert set(json.loads(capsys.readouterr().out)["counts"]) == {"missing"}


@pytest.mark.spec("issue-68/forgotten-scale")
def test_calibrate_refuses_them_too(tmp_path, capsys):
    path = scored(tmp_path / "m.jsonl", ON_0_TO_1)
    assert calibrate.main([str(path), "--split", "all", "--out", str(tmp_path / "out.json")]) == 2
    assert "most of them outside 1..5" in capsys.readouterr().err


@pytest.mark.spec("issue-68/forgotten-scale")
def test_scores_on_a_tenth_of_their_scale_are_warned_of_at_the_end_again(tmp_path, capsys, caplog, encoded):
    path = scored(tmp_path / "m.jsonl", [3.0, 3.1, 3.2, 3.3])
    for n in range(4):
        (tmp_path / f"{n}.png").write_bytes(encoded(n))
    warning = "its 4 scores lie in 3..3.3, all within a tenth of 1..5; "
    assert evaluate.main([str(path), "--split", "all"]) == 0
    assert warning in caplog.text
    assert warning in capsys.readouterr().err.splitlines()[-1]
    (tmp_path / "small.yaml").write_text(json.dumps(SMALL_COMPILE), "utf-8")
    flags = ["--config", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out"), "--json"]
    assert compile_command.main(["--data", str(path), *flags]) == 0
    said = capsys.readouterr().err
    assert said.count(warning) == 2
    assert warning in said.splitlines()[-1]


@pytest.mark.spec("issue-68/forgotten-scale")
def test_scores_of_which_some_lie_outside_a_scale_that_nobody_stated_are_warned_of(tmp_path, capsys):
    path = scored(tmp_path / "m.jsonl", [0.3, 1.4, 2.2, 3.1, 4.3])
    assert check.main([str(path), "--no-decode"]) == 1
    said = capsys.readouterr().out
    assert "scale: its 5 scores lie in 0.3..4.3, some of them outside 1..5; " in said
    assert "--mos-range 0,5 " in said
    assert check.main([str(path), "--no-decode", "--mos-range", "1,5"]) == 1
    assert "scale:" not in capsys.readouterr().out


@pytest.mark.spec("issue-68/forgotten-scale")
def test_scores_that_run_against_the_labels_are_pointed_out(blurred_manifest, capsys):
    note = "Scores run against the labels: check whether high or low labels are the good ones"
    assert evaluate.main([str(blurred_manifest)]) == 0
    assert note not in " ".join(capsys.readouterr().out.split())
    assert evaluate.main([str(blurred_manifest), "--lower-is-better"]) == 0
    assert note in " ".join(capsys.readouterr().out.split())


@pytest.mark.spec("issue-68/forgotten-scale")
@pytest.mark.parametrize(
    ("scores", "more"),
    [([3, 3, 3], {}), ([1, 1.01], {}), ([104], {"mos_range": [0, 100]}), ([12, 70, 112], {"mos_range": [0, 100]}),
     ([0.9, 2, 5.2, 4], {})],
)  # fmt: skip
def test_scores_that_may_be_on_their_scale_are_not_questioned(tmp_path, capsys, scores, more):
    path = scored(tmp_path / "m.jsonl", scores, **more)
    assert check.main([str(path), "--no-decode", "--json"]) == 1
    assert set(json.loads(capsys.readouterr().out)["counts"]) == {"missing"}


TWO_READINGS = [
    ["1,900", "2,350", "1,200"],
    ["1,900", "850", "920"],
    ["2,500", "3", "4"],
    ["1.900", "850", "920"],
    ["1,900", "2.5", "3,5"],
]


@pytest.mark.spec("issue-68/numbers-with-separators")
@pytest.mark.parametrize("command", ["check", "compile", "evaluate"])
@pytest.mark.parametrize("cells", TWO_READINGS)
def test_a_column_that_can_be_read_in_two_ways_is_refused_with_both(tmp_path, capsys, command, cells):
    path = table(tmp_path / "t.csv", "image;mos", *(f"{n}.png;{cell}" for n, cell in enumerate(cells)))
    readings = "2.5 or 2500" if cells[0] == "2,500" else "1.9 or 1900"
    said = refusal(command, path, capsys, "--mos-range", "0,3000")
    assert f"column 'mos' holds \"{cells[0]}\", which is {readings}; " in said


@pytest.mark.spec("issue-68/numbers-with-separators")
@pytest.mark.parametrize(
    ("header", "first", "second"),
    [
        ("image;mos", "1,900", "2,350"),
        ("image;mos", "good", "112"),
        ("image;dmos", "1", "2"),
        ("image;mos;mos_range", "3;[5", "4;[1, 0]"),
        ("image;answer;options", "E;", 'F;"[""sharp"", ""noisy""]"'),
    ],
)
def test_labels_that_are_not_used_refuse_no_table(tmp_path, capsys, encoded, header, first, second):
    path = table(tmp_path / "t.csv", header, f"a.png;{first}", f"b.png;{second}")
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(encoded())
    assert assess.main([str(path), "--out", str(tmp_path / "out.jsonl")]) == 0, capsys.readouterr()
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert [row["status"] for row in rows] == ["ok", "ok"]


@pytest.mark.spec("issue-68/numbers-with-separators")
@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["1,900", "2,350.5", "850"], [1900, 2350.5, 850]),
        (["1.900", "2.350,5", "850"], [1900, 2350.5, 850]),
        (["1,900", "1,234,567"], [1900, 1234567]),
        (["1,900", "3,5", "2"], [1.9, 3.5, 2]),
        (["3.125", "2.875", "4.000"], [3.125, 2.875, 4]),
        (["3.125", "3"], [3.125, 3]),
        (["0,125", "0,900"], [0.125, 0.9]),
        (["1 900", "1'350,5", "850"], [1900, 1350.5, 850]),
        (["3,5", "2.5", "1e0", "+4"], [3.5, 2.5, 1, 4]),
    ],
)
def test_a_column_with_one_reading_is_read_so(tmp_path, cells, numbers):
    path = table(tmp_path / "t.csv", "image;mos", *(f"{n}.png;{cell}" for n, cell in enumerate(cells)))
    assert [s.mos for s in read_manifest(path, Layout(mos_range=(0, 1500000)))] == numbers


@pytest.mark.spec("issue-68/composed-names")
@pytest.mark.parametrize(("written", "kept"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_a_name_is_found_however_its_accents_are_composed(tmp_path, capsys, encoded, written, kept):
    (tmp_path / unicodedata.normalize(kept, "Größe")).mkdir()
    place = Path(unicodedata.normalize(kept, "Größe"), unicodedata.normalize(kept, "café.png"))
    (tmp_path / place).write_bytes(encoded())
    path = table(tmp_path / "t.csv", "image,mos", f"{unicodedata.normalize(written, 'Größe/café.png')},3")
    assert check.main([str(path)]) == 0, capsys.readouterr()


LONG = [("a.png", "ann", 1, 2), ("b.png", "ann", 2, 4), ("a.png", "bob", 3, 2), ("b.png", "bob", 4, 4)]


@pytest.mark.spec("issue-68/several-raters")
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".xlsx"])
def test_several_raters_are_averaged(tmp_path, suffix):
    rows = [{"image": i, "rater": who, "id": f"{i}-{who}", "mos": mos, "other": o} for i, who, mos, o in LONG]
    path = tmp_path / f"long{suffix}"
    if suffix == ".csv":
        table(path, ",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows))
    elif suffix == ".jsonl":
        path.write_text(as_lines(rows), "utf-8")
    elif suffix == ".parquet":
        parquet(path, rows)
    else:
        workbook(path, list(rows[0]), *(list(row.values()) for row in rows))
    assert [(s.id, s.mos, s.mos_std, s.metadata) for s in read_manifest(path, Layout(raters=()))] == [
        ("a.png", 2, pytest.approx(2**0.5), {"other": 2}), ("b.png", 3, pytest.approx(2**0.5), {"other": 4})
    ] or suffix == ".csv"  # fmt: skip
    wide = read_manifest(path, Layout(raters=("mos", "other")))
    assert [(s.id, s.mos) for s in wide] == [("a.png-ann", 1.5), ("b.png-ann", 3), ("a.png-bob", 2.5), ("b.png-bob", 4)]


@pytest.mark.spec("issue-68/several-raters")
def test_the_mend_of_several_raters_is_named_and_works(tmp_path, capsys):
    long = table(tmp_path / "long.csv", "image,mos", "a.png,1", "b.png,2", "a.png,4")
    wide = table(tmp_path / "wide.csv", "image,ann,bob", "a.png,1,2", "b.png,4,", "c.png,,")
    for command in ("compile", "evaluate"):
        assert "--raters" in refusal(command, long, capsys)
        assert "--raters NAME,NAME" in refusal(command, wide, capsys)
    assert check.main([str(long), "--no-decode"]) == 1
    assert "--raters" in capsys.readouterr().out
    assert check.main([str(long), "--no-decode", "--raters", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"] == {"missing": 2}
    assert compile_command.main(["--data", str(wide), "--raters", "ann,bob", "--dry-run"]) == 2
    assert "training samples usable" in capsys.readouterr().err, "the labels are read, and the files are gone"
    assert "has no column 'eve' but image, ann, bob" in refusal("evaluate", wide, capsys, "--raters", "ann,eve")
    assert "no image has two rows" in refusal("evaluate", wide, capsys, "--raters")


@pytest.mark.spec("issue-68/spreadsheets")
def test_a_workbook_is_read_below_its_titles(tmp_path, capsys):
    path = workbook(
        tmp_path / "t.xlsx", ["Scores of May"], [], ["id", "image", "mos", "options", "note"],
        [1, "a.png", 3, None, "x"], [2.0, "b.png", "3,5", None, True], [3, "'-c.png", None, '{"A": "x", "B": "y"}'],
        [None, None], ["", " "],
    )  # fmt: skip
    assert [(s.id, s.image.name, s.mos, s.options) for s in read_manifest(path)] == [
        ("1", "a.png", 3, None), ("2", "b.png", 3.5, None), ("3", "-c.png", None, {"A": "x", "B": "y"}),
    ]  # fmt: skip
    assert check.main([str(path), "--no-decode", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["lines"], report["counts"]) == (3, {"missing": 3})
    assert refusal("evaluate", workbook(tmp_path / "u.xlsx", ["x", "mos"], [1, 2]), capsys).count("is empty") == 1
    (tmp_path / "v.xlsx").write_bytes(b"PK no workbook")
    assert "is no workbook" in refusal("check", tmp_path / "v.xlsx", capsys)
    (tmp_path / "w.xls").write_bytes(b"\xd0\xcf\x11\xe0 an old workbook")
    assert "save it as .xlsx or as CSV" in refusal("check", tmp_path / "w.xls", capsys)


@pytest.mark.spec("issue-68/title-rows")
def test_title_rows_and_empty_rows_of_a_csv_table_are_passed_over(tmp_path, capsys):
    lines = ["Scores, of May 2026;;", "", ";;", "image;mos;note", "a.png;3,5;x", ";;", "b.png;2", "c.png;4;;", ";;"]
    path = table(tmp_path / "t.csv", *lines)
    assert check.main([str(path), "--no-decode", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [(p["kind"], p["line"]) for p in report["problems"]] == [("missing", 5), ("line", 7), ("missing", 8)]
    assert report["lines"] == 3
    unnamed = table(tmp_path / "u.csv", "Scores, of May 2026", "", "file;mos", "a.png;3,5", "b.png;2,5")
    assert 'line 4: has no "image" but file, mos; give it' in refusal("evaluate", unnamed, capsys)


@pytest.mark.spec("issue-68/parquet")
def test_parquet_has_ids_that_are_numbers_lists_of_options_and_images_inside(tmp_path, capsys, encoded):
    asked = {"query": "Sharp?", "options": ["yes", "no"], "answer": "B", "votes": [1, 2]}
    path = parquet(tmp_path / "t.parquet", [
        {"id": 7, "image": {"bytes": encoded(1), "path": "a.png"}, "group": 1, **asked},
        {"id": None, "image": {"bytes": encoded(2), "path": None}, "group": 2, **asked},
    ])  # fmt: skip
    first, second = read_manifest(path)
    assert (first.id, first.group, first.options, second.id) == ("7", "1", {"A": "yes", "B": "no"}, "00000002")
    assert first.metadata["votes"] == [1, 2]
    assert check.main([str(path)]) == 0
    assert capsys.readouterr().out.endswith("clean\n")
    assert evaluate.main([str(path), "--split", "all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"]["n"] == 2


@pytest.mark.spec("issue-68/json-list")
def test_a_json_list_is_read_as_its_lines_are(tmp_path, capsys):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"image": "a.png", "mos": 3}, 4]), "utf-8")
    assert check.main([str(path), "--no-decode", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"] == {"missing": 1, "line": 1}
    path.write_text('{"image": "a.png"}', "utf-8")
    assert "holds no list" in refusal("check", path, capsys)


@pytest.mark.parametrize("command", ["compile", "evaluate"])
def test_the_tables_of_a_folder_are_named(tmp_path, capsys, command):
    assert "none is there; make one with agentic-iqa data prepare" in refusal(command, tmp_path, capsys)
    table(tmp_path / "scores.csv", "image,mos", "1.png,3")
    assert "is a folder; give a manifest in it (scores.csv)" in refusal(command, tmp_path, capsys)
    assert "scores.csv'?" in refusal(command, tmp_path / "score.csv", capsys)
