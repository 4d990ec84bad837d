"""Rates pictures by keys in a headless Chromium while the server is killed again and again: is an answer lost, or two?

python benchmarks/rating_kills.py [--ratings 300] [--kills 10]
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


class Server:
    """The command, killed (SIGKILL) at random moments and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        self.words = [sys.executable, "-m", "agentic_iqa", "rate", str(folder / "photos"), "--out", str(folder / "out")]
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "AGENTICIQA_CACHE_DIR": str(folder / "cache")}
        self.address = self._start("0")

    def _start(self, port: str) -> str:
        words = [*self.words, "--port", port]
        self.process = subprocess.Popen(words, env=self.environment, stdout=subprocess.PIPE, text=True)
        match = re.search(r"http://\S+", self.process.stdout.readline())
        return match[0]

    def kill(self) -> None:
        """End it without a word, and start it again."""
        self.process.kill()
        self.process.wait()
        self._start(self.address.rstrip("/").rpartition(":")[2])

    def stop(self) -> str:
        """End it as Ctrl-C does, and return what it says."""
        self.process.terminate()
        return self.process.communicate()[0]


def main(argv: list[str] | None = None) -> int:
    """Rate, kill, and compare what was pressed with what was kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ratings", type=int, default=300)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        (folder / "photos").mkdir()
        rng = np.random.default_rng(0)
        for number in range(arguments.ratings):
            pixels = rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / f"{number:04}.png")
        server = Server(folder)
        try:
            browser = playwright.chromium.launch(executable_path=arguments.chromium, args=FLAGS)
            page = browser.new_page()
            page.goto(server.address)
            pressed = _rate(page, server, arguments.ratings, arguments.kills)
            page.wait_for_selector(f"#counts >> text=/^{_firsts(page)} rated/")
            browser.close()
            sys.stdout.write(server.stop())
        finally:
            server.process.kill()
        lines = [json.loads(line) for line in (folder / "out" / "ratings.jsonl").read_text("utf-8").splitlines()]
    kept = [line["mos"] for line in lines]
    keys = [(line["id"], line["repeat"]) for line in lines]
    doubled = len(keys) - len(set(keys))
    print(f"{len(pressed)} pressed, {len(kept)} kept, {doubled} doubled, {arguments.kills} kills; "
          f"the same in order: {kept == pressed}")  # fmt: skip
    return int(kept != pressed or doubled > 0)


def _firsts(page: Page) -> int:
    return int(page.inner_text("#counts").split()[0])


def _rate(page: Page, server: Server, count: int, kills: int) -> list[int]:
    rng, pressed, shown = random.Random(0), [], ""
    moments = set(rng.sample(range(5, count - 5), kills))
    killing: threading.Thread | None = None
    while True:
        state = page.wait_for_selector(f"html[data-shown]:not([data-shown='']):not([data-shown='{shown}'])",
                                       timeout=120_000)  # fmt: skip
        shown = state.get_attribute("data-shown")
        if shown == "end":
            break
        if len(pressed) in moments:
            if killing is not None:
                killing.join()
            killing = threading.Thread(target=server.kill)
            killing.start()
            time.sleep(rng.random() / 50)
        pressed.append(rng.randint(1, 5))
        page.keyboard.press(str(pressed[-1]))
    if killing is not None:
        killing.join()
    return pressed


if __name__ == "__main__":
    sys.exit(main())
