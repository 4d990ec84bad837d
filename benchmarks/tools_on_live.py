"""Agreement of every ready tool with human scores on one manifest: `python -m benchmarks.tools_on_live [MANIFEST]`.

Prints SRCC and PLCC of the raw values and of the calibrated scores, per distortion category too; then of what an agent
gets that knows each image's true distortion and takes the registry's best tool for it, of means of scores, and of the
tools' evidence fused: all tools of a mode, plain and by reliability (calibration and weights fitted elsewhere), with a
95 % interval and the paired difference to the best single tool.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from data.catalogue import resolve_dataset
from data.distortions import category_named
from data.manifest import Sample, read_manifest
from program.common.cli import add_settings_flags, run_command, settings_from
from program.common.errors import ToolError
from program.evaluation.calibrating import survey
from program.evaluation.intervals import interval, paired_difference
from program.evaluation.metrics import plcc, srcc
from program.fusion import ScoreFusion, ToolWeights
from program.tools.calibration import Calibration
from program.tools.registry import Measurement, ToolRegistry, ToolSpec
from program.tools.runner import ToolRunner
from signatures.schemas import DISTORTION_CATEGORIES

LIVE = "../shared/data/live/manifest.jsonl"
MEANS = (("VIF", "FSIM"), ("VIF", "VSI"), ("VIF", "GMSD"), ("VIF", "FSIM", "VSI"), ("VIF", "FSIM", "VSI", "GMSD"))

Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tools_on_live", description=str(__doc__).split("\n")[0])
    parser.add_argument("data", nargs="?", default=LIVE, metavar="NAME|MANIFEST", help=f"default: {LIVE}")
    parser.add_argument("--split", default="all", choices=("train", "validation", "test", "all"))
    parser.add_argument(
        "--tools", metavar="NAME[,NAME]", help="only these; default: all that are ready and not expensive"
    )
    parser.add_argument("--json", action="store_true")
    add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    settings = settings_from(arguments)
    registry = ToolRegistry.load()
    runner = ToolRunner(settings, registry)
    manifest = resolve_dataset(arguments.data, settings.cache_dir)
    samples = _distinct(
        s for s in read_manifest(manifest) if arguments.split in ("all", s.split) and s.quality is not None
    )
    named = [registry.get(name) for name in (arguments.tools or "").split(",") if name]
    specs = named or [*runner.ready("FR"), *runner.ready("NR")]
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("measuring", total=len(samples))
        measured = survey(runner, specs, samples, on_image=lambda: progress.advance(task))
    study = Study(
        np.array([s.quality for s in samples], float),
        [category_named(s.distortion) for s in samples],
        measured,
        runner.calibration,
    )
    rows = [study.tool(spec) for spec in specs]
    for mode in ("FR", "NR"):
        ready = [spec for spec in specs if spec.mode == mode and spec.name in measured[0]]
        if ready:
            rows.append(study.chosen(f"best {mode} tool by true distortion", registry, ready))
    rows += [study.mean(names) for names in MEANS if {spec.name for spec in specs} >= set(names)]
    for mode in ("FR", "NR"):
        names = [spec.name for spec in specs if spec.mode == mode and spec.name in measured[0]]
        if len(names) > 1:
            rows += [study.fused(f"all {mode} tools, {how}", names, how, rows) for how in ("equal", "reliability")]
    if arguments.json:
        print(json.dumps({"data": arguments.data, "split": arguments.split, "n": len(samples), "rows": rows}))
    else:
        Console().print(_table(f"{arguments.data} ({arguments.split}, n = {len(samples)})", rows))
    return 0


@dataclass(frozen=True)
class Study:
    """Measurements of images with human scores and their true distortion categories."""

    human: NDArray[np.float64]
    categories: list[str | None]
    measured: list[dict[str, Measurement]]
    calibration: Calibration

    def tool(self, spec: ToolSpec) -> Row:
        """Return one tool's agreement, by its raw value and its score."""
        turned = 1 if spec.higher_is_better else -1
        raw = [_number(by_tool.get(spec.name), "raw") * turned for by_tool in self.measured]
        score = [_number(by_tool.get(spec.name), "score") for by_tool in self.measured]
        return _row(spec.name, self.human, self.categories, np.array(score), np.array(raw))

    def chosen(self, name: str, registry: ToolRegistry, specs: Sequence[ToolSpec]) -> Row:
        """Return the agreement of the registry's choice for each image's true distortion, scored for it."""
        score = []
        for category, by_tool in zip(self.categories, self.measured, strict=True):
            tool = registry.best(category, specs).name
            raw = by_tool[tool].raw
            score.append(float("nan") if raw is None else self.calibration.score(tool, raw, category))
        return _row(name, self.human, self.categories, np.array(score))

    def fused(self, name: str, names: Sequence[str], how: ToolWeights, rows: Sequence[Row]) -> Row:
        """Return the agreement of several tools' evidence fused, its interval, and its lead over the best one."""
        fusion = ScoreFusion(tool_weights=how)
        shares = self.calibration.precisions([(tool, None) for tool in names])
        if None in shares:
            raise ToolError(f"tools {', '.join(names)}: not all have a map to 1..5; fit them with program.calibrate")
        known = [share for share in shares if share is not None]
        scores = [
            fusion.tool_mean([_number(by_tool[tool], "score") for tool in names], known) for by_tool in self.measured
        ]
        row = _row(name, self.human, self.categories, np.array(scores))
        best = max((r for r in rows if r["name"] in names), key=lambda r: r["srcc"])
        alone = [_number(by_tool[best["name"]], "score") for by_tool in self.measured]
        found = interval("srcc", self.human, scores, None, seed=0)
        lead = paired_difference("srcc", self.human, alone, scores, None, seed=0)
        return {
            **row,
            "interval": [round(found.low, 4), round(found.high, 4)],
            "beside": {"tool": best["name"], "lead": [round(v, 4) for v in (lead.value, lead.low, lead.high)]},
        }

    def mean(self, names: Sequence[str]) -> Row:
        """Return the agreement of the mean of several tools' scores."""
        scores = [[_number(by_tool.get(name), "score") for by_tool in self.measured] for name in names]
        return _row("mean of " + ", ".join(names), self.human, self.categories, np.mean(scores, axis=0))


def _row(
    name: str,
    human: NDArray[np.float64],
    categories: list[str | None],
    score: NDArray[np.float64],
    raw: NDArray[np.float64] | None = None,
) -> Row:
    """Return the agreement of scores (and raw values turned so that higher is better) with the human scores."""
    shown = score if raw is None else raw
    good = np.isfinite(shown)
    by_category = {}
    for category in DISTORTION_CATEGORIES:
        here = good & np.array([c == category for c in categories])
        if here.sum() >= 8:
            by_category[category] = round(abs(srcc(human[here], shown[here])), 4)
    scored = np.isfinite(score)
    if not good.any():
        return {
            "name": name,
            "n": 0,
            "srcc": None,
            "srcc_of_score": None,
            "plcc_of_score": None,
            "rmse_of_score": None,
            "by_category": {},
        }
    return {
        "name": name,
        "n": int(good.sum()),
        "srcc": round(srcc(human[good], shown[good]), 4),
        "plcc_of_score": round(plcc(human[scored], score[scored]), 4) if scored.any() else None,
        "rmse_of_score": round(float(np.sqrt(np.mean((human - score)[scored] ** 2))), 4) if scored.any() else None,
        "srcc_of_score": round(srcc(human[scored], score[scored]), 4) if scored.any() else None,
        "by_category": by_category,
    }


def _table(title: str, rows: list[Row]) -> Table:
    seen = [c for c in DISTORTION_CATEGORIES if any(c in row["by_category"] for row in rows)]
    table = Table(
        title=title, caption="SRCC of the raw value; SRCC, PLCC and RMSE of the score 1..5; |SRCC| by category"
    )
    for column in ("", "n", "SRCC", "SRCC 1..5", "PLCC 1..5", "RMSE 1..5", *seen):
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        figures = [row[k] for k in ("srcc", "srcc_of_score", "plcc_of_score", "rmse_of_score")]
        figures += [row["by_category"].get(c) for c in seen]
        table.add_row(row["name"], str(row["n"]), *("-" if f is None else f"{f:.3f}" for f in figures))
    for row in rows:
        if "interval" in row:
            low, high = row["interval"]
            lead, least, most = row["beside"]["lead"]
            told = f"{row['name']}: SRCC {row['srcc']:.3f} [{low:.3f}, {high:.3f}]"
            beside = f"{lead:+.3f} [{least:+.3f}, {most:+.3f}] to {row['beside']['tool']}"
            table.caption = f"{table.caption}\n{told}, {beside}"
    return table


def _number(measurement: Measurement | None, field: str) -> float:
    value = getattr(measurement, field, None)
    return float("nan") if value is None else float(value)


def _distinct(samples: Iterable[Sample]) -> list[Sample]:
    """Drop repeats of one image (several questions on it)."""
    return list({(s.image, s.reference): s for s in samples}.values())


if __name__ == "__main__":
    sys.exit(main())
