"""Jobs on Ray: what its workers share, without Ray; and, where Ray is installed, whole jobs with kills."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import dspy
import pytest

from program import assess
from program.batch.command import Judging
from program.common.errors import UnreadError
from program.common.request import Request
from program.common.settings import WireSettings, load_settings
from program.lms.limits import BudgetSpent, current_budget, gate_for
from program.running import on_ray as engine
from program.running.on_ray import Cluster, Limits, Shared, ray_engine
from tests.rows import judged

ROOT = Path(__file__).resolve().parents[1]


class Here:
    """A worker's way to the limits, in this process."""

    def __init__(self, limits):
        self._limits = limits

    def ask(self, name, *values, wait=False):
        return getattr(self._limits, name)(*values)

    tell = ask


@pytest.fixture
def worker(monkeypatch):
    """Make a worker's side of limits that lie in this process."""
    monkeypatch.setattr("program.lms.limits._GATES", {})
    monkeypatch.setattr("program.lms.limits._NEW", ["unused"])
    monkeypatch.setattr(Shared, "ask", lambda self, name, *values, wait=False: getattr(self._actor, name)(*values))
    monkeypatch.setattr(Shared, "tell", lambda self, name, *values: getattr(self._actor, name)(*values))
    return Shared


def wire(**limits):
    return WireSettings.model_validate(load_settings().wire.model_dump() | limits)


def test_one_budget_holds_over_all_workers(worker):
    limits, paid, ended = Limits(max_calls=50), [], []

    def work(name):
        shared = worker(limits, name)
        with shared.budget:
            try:
                while True:
                    current_budget().charge()
                    paid.append(name)
                    current_budget().settle(0.01, 5, "m")
            except BudgetSpent as error:
                ended.append(str(error))

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(paid) == 50
    assert len(ended) == 4
    assert all("50 model calls are spent" in text for text in ended)


def test_a_killed_workers_calls_and_places_are_free_again(worker):
    limits = Limits(max_cost_usd=1.0)
    first, other = worker(limits, "first"), worker(limits, "other")
    narrow = wire(concurrency=1)
    limits.admit("first", "host", narrow)
    with first.budget:
        current_budget().charge()  # under a limit of dollars the first call goes out alone
    done = []

    def wait():
        with other.budget:
            current_budget().charge()
        limits.admit("other", "host", narrow)
        done.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    assert not done
    worker(limits, "first")  # Ray starts it again under its name
    thread.join(10)
    assert done
    limits.leave("first", "host")  # a word that comes late frees nobody else's place
    assert limits._gates["host"]._in_flight == 1


def test_a_pause_and_the_rate_of_a_host_hold_every_worker(worker):
    limits = Limits()
    worker(limits, "w")
    gate = gate_for("host")
    gate.limits = wire(concurrency=4)
    began = time.monotonic()
    with gate.admit():
        gate.pause(0.3)
        gate.count_tokens(10)
    limits.admit("another", "host", gate.limits)
    assert time.monotonic() - began >= 0.3


class Rows:
    """What a worker does in these tests: fails, ends the job or answers, by the item."""

    def __call__(self, item):
        if item == "spent":
            raise BudgetSpent("budget: 3 model calls are spent")
        if item == "down":
            raise dspy.LMError("no answer")
        if item == "unread":
            raise UnreadError("no answer could be read")
        return item.upper()

    def failed_row(self, item, error):
        return f"{item}: {error}"


@pytest.fixture
def block(worker, monkeypatch):
    """Make a worker of Ray's and let it work on blocks: `block(limits)(["a", "b"])`."""
    import pyarrow

    def make(limits, name="w"):
        made = object.__new__(engine._RayWorker)
        made._shared, made._threads, made._work = worker(limits, name), 2, Rows()
        schema = pyarrow.schema({"place": pyarrow.int64(), "item": pyarrow.string()})
        return lambda items: made(
            pyarrow.table({"place": list(range(len(items))), "item": items}, schema)
        ).to_pylist()  # fmt: skip

    return make


def test_a_block_has_a_row_for_each_item_or_says_why_not(block):
    limits = Limits()
    judged = block(limits)
    assert {row["item"]: row["result"] for row in judged(["a", "b"])} == {"a": "A", "b": "B"}
    assert judged([]) == []
    ended = judged(["a", "spent"])
    assert {"place": -1, "item": "w", "result": "budget budget: 3 model calls are spent"} in ended
    assert {row["item"] for row in ended} == {"a", "w"}  # what was finished beside it stays
    # Whoever asks now begins nothing.
    assert [row["place"] for row in block(limits, "x")(["a"])] == [-1]
    assert block(Limits())(["down"])[0]["result"] == "model no answer"
    assert block(Limits())(["unread"])[0]["result"] == "unread no answer could be read"


def test_an_item_that_kills_its_worker_again_and_again_is_given_up(block):
    limits = Limits()
    judged = block(limits)
    limits.begin("block 0")  # the first worker died in it
    for _ in range(3):  # and three more, at its second item
        limits.begin("row 1")
    rows = {row["item"]: row["result"] for row in judged(["a", "b"])}
    assert rows["a"] == "A"
    assert rows["b"].startswith("b: killed its worker 3 times")
    assert limits._begun == {}


def test_rows_are_the_same_on_either_engine(service_program, tmp_path, encoded, monkeypatch):
    def in_process(make, items, cluster):
        work = make()
        for place, item in items:
            assert item.isascii()
            yield place, item, work(item)

    monkeypatch.setattr("program.running.on_ray.completed_on_ray", in_process)
    program = service_program()
    for name in ("ü.png", "\udcff.png"):
        (tmp_path / name).write_bytes(encoded())
    asked = {"query": "Rate the car.", "regions": {"car": (0.0, 0.0, 9.0, 9.5)}}
    items = [
        Request(id="a", image=tmp_path / "ü.png", **asked),
        Request(id="b", image=tmp_path / "none.png"),
        Request(id="c", error="is no line"),
        Request(id="d", image=tmp_path / "\udcff.png", options={"A": "x", "B": "y"}, query="Which?"),
    ]
    on_ray = ray_engine(lambda: Judging(program), Cluster())
    rows = [judged(program, items, workers=1, engine=e) for e in (None, on_ray)]
    held, cluster = ({row.id: row.model_copy(update={"seconds": 0.0}) for row in each} for each in rows)
    assert held == cluster
    assert [held[name].status for name in ("a", "b", "c", "d")] == ["ok", "error", "error", "ok"]


def test_a_job_without_ray_is_told_what_to_install(service_program, tmp_path, encoded, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("program.agent.saving.AgenticIQA", lambda *_: service_program())
    (tmp_path / "a.png").write_bytes(encoded())
    assert assess.main([str(tmp_path), "--engine", "ray", "--json"]) == 2
    assert "Ray is not installed" in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


def measured(folder, step, count):
    """Run a step of the benchmark in a process of its own: Ray speaks to this machine under its network address."""
    words = [sys.executable, "-m", "benchmarks.many_images", step, "--count", str(count), "--folder", str(folder)]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", env=dict(os.environ))
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


on_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed ([ray])")


@pytest.mark.slow
@on_ray
def test_a_budget_ends_a_job_at_its_last_call(tmp_path):
    found = measured(tmp_path, "budget", 60)
    assert (found["asked"], found["kept"]) == (30, 30)
    assert "30 model calls are spent" in found["ended"]


@pytest.mark.slow
@on_ray
@pytest.mark.parametrize("gpus", [0, 1])
def test_workers_share_a_gpu_where_the_cluster_has_one(gpus):
    code = (
        f"import ray\nray.init(num_cpus=3, num_gpus={gpus}, include_dashboard=False, logging_level='ERROR')\n"
        "from program.running.on_ray import Cluster, completed_on_ray\nfrom tests.test_cluster import Rows\n"
        "items = list(enumerate('abcdefghijk'))\n"
        "found = sorted(completed_on_ray(Rows, items, Cluster(workers=2, gpus=0.5, block=4)))\n"
        "print(''.join(result for _, _, result in found))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert run.stdout.splitlines() == (["ABCDEFGHIJK"] if gpus else []), run.stderr
    assert gpus or run.stderr.splitlines()[-1].endswith("--gpus 0.5: the cluster has no GPU; leave --gpus out")


@pytest.mark.slow
@on_ray
def test_killed_workers_and_drivers_cost_no_row_and_double_none(tmp_path):
    found = measured(tmp_path, "few_kills", 240)
    assert found["killed"] == {"worker": 4, "driver": 1}
    assert (found["rows"], found["every_id_once_in_order"], found["statuses"]) == (240, True, {"ok": 240})


@pytest.mark.slow
@on_ray
def test_an_image_that_kills_every_worker_is_a_row_with_its_error(tmp_path):
    found = measured(tmp_path, "poison", 40)
    assert (found["ok"], found["errors"]) == (39, ["lab/0000017"])
