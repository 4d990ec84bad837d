"""Datasets by name (configs/datasets.yaml), and a release's files and tables, with errors that name file and row."""

import csv
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from data.manifest import GENERATED, Sample
from data.tables import HUB, csv_rows, is_manifest, number_of
from program.common import load_offers
from program.common.backends import Section
from program.common.errors import DataError, InputError, did_you_mean
from program.common.files import CONFIGS, Place, is_remote, named_in, place_of


class Scale(Section):
    """The scale of a dataset's scores."""

    range: tuple[float, float]
    higher_is_better: bool


class DatasetEntry(Section):
    """One dataset; configs/datasets.yaml says what each field means."""

    name: str
    title: str
    task: Literal["scoring", "questions", "pairs"]
    source: str
    licence: str
    citation: str
    score: Scale | None
    count: int | None
    groups: int | None
    split: Literal["official", "official-test", "none"]
    layout: str
    documented: tuple[str, ...]
    verified: bool


@cache
def catalogue() -> Mapping[str, DatasetEntry]:
    """Return the datasets by name, those that other installed packages offer included."""
    import yaml

    text = (CONFIGS / "datasets.yaml").read_text(encoding="utf-8")
    ours = {name: DatasetEntry(name=name, **entry) for name, entry in yaml.safe_load(text).items()}
    return {**load_offers("datasets", lambda name, offer: DatasetEntry(name=name, **offer["entry"])), **ours}


def entry_of(name: str) -> DatasetEntry:
    """Return a dataset's entry; DataError with the nearest name when there is none."""
    entries = catalogue()
    if name not in entries:
        raise DataError(f"dataset {name!r}: is not known{did_you_mean(name, entries)}")
    return entries[name]


def resolve_dataset(name_or_path: str | Path, cache_dir: Path, *, progress: bool = True) -> Place:
    """Return the manifest that a name ("quickstart", "quickstart-fr"), a path, a URI or hf:NAME:SPLIT stands for.

    Quickstart data is generated on first use. Raises DataError when there is neither such a name nor such a file.
    """
    name = str(name_or_path)
    if name in GENERATED:
        from data.quickstart import build_quickstart

        return build_quickstart(cache_dir, progress=progress).with_name(GENERATED[name])
    if is_remote(name) or name.startswith(HUB):
        return name
    path = Path(place_of(os.path.expanduser(name)))
    if path.is_file() or (path.is_dir() and is_manifest(name)):
        return path
    if name in catalogue():
        raise DataError(
            f"dataset {name!r}: give its prepared manifest; to make one: python -m data.prepare {name} --root DIR "
            f"--out {name}/manifest.jsonl"
        )
    if path.is_dir():
        inside = ", ".join(sorted(p.name for p in path.glob("*.jsonl"))) or "none is there; make one"
        raise DataError(f"dataset {name!r}: is a folder; give a manifest in it ({inside})")
    close = get_close_matches(name, [*GENERATED, *map(str, path.parent.glob("*.jsonl"))], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"give a manifest's path or {' or '.join(GENERATED)}"
    raise DataError(f"dataset {name!r}: neither a known name nor a file; {hint}")


@dataclass(frozen=True, slots=True)
class Release:
    """What a reader gets: which dataset, where it lies and what the user said about it."""

    entry: DatasetEntry
    root: Path
    columns: Mapping[str, str] = field(default_factory=dict)
    """Manifest field -> column, for tables and Hugging Face datasets."""
    mos_range: tuple[float, float] | None = None
    higher_is_better: bool | None = None
    images: Path = Path("images")
    """Folder that takes the images of a dataset that holds them as bytes."""

    def file(self, *names: str) -> Path:
        """Return the first of these files or folders that is there; DataError naming them when none is."""
        return self._present(names)[0]

    def image_files(self, *folders: str) -> "ImageFolder":
        """Return the files of those of these folders that are there; DataError naming them when none is."""
        return ImageFolder(self._present(folders))

    def sample(self, name: str, image: Path, **fields: Any) -> Sample:
        """Return a sample of this dataset, on its scale."""
        if self.entry.score is not None and "mos" in fields:
            fields |= {"mos_range": self.entry.score.range, "higher_is_better": self.entry.score.higher_is_better}
        return Sample(id=f"{self.entry.name}/{name}", image=image, **fields)

    def _present(self, names: Sequence[str]) -> list[Path]:
        paths = [self.root / name for name in names if (self.root / name).exists()]
        if not paths:
            raise DataError(
                f"dataset {self.entry.name!r} in {str(self.root)!r}: no {' or '.join(map(repr, names))}; --root is the "
                f"folder that holds {self.entry.layout}"
            )
        return paths


class ImageFolder:
    """The files of some folders by name, whatever the case of their letters; later folders do not hide earlier ones."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = list(folders)
        self._paths: dict[str, Path] = {}
        for folder in self._folders:
            for name in os.listdir(folder):
                self._paths.setdefault(name.casefold(), folder / name)

    def find(self, name: str) -> Path:
        """Return the file's path; where there is none, the path where it was expected."""
        return self._paths.get(name.casefold(), self._folders[0] / name)


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table, which its errors name."""

    table: Path
    place: str
    """Where in the table, as "line 3"."""
    cells: Mapping[str, Any]
    values: Sequence[Any] = ()
    """All values, where the reader may want columns without a name."""

    def __getitem__(self, column: str) -> Any:
        return self.cells[column]

    def number(self, column: str) -> float:
        """Return a cell's finite number; DataError when it holds none."""
        try:
            number = number_of(self.cells[column])
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise self.error(f"{column} {self.cells[column]!r} is no number; correct or remove the row")
        return number

    def image(self, folder: Path, column: str) -> Path:
        """Return the file that a cell names, seen from a folder; DataError where that is on another machine."""
        try:
            return Path(named_in(folder, str(self.cells[column]), None))
        except InputError as error:
            raise self.error(str(error)) from error

    def error(self, fault: str) -> DataError:
        """Return an error that names the table and the place."""
        return DataError(f"table {str(self.table)!r}, {self.place}: {fault}")


def read_csv(path: Path, columns: Sequence[str] = ()) -> Iterator[TableRow]:
    """Yield the rows of a CSV file with a header.

    Raises DataError when one of `columns` is not in it, and for a row with a cell too many or too few.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, cells in csv_rows(file, path, columns):
                if isinstance(cells, ValueError):
                    raise TableRow(path, f"line {number}", {}).error(str(cells))
                if missing := [name for name in columns if name not in cells]:
                    raise DataError(f"table {str(path)!r}: has no column {missing[0]!r} but {', '.join(cells)}")
                yield TableRow(path, f"line {number}", cells)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"table {str(path)!r}: is not a CSV file in UTF-8 ({error}); fetch it again") from error


def read_lines(path: Path, columns: Sequence[str], separator: str | None = None) -> Iterator[TableRow]:
    """Yield the lines of a text file that are not blank; cells that a line lacks are "", and "line" is all of it."""
    lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    for number, line in enumerate(map(str.strip, lines), start=1):
        if line:
            parts = line.split(separator, len(columns) - 1)
            cells = {name: part.strip() for name, part in zip_longest(columns, parts, fillvalue="")}
            yield TableRow(path, f"line {number}", {**cells, "line": line})


def read_xlsx(path: Path, columns: Sequence[str], sheet: str | None = None) -> Iterator[TableRow]:
    """Yield the rows that have a value in the first of `columns`, below the first row that holds all of these names."""
    from zipfile import BadZipFile

    import openpyxl  # type: ignore[import-untyped]

    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        values = (book[sheet] if sheet else book.worksheets[0]).iter_rows(values_only=True)
        named = (["" if value is None else str(value).strip() for value in row] for row in values)
        header = next((names for names in named if set(columns) <= set(names)), None)
        if header is None:
            raise DataError(f"table {str(path)!r}: no row holds the headers {', '.join(columns)}; fetch it again")
        for number, row in enumerate((row for row in values if any(value is not None for value in row)), start=1):
            cells = {name: row[place] if (place := header.index(name)) < len(row) else None for name in columns}
            if cells[columns[0]] is not None:
                yield TableRow(path, f"row {number} below the header", cells, row)
        book.close()
    except (BadZipFile, KeyError) as error:
        raise DataError(f"table {str(path)!r}: is no whole .xlsx workbook ({error}); fetch it again") from error


def read_mat(path: Path, name: str) -> Iterator[TableRow]:
    """Yield the entries of a variable of a MATLAB file (v5 to v7); DataError when it is not there."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        variables = loadmat(path, variable_names=name)
    except (ValueError, TypeError, IndexError, NotImplementedError, MatReadError, OSError) as error:
        raise DataError(f"table {str(path)!r}: is no MATLAB file of version 5 to 7; fetch it again") from error
    if name not in variables:
        raise DataError(f"table {str(path)!r}: has no variable {name!r}; fetch the release again")
    for number, value in enumerate(variables[name].ravel(), start=1):
        yield TableRow(path, f"entry {number}", {name: value})


def side_by_side(*tables: Iterable[TableRow]) -> list[TableRow]:
    """Return the rows of several tables, each with the cells of all; DataError where one is longer than another."""
    first, *others = map(list, tables)
    for rows in others:
        if len(rows) != len(first):
            table = str((rows or first)[0].table)
            raise DataError(f"table {table!r}: has {len(rows)} rows for {len(first)} beside it; fetch both again")
    return [
        replace(row, cells={name: cell for each in (*more, row) for name, cell in each.cells.items()})
        for row, *more in zip(first, *others, strict=True)
    ]
