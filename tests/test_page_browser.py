"""The service's page in a headless Chromium: what a person does and sees. Skips where there is no browser."""

import json
from pathlib import Path

import pytest

EVIL = '<script>document.title="pwned"</script><img src=x onerror="document.title=\'pwned\'">'


@pytest.fixture
def visit(open_page, served):
    """Open the page of a program."""

    def visited(program, token=None, **given):
        url = served(program, token)
        return open_page(url, url, **given)

    return visited


def judged(page):
    page.click("#submit")
    page.wait_for_selector("#answer:not([hidden])")
    return page.inner_text("#answer")


def test_an_upload_becomes_a_score_with_everything_behind_it(visit, service_program, photo_file):
    page = visit(service_program())
    page.set_input_files("#image", photo_file)
    page.wait_for_function("() => document.getElementById('image-name').textContent.includes('160 × 120')")
    assert "Tools’ readings" not in judged(page)
    page.click("#details > summary")
    text = page.inner_text("#answer")
    for words in (
        "2.7 of 5",
        "Fair",
        "people likely rate it",
        "Soft edges.",
        "60.0 %",
        "Blur",
        "moderate",
        "PIQE",
        "Planner",
        "4 model calls",
    ):
        assert words in text
    assert "Score 2.7 of 5, fair, likely between" in page.text_content("#spoken")
    page.click("details:not(#details) > summary")
    assert json.loads(page.text_content("#json"))["level"] == "C"
    page.click("#copy")
    page.wait_for_function("() => document.getElementById('copy').textContent !== 'Copy'")


@pytest.mark.spec("issue-71/intended")
@pytest.mark.spec("issue-71/not-judged")
def test_what_is_meant_is_sent_and_what_is_not_judged_is_told(visit, service_program, tmp_path, encoded):
    (tmp_path / "noise.png").write_bytes(encoded(height=120, width=160))
    page = visit(service_program())
    page.set_input_files("#image", tmp_path / "noise.png")
    page.click("#intended button >> text=night")
    page.click("#intended button >> text=mist")
    assert "Not judged: noise. The score is a guess." in judged(page)
    page.click("details:not(#details) > summary")
    assert json.loads(page.text_content("#json"))["state"]["intended"] == ["night", "mist"]


def test_examples_and_a_difference_from_the_reference(visit, service_program, photo_file, tmp_path):
    page = visit(service_program())
    page.click("#examples button >> text=cat, blurred")
    page.wait_for_function("() => document.getElementById('image-name').textContent.startsWith('cat, blurred.jpg')")
    judged(page)
    assert page.query_selector("#difference") is None
    page.set_input_files("#image", photo_file)
    page.set_input_files("#reference", photo_file)
    judged(page)
    pixels = """() => {
      const canvas = document.getElementById("difference");
      const values = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return [canvas.width, canvas.height, Math.max(...values.filter((_, i) => i % 4 < 3))];
    }"""
    assert page.evaluate(pixels) == [160, 120, 0]


def test_many_images_become_a_table_to_open_and_to_save(visit, service_program, photo_file, tmp_path, encoded):
    other, broken = tmp_path / "=other.png", tmp_path / "broken.png"
    other.write_bytes(encoded(7, height=120, width=160))
    broken.write_bytes(b"no image")
    page = visit(service_program())
    page.set_input_files("#image", [photo_file, other, broken])
    page.click("#submit")
    page.wait_for_function("() => document.getElementById('spoken').textContent.startsWith('3 of 3')")
    text = page.inner_text("#answer")
    assert text.count("2.7 fair") == 2
    assert "broken.png" in text.splitlines()[-2]
    with page.expect_download() as download:
        page.click("#csv")
    lines = Path(download.value.path()).read_text("utf-8").splitlines()
    assert lines[0] == "image,score,low,high,level,reasoning,error"
    assert any(line.startswith("'=other.png,2.") for line in lines)
    page.click("#answer button >> text=photo.png")
    assert "2.7 of 5" in page.inner_text("#answer")


def test_two_images_are_compared(visit, service_program, photo_file, tmp_path, encoded):
    other = tmp_path / "<b>other.png"
    other.write_bytes(encoded(7, height=120, width=160))
    page = visit(service_program())
    page.set_input_files("#image", [photo_file, photo_file, photo_file])
    page.set_input_files("#other", other)
    assert page.inner_text("#submit") == "Compare the two"
    assert page.is_hidden("#query")
    text = judged(page)
    assert "A: 2.7 of 5, fair" in text
    assert "B: 2.7 of 5, fair" in text
    assert "<b>other.png" in text
    assert "No clear difference." in page.text_content("#spoken")
    assert "They show different things" in text
    assert page.locator(".pair img").evaluate_all("all => all.map((each) => each.naturalWidth)") == [160, 160]
    with page.expect_download() as download:
        page.click("text=Download JSON")
    assert json.loads(Path(download.value.path()).read_text("utf-8"))["verdict"] == "no clear difference"
    page.click("[aria-label='Remove the image to compare with']")
    assert page.is_hidden("#answer")
    assert "2.7 of 5" in judged(page)


def test_a_result_is_saved_as_a_page_that_fetches_nothing(visit, service_program, photo_file, browser):
    page = visit(service_program())
    page.set_input_files("#image", photo_file)
    judged(page)
    page.wait_for_selector("#heatmap")
    for title in ("Download page", "Download JSON"):
        with page.expect_download() as download:
            page.click(f"text={title}")
        text = Path(download.value.path()).read_text("utf-8")
        if title == "Download JSON":
            assert json.loads(text)["level"] == "C"
            continue
        assert "default-src 'none'" in text
        saved = browser.new_page()
        saved.set_content(text)
        assert "2.7 of 5" in saved.inner_text("main")
        assert saved.evaluate("() => [...document.images].map((each) => each.naturalWidth)") == [160, 160]
        assert saved.query_selector("button") is None
        saved.close()


def test_a_map_stands_beside_the_reasons_and_a_new_image_clears_the_result(
    visit, service_program, photo_file, tmp_path
):
    page = visit(service_program())
    page.set_input_files("#image", photo_file)
    judged(page)
    page.wait_for_function("() => document.getElementById('heatmap')?.naturalWidth === 160")
    assert page.locator("figure + .findings").count() == 1
    other, broken = tmp_path / "other.png", tmp_path / "broken.png"
    other.write_bytes(photo_file.read_bytes())
    broken.write_bytes(photo_file.read_bytes()[:200])
    page.set_input_files("#image", other)
    page.wait_for_selector("#answer", state="hidden")
    assert page.is_visible("#empty")
    judged(page)
    page.set_input_files("#image", broken)
    page.click("#submit")
    page.wait_for_selector("#error:not([hidden])")
    assert page.is_hidden("#answer")


def test_what_was_judged_in_place_of_the_upload_is_told(visit, service_program, tmp_path):
    from PIL import Image

    Image.new("RGBA", (160, 120), (90, 80, 70, 100)).save(tmp_path / "clear.png")
    page = visit(service_program())
    page.set_input_files("#image", tmp_path / "clear.png")
    assert "Note: transparency laid over white" in judged(page)


def test_a_picked_question_shows_its_options_and_regions_are_drawn(visit, service_program, photo_file):
    page = visit(service_program())
    page.set_input_files("#image", photo_file)
    page.click("text=Blurry?")
    page.wait_for_selector("#add-region:not([disabled])")
    page.focus("#add-region")
    page.keyboard.press("Enter")  # by keyboard alone
    page.keyboard.type("sign")
    page.locator("#stage").scroll_into_view_if_needed()
    frame = page.locator("#preview").bounding_box()
    page.mouse.move(frame["x"] + 10, frame["y"] + 10)
    page.mouse.down()
    page.mouse.move(frame["x"] + 60, frame["y"] + 50)
    page.mouse.up()
    text = judged(page)
    assert page.text_content("li[aria-current]") == "BNo"
    assert "Is the image blurry?" in text
    assert page.locator(".box").count() == 2
    assert "sign" in page.inner_text("#boxes")
    result = json.loads(page.text_content("#json"))
    assert result["state"]["regions"]["sign"] == [40, 30, 120, 90]
    assert result["state"]["options"] == {"A": "Yes", "B": "No"}


def test_dropped_and_pasted_images_are_taken(visit, service_program, photo_file):
    page = visit(service_program())
    script = """async ([id, type, bytes]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], `${type}.png`, {type: 'image/png'}));
        const given = {bubbles: true, cancelable: true};
        const event = type === 'paste' ? new ClipboardEvent(type, {...given, clipboardData: data})
            : new DragEvent(type, {...given, dataTransfer: data});
        document.querySelector(id).dispatchEvent(event);
    }"""
    data = list(photo_file.read_bytes())
    page.evaluate(script, ["#drop", "drop", data])
    page.wait_for_function("() => document.getElementById('image-name').textContent.startsWith('drop.png · 160')")
    page.evaluate(script, ["#query", "paste", data])
    page.wait_for_function("() => document.getElementById('image-name').textContent.startsWith('paste.png · 160')")
    page.evaluate(script, ["[data-kind=reference]", "drop", data])
    assert "drop.png" in page.inner_text("#reference-name")
    judged(page)
    assert json.loads(page.text_content("#json"))["state"]["reference_path"] == "drop.png"


def test_errors_are_told_on_the_page(visit, service_program, photo_file, tmp_path):
    page = visit(service_program(serve={"max_body_mb": 1}))
    page.click("#submit")
    assert page.inner_text("#error") == "Choose an image first."
    bad = tmp_path / "notes.png"
    bad.write_text("no image")
    page.set_input_files("#image", bad)
    page.wait_for_selector("#unshown:not([hidden])")
    page.click("#submit")
    page.wait_for_function(
        "() => document.getElementById('error').textContent.includes(\"image 'notes.png': not an image\")"
    )
    big = tmp_path / "big.png"
    big.write_bytes(photo_file.read_bytes() + bytes(2_000_000))
    page.set_input_files("#image", big)
    page.click("#submit")
    page.wait_for_function("() => document.getElementById('error').textContent.includes('over 1 MiB')")
    page.set_input_files("#image", photo_file)
    judged(page)
    assert page.is_hidden("#error")


def test_a_token_is_asked_for_and_used(visit, service_program, photo_file):
    token = "token-of-more-than-sixteen"
    page = visit(service_program(), token)
    page.wait_for_selector("#token-row:not([hidden])")
    page.set_input_files("#image", photo_file)
    page.click("#submit")
    page.wait_for_selector("#error:not([hidden])")
    assert "Bearer" in page.inner_text("#error")
    page.fill("#token", token)
    assert "of 5" in judged(page)
    assert token not in page.evaluate("JSON.stringify({...localStorage, ...sessionStorage, c: document.cookie})")


def test_planted_markup_stays_text(visit, service_program, photo_file, tmp_path):
    # A slash cannot stand in a file name.
    named = tmp_path / "<img src=x onerror=alert(1)>.png"
    named.write_bytes(photo_file.read_bytes())
    script = {
        "findings": {
            "findings": [{"region": "Global", "type": "Blurs", "severity": "severe", "explanation": f"x {EVIL}"}]
        },
        "final_answer": {"final_answer": f"Fine {EVIL}", "quality_reasoning": f"Because {EVIL}"},
    }
    page = visit(service_program(script=script))
    page.set_input_files("#image", named)
    page.fill("#query", f"Describe {EVIL}")
    page.wait_for_selector("#add-region:not([disabled])")
    page.click("#add-region")
    page.fill("[aria-label='Name of region 1']", EVIL[:100])
    text = judged(page)
    assert text.count("<script>") >= 4
    assert "<img src=x onerror=alert(1)>.png" in page.inner_text("#image-name")
    assert page.title() == "AgenticIQA"
    assert page.locator("main script, main img[src='x'], [onerror]").count() == 0


@pytest.mark.parametrize("width", [320, 768, 1280])
def test_nothing_sticks_out_at_any_width(visit, service_program, photo_file, width):
    long = {"quality_probs": {"quality_probs": {"3": 1.0}, "quality_reasoning": "Soft" + "ness" * 60}}
    page = visit(service_program(script=long), color_scheme="dark")
    page.set_viewport_size({"width": width, "height": 700})
    page.set_input_files("#image", photo_file)
    page.wait_for_selector("#add-region:not([disabled])")
    page.click("#add-region")
    judged(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    unnamed = page.evaluate(
        """[...document.querySelectorAll('input, textarea, button')].filter((e) =>
            !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim())).length"""
    )
    assert unnamed == 0


@pytest.mark.slow
@pytest.mark.spec("issue-72/accessible")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_the_page(visit, service_program, photo_file, violations, scheme):
    page = visit(service_program(), color_scheme=scheme, bypass_csp=True)
    assert violations(page) == []
    page.set_input_files("#image", photo_file)
    judged(page)
    page.wait_for_selector("#heatmap")
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert violations(page) == []
    page.set_viewport_size({"width": 400, "height": 800})
    page.click("#theme")
    page.set_input_files("#other", photo_file)
    judged(page)
    assert violations(page) == []


def test_the_api_page_shows_the_routes(visit, service_program):
    page = visit(service_program())
    page.goto(page.url + "docs")
    page.wait_for_selector("text=POST /assess/batch")
    assert "image_path" in page.inner_text("#operations")


@pytest.mark.slow
def test_the_evaluation_report_keeps_planted_markup_as_text(browser, tmp_path, encoded):
    from data.manifest import Sample
    from program.evaluation.figures import details_of, summarize
    from program.evaluation.publishing import render
    from program.evaluation.record import Dataset
    from tests.rows import labelled

    image = tmp_path / "a.png"
    image.write_bytes(encoded())
    rows = [
        labelled(id=f"{i}{EVIL}", group=f"g{i}", task="scoring", truth=1.0 + i, predicted=3.0, status="ok",
            attempt="first call", reasoning=EVIL)
        for i in range(4)
    ]  # fmt: skip
    record = summarize(rows, dataset=Dataset(name=EVIL, split="test"))
    record = record.model_copy(update={"details": details_of(rows)})
    samples = [Sample(id=row.id, image=image, mos=3.0, query=EVIL) for row in rows]
    (tmp_path / "report.html").write_text(render(record, samples), "utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    assert "<script>" in page.inner_text("body")
    assert "pwned" not in page.title().replace(EVIL, "")
    assert page.locator("script, img[src='x']").count() == 0
    page.close()
