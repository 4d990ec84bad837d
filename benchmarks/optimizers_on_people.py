"""What compiling gains on people's scores: by the default recipe, by a rubric, and against a fitted model.

    python benchmarks/optimizers_on_people.py MANIFEST [--seeds 3] [--others MANIFEST ...]

MANIFEST has train, validation and test splits of human scores that no shipped weight was fitted on. For each seed:
the default recipe (`finetune,fusion`) and `rubric`, then once `fusion` alone; test SRCC, PLCC and RMSE with paired 95 %
intervals. The fitted model is a support vector regression of the train labels on the expert's own features (C by
cross-validation on train); the share of the gap in SRCC is (compiled - uncompiled) / (fitted - uncompiled). `--others`
are evaluated with each compiled program, without compiling again. Folders of programs are temporary.
"""

import argparse
import tempfile
import time
from pathlib import Path

import dspy
import numpy as np
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from data.manifest import Sample, read_manifest
from optimizers.compiling import compile_program
from optimizers.job import prepare_job
from optimizers.report import Compiled
from program.agent.loop import AgenticIQA
from program.agent.saving import load
from program.common.settings import load_settings
from program.evaluation.evaluating import run_samples
from program.evaluation.figures import compare
from program.evaluation.metrics import srcc
from program.images.store import IMAGES

DEFAULT = "finetune,fusion"


def fitted_srcc(manifest: str, program: AgenticIQA) -> float:
    """Return the test SRCC of a support vector regression fitted on the train labels."""
    viewer = program.resources.lm("summarizer").engine._viewer
    samples = [s for s in read_manifest(manifest) if s.task == "scoring"]
    parts: dict[str | None, list[Sample]] = {}
    for sample in samples:
        parts.setdefault(sample.split, []).append(sample)

    def features(split: str) -> np.ndarray:
        return np.array([viewer.view(IMAGES.add(s.image)).features.points[0] for s in parts[split]])

    model = GridSearchCV(make_pipeline(StandardScaler(), SVR(epsilon=0.1)), {"svr__C": [0.1, 0.3, 1, 3, 10]}, cv=5)
    model.fit(features("train"), [s.quality for s in parts["train"]])
    return srcc([s.quality for s in parts["test"]], model.predict(features("test")))


def told(label: str, result: Compiled, fitted: float, seconds: float) -> None:
    """Print one compile's test figures."""
    before = result.uncompiled.srcc.value
    share = (result.compiled.srcc.value - before) / (fitted - before)
    figures = ", ".join(
        f"{name.upper()} {result.uncompiled.figures[name].value:.3f} -> {result.compiled.figures[name].value:.3f} "
        f"({result.differences[name]})"
        for name in ("srcc", "plcc", "rmse", "accuracy")
        if name in result.differences
    )
    print(f"{label}: {result.chosen}, {figures}, {share:.0%} of the gap, {seconds:.0f} s", flush=True)
    for note in result.notes:
        print(f"    {note}", flush=True)


def elsewhere(manifest: str, folder: Path) -> None:
    """Print what a compiled program gains or loses on another dataset's test split."""
    samples = [s for s in read_manifest(manifest) if s.split == "test"]
    with dspy.context(disable_history=True, trace=None):
        before = run_samples(AgenticIQA(), samples, progress=False)
        after = run_samples(load(folder), samples, progress=False)
    for name, figure in compare(before.rows, after.rows).items():
        if name in {"srcc", "plcc", "rmse", "accuracy"}:
            print(f"    {manifest}: {name} {before.figures[name].value:.3f}, {figure}", flush=True)


def main() -> None:
    """Run every compile and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("manifest")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--others", nargs="*", default=[])
    arguments = parser.parse_args()
    fitted = fitted_srcc(arguments.manifest, AgenticIQA())
    print(f"model fitted on the train labels: test SRCC {fitted:.3f}")
    runs = [(name, seed) for name in (DEFAULT, "rubric") for seed in range(arguments.seeds)]
    runs.append(("fusion", 0))
    with tempfile.TemporaryDirectory() as work:
        for optimizer, seed in runs:
            out = Path(work) / f"{optimizer}-{seed}"
            settings = load_settings(overrides={"seed": seed, "compile": {"baselines": False}})
            started = time.perf_counter()
            result = compile_program(prepare_job(settings, arguments.manifest, optimizer, out))
            told(f"{optimizer} seed {seed}", result, fitted, time.perf_counter() - started)
            for other in arguments.others if optimizer == DEFAULT else ():
                elsewhere(other, out)


if __name__ == "__main__":
    main()
