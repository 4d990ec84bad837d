"""Jobs on Ray: a worker's blocks, without Ray; and, where Ray is installed, whole jobs with kills."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import dspy
import pytest

from program import assess
from program.batch.command import Judging
from program.common.errors import EndpointError, InputError, UnreadError
from program.common.request import Request
from program.common.settings import load_settings
from program.lms.limits import Budget
from program.running import on_ray as engine
from program.running.on_ray import Cluster, Tries, ray_engine
from tests.rows import judged

ROOT = Path(__file__).resolve().parents[1]


class Here:
    """An actor that lies in this process, called as Ray's are."""

    def __init__(self, made):
        self._made = made

    def __getattr__(self, name):
        return SimpleNamespace(remote=getattr(self._made, name))


def test_a_budget_is_refused_before_anything_is_asked(service_program):
    with Budget(max_calls=5), pytest.raises(InputError, match=r"share no --max-calls.*leave them out"):
        ray_engine(lambda: Judging(service_program()), Cluster())


def test_each_worker_has_its_part_of_a_hosts_rates():
    settings = load_settings(overrides={"wire": {"concurrency": 10, "requests_per_minute": 90}})
    own = Cluster(workers=4).share_of(settings).wire
    assert (own.concurrency, own.requests_per_minute) == (2, 22)
    assert Cluster(workers=16).share_of(settings).wire.concurrency == 1
    assert Cluster(workers=4).share_of(load_settings()).wire.requests_per_minute is None


class Rows:
    """What a worker does in these tests: fails, ends the job or answers, by the item."""

    def __call__(self, item):
        if item == "wrong":
            raise EndpointError("no server answers")
        if item == "down":
            raise dspy.LMError("no answer")
        if item == "unread":
            raise UnreadError("no answer could be read")
        return item.upper()

    def failed_row(self, item, error):
        return f"{item}: {error}"


@pytest.fixture
def block(monkeypatch):
    """Make a worker of Ray's and let it work on blocks: `block(tries)(["a", "b"])`."""
    import pyarrow

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda answer: answer))

    def make(tries):
        worker = engine._RayWorker(Rows, Here(tries), 2)
        schema = pyarrow.schema({"place": pyarrow.int64(), "item": pyarrow.string()})
        return lambda items: worker(
            pyarrow.table({"place": list(range(len(items))), "item": items}, schema)
        ).to_pylist()  # fmt: skip

    return make


def test_a_block_has_a_row_for_each_item_or_says_why_not(block):
    judged = block(Tries())
    assert {row["item"]: row["result"] for row in judged(["a", "b"])} == {"a": "A", "b": "B"}
    assert judged([]) == []
    ended = judged(["a", "wrong"])
    assert ended[-1] == {"place": -1, "item": "endpoint", "result": "no server answers"}
    assert [row["item"] for row in ended[:-1]] == ["a"]  # what was finished beside it stays
    for item, kind in (("down", "model"), ("unread", "unread")):
        (end,) = judged([item])
        assert (end["place"], end["item"]) == (-1, kind)


def test_an_item_that_kills_its_worker_again_and_again_is_given_up(block):
    tries = Tries()
    judged = block(tries)
    tries.begin("block 0")  # the first worker died in it
    for _ in range(3):  # and three more, at its second item
        tries.begin("row 1")
    rows = {row["item"]: row["result"] for row in judged(["a", "b"])}
    assert rows["a"] == "A"
    assert rows["b"].startswith("b: killed its worker 3 times")
    assert not tries._begun


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
