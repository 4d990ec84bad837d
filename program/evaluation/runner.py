"""Run a program over samples in parallel: every sample ends as a row, failed ones too."""

import contextvars
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from pydantic import JsonValue

from program.budget import BudgetSpent
from program.errors import InputError
from program.evaluation.answers import answer_fields, one_line
from program.evaluation.checkpoint import Checkpoint
from program.evaluation.misses import Misses
from program.evaluation.progress import watching
from program.evaluation.record import Dataset, EvaluationRecord, summarize
from program.evaluation.rows import Cost, Row, Rows
from program.images import IMAGES
from program.query import DEFAULT_QUERY

__all__ = ("Beside", "SampleLike", "evaluate", "run_sample")

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


Beside: TypeAlias = Callable[[SampleLike, Any], tuple[dict[str, float | str], Cost]]
"""Takes a sample and the program's Assessment (None where it failed), returns other answers by name; never raises."""


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
    beside: Beside | None = None,
) -> EvaluationRecord:
    """Run `program` over `samples` with `workers` threads and return the record, rows in the samples' order.

    `program(image=, query=, reference=, options=, regions=)` returns an Assessment and must be safe to call from
    several threads; each call runs in a copy of the caller's context, so `dspy.context` holds inside. An exception
    or a "failed" Assessment becomes a failed row. `samples` may be a stream: about two per worker are held at once,
    with their images.
    `seed` fixes the intervals. `context` says whose result this is (hashes, model names); with `dataset` it is what
    a `checkpoint` must match to be resumed. Ctrl-C and a spent `Budget` finish and write the samples in flight, then
    raise.
    `beside(sample, assessment)` answers the same sample in other ways, in the same thread (see baselines.py).

    Raises InputError for fewer than one worker, a repeated sample id, or a checkpoint of another run.
    """
    if workers < 1:
        raise InputError(f"workers: {workers} is too few; give 1 or more")
    dataset, context = dataset or Dataset(), dict(context or {})
    started = time.perf_counter()
    rows, misses = Rows(), Misses()
    total = len(samples) if isinstance(samples, Sized) else None

    def take(row: Row, place: int, *, fresh: bool) -> None:
        kept = misses.judged(row)
        if fresh:
            saved.append(kept)
        rows.put(kept, place)
        watch.add(kept, fresh=fresh)

    with (
        Checkpoint(checkpoint, dataset, context, resume=resume) as saved,
        watching(label, total, shown=progress) as watch,
    ):
        unfinished = _unfinished(samples, saved, lambda row, place: take(row, place, fresh=False))
        try:
            for place, row in _run_all(program, unfinished, workers, beside):
                take(row, place, fresh=True)
        except BudgetSpent as error:
            kept = f"; {len(rows)} samples are finished and kept, resume to go on" if checkpoint else ""
            raise BudgetSpent(f"{error}{kept}") from error
    wall = time.perf_counter() - started
    return summarize(rows, dataset=dataset, context=context, seed=seed, wall_seconds=wall)


def run_sample(program: Callable[..., Any], sample: SampleLike, beside: Beside | None = None) -> Row:
    """Ask the program about one sample and return its row; whatever goes wrong becomes a failed row."""
    # Of a stream of any length neither the images nor the crops made of them may pile up.
    with IMAGES.borrowing():
        started = time.perf_counter()
        row, assessment = _answered(program, sample)
        row = row.model_copy(update={"seconds": round(time.perf_counter() - started, 4)})
        if beside is not None and sample.task != "open":
            answers, cost = beside(sample, assessment)
            row = row.model_copy(update={"baselines": answers, "baseline_cost": cost})
    return row


def _answered(program: Callable[..., Any], sample: SampleLike) -> tuple[Row, Any]:
    known = _known(sample)
    try:
        assessment = program(
            image=str(sample.image),
            query=sample.query or DEFAULT_QUERY,
            reference=str(sample.reference) if sample.reference else None,
            options=sample.options,
            regions=sample.regions,
        )
        fields = answer_fields(program, sample.task, assessment)
        return Row.model_validate({**known.model_dump(), **fields}), assessment
    except BudgetSpent:
        raise
    except Exception as error:  # the sample border: one bad sample must not end the run
        logger.debug("sample %s failed", sample.id, exc_info=True)
        return known.model_copy(update={"error": one_line(f"{type(error).__name__}: {error}")}), None


def _known(sample: SampleLike) -> Row:
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


def _spread(sample: SampleLike) -> float | None:
    std, scale = getattr(sample, "mos_std", None), getattr(sample, "mos_range", (1.0, 5.0))
    return round(4 * std / (scale[1] - scale[0]), 6) if std is not None and sample.task == "scoring" else None


def _truth(sample: SampleLike) -> float | str | None:
    if sample.task == "mcq":
        return sample.answer.strip().upper() if sample.answer else None
    return sample.quality if sample.task == "scoring" else None


def _group(sample: SampleLike) -> str:
    # Several questions about one image are not independent, whether or not the manifest names a group.
    return sample.group or "image-" + hashlib.sha256(str(sample.image).encode()).hexdigest()[:12]


def _unfinished(
    samples: Iterable[SampleLike], saved: Checkpoint, take: Callable[[Row, int], None]
) -> Iterator[tuple[int, SampleLike]]:
    """Yield the samples still to run with their places; finished ones are taken from the checkpoint."""
    seen: set[bytes] = set()
    for place, sample in enumerate(samples):
        digest = hashlib.blake2b(sample.id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        if digest in seen:
            raise InputError(f"sample {sample.id!r} occurs twice; give every sample its own id")
        seen.add(digest)
        row = saved.pop(sample.id)
        if row is None:
            yield place, sample
        elif (row.task, row.truth) != (sample.task, _truth(sample)):
            raise InputError(f"sample {sample.id!r} has another truth in the checkpoint; start afresh without resuming")
        else:
            take(row, place)


def _run_all(
    program: Callable[..., Any], samples: Iterable[tuple[int, SampleLike]], workers: int, beside: Beside | None
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
            pending[pool.submit(contextvars.copy_context().run, run_sample, program, sample, beside)] = index
            if len(pending) >= 2 * workers:
                yield from finished()
        while pending:
            yield from finished()
    except (KeyboardInterrupt, BudgetSpent):
        pool.shutdown(wait=False, cancel_futures=True)
        running = {future: index for future, index in pending.items() if not future.cancelled()}
        logger.warning("stopped: finishing %d samples in flight", len(running))
        for future, index in running.items():
            # A sample that found the budget spent is not a failed one: it is left for the resumed run.
            if not isinstance(future.exception(), BudgetSpent):
                yield index, future.result()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
