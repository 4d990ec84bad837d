"""`python -m program.calibrate`: fit each ready tool's map from raw values to scores 1..5 on human scores."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from program.cli import EXIT_FAILED_SAMPLES, add_settings_flags, run_command, settings_from

if TYPE_CHECKING:
    from signatures.schemas import DistortionCategory

DEFAULT_OUT = Path("configs/calibration.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m program.calibrate",
        description="Fit each ready tool's map from raw values to scores 1..5 on a dataset's human scores.",
        epilog="Full-reference tools need samples with a reference. Maps of tools that were not fitted are kept.",
    )
    parser.add_argument("data", metavar="NAME|MANIFEST", help="quickstart, quickstart-fr or a manifest (JSONL)")
    parser.add_argument(
        "--split", default="train", choices=("train", "validation", "test", "all"), help="default: train"
    )
    parser.add_argument("--tools", metavar="NAME[,NAME]", help="only these tools; default: all that are ready")
    parser.add_argument("--out", metavar="FILE", type=Path, default=DEFAULT_OUT, help=f"default: {DEFAULT_OUT}")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _calibrate(arguments))


def _calibrate(arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from data.manifest import manifest_sha256, read_manifest
    from data.quickstart import resolve_dataset
    from program.errors import InputError
    from program.tools.calibration import Calibration
    from program.tools.fitting import Labelled, fit_all
    from program.tools.registry import ToolRegistry
    from program.tools.runner import ToolRunner

    settings = settings_from(arguments)
    manifest = resolve_dataset(arguments.data, settings.cache_dir)
    samples = [s for s in read_manifest(manifest) if arguments.split in ("all", s.split) and s.quality is not None]
    if not samples:
        raise InputError(
            f"dataset {arguments.data!r}: no sample with a score in split {arguments.split!r}; choose another --split"
        )
    base = Calibration.load(arguments.out) if arguments.out.exists() else Calibration.empty()
    runner = ToolRunner(
        ToolRegistry.load(),
        params_dir=settings.tools.params_dir,
        device=settings.tools.device,
        cache_dir=settings.cache_dir,
        calibration=Calibration.empty(),
    )
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("measuring", total=len(samples))
        report = fit_all(
            runner,
            [Labelled(s.image, s.reference, s.quality or 0.0, s.group, _category(s.distortion)) for s in samples],
            names=arguments.tools.split(",") if arguments.tools else None,
            dataset=(arguments.data, manifest_sha256(manifest), arguments.split),
            on_image=lambda: progress.advance(task),
        )
    report.write(base, arguments.out)
    for line in report.problems:
        sys.stderr.write(f"{line}\n")
    if arguments.json:
        sys.stdout.write(json.dumps(report.as_json(arguments.out)) + "\n")
    else:
        Console().print(report.table(arguments.out))
    return EXIT_FAILED_SAMPLES if report.problems else 0


def _category(distortion: str | None) -> "DistortionCategory | None":
    from data.distortions import CATEGORIES
    from signatures.schemas import category_of

    return CATEGORIES[distortion] if distortion and distortion in CATEGORIES else category_of(distortion or "")


if __name__ == "__main__":
    sys.exit(main())
