"""Compiles that end early: what is left is whole, and going on ends where an undisturbed compile does."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import dspy
import pytest
import yaml

from optimizers.examples import Gathering
from optimizers.plan import CompileLog
from optimizers.search import Candidate
from program.agent.loop import AgenticIQA
from program.agent.saving import load, program_sha256
from program.common.pool import in_order
from program.common.settings import load_settings
from program.compile import main
from program.tracking.store import open_client

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = """
compile: {rerank: 2, baselines: false}
tracking: {traces: 0}
optimizers: {embedded: {random-search: {demos: 4, starts: 3, steps: 3, search_samples: 12}}}
"""
# A shell starts background jobs with SIGINT ignored.
STARTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from program.compile import main
sys.exit(main(sys.argv[1:]))
"""
MARK: ContextVar[str] = ContextVar("mark", default="")


@pytest.fixture
def command(few_photographs: Path, tmp_path: Path, undrawn: None):
    """Return a compile's arguments by the name of its folder."""
    (tmp_path / "small.yaml").write_text(SETTINGS, "utf-8")

    def make(folder: str, *more: str) -> list[str]:
        return ["--data", str(few_photographs), "--config", str(tmp_path / "small.yaml"), "--optimizer",
                "random-search,finetune,fusion", "--out", str(tmp_path / folder), "--json", *more]  # fmt: skip

    return make


def candidates(folder: Path) -> list[dict[str, object]]:
    log = folder / "candidates.jsonl"
    lines = log.read_text("utf-8").splitlines() if log.is_file() else []
    return [entry for line in lines if (entry := json.loads(line))["event"] == "candidate"]


def stopped(arguments: list[str], folder: Path, number: int, ready: Callable[[], bool]) -> tuple[int, str]:
    """Start a compile, send it a signal as soon as it is ready for that, and return its code and stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, *arguments], cwd=folder.parent, env=environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    limit = time.monotonic() + 120
    while time.monotonic() < limit and process.poll() is None and not ready():
        time.sleep(0.02)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, object]:
    """What the undisturbed compile said, once there was one: the same photographs are made for every test."""
    return {}


@pytest.mark.skipif(os.name == "nt", reason="signals to a child differ on Windows")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_the_best_candidate_so_far_and_the_log_are_left_and_resumed(
    command, tmp_path, capsys, monkeypatch, undisturbed, number
) -> None:
    folder = tmp_path / "ended"
    code, said = stopped(command("ended"), folder, number, lambda: len(candidates(folder)) >= 3)
    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL), said[-2000:]
    if number == signal.SIGINT:
        last = said.splitlines()[-1]
        assert last.startswith(f"interrupted; the best candidate so far is in '{folder}'"), said[-2000:]
        assert "--resume" in last
        assert "Traceback" not in said

    scored = candidates(folder)
    assert 3 <= len(scored) < 6
    left = json.loads((folder / "program.json").read_text("utf-8"))
    assert left["record"]["finished"] is False
    best = [entry["name"] for entry in scored if entry["best"]][-1]
    # The end can fall between a candidate's program and its line.
    assert left["record"]["chosen"] == best or left["record"]["chosen"] not in {entry["name"] for entry in scored}
    assert program_sha256(load(folder)) == left["program_sha256"]
    assert len(list(folder.parent.glob(".ended-*"))) <= (number == signal.SIGKILL), "half a program was left"

    assert main(command("ended", "--resume")) == 0
    resumed = json.loads(capsys.readouterr().out)
    if not undisturbed:
        monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(tmp_path / "another"))
        assert main(command("whole")) == 0
        undisturbed.update(json.loads(capsys.readouterr().out), sha256=program_sha256(load(tmp_path / "whole")))
    for told in ("chosen", "validation", "difference", "verdict"):
        assert resumed[told] == undisturbed[told], told
    assert program_sha256(load(folder)) == undisturbed["sha256"]


@pytest.mark.skipif(os.name == "nt", reason="signals to a child differ on Windows")
def test_ctrl_c_while_evidence_is_gathered_leaves_the_uncompiled_program(command, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "ended"
    gathered = Gathering.row

    def interrupted(self, sample):
        if sample.id == "s10":
            os.kill(os.getpid(), signal.SIGINT)
        return gathered(self, sample)

    monkeypatch.setattr(Gathering, "row", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(command("ended")) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert candidates(folder) == []
    assert json.loads((folder / "program.json").read_text("utf-8"))["record"]["chosen"] == "uncompiled"
    assert program_sha256(load(folder)) == program_sha256(AgenticIQA())


def test_going_on_holds_the_best_of_before_until_something_is_better(tmp_path) -> None:
    folder, plain = tmp_path / "program", AgenticIQA()

    def taught(words: str) -> AgenticIQA:
        program = plain.deepcopy()
        program.summarizer.score.demos = [dspy.Example(quality_reasoning=words)]
        return program

    def held() -> str:
        return json.loads((folder / "program.json").read_text("utf-8"))["record"]["chosen"]

    @contextmanager
    def compile_log(**resume: bool) -> Iterator[CompileLog]:
        with closing(CompileLog(folder, {"seed": "1"}, **resume)) as begun:
            begun.begin(plain)
            yield begun

    with compile_log() as first:
        first.log_score(Candidate("good", taught("a"), 0.8, "d1"))
    with compile_log(resume=True) as again:
        assert (held(), again.scores) == ("good", {"d1": 0.8})
        again.log_score(Candidate("worse", taught("b"), 0.5, "d2"))
        assert held() == "good"
        again.log_score(Candidate("better", taught("c"), 0.9, "d3"))
        assert held() == "better"
        again.finish(taught("d"), {"chosen": "chosen"}, {})
    with compile_log(resume=True) as third:
        third.log_score(Candidate("best", taught("e"), 0.99, "d4"))
        assert held() == "chosen"
    (folder / "program.json").write_text("{}", "utf-8")
    with compile_log(resume=True):
        assert held() == "uncompiled"


def asked_of(run: str) -> dict[str, Any]:
    client, _ = open_client(load_settings().mlruns_dir)
    return yaml.safe_load(Path(client.download_artifacts(run, "settings.yaml")).read_text("utf-8"))


def test_several_seeds_go_on_where_a_later_one_was_not_begun(command, few_photographs, tmp_path, capsys) -> None:
    lines = few_photographs.read_text("utf-8").splitlines(keepends=True)
    # Demos alone need few samples to be drawn from.
    kept = [line for line in lines if (sample := json.loads(line))["split"] == "test" or int(sample["group"]) < 15]
    few_photographs.write_text("".join(kept), "utf-8")
    arguments = command("seeds", "--optimizer", "labeled", "--repeat", "2")
    assert main(arguments) == 0
    first = json.loads(capsys.readouterr().out)
    assert None not in [each for gains in first["repeats"]["gains"].values() for each in gains]
    shutil.rmtree(tmp_path / "seeds-seed1")
    assert main([*arguments, "--resume", "--max-calls", "100000"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["repeats"]["gains"] == first["repeats"]["gains"]
    shared = {"seed": 0, "repeat": 2, "max_cost_usd": None}
    for told, own in ((first, {"resume": False, "max_calls": None}), (again, {"resume": True, "max_calls": 100000})):
        asked = asked_of(told["mlflow_run"])
        assert {name: asked[name] for name in (*shared, *own)} == {**shared, **own}
    shutil.rmtree(tmp_path / "seeds-seed0")
    assert main([*arguments, "--resume"]) == 2
    assert "no compile was begun there" in capsys.readouterr().err


def test_results_come_in_order_in_the_callers_context_and_a_fault_begins_nothing_else() -> None:
    MARK.set("mine")
    begun: list[int] = []

    def work(item: int) -> tuple[int, str]:
        begun.append(item)
        time.sleep(0.002 * (item % 3))
        if item == 30:
            raise KeyboardInterrupt
        return item, MARK.get()

    assert in_order(work, range(20), workers=4) == [(item, "mine") for item in range(20)]
    del begun[:]
    with pytest.raises(KeyboardInterrupt):
        in_order(work, range(25, 400), workers=3)
    assert len(begun) < 60
