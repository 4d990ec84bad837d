"""Hugging Face datasets: Parquet, an image folder, a saved dataset and a name that cannot be reached."""

import hashlib
import io
from pathlib import Path

import pytest
from PIL import Image

from data.manifest import Layout, read_manifest
from data.prepare import main as prepare
from data.preparing import load, read_record
from program.common.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", str(tmp_path / "hf-modules"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # fails at once instead of trying again


def encoded(shade: int, kind: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), (shade, 90, 30)).save(buffer, kind, quality=61)
    return buffer.getvalue()


def dataset(**columns: list[object]):
    import datasets

    images = [{"bytes": encoded(10), "path": None}, {"bytes": encoded(20, "PNG"), "path": None}]
    made = datasets.Dataset.from_dict({"picture": images, **columns})
    return made.cast_column("picture", datasets.Image())


def test_parquet_keeps_the_original_bytes(tmp_path: Path) -> None:
    dataset(score=[30, 70], prompt=["a", "b"]).to_parquet(tmp_path / "rows.parquet")
    samples = list(
        load(
            "huggingface",
            tmp_path / "rows.parquet",
            layout=Layout({"image": "picture", "mos": "score"}, (0, 100)),
            images=tmp_path / "images",
        )
    )
    assert [s.id for s in samples] == ["huggingface/all/00000001", "huggingface/all/00000002"]
    assert [(s.mos, s.mos_range, s.split, s.group) for s in samples] == [
        (30, (0, 100), None, samples[0].image.name),
        (70, (0, 100), None, samples[1].image.name),
    ]
    assert samples[0].metadata == {"prompt": "a"}
    for sample, data in zip(samples, (encoded(10), encoded(20, "PNG")), strict=True):
        assert sample.image.read_bytes() == data
        assert sample.image.stem == hashlib.sha256(data).hexdigest()
    assert [s.image.suffix for s in samples] == [".jpg", ".png"]


def test_an_image_of_several_questions_is_in_one_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    images = [{"bytes": encoded(shade, "PNG"), "path": None} for shade in range(20) for _ in range(4)]
    rows = {"image": images, "prompt": [f"question {n}" for n in range(80)], "mos": [1.0 + n % 5 for n in range(80)]}
    made = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    made.to_parquet(tmp_path / "rows.parquet")
    monkeypatch.chdir(tmp_path)
    assert prepare(["huggingface", "--root", "rows.parquet", "--out", "mine/manifest.jsonl"]) == 0
    splits: dict[str, set[str | None]] = {}
    for sample in read_manifest(tmp_path / "mine/manifest.jsonl"):
        splits.setdefault(sample.image.name, set()).add(sample.split)
    assert len(splits) == 20
    assert all(len(of_image) == 1 for of_image in splits.values())
    assert read_record(tmp_path / "mine/manifest.jsonl")["groups"] == 20


def test_references_and_other_images(tmp_path: Path) -> None:
    import datasets

    images = [{"bytes": encoded(shade), "path": None} for shade in (1, 2, 3)]
    features = datasets.Features({name: datasets.Image() for name in ("image", "reference", "thumbnail")})
    made = datasets.Dataset.from_dict(dict(zip(features, ([i] for i in images), strict=True)), features=features)
    made.to_parquet(tmp_path / "rows.parquet")
    (sample,) = load("huggingface", tmp_path / "rows.parquet", images=tmp_path / "images")
    assert (sample.image.read_bytes(), sample.reference.read_bytes()) == (encoded(1), encoded(2))
    assert (sample.metadata, sample.group) == ({}, sample.reference.name)
    assert len(list((tmp_path / "images").iterdir())) == 2


def test_an_image_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder/test"
    folder.mkdir(parents=True)
    (folder / "x.jpg").write_bytes(encoded(40))
    (folder / "metadata.csv").write_text("file_name,mos,group\nx.jpg,4.5,scene\n", "utf-8")
    (sample,) = load("huggingface", tmp_path / "folder", images=tmp_path / "images")
    assert (sample.mos, sample.split, sample.group) == (4.5, "test", "scene")
    assert sample.image.parent == tmp_path / "images"
    assert sample.image.read_bytes() == encoded(40)


def test_an_image_that_a_parquet_file_names_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    (tmp_path / "set").mkdir()
    (tmp_path / "set/x.jpg").write_bytes(encoded(40))
    datasets.Dataset.from_dict({"image": ["x.jpg"], "mos": [3.0]}).to_parquet(tmp_path / "set/rows.parquet")
    monkeypatch.chdir(tmp_path)
    assert (
        prepare(["huggingface", "--root", "set/rows.parquet", "--out", "mine/all.jsonl", "--fractions", "0,0,1"]) == 0
    )
    (sample,) = read_manifest(tmp_path / "mine/all.jsonl")
    assert sample.image.parent == tmp_path / "mine/images"
    assert sample.image.read_bytes() == encoded(40)


def test_a_column_of_plain_bytes_is_read(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"shot": [encoded(10)], "mos": [3.0]}).to_parquet(tmp_path / "rows.parquet")
    columns = {"image": "shot"}
    (sample,) = load("huggingface", tmp_path / "rows.parquet", layout=Layout(columns), images=tmp_path / "images")
    assert sample.image.read_bytes() == encoded(10)


def test_an_image_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"image": [b"nothing"]}).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="the image cannot be opened"):
        list(load("huggingface", tmp_path / "rows.parquet", images=tmp_path / "images"))


def test_without_an_image_column_it_says_which_there_are(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"a": [1], "b": [2]}).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r'has no "image" but a, b; give it, or name its column'):
        list(load("huggingface", tmp_path / "rows.parquet", images=tmp_path / "images"))


def test_a_name_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"cannot be loaded .* give a folder, a Parquet file or a name on the hub"
    ) as caught:
        list(load("huggingface", "nobody/nothing-of-this-name", images=tmp_path / "images"))
    assert "\n" not in str(caught.value)
