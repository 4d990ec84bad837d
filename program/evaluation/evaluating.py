"""An evaluation from a dataset's name to a whole record, beside simpler ways to answer the same samples."""

import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Self, TypeAlias, get_args

from pydantic import JsonValue

from data.catalogue import resolve_dataset
from data.manifest import (
    GENERATED,
    LABELS,
    Layout,
    Sample,
    Split,
    check_scale,
    left_out,
    manifest_sha256,
    read_manifest,
)
from data.splits import check_leaks
from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.agent.module import digest
from program.agent.saving import context_of
from program.agent.state import AssessmentState
from program.common.cache import can_keep
from program.common.errors import InputError
from program.common.files import IdSet, Place
from program.common.settings import Settings
from program.evaluation.figures import compare, details_of, figure_of, summarize
from program.evaluation.record import Baseline, Cost, Dataset, EvaluationRecord, LabelledRow, Readings, WorstRows
from program.fusion import ScoreFusion
from program.images.store import IMAGES
from program.lms.call import meter
from program.lms.limits import BudgetSpent
from program.running.journal import Journal
from program.running.runner import Asking, Engine, run

MODEL_ONLY = "model only"
ALL_TOOLS = "all tools"
ALL_RELIABLE = "all tools by reliability"


class BaselineAnswers:
    """Answers a sample without the agent, right after the agent did: every ready tool, and the model on its own.

    A full-reference tool runs where the sample has a reference. Tools over 0.3 s an image are left out. The tools'
    scores are calibrated to 1..5 without knowledge of the distortion, as a user of that tool alone would get them.
    "model only" is a call of the program's Summarizer with no evidence: no finding, no tool score and no tool mean.
    """

    def __init__(self, program: AgenticIQA) -> None:
        self._program = program
        runner = program.resources.runner
        self._nr = tuple(spec.name for spec in runner.ready("NR"))
        self._fr = tuple(spec.name for spec in runner.ready("FR"))

    def __call__(self, sample: Sample, assessment: Assessment) -> tuple[dict[str, float | str], Cost]:
        """Return the answers by baseline; one that failed is absent. Raises BudgetSpent alone."""
        answers: dict[str, float | str] = {}
        try:
            image = IMAGES.add(sample.image)
            reference = IMAGES.add(sample.reference) if sample.reference else None
        except InputError:
            return {}, Cost()
        if sample.task == "scoring":
            names = (*self._fr, *self._nr) if reference is not None else self._nr
            runner = self._program.resources.runner
            read = [runner.measure(name, image, reference) for name in names]
            scores = {reading.tool: reading.score for reading in read if reading.score is not None}
            answers |= {name: round(score, 6) for name, score in scores.items()}
            if scores and len(scores) == len(names):
                values, precisions = list(scores.values()), runner.precisions([(name, None) for name in scores])
                answers[ALL_TOOLS] = round(math.fsum(values) / len(values), 6)
                known = [precision for precision in precisions if precision is not None]
                if len(known) == len(values):
                    mean = ScoreFusion(tool_weights="reliability").tool_mean(values, known)
                    answers[ALL_RELIABLE] = round(mean, 6)
        with meter() as usage:
            alone = self._model_only(assessment.state, image, reference)
        if alone is not None:
            answers[MODEL_ONLY] = alone
        tokens = usage.input_tokens + usage.output_tokens
        return answers, Cost(lm_calls=usage.lm_calls, tokens=tokens, cost_usd=usage.cost_usd)

    def _model_only(self, state: AssessmentState, image: Any, reference: Any) -> float | str | None:
        blind = AssessmentState(
            query=state.query, image_path=state.image_path, reference_path=state.reference_path, options=state.options,
            plan=state.plan, executor_evidence=None,
        )  # fmt: skip
        try:
            answer = self._program.summarizer(state=blind, image=image, reference=reference)
        except BudgetSpent:
            raise
        except Exception:  # the sample border again: a baseline's failure is counted, not raised
            return None
        text = answer.final_answer
        return None if answer.status == "failed" else text if isinstance(text, str) else round(text, 6)


_WAYS: Mapping[str, tuple[str, str, str]] = {
    "tools used": ("mean of the tools the agent used", "tools", "tool_mean_equal"),
    "tools used by reliability": ("the agent's tools, weighted by reliability", "tools", "tool_mean_reliable"),
    ALL_TOOLS: ("mean of all ready tools", "tools", ""),
    ALL_RELIABLE: ("all ready tools, weighted by reliability", "tools", ""),
    MODEL_ONLY: ("model only, no evidence", "model", ""),
    "model with evidence": ("model's level with evidence", "model", "expected_level"),
    "mean of tools and model": ("plain mean, tools and model", "mean", ""),
    "printed fusion": ("fusion as printed", "fusion", "fusion_printed"),
    "normalised fusion": ("fusion normalised", "fusion", "fusion_normalised"),
    "fusion by reliability": ("fusion normalised, tools by reliability", "fusion", "fusion_reliable"),
}
"""What each way to answer is called, its kind, and which of a row's beliefs it is, if one; single tools go before."""


def with_baselines(record: EvaluationRecord) -> EvaluationRecord:
    """Return the record with a table entry for every baseline its rows hold, in the table's order."""
    rows = [row for row in record.rows if row.task != "open"]
    answers = [_answers(row) for row in rows]
    tools = {name: (f"{name} alone", "tool", "") for each in answers for name in each if name not in _WAYS}
    baselines: dict[str, Baseline] = {}
    for name, (label, kind, _) in {**tools, **_WAYS}.items():
        others = [_answered(row, each.get(name)) for row, each in zip(rows, answers, strict=True)]
        gain = compare(others, rows, seed=record.seed)
        figures: dict[str, Any] = {metric: figure_of(metric, others, seed=record.seed) for metric in gain}
        gain = {metric: difference.of(figures[metric].asked) for metric, difference in gain.items()}
        if gain:
            baselines[name] = Baseline.model_validate({"label": label, "kind": kind, "gain": gain, **figures})
    return record.model_copy(update={"baselines": baselines})


def _answers(row: LabelledRow) -> dict[str, float | str | None]:
    """Return what each way answered a sample, by its name."""
    tools, model = row.beliefs.get("tool_mean_equal"), row.beliefs.get("expected_level")
    mean = None if tools is None or model is None else math.fsum((tools, model)) / 2
    beliefs = {name: row.beliefs.get(belief) for name, (_, _, belief) in _WAYS.items() if belief}
    return {**(row.baselines or {}), **beliefs, "mean of tools and model": mean}


def _answered(row: LabelledRow, answer: float | str | None) -> LabelledRow:
    """Return the row as if the program had answered this; failed where either did not answer."""
    if not row.counts or answer is None or isinstance(answer, str) != (row.task == "mcq"):
        return row.model_copy(update={"status": "failed"})
    return row.model_copy(update={"answer" if row.task == "mcq" else "score": answer})


logger = logging.getLogger(__name__)

_CHECKPOINT_VERSION = 4
_MEND = "name another file with --checkpoint, or another cache folder (AGENTICIQA_CACHE_DIR)"

OtherAnswers: TypeAlias = Callable[[Sample, Assessment], tuple[dict[str, float | str], Cost]]
"""Takes a sample and the program's assessment, returns other answers by name; raises BudgetSpent alone."""


class Evaluating(Asking[LabelledRow]):
    """From a sample to its row, with what `others` answer beside the program; texts of the worst misses alone."""

    kind = LabelledRow

    def __init__(self, program: Callable[..., Assessment], others: OtherAnswers | None = None) -> None:
        super().__init__(program)
        resources = getattr(program, "resources", None)
        self._eta, self._others, self._misses = resources.fusion.eta if resources else 1.0, others, WorstRows()

    @classmethod
    def build(cls, make: Callable[[], AgenticIQA], *, baselines: bool = False) -> Self:
        """Return one with a program of its own."""
        program = make()
        return cls(program, BaselineAnswers(program) if baselines else None)

    def __call__(self, request: Sample) -> LabelledRow:
        """Return a sample's row; see `Asking`."""
        started = time.perf_counter()
        row = super().__call__(request)
        return row if row.seconds else row.model_copy(update={"seconds": round(time.perf_counter() - started, 4)})

    def row(self, request: Sample) -> LabelledRow:
        """Ask the program, and the others."""
        started = time.perf_counter()
        result = self.program(**request.arguments())
        row = LabelledRow.of(request, result, eta=self._eta)
        beside: dict[str, Any] = {"seconds": round(time.perf_counter() - started, 4)}
        if self._others is not None and request.task != "open":
            beside["baselines"], beside["baseline_cost"] = self._others(request, result)
        return self._misses.trim(row.model_copy(update=beside))


def run_samples(
    program: Callable[..., Assessment],
    samples: Iterable[Sample],
    *,
    workers: int = 2,
    progress: bool = True,
    checkpoint: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    dataset: Dataset | None = None,
    context: Mapping[str, JsonValue] | None = None,
    label: str = "evaluating",
    others: OtherAnswers | None = None,
    engine: Engine | None = None,
) -> EvaluationRecord:
    """Run `program` over `samples` with `workers` threads and return the record, rows in the samples' order.

    `program(image=, query=, reference=, options=, regions=)` returns an Assessment, in several threads, each call in a
    copy of the caller's context. An exception or a "failed" Assessment becomes a failed row, as `running.runner` says.
    Of a stream of samples two per worker are held at once. `engine` takes the threads' place. `seed` fixes the
    intervals; `dataset` and `context` (hashes, model names) are what a `checkpoint` must match to be resumed. Ctrl-C
    and a spent `Budget` finish and write what is in flight, then raise. Raises InputError for fewer than one worker, a
    repeated sample id, or a checkpoint of another run.
    """
    if workers < 1:
        raise InputError(f"workers: {workers} is too few; give 1 or more")
    dataset, context = dataset or Dataset(), dict(context or {})
    started = time.perf_counter()
    rows: dict[int, LabelledRow] = {}
    misses, failed = WorstRows(), 0

    def take(place: int, row: LabelledRow) -> str:
        nonlocal failed
        rows[place] = misses.trim(row)
        failed += row.status == "failed"
        return f"{failed} failed" if failed else ""

    header = {"checkpoint": "evaluation", "schema_version": _CHECKPOINT_VERSION, **dataset.model_dump(mode="json"),
              "context": context}  # fmt: skip
    with nullcontext() if checkpoint is None else Journal(checkpoint, header, LabelledRow, mend=_MEND) as journal:
        if journal is not None:
            if not resume:
                journal.set_aside()
            journal.resume()
        try:
            run(
                Evaluating(program, others), _distinct(samples), take, workers=workers, engine=engine, journal=journal,
                label=label, total=len(samples) if isinstance(samples, Sized) else None, progress=progress,
            )  # fmt: skip
        except BudgetSpent as error:
            hint = f"; {len(rows)} samples are finished and kept, resume to continue" if checkpoint else ""
            raise BudgetSpent(f"{error}{hint}") from error
    wall = time.perf_counter() - started
    ordered = [rows[place] for place in sorted(rows)]
    return summarize(ordered, dataset=dataset, context=context, seed=seed, wall_seconds=wall)


def _distinct(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield the samples. Raises InputError for an id that occurs twice."""
    with closing(IdSet()) as ids:
        for sample in samples:
            if not ids.add(sample.id):
                raise InputError(f"sample {sample.id!r} occurs twice; give every sample its own id")
            yield sample


@dataclass(frozen=True)
class ManifestSplit:
    """One split of a manifest, read again at each pass; no more than a line is held."""

    manifest: Place
    layout: Layout
    size: int
    dataset: Dataset
    """Its name is the dataset's own, or the manifest's with the folder it lies in."""
    doubt: str = ""
    """A warning that its scores may be on another scale."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Sample]:
        split, samples = self.dataset.split, read_manifest(self.manifest, self.layout)
        return (s for s in samples if split in {None, s.split} and not s.is_bare)


def samples_of(
    data: str | Path, settings: Settings, split: str | None = "test", *, progress: bool = True,
    layout: Layout | None = None,
) -> ManifestSplit:  # fmt: skip
    """Return a dataset's samples, after reading every line, so that a fault is reported before the first model call.

    `data` is a dataset's name or a manifest's path or URI, which is read by `layout`; `split` None takes all. Raises
    InputError for an empty split or one without a single label, and DataError for a group in two splits, as compiling
    does.
    """
    manifest = resolve_dataset(data, settings.cache_dir, progress=progress)
    layout = replace(layout or Layout(), remote=settings.images.remote)
    doubt = check_scale(manifest, layout)
    if split is not None:
        check_leaks(read_manifest(manifest, layout))
    every = (sample for sample in read_manifest(manifest, layout) if split in {None, sample.split})
    chosen = Counter("bare" if s.is_bare else s.judge if s.is_labelled else "none" for s in every)
    judges, bare = sorted(chosen.keys() - {"bare", "none"}), chosen["bare"]
    if not chosen:
        others = sorted({sample.split for sample in read_manifest(manifest, layout) if sample.split})
        mend = " or ".join([*others, "all"])
        raise InputError(f"manifest {str(manifest)!r}: no sample in split {split!r}; give --split {mend}")
    if not judges:
        raise InputError(
            f"manifest {str(manifest)!r}: no sample {f'of split {split!r} ' if split else ''}has a label; give {LABELS}"
        )
    if bare:
        logger.warning("%s: %s", str(manifest), left_out(bare, chosen.total()))
    if doubt:
        logger.warning("%s", doubt)
    path = manifest.resolve() if isinstance(manifest, Path) else PurePosixPath(manifest)
    name = str(data) if str(data) in GENERATED else "/".join(path.parts[-2:])
    # Of several judges, people come first.
    dataset = Dataset(name=name, manifest_sha256=manifest_sha256(manifest), split=split, judge=judges[0])
    return ManifestSplit(manifest, layout, chosen.total() - bare, dataset, doubt)


def evaluate(
    program: AgenticIQA | None = None,
    data: str | Path | Iterable[Sample] = "quickstart",
    *,
    split: str | None = "test",
    baselines: bool = False,
    workers: int | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    progress: bool = True,
    engine: Engine | None = None,
) -> EvaluationRecord:
    """Run a program over labelled samples and return the record, every figure with its interval.

    `program` None is the uncompiled one on the settings. `data` is a dataset's name, a manifest's path (of these,
    `split` takes "train", "validation" or "test", None all) or samples, which are taken as they are. Every finished
    sample goes to a checkpoint (default: in the cache folder, one file for each program, data, split and choice of
    baselines), which `resume` continues; without it an older file is kept beside the new one as `<name>.previous`.
    `engine` runs the samples elsewhere than in threads (`running.on_ray`). Raises InputError or DataError.
    """
    program = program if program is not None else AgenticIQA()
    settings = program.resources.settings
    if split not in {None, *get_args(Split)}:
        raise InputError(f"split {split!r}: unknown; give {', '.join(get_args(Split))}, or None for all")
    samples = samples_of(data, settings, split, progress=progress) if isinstance(data, str | Path) else data
    dataset = samples.dataset if isinstance(samples, ManifestSplit) else Dataset(name="samples")
    context = context_of(program, baselines=baselines)
    if checkpoint is None and dataset.manifest_sha256 is not None:
        checkpoint = checkpoint_path(settings, dataset, context)
        if not resume and not can_keep(checkpoint.parent):
            logger.warning("this evaluation cannot be resumed: name a file with --checkpoint to keep what is finished")
            checkpoint = None
    elif checkpoint is None and resume:
        raise InputError("resume: samples from Python have no checkpoint of their own; give checkpoint=")
    runner = program.resources.runner
    before = runner.counts.copy()
    record = run_samples(
        program, samples, workers=workers if workers is not None else settings.compile.workers, progress=progress,
        seed=settings.seed, checkpoint=checkpoint, resume=resume, dataset=dataset, context=context,
        others=BaselineAnswers(program) if baselines else None, engine=engine,
    )  # fmt: skip
    counts = runner.counts - before if engine is None else _counts_of(record.rows)
    readings = Readings(**counts, **runner.cache_state())
    update = {"details": details_of(record.rows, seed=settings.seed), "readings": readings}
    record = record.model_copy(update=update)
    return with_baselines(record) if baselines else record


def check_judged(record: EvaluationRecord, manifest: Place) -> None:
    """Raise InputError with the first reason where every sample failed and no call was paid, as without any image."""
    if record.failed and record.failed == len(record.rows) and not record.lm_calls:
        reason = next(reason for _, reason in record.failures())
        raise InputError(
            f"manifest {str(manifest)!r}: none of the {record.failed} samples could be judged; the first: {reason}"
        )


def _counts_of(rows: Sequence[LabelledRow]) -> Counter[str]:
    """Return how many readings the rows say that their tools made, wherever they ran; not those of baselines."""
    names = ("tool_readings", "tool_cache_hits", "tool_failures")
    readings, cached, failed = (sum(int((row.spent or {}).get(name, 0)) for row in rows) for name in names)
    return Counter(fresh=readings - cached - failed, cached=cached, failed=failed)


def checkpoint_path(settings: Settings, dataset: Dataset, context: dict[str, Any]) -> Path:
    """Return the default path of this evaluation's checkpoint."""
    key = digest([_CHECKPOINT_VERSION, dataset.manifest_sha256, dataset.split, context])[:16]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", dataset.name.removesuffix(".jsonl")).strip("-")[:60]
    return settings.cache_dir / "evaluations" / f"{name}-{dataset.split or 'all'}-{key}.jsonl"
