"""Many images from tables, addresses and streams, into tables elsewhere; in memory that does not grow."""

import json
import shutil
import threading

import pyarrow
import pyarrow.parquet
import pytest

from program import assess
from program.batch.command import judge
from program.batch.inputs import find_items
from program.common.errors import InputError
from program.running.row import Row
from tests.tables import as_lines, read_lines


@pytest.fixture
def memory():
    """fsspec's store in memory, empty."""
    import fsspec

    store = fsspec.filesystem("memory")
    store.store.clear()
    yield store
    store.store.clear()


@pytest.fixture
def photos(memory, encoded):
    """Three images and a manifest in another store, one of them damaged."""
    names = ["a.png", "b.png", "deep/c.png"]
    for seed, name in enumerate(names):
        memory.pipe(f"/lab/{name}", encoded(seed))
    memory.pipe("/lab/bad.jpg", b"\xff\xd8 no image")
    lines = [{"image": name, "id": name[-5:]} for name in ["a.png", "memory://lab/deep/c.png", "none.png"]]
    memory.pipe("/lab/m.jsonl", as_lines(lines).encode())
    return "memory://lab"


def parquet(rows, columns=("id", "status")):
    return [tuple(row[name] for name in columns) for row in rows]


def test_a_folder_elsewhere_is_judged_as_one_here(program, photos, tmp_path):
    out = tmp_path / "out.jsonl"
    assert assess.main([photos, "--recursive", "--out", str(out)]) == 1
    rows = read_lines(out)
    assert parquet(rows) == [("a.png", "ok"), ("b.png", "ok"), ("bad.jpg", "error"), ("deep/c.png", "ok")]
    assert rows[0]["image"] == "memory://lab/a.png"
    assert "memory://lab/bad.jpg" in rows[2]["error"]
    assert [item.id for item in find_items([photos])] == ["a.png", "b.png", "bad.jpg"]


def test_a_manifest_elsewhere_names_images_beside_it(program, photos, tmp_path, memory):
    assert assess.main([f"{photos}/m.jsonl", "--out", f"{photos}/out.csv"]) == 1
    lines = memory.cat("/lab/out.csv").decode().splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [["a.png", "ok"], ["c.png", "ok"], ["e.png", "error"]]
    assert "no such file" in lines[3]
    with memory.open("/lab/m.parquet", "wb") as file:
        pyarrow.parquet.write_table(pyarrow.table({"image": ["a.png", "deep/c.png"]}), file)
    assert [item.image for item in find_items([f"{photos}/m.parquet"])] == [f"{photos}/a.png", f"{photos}/deep/c.png"]


def test_a_chain_of_addresses_is_refused(capsys):
    assert assess.main(["zip://a.png::photos.zip"]) == 2
    assert "'zip://a.png::photos.zip': is a chain of addresses (::); download it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        "nowhere://x/a.png",
        "https://example.org/a.png",
        "memory://lab/none.png",
        "nowhere://x/m.parquet",
        "memory://lab/none.parquet",
        "memory://lab/none.csv",
    ],
)
def test_an_address_that_cannot_be_read_is_one_line(program, memory, capsys, name):
    assert assess.main([name]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert name[:12] in error


def test_tables_bring_images_by_columns_of_any_name(program, tmp_path, encoded, capsys):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(encoded())
    (tmp_path / "m.csv").write_text("path\na.png\nb.png\n", "utf-8")
    pyarrow.parquet.write_table(pyarrow.table({"path": ["a.png", "b.png"]}), tmp_path / "m.parquet")
    for manifest in ("m.csv", "m.parquet"):
        words = [str(tmp_path / manifest), "--columns", "image=path", "--json"]
        assert assess.main(words) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["images"], facts["scored"], sorted(row["id"] for row in facts["worst"])) == (
            2, 2, ["a.png", "b.png"]
        )  # fmt: skip


def test_a_dataset_of_hugging_faces_is_streamed(program, tmp_path, encoded, capsys):
    (tmp_path / "set").mkdir()
    table = pyarrow.table(
        {"picture": [{"bytes": encoded(n), "path": None} for n in range(3)], "score": [1.0, 2.0, 3.0]}
    )
    info = {"picture": {"_type": "Image"}, "score": {"dtype": "float64", "_type": "Value"}}
    schema = table.schema.with_metadata({"huggingface": json.dumps({"info": {"features": info}})})
    pyarrow.parquet.write_table(table.cast(schema), tmp_path / "set" / "train.parquet")
    out = tmp_path / "out.jsonl"
    words = [f"hf:{tmp_path / 'set'}", "--columns", "image=picture,mos=score", "--out", str(out)]
    assert assess.main(words) == 0
    rows = read_lines(out)
    assert parquet(rows) == [(f"{n:08}", "ok") for n in (1, 2, 3)]
    assert rows[0]["image"] is None
    assert assess.main([f"hf:{tmp_path / 'set'}:none"]) == 2
    assert "check name and split" in capsys.readouterr().err


class StoppedError(BaseException):
    """As a kill."""


def stopping(program, after):
    """Let the program be killed at its n-th image."""
    plain, calls = type(program).forward, []

    def forward(self, image, **given):
        calls.append(image.name)
        if len(calls) > after:
            raise StoppedError
        return plain(self, image=image, **given)

    return forward


@pytest.mark.parametrize("elsewhere", [False, True])
def test_parts_are_written_as_they_fill_and_gone_on_with(
    program, memory, tmp_path, encoded, monkeypatch, elsewhere
):  # fmt: skip
    monkeypatch.setattr("program.batch.output.PART_ROWS", 3)
    for number in range(8):
        (tmp_path / f"{number}.png").write_bytes(encoded(number))
    out = "memory://lab/out.parquet" if elsewhere else tmp_path / "out.parquet"
    items = find_items([str(tmp_path)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(program), "forward", stopping(program, 5))
        with pytest.raises(StoppedError):
            judge(program, items, out=out, workers=1, progress=False)
        if elsewhere:
            assert memory.exists("/lab/out.parquet/part-000000.parquet")
            assert not memory.exists("/lab/out.parquet/part-000001.parquet")
            # Another machine has no journal: it goes on with the parts.
            shutil.rmtree(program.resources.settings.cache_dir / "batches")
        else:
            assert [p.name for p in sorted(out.glob("*.parquet"))] == ["part-000000.parquet"]
    judge(program, items, out=out, workers=2, progress=False)
    if elsewhere:
        parts = [pyarrow.parquet.read_table(memory.open(p)) for p in sorted(memory.glob("/lab/out.parquet/*.parquet"))]
        assert not memory.exists("/lab/out.parquet/_run.json")
    else:
        parts = [pyarrow.parquet.read_table(part) for part in sorted(out.glob("*.parquet"))]
    assert [part.num_rows for part in parts] == [3, 3, 2]
    rows = [row for part in parts for row in part.to_pylist()]
    assert parquet(rows) == [(f"{number}.png", "ok") for number in range(8)]


def test_a_shorter_table_leaves_no_part_of_a_longer_one(program, tmp_path, encoded, monkeypatch):
    monkeypatch.setattr("program.batch.output.PART_ROWS", 1)
    images, out = tmp_path / "in", tmp_path / "out.parquet"
    images.mkdir()
    for number in range(3):
        (images / f"{number}.png").write_bytes(encoded(number))
    assert assess.main([str(images), "--out", str(out)]) == 0
    (images / "0.png").unlink()
    assert assess.main([str(images), "--out", str(out)]) == 2
    assert assess.main([str(images), "--out", str(out), "--force"]) == 0
    assert pyarrow.parquet.read_table(out)["id"].to_pylist() == ["1.png", "2.png"]


def test_parts_of_another_question_are_not_gone_on_with(program, memory, tmp_path, encoded, monkeypatch):
    (tmp_path / "a.png").write_bytes(encoded())
    out, items = "memory://lab/out.parquet", find_items([str(tmp_path)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(program), "forward", stopping(program, 0))
        with pytest.raises(StoppedError):
            judge(program, items, out=out, workers=1, progress=False)
    shutil.rmtree(program.resources.settings.cache_dir / "batches")
    with pytest.raises(InputError, match="belongs to another run"):
        judge(program, items, out=out, query="Is it noisy?", progress=False)


def test_rows_are_in_the_items_order_whichever_came_first(program, tmp_path, encoded, monkeypatch):
    plain, came, another = type(program).forward, [], threading.Event()

    def forward(self, image, **given):
        if image.name == "0.png":
            assert another.wait(60)
        return plain(self, image=image, **given)

    def arrived(row: Row) -> None:
        came.append(row)
        another.set()

    monkeypatch.setattr(type(program), "forward", forward)
    for number in range(8):
        (tmp_path / f"{number}.png").write_bytes(encoded(number))
    out = tmp_path / "out.jsonl"
    judge(program, find_items([str(tmp_path)]), arrived, out=out, progress=False)
    names = [f"{number}.png" for number in range(8)]
    assert [json.loads(line)["id"] for line in out.read_text("utf-8").splitlines()] == names
    assert came[0].id != "0.png"
    assert sorted(row.id for row in came) == names


@pytest.mark.slow
def test_images_and_tables_lie_in_a_bucket(program, encoded, monkeypatch):
    server = pytest.importorskip("moto.server", reason="moto is not installed (pip install 'moto[server]' s3fs)")
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    stand_in = server.ThreadedMotoServer("127.0.0.1", 0)
    stand_in.start()
    try:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*stand_in.get_host_and_port()))
        s3fs.S3FileSystem.clear_instance_cache()
        store = s3fs.S3FileSystem()
        store.mkdir("lab")
        for number in range(3):
            store.pipe(f"lab/in/{number}.png", encoded(number))
        store.pipe("lab/m.csv", b"path\nin/0.png\nin/2.png\nin/none.png\n")
        assert assess.main(["s3://lab/in", "--out", "s3://lab/out.parquet"]) == 0
        assert store.ls("lab/out.parquet") == ["lab/out.parquet/part-000000.parquet"]
        table = pyarrow.parquet.read_table(store.open("lab/out.parquet/part-000000.parquet"))
        assert parquet(table.to_pylist()) == [(f"{number}.png", "ok") for number in range(3)]
        assert assess.main(["s3://lab/m.csv", "--columns", "image=path", "--out", "s3://lab/out.jsonl"]) == 1
        rows = [json.loads(line) for line in store.cat("lab/out.jsonl").splitlines()]
        assert parquet(rows) == [("in/0.png", "ok"), ("in/2.png", "ok"), ("in/none.png", "error")]
    finally:
        stand_in.stop()
        s3fs.S3FileSystem.clear_instance_cache()
