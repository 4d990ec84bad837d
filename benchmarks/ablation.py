"""What each step of the program is worth: the program with each part off, one at a time, and with each alone.

    python -m benchmarks.ablation parts ../shared/data/{live,clive,biq2021}/manifest.jsonl
    python -m benchmarks.ablation parts ../shared/data/biq2021/manifest.jsonl --model 1.5b --count 60
    python -m benchmarks.ablation sent ../shared/data/biq2021/manifest.jsonl --model 1.5b

`parts` asks the embedded expert, or MODEL as `benchmarks.real_model` does, for a score of each validation image of the
manifests, and the questions that `benchmarks.made_questions` makes of the last manifest's, about the whole image and
about regions. A gain is how much better the program is with a part, with its paired 95 % interval: one star (or "loss")
where that leaves out 0, two where the gain also holds after Holm's correction over the table. Calls are those of a
language model, answered by its cache or not; seconds, and processor seconds of this process, are medians over the first
`--timed` samples of each set, asked again with nothing kept.

`sent` takes evidence out of what a language model is sent, which answers one word an image (`--reasons`: as by
default). Neighbours are the levels of the 8 nearest training photographs. The table has the model alone, and fused.

Each answer is a line of a file in `--work`. Stopped, the same command goes on; another version of the program needs
another folder.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from benchmarks import made_questions
from benchmarks.real_model import server_of
from data.manifest import Sample, read_manifest
from program import AgenticIQA
from program.agent.executor import Executor
from program.agent.labels import Neighbour, Neighbours
from program.agent.planner import Planner, PlanReading, apply_rules
from program.agent.state import AssessmentState, ExecutorOutput, SummarizerOutput
from program.agent.summarizer import Summarizer
from program.common.cli import Parser, run_command, whole_number
from program.common.pool import progress
from program.common.settings import Settings, load_settings
from program.evaluation.intervals import METRICS, Figure, bootstrap, interval, paired_difference
from program.expert import Viewer, likeness
from program.fusion.levels import expected_level
from program.images.store import IMAGES
from program.running.journal import LineLog
from signatures.schemas import GLOBAL, Plan

QUESTIONS, NEAREST, RESAMPLES = 200, 8, 20_000
TIMED = ", timed"
Line = Mapping[str, Any]
Sets = Mapping[str, Sequence[Sample]]


@dataclass(frozen=True)
class Variant:
    """Which parts of the program work."""

    plans: bool = True
    """False: every question gets the same plan."""
    looks: str = "as set"
    """"twice": detection and analysis are two questions; "detects": what is detected only chooses tools; "never"."""
    tools: str = "as set"
    """"one": the strongest in general, whatever is detected; "none"; or a value of the setting executor.selection."""
    regions: bool = True
    replans: bool = True
    sent: tuple[str, ...] = ("line", "findings")
    """What the Summarizer's model is sent of the evidence; "neighbours" are labels of other photographs."""
    counts: str = "predicted"
    """Which number of an answer counts: the fused score, or in its place the mean of the "tools", or what the "model"
    expects."""


WHOLE = Variant()
BARE = Variant(plans=False, looks="never", tools="none", regions=False, replans=False)
WITHOUT = {
    "Planner": replace(WHOLE, plans=False),
    "choice of tools (one tool)": replace(WHOLE, tools="one"),
    "tools": replace(WHOLE, tools="none"),
    "detection and analysis": replace(WHOLE, looks="never"),
    "analysis": replace(WHOLE, looks="detects"),
    "diagnosis in one question": replace(WHOLE, looks="twice"),
    "regions": replace(WHOLE, regions=False),
    "replan": replace(WHOLE, replans=False),
    "findings in the prompt": replace(WHOLE, sent=("line",)),
    "tools in the fusion": replace(WHOLE, counts="model"),
    "model in the fusion": replace(WHOLE, counts="tools"),
}
"""The whole program less one part."""
ALONE = {
    "Planner": replace(BARE, plans=True),
    "detection and analysis": replace(BARE, looks="as set"),
    "one tool": replace(BARE, tools="one"),
    "tools as chosen": replace(BARE, tools="as set"),
    "regions": replace(BARE, regions=True),
    "regions that are planned": replace(BARE, plans=True, regions=True),
    "replan": replace(BARE, replans=True),
}
"""The model with a fixed plan, and one part."""
TODAY = "line and findings"
SENT = {
    "nothing": (),
    "line": ("line",),
    "findings": ("findings",),
    "neighbours": ("neighbours",),
    TODAY: ("line", "findings"),
    "all": ("line", "findings", "neighbours"),
}


def choices() -> dict[str, Variant]:
    """Return the program with each value of the setting executor.selection; none where there is no such setting."""
    section = Settings.model_fields.get("executor")
    if section is None:
        return {}
    names = get_args(section.annotation.model_fields["selection"].annotation)
    return {f"choice of tools as set ({name})": replace(WHOLE, tools=name) for name in names}


class PartPlanner(Planner):
    """A Planner that leaves out of a plan what a variant lacks."""

    variant = WHOLE

    def forward(self, state: AssessmentState, tool_names: Sequence[str], feedback: str | None = None) -> PlanReading:
        """Return the model's plan or the fixed one, less the parts that are off."""
        off, has_reference = self.variant, state.reference_path is not None
        if off.plans:
            reading = super().forward(state, tool_names, feedback)
        else:
            boxes, registry = list(state.regions or {}), self.resources.registry
            fixed = Plan(query_type="IQA", query_scope=boxes or [GLOBAL])
            reading = apply_rules(fixed, has_reference=has_reference, boxes=boxes, registry=registry)
        changes: dict[str, Any] = {}
        if not off.regions:
            changes["query_scope"] = [GLOBAL]
        if off.looks in {"never", "detects"}:
            changes |= {"distortion_detection": off.looks == "detects", "distortion_analysis": False}
        if off.tools == "none":
            changes |= {"tool_selection": False, "tool_execute": False, "required_tools": []}
        elif off.tools == "one":
            ready = self.resources.runner.ready("FR" if has_reference else "NR")
            name = self.resources.registry.best(None, ready).name
            changes |= {"tool_selection": False, "tool_execute": True, "required_tools": [name]}
        return reading._replace(plan=reading.plan.model_copy(update=changes))


class ToolFreeExecutor(Executor):
    """An Executor without tools, in a region either."""

    def forward(self, *given: Any, **named: Any) -> ExecutorOutput:
        """Return the evidence without readings."""
        nothing = {"selected_tools": None, "quality_scores": None, "tool_logs": []}
        return super().forward(*given, **named).model_copy(update=nothing)


class PartSummarizer(Summarizer):
    """A Summarizer whose model is sent a part of the evidence; the tools' scores are fused as ever."""

    variant = WHOLE

    def forward(self, state: AssessmentState, image: Any, reference: Any = None) -> SummarizerOutput:
        """Return the answer of a model that was sent less."""
        hidden, unplanned = dict[str, Any](), dict[str, Any]()  # what is not planned is no gap
        if "findings" not in self.variant.sent:
            hidden["distortion_analysis"] = None
            unplanned |= {"distortion_detection": False, "distortion_analysis": False}
        if "line" not in self.variant.sent:
            hidden["quality_scores"] = None
            unplanned["tool_execute"] = False
        plan = state.plan and state.plan.model_copy(update=unplanned)
        evidence, readings = state.evidence.model_copy(update=hidden), state.evidence.readings
        sent = state.model_copy(update={"plan": plan, "executor_evidence": evidence})
        answer = super().forward(sent, image, reference)
        state.gap = sent.gap
        if "line" in self.variant.sent or answer.rating is None or not readings.scores:
            return answer
        score = self.fusion.fuse_scores(readings.scores, answer.level_probabilities, readings.precisions)
        return answer.model_copy(update={"final_answer": score, "quality_score": score})


def built(base: Settings, variant: Variant, neighbours: Neighbours | None = None) -> AgenticIQA:
    """Return the program with the parts of a variant."""
    changes = dict[str, Any]()
    if not variant.replans:
        changes["max_replan_iterations"] = 0
    if variant.looks in {"twice", "detects"}:
        changes["diagnosis"] = "separate"
    settings = base.model_copy(update={"assessment": base.assessment.model_copy(update=changes)})
    if variant.tools not in {"as set", "one", "none"}:
        section = base.executor.model_copy(update={"selection": variant.tools})
        settings = settings.model_copy(update={"executor": section})
    program = AgenticIQA(settings)
    program.planner = PartPlanner(program.resources)
    program.planner.variant = variant
    if variant.tools == "none":
        program.executor = ToolFreeExecutor(program.resources)
    if variant.sent != WHOLE.sent:
        program.summarizer = PartSummarizer(program.resources)
        program.summarizer.variant = variant
    if "neighbours" in variant.sent:
        program.summarizer.neighbours = neighbours
    return program


def asked(program: AgenticIQA, variant: Variant, sample: Sample) -> dict[str, Any]:
    """Return what a variant says of a sample, and what that took."""
    given = sample.arguments()
    if not variant.regions:
        given.pop("regions", None)
    with IMAGES.borrow():
        started, used = time.perf_counter(), time.process_time()
        result = program(**given)
        seconds, processor = time.perf_counter() - started, time.process_time() - used
    numbers = {"predicted": result.quality_score, "tools": result.tool_mean, "model": None}
    if result.level_probabilities:
        numbers["model"] = expected_level(result.level_probabilities)
    line: dict[str, Any] = {name: value and round(value, 6) for name, value in numbers.items()}
    if sample.options:
        line["predicted"] = result.final_answer
    usage = result.usage
    line |= {"calls": usage.lm_calls + usage.lm_cache_hits, "replans": usage.replans}
    return line | {"seconds": round(seconds, 4), "processor": round(processor, 4)}


class Answers:
    """The lines of a file: what each variant said of each sample."""

    def __init__(self, file: Path) -> None:
        self.log = LineLog(file, mend="name another folder with --work")
        self.lines = [json.loads(line) for line in self.log.lines()]

    def fill(
        self, name: str, sets: Sets, variant: Variant, program: Callable[[], AgenticIQA], *, fresh: bool = False
    ) -> None:
        """Ask a variant about the samples without a line; `fresh`: with all loaded and nothing measured."""
        missing = []
        for title, samples in sets.items():
            known = self.of(name, title)
            missing += [(title, sample) for sample in samples if sample.id not in known]
        if not missing:
            return
        asks = program()
        if fresh:
            asked(asks, variant, missing[-1][1])
            Viewer.forget()
        with progress(name, len(missing)) as advance:
            for title, sample in missing:
                own = {"variant": name, "set": title, "id": sample.id, "truth": sample.truth}
                self.lines.append(own | asked(asks, variant, sample))
                self.log.append(json.dumps(self.lines[-1]))
                advance()

    def of(self, name: str, title: str) -> dict[str, Line]:
        """Return a variant's lines about a set by sample."""
        return {line["id"]: line for line in self.lines if (line["variant"], line["set"]) == (name, title)}

    def cost(self, name: str, title: str) -> list[float]:
        """Return calls, seconds and processor seconds of a sample."""
        calls = statistics.fmean(line["calls"] for line in self.of(name, title).values())
        timed = self.of(name, title + TIMED).values()
        medians = [statistics.median(line[key] for line in timed) if timed else 0.0 for key in ("seconds", "processor")]
        return [calls, *medians]


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = Parser(prog="python -m benchmarks.ablation", description="What each step of the program is worth.")
    parser.add_argument("what", choices=("parts", "sent"))
    parser.add_argument("data", nargs="+", type=Path, metavar="MANIFEST")
    parser.add_argument("--model", metavar="MODEL", help="1.5b, a .gguf file, or openai/NAME (default: the expert)")
    parser.add_argument("--api-base", metavar="URL", help="of the server that has MODEL")
    parser.add_argument("--count", type=whole_number(1), help="the first samples of each set (default: all)")
    parser.add_argument("--timed", type=whole_number(0), default=6, help="of them asked again to measure time")
    parser.add_argument("--ratings-only", action="store_true", help="parts: no made questions")
    parser.add_argument("--reasons", action="store_true", help="sent: in place of one word an image")
    parser.add_argument("--threads", type=whole_number(1), default=2, help="of the server")
    parser.add_argument("--work", type=Path, default=Path("ablation"), metavar="DIR", help="default: ablation")
    arguments = parser.parse_args(argv)
    if arguments.what == "sent" and arguments.model is None:
        parser.error("sent: the embedded expert is sent figures; give a language model with --model")
    return run_command(lambda: _run(arguments), kept="what is done is kept; the same command goes on")


def _run(arguments: argparse.Namespace) -> int:
    arguments.work.mkdir(parents=True, exist_ok=True)
    base = load_settings(overrides={"cache_dir": str(arguments.work / "cache")})
    kind = f"{arguments.what}-reasons" if arguments.reasons else arguments.what
    with server_of(arguments) if arguments.model else nullcontext() as server:
        if server is not None:
            base = base.with_model(*server, {})
        answers = Answers(arguments.work / f"{kind}-{Path(arguments.model or 'expert').stem}.jsonl")
        with closing(answers.log):
            work = _parts if arguments.what == "parts" else _sent
            print("\n".join(work(arguments, base, answers)))
    return 0


def samples_of(manifest: Path, task: str, count: int | None) -> list[Sample]:
    """Return the first labelled validation samples of a manifest, of "scoring" or "mcq"."""
    every = (sample for sample in read_manifest(manifest) if sample.split == "validation" and sample.is_labelled)
    return [sample for sample in every if sample.task == task][:count]


# The parts


def _parts(arguments: argparse.Namespace, base: Settings, answers: Answers) -> Iterator[str]:
    sets = {file.parent.name: samples_of(file, "scoring", arguments.count) for file in arguments.data}
    made = {} if arguments.ratings_only else {"questions": [], "region questions": ["--regions"]}
    for name, flags in made.items():
        folder = arguments.work / name.replace(" ", "-")
        if not (folder / "manifest.jsonl").is_file():
            counts = ["--train", "0", "--validation", str(QUESTIONS), "--test", "0"]
            made_questions.main([str(arguments.data[-1]), str(folder), *counts, *flags])
        sets[name] = samples_of(folder / "manifest.jsonl", "mcq", arguments.count)
    few = {title + TIMED: samples[: arguments.timed] for title, samples in sets.items()}
    uncached = base.model_copy(update={"cache": False})
    without = {**WITHOUT, **choices()}
    variants = {"whole": WHOLE, "bare": BARE}
    variants |= {f"without {name}": variant for name, variant in without.items() if variant.counts == "predicted"}
    variants |= {f"{name} alone": variant for name, variant in ALONE.items()}
    for name, variant in variants.items():
        answers.fill(name, sets, variant, partial(built, base, variant))
        answers.fill(name, few, variant, partial(built, uncached, variant), fresh=True)
    off = {}
    for name, variant in without.items():
        if variant.counts == "predicted":
            worse = f"without {name}"
        elif variant.counts == "tools":  # which run, too, where they add nothing to the model
            worse = "without choice of tools as set (model)"
        else:
            worse = "whole"
        off[name] = ("whole", worse, variant.counts)
    alone = {name: (f"{name} alone", "bare", "predicted") for name in ALONE}
    yield from table("the whole program less the one without", "whole", off, sets, answers)
    yield ""
    yield from table("the model and a part less the model alone", "bare", alone, sets, answers)


Pairs = Mapping[str, tuple[str, str, str]]
"""By part the variants with it and without, and the number of the latter that counts."""


class Gain(NamedTuple):
    """What a part adds to one metric of one set."""

    figure: Figure
    p: float
    changed: int
    """Samples with another answer."""


def gains_of(with_it: Mapping[str, Line], without: Mapping[str, Line], counts: str) -> dict[str, Gain]:
    """Return by metric what a part adds; nothing where no two answers can be compared."""
    pairs = []
    for name, line in with_it.items():
        values = without.get(name, {}).get(counts), line["predicted"]
        is_fused = not isinstance(line["truth"], str)
        if None not in values and (is_fused or counts == "predicted"):
            pairs.append((line["truth"], *values))
    if not pairs:
        return {}
    truth, before, after = (list(column) for column in zip(*pairs, strict=True))
    changed = sum(one != other for one, other in zip(before, after, strict=True))
    gains = {}
    for metric in metrics_of(truth):
        figure, p = paired_difference(metric, truth, before, after), 1.0
        if changed and figure.value is not None:
            resamplers = [METRICS[metric].resampler(truth, said) for said in (before, after)]
            change = np.subtract(*bootstrap(resamplers, len(truth), 0, RESAMPLES))
            fewest = min((change <= 0).sum(), (change >= 0).sum())
            p = min(1.0, 2 * (fewest + 1) / (RESAMPLES + 1))
        gains[metric] = Gain(figure, p, changed)
    return gains


def metrics_of(truth: Sequence[Any]) -> tuple[str, ...]:
    """Return the metrics of letters, or of scores."""
    return ("accuracy",) if isinstance(truth[0], str) else ("srcc", "rmse")


def figures_of(lines: Sequence[Line], column: str) -> list[str]:
    """Return how good a number of these answers is."""
    truth, said = [line["truth"] for line in lines], [line[column] for line in lines]
    return [interval(metric, truth, said).value_text() for metric in metrics_of(truth)]


def holm(chances: Sequence[float]) -> float:
    """Return the largest p that holds at 5 % after Holm's correction; -1 where none does.

    >>> holm([0.5, 0.001, 0.02]), holm([0.5, 0.03, 0.02])
    (0.02, -1.0)
    """
    largest = -1.0
    for place, p in enumerate(sorted(chances)):
        if p > 0.05 / (len(chances) - place):
            break
        largest = p
    return largest


def table(what: str, base: str, pairs: Pairs, sets: Sets, answers: Answers) -> Iterator[str]:
    """Yield for each set how good the base is, and what each part gains."""
    cells = {}
    for title in sets:
        for part, (better, worse, counts) in pairs.items():
            if gains := gains_of(answers.of(better, title), answers.of(worse, title), counts):
                cells[title, part] = gains
    held = holm([gain.p for gains in cells.values() for gain in gains.values()])
    yield f"| {what} | changed | SRCC or accuracy | RMSE | calls | s | processor s |"
    yield "|---|---|---|---|---|---|---|"
    for title in sets:
        lines = [line for line in answers.of(base, title).values() if line["predicted"] is not None]
        shown = figures_of(lines, "predicted")
        yield row(f"**{title}**, {base}", f"of {len(lines)}", shown, answers.cost(base, title), "")
        for part, (better, worse, _) in pairs.items():
            if gains := cells.get((title, part)):
                spent = np.subtract(answers.cost(better, title), answers.cost(worse, title))
                changed = {gain.changed for gain in gains.values()}.pop()
                yield row(part, changed, [gain_text(name, gain, held) for name, gain in gains.items()], spent, "+")


def gain_text(metric: str, gain: Gain, held: float) -> str:
    """Return a gain with its interval and stars, or "loss"; RMSE falls where it is better."""
    if not gain.changed:
        return "0"
    text = f"{gain.figure.value_text('+')} {gain.figure.ends_text('+')}"
    match gain.figure.sign * METRICS[metric].direction:
        case 1:
            return f"{text}{'**' if gain.p <= held else '*'}"
        case -1:
            return f"{text} loss"
        case _:
            return text


def row(name: str, changed: object, shown: Sequence[str], spent: Sequence[float], sign: str) -> str:
    """Return a line of the table."""
    calls, seconds, processor = spent
    numbers = f"{calls:{sign}.2f} | {seconds:{sign}.3f} | {processor:{sign}.3f}"
    return f"| {name} | {changed} | {' | '.join([*shown, ''][:2])} | {numbers} |"


# What a model is sent


def _sent(arguments: argparse.Namespace, base: Settings, answers: Answers) -> Iterator[str]:
    assessment = base.assessment.model_copy(update={"score_only": not arguments.reasons})
    settings = base.model_copy(update={"assessment": assessment})
    for file in arguments.data:
        title, near = file.parent.name, neighbours_of(file, settings)
        sets = {title: samples_of(file, "scoring", arguments.count)}
        for name, parts in SENT.items():
            variant = replace(WHOLE, sent=parts)
            answers.fill(name, sets, variant, partial(built, settings, variant, near))
        yield from sent_table(title, answers)


def neighbours_of(manifest: Path, settings: Settings) -> Neighbours:
    """Return the labelled training photographs of a manifest, of which the nearest are looked up."""
    viewer = AgenticIQA(settings).resources.viewer
    photographs, vectors = [], []
    for sample in read_manifest(manifest):
        if sample.split == "train" and sample.quality is not None:
            with IMAGES.borrow():
                image = IMAGES.add(sample.image)
                view = viewer.view(image)
            own = {"sha256": image.sha256, "group": sample.group or sample.id, "kind": view.model.kind}
            photographs.append(Neighbour(**own, label=min(5.0, max(1.0, sample.quality))))
            vectors.append(likeness(view))
    return Neighbours(count=NEAREST, photographs=tuple(photographs), vectors=np.stack(vectors))


def sent_table(title: str, answers: Answers) -> Iterator[str]:
    """Yield how good the model is with each kind of evidence, alone and fused with the tools."""
    yield f"| {title}, sent | n | alone: SRCC | RMSE | fused: SRCC | RMSE | SRCC less that of {TODAY} |"
    yield "|---|---|---|---|---|---|---|"
    today = answers.of(TODAY, title)
    for name in SENT:
        lines = [line for line in answers.of(name, title).values() if None not in (line["model"], line["predicted"])]
        shown = [*figures_of(lines, "model"), *figures_of(lines, "predicted")]
        gain = gains_of(answers.of(name, title), today, "predicted")["srcc"].figure
        yield f"| {name} | {len(lines)} | {' | '.join(shown)} | {gain} |"


if __name__ == "__main__":
    sys.exit(main())
