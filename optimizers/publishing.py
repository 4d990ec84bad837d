"""Where a compile goes when it is done: MLflow (a nested run per candidate), the terminal and a report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from optimizers.compiling import Compiled
from optimizers.repeating import spread
from program.evaluation.publishing import log_origin, record_costs, record_figures
from program.evaluation.report import comparison_table, scatter_plot
from program.tracking import RunHandle

__all__ = ("log_compile", "show")


def log_compile(run: RunHandle, result: Compiled, results: Sequence[Compiled]) -> None:
    """Log figures, the best-so-far curve, a nested run per candidate, the program and what changed."""
    log_origin(run, result.compiled, "test")
    before = {f"uncompiled_{name}": figure for name, figure in result.uncompiled.figures.items()}
    before |= {name: f for name, f in record_figures(result.uncompiled).items() if name.startswith("baseline_")}
    gains = {f"gain_{name}": figure for name, figure in result.differences.items()}
    run.log_figures({**before, **gains, **record_figures(result.compiled)})
    run.log_metrics(record_costs(result.compiled))
    for step, (candidate, score, best) in enumerate(result.curve):
        run.log_metrics({"search_score": score, "search_best_so_far": best}, step=step)
        with run.nested(candidate, {"phase": "search"}) as child:
            child.log_metrics({"search_score": score})
    for candidate, values in result.validation.items():
        with run.nested(f"validation: {candidate}", {"phase": "validation"}) as child:
            child.log_metrics({f"validation_{key}": value for key, value in values.items()})
    run.log_metrics({f"seconds_{phase.replace(' ', '_')}": value for phase, value in result.seconds.items()})
    if len(results) > 1:
        for metric, over_seeds in spread(results)["gains"].items():
            run.log_metrics({f"seeds_gain_{metric}_{key}": value for key, value in over_seeds.items()})
    run.log_table([row.model_dump(mode="json") for row in result.compiled.rows], "samples")
    run.log_table([row.model_dump(mode="json") for row in result.uncompiled.rows], "samples_uncompiled")
    run.log_plot(scatter_plot({"uncompiled": result.uncompiled, "compiled": result.compiled}), "scatter")
    run.log_json(result.summary(), "result")
    run.log_folder(result.folder, "program")
    context = result.compiled.context
    run.log_params({
        "tool_versions": context["tools"], "program_sha256": context["program_sha256"], "chosen_seed": result.seed
    })  # fmt: skip
    run.set_tags({"chosen": result.chosen, "verdict": result.verdict.text})


def show(console: Console, result: Compiled, results: Sequence[Compiled], out: Path, run: str) -> None:
    """Print the table, the verdict, the best simpler way, the spread over seeds, and where everything is."""
    console.print(comparison_table(result.uncompiled, result.compiled, result.differences))
    for line in _lines(result, results):
        console.print(line, highlight=False)
    console.print(f"compiled program  {out}  ({result.chosen})", highlight=False)
    console.print(f"what changed      {out / 'diff.md'}", highlight=False)
    console.print(f"MLflow run        {run}", highlight=False)


def _lines(result: Compiled, results: Sequence[Compiled]) -> list[str]:
    lines = [result.verdict.text]
    baseline = result.baseline
    if baseline is not None:
        figure, name = (baseline.srcc, "SRCC") if baseline.srcc is not None else (baseline.accuracy, "accuracy")
        lines.append(f"Best single tool or model on these samples: {baseline.label}, {name} {figure}.")
    lines += [f"{note[:1].upper()}{note[1:]}." for note in result.notes]
    if len(results) > 1:
        gains: dict[str, Any] = spread(results)["gains"]
        told = [f"{k.upper()} {v['mean']:+.3f} (sd {v['std']:.3f}, {v['low']:+.3f} to {v['high']:+.3f})"
                for k, v in gains.items() if k in {"srcc", "plcc", "accuracy"}]  # fmt: skip
        lines.append(f"Gain on test over {len(results)} seeds: {'; '.join(told)}.")
    return lines
