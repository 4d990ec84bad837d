"""How readings beside a reference become one score: every way, with one photograph left out at a time.

    python -m benchmarks.reference_fusion ../shared/data/live/manifest.jsonl quickstart-fr

Of each set the images of one reference are left out in turn; what a way learns (maps to 1..5 and weights) it learns on
the images of the others. `expert` is the embedded model's own score, one voice where it joins; on LIVE it was fitted on
the two train references. Printed: SRCC over all images left out, the mean and the lowest of a reference's, and the
lowest lead over the tool that is best on that reference, as only hindsight can tell. `program` is what the default
settings answer. Readings are kept in the cache folder, so that a second run takes seconds.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from program import AgenticIQA
from program.common.cli import add_settings_flags, run_command, settings_from
from program.common.pool import progress
from program.evaluation.calibrating import LabelledSet
from program.evaluation.metrics import fit_map
from program.tools.calibration import apply_map, least_variance
from program.tools.registry import ToolRegistry

Matrix = NDArray[np.float64]
EXPERT, PROGRAM = "expert", "program"
FIRST = ("MDSI", "HaarPSI")


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table for each set."""
    summary, _, rest = str(__doc__).partition("\n")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reference_fusion", description=summary, epilog=rest,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("data", nargs="+", metavar="NAME|MANIFEST")
    parser.add_argument("--split", default="all", choices=("train", "validation", "test", "all"))
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of each set each Nth image only")
    add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    settings = settings_from(arguments)
    program = AgenticIQA(settings=settings)
    for data in arguments.data:
        images = LabelledSet.read(data, arguments.split, settings.cache_dir)
        samples = [s for s in images.samples if s.reference is not None and s.quality < 5][:: arguments.every]
        raw, scores = readings(program, samples)
        human, groups = np.array([s.quality for s in samples]), np.array([str(s.group) for s in samples])
        print(f"{images.source}: n = {len(samples)}, {len(set(groups))} references")
        show(left_out(raw, scores, human, groups), human, groups, tuple(raw))
    return 0


def readings(program: AgenticIQA, samples: Sequence) -> tuple[dict[str, Matrix], dict[str, Matrix]]:
    """Return raw values by tool, and the scores of the expert alone and of the whole program."""
    runner = program.resources.runner
    names = [spec.name for spec in runner.ready("FR")]
    raw: dict[str, list[float]] = {name: [] for name in names}
    scores: dict[str, list[float]] = {EXPERT: [], PROGRAM: []}
    with progress("measuring", len(samples)) as advance:
        for sample in samples:
            result = program(image=sample.image, reference=sample.reference)
            belief = result.level_probabilities or {}
            scores[EXPERT].append(sum(float(level) * share for level, share in belief.items()))
            scores[PROGRAM].append(float(result.quality_score or np.nan))
            for name in names:
                value = runner.measure(name, *result.images).raw
                raw[name].append(np.nan if value is None else value)
            advance()
    values, said = ({name: np.array(column) for name, column in each.items()} for each in (raw, scores))
    return values, said


def left_out(
    raw: Mapping[str, Matrix], scores: Mapping[str, Matrix], human: Matrix, groups: NDArray[np.str_]
) -> dict[str, Matrix]:
    """Return what each way says of the images of each reference, learned on those of the others."""
    registry, names = ToolRegistry.load(), list(raw)
    found: dict[str, Matrix] = {}
    for group in dict.fromkeys(groups):
        out = groups == group
        columns = []
        for name in names:
            spec = registry.get(name)
            fitted = fit_map(raw[name][~out], human[~out], higher_is_better=spec.higher_is_better,
                             identity=spec.identity)  # fmt: skip
            columns.append(apply_map(fitted, raw[name]))
        tools = np.stack(columns, axis=1)
        for way, said in ways(names, tools, scores[EXPERT], human, out).items():
            found.setdefault(way, np.full(len(human), np.nan))[out] = said
    return {**found, **scores}


def ways(
    names: Sequence[str], tools: Matrix, expert: Matrix, human: Matrix, out: NDArray[np.bool_]
) -> dict[str, Matrix]:
    """Return each way's scores of the images left out: tools N x T, already on 1..5."""
    first = tools[:, [names.index(name) for name in FIRST]]
    sets = {"tools": tools, "+".join(FIRST): first}
    sets |= {f"{name}, expert": np.column_stack([chosen, expert]) for name, chosen in list(sets.items())}
    kinds: dict[str, Callable[[Matrix], Matrix]] = {
        "mean": lambda given: given[out].mean(1),
        "trimmed": lambda given: np.sort(given[out], axis=1)[:, 2:-2].mean(1),
        "median": lambda given: np.median(given[out], axis=1),
        "weights": lambda given: given[out] @ _weights(given[~out] - human[~out, None]),
    }
    said = {name: tools[out, place] for place, name in enumerate(names)}
    for name, given in sets.items():
        said |= {
            f"{kind} of {name}": way(given) for kind, way in kinds.items() if given.shape[1] > 5 or kind != "trimmed"
        }
    return said


def _weights(errors: Matrix) -> Matrix:
    return least_variance(errors.T @ errors / len(errors))[0]


def show(said: Mapping[str, Matrix], human: Matrix, groups: NDArray[np.str_], tools: Sequence[str]) -> None:
    """Print each way's agreement, the best first."""
    parts = [groups == group for group in dict.fromkeys(groups) if (groups == group).sum() >= 8]

    def srcc(scores: Matrix, part: NDArray[np.bool_]) -> float:
        return float(spearmanr(scores[part], human[part]).statistic)

    best = [max(srcc(said[name], part) for name in tools) for part in parts]
    lines = []
    for name, scores in said.items():
        own = [srcc(scores, part) for part in parts]
        lines.append((srcc(scores, np.isfinite(scores)), np.mean(own), min(own), min(np.subtract(own, best)), name))
    print("SRCC over all, mean and lowest of a reference, lowest lead over its best tool")
    for line in sorted(lines, reverse=True):
        print("  {:.3f}  {:.3f}  {:.3f}  {:+.3f}  {}".format(*line))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
