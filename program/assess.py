"""`python -m program.assess IMAGE`: judge one image, and say why."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from program.cli import (
    EXIT_FAILED_SAMPLES,
    add_budget_flags,
    add_settings_flags,
    budget_from,
    run_command,
    settings_from,
)

if TYPE_CHECKING:
    from program.state import Assessment


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m program.assess", description="Judge the quality of an image, and say why."
    )
    parser.add_argument("image", metavar="IMAGE", help="image file to judge")
    parser.add_argument("--reference", metavar="R", help="undistorted reference image of the same size")
    parser.add_argument("--query", metavar="Q", help="question to answer; a quality score without it")
    parser.add_argument("--option", metavar="TEXT", action="append", help="an option to choose from; give two or more")
    parser.add_argument("--program", metavar="DIR|URI", help="compiled program: its folder, or models:/NAME@champion")
    parser.add_argument("--json", action="store_true", help="print the whole assessment as JSON")
    add_settings_flags(parser)
    add_budget_flags(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _assess(arguments))


def _assess(arguments: argparse.Namespace) -> int:
    from program.agent import DEFAULT_QUERY, AgenticIQA
    from program.images import IMAGES
    from program.saving import load

    settings = settings_from(arguments)
    limit = settings.images.max_pixels
    image = IMAGES.add(Path(arguments.image), max_pixels=limit)
    reference = IMAGES.add(Path(arguments.reference), max_pixels=limit) if arguments.reference else None
    iqa = load(arguments.program, settings) if arguments.program else AgenticIQA(settings)
    query = DEFAULT_QUERY if arguments.query is None else arguments.query
    with budget_from(arguments):
        result = iqa(image=image, reference=reference, query=query, options=arguments.option)
    if arguments.json:
        sys.stdout.write(result.model_dump_json(indent=2) + "\n")
    else:
        _show(result)
    return EXIT_FAILED_SAMPLES if result.status == "failed" else 0


def _show(result: "Assessment") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    answer = result.final_answer
    if isinstance(answer, float) and result.score_interval:
        low, high = result.score_interval
        console.print(
            f"[bold]{answer:.2f}[/bold] of 5 (level {result.level}; "
            f"95 % of the fused belief lies in {low:.1f} to {high:.1f})"
        )
    else:
        console.print(f"[bold]{escape(str(answer))}[/bold]")
    console.print(escape(result.quality_reasoning))
    evidence = result.state.executor_evidence
    if evidence and (evidence.distortion_analysis or evidence.tool_logs):
        table = Table("region", "distortion", "severity", "tool", "score", box=None, header_style="bold")
        for row in _rows(result):
            table.add_row(*map(escape, row))
        console.print(table)
    measured = [log.note for log in evidence.tool_logs if log.note] if evidence else []
    for note in dict.fromkeys([*result.state.image_notes, *measured]):
        console.print(f"[dim]{escape(note)}[/dim]")
    if result.status != "ok":
        console.print(f"[yellow]status: {result.status}[/yellow] {escape(result.error or '')}")


def _rows(result: "Assessment") -> list[tuple[str, ...]]:
    evidence = result.state.executor_evidence
    if evidence is None:
        return []
    found = {(r, str(f.type)): f.severity for r, by in (evidence.distortion_analysis or {}).items() for f in by}
    logs = {(log.region, log.distortion): log for log in evidence.tool_logs}
    rows: list[tuple[str, ...]] = []
    for region, distortion in dict.fromkeys([*found, *logs]):
        log = logs.get((region, distortion))
        score = "" if log is None else (f"{log.score:.2f}" if log.score is not None else f"failed: {log.error}")
        rows.append((region, distortion, found.get((region, distortion), ""), log.tool if log else "", score))
    return rows


if __name__ == "__main__":
    sys.exit(main())
