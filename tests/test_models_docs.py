"""Every block of docs/models.md runs, with a server of this machine in the place of those it names."""

import io
import re
import shlex
from pathlib import Path

import dspy
import numpy as np
import pytest
import yaml
from dspy import lm15
from PIL import Image

from agentic_iqa.__main__ import main
from program.agent import checks
from program.agent.checks import COLOURS
from program.common.settings import load_settings
from tests.pages import blocks_of, page

TEXT = page("docs/models.md")
BLOCKS = blocks_of(TEXT)
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/v1")
"""Of vLLM, Ollama, LM Studio or llama.cpp: the loopback server stands in their place."""


def of(language):
    return [text for found, text in BLOCKS if found == language]


def seeing(question):
    pixels = np.asarray(Image.open(io.BytesIO(question.images[0])))
    names = {colour: name for name, colour in COLOURS.items()}
    return {"left": names[tuple(pixels[0, 0].tolist())], "right": names[tuple(pixels[0, -1].tolist())]}


@pytest.fixture
def server(loopback, tmp_path, monkeypatch, picture):
    """A server in the place of all that are named: the one at 8000, and OpenAI's own."""
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    running = loopback(models=["qwen2.5-vl-7b"], rules=[("left", seeing)])
    (tmp_path / "lab.yaml").write_text(ADDRESS.sub(running.base, of("yaml")[0]))
    Image.fromarray(picture(6, height=96, width=128)).save(tmp_path / "photo.jpg")
    real = lm15.RouterConfig
    monkeypatch.setattr(
        lm15, "RouterConfig",
        lambda **k: real(**{"base_urls": {"openai-chat": running.base} if "providers" not in k else None, **k}),
    )  # fmt: skip
    monkeypatch.setattr(checks, "_torch", lambda _: checks.Check("torch", "ok", "not looked at"))
    monkeypatch.setattr(checks, "_store", lambda _: checks.Check("MLflow store", "ok", "not looked at"))
    for name in ("OPENAI_API_KEY", "LAB_API_KEY"):
        monkeypatch.setenv(name, "a-key-for-the-docs")
    monkeypatch.chdir(tmp_path)
    return running


@pytest.mark.parametrize("line", [line for text in of("bash") for line in text.splitlines()])
def test_the_shell_lines_run(line, server, capsys):
    words = shlex.split(ADDRESS.sub(server.base, line), comments=True)
    assert words[0] == "agentic-iqa"
    assert main(words[1:]) == 0, capsys.readouterr()
    assert bool(server.asked) == ("--lm" in words)


def test_the_python_blocks_run(server, capsys):
    (text,) = of("python")
    exec(compile(ADDRESS.sub(server.base, text), "models.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == "ok [None]\n"
    assert server.asked


def test_the_yaml_block_configures_what_it_says(server, tmp_path):
    settings = load_settings(tmp_path / "lab.yaml")
    assert settings.models.summarizer.entry.model == "qwen2.5-vl-7b"
    assert settings.models.summarizer.images.max_side_px == 2048
    assert settings.models.backends["claude-by-gateway"].provider == "anthropic"


def test_the_limits_in_the_table_are_those_of_the_configuration():
    root = Path(__file__).resolve().parents[1]
    limits = yaml.safe_load((root / "configs" / "model_backends.yaml").read_text("utf-8"))["images"]
    rows = {
        name: (formats, float(size))
        for name, formats, size in re.findall(r"^\| ([\w ,]+?) \| ([PJW][\w, ]+?) \| ([\d.]+) MB", TEXT, re.MULTILINE)
    }
    names = {"openai": "OpenAI", "anthropic": "Anthropic", "gemini": "Gemini", "server": "a server, and any other"}
    for key, name in names.items():
        formats = ", ".join({"png": "PNG", "jpeg": "JPEG", "webp": "WebP"}[f] for f in limits[key]["formats"])
        assert rows[name] == (formats, limits[key]["max_bytes"] / 1e6)
