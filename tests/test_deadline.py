"""Work under a time limit: results, errors, what is left behind, and the end of the process."""

import contextvars
import math
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from program.tools.loading import Overdue, within


def test_results_and_errors_come_back():
    assert within(5, lambda: 42) == 42
    assert within(math.inf, lambda: "x") == "x"
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)
    assert within(5, lambda: "still works") == "still works"


def test_work_sees_the_callers_context():
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    assert within(5, variable.get) == "set"


def test_overdue_work_is_left_behind_and_later_work_is_not_delayed():
    release = threading.Event()
    started = time.perf_counter()
    with pytest.raises(Overdue):
        within(0.05, lambda: release.wait(30))
    assert within(5, lambda: 7) == 7
    assert time.perf_counter() - started < 20
    release.set()


def test_threads_are_reused():
    names = {within(5, threading.get_ident) for _ in range(20)}
    assert len(names) == 1
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: within(5, lambda: time.sleep(0.01)), range(40)))
    assert sum(t.name == "agentic-iqa-tool" for t in threading.enumerate()) <= 5


def test_an_abandoned_thread_ends_when_its_work_does():
    release, seen = threading.Event(), []

    def work():
        seen.append(threading.current_thread())
        release.wait(30)

    with pytest.raises(Overdue):
        within(0.05, work)
    release.set()
    seen[0].join(5)
    assert not seen[0].is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_does_not_wait_for_its_parents_threads():
    code = """
import os, sys
from program.tools.loading import within
assert within(5, lambda: 1) == 1
child = os.fork()
if child == 0:
    os._exit(0 if within(5, lambda: 2) == 2 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert _run(code).returncode == 0


def test_a_hung_thread_does_not_keep_the_process():
    code = """
import time
from program.tools.loading import Overdue, within
try:
    within(0.1, lambda: time.sleep(3600))
except Overdue:
    print("left behind")
"""
    started = time.perf_counter()
    out = _run(code)
    assert (out.returncode, out.stdout.strip()) == (0, "left behind")
    assert time.perf_counter() - started < 20


def _run(code):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
