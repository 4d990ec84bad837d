"""The gallery's command: groups, the best of each, verdicts, the table, sidecars, decisions, copies, and attacks."""

import errno
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import textwrap
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageFilter
from scipy import ndimage
from skimage import data

from agentic_iqa.__main__ import main as agentic_iqa
from data.decisions import Decision, Decisions
from program import AgenticIQA
from program.gallery import picture as picturing
from program.gallery.__main__ import main
from program.gallery.choice import Choosing, choose, groups_of
from program.gallery.picture import Picture
from program.gallery.sidecars import write_sidecar
from program.images import decoding as decode_module
from program.images import store
from program.images.detail import detail_of
from program.images.packets import Fields, stated_in
from program.images.stated import bursts, sidecar_of, taken_at
from program.running.row import Row
from tests.tables import read_csv, read_lines

pytest.importorskip("imagehash", reason="the extra [gallery] is not installed")

START = datetime(2026, 5, 1, 10, 0, 0)
FLAGGED = (
    '<rdf:Description rdf:about="" xmlns:xmpDM="http://ns.adobe.com/xmp/1.0/DynamicMedia/" xmlns:rdf='
    '"http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmpDM:pick="-1"/>'
)
"""Rejected in Lightroom."""


def rating_in(packet: bytes) -> int | None:
    return stated_in(packet).rating


def save(image: Image.Image, path: Path, at: datetime | None = None, **options) -> None:
    exif = Image.Exif()
    if at is not None:
        exif[0x8769] = {36867: f"{at:%Y:%m:%d %H:%M:%S}"}
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, exif=exif, **({"quality": 92} | options))


def burst(photo: np.ndarray, folder: Path, name: str, at: datetime) -> None:
    """Write a photograph as it is, softer, darker and compressed, a second apart each."""
    image = Image.fromarray(photo).convert("RGB").resize((320, 240))
    moved = image.crop((8, 6, 312, 236))
    variants = {
        "a": (image, 92), "b": (moved.filter(ImageFilter.GaussianBlur(2)), 92),
        "c": (moved.point(lambda value: value * 0.45), 92), "d": (image, 12),
    }  # fmt: skip
    for number, (letter, (variant, quality)) in enumerate(variants.items()):
        save(variant, folder / f"{name}_{letter}.jpg", at + timedelta(seconds=number), quality=quality)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two bursts and two other photographs."""
    root = tmp_path_factory.mktemp("pictures") / "day"
    burst(data.coffee(), root, "coffee", START)
    burst(data.chelsea(), root, "cat", START + timedelta(minutes=5))
    save(Image.fromarray(data.astronaut()).resize((256, 256)), root / "astronaut.jpg", START + timedelta(minutes=9))
    save(Image.fromarray(data.rocket()).resize((320, 240)), root / "rocket.jpg")
    return root


def rows_of(out: Path) -> dict[str, dict]:
    return {row["file"]: row for row in read_lines(out / "gallery.jsonl")}


@pytest.fixture(scope="module")
def gallery(folder, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("gallery")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTICIQA_CACHE_DIR", str(out / "cache"))
        assert main([str(folder), "--out", str(out)]) == 0
    return out


@pytest.fixture
def copy(folder, gallery, tmp_path) -> tuple[Path, Path]:
    """The folder and its gallery, to be changed."""
    shutil.copytree(folder, tmp_path / "day")
    shutil.copytree(gallery, tmp_path / "out")
    return tmp_path / "day", tmp_path / "out"


@pytest.fixture
def judged(monkeypatch) -> list[str]:
    """The names of the pictures that are judged."""
    names: list[str] = []
    row = picturing.Taking.row
    monkeypatch.setattr(picturing.Taking, "row", lambda self, request: names.append(request.id) or row(self, request))
    return names


# Groups, the best, verdicts, the table


@pytest.mark.spec("issue-50/groups-and-best")
def test_bursts_are_grouped_and_the_picture_as_it_was_taken_is_best(gallery):
    rows = rows_of(gallery)
    for name in ("coffee", "cat"):
        own = [row for file, row in rows.items() if file.startswith(name)]
        assert len({row["group"] for row in own} - {None}) == 1
        best = next(row for row in own if row["best_of_group"])
        assert (best["file"], best["rank"], best["verdict"]) == (f"{name}_a.jpg", 1, "keep")
        assert sorted(row["rank"] for row in own) == [1, 2, 3, 4]
        assert best["reason"].startswith("sharp")
        assert rows[f"{name}_b.jpg"]["reason"].startswith("softer")
        assert "darker" in rows[f"{name}_c.jpg"]["reason"]
        assert rows[f"{name}_b.jpg"]["verdict"] == "reject"
        assert rows[f"{name}_b.jpg"]["suggested_rating"] == 1
    assert [rows[f]["group"] for f in ("astronaut.jpg", "rocket.jpg")] == [None, None]
    assert rows["coffee_a.jpg"]["taken_at"] == "2026-05-01T10:00:00"
    assert rows["rocket.jpg"]["taken_at"] is None


@pytest.mark.spec("issue-50/table")
def test_the_table_has_the_rows_columns_and_what_culling_adds(gallery):
    lines = read_csv(gallery / "gallery.csv")
    added = [
        "file", "sha256", "taken_at", "rank", "best_of_group", "verdict", "reason", "clipped_high", "clipped_low",
        "user_rating", "user_rating_confirms", "suggested_rating", "xmp_state",
    ]  # fmt: skip
    assert list(lines[0]) == [*Row.model_fields, *added]
    assert [line["file"] for line in lines][:5] == [*(f"coffee_{letter}.jpg" for letter in "adbc"), "cat_a.jpg"] or (
        [line["file"][:6] for line in lines][:4] == ["coffee"] * 4
    )
    assert all(line["reason"] for line in lines)


@pytest.mark.spec("issue-50/same-score")
def test_a_pictures_score_is_that_of_assess(folder, gallery):
    assert rows_of(gallery)["cat_a.jpg"]["score"] == AgenticIQA()(image=folder / "cat_a.jpg").quality_score


@pytest.mark.spec("issue-50/same-score")
def test_a_cameras_picture_is_decoded_once_and_has_the_score_of_assess(tmp_path, monkeypatch):
    folder, decoded = tmp_path / "day", []
    large = Image.fromarray(data.chelsea()).resize((3600, 2400))
    save(large, folder / "a.jpg")
    decode = store.decode_bounded
    monkeypatch.setattr(store, "decode_bounded", lambda *a, **given: decoded.append(a[1]) or decode(*a, **given))
    assert main([str(folder), "--out", str(tmp_path / "out"), "--no-cache"]) == 0
    assert [source for source in decoded if not source.startswith("pixels:")] == [str(folder / "a.jpg")]
    row = rows_of(tmp_path / "out")["a.jpg"]
    assert row["score"] == AgenticIQA()(image=folder / "a.jpg").quality_score
    # Its detail is that of full size, not of the pixels that are judged.
    whole = decode_module.decode((folder / "a.jpg").read_bytes(), "", detailed=True)
    assert (row["clipped_high"], row["clipped_low"]) == (whole.detail.clipped_high, whole.detail.clipped_low)
    smaller = decode_module.decode((folder / "a.jpg").read_bytes(), "", at_most=2**20, detailed=True)
    assert smaller.detail == whole.detail
    assert smaller.pixels.shape < whole.pixels.shape


def test_detail_is_that_of_the_picture_as_it_is_shown():
    pixels, found = data.chelsea(), []
    for orientation, stored in ((1, pixels), (3, pixels[::-1, ::-1]), (6, pixels[:, ::-1].transpose(1, 0, 2))):
        exif, file = Image.Exif(), io.BytesIO()
        exif[0x0112] = orientation
        Image.fromarray(np.ascontiguousarray(stored)).save(file, "PNG", exif=exif)
        found.append(decode_module.decode(file.getvalue(), "", detailed=True).detail)
    assert found[0] == found[1] == found[2]
    sharp_at = np.full((400, 600, 3), 90, np.uint8)
    sharp_at[100:150, 400:450] = np.indices((50, 50)).sum(axis=0)[..., None] % 2 * 200
    across, down = detail_of(600, 400, lambda top, bottom: sharp_at[top:bottom]).focus
    assert 400 <= across * 600 <= 450
    assert 100 <= down * 400 <= 150
    assert detail_of(3, 2, lambda top, bottom: sharp_at[top:bottom, :3]).focus == (0.5, 0.5)


@pytest.mark.spec("issue-50/resume")
def test_the_same_command_judges_new_and_changed_pictures_only(copy, judged):
    folder, out = copy
    save(Image.fromarray(data.coffee()).resize((300, 200)), folder / "new.jpg")
    save(Image.fromarray(data.astronaut()).resize((128, 128)), folder / "rocket.jpg")
    (folder / "cat_d.jpg").unlink()
    assert main([str(folder), "--out", str(out)]) == 0
    assert {"new.jpg", "rocket.jpg"} <= set(judged)
    # The copied folder's files have new times where the system keeps no nanoseconds; else nothing more is judged.
    assert len(rows_of(out)) == 10
    judged.clear()
    assert main([str(folder), "--out", str(out), "--keep", "2", "--group", "time"]) == 0
    assert judged == []
    rows = [row for row in rows_of(out).values() if row["group"]]
    assert {row["verdict"] for row in rows if row["rank"] <= 2} <= {"keep", "look"}
    assert not {row["verdict"] for row in rows if row["rank"] > 2} & {"keep", "look"}


def test_time_look_and_off_group_differently():
    def made(seconds, bits, look):
        class One:
            frame = np.zeros((24, 24), np.uint8)
            time = None if seconds is None else START + timedelta(seconds=seconds)
            vector = np.array(look, np.float32)

        One.bits = np.array([bits, 0, 0, 0], np.uint64)
        return One()

    pictures = [
        made(0, 0, [1, 0]),
        made(2, 1, [1, 0]),
        made(4, 2**40 - 1, [0, 1]),
        made(900, 0, [1, 0]),
        made(None, 0, [1, 0]),
    ]
    assert groups_of(pictures, "off", 3) == []
    assert groups_of(pictures, "time", 3) == [[0, 1, 2]]
    assert groups_of(pictures, "look", 3) == [[0, 1, 3, 4]]
    assert groups_of(pictures, "auto", 3) == [[0, 1, 3, 4]]
    assert groups_of(pictures, "auto", 0.5) == [[0, 1, 3, 4]]
    assert groups_of(pictures[:1], "auto", 3) == []


@pytest.mark.spec("issue-50/groups-and-best")
def test_without_times_a_moved_frame_is_of_the_same_shot(rng):
    scene, other = (ndimage.gaussian_filter(rng.uniform(0, 255, (32, 32)), 2) for _ in range(2))

    def made(frame, look, at=None):
        return SimpleNamespace(
            frame=frame.astype(np.uint8), bits=np.zeros(4, np.uint64), time=at, vector=np.array(look, np.float32)
        )

    # As far apart as pictures of one burst may lie, and farther than others.
    pictures = [
        made(scene[:24, :24], [1, 0]), made(scene[3:27, 4:28] * 0.6, [0.1, 0.995]), made(other[:24, :24], [0.1, -0.995])
    ]  # fmt: skip
    assert groups_of(pictures, "look", 3) == groups_of(pictures, "auto", 3) == [[0, 1]]
    for picture, hour in zip(pictures, (8, 9, 10), strict=True):
        picture.time = START.replace(hour=hour)
    assert groups_of(pictures, "auto", 3) == []
    assert groups_of(pictures, "look", 3) == [[0, 1]]


def test_a_picture_that_was_taken_just_at_the_gap_is_of_the_same_burst():
    times = [START + timedelta(seconds=seconds) for seconds in (0, 3, 6, 9.1)]
    assert bursts(times, 3.0).tolist() == [0, 0, 0, 1]


def test_a_picture_without_a_time_is_grouped_by_its_look_with_one_that_has_a_time():
    def made(angle, at):
        vector = np.array([np.cos(angle), np.sin(angle)], np.float32)
        return SimpleNamespace(
            frame=np.zeros((24, 24), np.uint8), bits=np.zeros(4, np.uint64), time=at, vector=vector
        )  # fmt: skip

    # 0.7 apart: near enough by their look alone, too far for pictures that were taken at different times.
    apart = float(np.arccos(1 - 0.7))
    assert groups_of([made(0, START), made(apart, None)], "auto", 3) == [[0, 1]]
    assert groups_of([made(0, None), made(apart, START)], "auto", 3) == [[0, 1]]
    assert groups_of([made(0, START), made(apart, START + timedelta(hours=1))], "auto", 3) == []


def test_no_picture_joins_a_group_unless_it_is_near_to_all_in_it(rng):
    class One:
        time, frame = None, np.zeros((24, 24), np.uint8)

        def __init__(self, angle):
            self.vector = np.array([np.cos(angle), np.sin(angle)], np.float32)
            self.bits = np.zeros(4, np.uint64)

    chain = [One(angle) for angle in np.linspace(0, np.pi, 12)]
    found = groups_of(chain, "look", 3)
    assert max(map(len, found)) < 12
    for group in found:
        assert all(1 - chain[a].vector @ chain[b].vector < 0.77 for a in group for b in group)


def test_exifs_times_are_read_whatever_is_in_them():
    assert taken_at({36867: "2026:05:01 10:20:30", 37521: "5"}) == "2026-05-01T10:20:30.500000"
    assert taken_at({36868: "2026:05:01 10:20:30\0"}) == "2026-05-01T10:20:30"
    for broken in ("", "0000:00:00 00:00:00", "2026:13:41 99:00:00", b"\xff\xfe", 7, "2026:05:01"):
        assert taken_at({36867: broken}) is None
    assert bursts([None, START], 1).tolist() == [-1, 0]


def taken(name: str, *, score=3.5, spread=0.2, sharp=8.0, **more) -> Picture:
    facts = {
        "sharp": (sharp, sharp, 8.0),
        "light": 0.45,
        "subject": 0.8,
        "width": 400,
        "height": 300,
        "sha256": name * 64,
    }
    return Picture(
        id=name, file=name, status="ok", score=score, low=score - spread, high=score + spread, **facts | more
    )


@pytest.mark.spec("issue-50/verdicts")
def test_verdicts_are_no_surer_than_asked_and_the_best_is_never_rejected():
    pictures = [
        taken("a", score=1.5, sharp=9.0), taken("b", score=1.4, sharp=9.1, spread=1.0),
        taken("c", score=1.3, sharp=6.0), taken("d", score=1.5),
        taken("e", score=2.3, spread=1.5), taken("f", score=4.0),
    ]  # fmt: skip
    found = {picture.id: picture for picture in choose(pictures, [[0, 1, 2]], Decisions(), Choosing())}
    assert found["b"].best_of_group
    assert found["b"].verdict == "look"
    assert "score 1.4 of 5" in found["b"].reason
    assert (found["c"].verdict, found["d"].verdict, found["e"].verdict, found["f"].verdict) == (
        "reject", "reject", "look", "keep",
    )  # fmt: skip
    assert "likely 0.8 to 3.8" in found["e"].reason
    # What is good stands before a fault, where the picture is kept.
    alone = taken("a", score=3.9, reasoning="Slight noise roughens the whole picture.")
    (kept,) = choose([alone], [], Decisions(), Choosing())
    assert (kept.verdict, kept.reason) == ("keep", "Good enough: 3.9. Slight noise roughens the whole picture.")
    both = choose([taken("a", sharp=9.0), taken("b", sharp=8.6)], [[0, 1]], Decisions(), Choosing(keep=2))
    assert [picture.reason for picture in both] == ["sharpest of 2", "among the best 2 of 2; softer"]
    same = choose([taken("a"), taken("b")], [[0, 1]], Decisions(), Choosing())
    assert (same[0].verdict, same[0].reason) == ("keep", "best of its group")
    close = choose([taken("a", sharp=8.0), taken("b", sharp=8.3)], [[0, 1]], Decisions(), Choosing(sure=0.8))
    assert [picture.verdict for picture in close] == ["alternate", "keep"]
    surer = choose([taken("a", sharp=8.0), taken("b", sharp=9.5)], [[0, 1]], Decisions(), Choosing(sure=0.95))
    assert [picture.verdict for picture in surer] == ["alternate", "keep"]
    assert choose(list(surer), [[0, 1]], Decisions(), Choosing(sure=0.8))[0].verdict == "reject"


def test_one_black_frame_of_a_burst_does_not_make_a_darker_picture_its_best():
    lights = {"a": 0.45, "b": 0.45, "c": 0.45, "d": 0.3, "e": 0.0}
    # All as sharp in their own light, so that exposure alone tells them apart.
    pictures = [taken(name, light=light, sharp=8.0 + 2 * np.log2(light + 0.02)) for name, light in lights.items()]
    found = choose(pictures, [[0, 1, 2, 3, 4]], Decisions(), Choosing())
    assert [picture.id for picture in sorted(found, key=lambda each: each.rank)] == ["a", "b", "c", "d", "e"]


@pytest.mark.spec("issue-50/decisions")
def test_what_a_person_decided_stands_before_what_was_measured():
    pictures = [taken("a", sharp=9.0), taken("b", sharp=8.0), taken("c", sharp=7.0)]
    mine = Decisions(
        pictures={
            "a": Decision(sha256="a" * 64, verdict="reject"), "c": Decision(sha256="c" * 64, best=True, stars=4),
            "b": Decision(sha256="0" * 64, verdict="reject"),  # of another picture of that name
        }
    )  # fmt: skip
    a, b, c = choose(pictures, [[0, 1, 2]], mine, Choosing(keep=2))
    assert (a.verdict, a.reason) == ("reject", "your decision (the program: alternate, about as good as the best)")
    assert (b.verdict, c.verdict, c.rank, c.best_of_group, c.user_rating) == ("keep", "keep", 1, True, 4)
    out = Decisions(pictures={"a": Decision(sha256="a" * 64, verdict="reject")})
    a, b, c = choose(pictures, [[0, 1, 2]], out, Choosing())
    assert [(each.rank, each.best_of_group) for each in (a, b, c)] == [(3, False), (1, True), (2, False)]
    assert (b.verdict, b.reason) == ("keep", "sharper than 1 of 2")  # not against the one that went


def test_flags_that_make_no_sense_are_told_in_one_line(folder, tmp_path, capsys, monkeypatch):
    for words, told in (
        ([str(tmp_path / "none"), "--out", str(tmp_path / "o")], "is no folder of this machine"),
        ([str(folder), "--out", str(folder)], "holds the pictures; give another folder"),
        ([str(folder), "--out", str(folder / "cat_a.jpg")], "is a file; name a folder"),
        ([str(folder), "--out", str(tmp_path / "o"), "--apply", "copy"], "--to: goes with --apply copy"),
        ([str(folder), "--out", str(tmp_path / "o"), "--apply", "copy", "--to", str(folder / "x")], "lies among the"),
        ([str(folder), "--out", str(tmp_path / "o"), "--decisions", str(folder / "cat_a.jpg")], "none of the page's"),
        ([str(folder), "--out", str(tmp_path / "o"), "--glob", "*.tif"], "holds no image to judge"),
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
    with pytest.raises(SystemExit):
        main([str(folder), "--out", "o", "--gap", "soon"])
    monkeypatch.setattr("program.gallery.__main__.find_spec", lambda _: None)
    assert main([str(folder), "--out", str(tmp_path / "o")]) == 2
    assert "pip install 'agentic-iqa[gallery]'" in capsys.readouterr().err


# Sidecars

OTHERS = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <!-- kept -->
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="uuid:7" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="2"
    xmlns:darktable="http://darktable.sf.net/" darktable:auto_presets_applied="1">
   <darktable:history><rdf:Seq><rdf:li darktable:operation="exposure" darktable:num="0"/></rdf:Seq></darktable:history>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>"""
SAID = Fields(4, label="Green", keywords=["aiqa:soft", "aiqa:<noise> & more"])


def read_by_exiv2(path: Path) -> str:
    if shutil.which("exiv2") is None:
        pytest.skip("no exiv2 on this machine (apt-get install exiv2)")
    told = subprocess.run(["exiv2", "-pa", str(path)], capture_output=True, text=True, check=False)  # noqa: S607
    assert told.returncode == 0, told.stderr
    return " ".join(told.stdout.split())


@pytest.mark.spec("issue-50/sidecars")
def test_a_new_sidecar_is_read_whole_by_exiv2(tmp_path):
    image = tmp_path / "IMG_1.CR3"
    assert write_sidecar(image, SAID, "new", "basename", dry=True) == "written"
    assert list(tmp_path.iterdir()) == []
    assert write_sidecar(image, SAID, "new", "basename") == "written"
    assert [path.name for path in tmp_path.iterdir()] == ["IMG_1.xmp"]
    assert rating_in((tmp_path / "IMG_1.xmp").read_bytes()) == 4
    assert write_sidecar(image, SAID, "merge", "basename") == "kept"
    assert sidecar_of(image, "full").name == "IMG_1.CR3.xmp"
    told = read_by_exiv2(tmp_path / "IMG_1.xmp")
    for words in ("Xmp.xmp.Rating XmpText 1 4", "Xmp.xmp.Label XmpText 5 Green", "aiqa:soft, aiqa:<noise> & more"):
        assert words in told


@pytest.mark.spec("issue-50/sidecars-of-others")
def test_a_sidecar_of_another_program_keeps_all_it_has(tmp_path):
    image, other = tmp_path / "IMG_1.jpg", tmp_path / "IMG_1.jpg.xmp"
    other.write_text(OTHERS, "utf-8")
    assert write_sidecar(image, SAID, "new", "basename") == "kept"
    assert other.read_text("utf-8") == OTHERS
    assert write_sidecar(image, SAID, "merge", "basename") == "merged"
    after = other.read_text("utf-8")
    start = next(n for n, (a, b) in enumerate(zip(after, OTHERS, strict=False)) if a != b)
    assert after.startswith(OTHERS[:start])
    assert after.endswith(OTHERS[start:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["IMG_1.jpg.xmp"]
    assert rating_in(after.encode()) == 2
    assert write_sidecar(image, SAID, "merge", "full") == "kept"
    told = read_by_exiv2(other)
    for words in (
        "Xmp.xmp.Rating XmpText 1 2",
        "Xmp.xmp.Label XmpText 5 Green",
        "operation XmpText 8 exposure",
        "aiqa:soft",
    ):
        assert words in told


@pytest.mark.spec("issue-50/sidecars-of-others")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"<x:xmpmeta", "is no XML"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><x/>', "declares a document type"),
        (b'<x:xmpmeta xmlns:x="adobe:ns:meta/"/>', "has no <rdf:RDF>"),
        (OTHERS.replace("\ufeff", "").encode("utf-32"), "is no XML"),
    ],
)
def test_an_unreadable_sidecar_is_told_and_left_alone(tmp_path, text, told):
    (tmp_path / "a.xmp").write_bytes(text)
    with pytest.raises(ValueError, match=told):
        write_sidecar(tmp_path / "a.jpg", SAID, "merge", "basename")
    assert (tmp_path / "a.xmp").read_bytes() == text
    (tmp_path / "b.xmp").symlink_to(tmp_path / "elsewhere.xmp")
    with pytest.raises(ValueError, match="is a link"):
        write_sidecar(tmp_path / "b.jpg", SAID, "new", "basename")
    assert not (tmp_path / "elsewhere.xmp").exists()


def test_properties_are_found_in_every_spelling():
    for rating in ('xmp:Rating="3">', "><xmp:Rating>3</xmp:Rating>", "><xmp:Rating> 3.0 </xmp:Rating>"):
        head = '<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><r:Description r:about="" '
        text = f'{head} xmlns:xmp="http://ns.adobe.com/xap/1.0/" {rating}</r:Description></r:RDF>'
        assert rating_in(text.encode()) == 3
    assert rating_in(b"no xml") is None


@pytest.mark.spec("issue-50/sidecars")
def test_the_command_writes_sidecars_by_decisions_and_tells_what_it_could_not(copy, capsys):
    folder, out = copy
    rows = rows_of(out)
    picks = {
        name: {"sha256": rows[name]["sha256"], **entry}
        for name, entry in (("cat_b.jpg", {"verdict": "reject"}), ("cat_c.jpg", {"stars": 5}))
    }
    (out.parent / "d.json").write_text(json.dumps({"decisions": "agentic-iqa", "version": 1, "pictures": picks}))
    save(Image.fromarray(data.rocket()).resize((320, 240)), folder / "rocket.png")
    (folder / "coffee_a.xmp").write_text("broken", "utf-8")
    words = [str(folder), "--out", str(out), "--decisions", str(out.parent / "d.json"), "--xmp", "merge"]
    assert main([*words, "--dry-run"]) == 1
    assert [path.name for path in folder.glob("*.xmp")] == ["coffee_a.xmp"]
    capsys.readouterr()
    assert main(words) == 1
    told = capsys.readouterr()
    assert "coffee_a.jpg: sidecar 'coffee_a.xmp': is no XML" in told.err
    assert "rocket.png: sidecar of 'rocket.png': is that of 'rocket.jpg', too; use --xmp-name full" in told.err
    assert told.err.count("\n") == 2
    assert "sidecars: 9 written" in told.out
    ratings = {name: rating_in((folder / f"{name}.xmp").read_bytes()) for name in ("cat_b", "cat_c", "coffee_b")}
    # What the program suggests is nobody's rating until somebody changes it.
    assert ratings == {"cat_b": -1, "cat_c": 5, "coffee_b": None}
    suggested = (folder / "coffee_b.xmp").read_text("utf-8")
    assert 'xmp:Rating="1"' in suggested
    (folder / "coffee_b.xmp").write_text(suggested.replace('xmp:Rating="1"', 'xmp:Rating="2"'), "utf-8")
    after = rows_of(out)
    assert after["coffee_a.jpg"]["xmp_state"].startswith("error: ")
    assert (after["cat_a.jpg"]["xmp_state"], after["cat_c.jpg"]["user_rating"]) == ("written", 5)
    assert (folder / "coffee_a.xmp").read_text("utf-8") == "broken"
    # The decisions were kept; what a sidecar has by now is read as the person's.
    assert main([str(folder), "--out", str(out), "--xmp", "new"]) == 1
    rows = rows_of(out)
    assert rows["cat_b.jpg"]["verdict"] == "reject"
    assert (rows["cat_a.jpg"]["xmp_state"], rows["cat_a.jpg"]["user_rating"]) == ("kept", None)
    assert rows["coffee_b.jpg"]["user_rating"] == 2
    # A rating that the page took back counts no more, though the sidecar has it.
    picks = {"cat_b.jpg": {"sha256": rows["cat_b.jpg"]["sha256"], "stars": 0}}
    (out.parent / "d.json").write_text(json.dumps({"decisions": "agentic-iqa", "version": 1, "pictures": picks}))
    assert main([str(folder), "--out", str(out), "--decisions", str(out.parent / "d.json")]) == 0
    assert rows_of(out)["cat_b.jpg"]["reason"].startswith("softer")


@pytest.mark.spec("issue-72/no-circular-labels")
def test_stars_that_only_confirm_a_suggestion_are_kept_in_sidecars_and_are_no_labels(copy, tmp_path, capsys):
    folder, out = copy
    rows = rows_of(out)
    shown = {name: {"verdict": row["verdict"], "stars": row["suggested_rating"]} for name, row in rows.items()}
    own = 5 - (shown["astronaut.jpg"]["stars"] == 5)
    picks = {
        "coffee_a": {"stars": shown["coffee_a.jpg"]["stars"], "suggested": shown["coffee_a.jpg"]},
        "astronaut": {"stars": own, "suggested": shown["astronaut.jpg"]},
        "cat_b": {"verdict": "reject", "suggested": shown["cat_b.jpg"]},
        "cat_c": {"stars": 5},  # of a page that did not keep what it showed
    }
    assert main([str(folder), "--out", str(out), *decide(tmp_path / "d.json", out, **picks), "--xmp", "new"]) == 0

    def stars(*words: str) -> tuple[dict[str, float], str]:
        made = tmp_path / "stars.jsonl"
        code = agentic_iqa(["data", "prepare", "stars", str(folder), "--out", str(made), "--force", *words])
        said = " ".join("".join(capsys.readouterr()).split())
        return {row["id"]: row["mos"] for row in read_lines(made)} if code == 0 else {}, said

    capsys.readouterr()
    labels, said = stars("--rejects-as", "1")
    assert labels == {"astronaut.jpg": own}
    assert "9 have the rating that a gallery suggested: as labels they would teach the program its own answers" in said
    # A person's later change counts, of stars or by a flag.
    for name, old, new in (("coffee_b", 'Rating="1"', 'Rating="2"'), ("coffee_a", "<rdf:Desc", f"{FLAGGED}<rdf:Desc")):
        sidecar = folder / f"{name}.xmp"
        sidecar.write_text(sidecar.read_text("utf-8").replace(old, new, 1), "utf-8")
    assert stars("--rejects-as", "1")[0] == {"astronaut.jpg": own, "coffee_b.jpg": 2, "coffee_a.jpg": 1}
    # To another gallery what was confirmed is the person's rating, and still no label.
    other = tmp_path / "other"
    assert main([str(folder), "--out", str(other)]) == 0
    again = rows_of(other)
    assert [again[f"{name}.jpg"]["user_rating"] for name in ("cat_b", "cat_c", "astronaut", "cat_a")] == [
        -1,
        5,
        own,
        None,
    ]
    assert again["cat_b.jpg"]["verdict"] == "reject"
    assert again["cat_c.jpg"]["user_rating_confirms"] is True
    third = shutil.copytree(other, tmp_path / "third")
    decided = decide(tmp_path / "e.json", third, cat_c={"stars": 2})
    assert main([str(folder), "--out", str(third), *decided]) == 0
    assert rows_of(third)["cat_c.jpg"]["user_rating_confirms"] is None  # the mark was of the 5 stars
    (other / "decisions.json").write_text('{"decisions": "agentic-iqa", "version": 1, "pictures": {}}', "utf-8")
    capsys.readouterr()
    assert agentic_iqa(["compile", "--data", str(other), "--dry-run", "--out", str(tmp_path / "program")]) == 0
    assert "2 scores and 0 pairs are labels" in " ".join(capsys.readouterr().err.split())
    # Where there is nothing else, there is nothing to learn from.
    for path in folder.iterdir():
        if path.stem in {"astronaut", "coffee_a", "coffee_b"}:
            path.unlink()
    assert stars()[1].startswith(f"error: {str(folder)!r}: none of 7 photographs has a rating of a person's; 7 have")


@pytest.mark.skipif(os.name == "nt", reason="no pipes with names on Windows")
@pytest.mark.parametrize("flags", [[], ["--xmp", "new"], ["--xmp", "merge", "--dry-run"]])
def test_what_lies_there_as_a_sidecar_and_is_none_is_one_line(copy, capsys, flags):
    folder, out = copy
    secret = folder.parent / "secret.xmp"
    secret.write_text(OTHERS, "utf-8")
    os.mkfifo(folder / "cat_a.xmp")
    (folder / "cat_b.jpg.xmp").symlink_to("/dev/zero")
    (folder / "cat_c.xmp").symlink_to(secret)
    (folder / "cat_d.xmp").symlink_to(folder / "cat_d.xmp")
    (folder / "rocket.xmp").mkdir()
    (folder / "astronaut.xmp").touch()
    assert main([str(folder), "--out", str(out), *flags]) == 1
    told = capsys.readouterr().err.splitlines()
    assert sorted(line.partition(": cannot")[0].partition(": is")[0] for line in told) == [
        "cat_a.jpg: sidecar 'cat_a.xmp'", "cat_b.jpg: sidecar 'cat_b.jpg.xmp'", "cat_c.jpg: sidecar 'cat_c.xmp'",
        "cat_d.jpg: sidecar 'cat_d.xmp'", "rocket.jpg: sidecar 'rocket.xmp'",
    ]  # fmt: skip
    rows = rows_of(out)
    assert {rows[name]["user_rating"] for name in ("cat_b.jpg", "cat_c.jpg")} == {None}  # OTHERS says 2
    assert secret.read_text("utf-8") == OTHERS
    assert (folder / "astronaut.xmp").stat().st_size > 0 or flags != ["--xmp", "new"]


def test_a_rating_of_0_gives_way_to_the_suggestion_and_one_in_capitals_is_seen(copy):
    folder, out = copy
    unrated = OTHERS.replace('xmp:Rating="2"', "xmp:Rating='0'")
    (folder / "coffee_b.jpg.XMP").write_text(unrated, "utf-8")
    (folder / "coffee_c.XMP").write_text(OTHERS, "utf-8")
    assert main([str(folder), "--out", str(out), "--xmp", "merge"]) == 0
    rows = rows_of(out)
    text = (folder / "coffee_b.jpg.XMP").read_text("utf-8")
    suggested = rows["coffee_b.jpg"]["suggested_rating"]
    assert text.startswith(unrated.replace("Rating='0'", f"Rating='{suggested}'").partition(" </rdf:RDF>")[0])
    assert (rows["coffee_b.jpg"]["xmp_state"], rows["coffee_b.jpg"]["user_rating"]) == ("merged", None)
    assert (rows["coffee_c.jpg"]["xmp_state"], rows["coffee_c.jpg"]["user_rating"]) == ("merged", 2)
    assert not list(folder.glob("coffee_[bc]*.xmp"))
    assert main([str(folder), "--out", str(out), "--xmp", "merge"]) == 0
    assert {row["xmp_state"] for row in rows_of(out).values()} == {"kept"}


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_what_killed_runs_left_goes_with_the_next_run(copy, tmp_path, flags):
    folder, out = copy
    goal, left = tmp_path / "best", ".cat_a.xmp.0123abcd.agentic-iqa.tmp"
    goal.mkdir()
    places = [folder / left, out / left, out / "thumbs" / left, goal / left]
    for place in places:
        place.write_bytes(b"half")
    (folder / ".cat_a.xmp.mine.tmp").write_bytes(b"mine")
    assert main([str(folder), "--out", str(out), "--apply", "copy", "--to", str(goal), *flags]) == 0
    assert [place.exists() for place in places] == [bool(flags)] * 4
    assert (folder / ".cat_a.xmp.mine.tmp").exists()


# What a person decided

RATED = OTHERS.replace('xmp:Rating="2"', 'xmp:Rating="{}"')


def decide(path: Path, gallery: Path, **entries) -> list[str]:
    """Save decisions on pictures of a gallery, by their names without ".jpg", and return the flag."""
    rows = rows_of(gallery)
    pictures = {f"{name}.jpg": {"sha256": rows[f"{name}.jpg"]["sha256"], **entry} for name, entry in entries.items()}
    path.write_text(json.dumps({"decisions": "agentic-iqa", "version": 1, "pictures": pictures}), "utf-8")
    return ["--decisions", str(path)]


def shown_of(out: Path) -> dict[str, dict]:
    """Return what a gallery's page holds of each picture."""
    text = (out / "gallery.html").read_text("utf-8").split('<script type="application/json" id="data">')[1]
    return {each["file"]: each for each in json.loads(text.split("</script>")[0])["pictures"]}


@pytest.mark.spec("issue-65/person-decides")
def test_a_person_decides_by_verdict_stars_or_a_rating_in_file_or_sidecar(copy, tmp_path, capsys):
    folder, out = copy
    with Image.open(folder / "rocket.jpg") as image:
        image.save(folder / "rocket.jpg", xmp=RATED.format(-1).encode(), quality=92)
    (folder / "coffee_a.xmp").write_text(RATED.format(-1), "utf-8")
    (folder / "coffee_b.xmp").write_text(RATED.format(3), "utf-8")
    (folder / "cat_b.xmp").write_text(RATED.format(2), "utf-8")
    picks = {"cat_c": {"verdict": "keep"}, "coffee_c": {"stars": 4}, "astronaut": {"verdict": "reject", "stars": 5}}
    mine = decide(tmp_path / "d.json", out, **picks)
    goal = tmp_path / "best"
    capsys.readouterr()
    words = [str(folder), "--out", str(out), *mine, "--xmp", "merge", "--apply", "copy", "--to", str(goal)]
    assert main(words) == 0
    rows = rows_of(out)
    rejected = {name: rows[f"{name}.jpg"] for name in ("rocket", "coffee_a", "astronaut")}
    kept = {name: rows[f"{name}.jpg"] for name in ("cat_c", "coffee_b", "coffee_c")}
    for verdict, label, own in (("reject", "Red", rejected), ("keep", "Green", kept)):
        for name, row in own.items():
            assert (name, row["verdict"]) == (name, verdict)
            assert row["reason"].startswith("your decision (the program: ")
            assert f'xmp:Label="{label}"' in (folder / f"{name}.xmp").read_text("utf-8")
            assert (goal / f"{name}.jpg").exists() == (verdict == "keep")
    assert [row["user_rating"] for row in rejected.values()] == [-1, -1, -1]
    assert [row["user_rating"] for row in kept.values()] == [None, 3, 4]
    assert (rows["coffee_a.jpg"]["rank"], rows["coffee_a.jpg"]["best_of_group"]) == (4, False)
    # What is kept without stars is suggested as many as what is kept by stars; two stars decide nothing.
    assert rows["cat_c.jpg"]["suggested_rating"] >= 3
    assert (rows["cat_b.jpg"]["verdict"], rows["cat_b.jpg"]["user_rating"]) == ("reject", 2)
    assert "your decision" not in rows["cat_b.jpg"]["reason"]
    lines = {line["file"]: line for line in read_csv(out / "gallery.csv")}
    assert {name: line["verdict"] for name, line in lines.items()} == {name: r["verdict"] for name, r in rows.items()}
    counts = [sum(row["verdict"] == verdict for row in rows.values()) for verdict in ("keep", "alternate", "reject")]
    assert "{} keep · {} alternate · {} reject".format(*counts) in capsys.readouterr().out
    # The page decides by the same: from what the program said, the file's rating and what was decided.
    shown = shown_of(out)
    assert (shown["coffee_a.jpg"]["rating"], shown["coffee_c.jpg"]["rating"]) == (-1, None)
    said = shown["coffee_a.jpg"]
    assert rows["coffee_a.jpg"]["reason"] == f"your decision (the program: {said['verdict']}, {said['reason']})"


@pytest.mark.spec("issue-65/person-decides")
def test_a_rating_of_0_is_none(copy, tmp_path):
    folder, out = copy
    exif = Image.Exif()
    exif[0x4746] = 0
    with Image.open(folder / "rocket.jpg") as image:
        image.save(folder / "rocket.jpg", exif=exif, xmp=RATED.format(0).encode(), quality=92)
    (folder / "cat_b.xmp").write_text(RATED.format(0), "utf-8")
    (folder / "cat_a.jpg.xmp").write_text(RATED.format(0), "utf-8")
    (folder / "cat_a.xmp").write_text(RATED.format(4), "utf-8")
    (folder / "cat_c.xmp").write_text(RATED.format(4), "utf-8")
    assert main([str(folder), "--out", str(out), *decide(tmp_path / "d.json", out, cat_c={"stars": 0})]) == 0
    rows = rows_of(out)
    ratings = {name: rows[f"{name}.jpg"]["user_rating"] for name in ("rocket", "cat_b", "cat_c", "cat_a")}
    assert ratings == {"rocket": None, "cat_b": None, "cat_c": None, "cat_a": 4}
    assert rows["cat_b.jpg"]["suggested_rating"] == 1
    assert "your decision" not in rows["cat_c.jpg"]["reason"]


@pytest.mark.spec("issue-65/person-decides")
def test_a_decision_on_the_page_stands_before_a_rating(copy, tmp_path):
    folder, out = copy
    for name, rating in (("cat_a", -1), ("cat_b", 4), ("cat_c", -1), ("cat_d", -1), ("coffee_b", -1), ("rocket", -1)):
        (folder / f"{name}.xmp").write_text(RATED.format(rating), "utf-8")
    (folder / "cut.jpg").write_bytes((folder / "rocket.jpg").read_bytes()[:900])
    (folder / "cut.xmp").write_text(RATED.format(-1), "utf-8")
    picks = {
        "cat_a": {"verdict": "keep"}, "cat_b": {"verdict": "reject"}, "cat_c": {"stars": 5}, "cat_d": {"best": True},
        "coffee_b": {"stars": 0}, "rocket": {},
    }  # fmt: skip
    assert main([str(folder), "--out", str(out), *decide(tmp_path / "d.json", out, **picks)]) == 1
    rows = {name.removesuffix(".jpg"): row for name, row in rows_of(out).items()}
    told = {name: (rows[name]["verdict"], rows[name]["user_rating"]) for name in ("cat_a", "cat_b", "cat_c", "rocket")}
    assert told == {
        "cat_a": ("keep", None), "cat_b": ("reject", -1), "cat_c": ("keep", 5), "rocket": ("reject", -1)
    }  # fmt: skip
    assert (rows["cat_d"]["rank"], rows["cat_d"]["best_of_group"], rows["cat_d"]["user_rating"]) == (1, True, None)
    assert rows["coffee_b"]["user_rating"] is None
    assert rows["coffee_b"]["reason"].startswith("softer")
    # What cannot be read is no picture that could be rejected or kept.
    assert (rows["cut"]["verdict"], rows["cut"]["status"]) == ("look", "error")


@pytest.mark.spec("issue-65/person-decides")
def test_picked_pictures_are_kept_besides_the_best(copy, tmp_path):
    folder, out = copy
    before = {name: row["verdict"] for name, row in rows_of(out).items()}
    assert main([str(folder), "--out", str(out), *decide(tmp_path / "d.json", out, cat_b={"verdict": "keep"})]) == 0
    assert {name: row["verdict"] for name, row in rows_of(out).items()} == {**before, "cat_b.jpg": "keep"}
    assert rows_of(out)["cat_a.jpg"]["best_of_group"]


# Decisions that are kept


@pytest.mark.spec("issue-65/decisions-kept")
def test_decisions_that_a_file_does_not_name_stay_and_replaced_ones_are_kept_beside(copy, tmp_path):
    folder, out = copy
    kept = out / "decisions.json"

    def run(name: str, **entries) -> dict[str, str]:
        assert main([str(folder), "--out", str(out), *decide(tmp_path / name, out, **entries)]) == 0
        mine = {name: row for name, row in rows_of(out).items() if row["reason"].startswith("your decision")}
        return {name.removesuffix(".jpg"): row["verdict"] for name, row in mine.items()}

    def copies() -> list[str]:
        return sorted(path.name for path in out.glob("decisions.json*"))

    first = {"cat_a": {"verdict": "reject"}, "cat_b": {"verdict": "keep"}}
    assert run("a.json", **first) == {"cat_a": "reject", "cat_b": "keep"}
    # What only adds replaces nothing, and the same file again changes nothing.
    added = kept.read_bytes()
    assert run("b.json", coffee_b={"stars": 4}) == {"cat_a": "reject", "cat_b": "keep", "coffee_b": "keep"}
    assert copies() == ["decisions.json"]
    assert added != (old := kept.read_bytes())
    run("b.json", coffee_b={"stars": 4})
    assert kept.read_bytes() == old
    # An entry without anything takes back what was decided.
    assert run("c.json", cat_a={"verdict": None, "stars": None}) == {"cat_b": "keep", "coffee_b": "keep"}
    assert copies() == ["decisions.json", "decisions.json.1"]
    assert (out / "decisions.json.1").read_bytes() == old
    newer = kept.read_bytes()
    assert run("a.json", **first) == {"cat_a": "reject", "cat_b": "keep", "coffee_b": "keep"}
    assert (out / "decisions.json.1").read_bytes() == old
    assert (out / "decisions.json.2").read_bytes() == newer
    # A copy can be given back.
    assert main([str(folder), "--out", str(out), "--decisions", str(out / "decisions.json.2")]) == 0
    assert rows_of(out)["cat_a.jpg"]["verdict"] == "keep"


@pytest.mark.spec("issue-65/decisions-kept")
def test_a_run_that_is_killed_while_it_keeps_decisions_loses_none(copy, tmp_path, monkeypatch):
    folder, out = copy
    words = [str(folder), "--out", str(out)]
    assert main([*words, *decide(tmp_path / "a.json", out, cat_a={"verdict": "reject"})]) == 0
    before = (out / "decisions.json").read_bytes()
    mine = decide(tmp_path / "b.json", out, cat_a={"verdict": "keep"})
    replace = os.replace

    def cut_off(source, target):
        if Path(target).name == "decisions.json":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", cut_off)
    assert main([*words, *mine]) == 130
    assert (out / "decisions.json").read_bytes() == before
    monkeypatch.undo()
    assert main([*words, *mine]) == 0
    assert rows_of(out)["cat_a.jpg"]["verdict"] == "keep"
    assert {path.name for path in out.glob("decisions.json.*")} == {"decisions.json.1"}
    assert (out / "decisions.json.1").read_bytes() == before


@pytest.mark.spec("issue-65/decisions-kept")
def test_a_decision_on_other_bytes_counts_for_nothing_and_replaces_none(copy, tmp_path):
    folder, out = copy
    words = [str(folder), "--out", str(out)]
    old = decide(tmp_path / "old.json", out, rocket={"verdict": "reject"})
    save(Image.fromarray(data.rocket()).resize((256, 192)), folder / "rocket.jpg")
    assert main([*words, *old]) == 0
    assert "your decision" not in rows_of(out)["rocket.jpg"]["reason"]
    assert main([*words, *decide(tmp_path / "new.json", out, rocket={"verdict": "keep"})]) == 0
    assert main([*words, *old]) == 0
    assert rows_of(out)["rocket.jpg"]["reason"].startswith("your decision")
    assert rows_of(out)["rocket.jpg"]["verdict"] == "keep"
    # What an older page saved of a picture that could not be read costs no other decision.
    odd = json.loads((tmp_path / "new.json").read_text("utf-8"))
    odd["pictures"] |= {"cut.jpg": {"sha256": None, "verdict": "reject"}}
    odd["pictures"]["rocket.jpg"]["verdict"] = "reject"
    (tmp_path / "odd.json").write_text(json.dumps(odd), "utf-8")
    (folder / "cut.jpg").write_bytes((folder / "rocket.jpg").read_bytes()[:900])
    assert main([*words, "--decisions", str(tmp_path / "odd.json")]) == 1
    assert rows_of(out)["rocket.jpg"]["verdict"] == "reject"
    assert rows_of(out)["cut.jpg"]["verdict"] == "look"


# Copying


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_a_copy_follows_no_link_out_of_a_folder(copy, tmp_path, capsys):
    folder, out = copy
    (tmp_path / "key").write_text("secret")
    (folder / "cat_a.xmp").symlink_to(tmp_path / "key")
    (folder / "shared").write_text(OTHERS, "utf-8")
    (folder / "coffee_a.xmp").symlink_to("shared")
    (folder / "sub").mkdir()
    (folder / "rocket.jpg").rename(folder / "sub" / "rocket.jpg")
    goal, elsewhere = tmp_path / "best", tmp_path / "elsewhere"
    goal.mkdir()
    elsewhere.mkdir()
    (goal / "sub").symlink_to(elsewhere)
    picks = {
        name: {"sha256": rows_of(out)[name]["sha256"], "verdict": "keep"} for name in ("cat_a.jpg", "coffee_a.jpg")
    }
    picks["sub/rocket.jpg"] = {"sha256": rows_of(out)["rocket.jpg"]["sha256"], "verdict": "keep"}
    (tmp_path / "d.json").write_text(json.dumps({"decisions": "agentic-iqa", "version": 1, "pictures": picks}))
    words = [str(folder), "--out", str(out), "-r", "--decisions", str(tmp_path / "d.json"), "--apply", "copy"]
    assert main([*words, "--to", str(goal)]) == 1
    told = sorted(capsys.readouterr().err.splitlines())
    assert [line.partition(":")[0] for line in told] == ["cat_a.jpg", "cat_a.jpg", "sub/rocket.jpg"]
    assert "'cat_a.xmp': is a link out of the folder" in told[0]
    assert "'cat_a.xmp': is a link out of the folder" in told[1]
    assert "--to has a link out of it in this place" in told[2]
    assert list(elsewhere.iterdir()) == []
    assert {path.name for path in goal.iterdir()} >= {"coffee_a.jpg", "coffee_a.xmp"}
    assert not list(goal.glob("cat_a*"))
    assert not (goal / "coffee_a.xmp").is_symlink()
    assert (goal / "coffee_a.xmp").read_text("utf-8") == OTHERS
    (out / "decisions.json").unlink()
    (out / "decisions.json").symlink_to(tmp_path / "d.json")
    assert main([str(folder), "--out", str(out)]) == 2
    assert "'decisions.json' is a link; move it away" in capsys.readouterr().err


@pytest.mark.spec("issue-50/copying")
def test_what_is_kept_is_copied_verified_and_replaces_nothing(copy, tmp_path, capsys):
    folder, out = copy
    goal = tmp_path / "best"
    words = [str(folder), "--out", str(out), "--apply", "copy", "--to", str(goal)]
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    (folder / "cat_a.xmp").write_text(OTHERS, "utf-8")
    assert main([*words, "--dry-run", "--xmp", "new"]) == 0
    said = capsys.readouterr().out
    assert "would copy cat_a.jpg" in said
    assert "would be written" in said
    assert not list(folder.glob("coffee*.xmp"))
    assert not goal.exists()
    goal.mkdir()
    (goal / "coffee_a.jpg").write_text("mine")
    assert main(words) == 1
    told = capsys.readouterr()
    assert "coffee_a.jpg" in told.err
    assert "is there already; name another --to" in told.err
    assert (goal / "coffee_a.jpg").read_text() == "mine"
    kept = {file for file, row in rows_of(out).items() if row["verdict"] == "keep"}
    assert {path.name for path in goal.iterdir()} == {*kept, "cat_a.xmp"}
    assert (goal / "cat_a.jpg").read_bytes() == before[folder / "cat_a.jpg"][0]
    assert (goal / "cat_a.jpg").stat().st_mtime == (folder / "cat_a.jpg").stat().st_mtime
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
    (goal / "coffee_a.jpg").unlink()
    assert main(words) == 0
    assert f"{len(kept) - 1} there already" in capsys.readouterr().out


@pytest.mark.spec("issue-50/copying")
def test_a_copy_of_a_picture_that_changed_or_on_a_full_disk_leaves_nothing(copy, tmp_path, capsys, monkeypatch):
    folder, out = copy
    from program.gallery import sidecars

    picture = folder / "cat_a.jpg"
    digest = hashlib.sha256(picture.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match="changed since it was judged"):
        sidecars.copy_picture(picture, tmp_path / "goal" / "a.jpg", "0" * 64, dry=False)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sidecars, "sync", full)
    goal = tmp_path / "goal"
    assert main([str(folder), "--out", str(out), "--apply", "copy", "--to", str(goal)]) == 1
    told = capsys.readouterr().err
    assert all("No space left on device" in line for line in told.splitlines())
    assert list(goal.iterdir()) == []
    monkeypatch.undo()
    assert sidecars.copy_picture(picture, goal / "a.jpg", digest, dry=False) == "copied"


# Attacks


@pytest.mark.spec("issue-50/attacks")
@pytest.mark.skipif(os.name == "nt", reason="no such names on Windows")
def test_hostile_names_links_and_broken_files_are_one_line_each(copy, tmp_path, capsys):
    folder, out = copy
    small = (folder / "rocket.jpg").read_bytes()
    names = [
        "<script>alert(1)</script>.jpg".replace("/", "\u2215"),
        "a\"b'c.jpg",
        "two\nlines.jpg",
        "=cmd().jpg",
        "\x1b[2J.jpg",
    ]
    for name in names:
        (folder / name).write_bytes(small)
    (folder / os.fsdecode(b"\xff.jpg")).write_bytes(small)
    (tmp_path / "secret.jpg").write_bytes(small)
    (folder / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (folder / "circle.jpg").symlink_to(folder / "circle.jpg")
    (folder / "within.jpg").symlink_to(folder / "rocket.jpg")
    (folder / "cut.jpg").write_bytes(small[:900])
    os.mkfifo(folder / "pipe.jpg")
    assert main([str(folder), "--out", str(out), "--xmp", "new", "--xmp-name", "full"]) == 1
    told = capsys.readouterr()
    failed = sorted(line.split(":")[0] for line in told.err.splitlines())
    assert failed == ["circle.jpg", "cut.jpg", "link.jpg", "pipe.jpg"]
    assert "is a link out of the folder" in told.err
    rows = rows_of(out)
    assert all(rows[name]["status"] == "ok" for name in [*names, "within.jpg", "\\xff.jpg"])
    assert (folder / os.fsdecode(b"\xff.jpg.xmp")).exists()
    assert rows["link.jpg"]["verdict"] == "look"
    cells = {row["file"]: row["id"] for row in read_csv(out / "gallery.csv")}
    assert {"'=cmd().jpg", '"\\u001b[2J.jpg"', "two\nlines.jpg"} <= cells.keys()
    assert all(name == its_id for name, its_id in cells.items())
    assert not {"\x1b"} & {*(out / "gallery.csv").read_text("utf-8"), *(out / "gallery.jsonl").read_text("utf-8")}
    page = (out / "gallery.html").read_text("utf-8")
    assert "<script>alert" not in page
    assert not (tmp_path / "secret.jpg.xmp").exists()


@pytest.mark.spec("issue-50/attacks")
@pytest.mark.skipif(os.name == "nt", reason="no such locks on Windows")
def test_two_runs_into_one_folder_do_not_meet(copy, capsys):
    from program.running.journal import LineLog

    folder, out = copy
    log = LineLog(out / "gallery.journal", mend="")
    assert main([str(folder), "--out", str(out)]) == 2
    assert "another run writes it; wait, or give another --out" in capsys.readouterr().err
    log.close()
    (out / "gallery.journal").write_text("no journal\n")
    assert main([str(folder), "--out", str(out)]) == 2
    assert (out / "gallery.journal").read_text() == "no journal\n"


@pytest.mark.spec("issue-50/attacks")
def test_a_picture_that_changes_while_it_is_judged_is_judged_again_next_time(copy, capsys, monkeypatch):
    folder, out = copy
    save(Image.fromarray(data.coffee()).resize((200, 150)), folder / "new.jpg")
    facts = picturing.Taking._facts

    def changing(self, *given):
        (folder / "new.jpg").write_bytes((folder / "cat_a.jpg").read_bytes())
        return facts(self, *given)

    monkeypatch.setattr(picturing.Taking, "_facts", changing)
    assert main([str(folder), "--out", str(out)]) == 1
    assert "new.jpg: image 'new.jpg': changed while it was judged; run the command again" in capsys.readouterr().err
    monkeypatch.undo()
    assert main([str(folder), "--out", str(out)]) == 0
    digest = hashlib.sha256((folder / "cat_a.jpg").read_bytes()).hexdigest()
    assert rows_of(out)["new.jpg"]["sha256"] == digest


@pytest.mark.spec("issue-50/attacks")
def test_a_full_disk_costs_one_line_a_picture(copy, capsys, monkeypatch):
    folder, out = copy
    save(Image.fromarray(data.coffee()).resize((200, 150)), folder / "new.jpg")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(picturing, "write_whole", full)
    assert main([str(folder), "--out", str(out)]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert len(rows_of(out)) == 11


UNSHARE = shutil.which("unshare")
CAN_MOUNT = UNSHARE and subprocess.run([UNSHARE, "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], check=False).returncode


@pytest.mark.slow
@pytest.mark.spec("issue-50/attacks")
@pytest.mark.skipif(CAN_MOUNT != 0, reason="nothing can be mounted here")
def test_a_read_only_mount_and_a_full_disk_lose_nothing(tmp_path):
    folder, goal = tmp_path / "day", tmp_path / "best"
    burst(data.coffee(), folder, "coffee", START)
    (tmp_path / "out").mkdir()
    for name in ("c", "d"):
        (folder / f"coffee_{name}.jpg").unlink()
    before = {name: (folder / name).read_bytes() for name in ("coffee_a.jpg", "coffee_b.jpg")}
    words = ["day", "--out", "out", "--preview", "320"]
    copying = [*words, "--xmp", "new", "--apply", "copy", "--to", "best"]
    code = f"""
        import subprocess, sys
        from program.gallery.__main__ import main
        codes = [main({words})]
        subprocess.run(["mount", "-o", "remount,size=9m", "out"], check=True)
        print("and now:", file=sys.stderr)
        print([*codes, main({copying})])
    """
    script = f"""
        mount --bind day day && mount -o remount,ro,bind day && mount -t tmpfs -o size=48k none out
        {shlex.join([sys.executable, "-c", textwrap.dedent(code)])} > codes 2> told
        cp out/gallery.jsonl .
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "AGENTICIQA_CACHE_DIR": str(tmp_path / "c")}
    ran = subprocess.run(  # mounts that nobody else sees, and that end with it
        [UNSHARE, "-rm", "sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("", "")
    assert (tmp_path / "codes").read_text("utf-8").splitlines()[-1] == "[2, 1]"
    full, _, refusals = (tmp_path / "told").read_text("utf-8").partition("and now:\n")
    assert full.count("\n") == 1
    assert "cannot be written (No space left on device)" in full
    refused = refusals.splitlines()
    assert [line.partition(":")[0] for line in refused] == list(before)
    assert all("Read-only file system" in line for line in refused)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert (goal / "coffee_a.jpg").read_bytes() == before["coffee_a.jpg"]
    assert {row["status"] for row in rows_of(tmp_path).values()} == {"ok"}


@pytest.mark.spec("issue-50/attacks")
@pytest.mark.skipif(os.name == "nt", reason="no such limits on Windows")
def test_a_disk_that_fills_up_half_way_is_one_line_and_the_next_run_goes_on(copy, capsys, judged):
    import resource

    folder, out = copy
    save(Image.fromarray(data.coffee()).resize((200, 150)), folder / "new.jpg")
    table, (_, most) = (out / "gallery.csv").read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((out / "gallery.journal").stat().st_size + 100, most))
    try:
        assert main([str(folder), "--out", str(out), "--no-cache"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    told = capsys.readouterr().err
    assert "gallery.journal" in told
    assert "cannot be written" in told
    assert told.count("\n") == 1
    assert (out / "gallery.csv").read_bytes() == table
    judged.clear()
    assert main([str(folder), "--out", str(out), "--no-cache"]) == 0
    assert judged == ["new.jpg"]
    assert len(rows_of(out)) == 11
    # What the system lets nobody write to.
    assert main([str(folder), "--out", "/sys/gallery"]) == 2
    assert "--out '/sys/gallery': cannot be written (" in capsys.readouterr().err


def test_the_copies_are_no_pictures_of_the_folder(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "day")
    inside = tmp_path / "day" / "gallery"
    words = [
        "gallery",
        str(tmp_path / "day"),
        "--out",
        str(inside),
        "--recursive",
        "--glob",
        "cat_*",
        "--glob",
        "*.jpg",
    ]
    assert agentic_iqa(words) == 0
    assert agentic_iqa(words) == 0
    assert len(rows_of(inside)) == 10
    assert {path.name for path in inside.iterdir()} >= {"gallery.html", "gallery.csv", "thumbs", "previews"}
    with Image.open(next((inside / "thumbs").iterdir())) as thumb:
        assert max(thumb.size) <= 320
