"""The readings on disk: bounded, shared by processes, told in the record, and turned off on demand."""

import contextlib
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from program.common.cache import PlainCache
from program.common.cli import add_settings_flags, settings_from
from program.common.settings import load_settings
from program.images.store import IMAGES
from program.tools.registry import ToolRegistry
from program.tools.runner import ToolRunner
from tests.pictures import noise, tool_runner

ROOT = Path(__file__).parents[1]


def test_readings_of_earlier_versions_with_seconds_beside_the_value_are_read(tmp_path, picture, monkeypatch):
    image = IMAGES.add(picture(5, 64, 64))
    fresh = tool_runner(tmp_path).measure("PIQE", image).raw
    real = PlainCache.get
    monkeypatch.setattr(PlainCache, "get", lambda *a: [*real(*a), 2.5])
    again = tool_runner(tmp_path).measure("PIQE", image)
    assert (again.raw, again.cached) == (fresh, True)


def test_other_reading_rules_are_other_readings(tmp_path, picture, monkeypatch):
    image = IMAGES.add(picture(5, 64, 64))
    assert not tool_runner(tmp_path).measure("PIQE", image).cached
    assert tool_runner(tmp_path).measure("PIQE", image).cached
    monkeypatch.setattr("program.tools.runner.READING_RULES", 999)
    assert not tool_runner(tmp_path).measure("PIQE", image).cached


def test_a_reading_on_another_number_of_threads_is_taken_anew(tmp_path, picture, monkeypatch):
    monkeypatch.setattr("program.tools.runner.evaluate", lambda *_: 30.0)
    image = IMAGES.add(picture(5, 64, 64))
    read = [tool_runner(tmp_path, threads=threads).measure("PIQE", image).cached for threads in (1, 2, 1, 2)]
    assert read == [False, False, True, True]


def test_a_reading_by_other_parameters_or_another_version_is_taken_anew(tmp_path, picture, monkeypatch):
    monkeypatch.setattr("program.tools.runner.evaluate", lambda *_: 30.0)
    image, file = IMAGES.add(picture(5, 64, 64)), tmp_path / "brisque_svm_weights.pth"

    def is_kept(parameters, version):
        file.write_bytes(parameters)
        monkeypatch.setattr("program.tools.registry.installed_version", lambda _: version)
        return tool_runner(tmp_path, params_dir=tmp_path).measure("BRISQUE", image).cached

    stated = [(b"one", "1.0"), (b"another", "1.0"), (b"one", "2.0")]
    assert [is_kept(*each) for each in stated] == [False, False, False]
    assert [is_kept(*each) for each in stated] == [True, True, True]


def test_two_threads_that_judge_one_image_measure_it_once(tmp_path, picture, monkeypatch):
    image, runner = IMAGES.add(picture(5, 64, 64)), tool_runner(tmp_path)
    both = threading.Barrier(2)
    values = iter((30.0, 31.0))

    def evaluate(*_):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.3)  # where both measure, they meet here
        return next(values)

    monkeypatch.setattr("program.tools.runner.evaluate", evaluate)
    with ThreadPoolExecutor(2) as pool:
        readings = list(pool.map(lambda _: runner.measure("PIQE", image), range(2)))
    assert [reading.raw for reading in readings] == [30.0, 30.0]
    assert sorted(reading.cached for reading in readings) == [False, True]


def test_floats_come_back_exactly(tmp_path, rng):
    cache = PlainCache(tmp_path)
    values = [*rng.standard_normal(50).tolist(), 1e-308, 0.1 + 0.2, -0.0]
    for i, value in enumerate(values):
        cache.set(str(i), [value])
    assert [PlainCache(tmp_path).get(str(i)) for i in range(len(values))] == [[value] for value in values]


def test_the_size_is_bounded_and_the_oldest_go(tmp_path, rng):
    cache = PlainCache(tmp_path, size_limit_mb=1)
    for i in range(600):
        cache.set(f"{i:064x}|{i:064x}", [float(i), rng.bytes(2000).hex()])
    assert (tmp_path / "cache.db").stat().st_size < 1.5 * 2**20
    assert 200 < len(cache) < 600
    assert cache.get(f"{599:064x}|{599:064x}")[0] == 599.0
    assert cache.get(f"{0:064x}|{0:064x}") is None


_WORK = """
import sys
from pathlib import Path
from program.common.cache import PlainCache
folder, me = Path(sys.argv[1]), int(sys.argv[2])
cache, wrong, hits = PlainCache(folder), 0, 0
for turn in range(3):
    for i in range(50):
        number = (i * 7 + me * 31) % 50
        found = cache.get(str(number))
        if found is None:
            cache.set(str(number), number / 7)
        else:
            hits += 1
            wrong += found != number / 7
print(wrong, hits)
"""


def test_several_processes_share_one_cache(tmp_path):
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORK, str(tmp_path), str(me)], cwd=ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for me in range(4)
    ]  # fmt: skip
    results = [worker.communicate(timeout=120) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4, results
    counts = [tuple(map(int, out.split())) for out, _ in results]
    assert [wrong for wrong, _ in counts] == [0] * 4
    assert all(hits >= 100 for _, hits in counts)
    cache = PlainCache(tmp_path)
    assert [cache.get(str(i)) for i in range(50)] == [i / 7 for i in range(50)]
    assert len(cache) == 50


def test_the_flag_turns_the_cache_off():
    import argparse

    parser = argparse.ArgumentParser()
    add_settings_flags(parser)
    assert settings_from(parser.parse_args([])).kept_dir is not None
    assert settings_from(parser.parse_args(["--no-cache"])).kept_dir is None


def test_without_a_cache_nothing_is_read_or_kept(tmp_path, picture):
    image = IMAGES.add(picture(5, 64, 64))
    kept = load_settings(overrides={"cache_dir": tmp_path, "tools": {"device": "cpu"}})
    off = load_settings(overrides={"cache_dir": tmp_path, "cache": False, "tools": {"device": "cpu"}})
    registry = ToolRegistry.load()
    first = ToolRunner(kept, registry).measure("PIQE", image)
    assert ToolRunner(kept, registry).measure("PIQE", image).cached
    runner = ToolRunner(off, registry)
    assert [runner.measure("PIQE", image).cached for _ in range(2)] == [False, False]
    assert runner.measure("PIQE", image).raw == first.raw
    assert len(PlainCache(tmp_path / "readings")) == 1


def test_the_rows_tell_what_came_from_the_cache(tmp_path):
    from data.manifest import Sample
    from program.agent.loop import AgenticIQA
    from program.evaluation import evaluate
    from program.evaluation.record import EvaluationRecord

    rng = np.random.default_rng(0)
    samples = []
    for i in range(3):
        from PIL import Image

        path = tmp_path / f"{i}.png"
        Image.fromarray(noise(rng, 128, 128)).save(path)
        samples.append(Sample(id=str(i), image=path, mos=1.0 + i, mos_range=(1, 5), group=str(i), split="test"))
    own = {"cache_dir": tmp_path / "cache", "tools": {"device": "cpu"}, "executor": {"selection": "model"}}
    settings = load_settings(overrides=own)
    records = [evaluate(AgenticIQA(settings), samples, workers=1, progress=False) for _ in range(2)]
    first, second = ([row.usage for row in record.rows] for record in records)
    assert all(usage.tool_readings > usage.tool_cache_hits == 0 for usage in first)
    assert all(usage.tool_readings == usage.tool_cache_hits > 0 for usage in second)
    assert EvaluationRecord.model_validate_json(records[1].model_dump_json()) == records[1]


@pytest.mark.parametrize("name", ["cache_mb", "threads", "timeout_s", "reduce_above_px"])
def test_settings_that_cannot_be_are_refused(name):
    from program.common.errors import SettingsError

    with pytest.raises(SettingsError, match=name):
        load_settings(overrides={"tools": {name: 0}})


_LOADED = """
import json, sys
import program
from program.assess import main
heavy = {"torch", "torchvision", "pyiqa", "piq", "mlflow", "litellm", "matplotlib", "sklearn", "skimage", "pandas"}
heavy |= {"datasets", "onnxruntime", "scipy.stats", "timm", "transformers", "ray", "pyarrow", "fsspec"}
for words in json.loads(sys.argv[1]):
    assert main(words) == 0
    print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.spec("48/no-pytorch")
def test_an_assessment_imports_no_pytorch_and_a_cached_one_nothing_heavy(tmp_path, encoded):
    (tmp_path / "image.png").write_bytes(encoded(9, 96, 96))

    def ran(*commands):
        words = [sys.executable, "-c", _LOADED, json.dumps(commands)]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)

    image = [str(tmp_path / "image.png")]
    first, cached = ran(image), ran(image, [str(tmp_path), "--out", str(tmp_path / "table.csv")])
    assert first.stderr.strip() == "['onnxruntime']"
    assert [line for line in cached.stderr.splitlines() if line.startswith("[")] == ["[]", "[]"]
    assert cached.stdout.startswith(first.stdout)
    assert "of 5" in first.stdout
