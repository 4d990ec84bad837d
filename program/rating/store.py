"""Files of a person's answers: lines are added at the end, each is on disk before the page hears of it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from data.ratings import NAME, RatingLine, read_ratings
from data.reviews import Opinion, read_lines
from program.common.errors import InputError
from program.common.files import sync
from program.running.journal import LineLog

L = TypeVar("L")

OPINIONS = "review.jsonl"
"""Of the file in a report's folder."""


class AnswerFile(LineLog, Generic[L]):
    """A folder's answers, for one server at a time."""

    def __init__(self, path: Path, kind: str, read: Callable[[Path], list[L]], *, mend: str) -> None:
        """Open or make the file, and cut off what a kill left of its last line; `read` says half a line is there.

        Raises InputError where the folder cannot be written or another server has it, DataError for a line that is of
        another kind.
        """
        super().__init__(path, mend=mend, name=f"{kind} {str(path)!r}")
        try:
            data = path.read_bytes()
            whole = data.rpartition(b"\n")[0]
            if not whole and data[:6] not in {b"", b'{"id":'}:
                raise InputError(f"{kind} {str(path)!r}: holds no {kind}; {mend}")
            self.lines_before = read(path)
            os.truncate(path, len(whole) + 1 if whole else 0)
        except BaseException:
            self.close()
            raise

    def add_whole(self, line: str) -> None:
        """Write one line, which survives a kill and a power cut. Raises InputError, on a full disk say."""
        self.append(line)
        sync(self._file)


class RatingFile(AnswerFile[RatingLine]):
    """A folder's ratings."""

    def __init__(self, folder: Path) -> None:
        """Open or make the file as AnswerFile does."""
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--out {str(folder)!r}: is a file; name a folder")
        super().__init__(folder / NAME, "ratings", read_ratings, mend="give another --out")

    def add(self, line: RatingLine) -> None:
        """Write one rating."""
        values = line.model_dump(mode="json", exclude_none=True)
        self.add_whole(json.dumps(values | {"mos": line.mos, "unsure": line.unsure}))


class OpinionFile(AnswerFile[Opinion]):
    """The second opinions in a report's folder."""

    def __init__(self, folder: Path) -> None:
        """Open or make the file as AnswerFile does."""
        mend = "give another report's folder"
        super().__init__(folder / OPINIONS, "review", lambda path: read_lines(path, Opinion), mend=mend)

    def add(self, opinion: Opinion) -> None:
        """Write one opinion."""
        self.add_whole(opinion.model_dump_json())
