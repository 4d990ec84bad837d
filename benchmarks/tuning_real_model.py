"""What tuning the prompts of a real language model gains, on images that tuning never saw, over several seeds.

    python -m benchmarks.tuning_real_model 1.5b --data ../shared/data/biq2021/manifest.jsonl --seeds 3
    python -m benchmarks.tuning_real_model openai/NAME --api-base URL --data manifest.jsonl --seeds 3

Each seed draws `--train` of the manifest's training photographs, compiles the program with each of the recipes on them
and on the validation photographs, and judges it and the uncompiled program on the test ones. The table has the model
alone and the program as a whole, with the differences from the uncompiled one and from the tools alone, as shipped and
as labels move them; intervals are over images, seeds averaged. Of questions with options (`benchmarks.made_questions`)
it has the accuracy. One word an image (--score-only), unless `--reasons` is given. Stopped, the same command goes on:
compiles resume, and answers are kept.
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
from program.evaluation.intervals import METRICS

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
        moved: list[dict[str, float]] = []
        for seed in range(arguments.seeds):
            manifest = _drawn(arguments, seed)
            records.setdefault("uncompiled", []).append(_tested(arguments, settings, manifest, None))
            for recipe in arguments.recipes:
                program = _compiled(arguments, settings, manifest, recipe, seed)
                records.setdefault(recipe, []).append(_tested(arguments, settings, manifest, program))
            moved.append(_moved(program, settings, manifest, records[recipe][-1].rows))
    print(f"{name}, {arguments.data}, {arguments.seeds} seed(s) of {arguments.train} training photographs")
    for line in table(records, moved):
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
    loaded = load(program, settings) if program else AgenticIQA(settings)
    return evaluate(loaded, samples, split=None, workers=1)


def _moved(program: Path, settings: Settings, manifest: Path, rows: Sequence[Any]) -> dict[str, float]:
    """Return by sample the tools' mean as a compiled program's labels move it, without the model."""
    from data.manifest import read_manifest
    from program.agent.saving import load
    from program.images.store import IMAGES

    loaded = load(program, settings)
    labels, viewer = loaded.summarizer.corrections, loaded.resources.viewer
    if labels is None:
        return {}
    images = {sample.id: sample.image for sample in read_manifest(manifest)}
    return {row.id: labels.predict(viewer.view(IMAGES.add(images[row.id])), row.beliefs["tool_mean_equal"])
            for row in rows if "tool_mean_equal" in (row.beliefs or {})}  # fmt: skip


def table(records: Mapping[str, Sequence[Any]], moved: Sequence[Mapping[str, float]] = ()) -> list[str]:
    """Return the lines of the table; `records` are those of each seed, the uncompiled program's among them.

    `moved` is by seed and sample the tools' mean as labels move it.
    """
    if all(row.task == "mcq" for record in records["uncompiled"] for row in record.rows):
        return _Table(records, lambda row: row.predicted).lines({"program": lambda row: row.predicted}, ("accuracy",))
    whole = _Table(records, lambda row: row.predicted if "expected_level" in row.beliefs else None)
    ways = {"model alone": lambda row: row.beliefs["expected_level"], "program": lambda row: row.predicted}
    lines = whole.lines(ways, ("srcc", "rmse"))
    before = [whole.values(record, ways["model alone"]) for record in records["uncompiled"]]
    lines += whole.beside("rmse", "the uncompiled model's alone", before, ways["model alone"])
    if all("tool_mean_equal" in row.beliefs for row in whole.rows(records["uncompiled"][0])):
        rows = whole.rows(records["uncompiled"][0])
        tools = np.array([row.beliefs["tool_mean_equal"] for row in rows])
        ours = [np.array([each[row.id] for row in rows]) for each in moved if all(row.id in each for row in rows)]
        for name, values in (("tools alone", [tools]), ("tools moved by labels", ours)):
            if values:
                means = (np.mean([METRICS[m].function(whole.truth, each) for each in values]) for m in ("srcc", "rmse"))
                lines.append(f"{name:28}" + "".join(f"{mean:9.3f}" for mean in means))
        lines += whole.beside("srcc", "the tools' alone", [tools] * len(records["uncompiled"]), ways["program"])
        lines += (
            whole.beside("srcc", "the moved tools'", ours, ways["program"]) if ours and len(ours) == len(moved) else []
        )
    return lines


class _Table:
    """The figures of several programs, each compiled with several seeds, over the samples that all of them answered."""

    def __init__(self, records: Mapping[str, Sequence[Any]], answer: Callable[[Any], Any]) -> None:
        self._records = records
        rows = [
            {row.id for row in record.rows if answer(row) is not None} for each in records.values() for record in each
        ]
        self._ids = sorted(set.intersection(*rows))
        first = self.rows(records["uncompiled"][0])
        self.truth = np.array([row.truth for row in first])
        self._resampled = np.random.default_rng(0).integers(0, len(first), (DRAWS, len(first)))

    def rows(self, record: Any) -> list[Any]:
        by_id = {row.id: row for row in record.rows}
        return [by_id[name] for name in self._ids]

    def values(self, record: Any, of: Callable[[Any], Any]) -> np.ndarray:
        return np.array([of(row) for row in self.rows(record)])

    def gap(self, name: str, ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> str:
        """Return what the first gain over the second, seeds averaged, with its interval over samples."""
        metric = METRICS[name].function

        def of(places: Any) -> float:
            return float(np.mean([metric(self.truth[places], a[places]) - metric(self.truth[places], b[places])
                                  for a, b in zip(ours, theirs, strict=True)]))  # fmt: skip

        low, high = np.percentile([of(places) for places in self._resampled], (2.5, 97.5))
        return f"{of(slice(None)):+.3f} [{low:+.3f}, {high:+.3f}]"

    def lines(self, ways: Mapping[str, Callable[[Any], Any]], names: Sequence[str]) -> list[str]:
        heads = (
            "".join(f"{name.upper():>9}" for name in names),
            "".join(f"{f'{name.upper()} gained':>26}" for name in names),
        )
        lines = [
            f"{len(self._ids)} test samples with an answer of every program",
            f"{'':28}{heads[0]}{heads[1]}{'in':>6}{'out':>5}",
        ]
        for way, of in ways.items():
            before = [self.values(record, of) for record in self._records["uncompiled"]]
            for name, each in self._records.items():
                ours = [self.values(record, of) for record in each]
                figures = "".join(f"{np.mean([METRICS[m].function(self.truth, v) for v in ours]):9.3f}" for m in names)
                gaps = "".join(f"{self.gap(m, ours, before) if name != 'uncompiled' else '':>26}" for m in names)
                paid = [row.usage for record in each for row in record.rows if row.lm_calls]
                cost = [
                    np.mean([getattr(usage, key) for usage in paid] or [0]) for key in ("input_tokens", "output_tokens")
                ]
                lines.append(f"{f'{name}: {way}':28}{figures}{gaps}{cost[0]:6.0f}{cost[1]:5.0f}")
        return lines

    def beside(self, metric: str, name: str, theirs: Sequence[np.ndarray], way: Callable[[Any], Any]) -> list[str]:
        """Return what each program gains over others' values of each seed: in the mean and by seed."""
        lines = []
        for program, each in self._records.items():
            ours = [self.values(record, way) for record in each]
            by_seed = "; ".join(self.gap(metric, [a], [b]) for a, b in zip(ours, theirs, strict=True))
            lines.append(
                f"{program}: {metric.upper()} less {name}: {self.gap(metric, ours, theirs)}; by seed: {by_seed}"
            )
        return lines


if __name__ == "__main__":
    sys.exit(main())
