"""A file of lines: whole after a kill, one writer at a time, and a full disk is told in one line."""

import io
import os

import pytest

from program.common.errors import InputError
from program.common.request import Request
from program.running.journal import Journal, LineLog
from program.running.row import Row


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
    (tmp_path / "file").touch()
    for path in (tmp_path / "folder", tmp_path / "file" / "log"):
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


def _resumed(path, **header):
    with Journal(path, {"journal": "test", **header}, Row, mend="give another file") as log:
        count = log.resume()
        log.keep(Request(id=str(count)), count, Row(id=str(count), status="ok"))
    return count


def test_a_resumed_log_gives_back_what_the_same_work_wrote(tmp_path):
    path = tmp_path / "log"
    assert _resumed(path, context={"a": 1}) == 0
    with path.open("ab") as file:
        file.write(b"[1, 2")  # as a kill leaves it
    assert _resumed(path, context={"a": 1}) == 1
    assert _resumed(path, context={"a": 1}) == 2


def _log(path):
    return Journal(path, {"journal": "test"}, Row, mend="give another file")


def test_a_request_that_failed_is_tried_again(tmp_path):
    failed, done = Request(id="failed"), Request(id="done")
    with _log(tmp_path / "log") as log:
        log.resume()
        log.keep(failed, 0, Row(id="failed", status="error", error="the service is busy"))
        log.keep(done, 1, Row(id="done", status="ok"))
    with _log(tmp_path / "log") as log:
        assert log.resume() == 1
        assert (log.find(failed, 0), log.find(done, 1)) == (None, Row(id="done", status="ok"))


@pytest.mark.parametrize("changed", ["image", "reference"])
def test_an_image_is_judged_again_where_it_or_its_reference_changed(tmp_path, changed):
    files = {name: tmp_path / f"{name}.png" for name in ("image", "reference")}
    for file in files.values():
        file.write_bytes(b"before")
    request = Request(id="a", **files)
    with _log(tmp_path / "log") as log:
        log.resume()
        log.keep(request, 0, Row(id="a", status="ok"))
    files[changed].write_bytes(b"and after")
    with _log(tmp_path / "log") as log:
        assert log.resume() == 1
        assert log.find(request, 0) is None


def test_a_log_of_other_work_is_refused_with_the_first_difference(tmp_path):
    path = tmp_path / "log"
    _resumed(path, context={"deep": {"a": 1, "b": [2]}})
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"another run \(context.deep.b: \[2\] there, None here\)"):
        _resumed(path, context={"deep": {"a": 1}})
    assert path.read_bytes() == before
    _resumed(path, context={"deep": {"a": 1, "b": [2]}})  # and nobody holds the lock


@pytest.mark.parametrize("content", [b"some notes\n", b"some notes", b"[1]\n", b'{"journal": "other"}\n'])
def test_a_file_that_is_no_log_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is no test journal; give another file"):
        _resumed(path)
    assert path.read_bytes() == content


def test_half_a_header_is_begun_again_and_a_damaged_line_named(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"journal": "test", "cont')
    assert _resumed(path) == 0
    with path.open("ab") as file:
        file.write(b"{broken\n")
    with pytest.raises(InputError, match="line 3: damaged"):
        _resumed(path)
