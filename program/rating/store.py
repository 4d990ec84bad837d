"""The file of ratings: lines are added at the end, each is on disk before the page hears of it."""

import json
import os
from pathlib import Path

from data.ratings import NAME, RatingLine, read_ratings
from program.common.errors import InputError
from program.common.files import sync
from program.running.journal import LineLog


class RatingFile(LineLog):
    """A folder's ratings, for one server at a time."""

    def __init__(self, folder: Path) -> None:
        """Open or make the file, and cut off what a kill left of its last line.

        Raises InputError where the folder cannot be written or another server has it, DataError for a line that is no
        rating.
        """
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--out {str(folder)!r}: is a file; name a folder")
        path = folder / NAME
        super().__init__(path, mend="give another --out", name=f"ratings {str(path)!r}")
        try:
            whole = path.read_bytes().rpartition(b"\n")[0]
            if not whole and path.read_bytes()[:6] not in {b"", b'{"id":'}:
                raise InputError(f"ratings {str(path)!r}: holds no ratings; give another --out")
            lines = read_ratings(path)  # which says that half a line is left out
            os.truncate(path, len(whole) + 1 if whole else 0)
        except BaseException:
            self.close()
            raise
        self.lines_before = lines

    def add(self, line: RatingLine) -> None:
        """Write one line, which survives a kill and a power cut. Raises InputError, on a full disk say."""
        values = line.model_dump(mode="json", exclude_none=True)
        before = os.fstat(self._file.fileno()).st_size
        try:
            self.append(json.dumps(values | {"mos": line.mos, "unsure": line.unsure}))
        except InputError:
            os.truncate(self.path, before)  # else the next line would join half a one
            raise
        sync(self._file)
