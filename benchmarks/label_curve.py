"""What more labels are worth: a fine-tuned program, one with demos, one with both, and a plain regression beside them.

    python -m benchmarks.label_curve MANIFEST labels.jsonl [--sizes 30,100] [--draws 10] [--plot docs/images/labels.png]

Only the train and validation rows of MANIFEST are read. `HELD` of them, drawn once, are what every program is judged
on; from the others each size is drawn, a quarter of it (at most 240) to choose on: so many labels are spent in all.
Sizes up to 300 are drawn `--draws` times (three). The plain regression is a ridge on the numbers that the expert reads
and on nothing else, fitted on all labels of a size. Each line of the file is one compile: way, size, seed, what was
chosen, SRCC and RMSE on the held photographs before and after. A line that is there is not worked out again. Printed:
for each size the mean SRCC of each way and, of compiles, the gain over the uncompiled program: mean, 95 % interval of
the mean over the draws (Student's t), least and most.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import sem, t
from sklearn.linear_model import Ridge, RidgeCV

from data.manifest import Sample, read_manifest
from optimizers.compiling import compile_program
from optimizers.job import prepare_job
from program.agent.loop import AgenticIQA
from program.common.settings import load_settings
from program.evaluation.metrics import rmse, srcc
from program.images.store import IMAGES

WAYS = {"finetune": "finetune,fusion", "plain ridge": ""}
SIZES, DRAWS, SEEDED = (30, 100, 300, 1000, 3000, 8000), 3, 300
HELD, CHOSEN_ON, PENALTY_ON = 2000, 240, 2000


def main(argv: Sequence[str] | None = None) -> int:
    """Compile what is missing, and print or draw what is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.label_curve", description=str(__doc__).split("\n")[0])
    parser.add_argument("manifest", type=Path)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--held", type=int, default=HELD)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args(argv)
    sizes = [int(size) for size in arguments.sizes.split(",") if size]
    samples = [s for s in read_manifest(arguments.manifest) if s.split != "test" and s.quality is not None]
    samples.sort(key=lambda sample: sample.id)
    random.Random(0).shuffle(samples)
    held, pool = samples[: arguments.held], samples[arguments.held :]
    for size in [size for size in sizes if size <= len(pool)]:
        for seed in range(arguments.draws if size <= SEEDED else 1):
            for way in WAYS:
                if not any((line["way"], line["size"], line["seed"]) == (way, size, seed)
                           for line in known(arguments.lines)):  # fmt: skip
                    drawn = random.Random(seed).sample(pool, size)
                    line = compiled(way, drawn, held, seed) if WAYS[way] else regressed(way, drawn, held, seed)
                    with arguments.lines.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
    show(known(arguments.lines))
    if arguments.plot:
        draw(known(arguments.lines), arguments.plot)
    return 0


def known(lines: Path) -> list[dict[str, Any]]:
    """Return the lines that are there."""
    return [json.loads(line) for line in lines.read_text("utf-8").splitlines()] if lines.exists() else []


def compiled(way: str, drawn: Sequence[Sample], held: Sequence[Sample], seed: int) -> dict[str, Any]:
    """Return the line of one compile on the drawn labels."""
    chosen_on = min(len(drawn) // 4, CHOSEN_ON)
    splits = ["validation"] * chosen_on + ["train"] * (len(drawn) - chosen_on) + ["test"] * len(held)
    with tempfile.TemporaryDirectory() as folder:
        manifest, out = Path(folder) / "manifest.jsonl", Path(folder) / "program"
        rows = [sample.model_copy(update={"split": split}).model_dump(mode="json", exclude_none=True)
                for sample, split in zip([*drawn, *held], splits, strict=True)]  # fmt: skip
        manifest.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        settings = load_settings(overrides={"seed": seed, "compile": {"baselines": False}})
        result = compile_program(prepare_job(settings, str(manifest), WAYS[way], out, force=True))
    figures = {
        f"{name} {when}": round(record.figures[name].value or 0.0, 4)
        for when, record in (("before", result.uncompiled), ("after", result.compiled))
        for name in ("srcc", "rmse")
    }
    return {"way": way, "size": len(drawn), "seed": seed, "n": len(held), "chosen": result.chosen, **figures}


def regressed(way: str, drawn: Sequence[Sample], held: Sequence[Sample], seed: int) -> dict[str, Any]:
    """Return the line of the plain regression."""
    predicted, labels = plain_ridge(drawn, held), np.array([sample.quality for sample in held])
    figures = {"srcc after": round(float(srcc(predicted, labels)), 4),
               "rmse after": round(float(rmse(predicted, labels)), 4)}  # fmt: skip
    return {"way": way, "size": len(drawn), "seed": seed, "n": len(held), **figures}


def plain_ridge(drawn: Sequence[Sample], others: Sequence[Sample]) -> NDArray[np.float64]:
    """Return what a ridge regression on drawn labels says of others; its penalty by at most `PENALTY_ON` of them."""
    viewer = AgenticIQA().resources.viewer

    def read(samples: Sequence[Sample]) -> NDArray[np.float32]:
        return np.array([viewer.view(IMAGES.add(sample.image)).features.points[0] for sample in samples])

    vectors, labels = read(drawn), np.array([sample.quality for sample in drawn])
    # The variance of a label, which the penalty is, does not depend on how many there are.
    few = RidgeCV(np.logspace(-1.5, 0.5, 9)).fit(vectors[:PENALTY_ON], labels[:PENALTY_ON])
    return np.asarray(Ridge(few.alpha_, solver="cholesky").fit(vectors, labels).predict(read(others)))


def show(lines: Sequence[dict[str, Any]]) -> None:
    """Print by size the mean SRCC of each way, and the gain over its draws."""
    for size in sorted({line["size"] for line in lines}):
        for way in WAYS:
            of_way = [line for line in lines if (line["size"], line["way"]) == (size, way)]
            if not of_way:
                continue
            text = f"{size}: {way} {mean(line['srcc after'] for line in of_way):.3f} ({len(of_way)} draws)"
            gains = [line["srcc after"] - line["srcc before"] for line in of_way if "srcc before" in line]
            if len(set(gains)) > 1:
                low, high = t.interval(0.95, len(gains) - 1, mean(gains), sem(gains))
                text += f", gain {mean(gains):+.3f} [{low:+.3f}, {high:+.3f}]"
                text += f", least {min(gains):+.3f}, most {max(gains):+.3f}"
            sys.stdout.write(f"{text}\n")


def draw(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw SRCC against labels, a line for each way, and the uncompiled program's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6))
    for way in WAYS:
        sizes = sorted({line["size"] for line in lines if line["way"] == way})
        found = [[line["srcc after"] for line in lines if (line["way"], line["size"]) == (way, size)] for size in sizes]
        axes.plot(sizes, [mean(each) for each in found], "o--" if way == "both" else "o-", label=way)
    axes.axhline(
        mean(line["srcc before"] for line in lines if "srcc before" in line), color="grey", ls=":", label="no labels"
    )
    sizes = sorted({line["size"] for line in lines})
    axes.set(xscale="log", xlabel="labels", ylabel=f"SRCC on {lines[0]['n']:,} other photographs")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
