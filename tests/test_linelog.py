"""A file of lines: whole after a kill, one writer at a time, and a full disk is told in one line."""

import io
import os

import pytest

from program.errors import InputError
from program.linelog import LineLog


def test_lines_come_back_and_half_a_line_is_cut(tmp_path):
    path = tmp_path / "log"
    log = LineLog(path, mend="")
    log.append('{"a": "é"}')
    log.append("two")
    log.close()
    with path.open("ab") as file:
        file.write(b"hal")
    again = LineLog(path, mend="")
    assert list(again.lines()) == ['{"a": "é"}\n'.encode(), b"two\n"]
    again.append("three")
    again.close()
    assert path.read_text("utf-8") == '{"a": "é"}\ntwo\nthree\n'


def test_a_file_without_a_whole_line_is_left_as_it_is(tmp_path):
    path = tmp_path / "notes"
    path.write_bytes(b"somebody's one line")
    log = LineLog(path, mend="")
    assert list(log.lines()) == []
    log.close()
    assert path.read_bytes() == b"somebody's one line"


@pytest.mark.skipif(os.name == "nt", reason="no such locks on Windows")
def test_a_second_writer_is_told_so(tmp_path):
    first = LineLog(tmp_path / "log", mend="give another --out")
    with pytest.raises(InputError, match="another run writes it; wait, or give another --out"):
        LineLog(tmp_path / "log", mend="give another --out")
    first.close()
    LineLog(tmp_path / "log", mend="").close()


def test_a_place_that_cannot_be_written_is_told_in_one_line(tmp_path):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "missing" / "log"):
        with pytest.raises(InputError, match=r"cannot be written \(.+\); give another --out"):
            LineLog(path, mend="give another --out")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_told_in_one_line(tmp_path):
    log = LineLog(tmp_path / "log", mend="free some")
    log.close()
    log._file = open("/dev/full", "ab", buffering=0)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\); free some"):
        log.append("line")
    log.close()


def test_a_write_that_takes_only_a_part_is_gone_on_with(tmp_path):
    class Slow(io.BytesIO):
        def write(self, data):
            return super().write(bytes(data[:3]))

    log = LineLog(tmp_path / "log", mend="")
    log.close()
    log._file = Slow()
    log.append("a line of some length")
    assert log._file.getvalue() == b"a line of some length\n"
