"""The suite's own account of what it costs: the budget of `make test` is read from these lines."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SUMS = Path(__file__).with_name("processor_time.py")
BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
TWO_WORKERS = ["-p", "xdist", "-n", "2", "--dist", "loadfile"]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [[], TWO_WORKERS], ids=["one process", "two workers"])
def test_what_children_and_workers_took_is_counted_for_its_file(tmp_path, processes):
    (tmp_path / "conftest.py").write_text(
        f"import importlib.util\nspec = importlib.util.spec_from_file_location('sums', {str(SUMS)!r})\n"
        "sums = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(sums)\n"
        "def pytest_configure(config): config.pluginmanager.register(sums.ProcessorTime())\n"
    )
    (tmp_path / "test_child.py").write_text(
        f"import subprocess, sys\ndef test_child(): subprocess.run([sys.executable, '-c', {BURN!r}], check=True)\n"
    )
    (tmp_path / "test_idle.py").write_text("def test_idle(): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *processes, str(tmp_path)]
    bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    text = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True, check=True).stdout
    total, collections = re.search(r"([\d.]+) s in all; collection ([\d., ]+) s", text).groups()
    each = [float(seconds) for seconds in collections.split(", ")]
    assert len(each) == (2 if processes else 1)
    files = {name: float(seconds) for seconds, name in re.findall(r"([\d.]+) s +(test_\w+)\.py", text)}
    assert list(files) == ["test_child", "test_idle"]
    assert files["test_child"] >= 0.3
    assert files["test_idle"] < 0.1
    assert float(total) >= files["test_child"] + sum(each) - 0.1
