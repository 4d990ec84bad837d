"""Judging many images: in threads, with progress; an unreadable image becomes a row with its error, never lost."""

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from program.agent.loop import DEFAULT_QUERY, AgenticIQA
from program.batch.inputs import Item
from program.batch.rows import BatchRow, row_of, write_rows
from program.common.errors import ImageError, InputError
from program.common.linelog import ResumeLog
from program.common.pool import completed
from program.common.progress import progress as progress_bar
from program.images.store import IMAGES
from program.lms.limits import BudgetSpent

__all__ = ("Question", "is_begun", "judge", "judge_into")

logger = logging.getLogger(__name__)

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
    """Judge the items and write the table; a run that was killed goes on with what the log beside the table holds.

    The log has a row and its image's stamp on each line. Rows with an error are tried again. Raises InputError where
    the table cannot be written.
    """
    # Here, as it brings scikit-image with it: one image alone needs neither.
    from program.evaluation.evaluating import context_of

    context = {**context_of(program), "query": question.query, "options": list(question.options or ())}
    context.pop("settings", None)
    with ResumeLog(_log_of(out), {"journal": "batch", "context": context}, mend="give another --out") as log:
        done = {row.id: (stamp, row) for stamp, row in log.read(_entry)}

        def keep(item: Item, row: BatchRow) -> None:
            log.append(json.dumps({"stamp": _stamp(item), "row": row.model_dump()}, ensure_ascii=False))

        rows = judge(program, items, question, workers=workers, progress=progress, done=done, keep=keep)
        write_rows(out, rows)
        log.remove()
    return rows


def is_begun(out: Path) -> bool:
    """Tell whether a run into this output was stopped before its end, so that the same command goes on."""
    return _log_of(out).exists()


def _log_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


def _entry(line: bytes) -> tuple[list[int], BatchRow]:
    entry = json.loads(line)
    return list(entry["stamp"]), BatchRow.model_validate(entry["row"])


def judge(
    program: AgenticIQA,
    items: Sequence[Item],
    question: Question,
    *,
    workers: int = 2,
    progress: bool = True,
    done: Mapping[str, tuple[list[int], BatchRow]] | None = None,
    keep: Callable[[Item, BatchRow], None] = lambda *_: None,
) -> list[BatchRow]:
    """Return a row for every item, in their order; `keep` gets every new row.

    `done` is what an earlier run finished, by item id: the image's stamp and the row.
    """
    done = done or {}
    finished = [item for item in items if item.id in done and done[item.id][0] == _stamp(item)]
    rows = {item.id: done[item.id][1] for item in finished if done[item.id][1].status != "error"}
    open_items = [item for item in items if item.id not in rows]
    if rows and progress:
        sys.stderr.write(f"going on: {len(rows)} of {len(items)} were judged before\n")
    faults = 0

    def work(item: Item) -> BatchRow:
        nonlocal faults
        try:
            row = _row(program, item, question)
        except dspy.LMError as error:
            faults += 1
            if faults >= _MODEL_FAULTS:
                raise
            return _failed(item, f"language model: {error}")
        faults = faults if row.status == "error" else 0
        return row

    with progress_bar("judging", len(items), shown=progress, done=len(rows)) as advance:
        for item, row in completed(work, open_items, workers=workers):
            rows[item.id] = row
            keep(item, row)
            advance()
    return [rows[item.id] for item in items]


def _row(program: AgenticIQA, item: Item, question: Question) -> BatchRow:
    if item.error or item.image is None:
        return _failed(item, item.error or "names no image")
    limit = program.resources.settings.images.max_pixels
    request: Mapping[str, Any] = {
        "query": item.query or question.query or DEFAULT_QUERY,
        "options": item.options or (question.options if item.query is None else None),
        "regions": item.regions,
    }
    # Neither images nor prompts may pile up over a folder of any size.
    with IMAGES.borrowing(), dspy.context(disable_history=True, trace=None):
        try:
            image = IMAGES.add(item.image, max_pixels=limit)
            reference = IMAGES.add(item.reference, max_pixels=limit) if item.reference else None
            return row_of(item.id, str(item.image), program(image=image, reference=reference, **request))
        except (BudgetSpent, dspy.LMError):
            raise
        except InputError as error:
            if not isinstance(error, ImageError):
                logger.warning("%s: %s", item.id, error)
            return _failed(item, str(error))
        except Exception as error:  # the sample border: one bad image must not end the folder
            logger.info("%s failed", item.id, exc_info=True)
            return _failed(item, f"image {item.id!r}: could not be judged ({type(error).__name__}: {error})")


def _failed(item: Item, error: str) -> BatchRow:
    image = None if item.image is None else str(item.image)
    return BatchRow(id=item.id, status="error", error=" ".join(error.split())[:500], image=image, query=item.query)


def _stamp(item: Item) -> list[int]:
    """Return what changes when an image or its reference does: sizes and times in ns; empty where there is none."""
    stamp: list[int] = []
    for path in (item.image, item.reference):
        try:
            facts = path.stat() if path is not None else None
        except OSError:
            facts = None
        stamp += [facts.st_size, facts.st_mtime_ns] if facts else [0, 0]
    return stamp
