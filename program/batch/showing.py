"""One assessment and a whole batch as people read them in a terminal."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich import markup
from rich.console import Console
from rich.table import Table

from program.agent.assessment import Assessment
from program.agent.evidence import looked_at
from program.agent.state import ExecutorOutput
from program.batch.comparing import Comparison
from program.batch.rows import BatchRow
from program.common.questions import is_chinese
from program.common.redaction import showable
from program.fusion.scores import headline
from signatures.schemas import CATEGORY_WORDS, GLOBAL

__all__ = ("WORST", "comparison_text", "show", "show_summary", "summary", "worst")

WORST = 10
_REASON_CHARS = 140


def show(result: Assessment, *, sources: bool = False) -> None:
    """Print one assessment: the answer and why; by region what was found; with `sources` all readings behind it."""
    console = Console()
    console.print(f"[bold]{_escaped(result.headline)}[/bold]")
    if reasons := result.quality_reasoning if sources else result.summary:
        console.print(_escaped(reasons))
    if result.notes:
        console.print(_escaped(f"note: {'; '.join(result.notes)}"))
    evidence = result.state.executor_evidence or ExecutorOutput()
    if sources and (rows := list(_evidence_rows(evidence))):
        console.print(_table(("where", "distortion", "severity", "tool", "score"), rows))
    elif set(evidence.distortion_analysis or {}) - {GLOBAL}:
        console.print(_table(("where", "distortion", "severity"), [row[:3] for row in _evidence_rows(evidence)]))
    if result.rating is None and result.quality_score is not None:
        by_tools = "" if result.level else " by the tools alone"
        chinese = is_chinese(result.state.query)
        verdict = headline(result.quality_score, result.score_interval, chinese=chinese)
        console.print(f"{verdict}{by_tools}", highlight=False)
    if result.status != "ok":
        console.print(f"[yellow]status: {result.status}[/yellow] {_escaped(result.error or '')}")


def comparison_text(result: Comparison, names: Sequence[str]) -> str:
    """Return a comparison of two named images as lines of text."""
    sure = max(result.probability_b_better, 1 - result.probability_b_better)
    percent = "over 99%" if sure > 0.99 else f"{sure:.0%}"  # nothing is certain, whatever the rounding says
    ahead = f", {result.better} by {abs(result.difference):.2f} of 4 points, {percent} sure" if result.better else ""
    lines = [
        f"A {names[0]}: {result.score_a:.2f} of 5", f"B {names[1]}: {result.score_b:.2f} of 5",
        f"{result.verdict}{ahead}", *(f"- {reason}" for reason in result.reasons),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def worst(rows: Sequence[BatchRow], count: int = WORST) -> list[BatchRow]:
    """Return the rows with the lowest scores, lowest first; rows without a score are left out."""
    return sorted((r for r in rows if r.score is not None), key=lambda r: (r.score or math.inf, r.id))[:count]


def summary(rows: Sequence[BatchRow], minimum: float | None = None) -> dict[str, Any]:
    """Return the batch in figures: counts, mean score, images by level, the worst, and those that failed."""
    scores = [row.score for row in rows if row.score is not None]
    return {
        "images": len(rows),
        "scored": len(scores),
        "answered": sum(row.answer is not None and row.status != "failed" for row in rows),
        "failed": sum(row.status in {"error", "failed"} for row in rows),
        "mean_score": math.fsum(scores) / len(scores) if scores else None,
        "levels": dict(sorted(Counter(row.level for row in rows if row.level).items())),
        "below_minimum": None if minimum is None else sum(score < minimum for score in scores),
        "worst": [row.model_dump() for row in worst(rows)],
        "errors": [{"id": row.id, "error": row.error} for row in rows if row.status in {"error", "failed"}],
    }


def show_summary(rows: Sequence[BatchRow], out: str | None, minimum: float | None = None) -> None:
    """Print a batch's summary: the worst ten with their reasons, the first ten answers, then what failed."""
    console = Console()
    facts = summary(rows, minimum)
    lowest = worst(rows)
    if lowest:
        lines = [(f"{row.score:.2f}", row.id, _reason(row)) for row in lowest]
        console.print(_table(("score", "image", "why"), lines, f"Worst {len(lowest)}"))
    answered = [row for row in rows if row.answer is not None and row.status != "failed"]
    if answered:
        lines = [(_answer(row.answer or "", row.option), row.id, _reason(row)) for row in answered[:WORST]]
        console.print(_table(("answer", "image", "why"), lines))
    if len(answered) > WORST:
        console.print(f"and {len(answered) - WORST} more answers", highlight=False)
    failed = [row for row in rows if row.status in {"error", "failed"}]
    for row in failed[:WORST]:
        console.print(f"[red]{_escaped(row.id)}[/red]: {_escaped(row.error or 'no answer')}", highlight=False)
    if len(failed) > WORST:
        console.print(f"[red]and {len(failed) - WORST} more without an answer[/red]")
    parts = [f"{facts['images']} images"]
    if facts["mean_score"] is not None:
        parts.append(f"mean score {facts['mean_score']:.2f}")
        parts.append(", ".join(f"{level} {count}" for level, count in facts["levels"].items()))
    parts.append(f"{facts['failed']} failed")
    if minimum is not None:
        parts.append(f"{facts['below_minimum']} below {minimum:g}")
    console.print(" · ".join(parts) + (f" · {_escaped(out)}" if out else ""), highlight=False)


def _answer(answer: str, option: str | None) -> str:
    return f"{answer}. {option}" if option else answer


def _escaped(text: str) -> str:
    """Return a text of a file's or a model's for the console: it steers neither rich nor the terminal."""
    return markup.escape(showable(text))


def _reason(row: BatchRow) -> str:
    """Say why in few words: the distortions, else the start of the reasoning."""
    text = row.distortions or row.reasoning or ""
    return text if len(text) <= _REASON_CHARS else f"{text[: _REASON_CHARS - 1]}…"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    table = Table(*names, box=None, header_style="bold", title=title)
    for row in rows:
        table.add_row(*map(_escaped, row))
    return table


def _evidence_rows(evidence: ExecutorOutput) -> Iterator[tuple[str, ...]]:
    analysis = evidence.distortion_analysis or {}
    severities = {(region, str(f.type)): f.severity for region, findings in analysis.items() for f in findings}
    logs = {(log.region, log.distortion): log for log in evidence.tool_logs}
    for region, distortion in dict.fromkeys([*severities, *logs]):
        log, severity = logs.get((region, distortion)), severities.get((region, distortion), "")
        score = "" if log is None else (f"{log.score:.2f}" if log.score is not None else f"failed: {log.error}")
        name = CATEGORY_WORDS.get(distortion, distortion.lower())  # type: ignore[call-overload]
        yield looked_at(evidence, region), name, severity, log.tool if log else "", score
