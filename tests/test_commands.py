"""The commands as a shell sees them: exit codes, output, one-line errors, nothing half-written."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dspy import lm15
from PIL import Image

from data import check, prepare
from program import AgenticIQA, assess, compile, evaluate, serve
from program.agent.saving import save
from tests.scenarios import grain, write_lines

pytestmark = pytest.mark.usefixtures("coarse", "measured_once")


@pytest.fixture
def photo(tmp_path: Path, rng: np.random.Generator) -> Path:
    grain(rng, 6, 8, 16).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert "Traceback" not in captured.err
    return captured.err


def test_assess_prints_a_score_with_its_evidence(photo, capsys) -> None:
    assert assess.main([str(photo)]) == 0
    shown = capsys.readouterr().out
    assert re.match(r"[A-Z].*\([1-5]\.\d of 5, likely", shown)
    assert assess.main([str(photo), "-v", "--query", "Rate the quality, with LiteNR."]) == 0
    assert "LiteNR" in capsys.readouterr().out


def test_assess_json_holds_the_assessment(photo, capsys) -> None:
    assert assess.main([str(photo), "--reference", str(photo), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["status"] == "ok"
    assert result["final_answer"] == result["quality_score"] > 4
    assert result["state"]["plan"]["reference_mode"] == "Full-Reference"
    assert result["state"]["executor_evidence"]["tool_logs"]


def test_a_folder_is_summed_up_at_its_end(scenario, transcript) -> None:
    folder = scenario("folder")
    transcript(folder)
    assert len((folder.folder / "tables" / "review.csv").read_text("utf-8").splitlines()) == 33


def test_a_gallery_says_what_it_holds(scenario, transcript) -> None:
    pytest.importorskip("imagehash", reason="the extra [gallery] is not installed")
    gallery = scenario("gallery")
    transcript(gallery)
    assert len((gallery.folder / "gallery" / "gallery.jsonl").read_text("utf-8").splitlines()) == 8


def test_what_an_answer_lacks_is_told_in_a_sentence(tmp_path, capsys) -> None:
    Image.new("RGB", (1, 1)).save(tmp_path / "one.png")
    assert assess.main([str(tmp_path / "one.png"), "--query", "Rate the quality, with LiteNR."]) == 1
    end = capsys.readouterr().out.splitlines()[-1]
    assert end == "The answer rests on less than usual: every tool of the plan failed."


def test_assess_answers_a_question_with_one_of_its_options(photo, capsys) -> None:
    assert assess.main([str(photo), "--query", "Is the image noisy? A. Yes B. No", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["final_answer"] in {"A", "B"}
    assert assess.main([str(photo), "--query", "How noisy is it?", "--option", "very", "--option", "not at all"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.png"], "none.png': no such file; check the path"),
        (["{photo}", "--reference", "none.png"], "none.png': no such file"),
        (["{photo}", "--lm", "gpt"], "model 'gpt': not of the form provider/model"),
        (["{photo}", "--query", " "], "is no text; ask something"),
        (["{photo}", "--query", "Rate \ud800 it."], "half of a surrogate pair"),
        (["{photo}", "--option", "only"], "--option 'only': is the only one; give --option twice or more"),
        (["{photo}", "--program", "{folder}"], "no program.json in it"),
        (["{photo}", "--program", "{folder}/none"], "none': no such folder; give a folder that compile wrote"),
        (["{photo}", "--program", "{photo}"], "photo.png': no such folder; give a folder that compile wrote"),
        (["{photo}", "--config", "none.yaml"], "settings file 'none.yaml': cannot be read"),
    ],
)
def test_assess_names_what_cannot_be_used(photo, capsys, arguments, message) -> None:
    filled = [a.format(photo=photo, folder=photo.parent) for a in arguments]
    assert assess.main(filled) == 2
    assert message in one_line(capsys)


def test_compile_saves_a_program_that_assess_and_evaluate_use(scenario, photo) -> None:
    taught, evaluated = scenario("taught"), scenario("taught-evaluated")
    assert (taught.code, evaluated.code) == (0, 0)
    result, record = taught.json("taught/program.json")["record"], json.loads(evaluated.out)
    for name in ("uncompiled", "compiled"):
        assert set(result[name]["srcc"]) >= {"value", "low", "high", "n"}
        assert result[name]["scoring"] == {"asked": 16, "used": 16, "failed": 0, "unlabelled": 0}
        assert result[name]["mcq"]["used"] == 4
    assert result["difference"]["srcc"]["n"] == 16
    assert record["srcc"]["value"] == pytest.approx(result["compiled"]["srcc"]["value"])
    assert record["accuracy"]["value"] == pytest.approx(result["compiled"]["accuracy"]["value"])
    assert assess.main([str(photo), "--program", str(taught.folder / "taught")]) == 0


def test_every_command_refuses_an_altered_program_and_takes_it_by_force(photo, tmp_path, capsys, monkeypatch):
    manifest = write_lines(tmp_path / "m.jsonl", [{"id": "a", "image": photo.name, "mos": 3, "split": "test"}])
    served = []
    monkeypatch.setattr("program.service.server.serve", lambda program, *_: served.append(program))
    file = save(AgenticIQA(), tmp_path / "program") / "program.json"
    text, instructions = file.read_text("utf-8"), AgenticIQA().planner.plan.signature.instructions
    file.write_text(text.replace(json.dumps(instructions, ensure_ascii=False), '"Plan."'), "utf-8")
    given = ["--program", str(file.parent)]
    assert assess.main([str(photo), *given]) == 0  # a person may edit instructions, and nothing else
    capsys.readouterr()
    altered = file.read_text("utf-8").replace('"demos": []', '"demos": [{"query": "x"}]', 1)
    file.write_text(altered, "utf-8")
    for command, words in ((assess, [str(photo)]), (evaluate, [str(manifest)]), (serve, ["--port", "0"])):
        assert command.main([*words, *given]) == 2
        assert str(file.parent) in one_line(capsys)
    assert serve.main(["--port", "0", *given, "--force"]) == 0
    assert served[0].planner.plan.signature.instructions == "Plan."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "none.jsonl"], "none.jsonl"),
        (["--data", "quickstrat"], "did you mean 'quickstart'"),
        (["--optimizer", "random"], "optimizer 'random': unknown"),
        (["--data", "{bad}"], "line 2"),
        (["--data", "{untold}"], "no labelled sample in split"),
        (
            ["--data", "{unlabelled}"],
            'no sample has a label; give "mos" (another column: --columns mos=NAME), or "options" with an "answer"',
        ),
        (["--out", "{folder}"], "holds other files; give a new or empty folder"),
        (["--out", "{bad}/a/b", "--dry-run"], "bad.jsonl' is a file; give a new or empty folder"),
    ],
)
def test_compile_refuses_before_it_starts_and_saves_nothing(tmp_path, capsys, arguments, message) -> None:
    (tmp_path / "bad.jsonl").write_text('{"id": "a", "image": "a.png", "mos": 1}\n{"id": "b"\n')
    (tmp_path / "untold.jsonl").write_text('{"id": "a", "image": "a.png", "mos": 1, "split": "train"}\n')
    (tmp_path / "unlabelled.jsonl").write_text('{"id": "a", "image": "a.png", "split": "train"}\n')
    names = {name: tmp_path / f"{name}.jsonl" for name in ("bad", "untold", "unlabelled")} | {"folder": tmp_path}
    filled = [a.format(**names) for a in arguments]
    if "--data" not in filled:
        filled += ["--data", str(tmp_path / "untold.jsonl")]
    before = sorted(tmp_path.rglob("*"))
    assert compile.main(filled) == 2
    assert message in one_line(capsys)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_the_system_refuses_is_one_line_and_a_traceback_only_for_who_asks(capsys, tmp_path, caplog):
    from program.common.cli import run_command

    def refused():
        raise PermissionError(13, "Permission denied", str(tmp_path / "there"))

    assert run_command(refused) == 2
    error = one_line(capsys)
    assert str(tmp_path / "there") in error
    assert "Permission denied" in error
    with caplog.at_level("INFO", logger="program"), pytest.raises(PermissionError):
        run_command(refused)


def test_what_was_judged_in_place_of_the_image_is_told(tmp_path, rng, capsys):
    from program.running.row import Row

    image, config, out = tmp_path / "a.png", tmp_path / "c.yaml", tmp_path / "out.jsonl"
    Image.fromarray(rng.integers(0, 256, (400, 400, 4), np.uint8)).save(image)
    config.write_text("tools: {reduce_above_px: 65536}\n", "utf-8")
    told = ["transparency laid over white", "measured at 200x200, each pixel the mean of 2x2"]
    query = "Rate the quality of this image with PIQE."
    assert assess.main([str(image), "--query", query, "--config", str(config)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"note: {'; '.join(told)}" in shown
    assert assess.main([str(image), "--query", query, "--config", str(config), "--out", str(out)]) == 0
    assert Row.model_validate_json(out.read_text("utf-8")).notes == "; ".join(told)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("perceptual/exprt", "model 'perceptual/exprt': unknown (did you mean 'perceptual/expert'?)"),
        ("perceptul/expert", "there is no provider 'perceptul'; did you mean 'perceptual/expert'?"),
        ("mistrl/small", "there is no provider 'mistrl'; did you mean 'mistral/small'?"),
        ("nosuch/model", "there is no provider 'nosuch'; for a server of your own give --api-base"),
        ("openai/gpt-4o", "language model: [openai/gpt-4o] there is no key; set OPENAI_API_KEY in the environment\n"),
        ("vllm/x --api-base http://127.0.0.1:9/v1", "no server answers at http://127.0.0.1:9/v1"),
    ],
)
def test_a_model_that_cannot_be_asked_is_told_in_the_users_words(photo, capsys, monkeypatch, model, message):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between attempts
    assert assess.main([str(photo), "--lm", *model.split()]) == 2
    error = one_line(capsys)
    assert message in error
    assert "dspy.LM(" not in error
    assert "litellm" not in error


@pytest.mark.parametrize(
    ("where", "reason", "end"),
    [
        ("", "Name or service not known", "Name or service not known; check the network connection"),
        ("", "Connection refused", "openai/gpt-4o: its service takes no connection; check the network connection"),
        (" --api-base http://127.0.0.1:9/v1", "Connection reset", "reset; is the server running at --api-base?"),
    ],
)
def test_an_address_is_doubted_only_where_the_user_gave_it(photo, capsys, monkeypatch, where, reason, end):
    def cut(*_):
        raise lm15.TransportError(f"failed to connect: {reason}")

    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-no-service")
    monkeypatch.setattr("program.lms.dspy_private.StdlibTransport.stream", cut)
    monkeypatch.setattr("program.lms.traits.inquire", lambda engine: None)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between attempts
    assert assess.main([str(photo), "--lm", "openai/gpt-4o", *where.split()]) == 2
    assert one_line(capsys).endswith(f"{end}\n")


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (assess, "x.png --seed x", "--seed: 'x': give a whole number from 0"),
        (assess, "x.png --min-score abc", "--min-score: 'abc': give a number from 1 to 5"),
        (assess, "x.png --workers 0", "--workers: '0': give a whole number from 1"),
        (assess, "x.png --optoin Yes", "--optoin: unknown; did you mean --option?"),
        (assess, "x.png --zzz", "--zzz: unknown; --help shows what there is"),
        (assess, "", "the following arguments are required: IMAGE"),
        (assess, "x.png --max-cost nan", "--max-cost: 'nan': give a number from 0"),
        (compile, "--demos many", "--demos: 'many': give a whole number from 1"),
        (evaluate, "quickstart --split tst", "--split: invalid choice: 'tst' (choose from"),
        (serve, "--port 99999", "--port: '99999': give a whole number from 0 to 65535"),
        (prepare, "table --seed x", "--seed: 'x': give a whole number from 0"),
        (check, "m.jsonl --no-decod3", "--no-decod3: unknown; did you mean --no-decode?"),
    ],
)
def test_an_option_that_cannot_be_used_is_one_line(capsys, command, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments.split())
    assert one_line(capsys).startswith(f"error: {message}")


def test_a_reader_that_stops_reading_is_no_error(tmp_path):
    import subprocess
    import sys

    script = (
        "import sys, time\nfrom program.common.cli import run_command\n"
        "def body():\n    for _ in range(300):\n        sys.stdout.write('x' * 10**6)\n        time.sleep(0.01)\n"
        "sys.exit(run_command(body))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.read(1) == b"x"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


_STRIPPED = """
import json, sys, types
from agentic_iqa.__main__ import main
codes = [main(words) for words in json.loads(sys.argv[1])]
sys.modules["dspy"] = types.ModuleType("dspy")  # it would be compiled anew, which takes seconds
try:
    import signatures.planner
except RuntimeError as error:
    print(json.dumps([codes, str(error)]))
"""


@pytest.mark.slow
def test_python_without_docstrings_is_refused(tmp_path):
    commands = [
        ["assess", "a.png"], ["serve"], ["mcp"], ["evaluate", "m.jsonl"], ["compile"], ["gallery", ".", "--out", "o"],
        ["data", "prepare", "table", "--root", "t.csv", "--out", "m.jsonl"], ["data", "check", "m.jsonl"],
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-OO", "-c", _STRIPPED, json.dumps(commands)], capture_output=True, text=True, check=False,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
    )  # fmt: skip
    codes, error = json.loads(done.stdout)
    assert codes == [2] * len(commands)
    assert error.startswith(
        "Python with -OO (PYTHONOPTIMIZE=2): drops the instructions that are sent to a model; run it"
    )
    assert done.stderr.splitlines() == [f"error: {error}"] * len(commands)
