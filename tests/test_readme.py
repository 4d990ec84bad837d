"""Every block of the README and of docs/tracking.md runs, in a folder with the files that they name."""

import json
import re
import runpy
import shlex
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from agentic_iqa.__main__ import main
from data.manifest import read_manifest
from program.common.settings import load_settings
from program.evaluation.evaluating import evaluate
from tests.pages import blocks_of, page
from tests.pictures import blocks
from tests.tables import as_lines

ROOT = Path(__file__).resolve().parents[1]
README = page("README.md")
TRACKING = page("docs/tracking.md")
BLOCKS = blocks_of(README + TRACKING)

ELSEWHERE = (
    "make ", "agentic-iqa runs", "mlflow models serve", "--lm openai", ". .venv", "agentic-iqa rate", "--data ratings",
    "gallery photos", "--data culled",
)  # fmt: skip
"""Lines that tests of their own run: the two commands (`.ci/run`), MLflow's page (`test_mlflow_browser.py`) and server
(`test_registry.py`), remote models (`test_models_docs.py`), rating and culling (`test_rating.py`, and others)."""


def commands() -> list[str]:
    lines = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines() if line.strip()]
    return [line for line in lines if not any(part in line for part in ELSEWHERE)]


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Path:
    photo = Image.fromarray(blocks(rng, 12, 16, 8))
    photo.save(tmp_path / "photo.jpg")
    photo.save(tmp_path / "original.png")
    photo.resize((64, 48)).resize(photo.size).save(tmp_path / "distorted.png")
    (tmp_path / "photos").mkdir()
    photo.rotate(90).save(tmp_path / "photos" / "one.png")
    lines = []
    for number, split in enumerate(("train", "train", "validation", "test")):
        for level in range(4):
            name = f"{number}-{level}.png"
            small = photo.rotate(90 * number).resize((128 >> level, 96 >> level))
            small.resize((128, 96)).save(tmp_path / name)
            lines.append({"id": name, "image": name, "mos": 5 - level, "group": str(number), "split": split})
    (tmp_path / "manifest.jsonl").write_text(as_lines(lines), "utf-8")
    (tmp_path / "small.yaml").write_text("compile: {rerank: 1}\n")
    monkeypatch.setenv("AGENTICIQA_CONFIG", str(tmp_path / "small.yaml"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn", "coarse")
@pytest.mark.filterwarnings("default")  # MLflow's model code warns of its own type hints
def test_the_shell_lines_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(commands()) >= 6
    for line in commands():
        command, *words = shlex.split(line)
        assert command == "agentic-iqa", line
        assert main(words) == 0, (line, capsys.readouterr().err)
    assert (folder / "programs" / "mine" / "program.json").is_file()


def test_the_python_blocks_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [text for language, text in blocks_of(README) if language == "python"]
    assert blocks
    for text in blocks:
        exec(compile(text, "README.md", "exec"), {})  # noqa: S102
    shown = capsys.readouterr().out.splitlines()
    assert re.match(r"[A-Z][a-z]+ \([1-5]\.\d of 5, likely", shown[0])
    assert shown[-1].startswith(("A {", "B {", "C {"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # MLflow warns of its own dependencies
def test_mlflows_own_evaluation_agrees_with_ours(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mlruns").mkdir()
    lines = (folder / "manifest.jsonl").read_text("utf-8")
    question = {"query": "Is this image blurry?", "options": {"A": "Yes", "B": "No"}, "answer": "A"}
    asked = {"id": "asked", "image": "3-3.png", "group": "3", "split": "test", **question}
    (folder / "manifest.jsonl").write_text(f"{lines}{json.dumps(asked)}\n", "utf-8")
    *_, text = (text for language, text in blocks_of(TRACKING) if language == "python")
    names: dict[str, Any] = {}
    exec(compile(text, "tracking.md", "exec"), names)  # noqa: S102
    record = evaluate(names["iqa"], folder / "manifest.jsonl", progress=False)
    metrics = names["result"].metrics
    assert metrics["score_error/rank_correlation"] == pytest.approx(record.srcc.value)
    assert metrics["accuracy/mean"] == pytest.approx(record.accuracy.value)
    assert record.srcc.n == 4
    (settings,) = (yaml.safe_load(text) for language, text in blocks_of(TRACKING) if language == "yaml")
    assert load_settings(overrides=settings).tracking.traces == 0


def test_the_json_block_is_a_manifest(tmp_path: Path) -> None:
    (text,) = (text for language, text in BLOCKS if language == "json")
    (tmp_path / "manifest.jsonl").write_text(text, "utf-8")
    scored, asked = read_manifest(tmp_path / "manifest.jsonl")
    assert (scored.task, asked.task) == ("scoring", "mcq")


@pytest.mark.spec("issue-51/short-pages")
def test_the_readme_and_the_pages_are_short_and_plain() -> None:
    counter = runpy.run_path(str(ROOT / "docs" / "word_count.py"))
    pages = {name: page for name, page in counter["pages"]().items() if name not in counter["LOGS"]}
    assert README.count("\n") <= 110
    assert pages["README.md"][0] <= 600
    assert sum(count for count, _ in pages.values()) <= 10_850
    assert all(statistics.median(eases) >= 50 for _, eases in pages.values())
