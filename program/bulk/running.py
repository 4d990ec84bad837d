"""Judging many images: in threads, with progress; an unreadable image becomes a row with its error, never lost."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from program.agent import DEFAULT_QUERY, AgenticIQA
from program.budget import BudgetSpent
from program.bulk.inputs import Item
from program.bulk.journal import Journal
from program.bulk.rows import BatchRow, row_of, write_rows
from program.errors import ImageError, InputError
from program.images import IMAGES

__all__ = ("Question", "judge", "judge_into")

logger = logging.getLogger(__name__)

_LINE_EVERY_S = 15.0
_MODEL_FAULTS = 3
"""So many answers of a model service that fail in a row end the run: the next thousand would fail too."""


@dataclass(frozen=True)
class Question:
    """What is asked of every item that brings no question of its own."""

    query: str | None = None
    options: Sequence[str] | None = None


def judge_into(
    program: AgenticIQA,
    items: Sequence[Item],
    question: Question,
    out: Path,
    *,
    workers: int = 2,
    progress: bool = True,
) -> list[BatchRow]:
    """Judge the items and write the table; a run that was killed goes on with what its journal holds.

    Rows with an error are tried again. Raises InputError where the table cannot be written.
    """
    # Here, as it brings scikit-image with it: one image alone needs neither.
    from program.evaluation.evaluating import context_of

    context = {**context_of(program), "query": question.query, "options": list(question.options or ())}
    context.pop("settings", None)
    with Journal(out, context) as journal:
        rows = judge(program, items, question, workers=workers, progress=progress, journal=journal)
        write_rows(out, rows)
        journal.finish()
    return rows


def judge(
    program: AgenticIQA,
    items: Sequence[Item],
    question: Question,
    *,
    workers: int = 2,
    progress: bool = True,
    journal: Journal | None = None,
) -> list[BatchRow]:
    """Return a row for every item, in their order."""
    rows: dict[str, BatchRow] = {}
    open_items = []
    for item in items:
        known = journal.done.get(item.id) if journal else None
        if known is not None and known[1].status != "error" and known[0] == _stamp(item):
            rows[item.id] = known[1]
        else:
            open_items.append(item)
    with _shown(len(items), len(rows), progress) as advance, ThreadPoolExecutor(workers) as pool:
        for item, row in _judged(pool, program, open_items, question, workers):
            rows[item.id] = row
            if journal:
                journal.append(_stamp(item), row)
            advance()
    return [rows[item.id] for item in items]


def _judged(
    pool: ThreadPoolExecutor, program: AgenticIQA, items: Sequence[Item], question: Question, workers: int
) -> Iterator[tuple[Item, BatchRow]]:
    waiting: dict[Future[BatchRow], Item] = {}
    left, faults = iter(items), 0
    try:
        while True:
            while len(waiting) < 2 * workers and (item := next(left, None)) is not None:
                # A thread of its own context knows neither the budget nor the LM that the caller has set.
                waiting[pool.submit(copy_context().run, _row, program, item, question)] = item
            if not waiting:
                return
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                item = waiting.pop(future)
                try:
                    row = future.result()
                    faults = faults if row.status == "error" else 0
                except dspy.LMError as error:
                    faults += 1
                    if faults >= _MODEL_FAULTS:
                        raise
                    row = _failed(item, f"language model: {error}")
                yield item, row
    except (KeyboardInterrupt, BudgetSpent, dspy.LMError):
        yield from _in_flight(waiting)
        raise
    finally:
        for future in waiting:
            future.cancel()


def _in_flight(waiting: Mapping[Future[BatchRow], Item]) -> Iterator[tuple[Item, BatchRow]]:
    """Wait for what is being judged, as its answers may be paid for; what has not begun is dropped."""
    for future in [future for future in waiting if not future.cancel()]:
        if future.exception() is None:
            yield waiting[future], future.result()


def _row(program: AgenticIQA, item: Item, question: Question) -> BatchRow:
    if item.error or item.image is None:
        return _failed(item, item.error or "names no image")
    limit = program.resources.settings.images.max_pixels
    asked: Mapping[str, Any] = {
        "query": item.query or question.query or DEFAULT_QUERY,
        "options": item.options or (question.options if item.query is None else None),
        "regions": item.regions,
    }
    # Neither images nor prompts may pile up over a folder of any size.
    with IMAGES.borrowing(), dspy.context(disable_history=True, trace=None):
        try:
            image = IMAGES.add(item.image, max_pixels=limit)
            reference = IMAGES.add(item.reference, max_pixels=limit) if item.reference else None
            return row_of(item.id, str(item.image), program(image=image, reference=reference, **asked))
        except BudgetSpent:
            raise
        except InputError as error:
            if not isinstance(error, ImageError):
                logger.warning("%s: %s", item.id, error)
            return _failed(item, str(error))


def _failed(item: Item, error: str) -> BatchRow:
    shown = None if item.image is None else str(item.image)
    text = " ".join(error.split())[:500]
    return BatchRow(id=item.id, status="error", error=text, image=shown, query=item.query)


def _stamp(item: Item) -> list[int]:
    """Return what changes when an image or its reference does: sizes and times in ns; empty where there is none."""
    found: list[int] = []
    for path in (item.image, item.reference):
        try:
            facts = path.stat() if path is not None else None
        except OSError:
            facts = None
        found += [facts.st_size, facts.st_mtime_ns] if facts else [0, 0]
    return found


@contextmanager
def _shown(total: int, done: int, progress: bool) -> Iterator[Any]:
    """Yield what advances the progress on stderr: a bar on a terminal, a line now and then elsewhere."""
    console = Console(stderr=True)
    if done and progress:
        console.print(f"going on: {done} of {total} were judged before", highlight=False)
    if not progress or not console.is_terminal:
        last = time.monotonic()

        def line() -> None:
            nonlocal done, last
            done += 1
            if progress and time.monotonic() - last > _LINE_EVERY_S:
                last = time.monotonic()
                console.print(f"judged {done} of {total}", highlight=False)

        yield line
        return
    columns = (TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("judging", total=total, completed=done)
        yield lambda: bar.advance(task)
