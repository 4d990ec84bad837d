"""What tuning the prompts of a real language model gains, on images that tuning never saw, over several seeds.

    python -m benchmarks.tuning_real_model 1.5b --data ../shared/data/biq2021/manifest.jsonl --seeds 3
    python -m benchmarks.tuning_real_model openai/NAME --api-base URL --data manifest.jsonl --seeds 3

Each seed draws `--train` of the manifest's training photographs, compiles the program with each of the recipes on them
and on the validation photographs, and judges it and the uncompiled program on the test ones. The table has the model
alone and the program as a whole, with the differences from the uncompiled one; intervals are over images, seeds
averaged. One word an image (--score-only), unless `--reasons` is given. Stopped, the same command goes on: compiles
resume, and answers are kept.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real_model import server_of
from program.common.cli import Parser, run_command, whole_number
from program.common.settings import Settings, load_settings

RECIPES = ("labeled", "nearest", "nearest,fusion")
DRAWS = 1000
"""Resamples of the images."""


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = Parser(
        prog="python -m benchmarks.tuning_real_model", description="Gains of tuning a real model's prompts."
    )
    parser.add_argument("model", metavar="MODEL", help="1.5b, 135m, a .gguf file, or openai/NAME")
    parser.add_argument("--api-base", metavar="URL", help="of the server that has MODEL")
    parser.add_argument("--data", required=True, metavar="MANIFEST")
    parser.add_argument("--recipes", nargs="+", default=RECIPES, metavar="NAME", help=f"default: {' '.join(RECIPES)}")
    parser.add_argument("--seeds", type=whole_number(1), default=3)
    parser.add_argument("--train", type=whole_number(2), default=300, help="photographs drawn a seed (default: 300)")
    parser.add_argument("--test", type=whole_number(2), help="the first test images (default: all)")
    parser.add_argument("--reasons", action="store_true", help="as by default, in place of one word an image")
    parser.add_argument("--threads", type=whole_number(1), default=2, help="of the server")
    parser.add_argument("--work", type=Path, default=Path("tuning-real-model"), metavar="DIR")
    return run_command(lambda: _run(parser.parse_args(argv)), kept="what is done is kept; the same command goes on")


def _run(arguments: argparse.Namespace) -> int:
    arguments.work.mkdir(parents=True, exist_ok=True)
    with server_of(arguments) as (name, address):
        own = {"cache_dir": str(arguments.work / "cache"), "mlruns_dir": str(arguments.work / "mlruns")}
        score_only = {"assessment": {"score_only": not arguments.reasons}}
        settings = load_settings(overrides={**own, **score_only}).with_model(name, address, {})
        records: dict[str, list[Any]] = {}
        for seed in range(arguments.seeds):
            manifest = _drawn(arguments, seed)
            records.setdefault("uncompiled", []).append(_tested(arguments, settings, manifest, None))
            for recipe in arguments.recipes:
                program = _compiled(arguments, settings, manifest, recipe, seed)
                records.setdefault(recipe, []).append(_tested(arguments, settings, manifest, program))
    print(f"{name}, {arguments.data}, {arguments.seeds} seed(s) of {arguments.train} training photographs")
    for line in table(records):
        print(line)
    return 0


def _drawn(arguments: argparse.Namespace, seed: int) -> Path:
    """Write the manifest of one seed: some training photographs, those of validation, and the first of the test."""
    source = Path(arguments.data).resolve()
    rows = [json.loads(line) for line in source.read_text("utf-8").splitlines() if line.strip()]
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        for key in ("image", "reference"):
            if row.get(key):
                row[key] = str(source.parent / row[key])
        parts.setdefault(row["split"], []).append(row)
    train = random.Random(seed).sample(parts["train"], min(arguments.train, len(parts["train"])))
    kept = [*train, *parts["validation"], *parts["test"][: arguments.test]]
    file = arguments.work / f"seed-{seed}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in kept), "utf-8")
    return file


def _compiled(arguments: argparse.Namespace, settings: Settings, manifest: Path, recipe: str, seed: int) -> Path:
    """Return the folder of a compiled program; one that is finished is not compiled again."""
    from program.compile import main as compile_command

    folder = arguments.work / f"{manifest.stem}-{recipe.replace(',', '+')}"
    config = arguments.work / "settings.yaml"
    models = settings.models.summarizer
    score_only = str(settings.assessment.score_only).lower()
    config.write_text(
        f"cache_dir: {settings.cache_dir}\nmlruns_dir: {settings.mlruns_dir}\n"
        f"assessment: {{score_only: {score_only}}}\n"
        "compile: {workers: 1, baselines: false}\n",
        "utf-8",
    )
    if folder.is_dir():
        record = json.loads((folder / "program.json").read_text("utf-8"))["record"]
        if record.get("finished"):
            return folder
    command = ["--data", str(manifest), "--optimizer", recipe, "--roles", "summarizer", "--out", str(folder),
               "--config", str(config), "--lm", str(models.backend), "--api-base", str(models.api_base),
               "--seed", str(seed), *(["--resume"] if folder.is_dir() else [])]  # fmt: skip
    if compile_command(command):
        raise SystemExit(f"the compile of {folder.name} failed")
    return folder


def _tested(arguments: argparse.Namespace, settings: Settings, manifest: Path, program: Path | None) -> Any:
    """Return the record of a program over the test images."""
    from program.agent.loop import AgenticIQA
    from program.agent.saving import load
    from program.evaluation.evaluating import evaluate, samples_of

    samples = samples_of(str(manifest), settings, "test", progress=False)
    name = f"{program.name if program else 'uncompiled'}-test.jsonl"
    checkpoint = arguments.work / name
    loaded = load(program, settings) if program else AgenticIQA(settings)
    return evaluate(loaded, samples, split=None, workers=1, checkpoint=checkpoint, resume=checkpoint.is_file())


def table(records: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the lines of the table; `records` are those of each seed, the uncompiled program's among them."""
    from program.evaluation.metrics import rmse, srcc

    first = records["uncompiled"][0]
    whole = {row.id for each in records.values() for record in each for row in record.rows}
    for each in records.values():
        for record in each:
            whole &= {row.id for row in record.rows if row.predicted is not None and "expected_level" in row.beliefs}
    ids = sorted(whole)
    by_id = {row.id: row for row in first.rows}
    truth = np.array([by_id[name].truth for name in ids])

    def values(record: Any, field: str) -> np.ndarray:
        rows = {row.id: row for row in record.rows}
        return np.array([getattr(rows[name], field) for name in ids])

    resampled = np.random.default_rng(0).integers(0, len(ids), (DRAWS, len(ids)))

    def said(metric: Callable[..., float], ours: list[np.ndarray], theirs: list[np.ndarray]) -> str:
        def gap(places: Any) -> float:
            return float(np.mean([metric(truth[places], a[places]) - metric(truth[places], b[places])
                                  for a, b in zip(ours, theirs, strict=True)]))  # fmt: skip

        low, high = np.percentile([gap(places) for places in resampled], (2.5, 97.5))
        return f"{gap(slice(None)):+.3f} [{low:+.3f}, {high:+.3f}]"

    lines = [f"{len(ids)} test images with an answer of every program",
             f"{'':28}{'SRCC':>7}{'RMSE':>7}{'SRCC less uncompiled':>26}{'RMSE less uncompiled':>26}"
             f"{'in':>6}{'out':>5}"]  # fmt: skip
    tools = [values(first, "tool_mean")] if hasattr(first.rows[0], "tool_mean") else []
    for way, field in (("model alone", "expected_level"), ("program", "predicted")):
        before = [values(record, field) for record in records["uncompiled"]]
        for name, each in records.items():
            ours = [values(record, field) for record in each]
            figures = (float(np.mean([metric(truth, v) for v in ours])) for metric in (srcc, rmse))
            gaps = "".join(f"{said(m, ours, before):>26}" for m in (srcc, rmse)) if name != "uncompiled" else " " * 52
            spent = [row.spent or {} for record in each for row in record.rows]
            cost = [np.mean([s.get(key, 0.0) for s in spent]) for key in ("input_tokens", "output_tokens")]
            lines.append(
                f"{name + ': ' + way:28}{next(figures):7.3f}{next(figures):7.3f}{gaps}{cost[0]:6.0f}{cost[1]:5.0f}"
            )
    if tools:
        lines.append(f"{'tools alone':28}{srcc(truth, tools[0]):7.3f}{rmse(truth, tools[0]):7.3f}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
