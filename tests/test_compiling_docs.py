"""Every block of docs/compiling.md runs, and its table names the recipes there are."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from agentic_iqa.__main__ import main
from program.compile import OPTIMIZERS
from signatures.rubric import rubric_in
from tests.pages import blocks_of, lines_of, page
from tests.pictures import blocks
from tests.tables import as_lines

TEXT = page("docs/compiling.md")
BLOCKS = blocks_of(TEXT)
LINES = lines_of(TEXT)

SMALL = """
compile: {rerank: 1, baselines: false}
tracking: {traces: 0}
optimizers:
  model:
    gepa: {metric_calls: 14, minibatch: 2, search_samples: 4}
    bootstrap: {demos: 2, role_demos: 1, bootstrapped: 1}
"""


@pytest.fixture
def folder(
    tmp_path: Path,
    rng: np.random.Generator,
    undrawn: None,
    unlogged: None,
    untracked: None,
    coarse: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    lines = []
    for number in range(44):
        split = "train" if number < 30 else "validation" if number < 40 else "test"
        small = blocks(rng, 6, 8, 8)
        Image.fromarray(small).save(tmp_path / f"{number}.png")
        shared = {"id": str(number), "image": f"{number}.png", "split": split, "labels": "made-up"}
        lines.append({**shared, "mos": 1 + number % 5})
    (tmp_path / "manifest.jsonl").write_text(as_lines(lines), "utf-8")
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(lines[i]) + "\n" for i in (0, 1, 2, 31, 32, 41)), "utf-8")
    (tmp_path / "small.yaml").write_text(SMALL, "utf-8")
    monkeypatch.setenv("AGENTICIQA_CONFIG", str(tmp_path / "small.yaml"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_lines_of_the_embedded_expert_run(folder, capsys) -> None:
    lines = [line for line in LINES if "--lm" not in line]
    assert len(lines) == 4
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, (line, capsys.readouterr().err)
    for name in ("mine", "both"):
        assert (folder / "programs" / name / "program.json").is_file(), name


def test_the_lines_with_a_language_model_run(folder, loopback, capsys) -> None:
    server = loopback(models=["small-vlm", "large-vlm"])
    lines = [line for line in LINES if "--lm" in line]
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line.replace("manifest.jsonl", "few.jsonl"))[1:]
        assert main([*words, "--api-base", server.base]) == 0, (line, capsys.readouterr().err)
    assert {question.model for question in server.asked} == {"small-vlm", "large-vlm"}


def test_the_python_blocks_run(folder, capsys) -> None:
    text, rubric = (text for language, text in BLOCKS if language == "python")
    exec(text, {})  # noqa: S102
    # Which verdict it is depends on the expert; that there is one does not.
    assert "folds of the labels" in capsys.readouterr().out
    namespace: dict = {}
    exec(rubric, namespace)  # noqa: S102
    assert rubric_in(namespace["iqa"].summarizer.explain.signature.instructions).weights == {"Noise": 0.0}


def test_the_end_of_the_first_compile_is_shown_within_80_columns() -> None:
    page = Path(__file__).resolve().parents[1] / "docs" / "first-result.md"
    (shown,) = re.findall(r"^```text\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert max(map(len, shown.splitlines())) <= 80
    learned = [line.removeprefix("  - ") for line in shown.splitlines() if line.startswith("  - ")]
    assert rubric_in("\n".join(learned)).weights.items() >= {"Noise": 0.0, "Compression": 2.0}.items()


def test_the_table_names_every_recipe() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", TEXT, re.MULTILINE)
    assert rows == list(OPTIMIZERS)
