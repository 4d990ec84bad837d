"""What commands write never destroys what they read, and replaces what is there only with --force."""

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from agentic_iqa.__main__ import main
from program.agent.loop import AgenticIQA
from program.agent.saving import save
from tests.pictures import noise
from tests.tables import as_lines

KEPT = "is read by this command, whose output never replaces it"
THERE = "is there already; give another name, or --force"


@pytest.fixture
def photos(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with photographs, a table of them and links to one, which is the working folder."""
    for name in ("p.png", "original.png", "refs/p.png", "refs/q.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(noise(rng, 64, 64)).save(tmp_path / name)
    rows = [{"id": f"r{n}", "image": f"p{n}.png", "mos": 1.0 + n % 5, "split": "test"} for n in range(12)]
    for row in rows:
        shutil.copy(tmp_path / "p.png", tmp_path / row["image"])
    (tmp_path / "m.jsonl").write_text(as_lines(rows), "utf-8")
    (tmp_path / "t.csv").write_text("image,mos\np.png,3\n", "utf-8")
    (tmp_path / "c.yaml").write_text("seed: 3\n", "utf-8")
    os.link(tmp_path / "p.png", tmp_path / "hard.png")
    (tmp_path / "soft.png").symlink_to("p.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def state(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.spec("047/an-output-never-destroys-an-input")
@pytest.mark.parametrize(
    "words",
    [
        "assess p.png --heatmap p.png",
        "assess p.png --heatmap hard.png",
        "assess soft.png --heatmap ./refs/../p.png",
        "assess p.png --reference original.png --heatmap original.png",
        "assess p.png --reference refs --heatmap refs/p.png",
        "assess m.jsonl --out m.jsonl",
        "assess t.csv --out file://t.csv",
        "calibrate m.jsonl --config c.yaml --out c.yaml",
        "data prepare table --root m.jsonl --out m.jsonl",
        "data prepare table --root . --out m.jsonl",
        "compile --data m.jsonl --out .",
    ],
)
def test_no_flag_replaces_an_input_whatever_is_forced(photos, capsys, words):
    before = state(photos)
    assert main([*words.split(), "--force"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert KEPT in error or "holds other files" in error
    assert state(photos) == before


@pytest.mark.spec("047/existing-files-only-with-force")
@pytest.mark.parametrize(
    ("words", "there"),
    [
        ("assess p.png --heatmap there.png", "there.png"),
        ("assess . --out there.csv", "there.csv"),
        ("evaluate m.jsonl --report rep", "rep/record.json"),
        ("calibrate m.jsonl --out there.json", "there.json"),
        ("data prepare table --root t.csv --out new.jsonl", "new.prepared.json"),
        ("compile --data m.jsonl --out there", "there/program.json"),
    ],
)
def test_what_is_there_is_replaced_with_force_only(photos, capsys, words, there):
    (photos / there).parent.mkdir(exist_ok=True)
    (photos / there).write_text("mine\n", "utf-8")
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    refusals = THERE, "holds a program; give --force", "was not written by this program"
    assert any(refusal in error for refusal in refusals)
    assert (photos / there).read_text("utf-8") == "mine\n"


def test_a_heatmap_is_replaced_by_force_and_a_failing_one_leaves_the_old(photos, capsys, monkeypatch):
    shutil.copy("p.png", "map.png")
    before = (photos / "map.png").read_bytes()
    monkeypatch.setattr(Image.Image, "save", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    assert main("assess p.png --heatmap map.png --force".split()) == 2
    assert (photos / "map.png").read_bytes() == before
    monkeypatch.undo()
    monkeypatch.chdir(photos)
    assert main("assess p.png --heatmap map.png --force".split()) == 0
    assert (photos / "map.png").read_bytes() != before


def test_what_a_model_writes_is_text_on_a_notebooks_card(service_program, picture):
    answer = {"quality_probs": {"3": 1.0}, "quality_reasoning": "Soft <script>alert(1)</script> & dull."}
    card = service_program(script={"quality_probs": answer})(image=picture())._repr_html_()
    assert "<script" not in card
    assert "Soft &lt;script&gt;alert(1)&lt;/script&gt; &amp; dull." in card


def test_a_program_folder_with_other_files_is_replaced_by_nothing(photos, capsys):
    (photos / "prog").mkdir()
    save(AgenticIQA(), photos / "prog")
    (photos / "prog/thesis.txt").write_text("mine", "utf-8")
    assert main("compile --data m.jsonl --out prog --force".split()) == 2
    assert "'thesis.txt'" in capsys.readouterr().err
    assert (photos / "prog/thesis.txt").read_text("utf-8") == "mine"


def refused(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that refuses in one line, and leaves what is there."""
    before = state(Path()), sorted(os.listdir())
    assert main([*words.split(), "--force"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert (state(Path()), sorted(os.listdir())) == before
    return error


@pytest.mark.spec("issue-65/only-own-files")
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
@pytest.mark.parametrize(
    "words",
    [
        "assess refs --out out.csv",
        "assess p.png --heatmap out.png",
        "calibrate m.jsonl --out out.json",
        "data prepare table --root t.csv --out out.jsonl",
    ],
)
def test_no_file_takes_the_place_of_a_link_or_a_pipe(photos, capsys, words, kind):
    path = Path(words.split()[-1])
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("t.csv" if kind == "link" else "nowhere")
    fault = "is no plain file" if kind == "pipe" else "is a link"
    assert f"{str(path)!r}: {fault}; give another name" in refused(words, capsys)
    assert path.is_symlink() == (kind != "pipe")


def test_asking_servers_again_removes_only_what_they_said(photos, capsys, monkeypatch):
    monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(photos))
    Path("models").mkdir()
    for name in ("weights.bin", "settings.json", f"{'0' * 16}.json"):
        Path("models", name).write_text("{}", "utf-8")
    assert main("evaluate none.jsonl --fresh".split()) == 2
    assert sorted(os.listdir("models")) == ["settings.json", "weights.bin"]
