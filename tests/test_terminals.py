"""Terminals that lack letters and users without a home folder: output is escaped, commands work or say one line."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.text import Text

from agentic_iqa.__main__ import COMMANDS, main
from program.common.cli import run_command
from program.common.console import Console
from tests.pictures import noise
from tests.tables import as_lines


@pytest.fixture
def photos(tmp_path: Path, rng: np.random.Generator) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("模糊.png", "é☀😀.png"):
        Image.fromarray(noise(rng, 64, 64)).save(folder / name)
    return folder


@pytest.fixture
def terminal(monkeypatch):
    """Return what runs a command before a terminal of an encoding, and returns its exit code and what stands there."""

    def run(encoding: str, *words: str) -> tuple[int, str]:
        shown = io.TextIOWrapper(io.BytesIO(), encoding)
        monkeypatch.setattr(sys, "stdout", shown)
        try:
            code = main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        shown.flush()
        return code, shown.buffer.getvalue().decode(encoding)

    return run


@pytest.mark.spec("047/terminals-as-they-are")
@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "cp437", "shift_jis"])
def test_output_in_a_narrow_encoding_escapes_what_it_lacks(photos, terminal, encoding, tmp_path):
    out = tmp_path / "out.csv"
    code, shown = terminal(encoding, "assess", str(photos), "--out", str(out))
    assert code == 0
    assert "2 images" in shown
    if encoding == "ascii":
        assert "\\u6a21\\u7cca.png" in shown
    code, shown = terminal(encoding, "assess", str(photos), "--json")
    assert code == 0
    assert {row["id"] for row in json.loads(shown)["worst"]} == {"模糊.png", "é☀😀.png"}
    assert "模糊.png" in out.read_text("utf-8")
    names = sorted(map(str, photos.iterdir()))
    assert terminal(encoding, "assess", "--compare", *names)[0] == 0
    assert terminal(encoding, "tools", "PSNR")[0] == 0


@pytest.mark.spec("047/terminals-as-they-are")
@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_shown_by_an_ascii_terminal(terminal, command):
    code, shown = terminal("ascii", *command.split(), "--help")
    assert code == 0
    assert "usage:" in shown


_NOBODY = """
import contextlib, io, json, os, pwd, sys
def nobody(*_):
    raise KeyError("uid not found")
pwd.getpwuid = pwd.getpwnam = nobody
from agentic_iqa.__main__ import main
found = []
for words, cache in json.loads(sys.argv[1]):
    os.environ.pop("AGENTICIQA_CACHE_DIR", None)
    if cache:
        os.environ["AGENTICIQA_CACHE_DIR"] = cache
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(words)
    found.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.spec("047/homes-as-they-are")
@pytest.mark.skipif(sys.platform == "win32", reason="a home is found otherwise there")
@pytest.mark.parametrize("command", ["tools", "doctor"])
def test_without_a_home_folder_commands_work_or_say_one_line(photos, tmp_path, command):
    assess, root = ["assess", str(photos / "模糊.png")], str(Path(__file__).resolve().parents[1])
    working = [assess, [command]]
    refused = [["assess", "~nobody/a.png"], ["data", "prepare", "table", "--root", "~/t.csv", "--out", "m.jsonl"]]
    asked = [(words, str(tmp_path / "cache")) for words in (*working, *refused)]
    asked += [(words, None) for words in (*working, ["gallery", str(photos), "--out", "g"])]
    kept = {name: value for name, value in os.environ.items() if name not in {"HOME", "AGENTICIQA_CACHE_DIR"}}
    done = subprocess.run(
        [sys.executable, "-c", _NOBODY, json.dumps(asked)], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**kept, "PYTHONPATH": root},
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert len(found) == 7
    for code, shown, _ in found[:2]:
        assert code in {0, 1}
        assert shown
    for code, _, error in found[2:]:
        assert (code, error.count("\n")) == (2, 1)
    for _, _, error in found[4:]:
        assert "set HOME to one, or give another cache_dir" in error


STEERING = "a\x1b]0;title\x07\x9b2J\u202egnp.png"
"""A name that sets a terminal's title, clears it, and turns the direction of writing."""


@pytest.mark.skipif(sys.platform == "win32", reason="no such names there")
def test_no_command_writes_what_steers_a_terminal(program, encoded, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    folder, table = Path(f"in{STEERING}"), f"{STEERING}.jsonl"
    folder.mkdir()
    image = str(folder / STEERING)
    Path(image).write_bytes(encoded())
    rows = [
        {"id": STEERING, "image": image, "mos": 3, "group": STEERING},
        {"id": "b", "image": f"none{STEERING}", "mos": 3},
    ]
    Path(table).write_text(as_lines(rows), "utf-8")
    shown = ""
    for words in (
        ["assess", "--compare", image, image], ["assess", "--compare", "--json", image, image], ["assess", image],
        ["assess", "--compare", image, f"none{STEERING}"], ["assess", table, "--out", f"{STEERING}.csv"],
        ["assess", image, "--columns", STEERING], ["assess", f"--{STEERING}"], ["assess", image, "--seed", STEERING],
        ["data", "check", table], ["data", "check", table, "--json"], [STEERING],
        ["data", "prepare", STEERING, "--root", STEERING, "--out", f"{STEERING}.jsonl"],
        ["data", "prepare", "table", "--root", table, "--out", f"out{STEERING}.jsonl", "--fractions", "0,0,1"],
        ["evaluate", table], ["evaluate", STEERING], ["compile", "--data", table, "--dry-run"], ["runs", STEERING],
        ["gallery", STEERING, "--out", "out"], ["tools", STEERING], ["calibrate", STEERING, "--out", "c.json"],
    ):  # fmt: skip
        with contextlib.suppress(SystemExit):
            main(words)
        said = "".join(capfd.readouterr())
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*said}, words
        shown += said
    assert shown.count("title") > 20


def test_json_with_any_name_is_json(program, encoded, tmp_path, monkeypatch, capsys):
    name = "a\x9b2J\u202e\u200d.png" if sys.platform == "win32" else STEERING
    (tmp_path / name).write_bytes(encoded())
    assert main(["assess", str(tmp_path / name), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"]["image_path"] == name


def test_the_traceback_of_a_bug_steers_no_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    def bug():
        raise RuntimeError(STEERING)

    with pytest.raises(RuntimeError) as raised:
        run_command(bug)
    sys.excepthook(raised.type, raised.value, raised.tb)
    said = capsys.readouterr().err
    assert "in bug" in said
    assert "RuntimeError: a\\u001b]0;title" in said


def test_a_console_shows_colours_of_its_own_alone():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80)
    console.print(f"[red]{STEERING}[/red]", Text("\x1b[2J"))
    assert "\x1b[31m" in file.getvalue()
    assert not {"\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e"} & set(re.findall(r"\x1b.*?[a-zA-Z\]]|.", file.getvalue()))
