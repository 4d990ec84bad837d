"""The manifest: what is read, what is refused and in which words, and the round trip."""

import csv
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data.manifest import Layout, Sample, manifest_sha256, read_manifest, scan_manifest, write_manifest
from program.common.errors import DataError
from tests.tables import as_lines

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def write(folder: Path, *rows: object) -> Path:
    path = folder / "m.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def row(**more: object) -> dict[str, object]:
    return {"id": "a", "image": "a.png", **more}


def test_reads_every_field_and_makes_paths_absolute(tmp_path: Path) -> None:
    regions = {"car": [0, 1, 10, 20.5]}
    path = write(tmp_path, row(
        image="images/ä.png", reference="ref.png", query="Wie gut?", options={"A": "yes", "B": "no"}, answer="B",
        mos=72.5, mos_std=3, mos_range=[0, 100], distortion="blur", group="g", split="test", regions=regions, level=3,
    ))  # fmt: skip
    (sample,) = read_manifest(path)
    assert sample.image == tmp_path.resolve() / "images" / "ä.png"
    assert sample.reference == tmp_path.resolve() / "ref.png"
    assert (sample.query, sample.options, sample.answer) == ("Wie gut?", {"A": "yes", "B": "no"}, "B")
    assert sample.quality == pytest.approx(1 + 4 * 0.725)
    assert sample.regions == {"car": (0, 1, 10, 20.5)}
    assert sample.metadata == {"level": 3}
    assert (sample.split, sample.group, sample.task) == ("test", "g", "mcq")


def test_an_image_without_an_id_is_called_as_it_is_written(tmp_path: Path) -> None:
    (sample,) = read_manifest(write(tmp_path, {"image": "sub/a.png"}))
    assert (sample.id, sample.image) == ("sub/a.png", tmp_path.resolve() / "sub/a.png")


def test_addresses_of_allowed_kinds_stay(tmp_path: Path) -> None:
    path = write(tmp_path, row(image="S3://bucket/x/a.png", reference="gs://b/r.png"))
    (sample,) = read_manifest(path, Layout(remote=["s3", "gs"]))
    assert (sample.image, sample.reference) == ("s3://bucket/x/a.png", "gs://b/r.png")


def test_tables_hold_the_same_samples_as_lines(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [
        {"id": "a", "image": "x, y.png", "mos": 3.5, "options": {"A": "yes", "B": "no"}, "answer": "B", "lab": "ü"},
        {"id": "b", "image": "b.png", "query": "=1+1?"},
    ]
    lines = write(tmp_path, *rows)
    whole = [dict.fromkeys([*rows[0], "query"]) | row for row in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(whole), tmp_path / "m.parquet")
    with (tmp_path / "m.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "image", "mos", "options", "answer", "query", "lab"])
        table.writerow(["a", "x, y.png", "3.5", '{"A": "yes", "B": "no"}', "B", "", "ü"])
        table.writerow(["b", "b.png", "", "", "", "=1+1?", ""])
    samples = list(read_manifest(lines))
    assert [sample.task for sample in samples] == ["mcq", "open"]
    assert list(read_manifest(tmp_path / "m.csv")) == list(read_manifest(tmp_path / "m.parquet")) == samples


def test_columns_of_a_table_are_named(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("path,score\na.png,2\nb.png,many\nc.png\n", "utf-8")
    first, second, third = (s for _, s in scan_manifest(tmp_path / "m.csv", Layout({"image": "path", "mos": "score"})))
    assert (first.id, first.quality) == ("a.png", 2)
    assert 'line 3: "mos" is "many"' in str(second)
    assert "line 4: has other than the header's 2 cells" in str(third)
    with pytest.raises(DataError, match="has no column 'file' but path, score"):
        list(read_manifest(tmp_path / "m.csv", Layout({"image": "file"})))
    (tmp_path / "m.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(DataError, match="is no Parquet table"):
        list(read_manifest(tmp_path / "m.parquet"))
    with pytest.raises(DataError, match="cannot be read"):
        list(read_manifest(tmp_path / "none.parquet"))


def test_absolute_paths_stay_and_dots_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    path = write(tmp_path / "sub", row(image="../x/./a.png"), row(id="b", image="/data/b.png"))
    first, second = read_manifest(path)
    assert first.image == tmp_path.resolve() / "x" / "a.png"
    assert second.image == Path("/data/b.png")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"mos": 3.2}, 3.2),
        ({"mos": 0, "mos_range": [0, 100]}, 1),
        ({"mos": 100, "mos_range": [0, 100]}, 5),
        ({"mos": 0.2, "mos_range": [0, 1], "higher_is_better": False}, 4.2),
        ({"mos": 104, "mos_range": [0, 100]}, 5.16),
        ({}, None),
    ],
)
def test_quality_is_linear_on_one_to_five(tmp_path: Path, values: dict[str, object], expected: float | None) -> None:
    (sample,) = read_manifest(write(tmp_path, row(**values)))
    assert sample.quality == (None if expected is None else pytest.approx(expected))
    assert sample.task == ("open" if expected is None else "scoring")


def test_null_optional_fields_mean_absent(tmp_path: Path) -> None:
    empty = dict.fromkeys(
        (
            "reference",
            "query",
            "options",
            "answer",
            "mos",
            "mos_std",
            "mos_range",
            "higher_is_better",
            "split",
            "regions",
        )
    )
    (sample,) = read_manifest(write(tmp_path, row(**empty)))
    assert sample == Sample(id="a", image=tmp_path.resolve() / "a.png")


def test_byte_order_mark_and_blank_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(row()).encode() + b"\n\n  \n" + json.dumps(row(id="b")).encode())
    assert [s.id for s in read_manifest(path)] == ["a", "b"]


BAD_LINES = [
    ("{not json", "is not JSON"),
    ('{"id": "a", "image": "x\\ud800.png", "mos": 3}', "surrogate"),
    ('{"id": "a", "image": "x.png"} {}', "is not JSON"),
    ("[1, 2]", "not an object; write it as"),
    ({"id": "a"}, 'has no "image"; give it, or name its column with --columns image=NAME$'),
    (
        {"file": "a.png", "mos": 3},
        'has no "image" but file, mos; give it, or name its column with --columns image=NAME$',
    ),
    ({"image": 7}, '"image": .*not a valid path'),
    ({"id": 5, "image": "a.png"}, r'"id": .*valid string \(given: 5\)'),
    ({"id": "", "image": "a.png"}, '"id": .*at least 1 character'),
    (row(image=""), '"image": is empty'),
    (row(image=None), 'has no "image"'),
    (row(image=["a"]), '"image": .*not a valid path'),
    (row(image="https://example.org/a.png"), "is a URL; download it"),
    (row(reference=7), r'"reference": .*not a valid path.*\(given: 7\)'),
    (row(mos="3.5"), r'"mos": .*valid number \(given: "3.5"\)'),
    (row(mos=True), '"mos": .*valid number'),
    ('{"id": "a", "image": "a.png", "mos": NaN}', '"mos": .*finite number'),
    ('{"id": "a", "image": "a.png", "mos": Infinity}', '"mos": .*finite number'),
    ('{"id": "a", "image": "a.png", "mos": 1e999}', '"mos": .*finite number'),
    (row(mos=3, mos_std=-1), '"mos_std": .*greater than or equal to 0'),
    (row(mos=3, mos_range=[5, 1]), '"mos_range" is .*lower end first'),
    (row(mos=3, mos_range=[1, 1]), '"mos_range" is .*lower end first'),
    (row(mos=3, mos_range=[1]), r'"mos_range.1": Field required \(given: \[1\]\)'),
    (row(mos=3, mos_range=[1, "5"]), '"mos_range.1": .*valid number'),
    (row(higher_is_better="yes"), '"higher_is_better": .*valid boolean'),
    (row(options="a, b"), '"options": .*valid dictionary'),
    (row(options=["a"]), '"options": .*at least 2 items'),
    (row(options={"A": "a"}), '"options": .*at least 2 items'),
    (row(options={"A": "a", "b": "b"}), '"options.b.*": .*pattern'),
    (row(options={"A": "a", "B": " "}), '"options.B": .*pattern'),
    (row(options={"A": "a", "B": 2}), '"options.B": .*valid string'),
    (row(options={"A": "a", "B": "b"}, answer="C"), '"answer" is "C", not among the options A, B'),
    (row(split="spare"), "\"split\": .*'train', 'validation' or 'test'"),
    (row(regions={"car": [0, 0, 1]}), '"regions.car.3": Field required'),
    (row(regions={"car": [5, 0, 1, 3]}), "'car' is empty; give left < right"),
    (row(mos=99), '"mos" is 99, far outside 1..5; correct it or "mos_range"'),
    (row(mos=-3, mos_range=[0, 10]), '"mos" is -3, far outside 0..10'),
    (row(MOS=3), '"MOS" is no key; did you mean "mos"'),
    (row(groups="g"), '"groups" is no key; did you mean "group"'),
    (row(metadata=3), '"metadata": .*valid dictionary'),
    ("[" * 100_000, "recursion|is not JSON"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
def test_a_bad_line_is_one_line_that_names_manifest_and_line(tmp_path: Path, line: object, message: str) -> None:
    path = write(tmp_path, row(id="good"), line)
    with pytest.raises(DataError, match=message) as caught:
        list(read_manifest(path))
    assert str(caught.value).startswith(f"manifest {str(path)!r} line 2: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 320 + len(str(path))


def test_keys_of_ones_own_stay_though_they_look_like_known_ones(tmp_path: Path) -> None:
    """The known one is there too, or they stand in an object of their own; writing keeps what reading takes."""
    path = write(tmp_path, row(mos=3, mosz=0.1), row(id="b", metadata={"MOS": 3}), row(id="c", level=2))
    samples = list(read_manifest(path))
    assert [s.metadata for s in samples] == [{"mosz": 0.1}, {"MOS": 3}, {"level": 2}]
    write_manifest(tmp_path / "again.jsonl", samples)
    assert list(read_manifest(tmp_path / "again.jsonl")) == samples


def test_duplicate_ids_are_refused_at_the_second(tmp_path: Path) -> None:
    path = write(tmp_path, row(), row(id="b"), row())
    with pytest.raises(DataError, match=r'line 3: "id" "a" was there before; give each line its own'):
        list(read_manifest(path))


def test_lines_before_a_bad_one_are_yielded(tmp_path: Path) -> None:
    reader = read_manifest(write(tmp_path, row(), "oops"))
    assert next(reader).id == "a"
    with pytest.raises(DataError, match="line 2"):
        next(reader)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "No such file.*; give the path of a .jsonl file"),
        (lambda p: p.mkdir(), "Is a directory"),
        (lambda p: p.write_bytes(b""), "is empty"),
        (lambda p: p.write_bytes(b'{"id": "\xff"}\n'), "is not UTF-8; save it as UTF-8"),
    ],
)
def test_unusable_files_are_refused(tmp_path: Path, make: object, message: str) -> None:
    path = tmp_path / "m.jsonl"
    make(path)  # type: ignore[operator]
    with pytest.raises(DataError, match=message):
        list(read_manifest(path))


def test_round_trip_keeps_everything_and_writes_relative_paths(tmp_path: Path) -> None:
    samples = [
        Sample(id="s", image=tmp_path.resolve() / "images/s.png", mos=2.5, mos_std=0.25, split="train", group="ü"),
        Sample(id="q", image=Path("/elsewhere/q.png"), reference=tmp_path.resolve() / "r.png", query="?",
               options={"A": "Ja", "B": "Nein"}, answer="A", metadata={"level": 2, "note": "ß"}),
        Sample(id="r", image=tmp_path.resolve() / "r.png", mos=20, mos_range=(0, 100), higher_is_better=False,
               regions={"sky": (0, 0, 5.5, 5)}),
    ]  # fmt: skip
    path = tmp_path / "out" / ".." / "m.jsonl"
    (tmp_path / "out").mkdir()
    write_manifest(path, samples)
    assert list(read_manifest(path)) == samples
    text = (tmp_path / "m.jsonl").read_text(encoding="utf-8")
    assert '"images/s.png"' in text
    assert '"/elsewhere/q.png"' in text
    assert '"ü"' in text
    write_manifest(tmp_path / "again.jsonl", read_manifest(path))
    assert (tmp_path / "again.jsonl").read_text(encoding="utf-8") == text


def test_a_failed_write_leaves_the_old_manifest_and_no_scrap(tmp_path: Path) -> None:
    path = write(tmp_path, row())
    before = path.read_bytes()

    def broken() -> object:
        yield Sample(id="x", image=Path("/x.png"))
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_manifest(path, broken())  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.jsonl"]


def test_a_scan_goes_on_after_a_bad_line(tmp_path: Path) -> None:
    path = write(tmp_path, row(), "oops", row(id="b"), row(), row(id="c"))
    found = list(scan_manifest(path))
    assert [number for number, _ in found] == [1, 2, 3, 4, 5]
    assert [s.id for _, s in found if isinstance(s, Sample)] == ["a", "b", "c"]
    assert ["is not JSON" in str(e) or "was there before" in str(e) for _, e in found if isinstance(e, DataError)] == [
        True
    ] * 2


def test_sha256_is_that_of_the_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, row())
    assert manifest_sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(DataError, match="No such file"):
        manifest_sha256(tmp_path / "none.jsonl")


def test_reading_opens_no_image_and_holds_little_per_line(tmp_path: Path) -> None:
    count = 2500
    path = tmp_path / "m.jsonl"
    lines = (row(id=f"sample-{n:08d}", image=f"images/{n}.png", mos=3, note="x" * 200) for n in range(count))
    path.write_text(as_lines(lines), "utf-8")
    # In a process of its own: other threads of a test run would be counted too.
    code = (
        "import sys, tracemalloc\nfrom data.manifest import read_manifest\n"
        "next(read_manifest(sys.argv[1]))\n"
        "for _ in range(2):\n"
        "    tracemalloc.start()\n"
        "    print(sum(1 for _ in read_manifest(sys.argv[1])), tracemalloc.get_traced_memory()[1])\n"
        "    tracemalloc.stop()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, cwd=ROOT)
    (first, peak), (second, again) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert first == second == count
    # Once in more lines than these, Python makes its table of texts anew, which takes 1 MB.
    # pathlib's own table of the parts of paths takes 48 bytes a line, 98 from Python 3.12 on.
    assert min(peak, again) / count < (80 if sys.version_info < (3, 12) else 120)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not there")
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("clive/manifest.jsonl", 795),
        ("clive/mcq.jsonl", 75),
        ("live/manifest.jsonl", 74),
        ("biq2021/manifest.jsonl", 1000),
    ],
)  # fmt: skip
def test_the_shared_manifests_read_whole(name: str, count: int) -> None:
    samples = list(read_manifest(SHARED / name))
    assert len(samples) == count
    assert all(s.image.is_file() for s in samples[:20])
    assert {s.task for s in samples} == {"mcq" if "mcq" in name else "scoring"}
