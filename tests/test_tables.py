"""Tables as spreadsheets and Windows write them: separators, names, paths, and labels whose scale nobody stated."""

import csv
import json
import os
import re

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from data.manifest import Layout, read_manifest
from data.preparing import load
from program import assess
from program.common.errors import DataError
from tests.tables import as_lines


@pytest.mark.spec("047/tables-as-spreadsheets-write-them")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "image;mos;note\na.png;3,5;x, y\nb.png;2;z\n"),
        ("t.csv", "image\tmos\tnote\na.png\t3.5\tx, y\nb.png\t2\tz\n"),
        ("t.tsv", "image\tmos\tnote\na.png\t3,5\tx, y\nb.png\t2\tz\n"),
        ("t.csv", "\ufeffsep=;\r\nimage;mos;note\r\na.png;3.5;x, y\r\nb.png;2;z\r\n"),
        ("t.csv", "image|mos|note\na.png|3.5|x, y\nb.png|2|z\n"),
        ("t.csv", '\n ,image , mos,note\n0,a.png,"3,5","x, y"\n1,b.png,2,z\n'),
    ],
)
def test_tables_are_read_as_spreadsheets_write_them(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    rows = [(s.id, s.image, s.mos, s.metadata) for s in read_manifest(tmp_path / name)]
    assert rows == [
        ("a.png", tmp_path / "a.png", 3.5, {"note": "x, y"}), ("b.png", tmp_path / "b.png", 2.0, {"note": "z"}),
    ]  # fmt: skip
    if name == "t.csv":
        (tmp_path / "a.png").touch()
        (tmp_path / "b.png").touch()
        prepare_job = [(s.image, s.mos) for s in load("table", tmp_path / name)]
        assert prepare_job == [(tmp_path / "a.png", 3.5), (tmp_path / "b.png", 2.0)]


ODD = [
    '=HYPERLINK("http:","x").png', "+1.png", "-3.5.png", "@x.png", "'=x.png", "''-x.png", "' x.png", "'a'.png",
    " s.png", "\tt.png", "\rr.png", "\n=n.png", "two\nlines.png", "a\x1b]0;title\x07.png", "a\x9b2J.png", "a\x7f.png",
    "＝wide.png",
    '"a\\u001b.png"', '"a.png"', '"', "a\\x1b.png", "\u202egnp.png", "\u200c.png", "plain.png",
]  # fmt: skip
"""Names of files that a spreadsheet, a terminal or a reader of CSV takes for something else."""


@pytest.mark.skipif(os.name == "nt", reason="no such names on Windows")
def test_names_of_any_kind_stand_harmless_in_a_table_and_are_read_as_they_are(program, encoded, tmp_path, monkeypatch):
    rows = [{"id": name, "image": name, "reference": name, "group": name} for name in ODD]
    for name in ODD:
        (tmp_path / name).write_bytes(encoded())
    (tmp_path / "m.jsonl").write_text(as_lines(rows), "utf-8")
    monkeypatch.chdir(tmp_path)
    assert assess.main(["m.jsonl", "--out", "out.csv"]) == 0
    assert assess.main(["m.jsonl", "--out", "out.jsonl"]) == 0
    for table in ("out.csv", "out.jsonl"):
        text = (tmp_path / table).read_bytes().decode()
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", text)
        read = [(s.id, s.image, s.reference, s.group) for s in read_manifest(tmp_path / table)]
        assert read == [(name, tmp_path / name, tmp_path / name, name) for name in ODD]
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [
        cell for cell in cells if re.match(r"\s*[=+\-@＝＋－＠\t\r]", cell) and not re.fullmatch(r"-?[\d.]+", cell)
    ]
    # The table itself is judged again, and cut short it is still read so.
    assert assess.main(["out.csv", "--out", "again.csv"]) == 0
    assert [s.id for s in read_manifest(tmp_path / "again.csv")] == ODD
    (tmp_path / "cut.csv").write_text("image,mos\n'-3.5.png,'-0.5\n", "utf-8")
    assert [(s.id, s.mos) for s in read_manifest(tmp_path / "cut.csv", Layout(mos_range=(-1, 1)))] == [
        ("-3.5.png", -0.5)
    ]


@pytest.mark.spec("047/two-columns-of-one-name-are-refused")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "image,mos,mos\na.png,1,5\n"),
        ("t.csv", "image;mos; mos \na.png;1;5\n"),
        ("t.jsonl", '{"image": "a.png", "mos": 1, "mos": 5}\n'),
        ("t.json", '[{"image": "a.png", "mos": 1, "mos": 5}]'),
    ],
)
def test_two_columns_of_one_name_are_refused_by_name(tmp_path, name, text):
    (tmp_path / name).write_text(text, "utf-8")
    for read in (lambda: list(load("table", tmp_path / name)), lambda: list(read_manifest(tmp_path / name))):
        with pytest.raises(DataError, match=r"two columns 'mos'|\"mos\" is there twice"):
            read()


@pytest.mark.spec("047/two-columns-of-one-name-are-refused")
def test_two_columns_of_a_parquet_table_are_refused(tmp_path):
    columns = [pyarrow.array(["a.png"]), pyarrow.array([1.0]), pyarrow.array([5.0])]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, ["image", "mos", "mos"]), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="duplicate field names"):
        list(read_manifest(tmp_path / "t.parquet"))


@pytest.mark.spec("047/windows-paths-are-resolved-or-said")
@pytest.mark.skipif(os.sep != "/", reason="there they are paths as any")
def test_a_windows_path_is_resolved_or_its_backslash_said(tmp_path, capsys):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    Image.new("RGB", (64, 64)).save(tmp_path / "in" / "deep" / "a.png")
    (tmp_path / "odd\\name.png").touch()
    rows = [r"in\deep\a.png", r".\in\..\in/deep\a.png", "odd\\name.png", r"C:\photos\b.png"]
    table = tmp_path / "t.csv"
    table.write_text("id,image\n" + "".join(f"{n},{name}\n" for n, name in enumerate(rows)), "utf-8")
    found = [s.image for s in read_manifest(table)]
    assert found[:3] == [tmp_path / "in/deep/a.png"] * 2 + [tmp_path / "odd\\name.png"]
    assert next(load("table", table, on_missing=lambda _: None)).image == found[0]
    (tmp_path / "one.csv").write_text("image\n" + rows[3] + "\n", "utf-8")
    out = tmp_path / "out.jsonl"
    assert assess.main([str(tmp_path / "one.csv"), "--out", str(out)]) == 1
    assert "a backslash separates folders on Windows only" in json.loads(out.read_text("utf-8"))["error"]
    assert assess.main([rows[3]]) == 2
    assert "backslash" in capsys.readouterr().err
    with pytest.raises(DataError, match="backslash"):
        list(load("table", tmp_path / "one.csv"))
