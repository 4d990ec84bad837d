"""A host's limits hold over all threads: calls at once, requests a minute, and the pauses it asks for."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from program.common.pool import single_flight
from program.common.settings import load_settings
from program.lms.limits import Gate, gate_for, wire_scope


def limits(**given):
    return load_settings().wire.model_copy(update=given)


def run(gate: Gate, calls: int, threads: int = 8, seconds: float = 0.0) -> list[float]:
    """Make calls through a gate from several threads; returns when each started."""
    started = []

    def one(_: int) -> None:
        with gate.admit():
            started.append(time.monotonic())
            time.sleep(seconds)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, range(calls)))
    return sorted(started)


def test_no_more_calls_at_once_than_allowed():
    gate, lock, now, most = Gate(limits(concurrency=3)), threading.Lock(), [0], [0]

    def one(_):
        with gate.admit():
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            time.sleep(0.02)
            with lock:
                now[0] -= 1

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(one, range(24)))
    assert most[0] == 3


def test_no_window_holds_more_requests_than_allowed():
    starts = run(Gate(limits(requests_per_minute=5), window_s=1), 10)
    # A busy machine may let a call begin long after it was admitted.
    assert all(later - earlier >= 0.5 for earlier, later in zip(starts, starts[5:], strict=False))
    assert starts[-1] - starts[0] < 20  # it waits no longer than it must


def test_a_pause_holds_every_thread():
    gate, begun = Gate(limits()), time.monotonic()
    gate.pause(0.2)
    assert min(run(gate, 4)) - begun >= 0.2


def test_an_error_inside_gives_its_place_back():
    gate = Gate(limits(concurrency=1))
    for _ in range(3):
        with pytest.raises(KeyError), gate.admit():
            raise KeyError


def test_one_gate_per_host_under_the_limits_in_force():
    with wire_scope(load_settings(overrides={"wire": {"concurrency": 2}})):
        gate = gate_for("a-host")
    assert gate_for("a-host") is gate
    assert gate.limits.concurrency == 2
    assert gate_for("b-host") is not gate
    with wire_scope(load_settings(overrides={"wire": {"concurrency": 5}})):
        assert gate_for("a-host").limits.concurrency == 5


def test_the_same_question_is_asked_by_one_thread_at_a_time():
    asked, cache = [], {}

    def ask(number):
        with single_flight("question"):
            if "answer" not in cache:
                time.sleep(0.05)
                asked.append(number)
                cache["answer"] = number
        return cache["answer"]

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    assert len(asked) == 1
