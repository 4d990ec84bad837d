"""Stars of photographs and decisions in a gallery as labels, and the loop from stars to a second compile."""

import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from agentic_iqa.__main__ import main
from tests.pictures import blocks
from tests.scenarios import blurred
from tests.tables import as_lines, read_lines

PACKET = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    '<rdf:Description rdf:about="" xmlns:xmp="http://ns.adobe.com/xap/1.0/" '
    'xmlns:xmpDM="http://ns.adobe.com/xmp/1.0/DynamicMedia/" xmlns:digiKam="http://www.digikam.org/ns/1.0/" '
    'xmlns:MicrosoftPhoto="http://ns.microsoft.com/photo/1.0/" xmlns:aiqa="urn:agentic-iqa:1" {}/>'
    "</rdf:RDF></x:xmpmeta>"
)
START = datetime(2026, 5, 1, 10)


def stated(words: str) -> bytes:
    return PACKET.format(words).encode()


def photograph(path: Path, number: int, *, at: datetime | None = None, rating=0, tag=0x4746, **options) -> None:
    """Save a photograph with a time and a rating in its EXIF."""
    exif = Image.Exif()
    if at is not None:
        exif[0x8769] = {36867: f"{at:%Y:%m:%d %H:%M:%S}"}
    if rating:
        exif[tag] = rating
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(blocks(np.random.default_rng(number), 6, 8, 4)).save(path, exif=exif, **options)


def stars_of(folder: Path, capsys, *words: str) -> tuple[dict[str, dict], str, int]:
    """Return what the command makes of photographs, what it prints, and its exit code."""
    out = folder.parent / "stars.jsonl"
    code = main(["data", "prepare", "stars", str(folder), "--out", str(out), "--force", *words])
    said = capsys.readouterr()
    return {row["id"]: row for row in read_lines(out)}, said.out + said.err, code


def test_stars_are_read_wherever_programs_keep_them(tmp_path, capsys):
    folder = tmp_path / "photos"
    photograph(folder / "exif.jpg", 1, rating=4)
    photograph(folder / "percent.jpg", 2, rating=75, tag=0x4749)
    photograph(folder / "xmp.jpg", 3, xmp=stated('xmp:Rating="5"'))
    photograph(folder / "windows.tif", 4)
    tags = {700: stated('MicrosoftPhoto:Rating="25"')}
    Image.open(folder / "windows.tif").save(folder / "windows.tif", tiffinfo=tags)
    text = PngImagePlugin.PngInfo()
    text.add_itxt("XML:com.adobe.xmp", stated('xmp:Rating="3"').decode())
    photograph(folder / "xmp.png", 5, pnginfo=text)
    for number, (name, words) in enumerate({
        "bridge.xmp": 'xmp:Rating="1"', "darktable.jpg.xmp": 'xmp:Rating="2"', "zero.xmp": 'xmp:Rating="0"',
        "rejected.xmp": 'xmp:Rating="-1"', "flagged.xmp": 'xmpDM:pick="-1" xmp:Rating="0"',
        "digikam.jpg.xmp": 'digiKam:PickLabel="1"', "picked.xmp": 'digiKam:PickLabel="3"',
        "suggested.xmp": 'xmp:Rating="4" aiqa:Suggested="4"', "confirmed.xmp": 'xmp:Rating="4" aiqa:Confirmed="4"',
    }.items(), start=6):  # fmt: skip
        # A suggestion that was confirmed also sets aside the stars that the file had before.
        photograph(folder / f"{name.partition('.')[0]}.jpg", number, rating=3 * name.startswith("confirmed"))
        (folder / name).write_bytes(stated(words))
    heif = pytest.importorskip("pillow_heif", reason="the extra [heif] is not installed")
    heif.from_pillow(Image.new("RGB", (64, 48))).save(folder / "phone.heic", xmp=stated('xmp:Rating="2"'))

    before = {path: path.read_bytes() for path in folder.iterdir()}
    rows, said, code = stars_of(folder, capsys)
    assert code == 0
    assert {name: row["mos"] for name, row in rows.items()} == {
        "exif.jpg": 4, "percent.jpg": 4, "xmp.jpg": 5, "windows.tif": 2, "xmp.png": 3, "bridge.jpg": 1,
        "darktable.jpg": 2, "phone.heic": 2,
    }  # fmt: skip
    assert all(len(row["sha256"]) == 64 and row["labels"] == "person" for row in rows.values())
    assert "8 labels of 15 photographs" in said
    assert "stars: 1 with 1, 3 with 2, 1 with 3, 2 with 4, 1 with 5; 3 rejected, 1 picked" in said
    assert "left out: 1 unrated (no rating, or 0), 4 picked or rejected without a pair" in said
    assert "left out: 2 have the rating that a gallery suggested" in said
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    rows, _, _ = stars_of(folder, capsys, "--rejects-as", "1")
    assert [rows[f"{name}.jpg"]["mos"] for name in ("rejected", "flagged", "digikam")] == [1, 1, 1]


def test_a_pick_and_a_reject_of_one_burst_are_a_pair_about_the_stars_of_the_burst(tmp_path, capsys):
    folder = tmp_path / "photos"
    for second, (name, words) in enumerate({"a": 'xmp:Rating="5"', "b": 'xmp:Rating="-1"', "c": ""}.items()):
        photograph(folder / f"{name}.jpg", second, at=START + timedelta(seconds=2 * second), rating=3 * (name == "a"))
        (folder / f"{name}.xmp").write_bytes(stated(words))
    photograph(folder / "later.jpg", 9, at=START + timedelta(minutes=5))
    (folder / "later.xmp").write_bytes(stated('xmp:Rating="-1"'))
    rows, said, _ = stars_of(folder, capsys)
    assert rows["a.jpg"]["preferred_over"] == {"b.jpg": 1}
    assert rows["a.jpg"]["group"] == rows["b.jpg"]["group"]
    assert 3 < rows["b.jpg"]["mos"] < rows["a.jpg"]["mos"] == 5
    assert rows.keys() == {"a.jpg", "b.jpg"}
    assert "bursts: 1; 1 pairs" in said
    assert "disagree: 1 have other stars in the file than in the sidecar, which counts" in said


def test_what_cannot_be_read_is_named_and_nothing_is_written_among_photographs(tmp_path, capsys):
    folder = tmp_path / "photos"
    photograph(folder / "a.jpg", 1, rating=4)
    photograph(folder / "b.jpg", 2, rating=2)
    (folder / "b.xmp").mkdir()
    rows, said, code = stars_of(folder, capsys)
    assert (code, set(rows)) == (1, {"a.jpg"})
    assert "sidecar 'b.xmp': cannot be read" in said
    assert main(["data", "prepare", "stars", str(folder), "--out", str(folder / "stars.jsonl")]) == 2
    assert "lies among the photographs" in capsys.readouterr().err
    (folder / "a.jpg").unlink()
    photograph(folder / "c.jpg", 3)
    assert main(["data", "prepare", "stars", str(folder), "--out", str(tmp_path / "other.jsonl")]) == 2
    assert "none of 1 photographs has a rating" in capsys.readouterr().err


# Decisions


def decided(folder: Path, decisions: dict[str, dict], groups: dict[str, str | None], ratings=None) -> Path:
    """Write a gallery's folder: its table, and decisions with what was suggested."""
    folder.mkdir()
    rows = []
    for number, (name, group) in enumerate(groups.items()):
        photograph(folder / "day" / name, number)
        shown = decisions.get(name, {}).get("suggested") or {"verdict": "alternate"}
        rows.append({"file": name, "image": f"day/{name}", "sha256": f"{number:064x}", "group": group, **shown})
        rows[-1]["user_rating"] = (ratings or {}).get(name)
    hashes = {row["file"]: row["sha256"] for row in rows}
    pictures = {name: {"sha256": hashes[name], **each} for name, each in decisions.items()}
    document = {"decisions": "agentic-iqa", "version": 1, "pictures": pictures}
    (folder / "gallery.jsonl").write_text(as_lines(rows), "utf-8")
    (folder / "decisions.json").write_text(json.dumps(document), "utf-8")
    return folder


def suggestion(verdict: str, stars: int, *, best: bool = False) -> dict:
    return {"suggested": {"verdict": verdict, "stars": stars, "best": best}}


def labels_of(culled: Path) -> dict[str, tuple]:
    from data.catalogue import resolve_dataset
    from data.manifest import read_manifest

    samples = read_manifest(resolve_dataset(culled, culled))
    return {each.id: (each.mos, each.preferred_over, each.metadata.get("labels")) for each in samples}


def test_decisions_against_a_suggestion_are_labels_and_those_that_confirm_one_are_none(tmp_path, capsys):
    alone = dict.fromkeys(("five.jpg", "agreed.jpg", "old.jpg", "file.jpg"))
    groups = {**alone, "a.jpg": "1", "b.jpg": "1", "c.jpg": "2", "d.jpg": "2"}
    culled = decided(tmp_path / "culled", {
        "five.jpg": {"stars": 5, **suggestion("look", 3)}, "agreed.jpg": {"stars": 3, **suggestion("keep", 3)},
        "old.jpg": {"stars": 5}, "a.jpg": {"verdict": "reject", **suggestion("keep", 4, best=True)},
        "b.jpg": {"verdict": "keep", **suggestion("alternate", 4)},
        "c.jpg": {"verdict": "keep", **suggestion("keep", 4, best=True)},
        "d.jpg": {"verdict": "reject", **suggestion("reject", 1)},
    }, groups, ratings={"file.jpg": 2})  # fmt: skip
    labels = labels_of(culled)
    assert labels["five.jpg"] == (5, None, "person")
    assert labels["file.jpg"] == (2, None, "person")  # given before anything was suggested
    assert labels["b.jpg"][1:] == ({"a.jpg": 1}, "person")
    assert labels["b.jpg"][0] > 3 > labels["a.jpg"][0]
    assert labels["agreed.jpg"] == (3, None, "suggestion")
    assert labels["c.jpg"] == labels["d.jpg"] == (None, None, "suggestion")
    assert labels["old.jpg"] == (None, None, None)
    assert main(["compile", "--data", str(culled), "--dry-run", "--out", str(tmp_path / "program")]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "2 scores and 1 pairs are labels, of 7 decisions and the ratings in files" in said
    assert "you agreed with 3 of 6 suggestions" in said
    assert "1 decisions of an older page do not say what it showed" in said


def test_a_file_of_nothing_but_confirmed_suggestions_is_refused_by_compile(tmp_path, capsys):
    culled = decided(tmp_path / "culled", {"a.jpg": {"stars": 3, **suggestion("keep", 3)}}, {"a.jpg": None})
    assert main(["compile", "--data", str(culled / "decisions.json"), "--out", str(tmp_path / "program")]) == 2
    assert "circular" in capsys.readouterr().err
    shutil.move(culled / "decisions.json", tmp_path / "decisions.json")
    assert main(["compile", "--data", str(culled), "--out", str(tmp_path / "program")]) == 2
    assert "holds no decisions; save them on its page as decisions.json in it, or" in capsys.readouterr().err
    assert main(["compile", "--data", str(tmp_path / "decisions.json"), "--out", str(tmp_path / "program")]) == 2
    assert "gallery.jsonl is not beside it" in capsys.readouterr().err


# The loop


def rated_photographs(folder: Path, count: int) -> None:
    """Photographs from sharp to blurred, five minutes apart, with stars in sidecars and EXIF in turn."""
    for number, row in enumerate(blurred(folder, count)):
        picture, stars = folder / row["image"], round(row["mos"])
        image = Image.open(picture).convert("RGB")
        picture.unlink()
        exif = Image.Exif()
        exif[0x8769] = {36867: f"{START + timedelta(minutes=5 * number):%Y:%m:%d %H:%M:%S}"}
        if number % 2:
            exif[0x4746] = stars
        else:
            (folder / f"{number}.xmp").write_bytes(stated(f'xmp:Rating="{stars}"'))
        image.save(folder / f"{number}.jpg", exif=exif)


def corrections(culled: Path, count: int) -> dict:
    """Return a person's decisions on a gallery: a star more than what it suggests, or the same."""
    pictures = {}
    for number, row in enumerate(read_lines(culled / "gallery.jsonl")[:count]):
        shown = {"verdict": row["verdict"], "stars": row["suggested_rating"]}
        stars = min(row["suggested_rating"] + number % 2, 5)
        pictures[row["file"]] = {"sha256": row["sha256"], "stars": stars, "suggested": shown}
    return {"decisions": "agentic-iqa", "version": 1, "pictures": pictures}


@pytest.mark.parametrize(("count", "corrected"), [(20, 4), pytest.param(60, 10, marks=pytest.mark.slow)])
def test_from_stars_to_a_program_to_corrections_to_the_next_program(
    count, corrected, tmp_path, monkeypatch, capsys, undrawn, coarse, unlogged, untracked
):
    pytest.importorskip("imagehash", reason="the extra [gallery] is not installed")
    monkeypatch.chdir(tmp_path)
    Path("cheap.yaml").write_text("{compile: {baselines: false, rerank: 2}, tracking: {traces: 0}}", "utf-8")
    monkeypatch.setenv("AGENTICIQA_CONFIG", str(tmp_path / "cheap.yaml"))
    rated_photographs(tmp_path / "photos", count)

    def run(*words: str) -> str:
        assert main(list(words)) == 0
        said = capsys.readouterr()
        return " ".join((said.out + said.err).split())

    assert f"{count} labels of {count} photographs" in run("data", "prepare", "stars", "photos", "--out", "stars.jsonl")
    said = run("compile", "--data", "stars.jsonl", "--out", "programs/mine")
    assert "cross-validation" in said
    assert ("nothing is compiled" in said) == (count < 60)
    shown = ["gallery", "photos", "--out", "culled", "--program", "programs/mine", "--preview", "0"]
    assert "by the standard of programs/mine" in run(*shown)
    assert "by the standard of programs/mine" in (tmp_path / "culled" / "gallery.html").read_text("utf-8")
    Path("saved.json").write_text(json.dumps(corrections(tmp_path / "culled", corrected)), "utf-8")
    run(*shown, "--decisions", "saved.json")
    said = run("compile", "--data", "culled", "--out", "programs/second")
    assert f"of {corrected} decisions and the ratings in files" in said
    assert "you agreed with" in said
