"""Run a program over samples in parallel: every sample ends as a row, failed ones too."""

import hashlib
import heapq
import logging
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import JsonValue

from data.manifest import Sample
from program.agent.evidence import tool_precisions, tool_scores, used_evidence
from program.agent.query import DEFAULT_QUERY
from program.common.errors import EndpointError, InputError
from program.common.linelog import ResumeLog
from program.common.pool import completed
from program.common.progress import progress as progress_bar
from program.common.redaction import redact
from program.evaluation.figures import summarize
from program.evaluation.record import SCHEMA_VERSION, WORST, Cost, Dataset, EvaluationRecord, Row
from program.fusion import ScoreFusion
from program.images.store import IMAGES
from program.lms.limits import BudgetSpent
from program.lms.usage import Usage

__all__ = ("Engine", "Misses", "OtherAnswers", "Todo", "failed_row", "run_sample", "run_samples", "truth_of")

logger = logging.getLogger(__name__)

_MEND = "name another file with --checkpoint, or another cache folder (AGENTICIQA_CACHE_DIR)"

_MAX_TEXT, _MAX_REASONING = 300, 1200
_SPENT = (
    "lm_calls", "lm_cache_hits", "input_tokens", "output_tokens", "tool_readings", "tool_cache_hits", "tool_failures",
    "replans",
)  # fmt: skip

OtherAnswers: TypeAlias = Callable[[Sample, Any], tuple[dict[str, float | str], Cost]]
"""Takes a sample and the program's Assessment (None where it failed), returns other answers by name; never raises."""

Todo: TypeAlias = tuple[int, Sample]
Engine: TypeAlias = Callable[[Iterable[Todo]], Iterator[tuple[Todo, Row]]]
"""Runs a program over placed samples and yields each with its row as they come."""


def run_samples(
    program: Callable[..., Any],
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
    copy of the caller's context. An exception or a "failed" Assessment becomes a failed row. Of a stream of samples two
    per worker are held at once. `engine` takes the threads' place. `seed` fixes the intervals; `dataset` and `context`
    (hashes, model names) are what a `checkpoint` must match to be resumed. Ctrl-C and a spent `Budget` finish and write
    what is in flight, then raise. Raises InputError for fewer than one worker, a repeated sample id, or a checkpoint of
    another run.
    """
    if workers < 1:
        raise InputError(f"workers: {workers} is too few; give 1 or more")
    engine = engine or partial(completed, lambda todo: run_sample(program, todo[1], others), workers=workers)
    dataset, context = dataset or Dataset(), dict(context or {})
    started = time.perf_counter()
    rows: dict[int, Row] = {}
    misses, failed = Misses(), 0
    total = len(samples) if isinstance(samples, Sized) else None

    def finish(place: int, row: Row) -> None:
        nonlocal failed
        rows[place] = misses.trimmed(row)
        failed += row.status == "failed"
        advance(facts=f"{failed} failed" if failed else "")

    header = {"checkpoint": "evaluation", "schema_version": SCHEMA_VERSION, **dataset.model_dump(mode="json")}
    with (
        _checkpoint(checkpoint, {**header, "context": context}, resume=resume) as (saved, save),
        progress_bar(label, total, shown=progress) as advance,
    ):
        unfinished = _unfinished(samples, saved, finish)
        try:
            for (place, _), row in engine(unfinished):
                finish(place, row)
                save(rows[place])
        except BudgetSpent as error:
            hint = f"; {len(rows)} samples are finished and kept, resume to go on" if checkpoint else ""
            raise BudgetSpent(f"{error}{hint}") from error
    ordered = [rows[place] for place in sorted(rows)]
    wall = time.perf_counter() - started
    return summarize(ordered, dataset=dataset, context=context, seed=seed, wall_seconds=wall)


def run_sample(program: Callable[..., Any], sample: Sample, others: OtherAnswers | None = None) -> Row:
    """Ask the program about one sample and return its row; whatever goes wrong becomes a failed row."""
    # Of a stream of any length neither the images nor the crops made of them may pile up.
    with IMAGES.borrowing():
        started = time.perf_counter()
        row, assessment = _answered(program, sample)
        row = row.model_copy(update={"seconds": round(time.perf_counter() - started, 4)})
        if others is not None and sample.task != "open":
            answers, cost = others(sample, assessment)
            row = row.model_copy(update={"baselines": answers, "baseline_cost": cost})
    return row


def _answered(program: Callable[..., Any], sample: Sample) -> tuple[Row, Any]:
    failed = failed_row(sample)
    try:
        assessment = program(
            image=str(sample.image),
            query=sample.query or DEFAULT_QUERY,
            reference=str(sample.reference) if sample.reference else None,
            options=sample.options,
            regions=sample.regions,
        )
        fields = _answer_fields(program, sample.task, assessment)
        return Row.model_validate({**failed.model_dump(), **fields}), assessment
    except BudgetSpent:
        raise
    except Exception as error:  # the sample border: one bad sample must not end the run
        if isinstance(error, EndpointError) and error.is_repeated:
            raise
        logger.debug("sample %s failed", sample.id, exc_info=True)
        return failed.model_copy(update={"error": _one_line(f"{type(error).__name__}: {error}")}), None


def failed_row(sample: Sample, error: str | None = None) -> Row:
    """Return the row of a sample that got no answer."""
    kind = (getattr(sample, "metadata", None) or {}).get("question_type")
    std, (low, high) = getattr(sample, "mos_std", None), getattr(sample, "mos_range", (1.0, 5.0))
    shown = hashlib.sha256(str(sample.reference or sample.image).encode()).hexdigest()[:12]
    return Row(
        id=sample.id,
        # Several samples of one photograph are not independent, whether or not the manifest names a group.
        group=sample.group or f"image-{shown}",
        task=sample.task,
        distortion=sample.distortion,
        question_type=str(kind)[:80] if kind is not None and sample.task == "mcq" else None,
        choices=len(sample.options) if sample.options else None,
        truth=truth_of(sample),
        mos_std=round(4 * std / (high - low), 6) if std is not None and sample.task == "scoring" else None,
        preferred_over=getattr(sample, "preferred_over", None),
        status="failed",
        error=error,
    )


def truth_of(sample: Sample) -> float | str | None:
    """Return what is right of a sample: a score on 1..5 or a letter; None where nobody said."""
    if sample.task == "mcq":
        return sample.answer.strip().upper() if sample.answer else None
    return sample.quality if sample.task == "scoring" else None


def _answer_fields(program: Callable[..., Any], task: str, assessment: Any) -> dict[str, Any]:
    """Return the fields of a row that come from the assessment; raises for one that is no assessment."""
    usage = _usage(getattr(assessment, "usage", None))
    notes: dict[str, Any] = {"reasoning": str(getattr(assessment, "quality_reasoning", "") or "")[:_MAX_REASONING]}
    evidence = getattr(getattr(assessment, "state", None), "executor_evidence", None)
    if evidence is not None:
        notes["evidence"] = getattr(assessment, "used_evidence", None) or used_evidence(evidence)
    status, error = assessment.status, getattr(assessment, "error", None)
    if status == "failed":
        return {"status": status, "error": _one_line(error or "the program gave no reason"), **usage}
    answer: Any = assessment.final_answer
    if task == "scoring":
        score = assessment.quality_score if assessment.quality_score is not None else answer
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            return {"status": "failed", "error": _one_line(f"answered {score!r} where a score was asked"), **usage}
        answer = float(score)
    else:
        answer = str(answer).strip()[:_MAX_TEXT]
    probabilities = getattr(assessment, "level_probabilities", None)
    return {
        "predicted": answer.upper() if task == "mcq" else answer,
        "level": getattr(assessment, "level", None),
        "level_probabilities": {c: _rounded(p) for c, p in probabilities.items()} if probabilities else None,
        "score_interval": getattr(assessment, "score_interval", None) if task == "scoring" else None,
        **_beliefs(program, evidence, probabilities),
        "status": status,
        "rung": getattr(assessment, "rung", None),
        "error": _one_line(error) if error else None,
        "notes": notes,
        **usage,
    }


def _one_line(text: str) -> str:
    """Return a message on one line, short, without base64 and keys."""
    shortened = re.sub(r"[A-Za-z0-9+/=_-]{120,}", "...", " ".join(redact(str(text)).split()))
    return shortened if len(shortened) <= _MAX_TEXT else shortened[: _MAX_TEXT - 3] + "..."


def _beliefs(program: Any, evidence: Any, probabilities: Mapping[int, float] | None) -> dict[str, float | None]:
    """Return the two beliefs a score is fused from, and what each formula makes of them with the settings' eta.

    Plain mean of the tools: the printed and the normalised formula. Tools by reliability: the normalised one. A fitted
    fusion plays no part: the formulas are compared alike whatever was compiled.
    """
    scores = tool_scores(evidence.quality_scores) if evidence is not None else []
    if not scores and not probabilities:
        return {}
    mean = math.fsum(scores) / len(scores) if scores else None
    level = math.fsum(c * p for c, p in probabilities.items()) if probabilities else None
    eta = float(getattr(getattr(getattr(program, "resources", None), "fusion", None), "eta", 1.0))
    beliefs = {"tool_mean": _rounded(mean), "expected_level": _rounded(level)}
    if mean is not None and probabilities:
        fusion = ScoreFusion(eta)
        beliefs["fusion_normalised"] = _rounded(fusion.fuse_scores([mean], probabilities))
        # Written out: ScoreFusion would warn of nearly every sample that the printed formula leaves the scale.
        weights = fusion.compute_perceptual_weights([mean])
        printed = math.fsum(weights[c] * probabilities.get(c, 0.0) * c for c in weights)
        beliefs["fusion_printed"] = _rounded(min(5.0, max(1.0, printed)))
    precisions = tool_precisions(evidence)
    if scores and precisions is not None:
        reliable = ScoreFusion(eta, tool_weights="reliability")
        beliefs["tool_mean_reliable"] = _rounded(reliable.tool_mean(scores, precisions))
        if probabilities:
            beliefs["fusion_reliable"] = _rounded(reliable.fuse_scores(scores, probabilities, precisions))
    return beliefs


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def _usage(usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    spent = {name: float(getattr(usage, name)) for name in _SPENT}
    spent |= {f"seconds_{name}": round(seconds, 6) for name, seconds in usage.seconds.items()}
    for name, costs in usage.stages.items():
        spent[f"lm_calls_{name}"] = float(costs.lm_calls)
        if costs.cost_usd is not None:
            spent[f"cost_usd_{name}"] = costs.cost_usd
        spent[f"tokens_{name}"] = float(costs.input_tokens + costs.output_tokens)
    spent = {sys.intern(name): value for name, value in spent.items()}  # the names would take a third of a row's memory
    tokens = usage.input_tokens + usage.output_tokens
    return {"lm_calls": usage.lm_calls, "tokens": tokens, "cost_usd": usage.cost_usd, "spent": spent}


class Misses:
    """Tells, row by row, whether it is among the worst so far; of n rows in random order about 12 ln n are."""

    def __init__(self) -> None:
        self._heaps: dict[str, list[tuple[float, str]]] = {}

    def trimmed(self, row: Row) -> Row:
        """Return the row, without its notes unless it is among the worst of its task so far."""
        size, heap = row.miss, self._heaps.setdefault(row.task, [])
        if size is not None:
            heapq.heappush(heap, (size, row.id))
            if len(heap) <= WORST or heapq.heappop(heap) != (size, row.id):
                return row
        return row.model_copy(update={"notes": None})


@contextmanager
def _checkpoint(
    path: Path | None, header: Mapping[str, Any], *, resume: bool
) -> Iterator[tuple[dict[str, Row], Callable[[Row], None]]]:
    """Yield the rows that an earlier run finished, by id, and what writes those of this one; one run at a time.

    Without `resume` an older one is kept beside the new one as `<name>.previous`, unless another run still writes it.
    Raises InputError for a file that cannot be written, or that belongs to another run.
    """
    if path is None:
        yield {}, lambda row: None
        return
    with ResumeLog(path, header, mend=_MEND) as log:
        if not (resume or log.empty):
            log.check_kind()
            shutil.copyfile(path, path.with_name(f"{path.name}.previous"))
            os.truncate(path, 0)
        yield {row.id: row for row in log.scan(Row.model_validate_json)}, lambda row: log.append(row.line())


def _unfinished(
    samples: Iterable[Sample], saved: dict[str, Row], take: Callable[[int, Row], None]
) -> Iterator[tuple[int, Sample]]:
    """Yield the samples still to run with their places; finished ones are taken from the checkpoint."""
    ids: set[str] = set()
    for place, sample in enumerate(samples):
        if sample.id in ids:
            raise InputError(f"sample {sample.id!r} occurs twice; give every sample its own id")
        ids.add(sample.id)
        row = saved.pop(sample.id, None)
        if row is None:
            yield place, sample
        elif (row.task, row.truth) != (sample.task, truth_of(sample)):
            raise InputError(f"sample {sample.id!r} has another truth in the checkpoint; start afresh without resuming")
        else:
            take(place, row)
