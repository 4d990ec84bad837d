"""`python -m program.compile`: optimize a program on human judgements, and show on test what that gained."""

import argparse
import json
import sys
import time
from pathlib import Path

from program.common import cli

OPTIMIZERS = (
    "none", "labeled", "bootstrap", "random-search", "mipro", "gepa", "rubric", "fusion", "nearest", "finetune",
)  # fmt: skip
"""Names for --help, which must not import the optimizers; a test holds them equal to the recipes."""

_KEPT = "what was finished is kept; continue with --resume and the same --out"


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = cli.Parser(
        prog="python -m program.compile",
        description="Optimize a program on train, choose on validation, compare on test; save it and log it to MLflow.",
    )
    parser.add_argument("--data", metavar="NAME|MANIFEST", help="quickstart, quickstart-fr or a manifest "
                        "(.jsonl, .csv, .xlsx, .parquet)")  # fmt: skip
    cli.add_layout_flags(parser)
    parser.add_argument("--review", metavar="FILE", type=Path,
                        help="review.jsonl, second opinions that replace labels to train and to choose on")  # fmt: skip
    cli.add_remote_flag(parser)
    parser.add_argument("--optimizer", metavar="NAME[,NAME]",
                        help=f"{', '.join(OPTIMIZERS)}, or several in turn (default: finetune,fusion for the "
                        "embedded expert, rubric for made-up labels, nearest,fusion for others)")  # fmt: skip
    parser.add_argument("--roles", metavar="ROLE[,ROLE]", help="which to optimize: planner, executor, summarizer")
    parser.add_argument(
        "--demos", metavar="N", type=cli.whole_number(1), help="demos for each question to the Summarizer"
    )
    parser.add_argument("--teacher-lm", metavar="MODEL", help="stronger model whose answers become demos")
    parser.add_argument("--resume", action="store_true", help="continue the compile that was begun in --out")
    parser.add_argument("--force", action="store_true", help="replace the program that is in --out; compile on "
                        "scores that run against the program's")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print the plan of calls, time and cost; ask nothing")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="folder of the compiled program (default: programs/DATA-TIME)"
    )
    parser.add_argument("--register", metavar="NAME", help="register the program with MLflow under this name")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    cli.add_settings_flags(parser)
    cli.add_budget_flags(parser)
    arguments = parser.parse_args(argv)
    return cli.run_command(lambda: _compile(arguments), kept=_KEPT)


def _compile(arguments: argparse.Namespace) -> int:
    from data.manifest import Layout
    from optimizers.command import check_out, compile_tracked
    from optimizers.job import prepare_job
    from optimizers.plan import call_plan, within_calls
    from program.common.console import Console
    from program.common.errors import InputError
    from program.lms.limits import budget_from
    from program.tracking.models import check_name

    named = arguments.out is not None
    if arguments.register is not None:
        check_name(arguments.register)
    if arguments.resume and not named:
        raise InputError("--resume: give the folder of the compile to continue as --out DIR")
    settings, console = cli.settings_from(arguments), Console(stderr=True, soft_wrap=True)
    if named:
        replace = arguments.resume or arguments.force or arguments.dry_run
        check_out(arguments.out, replace=replace)
    data = arguments.data or settings.compile.data
    job = prepare_job(
        settings, data, arguments.optimizer, console=console,
        roles=arguments.roles, demos=arguments.demos,
        out=arguments.out or settings.programs_dir / f"{Path(data).stem}-{time.strftime('%Y%m%d-%H%M%S')}",
        teacher_lm=arguments.teacher_lm, resume=arguments.resume, force=arguments.force,
        layout=Layout.asked(arguments), review=arguments.review,
    )  # fmt: skip
    if named:
        cli.check_outputs(arguments, "--out", arguments.out, begun=True)
    if arguments.max_calls is not None:
        begun, job = job, within_calls(job, arguments.max_calls)
        if job is not begun:
            console.print(job.notes[-1], highlight=False, markup=False)
    plan = call_plan(job, champion=arguments.register is not None)
    if arguments.dry_run:
        text = json.dumps(plan.to_json(), indent=2) if arguments.json else "\n".join(plan.lines())
        sys.stdout.write(text + "\n")
        return 0
    table = None if arguments.json else Console(soft_wrap=True)
    done = compile_tracked(
        job, register=arguments.register, plan=plan, progress=console, console=table,
        budget=budget_from(arguments),
    )  # fmt: skip
    if table is None:
        sys.stdout.write(json.dumps({**done.summary(), "plan": plan.to_json()}, indent=2) + "\n")
    else:
        done.show(table)
    if job.doubt:
        console.print(job.doubt, highlight=False, markup=False)
    return cli.EXIT_PROBLEMS if done.failed or bool(arguments.register) > bool(done.registered) else 0


if __name__ == "__main__":
    sys.exit(main())
