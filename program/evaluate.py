"""`python -m program.evaluate NAME|MANIFEST`: how well a program agrees with people, with intervals."""

import argparse
import json
import sys
from pathlib import Path

from program.common import cli


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = cli.Parser(
        prog="python -m program.evaluate",
        description="Run a program over human-labelled images and report its agreement with people.",
    )
    parser.add_argument("data", metavar="NAME|MANIFEST", help="quickstart, quickstart-fr or a manifest (.jsonl, .csv, "
                        ".xlsx, .parquet), a path or a URI; or a dataset hf:NAME:SPLIT")  # fmt: skip
    cli.add_layout_flags(parser)
    cli.add_program_flags(parser, replaces="replace an existing --report")
    parser.add_argument("--split", metavar="S", choices=("train", "validation", "test", "all"), default="test",
                        help="train, validation, test or all (default: test)")  # fmt: skip
    parser.add_argument("--include-fitted", action="store_true",
                        help="count samples that the program was fitted or chosen on, too")  # fmt: skip
    parser.add_argument("--baselines", action="store_true",
                        help="also evaluate the uncompiled program, each tool, the model alone, means and fusion "
                        "formulas")  # fmt: skip
    parser.add_argument("--workers", metavar="N", type=cli.whole_number(), help="threads (default: from the settings)")
    parser.add_argument("--report", metavar="DIR", type=Path,
                        help="write report.html, record.json and misses.jsonl there")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    cli.add_remote_flag(parser)
    cli.add_settings_flags(parser)
    cli.add_budget_flags(parser)
    arguments = parser.parse_args(argv)
    return cli.run_command(
        lambda: _evaluate(arguments), kept="what was answered is kept; the same command goes on from there"
    )


def _evaluate(arguments: argparse.Namespace) -> int:
    from data.manifest import Layout
    from program.agent.saving import program_from
    from program.evaluation.evaluating import check_judged, evaluate, samples_of
    from program.evaluation.publishing import check_report_folder, log_evaluation, report_files, show, write_report
    from program.lms.limits import budget_from
    from program.tracking import Tracker, experiment_name

    settings = cli.settings_from(arguments)
    program = program_from(arguments, settings)
    split = None if arguments.split == "all" else arguments.split
    layout = Layout.asked(arguments)
    samples = samples_of(
        arguments.data, settings, split, layout=layout,
        fitted_on=program.fitted_on, include_fitted=arguments.include_fitted,
    )  # fmt: skip
    if arguments.report:
        check_report_folder(arguments.report)
        cli.check_outputs(arguments, "--report", *report_files(arguments.report))
    tracker = Tracker(settings.mlruns_dir, experiment_name(samples.dataset.name))
    name = Path(arguments.program).name if arguments.program else "uncompiled"
    with tracker.run(name, {"command": "evaluate"}) as run:
        with budget_from(arguments):
            record = evaluate(program, samples, baselines=arguments.baselines, workers=arguments.workers)
        check_judged(record, samples.manifest)
        page = None
        try:
            page = write_report(record, samples, arguments.report, run.run_id) if arguments.report else None
        finally:  # a full disk loses no figures
            if not arguments.json:
                show(record, samples, page)
        log_evaluation(record, run, program, samples, page)
    if arguments.json:
        sys.stdout.write(json.dumps({**record.summary(), "mlflow_run": run.run_id}, indent=2) + "\n")
    else:
        run.show()
    if samples.doubt:
        sys.stderr.write(f"{samples.doubt}\n")
    return cli.EXIT_PROBLEMS if record.is_incomplete else 0


if __name__ == "__main__":
    sys.exit(main())
