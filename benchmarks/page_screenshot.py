"""Draws docs/images/page.png: the page with a real answer, in a headless Chromium that is already installed.

python benchmarks/page_screenshot.py [--out docs/images/page.png] [--width 1240] [--dark] [--question]
python benchmarks/page_screenshot.py --card --out docs/images/answer.png --width 1040 --height 340
python benchmarks/page_screenshot.py --gallery --out docs/images/gallery.png --height 640
python benchmarks/page_screenshot.py --rating --out docs/images/rating.png --width 1040 --height 620
"""

import argparse
import io
import os
import re
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

from PIL import Image, ImageEnhance, ImageFilter
from playwright.sync_api import Page, sync_playwright
from skimage import data

from agentic_iqa import AgenticIQA
from agentic_iqa.__main__ import main as gallery

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


def main() -> None:
    """Start the service, ask it once, and save what the page shows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "page.png")
    parser.add_argument("--width", type=int, default=1240)
    parser.add_argument("--height", type=int, default=820)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--question", action="store_true", help="a multiple-choice question with regions")
    parser.add_argument("--card", action="store_true", help="what a notebook shows of the answer, instead of the page")
    parser.add_argument("--gallery", action="store_true", help="the gallery of some bursts, instead of the page")
    parser.add_argument("--rating", action="store_true", help="the page on which a person rates, instead of the page")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        photo = _photo(Path(folder))
        environment = {**os.environ, "AGENTICIQA_CACHE_DIR": folder}
        words = ["serve"]
        if arguments.rating:
            words = ["rate", str(_gallery(Path(folder)).parents[1] / "A day in May"), "--out", folder]
        service = subprocess.Popen(
            [sys.executable, "-m", "agentic_iqa", *words, "--port", "0"], cwd=ROOT, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            url = re.search(r"http://\S+", service.stdout.readline())[0]
            browser = playwright.chromium.launch(executable_path=arguments.chromium, args=FLAGS)
            scheme = "dark" if arguments.dark else "light"
            size = {"width": arguments.width, "height": arguments.height}
            page = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=1)
            if arguments.rating:
                page.goto(url)
                page.wait_for_selector("html[data-ready]")
                for key in "45324":
                    name = page.wait_for_selector("html:not([data-shown=''])").get_attribute("data-shown")
                    page.keyboard.press(key)
                    page.wait_for_selector(f"html[data-shown]:not([data-shown='']):not([data-shown='{name}'])")
                page.wait_for_selector("#counts >> text=5 rated")
            elif arguments.gallery:
                page.goto(_gallery(Path(folder)).as_uri())
                page.wait_for_selector("html[data-ready]")
                page.wait_for_load_state("networkidle")
            elif arguments.card:
                page.set_content(AgenticIQA()(image=photo)._repr_html_())
            else:
                page.goto(url)
                _ask(page, photo, question=arguments.question)
            _save(page.screenshot(full_page=True), arguments.out)
            browser.close()
        finally:
            service.terminate()
            service.wait()


def _photo(folder: Path) -> Path:
    """Write scikit-image's photograph of an astronaut, blurred and compressed."""
    image = Image.fromarray(data.astronaut()).filter(ImageFilter.GaussianBlur(1.6))
    path = folder / "astronaut, blurred.jpg"
    image.save(path, quality=22)
    return path


def _gallery(folder: Path) -> Path:
    """Make the gallery of a few bursts of scikit-image's photographs, and return its page."""
    day, start = folder / "A day in May", datetime(2026, 5, 1, 10, 0)
    day.mkdir()
    for number, name in enumerate(("coffee", "chelsea", "astronaut")):
        photo = Image.fromarray(getattr(data, name)())
        moved = photo.crop((10, 8, photo.width - 6, photo.height - 4))
        bright = ImageEnhance.Brightness(moved).enhance(1.7)
        for at, version in enumerate((moved.filter(ImageFilter.GaussianBlur(1.6)), photo, bright, moved)[: 4 - number]):
            exif = Image.Exif()
            taken = f"{start + timedelta(minutes=number, seconds=at):%Y:%m:%d %H:%M:%S}"
            exif[0x8769] = {36867: taken, 33434: 1 / 250, 33437: 2.8, 34855: 400, 37386: 50.0}
            version.save(day / f"IMG_{4201 + 7 * number + at}.jpg", quality=94, exif=exif)
    gallery(["gallery", str(day), "--out", str(folder / "out")])
    return folder / "out" / "gallery.html"


def _ask(page: Page, photo: Path, *, question: bool) -> None:
    page.set_input_files("#image", photo)
    page.wait_for_function("() => document.getElementById('preview').naturalWidth > 0")
    if question:
        page.click("text=Blurry?")
        page.click("#add-region")
        page.fill("[aria-label='Name of region 1']", "face")
        for side, value in zip(("Left", "Top", "Right", "Bottom"), (170, 60, 290, 190), strict=True):
            page.fill(f"[aria-label='{side} of region 1 in pixels']", str(value))
        page.fill("#query", "Is the face blurry?")
    page.click("#submit")
    page.wait_for_selector("#heatmap", timeout=60_000)


def _save(png: bytes, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    # 256 colours are enough for a page, and keep the file small.
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(out, optimize=True)


if __name__ == "__main__":
    main()
