"""Run a program over samples in parallel: every sample ends as a row, failed ones too."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import JsonValue

from data.manifest import Sample
from program.agent.query import DEFAULT_QUERY
from program.common.errors import InputError
from program.common.pool import completed
from program.common.progress import progress as progress_bar
from program.evaluation.answers import answer_fields, one_line
from program.evaluation.checkpoint import Checkpoint, open_checkpoint
from program.evaluation.figures import summarize
from program.evaluation.misses import Misses
from program.evaluation.progress import RunningFacts
from program.evaluation.record import Dataset, EvaluationRecord
from program.evaluation.rows import Cost, Row
from program.images.store import IMAGES
from program.lms.limits import BudgetSpent

__all__ = ("OtherAnswers", "run_sample", "run_samples")

logger = logging.getLogger(__name__)


OtherAnswers: TypeAlias = Callable[[Sample, Any], tuple[dict[str, float | str], Cost]]
"""Takes a sample and the program's Assessment (None where it failed), returns other answers by name; never raises."""


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
) -> EvaluationRecord:
    """Run `program` over `samples` with `workers` threads and return the record, rows in the samples' order.

    `program(image=, query=, reference=, options=, regions=)` returns an Assessment and must be safe to call from
    several threads; each call runs in a copy of the caller's context, so `dspy.context` holds inside. An exception
    or a "failed" Assessment becomes a failed row. `samples` are a manifest's, or anything with the same fields; of a
    stream about two per worker are held at once, with their images.
    `seed` fixes the intervals. `context` says whose result this is (hashes, model names); with `dataset` it is what
    a `checkpoint` must match to be resumed. Ctrl-C and a spent `Budget` finish and write the samples in flight, then
    raise.
    `others(sample, assessment)` answers the same sample in other ways, in the same thread (see baselines.py).

    Raises InputError for fewer than one worker, a repeated sample id, or a checkpoint of another run.
    """
    if workers < 1:
        raise InputError(f"workers: {workers} is too few; give 1 or more")
    dataset, context = dataset or Dataset(), dict(context or {})
    started = time.perf_counter()
    rows: dict[int, Row] = {}
    misses, facts = Misses(), RunningFacts()
    total = len(samples) if isinstance(samples, Sized) else None

    def finish(place: int, row: Row, *, fresh: bool) -> None:
        rows[place] = misses.trimmed(row)
        if fresh:
            saved.append(rows[place])
        advance(facts=facts.add(rows[place], fresh=fresh))

    with (
        open_checkpoint(checkpoint, dataset, context, resume=resume) as saved,
        progress_bar(label, total, shown=progress) as advance,
    ):
        unfinished = _unfinished(samples, saved, lambda place, row: finish(place, row, fresh=False))
        try:
            work = completed(lambda todo: run_sample(program, todo[1], others), unfinished, workers=workers)
            for (place, _), row in work:
                finish(place, row, fresh=True)
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
    failed = _failed_row(sample)
    try:
        assessment = program(
            image=str(sample.image),
            query=sample.query or DEFAULT_QUERY,
            reference=str(sample.reference) if sample.reference else None,
            options=sample.options,
            regions=sample.regions,
        )
        fields = answer_fields(program, sample.task, assessment)
        return Row.model_validate({**failed.model_dump(), **fields}), assessment
    except BudgetSpent:
        raise
    except Exception as error:  # the sample border: one bad sample must not end the run
        logger.debug("sample %s failed", sample.id, exc_info=True)
        return failed.model_copy(update={"error": one_line(f"{type(error).__name__}: {error}")}), None


def _failed_row(sample: Sample) -> Row:
    kind = (getattr(sample, "metadata", None) or {}).get("question_type")
    return Row(
        id=sample.id,
        group=_group(sample),
        task=sample.task,
        distortion=sample.distortion,
        question_type=str(kind)[:80] if kind is not None and sample.task == "mcq" else None,
        choices=len(sample.options) if sample.options else None,
        truth=_truth(sample),
        mos_std=_spread(sample),
        status="failed",
    )


def _spread(sample: Sample) -> float | None:
    std, scale = getattr(sample, "mos_std", None), getattr(sample, "mos_range", (1.0, 5.0))
    return round(4 * std / (scale[1] - scale[0]), 6) if std is not None and sample.task == "scoring" else None


def _truth(sample: Sample) -> float | str | None:
    if sample.task == "mcq":
        return sample.answer.strip().upper() if sample.answer else None
    return sample.quality if sample.task == "scoring" else None


def _group(sample: Sample) -> str:
    # Several samples of one photograph are not independent, whether or not the manifest names a group.
    return sample.group or "image-" + hashlib.sha256(str(sample.reference or sample.image).encode()).hexdigest()[:12]


def _unfinished(
    samples: Iterable[Sample], saved: Checkpoint, take: Callable[[int, Row], None]
) -> Iterator[tuple[int, Sample]]:
    """Yield the samples still to run with their places; finished ones are taken from the checkpoint."""
    ids: set[str] = set()
    for place, sample in enumerate(samples):
        if sample.id in ids:
            raise InputError(f"sample {sample.id!r} occurs twice; give every sample its own id")
        ids.add(sample.id)
        row = saved.pop(sample.id)
        if row is None:
            yield place, sample
        elif (row.task, row.truth) != (sample.task, _truth(sample)):
            raise InputError(f"sample {sample.id!r} has another truth in the checkpoint; start afresh without resuming")
        else:
            take(place, row)
