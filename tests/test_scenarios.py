"""Records of whole runs: made once, by whoever asks first, whole for everybody else, and made anew after a kill."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from tests import scenarios
from tests.scenarios import Scenario, Scenarios

ROOT = Path(__file__).resolve().parents[1]

COMMAND = """
import os, signal, sys, time
from pathlib import Path

def main(words):
    with open("made", "a") as file:
        file.write("x")
    if os.environ.get("LAST_WORDS"):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)
    with open("made", "a") as file:
        file.write("y")
    with open(Path.cwd().parent / "times", "a") as file:
        file.write("z")
    return 3
"""
MAKER = """
import sys
from pathlib import Path
from tests.scenarios import SCENARIOS, Scenario, Scenarios

SCENARIOS["shared"] = Scenario("command", [])
record = Scenarios(Path(sys.argv[1]))("shared")
print(record.code, (record.folder / "made").read_text())
"""


def test_a_record_holds_all_that_the_run_left_and_is_made_once(tmp_path, monkeypatch) -> None:
    runs, begun = [], threading.Event()

    def main(words: list[str]) -> int:
        runs.append(words)
        begun.set()
        sys.stdout.write("half\n")
        time.sleep(0.2)  # the second asks meanwhile
        sys.stdout.write("whole\n")
        sys.stderr.write("said aside\n")
        return 3

    command = ModuleType("slow_command")
    command.main = main
    monkeypatch.setitem(sys.modules, "slow_command", command)
    monkeypatch.setattr(scenarios, "SCENARIOS", {"slow": Scenario("slow_command", ["--all"])})
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(Scenarios(tmp_path), "slow")
        assert begun.wait(10)
        second = pool.submit(Scenarios(tmp_path), "slow")
        records = [first.result(), second.result()]
    assert runs == [["--all"]]
    assert [(r.code, r.out, r.err) for r in records] == [(3, "half\nwhole\n", "said aside\n")] * 2


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_processes_share_one_record_and_what_a_killed_one_left_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text(COMMAND, "utf-8")
    records = tmp_path / "records"
    records.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    words = [sys.executable, "-c", MAKER, str(records)]
    killed = subprocess.run(words, env={**environment, "LAST_WORDS": "1"}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (records / "shared" / "made").read_text() == "x"
    both = [subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=60)[0].split() for process in both] == [["3", "xy"]] * 2
    assert (records / "times").read_text() == "z"
