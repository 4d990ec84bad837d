"""The rows of a table as they stand there: JSON, CSV, an Excel workbook, Parquet, a dataset of Hugging Face's."""

import base64
import csv
import io
import json
import re
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice, product, zip_longest
from pathlib import Path
from typing import Any, TypeAlias
from xml.etree.ElementTree import ParseError
from zipfile import BadZipFile

from data.decisions import DECISIONS, TABLE, DecidedRows, decided_rows
from data.ratings import NAME, is_rating, manifest_rows, read_ratings
from program.common.addresses import DATA, kind_elsewhere
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
    "status", "score", "low", "high", "level", "option", "guess", "attempt", "tool_mean", "distortions",
    "fault_1", "strength_1", "fault_2", "strength_2", "fault_3", "strength_3", "subject_sharp", "kind",
    "tools", "reasoning", "notes", "error",
    "lm_calls", "cost_usd", "seconds",
})  # fmt: skip
"""Columns of the program's own tables (`assess --out`) with what it found; a table with all of them is one."""

_TEXTS = ("id", "query", "answer", "distortion", "group", "split")
_NUMBERS = ("mos", "mos_std")
_JSON = ("options", "regions", "metadata")
_JSON_LABELS = ("mos_range", "higher_is_better")
_ASKED = ("image", "reference", "query", "options", "mos_range", "higher_is_better")
"""What the rows of several raters have in common."""
_TITLES = 20
"""Rows in which the header is looked for."""
_SEPARATORS = ";\t|,"
_ROWS_AT_ONCE = 1024


def is_manifest(source: str) -> bool:
    """Tell whether a source's name is that of a manifest."""
    return source.casefold().endswith(tuple(_READERS)) or source.startswith(HUB)


def table_in(place: Place) -> Place:
    """Return the ratings or a gallery's decisions in a folder that holds some, and any other place as it is."""
    if isinstance(place, Path):
        for name in (NAME, DECISIONS):
            if (place / name).is_file():
                return place / name
    return place


def scan_rows(
    source: Place, columns: Mapping[str, str], raters: Sequence[str] | None = None, *, labels: bool = True
) -> Rows:
    """Yield number and row by fields of each row, or the ValueError that says why it is none.

    `columns` says by field which column holds it. `raters` averages several people's scores: those in
    the columns of these names, or, of no names, those of all rows of an image. Of the program's own
    tables a row is what a person said in it, and of which image. Without `labels` their cells are left
    as they stand there. Raises DataError when the source as a whole cannot be read, lacks one of the
    columns, or has numbers that can be read in two ways.
    """
    place = source if str(source).startswith(HUB) else place_of(source)
    if not labels:
        return _by_field(place, columns, (), _JSON)
    if raters is None:
        return _by_field(place, columns, _NUMBERS)
    if not raters:
        return _mean_of_rows(_by_field(place, columns, _NUMBERS), str(source))
    rows = _by_field(place, {**columns, **dict(zip(raters, raters, strict=True))}, (*_NUMBERS, *raters))
    return _mean_of_columns(rows, raters)


def _by_field(
    place: Place, columns: Mapping[str, str], numbers: Sequence[str], parsed: Sequence[str] = (*_JSON, *_JSON_LABELS)
) -> Rows:
    name, header = str(place), [columns.get("image", "image")]
    is_json = _reader_of(name) in (_json_lines, _json_list)
    marks: dict[str, str] = {}
    if _reader_of(name) in (_csv, _xlsx):
        column_of = {field: columns.get(field, field) for field in numbers}
        marks = _decimal_marks(table_rows(place, header), column_of, name)
    for number, row in table_rows(place, header):
        is_own = isinstance(row, dict) and row.keys() >= FOUND
        if isinstance(row, dict) and columns:
            row = _renamed(row, columns, name, strict=not is_json)
        if isinstance(row, dict) and not is_json:
            row = _typed(number, row, numbers, parsed, marks)
        if isinstance(row, dict) and is_own:
            row = _said(row, columns, place)
        yield number, row


def table_rows(source: Place, header: Collection[str] = ()) -> Rows:
    """Yield number and row by column of each row of a table of any kind, its cells as they stand there.

    The header of a text table or a workbook is the first row that has the names in `header`, or else as
    many cells as most rows; what stands above it, and empty rows, are passed over. Raises DataError when
    the source as a whole cannot be read.
    """
    read = _reader_of(str(source))
    try:
        if read in (_csv, _xlsx):
            yield from read(source, header)
        else:
            yield from read(source)
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


def _said(row: dict[str, Any], columns: Mapping[str, str], table: Place) -> dict[str, Any]:
    """Return what a person said in a row of the program's own table: a `mos`, or another letter than its own."""
    said = {name: value for name, value in row.items() if name not in FOUND and value is not None}
    for name in said.keys() & {"image", "reference"}:
        said[name] = _where_it_ran(said[name], table)
    options = said.get("options")
    if "mos" in said or not isinstance(options, dict):
        # What was asked of the image beside a score has no answer but the program's own.
        return {name: value for name, value in said.items() if name not in {"query", "options", "answer"}}
    if "answer" not in columns and options.get(str(said.get("answer"))) == row.get("option"):
        said.pop("answer", None)
    return said


def _where_it_ran(cell: Any, table: Place) -> Any:
    """Return an image of the program's own table, which is named from where the command ran."""
    text = str(cell)
    is_local = isinstance(table, Path) and not is_remote(text) and not kind_elsewhere(text)
    if is_local and not exists(Path(table).parent / text) and exists(Path(text)):
        return str(Path(text).resolve())
    return cell


def number_of(cell: Any, mark: str = "") -> float:
    """Return a cell's number by its column's decimal mark. Without one it has to have one reading.

    Raises ValueError or TypeError for a cell that holds no number.
    """
    if not isinstance(cell, str):
        return float(cell)
    readings = _readings(cell)
    if not readings:
        raise ValueError(f'holds "{cell}", which is no number')
    return readings.get(mark or decimal_mark([cell], "cell"), next(iter(readings.values())))


def decimal_mark(cells: Collection[str], column: str) -> str:
    """Return the decimal mark of a column's numbers, which its cells show together.

    Raises DataError where a cell can be read in two ways, and no other tells which is meant.
    """
    sure: set[str] = set()
    for cell in cells:
        readings = _readings(cell)
        if len(readings) == 1:
            sure.update(readings)
    if len(sure) == 1:
        return sure.pop()
    # Programs write 3.125 beside 4, or 3.125 beside 4.000: only 4.000 beside 4 may be thousands.
    has_whole = any(cell.strip().isdigit() for cell in cells)
    for cell in cells:
        values = sorted(set(_readings(cell).values()))
        if len(values) == 2 and ("," in cell or (has_whole and cell.endswith("0"))):
            fault = f'holds "{cell}", which is {values[0]:.12g} or {values[1]:.12g}'
            raise DataError(f"{column} {fault}; write numbers with a decimal point and no mark between thousands")
    return "."


def _readings(text: str) -> dict[str, float]:
    """Return the number that a text is by the decimal mark it may have; empty where it is none."""
    joined = re.sub(r"(?<=\d)[ '’\u00a0\u202f](?=\d{3}(?!\d))", "", text.strip())
    readings = {}
    for mark, between in (".,", ",."):
        whole = rf"([1-9]\d{{0,2}}(\{between}\d{{3}})+|\d*)"
        if re.fullmatch(rf"[+-]?{whole}(\{mark}\d*)?([eE][+-]?\d+)?", joined):
            with suppress(ValueError):  # a mark alone
                readings[mark] = float(joined.replace(between, "").replace(mark, "."))
    return readings


def _decimal_marks(rows: Rows, columns: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the decimal mark of each field of numbers. Raises DataError where two are possible."""
    cells: dict[str, dict[str, None]] = {field: {} for field in columns}
    for _, row in rows:
        for field, column in columns.items():
            if isinstance(row, dict) and isinstance(row.get(column), str):
                cells[field].setdefault(row[column])
    where = f"manifest {name!r}: column"
    return {field: decimal_mark(texts, f"{where} {columns[field]!r}") for field, texts in cells.items()}


def _typed(
    number: int, cells: Mapping[str, Any], numbers: Sequence[str], parsed: Sequence[str], marks: Mapping[str, str]
) -> Row:
    """Return a table's cells as a row of numbers, texts and JSON, without the empty ones."""
    row: dict[str, Any] = {}
    for name, cell in cells.items():
        value = _plain(cell)
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        try:
            if name in numbers:
                value = number_of(value, marks.get(name, ""))
            elif name in parsed and isinstance(value, str) and not (name == "options" and "|" in value):
                value = json.loads(value)
        except (TypeError, ValueError):
            kind = "number" if name in numbers else "JSON value"
            return ValueError(f'"{name}" is {json.dumps(str(value)[:60])}; give a {kind}')
        if name in _TEXTS and isinstance(value, float) and value.is_integer():
            value = int(value)
        if name in _TEXTS and isinstance(value, int | float):
            value = str(value)
        row[name] = value
    if DATA.match(str(row.get("image"))):
        row.setdefault("id", f"{number:08}")
    return row


def _plain(value: Any) -> Any:
    """Return an image's bytes as a data: URI, which every reader of images takes, and a struct without empty keys."""
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        value = value["bytes"] or value["path"]
    if isinstance(value, bytes):
        return f"data:image/any;base64,{base64.b64encode(value).decode()}"
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    return value


def _mean_of_columns(rows: Rows, raters: Sequence[str]) -> Rows:
    for number, row in rows:
        if isinstance(row, dict):
            row = _with_mean(row, [row.pop(rater, None) for rater in raters])
        yield number, row


def _mean_of_rows(rows: Rows, name: str) -> Rows:
    """Yield a row for each image, with what its rows agree on; they are held in memory."""
    by_image: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for number, row in rows:
        if isinstance(row, dict):
            asked = json.dumps([row.get(key) for key in _ASKED], default=str)
            by_image.setdefault(asked, []).append((number, row))
        else:
            yield number, row
    if all(len(members) == 1 for members in by_image.values()):
        mend = "name the columns of the raters' scores with --raters NAME,NAME"
        raise DataError(f"manifest {name!r}: no image has two rows; {mend}")
    for members in by_image.values():
        number, first = members[0]
        agreed = dict(first)
        for _, row in members:
            agreed = {key: value for key, value in agreed.items() if row.get(key) == value}
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


def csv_rows(lines: Iterator[str], table: object, header: Collection[str] = ()) -> Rows:
    """Yield line and cells by column of the rows of a CSV table, with any separator that spreadsheets use.

    `header` is as in `table_rows`. Raises csv.Error for quotes that are not closed, and DataError where
    two columns have one name.
    """
    top = list(islice(lines, _TITLES))
    if top and top[0].startswith("sep="):  # a spreadsheet's own word
        top[0] = "\n"
    reader = csv.reader(chain(top, lines), delimiter=_separator(top, header), skipinitialspace=True, strict=True)
    return _below_header(((reader.line_num, cells) for cells in reader), header, table, may_be_short=False)


def _separator(top: Sequence[str], header: Collection[str]) -> str:
    """Return what parts the cells of the line with the names in `header`, or else of most lines."""

    def cells(line: str, mark: str) -> list[str]:
        return _names(next(csv.reader([line], delimiter=mark), ()))

    for line, mark in product(top, _SEPARATORS):
        if header and set(header) <= set(cells(line, mark)):
            return mark
    return max(_SEPARATORS, key=lambda mark: statistics.median(len(cells(line, mark)) for line in top or [""]))


def _below_header(
    rows: Iterator[tuple[int, Sequence[Any]]], header: Collection[str], table: object, *, may_be_short: bool
) -> Rows:
    """Yield the rows with a cell below the first that has the names in `header`, or else as many cells as most.

    Texts are read as `program.common.cells.plain_cell` does, in any table: people shorten and mend ours.
    """
    rows = ((number, cells) for number, cells in rows if any(_names(cells)))
    top = list(islice(rows, _TITLES))
    if not top:
        return
    widths = [max(place for place, name in enumerate(_names(cells)) if name) for _, cells in top]
    usual = statistics.mode(widths)
    wide = next(place for place, width in enumerate(widths) if width >= usual)
    named = (place for place, (_, cells) in enumerate(top) if header and set(header) <= set(_names(cells)))
    start = next(named, wide)
    names = distinct(top[start][1], table)
    for number, cells in chain(top[start + 1 :], rows):
        is_short = len(cells) < len(names) and not may_be_short
        if is_short or any(_names(cells[len(names) :])):
            fault = f"has other than the header's {len(names)} cells"
            yield number, ValueError(f"{fault}; put text with commas in quotes")
            continue
        plain = [plain_cell(cell) if isinstance(cell, str) else cell for cell in cells]
        yield number, {name: cell for name, cell in zip_longest(names, plain) if name}


def _csv(path: Place, header: Collection[str]) -> Rows:
    try:
        # utf-8-sig: spreadsheets and Windows editors put a byte order mark in front.
        with open_file(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as lines:
            yield from csv_rows(lines, path, header)
    except csv.Error as error:
        raise DataError(f"manifest {str(path)!r}: is no CSV table ({error}); save it again") from error


def _xlsx(path: Place, header: Collection[str]) -> Rows:
    """Yield the rows of the first sheet with the header, or of the first sheet."""
    import openpyxl  # type: ignore[import-untyped]

    try:
        with open_file(path) as file:
            with warnings.catch_warnings(action="ignore"):  # of styles that it does not know
                book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            sheets = book.worksheets
            for sheet in book.worksheets:
                if any(set(header) <= set(_names(row)) for row in sheet.iter_rows(max_row=_TITLES, values_only=True)):
                    sheets.insert(0, sheet)
                    break
            rows = enumerate(sheets[0].iter_rows(values_only=True), start=1)
            yield from _below_header(rows, header, path, may_be_short=True)
    except (BadZipFile, KeyError, IndexError, ParseError) as error:
        raise DataError(f"manifest {str(path)!r}: is no workbook ({one_line(error)[:160]}); save it again") from error


def _json_lines(path: Place) -> Rows:
    with open_file(path) as file, io.TextIOWrapper(file, "utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            row = _parsed(line)
            if number == 1 and is_rating(row) and isinstance(path, Path):
                yield from enumerate(manifest_rows(read_ratings(path)), start=1)
                return
            yield number, row


def _json_list(path: Place) -> Rows:
    with open_file(path) as file, io.TextIOWrapper(file, "utf-8-sig") as text:
        rows = _parsed(text.read())
    if isinstance(rows, Exception):
        raise DataError(f"manifest {str(path)!r}: is not JSON ({rows}); correct it")
    if isinstance(rows, dict) and "decisions" in rows and isinstance(path, Path):
        yield from enumerate(_decided(path, rows).rows, start=1)
        return
    if not isinstance(rows, list):
        raise DataError(f"manifest {str(path)!r}: holds no list; write it as [{{...}}, ...]")
    yield from enumerate(rows, start=1)


def _decided(path: Place, document: Any) -> DecidedRows:
    """Return a gallery's decisions as rows, with what its table beside them says of each picture."""
    path = Path(path)
    beside = path.with_name(TABLE)
    if not beside.is_file():
        mend = "keep the decisions with agentic-iqa gallery --decisions FILE, and give the gallery's folder"
        raise DataError(f"manifest {str(path)!r}: {TABLE} is not beside it; {mend}")
    rows = [row for _, row in _json_lines(beside) if isinstance(row, dict)]
    for row in rows:
        row["image"] = _where_it_ran(row.get("image"), beside)
    return decided_rows(path, document, rows)


def note_on(source: Place) -> str:
    """Say what of a gallery's decisions are labels; empty of any other source."""
    if not isinstance(source, Path) or source.name != DECISIONS:
        return ""
    with open_file(source) as file:
        document = _parsed(file.read().decode("utf-8-sig"))
    return _decided(source, document).note if isinstance(document, dict) else ""


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
        names = Counter(name for name, _ in pairs)
        raise ValueError(f'"{names.most_common(1)[0][0]}" is there twice; keep one of them')
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
        if kind_elsewhere(text):
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
