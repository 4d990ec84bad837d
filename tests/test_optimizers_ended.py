"""Compiles that end early: what is left is whole, and going on ends where an undisturbed compile does."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stderr
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import dspy
import pytest
import yaml
from threadpoolctl import threadpool_info, threadpool_limits

from optimizers.compiling import compile_program
from optimizers.examples import Gathering
from optimizers.job import prepare_job
from optimizers.plan import CompileLog
from optimizers.search import Candidate
from program.agent.loop import AgenticIQA
from program.agent.saving import load, program_sha256
from program.common.pool import in_order, map_unordered
from program.common.settings import load_settings
from program.compile import main
from program.tracking.store import open_client

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = """
compile: {rerank: 2, baselines: false}
tracking: {traces: 0}
optimizers: {model: {random-search: {demos: 4, bootstrapped: 1, starts: 5, search_samples: 4}}}
"""
OPTIMIZERS = "random-search"
MARK: ContextVar[str] = ContextVar("mark", default="")


@pytest.fixture
def address(loopback) -> str:
    """The address of a server on the loopback."""
    return loopback().base


@pytest.fixture
def command(few_photographs: Path, tmp_path: Path, undrawn: None, unlogged: None, untracked: None, address: str):
    """Return the arguments of a model's compile by the name of its folder."""
    lines = few_photographs.read_text("utf-8").splitlines(keepends=True)
    train = [line for line in lines if json.loads(line)["split"] == "train"]
    fewer = [line for line in lines if line not in train[8:]]
    few_photographs.write_text("".join(fewer), "utf-8")
    (tmp_path / "small.yaml").write_text(SETTINGS, "utf-8")

    def make(folder: str, *more: str) -> list[str]:
        return ["--data", str(few_photographs), "--config", str(tmp_path / "small.yaml"), "--optimizer",
                OPTIMIZERS, "--roles", "summarizer", "--lm", "openai/small-vlm", "--api-base", address,
                "--out", str(tmp_path / folder), "--json", *more]  # fmt: skip

    return make


def candidates(folder: Path) -> list[dict[str, object]]:
    log = folder / "candidates.jsonl"
    lines = log.read_text("utf-8").splitlines() if log.is_file() else []
    return [entry for line in lines if (entry := json.loads(line))["event"] == "candidate"]


@pytest.fixture(autouse=True)
def _heeds_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores them
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(arguments: list[str], folder: Path, number: int) -> tuple[int, str]:
    """Send a signal to this process, which has its imports behind it, as a compile's third candidate is scored."""
    scored = CompileLog.log_score

    def log_score(self: CompileLog, candidate: Candidate) -> None:
        scored(self, candidate)
        if len(candidates(folder)) == 3:
            os.kill(os.getpid(), number)

    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(said):
        patch.setattr(CompileLog, "log_score", log_score)
        return main(arguments), said.getvalue()


def killed(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Kill a compile's process once three candidates are scored."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "program.compile", *arguments], cwd=folder.parent, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    limit = time.monotonic() + 120
    while time.monotonic() < limit and process.poll() is None and len(candidates(folder)) < 3:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.fixture
def undisturbed(few_photographs, tmp_path, command, address, monkeypatch) -> Callable[[], dict[str, Any]]:
    """Compile undisturbed, with a cache of its own and nothing logged, and return what it said."""

    def make() -> dict[str, Any]:
        with monkeypatch.context() as patch:
            patch.setenv("AGENTICIQA_CACHE_DIR", str(tmp_path / "another"))
            settings = load_settings(tmp_path / "small.yaml").with_model("openai/small-vlm", address)
            job = prepare_job(settings, str(few_photographs), OPTIMIZERS, tmp_path / "whole", roles="summarizer")
            done = compile_program(job)
        return {**json.loads(json.dumps(done.summary())), "sha256": program_sha256(load(done.folder, settings))}

    return make


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals to a child differ on Windows")
@pytest.mark.parametrize(
    ("number", "expected", "word"),
    [
        (signal.SIGINT, 130, "interrupted"),
        pytest.param(signal.SIGTERM, 143, "stopped by SIGTERM", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, -9, None, marks=pytest.mark.slow),
    ],
)
def test_the_best_candidate_so_far_and_the_log_are_left_and_resumed(
    command, tmp_path, capsys, undisturbed, address, number, expected, word
) -> None:
    folder = tmp_path / "ended"
    if word is not None:
        code, said = interrupted(command("ended"), folder, number)
    else:
        code, said = killed(command("ended"), folder)
    assert code == expected, said[-2000:]
    if word is not None:
        last = said.splitlines()[-1]
        assert last.startswith(f"{word}; the best candidate so far is in '{folder}'"), said[-2000:]
        assert "--resume" in last
        assert "Traceback" not in said

    scored = candidates(folder)
    assert 3 <= len(scored) < 5
    left = json.loads((folder / "program.json").read_text("utf-8"))
    assert left["record"]["finished"] is False
    best = [entry["name"] for entry in scored if entry["best"]][-1]
    # A kill can fall between a candidate's program and its line.
    unlogged = number == signal.SIGKILL and left["record"]["chosen"] not in {entry["name"] for entry in scored}
    assert left["record"]["chosen"] == best or unlogged
    settings = load_settings().with_model("openai/small-vlm", address)
    assert program_sha256(load(folder, settings)) == left["program_sha256"]
    assert len(list(folder.parent.glob(".ended-*"))) <= (number == signal.SIGKILL), "half a program was left"

    assert main(command("ended", "--resume")) == 0
    captured = capsys.readouterr()
    resumed = json.loads(captured.out)
    whole = undisturbed()
    for told in ("chosen", "validation", "difference", "verdict"):
        assert resumed[told] == whole[told], told
    assert program_sha256(load(folder, settings)) == whole["sha256"]


@pytest.mark.skipif(os.name == "nt", reason="signals to a child differ on Windows")
def test_sigterm_while_evidence_is_gathered_leaves_the_uncompiled_program(
    command, tmp_path, monkeypatch, capsys
) -> None:
    folder = tmp_path / "ended"
    gathered = Gathering.row

    def ended(self, sample):
        if sample.id == "s5":
            os.kill(os.getpid(), signal.SIGTERM)
        return gathered(self, sample)

    monkeypatch.setattr(Gathering, "row", ended)
    assert main(command("ended")) == 143
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"stopped by SIGTERM; the best candidate so far is in '{folder}'; continue with --resume")
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
        with closing(CompileLog(folder, **resume)) as begun:
            begun.begin(plain)
            yield begun

    with compile_log() as first:
        first.log_score(Candidate("good", taught("a"), 0.8))
    with compile_log(resume=True) as again:
        assert held() == "good"
        again.log_score(Candidate("worse", taught("b"), 0.5))
        assert held() == "good"
        again.log_score(Candidate("better", taught("c"), 0.9))
        assert held() == "better"
        again.finish(taught("d"), {"chosen": "chosen"}, {})
    with compile_log(resume=True) as third:
        third.log_score(Candidate("best", taught("e"), 0.99))
        assert held() == "chosen"
    (folder / "program.json").unlink()
    with compile_log(resume=True):
        assert held() == "uncompiled"


def asked_of(run: str) -> dict[str, Any]:
    client, _ = open_client(load_settings().mlruns_dir)
    return yaml.safe_load(Path(client.download_artifacts(run, "settings.yaml")).read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn", "unlogged", "coarse", "measured_once")
def test_a_run_says_what_was_asked_and_whether_it_was_resumed(few_photographs, tmp_path, capsys) -> None:
    (tmp_path / "small.yaml").write_text(SETTINGS, "utf-8")
    arguments = ["--data", str(few_photographs), "--config", str(tmp_path / "small.yaml"), "--optimizer", "finetune",
                 "--out", str(tmp_path / "out"), "--json"]  # fmt: skip
    told = []
    for more in ([], ["--resume", "--max-calls", "100000"]):
        assert main([*arguments, *more]) == 0
        told.append(json.loads(capsys.readouterr().out))
    first, again = told
    assert again["difference"] == first["difference"]
    shared = {"seed": 0, "max_cost_usd": None}
    for each, own in ((first, {"resume": False, "max_calls": None}), (again, {"resume": True, "max_calls": 100000})):
        asked = asked_of(each["mlflow_run"])
        assert {name: asked[name] for name in (*shared, *own)} == {**shared, **own}


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


def test_an_interrupt_waits_for_the_result_that_is_worked_on_and_costs_none() -> None:
    kept = []

    def keep_all() -> None:
        for _, result in map_unordered(abs, range(8), workers=2):
            if not kept:
                signal.raise_signal(signal.SIGINT)
            kept.append(result)

    with pytest.raises(KeyboardInterrupt):
        keep_all()
    assert len(kept) >= 3  # the first, and what was in flight beside it
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_stream_that_another_thread_ends_holds_no_interrupt() -> None:
    stream = map_unordered(abs, range(8), workers=2)
    try:
        next(stream)
        ending = threading.Thread(target=stream.close)
        ending.start()
        ending.join()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_streams_that_nobody_ends_are_collected_at_any_time() -> None:
    class Reader:
        def __init__(self) -> None:
            self.own, self.stream = self, map_unordered(abs, range(3), workers=1)
            next(self.stream)

    for _ in range(300):
        Reader()


def test_blas_stays_in_the_threads_of_the_work_until_the_last_of_them_ends() -> None:
    def threads(_: int = 0) -> set[int]:
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        first, second = (map_unordered(threads, range(3), workers=2) for _ in range(2))
        assert [next(first)[1], next(second)[1]] == [{1}, {1}]
        assert [counted for _, counted in first] == [{1}] * 2
        assert threads() == {1}
        second.close()
        assert threads() == {2}
