"""SECURITY.md: each promise names tests that hold it."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_each_promise_names_tests_and_each_of_them_exists() -> None:
    section = (ROOT / "SECURITY.md").read_text("utf-8").partition("## Promised\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for row in rows:
        names = re.findall(r"`(test_\w+)::(test_\w+)`", row)
        assert names, row
        for file, test in names:
            text = (ROOT / "tests" / f"{file}.py").read_text("utf-8")
            assert re.search(rf"^def {test}\(", text, re.MULTILINE), f"{file}::{test}"
