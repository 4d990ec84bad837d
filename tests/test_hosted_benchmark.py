"""The benchmark of a hosted model, end to end on a loopback server: plan, question, cap, resume, report."""

import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest
from dspy import lm15
from PIL import Image

import program.agent.resources as build
from program.tracking.store import open_client
from tests.pictures import blocks
from tests.tables import as_lines

SMALL = """
compile: {rerank: 2, workers: 2}
tools: {device: cpu}
optimizers: {model: {random-search: {demos: 2, role_demos: 1, starts: 2, search_samples: 6}}}
"""


@pytest.fixture
def benchmark():
    path = Path(__file__).parents[1] / "benchmarks" / "hosted.py"
    spec = importlib.util.spec_from_file_location("hosted_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server(loopback, monkeypatch):
    """The loopback in the provider's place, so that its model has a price."""
    server, real = loopback(), build._hosted
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    config = lm15.RouterConfig(base_urls={"openai-chat": server.base})
    monkeypatch.setattr(build, "_hosted", lambda name, key: real(name, key)._replace(config=lambda _: config))
    return server


@pytest.fixture
def words(tmp_path: Path, rng: np.random.Generator, monkeypatch) -> list[str]:
    """The command over two small manifests, one of them found as a prepared dataset."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL, "utf-8")
    for name in ("bid", "mine"):
        lines = []
        for number, split in enumerate(["train"] * 4 + ["validation"] * 4 + ["test"] * 6):
            image = f"{name}-{number}.png"
            squares = blocks(rng, 8, 12, 8)
            Image.fromarray(squares).save(tmp_path / image)
            lines.append(
                {"id": f"s{number}", "image": image, "mos": 1 + number % 4, "split": split, "labels": "made-up"}
            )
        (tmp_path / f"{name}.jsonl").write_text(as_lines(lines), "utf-8")
    return ["--lm", "openai/gpt-4o", "--optimizer", "random-search", "--config", "small.yaml", "--test-samples", "4"]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn", "unlogged", "coarse")
def test_it_asks_first_keeps_to_the_cap_goes_on_and_reports(benchmark, server, words, monkeypatch, capsys):
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert benchmark.main([*words, "--max-cost", "5"]) == 1
    assert server.stats()["requests"] == 0
    told = capsys.readouterr().out
    assert "bid: 4 train, 4 validation, 4 test; random-search" in told
    assert "1 compile(s) to do: about " in told
    assert " USD\nlimit 5 USD" in told

    assert benchmark.main([*words, "--max-cost", "0.05", "--yes"]) == 2
    first = server.stats()["requests"]
    spent = json.loads(Path("hosted/spent.json").read_text("utf-8"))
    assert 0 < spent["calls"] == first
    assert 0 < spent["cost_usd"] <= 0.05
    assert "USD are spent" in capsys.readouterr().err
    assert benchmark.main([*words, "--max-cost", "0.05", "--yes"]) == 2
    assert server.stats()["requests"] == first

    assert benchmark.main(["bid.jsonl", "mine.jsonl", *words, "--max-cost", "5", "--yes"]) == 0
    whole = server.stats()["requests"]
    report = Path("hosted/report.md").read_text("utf-8")
    spent = json.loads(Path("hosted/spent.json").read_text("utf-8"))
    assert spent["calls"] == whole > first
    assert f"{whole} calls, {spent['tokens']} tokens and {spent['cost_usd']:.4f} USD in all" in report
    for row in ("compiled: tools and model fused", "uncompiled: tools and model fused", "gain, paired",
                "model only, no evidence", "mean of all ready tools", "normalised"):  # fmt: skip
        assert report.count(f"| {row}") + report.count(f"| fusion {row} |") >= 2, row
    assert "models planner openai/gpt-4o" in report
    for name in ("bid", "mine"):
        result = json.loads(Path("hosted", name, "result.json").read_text("utf-8"))
        assert f"## {name}" in report
        assert f"{result['compiled']['srcc']['value']:.3f}" in report
        client, _ = open_client(Path(os.environ["AGENTICIQA_MLRUNS_DIR"]))
        run = client.get_run(result["mlflow_run"])
        assert run.data.metrics["srcc"] == pytest.approx(result["compiled"]["srcc"]["value"], abs=1e-4)

    assert benchmark.main(["bid.jsonl", "mine.jsonl", *words, "--max-cost", "5", "--yes"]) == 0
    assert server.stats()["requests"] == whole
    assert benchmark.main(["bid.jsonl", *words, "--seed", "7", "--max-cost", "5", "--yes"]) == 2
    assert "holds a result with another seed" in capsys.readouterr().err


def test_it_wants_a_limit_that_can_hold_and_data(benchmark, words, tmp_path, monkeypatch, capsys):
    assert benchmark.main([*words, "--api-base", "http://127.0.0.1:9/v1", "--max-cost", "1"]) == 2
    assert "the price of this model is unknown" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert benchmark.main(["--lm", "openai/gpt-4o"]) == 2
    assert "--max-cost" in capsys.readouterr().err
    assert benchmark.main(["--lm", "openai/gpt-4o", "--max-cost", "1"]) == 2
    assert "agentic-iqa data prepare" in capsys.readouterr().err
