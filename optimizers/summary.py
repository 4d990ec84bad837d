"""What a compile says in the end, on a terminal of 80 columns: what it gained and learned, and what to do next."""

import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from optimizers.job import Job
from optimizers.recipes import recipe_named
from optimizers.report import Compiled, spread
from optimizers.selection import label, leading
from program.agent.loop import AgenticIQA
from program.evaluation.intervals import Figure
from program.evaluation.metric_table import METRICS
from program.evaluation.record import EvaluationRecord
from program.evaluation.tables import comparison_table
from signatures.rubric import sentences_in

__all__ = ("advice", "learned", "reasons", "show", "step")

_WIDTH = 80
_FEW = 100
"""Training samples below which more of them are worth more than another recipe."""
_AGREED, _COARSE = 0.85, 0.03
"""An SRCC above which little is left to learn, and half of an interval above which small gains cannot be told."""
_UNTRIED = {
    False: (("random-search,fusion", "rubric", "labeled --demos all"), "a language model: --lm PROVIDER/MODEL"),
    True: (
        ("nearest,fusion", "rubric,gepa", "random-search,fusion", "bootstrap"),
        "demos of a stronger model: --teacher-lm MODEL",
    ),
}
"""Recipes that are worth a trial, and what to try besides, by whether the model that is taught reads instructions."""
_ASKED = {"score": "scores", "classify": "levels", "answer": "questions", "explain": "explanations"}
"""What the Summarizer's predictors are asked for."""


def learned(before: AgenticIQA, after: AgenticIQA) -> list[str]:
    """Return in sentences what a program was taught: those of its rubric as they stand, the rest described."""
    old, lines = dict(before.named_predictors()), []
    for name, predictor in after.named_predictors():
        earlier, now = old[name].signature.instructions, predictor.signature.instructions
        sentences = sentences_in(now)
        lines += [sentence for sentence in sentences if sentence not in lines]
        role, _, what = name.partition(".")
        asked = f"for {_ASKED.get(what, what)}" if role == "summarizer" else f"of the {role}'s {what}"
        if now != earlier and not sentences:
            lines.append(f"New instructions {asked} (diff.md shows them).")
        if predictor.demos:
            lines.append(f"{len(predictor.demos)} examples with their labels {asked}.")
    near = after.summarizer.neighbours
    if near is not None and before.summarizer.neighbours is None:
        said = "How people rated" if any(each.label for each in near.photographs) else "The right answers for"
        lines.append(f"{said} the {near.count} most similar of {len(near.photographs)} photographs.")
    if after.summarizer.fitted is not None and before.summarizer.fitted is None:
        lines.append("How much the model counts beside the tools, and where scores lie on the labels' scale.")
    return lines


def advice(job: Job) -> str:
    """Return in one line what has not been tried yet, the most promising first."""
    samples, tried = job.samples("train"), set(job.optimizers)
    count, scored = len(samples), sum(sample.task == "scoring" for sample in samples)
    ways = [f"more labelled training samples ({count} now)"] if count < _FEW else []
    recipes, model = _UNTRIED[job.rewords]
    for names in recipes:
        asked = [recipe_named(name) for name in names.partition(" ")[0].split(",")]
        enough = all(r.least(job.budget(r.name)) <= (scored if r.fits_scores else count) for r in asked)
        if enough and not {recipe.name for recipe in asked} <= tried:
            ways.append(f"--optimizer {names}")
    return f"to try next: {'; '.join([*ways, '--repeat 3 (other seeds)', model])}"


def reasons(job: Job, before: EvaluationRecord, gains: Mapping[str, Figure]) -> str | None:
    """Return in one line why nothing may have been gained; None where a test figure is surely better."""
    if any(gain.sign * METRICS[name].direction > 0 for name, gain in gains.items()):
        return None
    found, first, count = [], gains.get(leading(before.figures)), len(job.samples("train"))
    if before.srcc is not None and (before.srcc.value or 0.0) > _AGREED:
        found.append(f"the program had these images in the labels' order already (SRCC {before.srcc.value:.2f})")
    if count < _FEW:
        found.append(f"{count} training samples are few")
    if first is not None and first.low is not None and first.high is not None:
        half = (first.high - first.low) / 2
        if half > _COARSE:
            found.append(f"on {first.n} test samples a gain below {half:.2f} cannot be told from chance")
    return f"why that may be: {'; '.join(found or ['the labels ask for what this recipe cannot teach'])}"


def show(console: Console, result: Compiled, results: Sequence[Compiled], out: Path, told: Sequence[str] = ()) -> None:
    """Print what was gained and learned, the notes, the spread over seeds, and how to go on.

    Notes that were `told` before the compile are not repeated.
    """
    # No line is wider, but by a path.
    table = comparison_table(result.uncompiled, result.compiled, result.differences)
    console.print(table, width=_WIDTH, soft_wrap=False)
    if result.learned:
        console.print(f"\nWhat it learned from the labels of {result.uncompiled.dataset.judge}", highlight=False)
        for sentence in result.learned:
            _say(console, f"- {sentence}", indent="  ")
    console.print()
    for line in [*result.words(told), *_over_seeds(results)]:
        _say(console, line)
    activated = shutil.which("agentic-iqa") is not None
    console.print("\nNext" + ("" if activated else f", after `. {os.path.relpath(sys.prefix)}/bin/activate`"))
    step(console, "use it", f"agentic-iqa assess photo.jpg --program {shlex.quote(str(out))}")
    step(console, "worst misses", f"{out / 'report.html'} (what changed: diff.md)")
    step(console, "your own data", "agentic-iqa compile --data manifest.jsonl")


def step(console: Console, what: str, how: str) -> None:
    """Print one thing to do next."""
    console.print(f"  {what}\n    {how}", highlight=False, markup=False)


def _say(console: Console, text: str, indent: str = "") -> None:
    # A command or an address that is cut in two cannot be copied.
    lines = textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent and indent + "  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    console.print("\n".join(lines), highlight=False, markup=False)


def _over_seeds(results: Sequence[Compiled]) -> Iterator[str]:
    if len(results) > 1:
        of_seeds = spread(results)["gains"]
        gains = [_gain(name, of_seeds[name]) for name in ("preference", "srcc", "plcc", "accuracy") if name in of_seeds]
        yield f"Gain on test over {len(results)} seeds: {'; '.join(gains)}."


def _gain(name: str, gains: Mapping[str, Any]) -> str:
    spread_out = f" (sd {gains['std']:.3f}, {gains['low']:+.3f} to {gains['high']:+.3f})" if gains["n"] > 1 else ""
    return f"{label(name)} {gains['mean']:+.3f}{spread_out}"
