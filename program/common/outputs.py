"""What may be replaced or removed in a folder: only what this program wrote there itself.

Such a folder holds a record, `.agentic-iqa.json`: the names of what was written, each with its
SHA-256, or with null while it is being written and for a log, which grows. A record can never say
more than the names do, and nothing that it names is looked for: only what lies in the folder is.
"""

import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn

from pydantic import BaseModel, ValidationError

from program.common.errors import InputError
from program.common.files import PARTIAL, plain_file, read_bounded, remove_leftovers, write_whole

RECORD = ".agentic-iqa.json"
_MOST_BYTES = 2**26


class _Record(BaseModel):
    """What this program wrote into a folder."""

    format: int = 1
    files: dict[str, str | None]


@dataclass(frozen=True)
class Kind:
    """The names of one kind of output, as they stand below its folder."""

    names: re.Pattern[str]
    """Files that are replaced or removed."""
    folders: tuple[str, ...] = ()
    """Folders below it."""
    growing: Collection[str] = ()
    """Of `names`, logs that go on growing: no hash is kept."""
    safe: re.Pattern[str] = re.compile("(?!)")
    """Files that are written, and never replaced before their content was looked at."""
    alone: bool = False
    """Whether the folder holds nothing else."""


PROGRAM = Kind(
    re.compile(
        r"program\.json|images/[0-9a-f]{64}\.[a-z]+|"
        r"candidates\.jsonl|diff\.md|report\.html|record\.json|misses\.jsonl"
    ),
    folders=("images",),
    growing=("candidates.jsonl",),
    safe=re.compile(r"review\.jsonl"),
    alone=True,
)
"""A program with the files of its compile, and of an evaluation whose report goes there."""
REPORT = Kind(re.compile(r"report\.html|record\.json|misses\.jsonl"))
GALLERY = Kind(
    re.compile(r"gallery\.(html|csv|jsonl)"),
    folders=("thumbs", "previews"),
    safe=re.compile(r"(thumbs|previews)/[0-9a-f]{24}\.jpg|gallery\.journal|decisions\.json(\.\d+)?"),
)
TABLE = Kind(re.compile(r"part-\d{6,}\.parquet"))


def check_outputs_in(folder: Path, kind: Kind) -> None:
    """Raise InputError for the first thing in a folder's way that this program did not write.

    That is what has a name of the kind and is of others, was changed since, or is a link or a pipe;
    and whatever else lies in a folder that is to hold nothing else.
    """
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise InputError(f"folder {str(folder)!r}: is a file; give a new or empty folder")
    written = _written(folder)
    for name in _names_in(folder, kind):
        if _is_of(kind, name):
            _check(folder, name, kind, written)
        elif kind.alone and name != RECORD:
            mend = f"give a new or empty folder, or move {_short(name)} away, which this program did not write"
            raise InputError(f"folder {str(folder)!r}: holds other files; {mend}")


@contextmanager
def replacing(folder: Path, kind: Kind, names: Iterable[str]) -> Iterator[None]:
    """Let the block write, replace and remove files of these names; they are recorded as ours.

    Raises InputError, before the block, as `check_outputs_in` does for these names alone. OSError
    where the record cannot be written. A kill inside leaves names that the next run knows as its
    own.
    """
    chosen, written = sorted(set(names)), _written(folder)
    for name in chosen:
        _check(folder, name, kind, written)
    written |= dict.fromkeys(chosen)
    _write_record(folder, written)
    yield
    for name, sha256 in list(written.items()):
        if sha256 is not None or not kind.names.fullmatch(name):
            continue
        if not (folder / name).is_file():
            del written[name]
        elif name not in kind.growing:
            written[name] = _sha256(folder / name)
    _write_record(folder, written)


def names_of(folder: Path, kind: Kind) -> list[str]:
    """Return what a folder holds of the files that are replaced or removed."""
    return [name for name in _names_in(folder, kind) if kind.names.fullmatch(name)]


def remove_outputs(folder: Path, kind: Kind) -> None:
    """Remove what this program wrote into a folder, and the folder where nothing else is in it.

    Raises InputError, with nothing removed, as `replacing` does.
    """
    if not folder.is_dir():
        return
    names = names_of(folder, kind)
    with replacing(folder, kind, names):
        for name in names:
            (folder / name).unlink()
    (folder / RECORD).unlink()
    for each in (*(folder / below for below in kind.folders), folder):
        remove_leftovers(each)
        if each.is_dir() and not any(each.iterdir()):
            each.rmdir()


def _is_of(kind: Kind, name: str) -> bool:
    known = name in kind.folders or kind.names.fullmatch(name) or kind.safe.fullmatch(name)
    return bool(known) or _is_partial(name)


def _is_partial(name: str) -> bool:
    """Tell whether a file is only being written, or was left by a kill."""
    return PARTIAL.fullmatch(PurePosixPath(name).name) is not None


def _names_in(folder: Path, kind: Kind) -> Iterator[str]:
    """Yield the names in a folder, and in the folders below it that the kind has; no links."""
    for name in sorted(os.listdir(folder)):
        yield name
        below = folder / name
        if name in kind.folders and below.is_dir() and not below.is_symlink():
            yield from (f"{name}/{each}" for each in sorted(os.listdir(below)))


def _check(folder: Path, name: str, kind: Kind, written: dict[str, str | None]) -> None:
    """Raise InputError where a name of the kind is taken by what this program did not write."""
    parent = str(PurePosixPath(name).parent)
    if parent != ".":
        _check(folder, parent, kind, written)
    path = folder / name
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        _refuse(folder, name, "is a link")
    if name in kind.folders:
        if not stat.S_ISDIR(mode):
            _refuse(folder, name, "is no folder")
        return
    if not stat.S_ISREG(mode):
        _refuse(folder, name, "is no plain file")
    if kind.safe.fullmatch(name) or _is_partial(name):
        return
    if name not in written:
        _refuse(folder, name, "was not written by this program")
    sha256 = written[name]
    if sha256 is not None and sha256 != _sha256(path):
        _refuse(folder, name, "was changed since this program wrote it")


def _refuse(folder: Path, name: str, fault: str) -> NoReturn:
    raise InputError(f"folder {str(folder)!r}: {_short(name)} {fault}; move it away, or give another folder")


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:80]}...")


def _sha256(path: Path) -> str:
    with open(path, "rb", opener=plain_file) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _written(folder: Path) -> dict[str, str | None]:
    """Return what this program wrote into a folder: names, each with its SHA-256 or None."""
    path = folder / RECORD
    try:
        status = path.lstat()
    except FileNotFoundError:
        return {}
    if not stat.S_ISREG(status.st_mode):
        _refuse(folder, RECORD, "is no plain file")
    try:
        return _Record.model_validate_json(read_bounded(path, _MOST_BYTES)).files
    except (OSError, ValidationError):
        _refuse(folder, RECORD, "is no record of what this program wrote")


def _write_record(folder: Path, files: dict[str, str | None]) -> None:
    record = _Record(files=dict(sorted(files.items())))
    write_whole(folder / RECORD, record.model_dump_json(indent=1) + "\n")
