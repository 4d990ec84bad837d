"""What a person decided on the page, as a file; and copying by it: verified, and never over anything."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from program.common.errors import InputError, first_fault
from program.common.files import new_file, plain_file, synced, write_whole

_BLOCK = 2**20


class Decision(BaseModel):
    """What a person decided of one picture."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """Of the picture that was decided on: another one of its name is another picture."""
    verdict: Literal["keep", "reject"] | None = None
    stars: int | None = Field(default=None, ge=0, le=5)
    best: bool = False
    """Whether it is the best of its group."""


class Decisions(BaseModel):
    """All decisions, by the pictures' names in the table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decisions: Literal["agentic-iqa"] = "agentic-iqa"
    version: Literal[1] = 1
    pictures: Mapping[str, Decision] = Field(default_factory=dict)

    def of(self, name: str, sha256: str | None) -> Decision | None:
        """Return what was decided of a picture; None where nothing was, or of another picture of its name."""
        found = self.pictures.get(name)
        return found if found is not None and found.sha256 == sha256 else None


def read_decisions(path: Path) -> Decisions:
    """Read a file that the page saved. Raises InputError for any other."""
    try:
        return Decisions.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"--decisions {str(path)!r}: cannot be read ({error.strerror}); check the path") from error
    except ValidationError as error:
        fault = first_fault(error, "the file")
        raise InputError(f"--decisions {str(path)!r}: is none of the page's files ({fault}); save it again") from error


def write_decisions(path: Path, decisions: Decisions) -> None:
    """Write decisions, whole or not at all. OSError where that cannot be."""
    write_whole(path, decisions.model_dump_json(exclude_defaults=False, indent=1) + "\n")


Copied = Literal["copied", "there", "to copy"]


def copy_picture(source: Path, target: Path, sha256: str, companions: Iterable[Path] = (), *, dry: bool) -> Copied:
    """Copy a picture, and its sidecars beside it; "there" where the same bytes are there already.

    What is written is read back and compared with the hash of the picture that was judged. With `dry` all is checked
    and nothing written. Raises InputError for a picture that changed and for a name that is taken, OSError where it
    cannot be read or written.
    """
    pairs = [(source, target), *((each, target.with_name(each.name)) for each in companions)]
    taken = [goal for _, goal in pairs if os.path.lexists(goal)]
    if target in taken and not target.is_symlink() and _hash_of(target) == sha256:
        return "there"
    if taken:
        raise InputError(f"{str(taken[0])!r}: is there already; name another --to, or move it away")
    if _hash_of(source) != sha256:
        raise InputError(f"image {str(source)!r}: changed since it was judged; run the command again")
    if dry:
        return "to copy"
    target.parent.mkdir(parents=True, exist_ok=True)
    for one, goal in reversed(pairs):  # the picture last: a copy that is cut off is made again
        _copy(one, goal, sha256 if one == source else _hash_of(one))
    return "copied"


def _copy(source: Path, target: Path, sha256: str) -> None:
    try:
        with open(source, "rb", opener=plain_file) as reading, new_file(target) as writing:
            shutil.copyfileobj(reading, writing, _BLOCK)
            synced(writing)
            if _hash_of(Path(writing.name)) != sha256:
                raise InputError(f"image {str(source)!r}: changed while it was copied; run the command again")
            shutil.copystat(source, writing.name)
    except FileExistsError:
        raise InputError(f"{str(target)!r}: appeared meanwhile; name another --to, or move it away") from None


def _hash_of(path: Path) -> str:
    with open(path, "rb", opener=plain_file) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
