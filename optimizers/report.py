"""What a compile ended with, and where that goes: JSON, a page, MLflow, a terminal."""

import difflib
import math
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from optimizers.job import Job
from optimizers.learner import learner_of
from optimizers.recipes import recipe_named
from optimizers.selection import CrossValidation, Verdict, best_baseline, label, leading_metric
from optimizers.student import role_of
from program.agent.loop import AgenticIQA
from program.agent.saving import program_sha256
from program.common.console import Console
from program.common.text import counted
from program.evaluation.charts import comparison_table, scatter_svg
from program.evaluation.intervals import METRICS, Figure
from program.evaluation.publishing import (
    added_lines,
    agreement,
    headlines,
    learned_params,
    log_headlines,
    log_misses,
    log_origin,
)
from program.evaluation.record import EvaluationRecord
from program.expert import Correction
from program.fusion import ScoreFusion
from program.fusion.scores import FittedFusion
from program.images.store import parse_url
from program.lms.traits import known_traits
from program.running.row import Row
from program.tracking import Prompt, RunHandle, dataset_name
from program.tracking.models import log_program
from signatures.rubric import sentences_in

_SHOWN_CHARS = 300
_plain = partial(TypeAdapter(Any).dump_python, mode="json", exclude_defaults=True)


@dataclass(frozen=True)
class Compiled:
    """What a compile ended with; `chosen` is "uncompiled" where no candidate was better on validation."""

    program: AgenticIQA
    """The recommended one."""
    folder: Path
    chosen: str
    seed: int
    uncompiled: EvaluationRecord
    compiled: EvaluationRecord
    differences: dict[str, Figure]
    verdict: Verdict
    validation: dict[str, dict[str, Any]]
    """Every ranked program: its validation figures and score, best first."""
    curve: list[tuple[str, float, float]]
    """Candidate, its search score and the best so far, in order."""
    notes: list[str]
    difference: str
    """What changed against the uncompiled program, as Markdown."""
    seconds: dict[str, float]
    learned: list[str] = field(default_factory=list)
    """What it learned, in sentences."""
    crossed: CrossValidation | None = None
    """Where nothing was held back for a test and a candidate was to be had."""

    def summary(self) -> dict[str, Any]:
        """Return what `--json` prints: figures as {"value", "low", "high", "n", ...}, without per-sample rows."""
        return {
            "program": str(self.folder),
            "chosen": self.chosen,
            "seed": self.seed,
            "uncompiled": self.uncompiled.summary(),
            "compiled": self.compiled.summary(),
            "difference": {name: figure.model_dump(mode="json") for name, figure in self.differences.items()},
            "baseline": best.model_dump(mode="json") if (best := best_baseline(self.uncompiled)) else None,
            "verdict": self.verdict.text,
            "helped": self.verdict.helped,
            "learned": self.learned,
            "cross_validation": _plain(self.crossed),
            "validation": self.validation,
            "notes": self.notes,
            "seconds": self.seconds,
        }

    def words(self, before: Sequence[str] = ()) -> list[str]:
        """Return the verdict, the best single tool or model, and the notes that were not printed `before`."""
        lines, best = [self.verdict.text], best_baseline(self.uncompiled)
        if best is not None:
            name = leading_metric(best.figures)
            figure, own = best.figures[name], self.uncompiled.figures[name]
            if best.kind == "model" and figure.value_text() == own.value_text():
                lines.append("No single tool does better on these samples than the uncompiled program.")
            else:
                shown = f"{best.label}, {label(name)} {figure}"
                lines.append(f"Best single tool or model on these samples, which favours it: {shown}.")
        return [*lines, *(f"{note[:1].upper()}{note[1:]}." for note in self.notes if note not in before)]

    def gained(self) -> dict[str, str]:
        """Return what the page opens with, by heading: what was gained, and what was learned."""
        lines = self.words()
        for name, gain in self.differences.items():
            figure, title = self.uncompiled.figures[name], METRICS[name].title
            if self.verdict.helped:
                lines.append(f"{title}: {figure} -> {self.compiled.figures[name]}, gain {gain}")
            else:
                lines.append(f"{title}: {figure} (same program)")
        return _not_empty({"What compiling gained": "\n".join(lines), "What it learned": "\n".join(self.learned)})

    def changed(self) -> dict[str, str]:
        """Return what the page ends with, by heading: the candidates, and what changed in the program."""
        ranked = [f"{figures['score']:.4f}  {name}" for name, figures in self.validation.items()]
        return _not_empty({"Candidates on validation": "\n".join(ranked), "What compiling changed": self.difference})


def _not_empty(sections: Mapping[str, str]) -> dict[str, str]:
    return {heading: text for heading, text in sections.items() if text}


def log_compile(run: RunHandle, job: Job, result: Compiled, name: str | None) -> None:
    """Log what was chosen, its figures, the program as a model, and its prompts; `name` is its registered one."""
    record, program = result.compiled, result.program
    splits = {split: (job.samples(split), job.samples(split)) for split in ("train", "validation")}
    log_origin(run, record, {**splits, "test": (record.rows, job.splits["test"])})
    learned = learned_params(program, record.rows)
    title = f"{result.chosen} by {job.optimizer}"
    log_program(run, result.folder, program_sha256(program), Row.kinds(), title, learned)
    run.log_params({"chosen": result.chosen, **learned})
    run.set_tags({"agreement": agreement(record), "gain": _gained(result)})
    validation = result.validation.get(result.chosen, {})
    run.log_metrics({
        **headlines(record, program), "seconds": sum(result.seconds.values()),
        **{f"gain_{name}": result.differences[name].value for name in _GAINS if name in result.differences},
        "validation_srcc": validation.get("srcc"),
    })  # fmt: skip
    run.log_table([row.columns() for row in record.rows], "samples")
    run.log_table([row.columns() for row in result.uncompiled.rows], "samples_uncompiled")
    if drawn := scatter_svg({"uncompiled": result.uncompiled, "compiled": record}):
        run.log_text(drawn, "scatter.svg")
    run.log_content(result.summary(), "result.json")
    for file in ("report.html", "diff.md", "candidates.jsonl"):
        run.log_file(result.folder / file)
    asked = log_misses(run, record, program, job.splits["test"])
    run.log_prompts(name or dataset_name(job.data), prompts(AgenticIQA(job.settings, lm=job.lm), program, asked))
    # MLflow lists a run that made a model among training runs alone.
    with run.run_beside(result.chosen, {"command": "test"}) as test:
        log_headlines(test, record, program, job.splits["test"], {"seed": result.seed})
    first, *others = result.words()
    run.describe("\n\n".join([" ".join([first, *result.learned, f"Fusion: {learned['fusion']}."]), *others]))


_GAINS = ("preference", "srcc", "rmse", "accuracy")


def _gained(result: Compiled) -> str:
    """Return the leading gain on test, as the list of runs shows it."""
    if result.verdict.helped is False:
        return "none: uncompiled kept"
    figure = result.differences.get(leading_metric(result.differences))
    return f"{figure.value_text('+')} {figure.ends_text('+')}" if figure is not None else "unknown"


def prompts(before: AgenticIQA, after: AgenticIQA, asked: Collection[str]) -> dict[str, Prompt]:
    """Return the prompts (instructions and demos) that were `asked`; of the embedded expert, those that changed.

    Where nobody watched what was asked, all that changed.
    """
    texts, added = {}, added_lines(before, after)
    for name, predictor in after.named_parameters():
        lm = after.resources.lm(role_of(name))
        demos = [_demo(number, demo) for number, demo in enumerate(predictor.demos, 1)]
        changed = [f"+ {line.removeprefix('- ')}" for line in added[name] if line.strip()]
        text = predictor.signature.instructions
        if demos:
            changed.append(counted(len(demos), "demo"))
            text = "\n".join([text, "", f"{changed[-1]}:", *demos])
        changes = "; ".join(changed)
        is_sent = name in asked and "instructions" in learner_of([known_traits(lm)]).takes
        if is_sent or (changes and (name in asked or not asked)):
            texts[name] = Prompt(text, changes, lm.model)
    return texts


def difference_markdown(before: AgenticIQA, after: AgenticIQA) -> str:
    """Return what changed from one program to another as Markdown."""
    old = dict(before.named_parameters())
    parts = []
    for name, predictor in after.named_parameters():
        earlier, now = (p.signature.instructions.splitlines() for p in (old[name], predictor))
        changed = list(difflib.unified_diff(earlier, now, "uncompiled", "compiled", lineterm=""))
        if changed:
            parts.append("\n".join([f"## {name}", "", "```diff", *changed, "```"]))
        if predictor.demos:
            demos = [_demo(number, demo) for number, demo in enumerate(predictor.demos, 1)]
            parts.append("\n".join([f"## {name}: {len(demos)} demo(s)", "", *demos]))
    if learned := _fitted_sentences(before, after):
        parts.append("\n".join(["## what was fitted", "", *(f"- {each}" for each in learned)]))
    body = "\n\n".join(parts or ["Nothing changed: the compiled program is the uncompiled one."])
    return f"# Compiled against uncompiled\n\n{body}\n"


def _demo(number: int, demo: Mapping[str, Any]) -> str:
    fields = []
    for name, value in dict(demo).items():
        if name not in {"augmented", "tools", "tool_names"}:
            url = getattr(value, "url", None)
            text = parse_url(url)[0][:12] if isinstance(url, str) else " ".join(str(_plain(value)).split())
            fields.append(f"{name}: {text[:_SHOWN_CHARS]}")
    return f"{number}. " + "; ".join(fields)


_WIDTH = 80
_FEW = 100
"""Training samples below which more of them are worth more than another recipe."""
_AGREED, _COARSE = 0.85, 0.03
"""An SRCC above which little is left to learn, and half of an interval above which small gains cannot be told."""
_ASKED = {"score": "scores", "classify": "levels", "answer": "questions", "explain": "explanations"}
"""What the Summarizer's predictors are asked for."""


def learned_sentences(before: AgenticIQA, after: AgenticIQA) -> list[str]:
    """Return in sentences what a program learned: those of its rubric as they stand, the rest described."""
    old, lines = dict(before.named_parameters()), []
    for name, predictor in after.named_parameters():
        earlier, now = old[name].signature.instructions, predictor.signature.instructions
        sentences = sentences_in(now)
        lines += [sentence for sentence in sentences if sentence not in lines]
        role, _, what = name.partition(".")
        asked = f"for {_ASKED.get(what, what)}" if role == "summarizer" else f"of the {role}'s {what}"
        if now != earlier and not sentences:
            lines.append(f"New instructions {asked} (diff.md shows them).")
        if predictor.demos:
            lines.append(f"{len(predictor.demos)} examples with their labels {asked}.")
    return lines + _fitted_sentences(before, after)


def _fitted_sentences(before: AgenticIQA, after: AgenticIQA) -> list[str]:
    """Return in sentences what was fitted beside the prompts."""
    lines, old, new = [], before.summarizer, after.summarizer
    if new.neighbours is not None and old.neighbours is None:
        is_rated = any(each.label for each in new.neighbours.photographs)
        said = "How people rated" if is_rated else "The right answers for"
        count, known = new.neighbours.count, len(new.neighbours.photographs)
        lines.append(f"{said} the {count} most similar of {known} photographs.")
    if new.corrections is not None and old.corrections is None:
        lines += [_correction_sentence(kind, each) for kind, each in new.corrections.by_kind.items()]
    if new.fitted is not None and old.fitted is None:
        lines += _fusion_sentences(before.resources.fusion, new.fitted)
    return lines


def _correction_sentence(kind: str, fit: Correction) -> str:
    _, mean, deviation = fit.moves["all"]
    whose = "the tools" if fit.of_tools else "its"
    scores = "scores with a reference" if kind == "fr" else "scores"
    far = f"{math.hypot(mean, deviation):.2f}"
    return f"A correction fitted on {fit.labels} labels moves {whose} {scores} by about {far}."


def _fusion_sentences(plain: ScoreFusion, fitted: FittedFusion) -> list[str]:
    lines = []
    share, before = fitted.model_weight * plain.eta, plain.model_weight * fitted.eta
    if fitted.eta == 0 != plain.eta:
        lines.append("The model alone gives the score; the tools no longer count.")
    elif fitted.model_weight == 0 != plain.model_weight:
        lines.append("The tools alone give the score; the model no longer counts.")
    elif share > before:
        lines.append("The model counts more next to the tools.")
    elif share < before:
        lines.append("The model counts less next to the tools.")
    if fitted.bends:
        places = ", ".join(f"{place} becomes {fitted.map_score(place):.1f}" for place in (2, 3, 4))
        lines.append(f"Scores follow the scale of the labels: {places}.")
    return lines or ["The tools and the model are weighed anew."]


def advice(job: Job) -> str:
    """Return in one line what has not been tried yet, the most promising first."""
    samples = job.taught
    count = len(samples)
    ways = [f"more labelled training samples ({count} now)"] if count < _FEW else []
    for names, task in job.learner.untried.items():
        was_tried = set(names.split(",")) <= set(job.optimizers)
        labels = sum(task in {None, sample.task} for sample in samples)
        if not was_tried and labels >= recipe_named(names.partition(",")[0]).least:
            ways.append(f"--optimizer {names}")
    return f"to try next: {'; '.join([*ways, 'another --seed', job.learner.beyond])}"


def reasons(job: Job, before: EvaluationRecord, gains: Mapping[str, Figure]) -> str | None:
    """Return in one line why nothing may have been gained; None where a test figure is surely better."""
    if any(gain.sign * METRICS[name].direction > 0 for name, gain in gains.items()):
        return None
    causes, first, count = [], gains.get(leading_metric(before.figures)), len(job.taught)
    if before.srcc is not None and (before.srcc.value or 0.0) > _AGREED:
        causes.append(f"the program had these images in the labels' order already (SRCC {before.srcc.value:.2f})")
    if count < _FEW:
        causes.append(f"{count} training samples are few")
    if first is not None and first.low is not None and first.high is not None:
        half = (first.high - first.low) / 2
        if half > _COARSE:
            causes.append(f"on {first.n} test samples a gain below {half:.2f} could be chance")
    return f"why that may be: {'; '.join(causes or ['the labels ask for what this recipe cannot learn'])}"


def show(console: Console, result: Compiled, out: Path, before: Sequence[str]) -> None:
    """Print what was gained and learned, the notes, and how to go on.

    Notes that were printed `before` the compile are not repeated.
    """
    # No line is wider, but by a path.
    table = comparison_table(result.uncompiled, result.compiled, result.differences)
    console.print(table, width=_WIDTH, soft_wrap=False)
    if result.learned:
        console.print(f"\nWhat it learned from the labels of {result.uncompiled.dataset.judge}", highlight=False)
        for sentence in result.learned:
            _say(console, f"- {sentence}", indent="  ")
    console.print()
    for line in result.words(before):
        _say(console, line)
    activated = shutil.which("agentic-iqa") is not None
    console.print("\nNext" + ("" if activated else f", after `. {os.path.relpath(sys.prefix)}/bin/activate`"))
    step(console, "use it", f"agentic-iqa assess photo.jpg --program {shlex.quote(str(out))}")
    step(console, "worst misses", f"{out / 'report.html'} (what changed: diff.md)")
    if result.uncompiled.dataset.judge != "people":
        step(console, "your own data", "agentic-iqa compile --data manifest.jsonl")


def waiting(console: Console | None, what: str) -> AbstractContextManager[object]:
    """Say on a terminal what a wait of some seconds is for."""
    return nullcontext() if console is None else console.status(what)


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
