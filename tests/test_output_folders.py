"""A folder that is written into: only what this program wrote there itself is ever replaced or removed."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import dspy
import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

from agentic_iqa.__main__ import main
from program.agent.labels import Neighbours
from program.agent.loop import AgenticIQA
from program.agent.saving import load, program_sha256, save
from program.common.errors import InputError
from program.expert import WIDTH
from tests.pictures import noise
from tests.tables import as_lines

RECORD = ".agentic-iqa.json"
IMAGE = f"images/{'a' * 64}.png"
COMMANDS = {
    "compile --data m.jsonl --out out --force": {"program.json": "{}", "report.html": "old", IMAGE: ""},
    "compile --data m.jsonl --out out --resume": {"program.json": "{}", "candidates.jsonl": ""},
    "evaluate m.jsonl --report out --force": {"record.json": "{}", "report.html": "old"},
    "gallery day --out out": {"gallery.html": "old", "gallery.csv": "old", "gallery.jsonl": "old"},
    "gallery day --out out --force": {"gallery.html": "old"},
    "assess day --out out.parquet --force": {"part-000000.parquet": "old", "part-000001.parquet": "old"},
}  # fmt: skip
COMPILES = [words for words in COMMANDS if words.startswith("compile")]


@pytest.fixture
def work(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two pictures in `day`, and a manifest of them."""
    (tmp_path / "day").mkdir()
    for name in ("a.png", "b.png"):
        Image.fromarray(noise(rng, 64, 64)).save(tmp_path / "day" / name)
    rows = [{"id": name, "image": f"day/{name}", "mos": 3.0, "split": "test"} for name in ("a.png", "b.png")]
    (tmp_path / "m.jsonl").write_text(as_lines(rows), "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def folder_of(words: str) -> Path:
    return Path(next(word for word in words.split() if word.startswith("out")))


def written(words: str) -> Path:
    """Make the folder that a command wrote: its files and their record."""
    folder, files = folder_of(words), COMMANDS[words]
    hashes = {}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
        hashes[name] = None if name == "candidates.jsonl" else hashlib.sha256(text.encode()).hexdigest()
    (folder / RECORD).write_text(json.dumps({"format": 1, "files": hashes}), "utf-8")
    return folder


def state(folder: Path) -> dict[str, str]:
    """Return what lies in a folder: files with their content, links with where they lead."""
    return {
        path.relative_to(folder).as_posix(): f"-> {path.readlink()}"
        if path.is_symlink()
        else path.read_bytes().hex()
        if path.is_file()
        else "no file"
        for path in sorted(folder.rglob("*"))
    }


def refused(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that refuses in one line, and changes nothing."""
    before = state(Path())
    capsys.readouterr()
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert state(Path()) == before
    return error


@pytest.mark.spec("issue-65/only-own-files")
@pytest.mark.parametrize("words", COMMANDS)
def test_a_changed_file_of_its_own_is_the_users(work, capsys, words):
    folder = written(words)
    name = next(iter(COMMANDS[words]))
    (folder / name).write_text("edited", "utf-8")
    error = refused(words, capsys)
    assert f"folder {str(folder)!r}: {name!r} was changed since this program wrote it; move it away, or give" in error


@pytest.mark.spec("issue-65/only-own-files")
@pytest.mark.parametrize("words", COMMANDS)
def test_a_foreign_file_under_a_name_of_its_own_is_refused(work, capsys, words):
    folder = written(words)
    name = list(COMMANDS[words])[-1]
    files = {each: None for each in COMMANDS[words] if each != name}
    (folder / RECORD).write_text(json.dumps({"format": 1, "files": files}), "utf-8")
    assert f"{name!r} was not written by this program; move it away, or give another" in refused(words, capsys)


@pytest.mark.spec("issue-65/only-own-files")
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
@pytest.mark.parametrize("words", COMMANDS)
def test_a_link_a_pipe_or_a_folder_in_a_files_place_is_refused(work, capsys, words, kind):
    folder = written(words)
    name = list(COMMANDS[words])[-1]
    (folder / name).unlink()
    if kind == "link":
        (work / "mine.txt").write_text(COMMANDS[words][name], "utf-8")
        (folder / name).symlink_to(work / "mine.txt")
    elif kind == "dangling":
        (folder / name).symlink_to("nowhere")
    elif kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).mkdir()
        (folder / name / "mine.txt").write_text("mine", "utf-8")
    fault = "is no plain file" if kind in {"pipe", "folder"} else "is a link"
    assert f"{name!r} {fault}; move it away" in refused(words, capsys)


@pytest.mark.spec("issue-65/only-own-files")
@pytest.mark.parametrize("name", [".git/config", ".notes.md", "images/my-own.jpg", "images/deep/x.png", "thesis.txt"])
@pytest.mark.parametrize("words", COMPILES)
def test_a_program_is_compiled_into_no_folder_with_other_files(work, capsys, words, name):
    folder = written(words)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("mine", "utf-8")
    shown = "/".join(name.split("/")[: 1 if name.startswith(".git") else 2])
    assert f"holds other files; give a new or empty folder, or move {shown!r} away" in refused(words, capsys)


def test_edited_instructions_are_no_programs_to_replace(work, capsys):
    file = save(AgenticIQA(), Path("out")) / "program.json"
    file.write_text(file.read_text("utf-8").replace("instructions", "Instructions", 1), "utf-8")
    error = refused("compile --data m.jsonl --out out --force", capsys)
    assert "'program.json' was changed since this program wrote it" in error
    assert "holds a program; give --force to replace it" in refused("compile --data m.jsonl --out out", capsys)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "[" * 100_000, '{"files": []}', '{"files": {"program.json": 1}}', "\udcff", "link", "pipe"],
    ids=lambda content: repr(content[:30]),
)  # fmt: skip
@pytest.mark.parametrize("words", [words for words in COMMANDS if "--force" in words])
def test_a_record_that_is_none_is_named_and_nothing_is_replaced(work, capsys, words, content):
    record = written(words) / RECORD
    if content == "link":
        record.rename(work / "elsewhere.json")
        record.symlink_to(work / "elsewhere.json")
    elif content == "pipe":
        record.unlink()
        os.mkfifo(record)
    else:
        record.write_text(content, "utf-8", "surrogateescape")
    assert f"{RECORD!r} is no " in refused(words, capsys)


def test_names_in_a_record_lead_nowhere(work):
    outside = work / "outside.txt"
    outside.write_text("mine", "utf-8")
    folder = save(AgenticIQA(), work / "deep" / "out")
    record = json.loads((folder / RECORD).read_text("utf-8"))
    names = ("../../outside.txt", str(outside), "images/../../../outside.txt", "../../.o.00000000.agentic-iqa.tmp")
    record["files"] |= dict.fromkeys(names)
    (folder / RECORD).write_text(json.dumps(record), "utf-8")
    save(AgenticIQA(), folder)
    assert outside.read_text("utf-8") == "mine"
    record["files"]["thesis.txt"] = None
    (folder / RECORD).write_text(json.dumps(record), "utf-8")
    (folder / "thesis.txt").write_text("mine", "utf-8")
    with pytest.raises(InputError, match=r"holds other files; .*'thesis\.txt'"):
        save(AgenticIQA(), folder)
    assert (folder / "thesis.txt").read_text("utf-8") == "mine"


def test_the_record_of_a_program_names_what_was_written(work):
    folder = save(AgenticIQA(), Path("out"), files={"diff.md": "none\n"})
    files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("program.json", "diff.md")}
    assert json.loads((folder / RECORD).read_text("utf-8")) == {"format": 1, "files": files}
    save(AgenticIQA(), folder)
    assert sorted(path.name for path in folder.iterdir()) == [RECORD, "images", "program.json"]


def test_a_gallery_is_made_again_and_leaves_what_is_beside_it(work, capsys):
    Path("out").mkdir()
    Path("out/notes.txt").write_text("mine", "utf-8")
    words = "gallery day --out out".split()
    assert main(words) == main(words) == 0
    files = json.loads(Path("out", RECORD).read_text("utf-8"))["files"]
    assert sorted(files) == ["gallery.csv", "gallery.html", "gallery.jsonl"]
    assert all(hashlib.sha256(Path("out", name).read_bytes()).hexdigest() == sha256 for name, sha256 in files.items())
    assert Path("out/notes.txt").read_text("utf-8") == "mine"
    # Its copies are never replaced, and lie in no other place.
    shutil.move("out/thumbs", "thumbs")
    Path("out/thumbs").symlink_to("../thumbs")
    assert "'thumbs' is a link; move it away" in refused("gallery day --out out", capsys)


def test_a_gallery_takes_no_foreign_page_for_its_own(work, capsys):
    for name in ("gallery.html", "gallery.csv", "gallery.jsonl"):
        shutil.rmtree("out", ignore_errors=True)
        Path("out").mkdir()
        Path("out", name).write_text("mine", "utf-8")
        assert f"{name!r} was not written by this program" in refused("gallery day --out out", capsys)


def test_parts_are_written_again_beside_other_files(work, capsys, monkeypatch):
    monkeypatch.setattr("program.batch.output.PART_ROWS", 1)
    assert main("assess day --out out.parquet".split()) == 0
    Path("out.parquet/notes.txt").write_text("mine", "utf-8")
    Path("day/b.png").unlink()
    assert main("assess day --out out.parquet --force".split()) == 0
    assert pyarrow.parquet.read_table("out.parquet/part-000000.parquet")["id"].to_pylist() == ["a.png"]
    assert sorted(os.listdir("out.parquet")) == [RECORD, "notes.txt", "part-000000.parquet"]
    assert list(json.loads(Path("out.parquet", RECORD).read_text("utf-8"))["files"]) == ["part-000000.parquet"]
    Path("old.parquet").write_text("mine", "utf-8")
    assert "folder 'old.parquet': is a file" in refused("assess day --out old.parquet --force", capsys)


# A kill


class KilledError(BaseException):
    """Ends what it meets, as a kill does: nothing is cleaned up."""


def kill_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a process end before the step of that number that changes a folder; return how many were made."""
    done = [0]

    def limited(name: str, owner: object) -> None:
        real = getattr(owner, name)

        def step(*arguments: object, **options: object) -> object:
            if done[0] >= steps:
                raise KilledError
            done[0] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, step)

    for name in ("write_bytes", "mkdir", "unlink", "rename"):
        limited(name, Path)
    for name in ("replace", "unlink", "rmdir"):
        limited(name, os)
    return done


def taught(count: int, picture) -> AgenticIQA:
    """A program for a language model, with an array in a file of its own and a demo's image."""
    from program.images.store import IMAGES

    program = AgenticIQA()
    photographs = [{"sha256": "0" * 64, "group": "g", "kind": "nr", "label": 3.0}]
    program.summarizer.neighbours = Neighbours(
        count=count, photographs=photographs, vectors=np.zeros(WIDTH, np.float16)
    )
    ref = IMAGES.add(picture(count))
    program.summarizer.score.demos = [dspy.Example(image=dspy.Image(ref.url), query="Rate it.")]
    return program


@pytest.mark.spec("issue-65/a-kill-leaves-a-whole-program")
def test_a_kill_at_any_moment_leaves_the_old_program_or_the_new(work, picture, scripted_lm):
    old, new = taught(1, picture), taught(2, picture)
    hashes, names = [program_sha256(old), program_sha256(new)], set()
    left = []
    save(old, Path("before"), files={"report.html": "old\n"})
    save(new, Path("whole"), files={"diff.md": "new\n"})
    for steps in range(100):
        shutil.rmtree("out", ignore_errors=True)
        shutil.copytree("before", "out")
        with pytest.MonkeyPatch.context() as patch:
            done = kill_after(steps, patch)
            try:
                save(new, Path("out"), files={"diff.md": "new\n"})
            except KilledError:
                pass
            else:
                break
        assert done[0] == steps
        with dspy.context(lm=scripted_lm({})):
            left.append(program_sha256(load("out")))
        names |= set(os.listdir("out"))
        save(new, Path("out"), files={"diff.md": "new\n"})
        assert state(Path("out")) == state(Path("whole"))
    assert sorted(set(left), key=hashes.index) == hashes
    assert left == sorted(left, key=hashes.index)
    assert sorted(os.listdir()) == ["before", "day", "m.jsonl", "out", "whole"]
    assert any(name.endswith(".tmp") for name in names)
