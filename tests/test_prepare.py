"""`python -m data.prepare`: from a miniature release to a manifest with splits and its record."""

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data import prepare
from data.manifest import read_manifest
from data.preparing import read_record
from data.splits import check_leaks, group_of
from tests.pictures import noise

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def kadid(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Ten references with two distortions each."""
    root, rows = tmp_path / "kadid10k", ["dist_img,ref_img,dmos,var"]
    (root / "images").mkdir(parents=True)
    for reference in range(1, 11):
        names = [f"I{reference:02d}", f"I{reference:02d}_01_01", f"I{reference:02d}_10_05"]
        for name in names:
            Image.fromarray(noise(rng, 8, 8)).save(root / "images" / f"{name}.png")
        rows += [f"{name}.png,{names[0]}.png,{score},0.5" for name, score in zip(names[1:], (4.5, 1.5), strict=True)]
    (root / "dmos.csv").write_text("\n".join(rows) + "\n", "utf-8")
    return root


@pytest.fixture
def biq(tmp_path: Path) -> Path:
    root = tmp_path / "biq2021"
    (root / "Images").mkdir(parents=True)
    for part, numbers in (("Train", range(20)), ("Test", range(20, 25))):
        lines = [f"ss01 ({n}).jpg,{n / 25:.4f}" for n in numbers]
        (root / f"{part}.csv").write_text("\n".join(["Image Name,MOS", *lines]) + "\n", "utf-8")
        for n in numbers:
            Image.new("RGB", (4, 4), (n, n, n)).save(root / "Images" / f"ss01 ({n}).jpg")
    return root


def run(*arguments: object) -> int:
    return prepare.main([str(a) for a in arguments])


def test_writes_manifest_and_record(kadid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out/manifest.jsonl"
    assert run("kadid10k", "--root", kadid, "--out", out) == 0
    samples = list(read_manifest(out))
    assert Counter(s.split for s in samples) == {"train": 12, "validation": 4, "test": 4}
    check_leaks(samples)
    shown = capsys.readouterr().out
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    assert "20 samples of 10125 in the full release, 10 groups" in shown
    assert "splits: train 12, validation 4, test 4 (by content, seed 0)" in shown
    assert digest in shown
    assert "licence: references under the Pixabay licence" in shown
    assert "cite: H. Lin, V. Hosu, D. Saupe" in shown
    record = read_record(out)
    assert record is not None
    assert (record["dataset"], record["manifest_sha256"], record["groups"]) == ("kadid10k", digest, 10)
    assert (record["splits"], record["split_by"]) == ({"train": 12, "validation": 4, "test": 4}, "content")
    assert sorted(p.name for p in out.parent.iterdir()) == ["manifest.jsonl", "manifest.prepared.json"]


def test_the_same_call_gives_the_same_bytes_and_another_seed_another_split(kadid: Path, tmp_path: Path) -> None:
    outs = [tmp_path / f"out/{n}.jsonl" for n in range(3)]
    for out, seed in zip(outs, (0, 0, 1), strict=True):
        assert run("kadid10k", "--root", kadid, "--out", out, "--seed", seed) == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert outs[0].read_bytes() != outs[2].read_bytes()
    hashes = [read_record(out)["split_sha256"] for out in outs]  # type: ignore[index]
    assert hashes[0] == hashes[1] != hashes[2]


def test_fractions_set_the_shares(kadid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m.jsonl"
    assert run("kadid10k", "--root", kadid, "--out", out, "--fractions", "0,0,1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["splits"] == {"test": 20}


def test_the_official_test_images_stay_and_validation_comes_from_train(biq: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.jsonl"
    assert run("biq2021", "--root", biq, "--out", out) == 0
    samples = list(read_manifest(out))
    assert Counter(s.split for s in samples) == {"train": 15, "validation": 5, "test": 5}
    assert {group_of(s) for s in samples if s.split == "test"} == {f"ss01 ({n})" for n in range(20, 25)}
    assert read_record(out)["split_by"] == "release, validation drawn by content"  # type: ignore[index]


def test_fractions_override_the_official_split(biq: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.jsonl"
    assert run("biq2021", "--root", biq, "--out", out, "--fractions", "0.6,0.2,0.2") == 0
    samples = list(read_manifest(out))
    assert Counter(s.split for s in samples) == {"train": 15, "validation": 5, "test": 5}
    assert {group_of(s) for s in samples if s.split == "test"} != {f"ss01 ({n})" for n in range(20, 25)}


def test_missing_images_are_refused_or_left_out_and_counted(
    kadid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (kadid / "images/I03_01_01.png").unlink()
    out = tmp_path / "out/m.jsonl"
    assert run("kadid10k", "--root", kadid, "--out", out) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "or leave such lines out with --allow-missing" in captured.err
    assert not out.parent.exists()
    assert run("kadid10k", "--root", kadid, "--out", out, "--allow-missing") == 0
    assert "left out: 1 lines" in capsys.readouterr().out
    assert len(list(read_manifest(out))) == 19


def test_a_failed_run_leaves_the_old_manifest(kadid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out/m.jsonl"
    assert run("kadid10k", "--root", kadid, "--out", out) == 0
    before = {p.name: p.read_bytes() for p in out.parent.iterdir()}
    (kadid / "images/I10_10_05.png").unlink()
    assert run("kadid10k", "--root", kadid, "--out", out) == 2
    assert {p.name: p.read_bytes() for p in out.parent.iterdir()} == before


def test_a_table_whose_splits_leak_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        Image.new("RGB", (4, 4)).save(tmp_path / f"{name}.png")
    (tmp_path / "t.csv").write_text("image,mos,group,split\na.png,1,g,train\nb.png,2,g,test\n", "utf-8")
    assert run("table", "--root", tmp_path / "t.csv", "--out", tmp_path / "m.jsonl") == 1
    assert "leaks: 1 groups are in more than one split; split again with --fractions" in capsys.readouterr().out


def test_a_table_without_splits_gets_them(tmp_path: Path) -> None:
    lines = ["image,score"]
    for n in range(10):
        Image.new("RGB", (4, 4), (n, n, n)).save(tmp_path / f"{n}.png")
        lines.append(f"{n}.png,{n * 10}")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", "utf-8")
    out = tmp_path / "m.jsonl"
    assert (
        run("table", "--root", tmp_path / "t.csv", "--out", out, "--columns", "mos=score", "--mos-range", "0,100") == 0
    )
    samples = list(read_manifest(out))
    assert Counter(s.split for s in samples) == {"train": 6, "validation": 2, "test": 2}
    assert {s.mos_range for s in samples} == {(0, 100)}


def test_two_rows_of_one_id_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("id,image,mos\nx,a.png,1\nx,a.png,2\n", "utf-8")
    assert run("table", "--root", tmp_path / "t.csv", "--out", tmp_path / "m.jsonl") == 2
    assert 'line 3: "id" "x" was there before; give each line its own' in capsys.readouterr().err


def test_samples_without_a_label_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"{n}.png" for n in range(10)]
    for n, name in enumerate(names):
        Image.new("RGB", (4, 4), (n, n, n)).save(tmp_path / name)
    (tmp_path / "t.csv").write_text("\n".join(["image,rating", *(f"{name},3" for name in names)]) + "\n", "utf-8")
    out = tmp_path / "m.jsonl"
    assert run("table", "--root", tmp_path / "t.csv", "--out", out) == 0
    assert "unlabelled: 10 samples have neither a score nor an answer" in capsys.readouterr().out
    assert read_record(out)["unlabelled"] == 10  # type: ignore[index]
    assert run("table", "--root", tmp_path / "t.csv", "--out", out, "--force", "--columns", "mos=score") == 2
    assert "has no column 'score' but image, rating" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [[], ["kadid10k"], ["kadid10k", "--root", ".", "--out", "x", "--fractions", "1,2"], ["table", "--columns", "a"]],
)
def test_wrong_flags_end_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        prepare.main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""


def test_the_list_shows_every_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list", "--json") == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["tid2013"]["count"] == 3000
    assert listed["live"]["score"] == {"range": [0, 100], "higher_is_better": False}
    assert run("--list") == 0
    assert "TID2013" in capsys.readouterr().out


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "m.jsonl").write_text('{"id": "a", "image": "a.png"}\n', "utf-8")
    for command in (["data.prepare", "--list"], ["data.check", str(tmp_path / "m.jsonl")]):
        reading, writing = os.pipe()
        os.close(reading)
        ended = subprocess.run(
            [sys.executable, "-m", *command], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, timeout=60
        )
        os.close(writing)
        assert (ended.returncode, ended.stderr) == (1, b""), command


def test_metadata_of_a_table_stays_what_it_is(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    row = {"image": "a.png", "mos": 3.0, "metadata": {"camera": "x"}, "lens": "50 mm"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n", "utf-8")
    out = tmp_path / "out/manifest.jsonl"
    assert run("table", "--root", tmp_path / "rows.jsonl", "--out", out, "--fractions", "0,0,1") == 0
    (sample,) = read_manifest(out)
    assert sample.metadata == {"camera": "x", "lens": "50 mm"}
