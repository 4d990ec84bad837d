"""What is written beside pictures: XMP sidecars, and verified copies.

What another program wrote stays: `new` makes a sidecar only where there is none, `merge` adds what
one lacks and leaves every other byte as it is, as `packets` says.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from program.common.errors import InputError
from program.common.files import new_file, plain_file, read_bounded, sync, whole_file
from program.images.packets import MOST_BYTES, Fields, merged, new_packet
from program.images.stated import Naming, is_empty, read_sidecar, sidecar_fault, sidecar_of, sidecars_of

_MEND = "write it again with the program that made it, or remove it"


def write_sidecar(
    picture: Path, fields: Fields, mode: Literal["new", "merge"], naming: Naming, *, dry: bool = False
) -> str:
    """Write a picture's sidecar and return what became of it: "written", "merged" or "kept".

    With `dry` nothing is written. Raises InputError, one line, where the sidecar that is there
    cannot be read or added to, is a link, is read-only or has two names, and OSError where it
    cannot be written.
    """
    there = sidecars_of(picture, naming)
    path = there[0] if there else sidecar_of(picture, naming)
    if path.is_symlink():
        raise sidecar_fault(path, "is a link", "put a file there")
    if not there:
        if not dry:
            _create(path, new_packet(fields))
        return "written"
    if mode == "new":
        return "kept"
    before = read_sidecar(path, picture.parent)
    try:
        after = merged(before, fields)
    except ValueError as error:
        raise sidecar_fault(path, str(error), _MEND) from error
    if after is None:
        return "kept"
    _check_replaceable(path)
    if not dry:
        _replace(path, before, after)
    return "merged"


def _check_replaceable(path: Path) -> None:
    """Raise InputError for a file whose replacement would not be the same to its owner."""
    facts = os.lstat(path)
    if facts.st_nlink > 1:
        raise sidecar_fault(path, "has another name (a hard link)", "put a copy in its place")
    if not facts.st_mode & 0o222 or not os.access(path, os.W_OK):
        raise sidecar_fault(path, "is read-only", "let it be written, or leave it as it is")


def _create(path: Path, data: bytes) -> None:
    try:
        with suppress(FileNotFoundError):
            if is_empty(os.lstat(path)):
                path.unlink()
        with new_file(path) as file:
            file.write(data)
    except FileExistsError:
        raise sidecar_fault(path, "appeared meanwhile", "run the command again") from None


def _replace(path: Path, before: bytes, data: bytes) -> None:
    with whole_file(path) as partial:
        with partial.open("wb") as file:
            file.write(data)
            sync(file)
        _keep_facts(path, partial)
        if read_bounded(path, MOST_BYTES) != before:
            raise sidecar_fault(path, "changed meanwhile", "run the command again")


def _keep_facts(path: Path, partial: Path) -> None:
    """Give a file another's owner (where permitted), mode and extended attributes."""
    facts = path.stat()
    if hasattr(os, "chown"):
        for owner, group in ((-1, facts.st_gid), (facts.st_uid, -1)):
            with suppress(PermissionError):
                os.chown(partial, owner, group)
    shutil.copystat(path, partial)
    os.utime(partial)  # else a photo manager would not see that it changed


Copied = Literal["copied", "there", "to copy"]
_BLOCK = 2**20


def copy_picture(source: Path, target: Path, sha256: str, companions: Iterable[Path] = (), *, dry: bool) -> Copied:
    """Copy a picture, and its sidecars beside it; "there" where the same bytes are there already.

    What is written is read back and compared with the hash of the picture that was judged. With
    `dry` all is checked and nothing written. Raises InputError for a picture that changed and for a
    name that is taken, OSError where it cannot be read or written.
    """
    if _is_copy(target, sha256):
        return "there"
    hashes = {each: _hash_of(each) for each in companions}
    beside = [(each, target.with_name(each.name)) for each in hashes]
    # Those that a run copied before it was cut off are there.
    beside = [(each, goal) for each, goal in beside if not _is_copy(goal, hashes[each])]
    for goal in (target, *(goal for _, goal in beside)):
        if os.path.lexists(goal):
            raise InputError(f"{str(goal)!r}: is there already; name another --to, or move it away")
    if _hash_of(source) != sha256:
        raise InputError(f"image {str(source)!r}: changed since it was judged; run the command again")
    if dry:
        return "to copy"
    target.parent.mkdir(parents=True, exist_ok=True)
    for one, goal in beside:
        _copy_file(one, goal, hashes[one])
    _copy_file(source, target, sha256)  # last: a copy that is cut off is made again
    return "copied"


def _is_copy(path: Path, sha256: str) -> bool:
    """Tell whether a file, and no link, holds the bytes of a hash."""
    return path.is_file() and not path.is_symlink() and _hash_of(path) == sha256


def _copy_file(source: Path, target: Path, sha256: str) -> None:
    try:
        with open(source, "rb", opener=plain_file) as reading, new_file(target) as writing:
            shutil.copyfileobj(reading, writing, _BLOCK)
            sync(writing)
            if _hash_of(Path(writing.name)) != sha256:
                raise InputError(f"image {str(source)!r}: changed while it was copied; run the command again")
            shutil.copystat(source, writing.name)
    except FileExistsError:
        raise InputError(f"{str(target)!r}: appeared meanwhile; name another --to, or move it away") from None


def _hash_of(path: Path) -> str:
    with open(path, "rb", opener=plain_file) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
