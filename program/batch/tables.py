"""The tables that rows are written to: CSV and JSONL in one file, Parquet as a folder of parts; local or by URI."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice, takewhile
from pathlib import Path
from typing import IO

from program.common.errors import InputError, one_line
from program.common.places import Place, exists, joined, opened, placed, remove, writing
from program.running.row import Row, safe_cell

__all__ = ("FORMATS", "PART_ROWS", "format_of", "read_parts", "write_part", "write_rows")

FORMATS = (".csv", ".jsonl", ".parquet")
PART_ROWS = 10_000
"""Of one Parquet file in the folder; each is written as soon as its rows are judged."""
_ROWS_AT_ONCE = 1000
_NAMES = {"id", "image", "reference", "group", "split"}
"""Columns that rows are found and joined by: they stand as they are, whatever a spreadsheet makes of them."""


def format_of(out: Place) -> str:
    """Return how a table's name ends. Raises InputError for an unknown kind."""
    for suffix in FORMATS:
        if str(out).rstrip("/").endswith(suffix):
            return suffix
    raise InputError(f"file {str(out)!r}: unknown kind; end its name in {', '.join(FORMATS)}")


def write_rows(out: Place | str, rows: Iterable[Row], first: int = 0) -> None:
    """Write the table: a file whole or not at all, a folder of Parquet files (.parquet) part by part from one on.

    Raises InputError for an unknown suffix or where it cannot be written.
    """
    out, suffix = placed(out), format_of(out)
    if suffix == ".parquet":
        return _write_parts(out, first, rows)
    try:
        with writing(out) as file:
            _write(file, suffix, rows)
    except OSError as error:
        raise _unwritable(out, error) from error


def _write_parts(out: Place, first: int, rows: Iterable[Row]) -> None:
    """Write the rows of a folder from one part on, and remove the parts that a longer table left behind them."""
    left = iter(rows)
    for number in count(first):
        row = next(left, None)
        if number and row is None:
            break
        write_part(out, number, () if row is None else chain([row], islice(left, PART_ROWS - 1)))
    longer = list(takewhile(exists, (joined(out, _name(left_over)) for left_over in count(number))))
    for part in reversed(longer):  # a kill leaves no gap, behind which others would stay
        remove(part)


def write_part(out: Place, number: int, rows: Iterable[Row]) -> None:
    """Write one Parquet file of a folder, in place of an earlier one; `number` counts from 0."""
    import pyarrow
    import pyarrow.parquet

    kinds = {str: pyarrow.string(), float: pyarrow.float64(), int: pyarrow.int64()}
    schema = pyarrow.schema(
        [
            (name, next(kind for python, kind in kinds.items() if python.__name__ in str(field.annotation)))
            for name, field in Row.model_fields.items()
        ]
    )
    left = iter(rows)
    try:
        if isinstance(out, Path):
            if out.is_file():  # a table of an earlier version
                out.unlink()
            out.mkdir(parents=True, exist_ok=True)
        with writing(joined(out, _name(number))) as file, pyarrow.parquet.ParquetWriter(file, schema) as table:
            while some := [row.model_dump() for row in islice(left, _ROWS_AT_ONCE)]:
                table.write_table(pyarrow.Table.from_pylist(some, schema))
    except OSError as error:
        raise _unwritable(out, error) from error


def read_parts(out: Place) -> Iterator[Row]:
    """Yield the rows of a folder of parts, in order."""
    import pyarrow.parquet

    for number in count():
        part = joined(out, _name(number))
        if not exists(part):
            return
        with opened(part) as file:
            for batch in pyarrow.parquet.ParquetFile(file).iter_batches(1024):
                yield from map(Row.model_validate, batch.to_pylist())


def _name(number: int) -> str:
    return f"part-{number:06}.parquet"


def _write(file: IO[bytes], suffix: str, rows: Iterable[Row]) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="" if suffix == ".csv" else "\n", write_through=True)
    if suffix == ".jsonl":
        text.writelines(json.dumps(row.model_dump(), ensure_ascii=False) + "\n" for row in rows)
    else:
        table = csv.writer(text)
        cells = ([v if n in _NAMES else safe_cell(v) for n, v in row.model_dump().items()] for row in rows)
        table.writerows(chain([Row.model_fields], cells))
    text.flush()
    text.detach()  # who opened the file closes it


def _unwritable(out: Place, error: OSError) -> InputError:
    return InputError(f"file {str(out)!r}: cannot be written ({error.strerror or one_line(error)}); give another --out")
