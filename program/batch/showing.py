"""One assessment and a whole batch as people read them in a terminal."""

from collections.abc import Iterable, Iterator, Sequence

from rich import markup
from rich.console import Console
from rich.table import Table

from program.agent.assessment import Assessment
from program.agent.comparing import Comparison
from program.agent.evidence import looked_at
from program.agent.state import ExecutorOutput
from program.batch.tally import WORST, Tally
from program.common.questions import is_chinese
from program.common.redaction import showable
from program.fusion import LETTERS
from program.fusion.scores import headline
from program.running.row import Row
from signatures.schemas import CATEGORY_WORDS, GLOBAL, LEVEL_WORDS

__all__ = ("comparison_text", "show", "show_summary")

_REASON_CHARS = 140


def show(result: Assessment, *, sources: bool = False) -> None:
    """Print one assessment: the answer and why; by region what was found; with `sources` all readings behind it."""
    console = Console()
    console.print(f"[bold]{_escaped(result.headline)}[/bold]")
    if reasons := result.quality_reasoning if sources else result.summary:
        console.print(_escaped(reasons))
    if result.notes:
        console.print(_escaped(f"note: {'; '.join(result.notes)}"))
    evidence = result.state.evidence
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
    ahead = f", by {abs(result.difference):.2f} of 4 points, {percent} sure" if "better" in result.verdict else ""
    lines = [
        f"A {names[0]}: {result.score_a:.2f} of 5", f"B {names[1]}: {result.score_b:.2f} of 5",
        f"{result.verdict}{ahead}", *(f"- {reason}" for reason in result.reasons),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def show_summary(tally: Tally, out: str | None, minimum: float | None = None, left_out: str = "") -> None:
    """Print a batch's summary: the worst ten with reasons, the first ten answers, what failed, what was left out."""
    console = Console()
    if tally.worst:
        lines = [(f"{row.score:.2f}", row.id, _reason(row)) for row in tally.worst]
        console.print(_table(("score", "image", "why"), lines, f"Worst {len(lines)}"))
    if tally.answers:
        lines = [(_answer(row.answer or "", row.option), row.id, _reason(row)) for row in tally.answers]
        console.print(_table(("answer", "image", "why"), lines))
    if (more := tally.counts["answered"] - len(tally.answers)) > 0:
        console.print(f"and {more} more answers", highlight=False)
    for row in tally.errors[:WORST]:
        console.print(f"[red]{_escaped(row.id)}[/red]: {_escaped(row.error or 'no answer')}", highlight=False)
    if (more := tally.counts["failed"] - WORST) > 0:
        console.print(f"[red]and {more} more without an answer[/red]")
    if left_out:
        console.print(_escaped(left_out), highlight=False)
    parts = [f"{tally.counts['images']} images"]
    if tally.mean_score is not None:
        parts.append(f"mean score {tally.mean_score:.2f}")
        words = {letter: LEVEL_WORDS[LETTERS.index(letter)] for letter in sorted(tally.levels)}
        parts.append(", ".join(f"{word} {tally.levels[letter]}" for letter, word in words.items()))
    parts.append(f"{tally.counts['failed']} failed")
    if minimum is not None:
        parts.append(f"{tally.below} below {minimum:g}")
    console.print(" · ".join(parts) + (f" · {_escaped(out)}" if out else ""), highlight=False)


def _answer(answer: str, option: str | None) -> str:
    return f"{answer}. {option}" if option else answer


def _escaped(text: str) -> str:
    """Return a text of a file's or a model's for the console: it steers neither rich nor the terminal."""
    return markup.escape(showable(text))


def _reason(row: Row) -> str:
    """Say why in few words: the distortions, else the start of the reasoning."""
    text = row.distortions or row.reasoning or ""
    return text if len(text) <= _REASON_CHARS else f"{text[: _REASON_CHARS - 1]}…"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    table = Table(*names, box=None, header_style="bold", title=title)
    for row in rows:
        table.add_row(*map(_escaped, row))
    return table


def _evidence_rows(evidence: ExecutorOutput) -> Iterator[tuple[str, ...]]:
    logs = {(log.region, log.distortion): log for log in evidence.tool_logs}
    found = [(region, str(f.type), f.fault, str(f.severity)) for region, f in evidence.findings()]
    known = {(region, distortion) for region, distortion, *_ in found}
    found += [(region, distortion, "", "") for region, distortion in logs if (region, distortion) not in known]
    for region, distortion, fault, severity in found:
        log = logs.get((region, distortion))
        score = "" if log is None else (f"{log.score:.2f}" if log.score is not None else f"failed: {log.error}")
        name = fault or CATEGORY_WORDS.get(distortion, distortion.lower())  # type: ignore[call-overload]
        yield looked_at(evidence, region), name, severity, log.tool if log else "", score
