"""The gallery's page in a headless Chromium, opened from disk: by keyboard alone, with many pictures, on a phone."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from PIL import Image, ImageFilter
from PIL.TiffImagePlugin import IFDRational
from skimage import data

from data.decisions import Decisions
from program.gallery.__main__ import main
from program.gallery.command import page as page_of
from program.gallery.picture import Picture
from tests.tables import read_lines

pytest.importorskip("imagehash", reason="the extra [gallery] is not installed")


@pytest.fixture
def visit(open_page):
    """Open a gallery's page from disk."""

    def visited(out: Path, *, goes_on: bool = False, **given):
        page = open_page((out / "gallery.html").as_uri(), "file:", **given)
        page.wait_for_selector("html[data-ready]")
        page.set_checked("#next", goes_on)
        return page

    return visited


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def current(page):
    return page.locator("[role=option][aria-selected=true] .name").inner_text()


def made(number: int, **more) -> Picture:
    """A picture of a group of four; every third is blurred."""
    facts = {
        "group": str(number // 4 + 1), "rank": number % 4 + 1, "best_of_group": number % 4 == 0,
        "sha256": f"{number:064x}", "verdict": ("keep", "alternate", "reject", "look")[number % 4],
        "reason": "softer; highlights clipped", "score": 3.0, "width": 6000, "height": 4000, "focus": (0.3, 0.7),
        "taken_at": f"2026-05-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}",
        "kind": "photograph", **({"fault_1": "defocus blur", "strength_1": "strong"} if number % 3 == 0 else {}),
    }  # fmt: skip
    return Picture(**{"id": f"IMG_{number:04}.jpg", "status": "ok"} | facts | more)


def written(out: Path, pictures: list[Picture], **more) -> Path:
    """Write a gallery's page of pictures without copies."""
    out.mkdir(exist_ok=True)
    paths = {picture.id: out / f"thumbs/{(picture.sha256 or '')[:24]}.jpg" for picture in pictures}
    given = {"title": "day", "standard": "its own", "decisions": Decisions(), "preview": 0, "single": False} | more
    (out / "gallery.html").write_text(page_of(pictures, paths, out, **given), "utf-8")
    for name in {f"thumbs/{picture.sha256[:24]}.jpg" for picture in pictures if picture.sha256}:
        (out / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (6, 4), (90, 120, 150)).save(out / name)
    return out


@pytest.mark.spec("issue-50/by-keyboard-alone")
def test_from_a_folder_by_keyboard_to_copies_and_sidecars(visit, tmp_path, capsys):
    folder, out, goal = tmp_path / "day", tmp_path / "out", tmp_path / "best"
    folder.mkdir()
    for name in ("coffee", "chelsea", "astronaut", "rocket"):
        photo = Image.fromarray(getattr(data, name)()).resize((240, 180))
        photo.save(folder / f"{name}.jpg", quality=95)
        photo.filter(ImageFilter.GaussianBlur(2)).save(folder / f"{name}_soft.jpg", quality=95)
    words = [str(folder), "--out", str(out), "--group", "look"]
    assert main(words) == 0
    page = visit(out)
    shown = {row["file"]: row for row in read_lines(out / "gallery.jsonl")}
    rejected = []
    for _ in range(3):
        press(page, "x")
        rejected.append(current(page))
        press(page, "ArrowRight", "ArrowRight")
    press(page, "p", "3")
    kept = current(page)
    with page.expect_download() as download:
        press(page, "s")
    download.value.save_as(tmp_path / "decisions.json")
    saved = json.loads((tmp_path / "decisions.json").read_text("utf-8"))["pictures"]
    assert {name: entry["verdict"] for name, entry in saved.items()} == {
        **dict.fromkeys(rejected, "reject"),
        kept: "keep",
    }
    for name, entry in saved.items():  # what was suggested when it was decided
        row, suggested = shown[name], entry["suggested"]
        assert (suggested["verdict"], suggested["stars"]) == (row["verdict"], row["suggested_rating"])
        assert suggested["best"] == bool(row["best_of_group"])
    more = ["--decisions", str(tmp_path / "decisions.json"), "--apply", "copy", "--to", str(goal), "--xmp", "new"]
    assert main([*words, *more, "--dry-run"]) == 0
    assert not goal.exists()
    assert not list(folder.glob("*.xmp"))
    assert main([*words, *more]) == 0
    copied = {path.name for path in goal.glob("*.jpg")}
    assert kept in copied
    assert not copied & set(rejected)
    assert len(list(folder.glob("*.xmp"))) == 8
    if shutil.which("exiv2"):
        for sidecar in folder.glob("*.xmp"):
            told = subprocess.run(["exiv2", "-pa", str(sidecar)], capture_output=True, text=True, check=True)  # noqa: S607
            rating = "-1" if f"{sidecar.stem}.jpg" in rejected else "3" if f"{sidecar.stem}.jpg" == kept else ""
            assert (
                f"Xmp.xmp.Rating XmpText {len(rating)} {rating}".strip() in " ".join(told.stdout.split()) or not rating
            )
    again = visit(out)
    assert again.locator("[data-verdict=reject]").count() >= 3
    assert "4 by you" in again.inner_text("#counts")
    assert "your decision" not in again.inner_text("main")


@pytest.mark.spec("issue-50/page")
def test_every_key_does_what_the_page_says(visit, tmp_path):
    page = visit(written(tmp_path / "out", [made(number) for number in range(12)]))
    assert current(page) == "IMG_0000.jpg"
    press(page, "ArrowRight", "ArrowRight", "x")
    assert page.inner_text("#told") == "IMG_0002.jpg: reject"
    assert "Reject (you)" in page.inner_text("[aria-selected=true]")
    press(page, "4", "b")
    assert current(page) == "IMG_0002.jpg"
    order = page.locator(".name").all_inner_texts()
    assert order[:4] == ["IMG_0002.jpg", "IMG_0000.jpg", "IMG_0001.jpg", "IMG_0003.jpg"]
    press(page, "u", "u")
    assert "★" not in page.inner_text("[aria-selected=true]")
    assert "Reject (you)" in page.inner_text("[aria-selected=true]")
    press(page, "u", "u")
    assert page.inner_text("#told") == "nothing to undo"
    assert "0 by you" in page.inner_text("#counts")
    press(page, "g")
    assert current(page) == "IMG_0004.jpg"
    press(page, "Shift+G", "ArrowDown")
    assert current(page).startswith("IMG_000")
    press(page, "f")
    assert page.evaluate("document.activeElement.id") == "verdict"
    page.select_option("#verdict", "look")
    page.select_option("#fault", "defocus blur")
    assert page.locator(".name").all_inner_texts() == ["IMG_0003.jpg"]
    page.select_option("#fault", "-")
    assert page.locator(".name").all_inner_texts() == ["IMG_0007.jpg", "IMG_0011.jpg"]
    page.click("#clear")
    page.locator("#pictures").focus()
    press(page, "Home", "c")
    assert page.locator(".pane").count() == 2
    assert "IMG_0001.jpg" in page.inner_text("#panes")
    press(page, "z")
    assert page.inner_text("#zoomed") == "100 %"
    moves = page.evaluate("[...document.querySelectorAll('.pane img')].map((each) => each.style.transform)")
    assert moves[0] == moves[1]
    assert "scale(1)" in moves[0]
    # It opens where the best is sharp, and goes on from there within a group.
    wide, high = page.evaluate(
        "[document.querySelector('.pane').clientWidth, document.querySelector('.pane').clientHeight]"
    )
    left, top = (float(part) for part in re.findall(r"(-?[\d.]+)px", moves[0]))
    assert abs(left - (wide / 2 - 0.3 * 6000)) < 1
    assert abs(top - (high / 2 - 0.7 * 4000)) < 1
    press(page, "x", "Escape")
    assert page.locator("dialog[open]").count() == 0
    assert "Reject (you)" in page.inner_text("[aria-selected=true]")
    press(page, "Space")
    assert page.locator(".pane").count() == 1


def saved(page, path: Path) -> list[str]:
    """Save a page's decisions, and return the flag that gives them to the command."""
    with page.expect_download() as download:
        press(page, "s")
    download.value.save_as(path)
    return ["--decisions", str(path)]


def says(page, name: str) -> str:
    return page.locator(f"[role=option]:has-text('{name}')").inner_text().split("\n")[0]


@pytest.mark.spec("issue-65/person-decides")
def test_the_page_decides_by_the_commands_rule(visit, tmp_path):
    ratings = (-1, 4, 2, 0)
    pictures = [made(n, verdict="reject", stored_rating=r, best_of_group=n == 0) for n, r in enumerate(ratings)]
    page = visit(written(tmp_path / "out", [*pictures, made(5), made(7)]))
    assert [says(page, f"IMG_000{n}") for n in range(4)] == [
        "Reject (you) · 3.0", "Keep (you) · best · ★★★★ · 3.0", "Reject · ★★ · 3.0", "Reject · 3.0"
    ]  # fmt: skip
    press(page, "Home")
    assert current(page) == "IMG_0001.jpg"
    assert page.inner_text("#counts").endswith("1 keep · 1 alternate · 3 reject · 1 not sure · 0 failed · 3 by you")
    # The newest act on a picture decides; what it was given before a reject comes back with it.
    for keys, line in (
        ("x", "Reject (you) · 3.0"), ("p", "Keep (you) · best · ★★★★ · 3.0"), ("x5", "Keep (you) · best · ★★★★★ · 3.0"),
        ("x0", "Reject · best · 3.0"), ("p", "Keep (you) · best · 3.0"), ("xb", "Reject · best · 3.0"),
        ("x", "Reject (you) · 3.0"), ("pn", "Reject · best · 3.0"), ("u", "Keep (you) · best · 3.0"),
    ):  # fmt: skip
        press(page, *keys)
        assert (keys, says(page, "IMG_0001")) == (keys, line)
    press(page, "End", "p")
    page.select_option("#verdict", "keep")
    assert page.locator(".name").all_inner_texts() == ["IMG_0001.jpg", "IMG_0007.jpg"]
    page.select_option("#verdict", "")
    page.select_option("#which", "open")
    assert page.locator(".name").all_inner_texts() == ["IMG_0003.jpg", "IMG_0005.jpg"]


@pytest.mark.spec("issue-65/decisions-kept")
def test_no_decision_in_a_browser_is_lost_when_the_page_is_made_again(visit, tmp_path):
    folder, out = tmp_path / "day", tmp_path / "out"
    folder.mkdir()
    for name in ("astronaut", "rocket"):
        Image.fromarray(getattr(data, name)()).resize((120, 80)).save(folder / f"{name}.jpg")
    (folder / "cut.jpg").write_bytes((folder / "rocket.jpg").read_bytes()[:900])
    words = [str(folder), "--out", str(out), "--preview", "0", "--xmp", "new"]
    assert main(words) == 1
    page = visit(out)
    press(page, "x", "ArrowRight", "x")
    assert page.inner_text("#told") == "cut.jpg: could not be read, so there is nothing to decide"
    mine = saved(page, tmp_path / "a.json")
    # Decided after the file was saved, some of it in another tab, and so unknown to the next run.
    tab = page.context.new_page()
    tab.goto(page.url)
    press(tab, "End", "5")
    page.wait_for_function("() => Object.values(localStorage).some((kept) => kept.includes('rocket.jpg'))")
    press(page, "Home", "p")
    assert main([*words, *mine]) == 1
    page.reload()
    assert says(page, "astronaut.jpg").startswith("Keep (you)")
    assert "★★★★★" in says(page, "rocket.jpg")
    # A page of some of the pictures keeps what was decided on the others.
    assert main([*words, "--glob", "rocket.jpg"]) == 0
    page.reload()
    press(page, "4")
    assert main(words) == 1
    page.reload()
    assert says(page, "astronaut.jpg").startswith("Keep (you)")
    assert main([*words, *saved(page, tmp_path / "b.json")]) == 1
    rows = {row["file"]: row for row in map(json.loads, (out / "gallery.jsonl").read_text("utf-8").splitlines())}
    assert (rows["astronaut.jpg"]["verdict"], rows["rocket.jpg"]["user_rating"]) == ("keep", 4)
    # Another browser's newer decision stands before an older one here, and one taken back is known as that.
    other = visit(out)
    press(other, "Home", "x", "End", "n")
    assert main([*words, *saved(other, tmp_path / "c.json")]) == 1
    page.reload()
    assert says(page, "astronaut.jpg").startswith("Reject (you)")
    assert "★" not in says(page, "rocket.jpg")
    assert "1 by you" in page.inner_text("#counts")
    # An older file that is given again is the newest word.
    assert main([*words, "--decisions", str(tmp_path / "b.json")]) == 1
    for each in (page, other):
        each.reload()
        assert says(each, "astronaut.jpg").startswith("Keep (you)")
        assert "★★★★" in says(each, "rocket.jpg")


@pytest.mark.spec("issue-65/decisions-kept")
def test_what_was_decided_is_taken_back_on_the_page(visit, tmp_path):
    folder, out = tmp_path / "day", tmp_path / "out"
    folder.mkdir()
    Image.fromarray(data.astronaut()).resize((240, 240)).save(folder / "a.jpg")
    words = [str(folder), "--out", str(out), "--preview", "0"]
    assert main(words) == 0
    before = (out / "gallery.jsonl").read_text("utf-8")
    page = visit(out)
    press(page, "p", "x")
    assert main([*words, *saved(page, tmp_path / "a.json"), "--xmp", "new"]) == 0
    assert json.loads((out / "gallery.jsonl").read_text("utf-8"))["verdict"] == "reject"
    assert 'xmp:Rating="-1"' in (folder / "a.xmp").read_text("utf-8")
    again = visit(out)  # another browser's, which has nothing to undo
    assert says(again, "a.jpg").startswith("Reject (you)")
    press(again, "n")
    assert main([*words, *saved(again, tmp_path / "b.json")]) == 0
    assert (out / "gallery.jsonl").read_text("utf-8") == before


@pytest.mark.spec("issue-50/page-of-3000")
def test_three_thousand_pictures_open_at_once_and_stay_quick(visit, tmp_path):
    out = written(tmp_path / "out", [made(number, sha256=f"{number % 7:064x}") for number in range(3000)])
    begun = time.perf_counter()
    page = visit(out)
    seconds = time.perf_counter() - begun
    assert page.locator("[role=option]").count() < 120
    assert page.get_attribute("[role=option]", "aria-setsize") == "3000"
    spent = page.evaluate(
        """() => { const begun = performance.now(), list = document.getElementById('pictures');
        for (const key of ['End', 'Home', 'ArrowDown', 'ArrowRight', 'x', 'u', 'End', 'Home'])
            list.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
        for (let top = 0; top < list.scrollHeight; top += 4000) {
            list.scrollTop = top; list.dispatchEvent(new Event('scroll'));
        }
        return performance.now() - begun; }"""
    )
    assert page.locator("[role=option]").count() < 200
    # On a busy machine; the figures of a quiet one stand in docs/culling.md.
    assert seconds < 20
    assert spent < 8000


@pytest.mark.spec("issue-50/attacks")
def test_hostile_names_stay_text_on_the_page(visit, tmp_path):
    evil = "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">'\n.jpg"
    pictures = [made(0, id=evil, reason=evil, kind=evil), made(1, fault_1=evil, strength_1=evil)]
    out = written(tmp_path / "out", pictures, title=f"</title>{evil}", decisions=Decisions(pictures={}))
    page = visit(out)
    press(page, "x", "c", "Escape", "Space")
    assert "pwned" not in page.title().replace(evil.split("\n")[0], "")
    assert page.locator("main img[src='x'], [onerror]").count() == 0
    assert page.locator("script").count() == 2
    policy = page.get_attribute("meta[http-equiv=Content-Security-Policy]", "content")
    assert "unsafe" not in policy
    script = page.locator("script").last.text_content()
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}';" in policy


@pytest.mark.spec("issue-50/page")
@pytest.mark.parametrize("width", [320, 768])
def test_nothing_sticks_out_on_a_phone_and_all_has_a_name(visit, tmp_path, width):
    out = written(tmp_path / "out", [made(number, id=f"{'long' * 30}{number}.jpg") for number in range(9)])
    page = visit(out, color_scheme="dark")
    page.set_viewport_size({"width": width, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    unnamed = page.evaluate(
        """[...document.querySelectorAll('select, button, [role=option], [role=listbox]')].filter((e) =>
            !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim())).length"""
    )
    assert unnamed == 0
    active = page.get_attribute("#pictures", "aria-activedescendant")
    assert page.locator(f"#{active}").get_attribute("aria-selected") == "true"
    page.click("nav >> text=Reject")
    assert page.get_attribute("[role=option][aria-selected=true]", "data-verdict") == "reject"


@pytest.mark.spec("issue-72/gallery")
def test_keep_and_reject_go_on_to_the_next_picture_unless_told_to_stay(visit, tmp_path):
    page = visit(written(tmp_path / "out", [made(number) for number in range(8)]), goes_on=True)
    press(page, "x", "p")
    assert current(page) == "IMG_0002.jpg"
    assert says(page, "IMG_0000").startswith("Reject (you)")
    press(page, "u")
    assert current(page) == "IMG_0001.jpg"
    press(page, "Space", "x")
    assert page.inner_text("#panes").startswith("IMG_0002.jpg")
    press(page, "u")
    assert page.inner_text("#panes").startswith("IMG_0001.jpg")
    press(page, "Escape", "End", "p")
    assert current(page) == "IMG_0007.jpg"
    page.click("text=Next after P, X")
    page.reload()
    press(page, "Home", "x")
    assert current(page) == "IMG_0001.jpg"


@pytest.mark.spec("issue-72/gallery")
def test_pictures_are_sorted_by_score_and_back_to_groups(visit, tmp_path):
    pictures = [made(number, score=(3.0, 1.5, 4.5, None)[number % 4], best_of_group=False) for number in range(8)]
    page = visit(written(tmp_path / "out", pictures))

    def order():
        return [int(name[4:8]) for name in page.locator(".name").all_inner_texts()]

    press(page, "End")
    page.select_option("#order", "worst")
    assert order() == [1, 5, 0, 4, 2, 6, 3, 7]
    assert current(page) == "IMG_0001.jpg"
    assert page.locator(".group").count() == 0
    page.select_option("#order", "best")
    assert order() == [2, 6, 0, 4, 1, 5, 3, 7]
    page.select_option("#order", "")
    assert order() == list(range(8))


@pytest.mark.spec("issue-72/gallery")
def test_the_page_says_what_the_command_says(visit, tmp_path, capsys):
    folder, out = tmp_path / "day", tmp_path / "out"
    folder.mkdir()
    exif = Image.Exif()
    exif[0x8769] = {33437: IFDRational(28, 10), 33434: IFDRational(1, 250), 34855: 400, 37386: IFDRational(50, 1)}
    for name, facts in {"astronaut": exif, "coffee": Image.Exif()}.items():
        Image.fromarray(getattr(data, name)()).resize((240, 160)).save(folder / f"{name}.jpg", exif=facts)
    (folder / "cut.jpg").write_bytes((folder / "coffee.jpg").read_bytes()[:900])
    (folder / "coffee.xmp").write_text("<x/>", "utf-8")
    (folder / "notes.txt").write_text("of the day", "utf-8")
    words = [str(folder), "--out", str(out), "--preview", "0", "--xmp", "new", "--xmp-name", "full"]
    assert main(words) == 1
    assert main(words) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[-3] == "1 left out: .txt 1"  # sidecars belong to their pictures
    page = visit(out)
    assert page.inner_text("#counts") == told[-2].split(" · sidecars")[0] + " · 0 by you"
    assert "1 failed" in page.inner_text("#counts")
    page.select_option("#verdict", "failed")
    card = page.inner_text("[role=option]")
    assert "image 'cut.jpg': damaged or truncated" in card
    assert "get a whole copy" in card
    assert str(tmp_path) not in (out / "gallery.html").read_text("utf-8")
    page.click("#clear")
    assert page.locator(".camera").all_inner_texts() == ["f/2.8, 1/250 s, ISO 400, 50 mm", "", ""]


@pytest.mark.spec("issue-72/gallery")
def test_a_fault_is_shown_where_it_is_beside_the_reason(visit, tmp_path):
    where = [(0, 0, 0, 0, 0, 0, 100, 50, 0)]
    advice = "Focus anew and reshoot."
    pictures = [made(0, where=where, reasoning="Soft at the lower left.", advice=advice), made(1)]
    page = visit(written(tmp_path / "out", pictures))
    said = f"softer; highlights clipped. {advice}"
    card = page.locator("[role=option]").first
    assert (card.locator(".why").inner_text(), card.get_attribute("title")) == (said, f"{said} Soft at the lower left.")
    press(page, "Space")
    pixels = "document.querySelector('canvas').getContext('2d').getImageData(0, 0, 3, 3).data"
    reds = f"[...{pixels}].filter((_, n) => n % 4 === 3)"
    assert page.evaluate(reds) == [0] * 9
    press(page, "m")
    assert page.inner_text("figcaption").startswith("In red: defocus blur · IMG_0000.jpg")
    assert page.inner_text("figcaption").endswith(f"Soft at the lower left. · {advice}")
    assert page.evaluate(reds) == [0] * 6 + [153, 77, 0]
    press(page, "m")
    assert page.evaluate(reds) == [0] * 9


@pytest.mark.spec("issue-72/gallery")
def test_a_phones_filters_wrap_and_a_tap_enlarges(visit, tmp_path):
    page = visit(written(tmp_path / "out", [made(number) for number in range(9)]), has_touch=True)
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.is_hidden("#help")
    for each in page.locator(".filters > *").all():
        box = each.bounding_box()
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 400
    assert page.evaluate("getComputedStyle(document.querySelector('[data-verdict=reject] img')).opacity") == "1"
    page.tap(".card >> nth=1 >> .shot")
    assert page.inner_text("#panes").startswith("IMG_0001.jpg")
    page.tap("[aria-label='Next picture']")
    page.tap("dialog [data-key=x]")
    page.tap("dialog >> text=Close")
    assert says(page, "IMG_0002").startswith("Reject (you)")
    page.tap(".card >> nth=3 >> .says")
    assert page.is_hidden("#closer")
    assert current(page) == "IMG_0003.jpg"


@pytest.mark.slow
@pytest.mark.spec("issue-72/accessible")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_the_page(visit, tmp_path, violations, scheme):
    pictures = [made(number, camera="f/2.8, 1/250 s", where=[[100] * 9]) for number in range(40)]
    page = visit(written(tmp_path / "out", [*pictures, made(41, status="error", sha256=None, error="cut")]))
    page.emulate_media(color_scheme=scheme)
    press(page, "x", "ArrowRight", "p", "?")
    assert violations(page) == []
    page.evaluate("document.getElementById('pictures').scrollTop = 9999")  # away from the current picture
    page.set_viewport_size({"width": 400, "height": 800})
    assert violations(page) == []
    press(page, "c", "m")
    assert violations(page) == []


def test_a_single_file_holds_its_thumbnails(visit, tmp_path):
    folder, out = tmp_path / "day", tmp_path / "out"
    folder.mkdir()
    Image.fromarray(data.coffee()).resize((240, 160)).save(folder / "a.jpg")
    assert main([str(folder), "--out", str(out), "--single-file"]) == 0
    (tmp_path / "mailed").mkdir()
    shutil.copy(out / "gallery.html", tmp_path / "mailed")
    page = visit(tmp_path / "mailed")
    page.wait_for_function("() => document.querySelector('.card img').naturalWidth === 240")
