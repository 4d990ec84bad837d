"""Judging many images, one after the other: an unreadable image becomes a row with its error, never lost."""

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import dspy
from dspy.utils.exceptions import is_retryable_lm_error

from program.agent.loop import DEFAULT_QUERY, AgenticIQA
from program.batch.inputs import Item, Items
from program.batch.journal import Journal
from program.batch.rows import BatchRow, row_of
from program.batch.tables import PART_ROWS, format_of, read_parts, write_part, write_rows
from program.common.errors import EndpointError, ImageError, InputError
from program.common.places import Place, exists, joined, opened, placed, remove, writing
from program.common.pool import completed
from program.common.progress import progress as progress_bar
from program.images.store import IMAGES
from program.lms.limits import BudgetSpent

__all__ = ("Engine", "Judge", "Question", "failed_row", "is_begun", "judge", "judge_into")

logger = logging.getLogger(__name__)

_MODEL_FAULTS = 3
"""So many answers of a model service that fail in a row end the run, and two where no repeat mends it, as of a refused
key: the next thousand would fail too."""
_HEADER = "_run.json"
"""Lies in a folder elsewhere while its parts are written: with whose work they are."""

Placed: TypeAlias = tuple[int, Item]
Engine: TypeAlias = Callable[[Iterable[Placed]], Iterator[tuple[Placed, BatchRow]]]
"""Judges items and yields each with its row as they come."""


@dataclass(frozen=True)
class Question:
    """What is asked of every item that brings no question of its own."""

    query: str | None = None
    options: Sequence[str] | None = None


def judge(
    program: AgenticIQA,
    items: Items | Sequence[Item],
    question: Question,
    *,
    workers: int = 2,
    progress: bool = True,
    engine: Engine | None = None,
) -> Iterator[BatchRow]:
    """Yield a row for every item as they come; of the items and rows no more than a few are held."""
    engine = engine or _threads(program, question, workers)
    with progress_bar("judging", _count(items) if progress else None, shown=progress) as advance:
        for _, row in engine(enumerate(items)):
            advance()
            yield row


def judge_into(
    program: AgenticIQA,
    items: Items | Sequence[Item],
    question: Question,
    out: Place | str,
    *,
    workers: int = 2,
    progress: bool = True,
    engine: Engine | None = None,
    each: Callable[[BatchRow], None] = lambda _: None,
) -> None:
    """Judge the items and write the table, in their order; a run that was killed goes on with what it wrote.

    A log beside the table (of one elsewhere: in the cache folder) has a row and its image's stamp on each line; `each`
    gets every row, those of an earlier run too. Rows with an error are tried again. Raises InputError where the table
    cannot be written.
    """
    # Here, as it brings scikit-image with it: one image alone needs neither.
    from program.evaluation.evaluating import context_of

    out = placed(out)
    engine = engine or _threads(program, question, workers)
    context = {**context_of(program), "query": question.query, "options": list(question.options or ())}
    context.pop("settings", None)
    header = {"journal": "batch", "context": context}
    log = _log_of(out, program.resources.settings.cache_dir)
    with Journal(log, header, mend="give another --out") as journal:
        parts = _Parts(out, journal, header)
        before = journal.resume()
        total = _count(items) if progress or before else None
        if before and progress:
            sys.stderr.write(f"going on: {before} of {total} were judged before\n")
        with progress_bar("judging", total, shown=progress) as advance:

            def unfinished() -> Iterator[Placed]:
                for place, item in enumerate(items):
                    row = journal.find(item, place)
                    if row is None:
                        yield place, item
                    else:
                        advance()
                        each(row)

            for (place, item), row in engine(unfinished()):
                journal.keep(item, place, row)
                parts.write()
                advance()
                each(row)
        parts.finish()
        journal.remove()


def is_begun(out: Place, cache_dir: Path) -> bool:
    """Tell whether a run into this output was stopped before its end, so that the same command goes on."""
    return _log_of(out, cache_dir).exists() or (not isinstance(out, Path) and exists(joined(out, _HEADER)))


class _Parts:
    """The table of a journal's rows. A folder's parts are written as soon as all their rows are there."""

    def __init__(self, out: Place, journal: Journal, header: Mapping[str, Any]) -> None:
        self._out, self._journal, self._number = out, journal, 0
        self._in_parts = format_of(out) == ".parquet"
        self._header = None if isinstance(out, Path) or not self._in_parts else joined(out, _HEADER)
        if self._header is not None and journal.empty:
            self._begin(self._header, json.dumps(header, sort_keys=True).encode())

    def write(self) -> None:
        """Write the parts that are whole by now."""
        while self._in_parts and self._journal.first_open >= (self._number + 1) * PART_ROWS:
            write_part(self._out, self._number, self._journal.rows(self._number * PART_ROWS, PART_ROWS))
            self._number += 1

    def finish(self) -> None:
        """Write what is left: all rows of a file, the last part of a folder."""
        write_rows(self._out, self._journal.rows(self._number * PART_ROWS), self._number)
        if self._header is not None:
            remove(self._header)

    def _begin(self, header: Place, text: bytes) -> None:
        """Say whose work the parts are, or go on with those that the same work wrote from another machine."""
        if not exists(header):
            with writing(header) as file:
                file.write(text)
            return
        with opened(header) as file:
            if file.read() != text:
                raise InputError(f"table {str(self._out)!r}: belongs to another run; give another --out")
        self._journal.resume()
        for row in read_parts(self._out):
            self._journal.adopt(row)


def _threads(program: AgenticIQA, question: Question, workers: int) -> Engine:
    work = Judge(program, question)
    return lambda items: completed(lambda pair: work(pair[1]), items, workers=workers)


def _count(items: Items | Sequence[Item]) -> int | None:
    return items.count() if isinstance(items, Items) else len(items)


def _log_of(out: Place, cache_dir: Path) -> Path:
    if isinstance(out, Path):
        return out.with_name(f"{out.name}.partial")
    return cache_dir / "batches" / f"{hashlib.sha256(out.encode()).hexdigest()[:16]}.partial"


class Judge:
    """Judges one item after the other, in any number of threads."""

    def __init__(self, program: AgenticIQA, question: Question) -> None:
        self._program, self._question, self._faults = program, question, 0

    def __call__(self, item: Item) -> BatchRow:
        """Return an item's row. Raises BudgetSpent, and LMError once a model service has failed several times."""
        try:
            row = self._row(item)
        except dspy.LMError as error:
            self._faults += 1
            if self._faults >= _MODEL_FAULTS or (self._faults > 1 and not is_retryable_lm_error(error)):
                raise
            return failed_row(item, f"language model: {error}")
        self._faults = self._faults if row.status == "error" else 0
        return row

    def _row(self, item: Item) -> BatchRow:
        if item.error or item.image is None:
            return failed_row(item, item.error or "names no image")
        limit = self._program.resources.settings.images.max_pixels
        request: Mapping[str, Any] = {
            "query": item.query or self._question.query or DEFAULT_QUERY,
            "options": item.options or (self._question.options if item.query is None else None),
            "regions": item.regions,
        }
        # Neither images nor prompts may pile up over a folder of any size.
        with IMAGES.borrowing(), dspy.context(disable_history=True, trace=None):
            try:
                image = IMAGES.add(item.image, max_pixels=limit)
                reference = IMAGES.add(item.reference, max_pixels=limit) if item.reference else None
                result = self._program(image=image, reference=reference, **request)
                return row_of(item.id, _shown(item), result, group=item.group, split=item.split)
            except (BudgetSpent, dspy.LMError):
                raise
            except InputError as error:
                if isinstance(error, EndpointError) and error.is_repeated:
                    raise
                if not isinstance(error, ImageError):
                    logger.warning("%s: %s", item.id, error)
                return failed_row(item, str(error))
            except Exception as error:  # the sample border: one bad image must not end the folder
                logger.info("%s failed", item.id, exc_info=True)
                return failed_row(item, f"image {item.id!r}: could not be judged ({type(error).__name__}: {error})")


def _shown(item: Item) -> str | None:
    image = None if item.image is None else str(item.image)
    return None if image is None or image.startswith("data:") else image


def failed_row(item: Item, error: str) -> BatchRow:
    """Return the row of an item that could not be judged."""
    text = " ".join(error.split())[:500]
    return BatchRow(
        id=item.id, status="error", error=text, image=_shown(item), query=item.query, group=item.group, split=item.split
    )
