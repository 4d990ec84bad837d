"""A dataset's release, read as configs/datasets.yaml describes it: rows of tables, and the samples made of them."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data.catalogue import DatasetEntry, Reading, Table
from data.manifest import KEYS, Layout, Sample, fault_of, give_letters
from data.tables import Rows, number_of, table_rows
from program.common.errors import DataError, InputError
from program.common.files import named_in


@dataclass(frozen=True, slots=True)
class Release:
    """Which dataset, where it lies and what the user said about it."""

    entry: DatasetEntry
    root: Path
    layout: Layout
    """Of a table of one's own."""
    images: Path
    """Folder that takes the images of a dataset that holds them as bytes."""

    def present(self, names: Sequence[str]) -> list[list[Path]]:
        """Return what is there of each of these names or globs, which are alternatives; DataError where nothing is."""
        matches = [[self.root / n] if (self.root / n).exists() else sorted(self.root.glob(n)) for n in names]
        if not any(matches):
            raise DataError(
                f"dataset {self.entry.name!r} in {str(self.root)!r}: no {' or '.join(map(repr, names))}; --root is the "
                f"folder that holds {self.entry.layout}"
            )
        return [paths for paths in matches if paths]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, which its errors name."""

    table: Path
    place: str
    """Where in the table, as "line 3"."""
    cells: Mapping[str, Any]

    def with_cells(self, cells: Mapping[str, Any]) -> "Row":
        """Return the row with further cells."""
        return replace(self, cells={**self.cells, **cells})

    def number(self, name: str, value: Any) -> float:
        """Return a finite number; DataError that calls it `name` where it is none."""
        try:
            number = number_of(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise self.error(f"{name} {value!r} is no number; correct or remove the row")
        return number

    def image(self, folder: Path, name: Any) -> Path:
        """Return the file of a name, seen from a folder; DataError where that is on another machine."""
        try:
            return Path(named_in(folder, str(name), None))
        except InputError as error:
            raise self.error(str(error)) from error

    def error(self, fault: str) -> DataError:
        """Return an error that names the table and the place."""
        return DataError(f"table {str(self.table)!r}, {self.place}: {fault}")


def read_release(release: Release, reading: Reading) -> Iterator[Sample]:
    """Yield the samples of a release. DataError names the file or row that is not as `reading` describes it."""
    folders = _Folders(release, reading)
    for table in reading.tables:
        rows = _rows(release, table)
        if reading.code is not None:
            rows = CODE[reading.code](rows)
        for number, row in enumerate(islice(rows, reading.skip, None), start=1):
            row = _with_parts(row.with_cells({**table.cells, "number": number}), reading)
            image = folders.find("image", _filled(reading.fields["image"], row))
            row = row.with_cells({"folder": image.parent.name})
            fields = {name: _filled(template, row) for name, template in reading.fields.items()}
            if fields.get("reference"):
                fields["reference"] = folders.find("reference", fields["reference"])
            yield sample_of(release, row, {**fields, "image": image})


def sample_of(release: Release, row: Row, fields: Mapping[str, Any]) -> Sample:
    """Return the sample of a row's values by the manifest's keys; other values become metadata."""
    given = {name: value for name, value in fields.items() if value is not None and str(value).strip()}
    given["id"] = f"{release.entry.name}/{given['id']}"
    give_letters(given, given)
    reading = release.entry.read
    numbers = reading.numbers if isinstance(reading, Reading) else ()
    for name in {"mos", "mos_std", *numbers} & given.keys():
        given[name] = row.number(name, given[name])
    for name in {"query", "distortion", "group"} & given.keys():
        given[name] = str(given[name])
    if release.entry.score is not None and "mos" in given:
        given["mos_range"] = release.entry.score.range
        given["higher_is_better"] = release.entry.score.higher_is_better
    metadata = {name: given.pop(name) for name in list(given) if name not in KEYS}
    try:
        return Sample(**given, metadata=metadata)
    except ValidationError as error:
        raise row.error(fault_of(error)) from error


class _Text(str):
    """A cell's text with what templates ask of it."""

    @property
    def stem(self) -> "_Text":
        """A file's name without folder and ending."""
        return _Text(Path(self).stem)

    @property
    def folded(self) -> "_Text":
        """The text in small letters, with single blanks."""
        return _Text(" ".join(self.casefold().split()))


def _filled(template: str | tuple[str, ...], row: Row) -> Any:
    """Return a template with the row's cells in it; of several the first whose cells are all there.

    A template that is one cell, as "{score}", gives the cell itself.
    """
    cells = {name: value for name, value in row.cells.items() if value is not None}
    if isinstance(template, tuple):
        template = next((each for each in template if _columns(each) <= cells.keys()), template[0])
    if absent := sorted(_columns(template) - cells.keys()):
        present = ", ".join(name for name in cells if name != "number")
        raise row.error(f"has no {absent[0]!r} but {present}")
    if re.fullmatch(r"\{[^{}.:]+\}", template):
        return cells[template[1:-1]]
    cells = {name: _Text(value) if isinstance(value, str) else value for name, value in cells.items()}
    try:
        return template.format_map(cells)
    except (AttributeError, TypeError, ValueError) as error:
        raise row.error(f"its cells cannot be read as {template} ({error}); correct or remove the row") from error


def _columns(template: str) -> set[str]:
    return set(re.findall(r"\{([^{}.:]+)", template))


def _with_parts(row: Row, reading: Reading) -> Row:
    """Return the row with the parts of its names, and with what stands for its words."""
    for column, pattern in reading.names.items():
        name = _filled(f"{{{column}}}", row)
        expression = re.sub(r"\\\{(\w+):d\\\}", r"(?P<\1>\\d+)", re.escape(pattern))
        expression = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^_]+)", expression)
        match = re.fullmatch(expression, str(name), re.IGNORECASE)
        if match is None:
            raise row.error(f"{name!r} is no name as {pattern}; fetch it again")
        for part, text in match.groupdict().items():
            row = row.with_cells({part: int(text) if f"{{{part}:d}}" in pattern else text})
    for column, stands_for in reading.words.items():
        word = _filled(f"{{{column}}}", row)
        for cell, values in stands_for.items():
            if word not in values:
                raise row.error(f"{column} {word!r} is none of {', '.join(map(str, values))}")
            row = row.with_cells({cell: values[word]})
    return row


class _Folders:
    """The folders of a release's images and references, where names are found whatever the case of their letters."""

    def __init__(self, release: Release, reading: Reading) -> None:
        self._folders: dict[str, list[Path]] = {}
        for name, folders in (("image", reading.images), ("reference", reading.references)):
            self._folders[name] = [path for paths in release.present(folders) for path in paths]
        self._inside: dict[Path, dict[str, Path]] = {}

    def find(self, kind: str, name: str) -> Path:
        """Return the first file of this name; where there is none, the path where it was expected."""
        for folder in self._folders[kind]:
            path = folder / name
            if path.parent not in self._inside:
                inside = path.parent.iterdir() if path.parent.is_dir() else ()
                self._inside[path.parent] = {each.name.casefold(): each for each in inside}
            if path.name.casefold() in self._inside[path.parent]:
                return self._inside[path.parent][path.name.casefold()]
        return self._folders[kind][0] / name


def _rows(release: Release, table: Table) -> Iterator[Row]:
    """Yield a table's rows, each with the cells of the tables beside it; DataError where one of these is longer."""
    first, *others = [
        [row for path in release.present(each.file)[0] for row in _read(path, each)] for each in (table, *table.beside)
    ]
    for rows in others:
        if len(rows) != len(first):
            name = str((rows or first)[0].table)
            raise DataError(f"table {name!r}: has {len(rows)} rows for {len(first)} beside it; fetch both again")
    for row, *more in zip(first, *others, strict=True):
        for other in more:
            row = row.with_cells(other.cells)
        yield row


def _read(path: Path, table: Table) -> Iterator[Row]:
    """Yield a table's rows; texts lose the blanks about them."""
    suffix = path.suffix.casefold()
    own_readers = {".txt": _text_lines, ".mat": _variable}
    rows = own_readers[suffix](path, table) if suffix in own_readers else table_rows(path, table.columns)
    noun = "row" if suffix in {".json", ".mat"} else "line"
    for number, cells in rows:
        row = Row(path, f"{noun} {number}", {})
        if isinstance(cells, Exception):
            raise row.error(fault_of(cells)) from cells
        if not isinstance(cells, dict):
            raise row.error("is not an object; write it as {...}")
        yield row.with_cells({name: cell.strip() if isinstance(cell, str) else cell for name, cell in cells.items()})


def _text_lines(path: Path, table: Table) -> Rows:
    """Yield number and cells of the lines that are not blank of a text file without a header."""
    for number, line in enumerate(path.read_text("ascii", errors="replace").splitlines(), start=1):
        if line.strip():
            parts = line.strip().split(table.separator, len(table.columns) - 1)
            yield number, dict(zip(table.columns, parts, strict=False))


def _variable(path: Path, table: Table) -> Rows:
    """Yield number and value of the entries of a variable of a MATLAB file (v5 to v7)."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    (name,) = table.columns
    try:
        variables = loadmat(path, variable_names=name)
    except (ValueError, TypeError, IndexError, NotImplementedError, MatReadError, OSError) as error:
        raise DataError(f"table {str(path)!r}: is no MATLAB file of version 5 to 7; fetch it again") from error
    if name not in variables:
        raise DataError(f"table {str(path)!r}: has no variable {name!r}; fetch the release again")
    for number, entry in enumerate(variables[name].ravel(), start=1):
        yield number, {name: entry.item()}


def live_places(rows: Iterable[Row]) -> Iterator[Row]:
    """Give LIVE's rows their `kind` and `n`, which only their order tells, and leave the originals out."""
    counts = {"jp2k": 227, "jpeg": 233, "wn": 174, "gblur": 174, "fastfading": 174}
    places = [(kind, n) for kind, count in counts.items() for n in range(1, count + 1)]
    labels = list(rows)
    if len(labels) != len(places):
        fault = f"has {len(labels)} labels for {len(places)} images; fetch it again"
        raise DataError(f"table {str(labels[0].table)!r}: {fault}")
    for row, (kind, n) in zip(labels, places, strict=True):
        if not row.cells["orgs"]:
            yield row.with_cells({"kind": kind, "n": n})


def question_types(rows: Iterable[Row]) -> Iterator[Row]:
    """Give questions Q-Bench's `question_type` by their wording: "yes-or-no", "how" or "what"."""
    for row in rows:
        choices = {str(text).strip().casefold().rstrip(".") for text in row.cells.get("candidates") or ()}
        kind = "how" if re.search(r"\bhow\b", str(row.cells.get("question")), re.IGNORECASE) else "what"
        yield row.with_cells({"question_type": "yes-or-no" if choices <= {"yes", "no"} else kind})


CODE: Mapping[str, Callable[[Iterable[Row]], Iterator[Row]]] = {
    each.__name__: each for each in (live_places, question_types)
}
"""For what no table describes: `code` of an entry names one of these."""
