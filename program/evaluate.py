"""`python -m program.evaluate NAME|MANIFEST`: how well a program agrees with people, with intervals."""

import argparse
import sys
from pathlib import Path

from program.cli import EXIT_FAILED_SAMPLES, add_settings_flags, run_command, settings_from


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m program.evaluate", description="Run a program over human-labelled images and report its agreement."
    )
    parser.add_argument("data", metavar="NAME|MANIFEST", help="quickstart, quickstart-fr or a manifest.jsonl")
    parser.add_argument("--program", metavar="DIR", type=Path, help="compiled program's folder; uncompiled without it")
    parser.add_argument("--split", metavar="S", choices=("train", "validation", "test", "all"), default="test",
                        help="train, validation, test or all (default: test)")  # fmt: skip
    parser.add_argument("--baselines", action="store_true", help="also every ready tool alone, on the same samples")
    parser.add_argument("--workers", metavar="N", type=int, help="threads (default: from the settings)")
    parser.add_argument("--checkpoint", metavar="FILE", type=Path, help="JSONL that keeps every finished sample")
    parser.add_argument("--resume", action="store_true", help="go on with the checkpoint of a run that was stopped")
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _evaluate(arguments))


def _evaluate(arguments: argparse.Namespace) -> int:
    import json

    import dspy

    from data.manifest import manifest_sha256, read_manifest
    from data.quickstart import resolve_dataset
    from program.agent import AgenticIQA
    from program.errors import InputError
    from program.evaluation.baselines import tool_baselines
    from program.evaluation.record import Dataset
    from program.evaluation.runner import evaluate
    from program.saving import load, program_sha256

    settings = settings_from(arguments)
    manifest = resolve_dataset(arguments.data, settings.cache_dir)
    split = None if arguments.split == "all" else arguments.split
    samples = [sample for sample in read_manifest(manifest) if split is None or sample.split == split]
    if not samples:
        raise InputError(f"manifest {str(manifest)!r}: no sample in split {split!r}; choose another --split, or all")
    program = load(arguments.program, settings) if arguments.program else AgenticIQA(settings)
    with dspy.context(disable_history=True):
        record = evaluate(
            program, samples, workers=arguments.workers or settings.compile.workers, seed=settings.seed,
            checkpoint=arguments.checkpoint, resume=arguments.resume,
            dataset=Dataset(name=arguments.data, manifest_sha256=manifest_sha256(manifest), split=split),
            context={"program_sha256": program_sha256(program), "settings": settings.model_dump(mode="json")},
        )  # fmt: skip
    baselines = tool_baselines(program, samples, settings) if arguments.baselines else {}
    if arguments.json:
        shown = {**record.summary(), "baselines": {name: other.summary() for name, other in baselines.items()}}
        sys.stdout.write(json.dumps(shown, indent=2) + "\n")
    else:
        from rich.console import Console

        from program.evaluation.report import record_table

        Console(soft_wrap=True).print(record_table({"program": record, **baselines}))
    return EXIT_FAILED_SAMPLES if record.failed else 0


if __name__ == "__main__":
    sys.exit(main())
