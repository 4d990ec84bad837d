"""Judging many images: a row for each, and the table of them, which a killed run goes on with."""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from program.agent.loop import AgenticIQA
from program.batch.inputs import Items
from program.batch.tables import PART_ROWS, format_of, read_parts, write_part, write_rows
from program.common.errors import InputError
from program.common.places import Place, exists, joined, opened, placed, remove, writing
from program.running.journal import Journal
from program.running.request import Request
from program.running.row import Row
from program.running.runner import Asking, Engine, run

__all__ = ("Judging", "is_begun", "judge")

_HEADER = "_run.json"
"""Lies in a folder elsewhere while its parts are written: with whose work they are."""


class Judging(Asking[Row]):
    """From a request to its row; `query` and `options` are asked of each that brings no question of its own."""

    def __init__(self, program: AgenticIQA, query: str | None = None, options: Sequence[str] | None = None) -> None:
        super().__init__(program)
        self._query, self._options = query, None if options is None else list(options)

    @classmethod
    def made(cls, make: Callable[[], AgenticIQA], *question: Any) -> Self:
        """Return one with a program of its own."""
        return cls(make(), *question)

    def row(self, request: Request) -> Row:
        """Ask the program."""
        asked = request.arguments()
        if request.query is None:
            asked |= {"options": request.options or self._options}
            asked |= {"query": self._query} if self._query else {}
        return Row.of(request, self.program(**asked))

    def failed(self, request: Request, error: str) -> Row:
        """Return the row of an image that could not be judged."""
        return Row.failed(request, error)


def judge(
    program: AgenticIQA,
    items: Items | Sequence[Request],
    take: Callable[[Row], None] = lambda _: None,
    *,
    out: Place | str | None = None,
    query: str | None = None,
    options: Sequence[str] | None = None,
    workers: int = 2,
    progress: bool = True,
    engine: Engine | None = None,
) -> None:
    """Judge the items; `take` gets every row as it comes. With `out`, write their table, in the items' order.

    A run that was killed goes on with what it wrote: a log beside the table (of one elsewhere: in the cache folder) has
    a row and its image's stamp on each line; `take` gets those of an earlier run too. Rows with an error are tried
    again. Raises InputError where the table cannot be written.
    """
    go = partial(run, Judging(program, query, options), items, workers=workers, engine=engine, progress=progress)
    if out is None:
        go(lambda _, row: take(row), total=_count(items) if progress else None)
        return
    # Here, as it brings scikit-image with it: one image alone needs neither.
    from program.evaluation.evaluating import context_of

    out = placed(out)
    context = {**context_of(program), "query": query, "options": list(options or ())}
    context.pop("settings", None)
    header = {"journal": "batch", "context": context}
    with Journal(_log_of(out, program.resources.settings.cache_dir), header, Row, mend="give another --out") as journal:
        parts = _Parts(out, journal, header)
        before = journal.resume()
        total = _count(items) if progress or before else None
        if before and progress:
            sys.stderr.write(f"resuming: {before} of {total} done\n")

        def keep(_: int, row: Row) -> None:
            parts.write()
            take(row)

        go(keep, journal=journal, total=total)
        parts.finish()
        journal.remove()


def is_begun(out: Place, cache_dir: Path) -> bool:
    """Tell whether a run into this output was stopped before its end, so that the same command goes on."""
    return _log_of(out, cache_dir).exists() or (not isinstance(out, Path) and exists(joined(out, _HEADER)))


class _Parts:
    """The table of a journal's rows. A folder's parts are written as soon as all their rows are there."""

    def __init__(self, out: Place, journal: Journal[Row], header: Mapping[str, Any]) -> None:
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


def _count(items: Items | Sequence[Request]) -> int | None:
    return items.count() if isinstance(items, Items) else len(items)


def _log_of(out: Place, cache_dir: Path) -> Path:
    if isinstance(out, Path):
        return out.with_name(f"{out.name}.partial")
    return cache_dir / "batches" / f"{hashlib.sha256(out.encode()).hexdigest()[:16]}.partial"
