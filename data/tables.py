"""The rows of a manifest as they stand there: lines of JSON, a CSV or Parquet table, a Hugging Face dataset."""

import base64
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from program.common.addresses import kind_elsewhere
from program.common.cells import plain_cell
from program.common.errors import DataError, one_line
from program.common.files import Place, check_text, exists, is_folder, is_remote, open_file, place_of, system_of

HUB = "hf:"
"""hf:NAME or hf:NAME:SPLIT is a dataset of Hugging Face's, streamed."""

FOUND = frozenset({
    "status", "score", "low", "high", "level", "option", "tool_mean", "distortions", "fault_1", "strength_1",
    "fault_2", "strength_2", "fault_3", "strength_3", "subject_sharp", "kind", "tools", "reasoning", "notes", "error",
    "lm_calls", "cost_usd", "seconds",
})  # fmt: skip
"""Columns of the program's own tables (`assess --out`) with what it found; a table with all of them is one."""

_NUMBERS, _JSON = ("mos", "mos_std"), ("options", "regions", "mos_range", "metadata", "higher_is_better")
_ROWS_AT_ONCE = 1024


def is_manifest(source: str) -> bool:
    """Tell whether a source's name is that of a manifest."""
    return source.casefold().endswith(tuple(_READERS)) or source.startswith(HUB)


def scan_rows(source: Place, columns: Mapping[str, str]) -> Iterator[tuple[int, Any]]:
    """Yield number and row of each row, or the ValueError that says why it is none.

    `columns` says by field which column holds it. Of the program's own tables a row is what a person said in it, and of
    which image. Raises DataError when the source as a whole cannot be read, or lacks one of the columns.
    """
    name = str(source)
    by_name = next((read for end, read in _READERS.items() if name.casefold().endswith(end)), _json_lines)
    read = _hub if name.startswith(HUB) else by_name
    source = source if read is _hub else place_of(source)
    try:
        for number, row in read(source):
            own = isinstance(row, dict) and row.keys() >= FOUND
            if isinstance(row, dict):
                row = _renamed(row, columns, name, strict=read is not _json_lines) if columns else row
                row = _typed(row) if read is _csv else _filled(row) if read is not _json_lines else row
            yield number, _said(row, columns, source) if own and isinstance(row, dict) else row
    except UnicodeDecodeError as error:
        raise DataError(f"manifest {name!r}: is not UTF-8; save it as UTF-8") from error
    except OSError as error:
        raise unreadable(source, error) from error


def _said(row: dict[str, Any], columns: Mapping[str, str], source: Place) -> dict[str, Any] | Exception:
    """Return what a person said in a row of the program's own table: a `mos`, or another letter than its own."""
    said = {name: value for name, value in row.items() if name not in FOUND and value is not None}
    for name in {"image", "reference"} & said.keys():
        # As it was named where `assess` ran, which may be elsewhere than the table.
        text = str(said[name])
        if isinstance(source, Path) and not is_remote(text) and not kind_elsewhere(text):
            named = Path(place_of(text))
            if not exists(source.parent / named) and exists(named):
                said[name] = str(named.resolve())
    if isinstance(said.get("options"), str):
        said["options"] = _parsed(said["options"])
    options = said.get("options")
    if isinstance(options, Exception):
        return options
    if "mos" in said or not isinstance(options, dict):
        # What was asked of the image beside a score has no answer but the program's own.
        return {name: value for name, value in said.items() if name not in {"query", "options", "answer"}}
    if "answer" not in columns and options.get(str(said.get("answer"))) == row.get("option"):
        said.pop("answer", None)
    return said


def unreadable(source: Place, error: OSError) -> DataError:
    """Return the error of a manifest that cannot be read."""
    return DataError(f"manifest {str(source)!r}: cannot be read ({error.strerror}); give the path of a .jsonl file")


def _renamed(row: dict[str, Any], columns: Mapping[str, str], name: str, *, strict: bool) -> dict[str, Any]:
    """Return a row by fields; `strict` raises DataError for a column that is not there, which a line may leave out."""
    for column in columns.values():
        if strict and column not in row:
            raise DataError(f"manifest {name!r}: has no column {column!r} but {', '.join(map(str, row))[:200]}")
    fields = {field: row[column] for field, column in columns.items() if column in row}
    return fields | {key: value for key, value in row.items() if key not in {*columns.values(), *columns}}


def distinct(names: Iterable[str], table: object) -> list[str]:
    """Return a table's column names without the blanks about them; DataError where two are the same."""
    stripped = [str(name).strip() for name in names]
    if twice := [name for name, count in Counter(stripped).items() if name and count > 1]:
        raise DataError(f"table {str(table)!r}: has two columns {twice[0]!r}; rename or remove one of them")
    return stripped


class _Cells(csv.DictReader):  # type: ignore[type-arg] # only Python 3.12 takes one here
    """A reader that gives what cells stand for (`plain_cell`)."""

    def __next__(self) -> dict[str | Any, str | Any]:
        cells = super().__next__()
        return {name: plain_cell(cell) if isinstance(cell, str) else cell for name, cell in cells.items()}


def csv_table(lines: Iterator[str], table: object, *, strict: bool = False) -> "csv.DictReader[str]":
    """Return the reader of a CSV table with a header: commas, semicolons, tabs or bars part its cells.

    Cells are read as `program.common.cells.plain_cell` does, in any table: people shorten and mend ours.
    Raises DataError where two columns have one name. `strict` refuses quotes that are not closed.
    """
    first = next((line for line in lines if line.strip()), "")
    hint = re.fullmatch(r"sep=(.)\s*", first)  # a spreadsheet's own word
    head = next(lines, "") if hint else first
    separator = hint[1] if hint else max(",;\t|", key=lambda mark: len(next(csv.reader([head], delimiter=mark), ())))
    reader = _Cells(chain([head], lines), delimiter=separator, skipinitialspace=True, strict=strict)
    reader.fieldnames = distinct(reader.fieldnames or (), table)
    return reader


def _json_lines(path: Place) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        # utf-8-sig: spreadsheets and Windows editors put a byte order mark in front.
        with open_file(path) as file, io.TextIOWrapper(file, "utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _parsed(line)
    except UnicodeDecodeError as error:
        raise DataError(f"manifest {str(path)!r} near line {number + 1}: is not UTF-8; save it as UTF-8") from error


def _parsed(line: str) -> Any:
    try:
        row = json.loads(line, object_pairs_hook=json_object)
        if "\\ud" in line or "\\uD" in line:
            check_text(json.dumps(row, ensure_ascii=False))
    except (ValueError, RecursionError) as error:
        return error
    return row


def json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; ValueError where two keys are the same."""
    row = dict(pairs)
    if len(row) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f'"{twice}" is there twice; keep one of them')
    return row


def _csv(path: Place) -> Iterator[tuple[int, Any]]:
    with open_file(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as lines:
        try:
            table = csv_table(lines, path, strict=True)
            for cells in table:
                extra: Any = cells.pop(None, None)
                cells.pop("", None)  # a spreadsheet's index
                short = None in cells.values()
                fault = ValueError("has other than the header's cells; put text with commas in quotes")
                yield table.line_num, fault if extra or short else cells
        except csv.Error as error:
            raise DataError(f"manifest {str(path)!r}: is no CSV table ({error}); save it again") from error


def number_of(text: Any) -> float:
    """Return a cell's number, which may have a decimal comma; ValueError or TypeError where it is none."""
    return float(re.sub(r"^(\s*[+-]?\d+),(\d+\s*)$", r"\1.\2", text) if isinstance(text, str) else text)


def _typed(cells: Mapping[str, str]) -> dict[str, Any] | ValueError:
    """Return a table's cells as a row without the empty ones, with numbers and JSON read where a field holds them."""
    row: dict[str, Any] = {}
    for name, text in cells.items():
        if text.strip():
            try:
                row[name] = number_of(text) if name in _NUMBERS else json.loads(text) if name in _JSON else text
            except ValueError:
                kind = "number" if name in _NUMBERS else "JSON value"
                return ValueError(f'"{name}" is {json.dumps(text[:60])}; give a {kind}')
    return row


def _parquet(path: Place) -> Iterator[tuple[int, Any]]:
    import pyarrow
    import pyarrow.dataset
    import pyarrow.parquet

    if not exists(path):
        raise FileNotFoundError(2, "No such file or directory", str(path))
    system, place = system_of(path)
    try:
        table = pyarrow.dataset.dataset(place, filesystem=system, format="parquet")
        # Each batch is read when it is asked for: reading ahead would hold whole files.
        batches = table.to_batches(batch_size=_ROWS_AT_ONCE, batch_readahead=1, fragment_readahead=1)
        yield from enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), start=1)
    except pyarrow.ArrowInvalid as error:
        if "duplicate" in str(error) and not is_folder(path):
            with open_file(path) as file:
                distinct(pyarrow.parquet.read_schema(file).names, path)
        fault = f"is no Parquet table ({one_line(error)[:160]})"
        raise DataError(f"manifest {str(path)!r}: {fault}; write it again") from error


def _filled(value: Any) -> Any:
    """Return a row without the columns, and the keys of its structs, that hold nothing for it."""
    if not isinstance(value, dict):
        return value
    return {key: _filled(each) for key, each in value.items() if each is not None}


def _hub(source: Place) -> Iterator[tuple[int, Any]]:
    """Stream a dataset; images come as the bytes they are stored as."""
    import datasets

    name = str(source)
    dataset, _, split = name.removeprefix(HUB).partition(":")
    check_card(Path(dataset))
    try:
        rows = datasets.load_dataset(dataset, split=split or "train", streaming=True)
        features = rows.features or {}
        rows = as_stored(rows, [name for name, feature in features.items() if isinstance(feature, datasets.Image)])
        for number, row in enumerate(rows, start=1):
            row.setdefault("id", f"{number:08}")
            yield number, {key: _inline(value) for key, value in row.items()}
    except Exception as error:  # border: the library raises kinds of its own for a name, a split, the network
        raise DataError(f"dataset {name!r}: cannot be read ({one_line(error)[:200]}); check name and split") from error


def check_card(folder: Path) -> None:
    """Raise DataError for a dataset of this machine whose card names files elsewhere: `datasets` would fetch them."""
    import yaml
    from huggingface_hub import DatasetCard

    card: dict[str, Any] = {}
    with suppress(ValueError, yaml.YAMLError):  # `datasets` refuses such a card
        if (path := folder / "README.md").is_file():
            card |= DatasetCard.load(path).data.to_dict()
        if (path := folder / ".huggingface.yaml").is_file():
            card |= yaml.safe_load(path.read_text("utf-8")) or {}
    for text in _texts(card.get("configs")):
        if kind_elsewhere(text):
            raise DataError(f"dataset {str(folder)!r}: its card names {text[:200]!r}; download that, and name the file")


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in what YAML holds."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, Iterable):
        for each in value:
            yield from _texts(each)


def as_stored(rows: Any, columns: Iterable[str]) -> Any:
    """Return a dataset whose image columns of these names give what is stored; others that would be decoded go.

    Decoding opens whatever address stands in a row.
    """
    import datasets
    from datasets.features.features import require_decoding

    wanted = set(columns)
    for column, feature in dict(rows.features or {}).items():
        if column in wanted:
            rows = rows.cast_column(column, datasets.Image(decode=False))
        elif require_decoding(feature):
            rows = rows.remove_columns(column)
    return rows


def _inline(value: Any) -> Any:
    """Return an image's bytes as a data: URI, which every reader of images takes."""
    if isinstance(value, dict) and value.get("bytes") and set(value) == {"bytes", "path"}:
        return f"data:image/any;base64,{base64.b64encode(value['bytes']).decode()}"
    return value


_READERS: dict[str, Callable[[Place], Iterator[tuple[int, Any]]]] = {
    ".jsonl": _json_lines, ".csv": _csv, ".tsv": _csv, ".parquet": _parquet,
}  # fmt: skip
