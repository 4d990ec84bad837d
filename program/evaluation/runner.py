"""Run a program over samples in parallel: every sample ends as a row, failed ones too."""

import contextvars
import hashlib
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import JsonValue

from program.errors import InputError
from program.evaluation.checkpoint import Checkpoint
from program.evaluation.progress import watching
from program.evaluation.record import Dataset, EvaluationRecord, Row, summarize

__all__ = ("SCORING_QUERY", "SampleLike", "evaluate", "run_sample")

SCORING_QUERY = "Rate the perceptual quality of this image."
"""Asked where a sample has a score but no question of its own."""

_MAX_TEXT = 300

logger = logging.getLogger(__name__)


class SampleLike(Protocol):
    """What the runner reads of a sample; a manifest's samples have it all."""

    @property
    def id(self) -> str:
        """Unique name."""

    @property
    def image(self) -> Path:
        """Where the image lies."""

    @property
    def reference(self) -> Path | None:
        """The undistorted image, if there is one."""

    @property
    def query(self) -> str | None:
        """The question; None for a plain scoring one."""

    @property
    def options(self) -> dict[str, str] | None:
        """Answers to choose from, by letter."""

    @property
    def answer(self) -> str | None:
        """The true letter."""

    @property
    def quality(self) -> float | None:
        """Human score on 1..5, higher is better."""

    @property
    def distortion(self) -> str | None:
        """Name of the distortion, for grouping in reports."""

    @property
    def group(self) -> str | None:
        """Content; None where every image has its own."""

    @property
    def regions(self) -> Mapping[str, Any] | None:
        """Boxes by region name."""

    @property
    def task(self) -> Literal["scoring", "mcq", "open"]:
        """What kind of answer is wanted."""


def evaluate(
    program: Callable[..., Any],
    samples: Iterable[SampleLike],
    *,
    workers: int = 2,
    progress: bool = True,
    checkpoint: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    dataset: Dataset | None = None,
    context: Mapping[str, JsonValue] | None = None,
    label: str = "evaluating",
) -> EvaluationRecord:
    """Run `program` over `samples` with `workers` threads and return the record, rows in the samples' order.

    `program(image=, query=, reference=, options=, regions=)` returns an Assessment and must be safe to call from
    several threads; each call runs in a copy of the caller's context, so `dspy.context` holds inside. An exception
    or a "failed" Assessment becomes a failed row. `samples` may be a stream: about two per worker are held at once.
    `seed` fixes the intervals. `context` says whose result this is (hashes, model names); with `dataset` it is what
    a `checkpoint` must match to be resumed. Ctrl-C finishes and writes the samples in flight, then raises.

    Raises InputError for fewer than one worker, a repeated sample id, or a checkpoint of another run.
    """
    if workers < 1:
        raise InputError(f"workers: {workers} is too few; give 1 or more")
    dataset, context = dataset or Dataset(), dict(context or {})
    started = time.perf_counter()
    rows: dict[int, Row] = {}
    total = len(samples) if isinstance(samples, Sized) else None
    with (
        Checkpoint(checkpoint, dataset, context, resume=resume) as saved,
        watching(label, total, shown=progress) as watch,
    ):
        fresh = _unfinished(samples, saved.done, rows, lambda row: watch.add(row, fresh=False))
        for index, row in _run_all(program, fresh, workers):
            saved.append(row)
            rows[index] = row
            watch.add(row, fresh=True)
    ordered = [rows[index] for index in sorted(rows)]
    wall = time.perf_counter() - started
    return summarize(ordered, dataset=dataset, context=context, seed=seed, wall_seconds=wall)


def run_sample(program: Callable[..., Any], sample: SampleLike) -> Row:
    """Ask the program about one sample and return its row; whatever goes wrong becomes a failed row."""
    started = time.perf_counter()
    known = Row(
        id=sample.id,
        group=_group(sample),
        task=sample.task,
        distortion=sample.distortion,
        truth=_truth(sample),
        status="failed",
    )
    try:
        assessment = program(
            image=str(sample.image),
            query=sample.query or SCORING_QUERY,
            reference=str(sample.reference) if sample.reference else None,
            options=sample.options,
            regions=sample.regions,
        )
        row = Row.model_validate({**known.model_dump(), **_answer(sample.task, assessment)})
    except Exception as error:  # the sample border: one bad sample must not end the run
        logger.debug("sample %s failed", sample.id, exc_info=True)
        row = known.model_copy(update={"error": _one_line(f"{type(error).__name__}: {error}")})
    return row.model_copy(update={"seconds": round(time.perf_counter() - started, 4)})


def _truth(sample: SampleLike) -> float | str | None:
    if sample.task == "mcq":
        return sample.answer.strip().upper() if sample.answer else None
    return sample.quality if sample.task == "scoring" else None


def _answer(task: str, assessment: Any) -> dict[str, Any]:
    usage = _usage(getattr(assessment, "usage", None))
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
    return {
        "predicted": answer.upper() if task == "mcq" else answer,
        "level_probabilities": getattr(assessment, "level_probabilities", None),
        "status": status,
        "rung": getattr(assessment, "rung", None),
        "error": _one_line(error) if error else None,
        **usage,
    }


def _usage(usage: Any) -> dict[str, Any]:
    if usage is None:
        return {}
    known = usage if isinstance(usage, Mapping) else usage.model_dump()
    tokens = [known[key] for key in ("input_tokens", "output_tokens") if known.get(key) is not None]
    total = sum(tokens) if tokens else known.get("tokens")
    return {"lm_calls": known.get("lm_calls"), "tokens": total, "cost_usd": known.get("cost_usd")}


def _group(sample: SampleLike) -> str:
    # Several questions about one image are not independent, whether or not the manifest names a group.
    return sample.group or "image-" + hashlib.sha256(str(sample.image).encode()).hexdigest()[:12]


def _one_line(text: str) -> str:
    shortened = re.sub(r"[A-Za-z0-9+/=_-]{120,}", "...", " ".join(str(text).split()))  # no base64 in records
    return shortened if len(shortened) <= _MAX_TEXT else shortened[: _MAX_TEXT - 3] + "..."


def _unfinished(
    samples: Iterable[SampleLike], done: Mapping[str, Row], rows: dict[int, Row], note: Callable[[Row], None]
) -> Iterator[tuple[int, SampleLike]]:
    """Yield the samples still to run with their places; finished ones go straight into `rows`."""
    seen: set[str] = set()
    for index, sample in enumerate(samples):
        if sample.id in seen:
            raise InputError(f"sample {sample.id!r} occurs twice; give every sample its own id")
        seen.add(sample.id)
        row = done.get(sample.id)
        if row is None:
            yield index, sample
        else:
            if (row.task, row.truth) != (sample.task, _truth(sample)):
                raise InputError(
                    f"sample {sample.id!r} has another truth in the checkpoint; start afresh without resuming"
                )
            rows[index] = row
            note(row)


def _run_all(
    program: Callable[..., Any], samples: Iterable[tuple[int, SampleLike]], workers: int
) -> Iterator[tuple[int, Row]]:
    """Yield (place, row) as samples finish, holding at most two per worker."""
    pending: dict[Future[Row], int] = {}

    def finished() -> Iterator[tuple[int, Row]]:
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            yield pending.pop(future), future.result()

    pool = ThreadPoolExecutor(workers, thread_name_prefix="evaluate")
    try:
        for index, sample in samples:
            # Threads start with an empty context; the copy carries dspy.context into the call.
            pending[pool.submit(contextvars.copy_context().run, run_sample, program, sample)] = index
            if len(pending) >= 2 * workers:
                yield from finished()
        while pending:
            yield from finished()
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        running = {future: index for future, index in pending.items() if not future.cancelled()}
        logger.warning("interrupted: finishing %d samples in flight, then stopping", len(running))
        for future, index in running.items():
            yield index, future.result()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
