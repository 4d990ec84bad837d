"""`python -m program.calibrate`: fit each ready tool's map from raw values to scores 1..5, or measure its strengths."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from program.common.cli import EXIT_PROBLEMS, Parser, add_settings_flags, run_command, settings_from

if TYPE_CHECKING:
    from program.common.settings import Settings
    from program.tools.survey import LabelledSet

AUTHENTIC = (None, "authentic")
"""What a manifest calls the distortion of a photograph as it was taken."""
CALIBRATION = Path("configs/calibration.json")
STRENGTHS = Path("configs/strengths.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        prog="python -m program.calibrate",
        description="Fit each ready tool's map from raw values to scores 1..5 on the human scores of datasets.",
        epilog="Full-reference tools need samples with a reference. Figures of tools that were not measured are kept.",
    )
    parser.add_argument(
        "data", nargs="*", metavar="NAME|MANIFEST", help="quickstart, quickstart-fr or manifests (JSONL)"
    )
    parser.add_argument(
        "--split", default="train", choices=("train", "validation", "test", "all"), help="default: train"
    )
    parser.add_argument("--tools", metavar="NAME[,NAME]", help="only these tools; default: all that are ready")
    parser.add_argument("--strengths", action="store_true", help="measure the tools' strengths instead of fitting maps")
    parser.add_argument(
        "--paper", action="store_true", help="say what is wrong with the paper's own maps; needs no data"
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help=f"default: {CALIBRATION}, or {STRENGTHS}")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _paper(arguments) if arguments.paper else _calibrate(arguments))


def _calibrate(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from program.common.errors import InputError
    from program.common.progress import progress
    from program.evaluation.publishing import log_calibration
    from program.tools.calibration import Calibration
    from program.tools.fitting import fit_all, strengths_all, write_text
    from program.tools.runner import ToolRunner
    from program.tools.strengths import Strengths
    from program.tools.survey import measure_all
    from program.tracking import Tracker, experiment_name

    settings = settings_from(arguments)
    if not arguments.data:
        raise InputError("no dataset is named; give one or more, as `python -m program.calibrate quickstart-fr`")
    datasets = [_labelled(name, arguments.split, settings) for name in arguments.data]
    tracker, runner = Tracker(settings.mlruns_dir, experiment_name(datasets[0].name)), ToolRunner.of(settings)
    names = arguments.tools.split(",") if arguments.tools else None
    with progress("measuring", sum(len(data.samples) for data in datasets)) as advance:
        surveyed = measure_all(runner, datasets, names=names, on_image=advance)
    out = arguments.out or (STRENGTHS if arguments.strengths else CALIBRATION)
    if arguments.strengths:
        found = strengths_all(surveyed, Strengths.load(out) if out.exists() else Strengths())
        write_text(out, found.to_json())
        shown, table = {"out": str(out), **found.model_dump(mode="json")}, found.table(out)
    else:
        report = fit_all(surveyed, params_dir=settings.tools.params_dir)
        report.write(Calibration.load(out) if out.exists() else Calibration.empty(), out)
        shown, table = report.as_json(out), report.table(out)
    for line in surveyed.problems():
        sys.stderr.write(f"{line}\n")
    if arguments.json:
        sys.stdout.write(json.dumps(shown) + "\n")
    else:
        Console().print(table)
    run = log_calibration(tracker, settings, [(d.name, d.manifest_sha256, d.split) for d in datasets], shown, out)
    if not arguments.json:
        run.show()
    return EXIT_PROBLEMS if surveyed.problems() else 0


def _paper(arguments: argparse.Namespace) -> int:
    from program.tools.paper import faults, report_table

    if arguments.json:
        sys.stdout.write(json.dumps(faults()) + "\n")
    else:
        from rich.console import Console

        Console().print(report_table())
    return 0


def _labelled(name: str, split: str, settings: "Settings") -> "LabelledSet":
    from data.catalogue import GENERATED, resolve_dataset
    from data.kadid import category_named
    from data.manifest import manifest_sha256, read_manifest
    from program.common.errors import InputError
    from program.tools.survey import Labelled, LabelledSet

    manifest = resolve_dataset(name, settings.cache_dir)
    # Several questions on one image are one image.
    distinct = {
        (s.image, s.reference): Labelled(
            s.image, s.reference, s.quality, s.group, category_named(s.distortion), s.distortion in AUTHENTIC,
            # The quickstart's score of an image is KADID-10k's mean over others, and its deviation is among those.
            s.metadata.get("label_std", 0.0) if name in GENERATED else 0.0,
        )
        for s in read_manifest(manifest)
        if split in ("all", s.split) and s.quality is not None
    }  # fmt: skip
    if not distinct:
        raise InputError(f"dataset {name!r}: no sample with a score in split {split!r}; choose another --split")
    shown = name if name in GENERATED else manifest.resolve().parent.name
    return LabelledSet(shown, manifest_sha256(manifest), split, list(distinct.values()))


if __name__ == "__main__":
    sys.exit(main())
