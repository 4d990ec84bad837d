"""Records of whole runs: made once, by whoever asks first, and whole for everybody else."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

from tests import scenarios
from tests.scenarios import Scenario, Scenarios


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
