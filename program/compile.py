"""`python -m program.compile`: teach a program with human judgements, and show on test what that gained."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from program.cli import EXIT_FAILED_SAMPLES, add_settings_flags, run_command, settings_from

if TYPE_CHECKING:
    from optimizers.compiling import Compiled, Job
    from program.tracking import RunHandle

OPTIMIZERS = ("none", "labeled", "bootstrap", "random-search")
"""Names for --help, which must not import the optimizers; a test keeps them equal."""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m program.compile",
        description="Teach a program on train, choose on validation, compare on test; save it and log it to MLflow.",
    )
    parser.add_argument("--data", metavar="NAME|MANIFEST", help="quickstart, quickstart-fr or a manifest.jsonl")
    parser.add_argument("--optimizer", metavar="NAME", help=f"{', '.join(OPTIMIZERS)} (default: random-search)")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="folder of the compiled program (default: programs/DATA-TIME)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _compile(arguments))


def _compile(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from optimizers.compiling import compile_program, prepared
    from program.tracking import Tracker, experiment_name

    settings = settings_from(arguments)
    data = arguments.data or settings.compile.data
    out = arguments.out or settings.programs_dir / f"{Path(data).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    console = Console(stderr=True)
    job = prepared(settings, data, arguments.optimizer or settings.compile.optimizer, out, console=console)
    tracker = Tracker(settings.mlruns_dir, experiment=experiment_name(data))
    with tracker.run(f"compile {job.optimizer} seed {settings.seed}", {"command": "compile"}) as run:
        run.log_params(job.params())
        result = compile_program(job, console=console)
        _log(run, result)
    if arguments.json:
        sys.stdout.write(json.dumps({**result.summary(), "mlflow_run": run.run_id}, indent=2) + "\n")
    else:
        _show(job, result, f"{run.run_id}  ({tracker.ui_hint}, then {tracker.runs_url})")
    return EXIT_FAILED_SAMPLES if result.uncompiled.failed or result.compiled.failed else 0


def _log(run: "RunHandle", result: "Compiled") -> None:
    from program.evaluation.report import scatter_plot

    for prefix, figures in (
        ("uncompiled_", result.uncompiled.figures), ("", result.compiled.figures), ("gain_", result.differences),
    ):  # fmt: skip
        for name, figure in figures.items():
            run.log_figure(f"{prefix}{name}", figure)
    run.log_metrics({f"seconds_{phase}": value for phase, value in result.seconds.items()})
    run.log_metrics({f"mean_{name}": value for name, value in result.compiled.spent_per_sample.items()})
    run.log_table([row.model_dump(mode="json") for row in result.compiled.rows], "samples")
    run.log_table([row.model_dump(mode="json") for row in result.uncompiled.rows], "samples_uncompiled")
    run.log_plot(scatter_plot({"uncompiled": result.uncompiled, "compiled": result.compiled}), "scatter")
    run.log_json(result.summary(), "result")
    run.log_folder(result.folder, "program")
    run.set_tags({"chosen": result.chosen})


def _show(job: "Job", result: "Compiled", run: str) -> None:
    from rich.console import Console

    from program.evaluation.report import comparison_table

    console = Console(soft_wrap=True)
    console.print(comparison_table(result.uncompiled, result.compiled, result.differences))
    if result.chosen == "uncompiled":
        console.print("Compiling did not help on the validation samples: the program saved is the uncompiled one.")
    console.print(f"compiled program  {job.out}  ({result.chosen})", highlight=False)
    console.print(f"MLflow run        {run}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
