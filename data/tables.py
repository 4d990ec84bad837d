"""The rows of a table as they stand there: JSON, CSV, an Excel workbook, Parquet, a dataset of Hugging Face's."""

import base64
import csv
import io
import json
import re
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, TypeAlias
from xml.etree.ElementTree import ParseError
from zipfile import BadZipFile

from program.common.addresses import DATA, kinds_elsewhere
from program.common.cells import plain_cell
from program.common.errors import DataError, one_line
from program.common.files import Place, check_text, exists, is_remote, open_file, place_of, system_of

Row: TypeAlias = Any
"""A row by column or field; the ValueError that says why it is none; or what a line of JSON holds in its place."""
Rows: TypeAlias = Iterator[tuple[int, Row]]
"""Rows with their numbers."""

HUB = "hf:"
"""hf:NAME or hf:NAME:SPLIT is a dataset of Hugging Face's, streamed."""

FOUND = frozenset({
    "status", "score", "low", "high", "level", "option", "tool_mean", "distortions", "fault_1", "strength_1",
    "fault_2", "strength_2", "fault_3", "strength_3", "subject_sharp", "kind", "tools", "reasoning", "notes", "error",
    "lm_calls", "cost_usd", "seconds",
})  # fmt: skip
"""Columns of the program's own tables (`assess --out`) with what it found; a table with all of them is one."""

_IMAGES = ("image", "reference")
_TEXTS = ("id", "query", "answer", "distortion", "group", "split")
_NUMBERS = ("mos", "mos_std")
_JSON = ("options", "regions", "mos_range", "metadata", "higher_is_better")
_ASKED = (*_IMAGES, "query", "options", "mos_range", "higher_is_better")
"""What the rows of several raters have in common."""
_TITLES = 20
"""Rows in which the header is looked for."""
_ROWS_AT_ONCE = 1024


def is_manifest(source: str) -> bool:
    """Tell whether a source's name is that of a manifest."""
    return source.casefold().endswith(tuple(_READERS)) or source.startswith(HUB)


def scan_rows(source: Place, columns: Mapping[str, str], raters: Sequence[str] | None = None) -> Rows:
    """Yield number and row by fields of each row, or the ValueError that says why it is none.

    `columns` says by field which column holds it. `raters` averages several people's scores: those in the columns of
    these names, or, of no names, those of all rows of an image. Of the program's own tables a row is what a person said
    in it, and of which image. Raises DataError when the source as a whole cannot be read, lacks one of the columns, or
    has a column of numbers that can be read in two ways.
    """
    name = str(source)
    place = source if name.startswith(HUB) else place_of(source)
    is_json = _reader_of(name) in (_json_lines, _json_list)
    columns = {**columns, **{rater: rater for rater in raters or ()}}
    numbers = {field: Numbers(columns.get(field, field)) for field in (*_NUMBERS, *(raters or ()))}

    def read() -> Rows:
        for number, row in table_rows(place, (columns.get("image", "image"),)):
            if isinstance(row, dict) and columns:
                row = _renamed(row, columns, name, strict=not is_json)
            yield number, row

    def typed() -> Rows:
        for number, row in read():
            if not isinstance(row, dict):
                yield number, row
                continue
            is_own = row.keys() >= FOUND
            row = row if is_json else _typed(number, row, numbers)
            yield number, _said(row, columns, place) if is_own and isinstance(row, dict) else row

    if _reader_of(name) in (_csv, _xlsx):
        _look_at_numbers(read(), numbers, name)
    yield from typed() if raters is None else _averaged(typed(), raters, name)


def table_rows(source: Place, header: Iterable[str] = ()) -> Rows:
    """Yield number and row by column of each row of a table of any kind, its cells as they stand there.

    The first row that has the names in `header` is the header of a text table or a workbook, else its first. Empty rows
    are passed over. Raises DataError when the source as a whole cannot be read.
    """
    read = _reader_of(str(source))
    try:
        yield from read(source, set(header)) if read in (_csv, _xlsx) else read(source)
    except UnicodeDecodeError as error:
        mend = "save it as UTF-8 (of a spreadsheet: save it as .xlsx or as CSV in UTF-8)"
        raise DataError(f"manifest {str(source)!r}: is not UTF-8; {mend}") from error
    except OSError as error:
        raise unreadable(source, error) from error


def _reader_of(name: str) -> Callable[..., Rows]:
    if name.startswith(HUB):
        return _hub
    return next((read for end, read in _READERS.items() if name.casefold().endswith(end)), _json_lines)


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


def _said(row: dict[str, Any], columns: Mapping[str, str], source: Place) -> dict[str, Any]:
    """Return what a person said in a row of the program's own table: a `mos`, or another letter than its own."""
    said = {name: value for name, value in row.items() if name not in FOUND and value is not None}
    for name in said.keys() & set(_IMAGES):
        # As it was named where `assess` ran, which may be elsewhere than the table.
        text = str(said[name])
        if isinstance(source, Path) and not is_remote(text) and not kinds_elsewhere(text):
            named = Path(place_of(text))
            if not exists(source.parent / named) and exists(named):
                said[name] = str(named.resolve())
    options = said.get("options")
    if "mos" in said or not isinstance(options, dict):
        # What was asked of the image beside a score has no answer but the program's own.
        return {name: value for name, value in said.items() if name not in {"query", "options", "answer"}}
    if "answer" not in columns and options.get(str(said.get("answer"))) == row.get("option"):
        said.pop("answer", None)
    return said


@dataclass
class Numbers:
    """Reads the numbers of a column, whose cells say together which mark is the decimal one."""

    column: str = ""
    _marks: set[str] = field(default_factory=set)
    """The decimal marks that cells with one reading have."""
    _doubtful: str = ""
    """The first cell that is one number with a decimal comma and another with a decimal point."""
    _has_whole: bool = False

    def add(self, cell: Any) -> None:
        """Look at a cell."""
        if not isinstance(cell, str):
            return
        readings = _readings(cell)
        self._has_whole |= cell.strip().isdigit()
        if len(readings) == 1:
            self._marks |= readings.keys()
        # Programs write 3.125 and 4, or 3.125 and 4.000: of points, only 4.000 beside 4 may part thousands.
        elif len(set(readings.values())) > 1 and ("," in cell or cell.endswith("0")):
            self._doubtful = self._doubtful or cell

    @property
    def doubt(self) -> str:
        """What can be read in two ways; empty where nothing can."""
        is_open = len(self._marks) != 1 and ("," in self._doubtful or self._has_whole)
        if not self._doubtful or not is_open:
            return ""
        readings = " or ".join(f"{value:.12g}" for value in sorted(_readings(self._doubtful).values()))
        mend = "write its numbers with a decimal point and nothing between thousands"
        return f'column {self.column!r} holds "{self._doubtful}", which is {readings}; {mend}'

    def number(self, cell: Any) -> float:
        """Return a cell's number. Raises ValueError or TypeError where it is none, or may be two."""
        if not isinstance(cell, str):
            return float(cell)
        self.add(cell)
        if self.doubt:
            raise ValueError(self.doubt)
        readings = _readings(cell)
        if not readings:
            raise ValueError(f"{cell!r} is no number")
        mark = "," if self._marks == {","} else "."
        return readings.get(mark, next(iter(readings.values())))


def _readings(text: str) -> dict[str, float]:
    """Return the number that a text is by the decimal mark that it may have; empty where it is none."""
    joined = re.sub(r"(?<=\d)[ '’\u00a0\u202f](?=\d{3}(?!\d))", "", text.strip())
    readings = {}
    for mark, between in (".,", ",."):
        whole = rf"([1-9]\d{{0,2}}(\{between}\d{{3}})+|\d*)"
        if re.fullmatch(rf"[+-]?{whole}(\{mark}\d*)?([eE][+-]?\d+)?", joined):
            with suppress(ValueError):  # a mark alone
                readings[mark] = float(joined.replace(between, "").replace(mark, "."))
    return readings


def number_of(cell: Any) -> float:
    """Return the number of a cell by itself; ValueError or TypeError where it is none, or may be two."""
    return Numbers().number(cell)


def _look_at_numbers(rows: Rows, numbers: Mapping[str, Numbers], name: str) -> None:
    """Look at all cells of the columns of numbers. Raises DataError where one can be read in two ways."""
    for _, row in rows:
        if isinstance(row, dict):
            for field_name, column in numbers.items():
                column.add(row.get(field_name))
    for column in numbers.values():
        if column.doubt:
            raise DataError(f"manifest {name!r}: {column.doubt}")


def _typed(number: int, cells: Mapping[str, Any], numbers: Mapping[str, Numbers]) -> dict[str, Any] | ValueError:
    """Return a table's cells as a row without the empty ones, with numbers, texts and JSON where a field holds them."""
    row: dict[str, Any] = {}
    for name, cell in cells.items():
        value = _filled(cell)
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        kind = "number" if name in numbers else "JSON value"
        try:
            if name in numbers:
                value = numbers[name].number(value)
            elif name in _JSON and isinstance(value, str):
                value = json.loads(value)
            elif name in _TEXTS:
                value = _text(value)
            elif name in _IMAGES:
                value = _inline(value)
            elif isinstance(value, bytes) or (isinstance(value, dict) and "bytes" in value):
                continue  # an image that is none of the row's
        except (TypeError, ValueError):
            doubt = numbers[name].doubt if name in numbers else ""
            return ValueError(doubt or f'"{name}" is {json.dumps(str(value)[:60])}; give a {kind}')
        row[name] = value
    if DATA.match(str(row.get("image"))):
        row.setdefault("id", f"{number:08}")
    return row


def _filled(value: Any) -> Any:
    """Return a value without the keys of its structs that hold nothing."""
    if not isinstance(value, dict):
        return value
    return {key: _filled(each) for key, each in value.items() if each is not None} or None


def _text(value: Any) -> str:
    """Return a text, also where a program wrote a whole number."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def _inline(value: Any) -> Any:
    """Return an image's bytes as a data: URI, which every reader of images takes, and a name as it is."""
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return f"data:image/any;base64,{base64.b64encode(value).decode()}"
    return value


def _averaged(rows: Rows, raters: Sequence[str], name: str) -> Rows:
    """Yield the rows with the mean and the standard deviation of several raters' scores.

    Without names of columns the rows of an image become one, with what they agree on; they are held in memory.
    """
    if raters:
        for number, row in rows:
            yield number, _with_mean(row, [row.pop(rater, None) for rater in raters]) if isinstance(row, dict) else row
        return
    by_image: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for number, row in rows:
        if isinstance(row, dict):
            asked = json.dumps([row.get(key) for key in _ASKED], default=str)
            by_image.setdefault(asked, []).append((number, row))
        else:
            yield number, row
    if len(by_image) == sum(map(len, by_image.values())):
        mend = "name the columns of the raters' scores with --raters NAME,NAME"
        raise DataError(f"manifest {name!r}: no image has two rows; {mend}")
    for members in by_image.values():
        number, first = members[0]
        agreed = {key: value for key, value in first.items() if all(row.get(key) == value for _, row in members)}
        yield number, _with_mean(agreed, [row.get("mos") for _, row in members])


def _with_mean(row: dict[str, Any], scores: Iterable[Any]) -> dict[str, Any] | ValueError:
    given = [score for score in scores if score is not None]
    if not all(isinstance(score, int | float) for score in given):
        return ValueError(f"scores {json.dumps(given, default=str)[:60]}: give numbers")
    if given:
        row["mos"] = statistics.fmean(given)
    if len(given) > 1:
        row["mos_std"] = statistics.stdev(given)
    return row


def distinct(names: Iterable[Any], table: object) -> list[str]:
    """Return a table's column names without the blanks about them; DataError where two are the same."""
    stripped = _names(names)
    if twice := [name for name, count in Counter(stripped).items() if name and count > 1]:
        raise DataError(f"table {str(table)!r}: has two columns {twice[0]!r}; rename or remove one of them")
    return stripped


def _names(cells: Iterable[Any]) -> list[str]:
    return ["" if cell is None else str(cell).strip() for cell in cells]


def csv_rows(lines: Iterator[str], table: object, header: Iterable[str] = ()) -> Rows:
    """Yield line and cells by column of the rows of a CSV table; commas, semicolons, tabs or bars part its cells.

    Cells are read as `program.common.cells.plain_cell` does, in any table: people shorten and mend ours. `header` is as
    in `table_rows`. Raises csv.Error for quotes that are not closed, and DataError where two columns have one name.
    """
    wanted, top, hint = set(header), list(islice(lines, _TITLES)), ""
    for place, line in enumerate(top):
        if stated := re.fullmatch(r"sep=(.)\s*", line):  # a spreadsheet's own word
            hint, top[place] = stated[1], "\n"
    separator = hint
    for line in top if not hint else ():
        by_mark = {mark: _names(next(csv.reader([line], delimiter=mark), ())) for mark in ",;\t|"}
        widest = max(by_mark, key=lambda mark: len(by_mark[mark]))
        if wanted <= set(by_mark[widest]) and any(by_mark[widest]):
            separator = widest
            break
        if not separator and line.strip():
            separator = widest
    reader = csv.reader(chain(top, lines), delimiter=separator or ",", skipinitialspace=True, strict=True)
    rows = ((reader.line_num, cells) for cells in reader)
    yield from _below_header(rows, wanted, table, may_be_short=False)


def _below_header(rows: Iterator[tuple[int, Sequence[Any]]], header: set[str], table: object, *,
                  may_be_short: bool) -> Rows:  # fmt: skip
    """Yield the rows that are not empty below the first that has the names in `header`, or else below the first."""
    given = ((number, cells) for number, cells in rows if any(_names(cells)))
    top = list(islice(given, _TITLES))
    start = next((place for place, (_, cells) in enumerate(top) if header <= set(_names(cells))), 0)
    names = distinct(top[start][1], table) if top else []
    for number, cells in chain(top[start + 1 :], given):
        is_short = len(cells) < len(names) and not may_be_short
        if is_short or any(_names(cells[len(names) :])):
            yield number, ValueError(f"has other than the header's {len(names)} cells; put text with commas in quotes")
            continue
        plain = (plain_cell(cell) if isinstance(cell, str) else cell for cell in cells)
        yield number, {name: cell for name, cell in zip_longest(names, plain) if name}


def _csv(path: Place, header: set[str]) -> Rows:
    try:
        # utf-8-sig: spreadsheets and Windows editors put a byte order mark in front.
        with open_file(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as lines:
            yield from csv_rows(lines, path, header)
    except csv.Error as error:
        raise DataError(f"manifest {str(path)!r}: is no CSV table ({error}); save it again") from error


def _xlsx(path: Place, header: set[str]) -> Rows:
    """Yield the rows of the first sheet with a header, or of the first sheet."""
    import openpyxl  # type: ignore[import-untyped]

    try:
        with open_file(path) as file:
            with warnings.catch_warnings(action="ignore"):  # of styles that it does not know
                book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            sheets = [sheet.iter_rows(values_only=True) for sheet in book.worksheets]
            tops = [list(islice(rows, _TITLES)) for rows in sheets]
            with_header = (n for n, top in enumerate(tops) if any(header <= set(_names(cells)) for cells in top))
            chosen = next(with_header, 0)
            rows = enumerate(chain(tops[chosen], sheets[chosen]), start=1)
            yield from _below_header(rows, header, path, may_be_short=True)
    except (BadZipFile, KeyError, IndexError, ParseError) as error:
        raise DataError(f"manifest {str(path)!r}: is no workbook ({one_line(error)[:160]}); save it again") from error


def _json_lines(path: Place) -> Rows:
    with open_file(path) as file, io.TextIOWrapper(file, "utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _parsed(line)


def _json_list(path: Place) -> Rows:
    with open_file(path) as file, io.TextIOWrapper(file, "utf-8-sig") as text:
        rows = _parsed(text.read())
    if isinstance(rows, Exception):
        raise DataError(f"manifest {str(path)!r}: is not JSON ({rows}); correct it")
    if not isinstance(rows, list):
        raise DataError(f"manifest {str(path)!r}: holds no list; write it as [{{...}}, ...]")
    yield from enumerate(rows, start=1)


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


def _parquet(path: Place) -> Rows:
    import pyarrow
    import pyarrow.dataset

    if not exists(path):
        raise FileNotFoundError(2, "No such file or directory", str(path))
    system, place = system_of(path)
    try:
        dataset = pyarrow.dataset.dataset(place, filesystem=system, format="parquet")
        # Each batch is read when it is asked for: reading ahead would hold whole files.
        batches = dataset.to_batches(batch_size=_ROWS_AT_ONCE, batch_readahead=1, fragment_readahead=1)
        yield from enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), start=1)
    except pyarrow.ArrowInvalid as error:
        fault = f"is no Parquet table ({one_line(error)[:160]})"
        raise DataError(f"manifest {str(path)!r}: {fault}; write it again") from error


def _hub(source: Place) -> Rows:
    """Stream a dataset; images come as the bytes they are stored as."""
    import datasets

    name = str(source)
    dataset, _, split = name.removeprefix(HUB).partition(":")
    check_card(Path(dataset))
    try:
        rows = datasets.load_dataset(dataset, split=split or "train", streaming=True)
        features = rows.features or {}
        rows = as_stored(rows, [name for name, feature in features.items() if isinstance(feature, datasets.Image)])
        yield from enumerate(rows, start=1)
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
    named = json.dumps(card.get("configs"), default=str, ensure_ascii=False)
    for text in map(json.loads, re.findall(r'"(?:[^"\\]|\\.)*"', named)):
        if kinds_elsewhere(text):
            raise DataError(f"dataset {str(folder)!r}: its card names {text[:200]!r}; download that, and name the file")


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


_READERS: dict[str, Callable[..., Rows]] = {
    ".jsonl": _json_lines, ".json": _json_list, ".csv": _csv, ".tsv": _csv, ".xlsx": _xlsx, ".parquet": _parquet,
}  # fmt: skip
