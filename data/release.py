"""A dataset's release on disk: finding its files and reading its tables, with errors that say what is missing."""

import csv
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.catalogue import DatasetEntry
from data.errors import DataError
from data.manifest import Sample

__all__ = ("ImageFolder", "Release", "as_number", "read_csv", "read_mat", "read_xlsx")


@dataclass(frozen=True, slots=True)
class Release:
    """What a reader gets: which dataset, where it lies and what the user said about it."""

    entry: DatasetEntry
    root: Path
    columns: Mapping[str, str] = field(default_factory=dict)
    """Manifest field -> column, for tables and Hugging Face datasets."""
    mos_range: tuple[float, float] | None = None
    higher_is_better: bool | None = None
    images: Path | None = None
    """Folder that takes the images of a dataset that holds them as bytes."""

    def file(self, *names: str) -> Path:
        """Return the first of these files that is there; DataError naming them when none is."""
        return self._first(names, Path.is_file, "file")

    def folder(self, *names: str) -> Path:
        """Return the first of these folders that is there; DataError naming them when none is."""
        return self._first(names, Path.is_dir, "folder")

    def folders(self, *names: str) -> list[Path]:
        """Return those of these folders that are there, at least one."""
        self.folder(*names)
        return [self.root / name for name in names if (self.root / name).is_dir()]

    def sample(self, name: str, image: Path, **fields: Any) -> Sample:
        """Return a sample of this dataset, on its scale; fields that are None are left out."""
        if self.entry.score is not None and "mos" in fields:
            fields |= {"mos_range": self.entry.score.range, "higher_is_better": self.entry.score.higher_is_better}
        return Sample(id=f"{self.entry.name}/{name}", image=image, **fields)

    def _first(self, names: Sequence[str], is_there: Any, kind: str) -> Path:
        for name in names:
            if is_there(self.root / name):
                return self.root / name
        wanted = " or ".join(repr(name) for name in names)
        raise DataError(
            f"dataset {self.entry.name!r} in {str(self.root)!r}: no {kind} {wanted}; --root is the folder that holds "
            f"{self.entry.layout}"
        )


class ImageFolder:
    """The files of some folders by name, whatever the case of their letters; later folders do not hide earlier ones."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = list(folders)
        self._paths: dict[str, Path] = {}
        for folder in self._folders:
            for name in os.listdir(folder):
                self._paths.setdefault(name.casefold(), folder / name)

    def __contains__(self, name: str) -> bool:
        return name.casefold() in self._paths

    def find(self, name: str) -> Path:
        """Return the file's path; where there is none, the path where it was expected."""
        return self._paths.get(name.casefold(), self._folders[0] / name)


def read_csv(path: Path, columns: Sequence[str] = ()) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file with a header.

    Raises DataError when one of `columns` is not in it, when it is separated by other than commas, and for a row with
    a cell too many or too few.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, skipinitialspace=True)
            _check_header(path, [name or "" for name in rows.fieldnames or ()], columns)
            for row in rows:
                extra: Any = row.pop(None, None)
                if any(extra or ()) or (None in row.values() and any(row.values())):
                    raise DataError(
                        f"table {str(path)!r}, line {rows.line_num}: has {'more' if extra else 'fewer'} cells than the "
                        f"header's {len(row)}; put text that holds commas in quotes, and fill or remove the row"
                    )
                if any(row.values()):
                    yield row
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"table {str(path)!r}: is not a CSV file in UTF-8 ({error}); fetch it again") from error


def read_xlsx(path: Path, columns: Sequence[str], sheet: str | None = None) -> Iterator[list[Any]]:
    """Yield the rows below the header as lists that begin with the values of `columns`, then the whole row.

    The header is the first row that holds all of `columns`, wherever it stands. Needs openpyxl.
    """
    try:
        import openpyxl  # type: ignore[import-untyped]
        from openpyxl.utils.exceptions import InvalidFileException  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError(f"table {str(path)!r}: needs openpyxl to be read; pip install openpyxl") from error
    from zipfile import BadZipFile

    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except (InvalidFileException, BadZipFile, KeyError, ValueError) as error:
        raise DataError(f"table {str(path)!r}: is no .xlsx workbook; save it as .xlsx or fetch it again") from error
    try:
        if sheet is not None and sheet not in book.sheetnames:
            raise DataError(f"table {str(path)!r}: has no sheet {sheet!r} but {', '.join(book.sheetnames)}")
        places: list[int] | None = None
        for row in (book[sheet] if sheet else book.worksheets[0]).iter_rows(values_only=True):
            names = [str(value).strip() if value is not None else "" for value in row]
            if places is None:
                places = [names.index(name) for name in columns] if set(columns) <= set(names) else None
            elif any(value is not None for value in row):
                yield [*(row[place] if place < len(row) else None for place in places), list(row)]
        if places is None:
            raise DataError(f"table {str(path)!r}: no row holds the headers {', '.join(columns)}; fetch it again")
    finally:
        book.close()


def read_mat(path: Path, *names: str) -> dict[str, Any]:
    """Return variables of a MATLAB file (v5 to v7), arrays flattened; DataError when one is not there."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        variables = loadmat(path, variable_names=names)
    except (ValueError, TypeError, IndexError, NotImplementedError, MatReadError, OSError) as error:
        raise DataError(f"table {str(path)!r}: is no MATLAB file of version 5 to 7; fetch it again") from error
    missing = [name for name in names if name not in variables]
    if missing:
        raise DataError(f"table {str(path)!r}: has no variable {missing[0]!r}; fetch the release again")
    return {name: variables[name].ravel() for name in names}


def as_number(value: Any, path: Path, where: str) -> float:
    """Return a finite number; DataError naming the table and the place."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"table {str(path)!r}, {where}: {value!r} is no number; correct or remove the row")
    return number


def _check_header(path: Path, header: Sequence[str], columns: Sequence[str]) -> None:
    if len(header) == 1 and (other := next((mark for mark in ";\t|" if mark in header[0]), None)):
        raise DataError(f"table {str(path)!r}: its cells are separated by {other!r}; save it with commas between")
    missing = [name for name in columns if name not in header]
    if missing:
        raise DataError(
            f"table {str(path)!r}: has no column {missing[0]!r} but {', '.join(header) or 'nothing'}; "
            "fetch the release again or name the columns"
        )
