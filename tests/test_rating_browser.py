"""The rating page in a headless Chromium: thirty pictures by keys alone, through a reload, to its end; and by touch."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from program.common.settings import load_settings
from program.rating.__main__ import make_parser, session_of
from program.rating.store import RatingFile

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")


@pytest.fixture
def rated(open_page, served, tmp_path):
    """Open the page of thirty pictures; returns it, its session and a function that returns the lines."""
    from program.rating.server import app_of

    photos, files = tmp_path / "photos", []
    photos.mkdir()
    rng = np.random.default_rng(0)
    for number in range(30):
        Image.fromarray(rng.integers(0, 256, (90, 120, 3), dtype=np.uint8)).save(photos / f"secret{number:02}.bmp")

    def start(*words, **given):
        of = [] if "--questions" in words else [str(photos)]
        arguments = make_parser().parse_args([*of, "--out", str(tmp_path / "ratings"), *words])
        files.append(RatingFile(arguments.out))
        session = session_of(arguments, files[-1], 10**7)
        url = served(app=app_of(session, "agentic-iqa compile --data ratings"))
        page = open_page(url, url, **given)
        shown(page)
        path = tmp_path / "ratings" / "ratings.jsonl"
        return page, lambda: [json.loads(line) for line in path.read_bytes().splitlines()]

    yield start
    for file in files:
        file.close()


def shown(page, but=""):
    """Return what stands for the picture that is shown, once it is another than `but`."""
    return page.wait_for_selector(f"html[data-shown]:not([data-shown='']):not([data-shown='{but}'])").get_attribute(
        "data-shown"
    )


@pytest.mark.spec("issue-72/rate-by-keyboard")
def test_thirty_pictures_by_keys_to_the_command_that_learns_from_them(rated):
    page, lines = rated()
    name = shown(page)
    page.keyboard.press("z")
    assert "whole" in page.get_attribute("#stage", "class")
    page.keyboard.press(" ")
    answers = 0
    while name != "end":
        page.keyboard.press("u" if answers == 3 else str(answers % 5 + 1))
        answers += 1
        name = shown(page, name)
        if answers == 5:
            page.wait_for_selector("#counts >> text=5 rated")
            before = name
            page.keyboard.press("ArrowLeft")
            shown(page, before)
            assert page.locator("#answers [aria-pressed=true]").inner_text().split() == ["5", "excellent"]
            page.keyboard.press("ArrowRight")
            page.wait_for_selector(f"html[data-shown='{before}']")
            page.keyboard.press("Backspace")
            page.wait_for_selector("#counts >> text=4 rated")
            name = shown(page, before)
        if answers == 12:
            page.wait_for_selector("#counts >> text=11 rated")
            page.reload()
            assert shown(page) == name  # what was answered is not asked again
    told = page.inner_text("#end")
    assert "All are rated: 30." in told
    assert "agentic-iqa compile --data ratings" in told
    kept = {(line["id"], line["repeat"]): line for line in lines()}
    assert len({name for name, again in kept if not again}) == 30
    assert sum(again for _, again in kept) == 3
    assert sum(line["unsure"] for line in kept.values()) == 1
    assert "secret" not in page.content()


@pytest.mark.slow
def test_a_picture_that_is_gone_is_said_and_the_next_can_be_rated(rated, tmp_path):
    page, lines = rated()
    first = name = shown(page)
    for _ in range(9):
        page.keyboard.press("3")
        name = shown(page, name)
    for path in (tmp_path / "photos").iterdir():
        path.unlink()
    page.reload()
    assert shown(page) == name
    while page.get_attribute("html", "data-shown") != first and page.is_hidden("#fault"):
        page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(200)
    assert page.inner_text("#fault") == "This picture cannot be shown any more. Press → to go on."
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(f"html[data-shown='{name}']")
    page.wait_for_selector("#fault", state="hidden")
    page.keyboard.press("4")
    while (name := shown(page, name)) != "end":
        page.keyboard.press("4")
    assert "left out: press Done, and the terminal says why." in page.inner_text("#ended")
    assert len(lines()) < 14


@pytest.mark.slow
def test_a_phone_rates_pairs_by_touch(rated):
    page, lines = rated("--pairs", "--glob", "secret0*")
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    tops = [page.locator("figure").nth(n).bounding_box()["y"] for n in (0, 1)]
    assert tops[1] > tops[0]
    sizes = [button.bounding_box() for button in page.locator("nav button:visible").all()]
    assert all(box["height"] >= 44 and box["width"] >= 44 for box in sizes)
    name = shown(page)
    page.click("#answers >> text=right")
    name = shown(page, name)
    page.click("#answers >> text=same")
    page.wait_for_selector("#counts >> text=2 rated")
    assert [line["preferred"] for line in lines()] == ["right", "equal"]
    name = shown(page, name)
    assert page.is_hidden("nav >> text=Forward")
    page.click("nav >> text=Back")
    shown(page, name)
    page.click("nav >> text=Forward")
    page.wait_for_selector(f"html[data-shown='{name}']")
    assert len(lines()) == 2


def found_at_both_widths(page, violations):
    """Return what axe finds on a page as wide as a desktop's, and as a phone's."""
    found = []
    for width in (1400, 400):
        page.set_viewport_size({"width": width, "height": 800})
        found += [f"{width} px: {each}" for each in violations(page)]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    return found


@pytest.mark.slow
@pytest.mark.spec("issue-72/accessible")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["stars", "--pairs", "--questions"])
def test_axe_finds_nothing_while_one_rates_and_at_the_end(rated, tmp_path, violations, scheme, kind):
    words = ["--glob", "secret0[0-2]*", *([kind] if kind == "--pairs" else [])]
    if kind == "--questions":
        options = {"A": "Yes, over the whole of the picture", "B": "No"}
        asked = {"query": "Is it noisy?", "options": options, "image": str(tmp_path / "photos" / "secret00.bmp")}
        (tmp_path / "asked.jsonl").write_text(json.dumps({"id": "q", **asked, "answer": "A"}) + "\n", "utf-8")
        words = [kind, str(tmp_path / "asked.jsonl")]
    page, _ = rated(*words, color_scheme=scheme, bypass_csp=True)
    assert found_at_both_widths(page, violations) == []
    page.keyboard.press("?")
    page.keyboard.press("z")
    name = shown(page)
    page.keyboard.press("1")
    if kind != "--questions":
        shown(page, name)
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector(f"html[data-shown='{name}']")
        assert found_at_both_widths(page, violations) == []
        page.keyboard.press("ArrowRight")
    while (name := shown(page, name)) != "end":
        page.keyboard.press("2")
    assert found_at_both_widths(page, violations) == []


@pytest.mark.slow
@pytest.mark.spec("issue-72/ten-kills")
@pytest.mark.usefixtures("browser")  # which skips where there is none
def test_no_answer_is_lost_or_kept_twice_when_the_server_is_killed():
    script = Path(__file__).resolve().parents[1] / "benchmarks" / "rating_kills.py"
    words = [sys.executable, str(script), "--ratings", "30", "--kills", "2"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "33 pressed, 33 kept, 0 doubled, 2 kills; the same in order: True" in done.stdout, done.stdout + done.stderr


@pytest.fixture
def misses(tmp_path, encoded):
    """A folder with three misses: two scores and a question."""
    lines = []
    for number in range(3):
        path = tmp_path / f"{number}.png"
        path.write_bytes(encoded(number, height=120, width=160))
        own = {"id": f"<b>{number}", "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "image": str(path)}
        lines.append({**own, "people": 1.5, "program": 4.25, "low": 3.5, "high": 5, "reason": "<i>Sharp.</i>"})
    asked = {"query": "Is it sharp?", "options": {"A": "Yes", "B": "No"}, "people": "A", "program": "B"}
    lines[2] |= {**asked, "low": None, "high": None}
    (tmp_path / "misses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return tmp_path


def test_who_is_right_is_said_with_keys_and_found_again(misses, served, open_page):
    from program.rating.review import Reviewing, review_app

    review = Reviewing(misses, load_settings(), "ann")
    url = served(app=review_app(review))
    page = open_page(url, url)

    def saves(key):
        with page.expect_response("**/answer"):
            page.keyboard.press(key)
        page.wait_for_function("() => document.getElementById('kept').textContent.startsWith('kept')")

    page.wait_for_function("() => document.getElementById('picture').naturalWidth === 160")
    assert [page.inner_text(name) for name in ("#people", "#reason")] == ["1.5", "<i>Sharp.</i>"]
    assert page.inner_text("#program").split() == ["4.3", "likely", "3.5", "to", "5.0"]
    page.keyboard.press("4")  # alone no answer
    assert "who is right" in page.inner_text("#kept")
    saves("r")
    page.keyboard.press("ArrowRight")
    saves("p")
    page.keyboard.press("2")
    assert "there is no other score" in page.inner_text("#kept")
    page.keyboard.press("ArrowRight")
    assert page.is_hidden("#own")
    assert page.inner_text("#options").split("\n") == ["A. Yes", "B. No"]
    page.route("**/answer", lambda route: route.fulfill(status=422, json={"error": "the disk is full"}))
    page.keyboard.press("n")
    page.wait_for_selector("#kept.bad")
    assert page.inner_text("#kept") == "Picture 3 is not kept: the disk is full"
    assert page.inner_text("#progress") == "3 of 3, 2 answered"
    page.unroute("**/answer")
    page.reload()
    page.wait_for_function("() => document.getElementById('progress').textContent === '3 of 3, 2 answered'")
    page.click("text=Neither")
    page.wait_for_function("() => document.getElementById('progress').textContent === '3 of 3, 3 answered'")
    page.wait_for_function("() => document.getElementById('kept').textContent.startsWith('kept')")
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    review.close()
    lines = [json.loads(line) for line in (misses / "review.jsonl").read_text("utf-8").splitlines()]
    assert [(line["id"], line["who"], line["mos"]) for line in lines] == [
        ("<b>0", "program", 4.0), ("<b>1", "people", None), ("<b>2", "neither", None),
    ]  # fmt: skip
    assert review.summary().startswith("3 of 3 answered (people 1, program 1, neither 1; 1 with an own score)\n")


@pytest.mark.slow
@pytest.mark.spec("issue-72/accessible")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_where_one_says_who_is_right(misses, served, open_page, violations, scheme):
    from program.rating.review import Reviewing, review_app

    review = Reviewing(misses, load_settings(), "ann")
    url = served(app=review_app(review))
    page = open_page(url, url, color_scheme=scheme, bypass_csp=True)
    page.wait_for_function("() => document.getElementById('picture').naturalWidth === 160")
    assert found_at_both_widths(page, violations) == []
    with page.expect_response("**/answer"):
        page.keyboard.press("r")
    page.keyboard.press("4")
    page.keyboard.press("z")
    assert found_at_both_widths(page, violations) == []
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#options >> text=A. Yes")
    assert found_at_both_widths(page, violations) == []
    review.close()
