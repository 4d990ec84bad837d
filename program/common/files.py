"""Files by path or URI (s3://, ...), there whole or not at all; locks; sets on disk."""

import base64
import contextlib
import errno
import hashlib
import os
import re
import sqlite3
import stat
import tempfile
import time
import unicodedata
import uuid
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import unquote

from program.common.addresses import CHAIN, DATA, FILE, URI, WEB, is_below, joined, kind_elsewhere, parent, path_in
from program.common.errors import InputError, one_line

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
"""What the program ships with, by its place: a working folder may hold a package `configs`."""


PARTIAL = re.compile(r"\..{1,50}\.[0-9a-f]{8}\.agentic-iqa\.tmp", re.DOTALL)
"""Names of files that are being written, and that a kill leaves."""
_ABANDONED_S = 24 * 60 * 60
"""Age from which such a file is a killed run's where the system has no locks."""


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the path of an empty file that takes the name `path` where the block ends well."""
    with _partial_file(path) as partial:
        yield partial
        os.replace(partial, path)


@contextlib.contextmanager
def _partial_file(path: Path) -> Iterator[Path]:
    """Yield an empty file beside `path`, which goes with the block unless it was renamed.

    It is locked meanwhile, so that no other run takes it for one that a kill left.
    """
    while True:
        partial = path.with_name(f".{path.name[:50]}.{uuid.uuid4().hex[:8]}.agentic-iqa.tmp")
        with partial.open("xb") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                lock_file(file, wait=True)
            if os.name == "nt":  # renames no open file
                file.close()
            elif not partial.exists():  # another run took it for a left one before it was locked
                continue
            try:
                yield partial
            finally:
                with contextlib.suppress(OSError):
                    partial.unlink()
            return


def remove_leftovers(folder: Path) -> None:
    """Remove the half-written files that killed runs left in a folder; not those of runs that go on."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if PARTIAL.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                _remove_left(Path(entry.path))


def _remove_left(partial: Path) -> None:
    with contextlib.suppress(OSError), open(partial, "rb", opener=plain_file) as file:
        try:
            is_left = lock_file(file, wait=False)
        except BlockingIOError:
            return
        except OSError:  # a file system without locks
            is_left = False
        if is_left or time.time() - os.fstat(file.fileno()).st_mtime > _ABANDONED_S:
            if os.name == "nt":  # removes no open file
                file.close()
            partial.unlink()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, whole or not at all; texts as UTF-8. OSError where it cannot be written."""
    with whole_file(path) as partial:
        if isinstance(content, str):
            content = content.encode("utf-8")
        partial.write_bytes(content)


def sync(file: IO[bytes]) -> None:
    """Have what was written to a file on disk, so that it survives a power cut."""
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that takes the name `path` where the block ends well; it is on disk by then.

    FileExistsError where the name is taken, even if only meanwhile: nothing is replaced. OSError
    where it cannot be written.
    """
    with _partial_file(path) as partial:
        with partial.open("wb") as file:
            yield file
            sync(file)
        try:
            os.link(partial, path)
        except FileExistsError:
            raise
        except OSError:
            # FAT and exFAT, of cameras' cards, know no hard links: there a file that appears just now is replaced.
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
            os.rename(partial, path)


@contextlib.contextmanager
def path_lock(path: Path) -> Iterator[None]:
    """Wait until no other process is in a block of the same path. The file stays; it holds nothing.

    OSError where it cannot be written. Does not wait where the system has no such locks (Windows).
    """
    with path.open("ab") as file:
        lock_file(file, wait=True)
        yield


def keep_private(path: Path) -> None:
    """Let the owner alone read a file, made where there is none, or a folder, where that can be."""
    with contextlib.suppress(OSError):
        if not path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        elif path.stat().st_mode & 0o077:
            path.chmod(0o700 if path.is_dir() else 0o600)


def remove_database(path: Path) -> None:
    """Remove an SQLite file with what a killed process left beside it."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def lock_file(file: IO[bytes], *, wait: bool) -> bool:
    """Lock an open file until it is closed and return True; False where the system cannot.

    Raises OSError where another has it and `wait` is False, and where the file system knows no
    locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    at_once = 0 if wait else fcntl.LOCK_NB
    fcntl.flock(file, fcntl.LOCK_EX | at_once)
    return True


def temporary_database(*tables: str) -> sqlite3.Connection:
    """Return a database on disk that goes with its connection; 16 MiB of memory, one thread."""
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA cache_size = -16384")
    for table in tables:
        database.execute(table)
    database.execute("BEGIN")
    return database


def digest_of(text: str) -> bytes:
    """Return the 16 bytes that stand for a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class IdSet:
    """The texts that were added: 16 bytes of each, on disk once there are many. One thread."""

    def __init__(self) -> None:
        self._ids = temporary_database("CREATE TABLE ids (id BLOB PRIMARY KEY) WITHOUT ROWID")

    def add(self, text: str) -> bool:
        """Add a text; tell whether it is new."""
        return self._ids.execute("INSERT OR IGNORE INTO ids VALUES (?)", (digest_of(text),)).rowcount == 1

    def __contains__(self, text: str) -> bool:
        return self._ids.execute("SELECT 1 FROM ids WHERE id = ?", (digest_of(text),)).fetchone() is not None

    def close(self) -> None:
        """Forget them."""
        self._ids.close()


Place = Path | str
"""A local path, or the URI of a file elsewhere."""


def is_remote(place: Place) -> bool:
    """Tell whether a name is the URI of a file elsewhere, or an image itself as a data: URI."""
    if not isinstance(place, str) or FILE.match(place):
        return False
    return URI.match(place) is not None or DATA.match(place) is not None


def place_of(name: Place) -> Place:
    """Return a name as a local path or a URI with its kind in small letters; InputError for a URL.

    It takes the user's word: `named_in` is for names that stand in data.
    """
    if isinstance(name, str) and (scheme := FILE.match(name)):
        path = unquote(name[scheme.end() :], errors="surrogateescape")
        return Path(path.removeprefix("/") if re.match("/[A-Za-z]:", path) else path)  # file:///C:/photos
    if isinstance(name, Path) or not is_remote(name):
        return Path(name)
    if DATA.match(name):
        return name
    if kind_elsewhere(name) in WEB:
        raise InputError(f"file {name[:200]!r}: is a URL; download it and give its path")
    return URI.sub(lambda kind: kind[0].casefold(), name, count=1)


def named_in(folder: Place, name: str, allowed: Collection[str] | None = ()) -> Place:
    """Return the image that data (a cell, an argument, a listing) calls `name` in a folder.

    Such a name leads to a file of this machine, to a data: URI, or, from a folder elsewhere, below
    that folder. It leads elsewhere only where the user `allowed` its kind of address; None: no user
    can. Raises InputError for any other name, before anything is opened.
    """
    kind = kind_elsewhere(name)
    if not kind and (isinstance(folder, Path) or DATA.match(name)):
        return join_place(folder, str(place_of(name)))
    place = join_place(folder, str(place_of(path_in(name))))
    if isinstance(folder, str) and isinstance(place, str) and is_below(place, folder):
        return place
    fault = "is on another machine" if kind else "leads out of the table's folder"
    kind = kind or kind_elsewhere(str(place))
    if allowed is None:
        raise InputError(f"image {name[:200]!r}: {fault}; download it and give its path")
    if kind in allowed:
        return place
    mend = f"allow its kind with --remote {kind} (images.remote), or download it"
    raise InputError(f"image {name[:200]!r}: {fault}; {mend}")


def folder_of(place: Place) -> Place:
    """Return the folder that a file lies in."""
    if isinstance(place, Path):
        return place.resolve().parent
    return parent(place)


def from_base64(text: str) -> bytes:
    """Return the bytes of a base64 text: plain, URL-safe, or a data: address; or ValueError."""
    address = DATA.match(text)
    body = unquote(text[address.end() :]) if address else text
    compact = re.sub(r"\s+", "", body).rstrip("=").translate(str.maketrans("-_", "+/"))
    return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)


def name_of(place: Place) -> str:
    """Return a file's own name, without its folder."""
    return PurePosixPath(place).name


def check_text(text: str, name: str = "") -> None:
    """Raise InputError, beginning with `name`, for text that cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        fault = "holds half of a surrogate pair (\\ud800 to \\udfff), which is no character; write it whole"
        raise InputError(f"{name} {fault}".lstrip()) from error


def readable(place: Place) -> str:
    """Return a path as text of any encoding: bytes that are no UTF-8 as backslash escapes."""
    return os.fsencode(place.as_posix() if isinstance(place, Path) else place).decode("utf-8", "backslashreplace")


def join_place(folder: Place, name: str) -> Place:
    """Return what a name stands for in a folder: a file below it, or what it names by itself."""
    if is_remote(name):
        return place_of(name)
    if isinstance(folder, Path):
        # As it is written; with the folders of Windows; with accents composed, or apart (macOS).
        slashed = name.replace("\\", "/")
        composed, apart = (unicodedata.normalize(form, slashed) for form in ("NFC", "NFD"))
        spelt = dict.fromkeys([name, slashed, composed, apart])
        places = [Path(os.path.normpath(folder / each)) for each in spelt]
        return next(filter(exists, places), places[0])
    return joined(folder, name)


def path_mend(name: Place, other: str = "check the path") -> str:
    """Return what to do about a file that is not there: mind its backslashes, or `other`."""
    if "\\" in str(name) and os.sep == "/":
        return "a backslash separates folders on Windows only: write / instead"
    return other


def plain_file(path: str, flags: int) -> int:
    """Open a file without ever waiting for it: the `opener` of `open`.

    Raises OSError (EINVAL, "not a plain file") for a pipe, a socket or a device, which may send
    nothing or never end.
    """
    # A pipe is not opened even for a moment: who writes to it would take that for its reader.
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # `open` itself refuses a folder
        raise OSError(errno.EINVAL, "not a plain file", path)
    return os.open(path, flags)


def read_bounded(path: Path, most: int) -> bytes:
    """Return the bytes of a plain file, whatever lies there in its place.

    Raises OSError where it cannot be read, as `plain_file` does, and for one of over `most` bytes,
    of which no more are read (EFBIG).
    """
    with open(path, "rb", opener=plain_file) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"has over {most >> 20} MiB", str(path))
    return data


def leads_out(path: Path, folder: Path) -> bool:
    """Tell whether a name below a folder leads, by links, to what does not lie in it."""
    try:
        return not path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # links in a circle
        return True


def check_plain(path: Path, name: str) -> None:
    """Raise InputError, beginning with `name`, where a file is a link, a pipe or a device.

    A folder passes, and a link to one.
    """
    if os.path.isdir(path) or not os.path.lexists(path):
        return
    mode = os.lstat(path).st_mode
    if not stat.S_ISREG(mode):
        fault = "is a link" if stat.S_ISLNK(mode) else "is no plain file"
        raise InputError(f"{name}: {fault}; give another name")


@contextlib.contextmanager
def open_file(place: Place) -> Iterator[IO[bytes]]:
    """Open a file to read its bytes. Raises OSError where it is not there or cannot be read."""
    if isinstance(place, Path):
        with open(place, "rb", opener=plain_file) as file:
            yield file
        return
    with _store_of(place) as (system, path):
        file = system.open(path, "rb")
    with file:
        yield file


@contextlib.contextmanager
def output_file(place: Place) -> Iterator[IO[bytes]]:
    """Yield a file to write bytes into, there whole once the block ends well; or OSError."""
    if isinstance(place, Path):
        with whole_file(place) as partial, partial.open("wb") as file:
            yield file
        return
    system_of(place)  # an unknown kind is refused before anything is written
    with tempfile.NamedTemporaryFile() as copy:  # an upload that is left in the middle would be taken for a whole file
        yield copy
        copy.flush()
        with _store_of(place) as (system, path):
            system.put_file(copy.name, path)


def exists(place: Place) -> bool:
    """Tell whether a file or a folder is there."""
    if isinstance(place, Path):
        return os.path.exists(place)
    with _store_of(place) as (system, path):
        return bool(system.exists(path))


def is_folder(place: Place) -> bool:
    """Tell whether a folder is there."""
    if isinstance(place, Path):
        return os.path.isdir(place)
    with _store_of(place) as (system, path):
        return bool(system.isdir(path))


def list_files(folder: str, *, recursive: bool) -> Iterator[tuple[str, Place | InputError]]:
    """Yield the files of a folder elsewhere by their names below it; or why one has no address."""
    with _store_of(folder) as (system, path):
        found = sorted(system.find(path, maxdepth=None if recursive else 1))
    for each in found:
        below = each.removeprefix(path.rstrip("/")).lstrip("/")
        if CHAIN in below:
            yield below, InputError(f"image {below[:200]!r}: has '::' in its name, which no address can; rename it")
        else:
            yield below, joined(folder, below)


def check_output(flag: str, out: Place, inputs: Iterable[Place], *, force: bool) -> None:
    """Raise InputError where `out` is an input, or, without `force`, is there already.

    That is so with `force`, too, for a link, which a file would replace, and for a pipe or a
    device.
    """
    if isinstance(out, Path):
        check_plain(out, f"{flag} {str(out)!r}")
    if not exists(out):
        return
    for given in inputs:
        if _is_within(given, out):
            fault = "is read by this command, whose output never replaces it"
            raise InputError(f"{flag} {str(out)!r}: {fault}; give another name")
    if not force:
        raise InputError(f"{flag} {str(out)!r}: is there already; give another name, or --force to replace it")


def _is_within(given: Place, out: Place) -> bool:
    """Tell whether a file is what `out` names, by whatever link, or lies in that folder."""
    if not isinstance(out, Path) or is_remote(given):
        return str(given).rstrip("/") == str(out).rstrip("/")
    try:
        path = Path(place_of(given)).resolve()
        folders = path.parents if path.exists() else ()
        return any(os.path.samefile(each, out) for each in (path, *folders))
    except (OSError, ValueError, InputError):  # no file's name, or none there
        return False


def remove(place: Place) -> None:
    """Remove a file if it is there."""
    if isinstance(place, Path):
        place.unlink(missing_ok=True)
    elif exists(place):
        with _store_of(place) as (system, path):
            system.rm_file(path)


def system_of(place: Place) -> tuple[Any, str]:
    """Return fsspec's file system of a file and its name there; InputError for an unknown kind."""
    from fsspec.core import url_to_fs

    if CHAIN in str(place):
        raise InputError(f"file {str(place)[:200]!r}: is a chain of addresses (::); download it and give its path")
    try:
        system, path = url_to_fs(str(place))
    except (ImportError, ValueError) as error:
        fault = f"cannot be reached ({one_line(error)}); correct the address, or install what it needs"
        raise InputError(f"file {str(place)[:200]!r}: {fault}") from error
    return system, str(path)


@contextlib.contextmanager
def _store_of(place: Place) -> Iterator[tuple[Any, str]]:
    """Yield what `system_of` returns; what a store's own client raises inside is an OSError."""
    try:
        yield system_of(place)
    except (OSError, InputError):
        raise
    except Exception as error:  # border: botocore, gcsfs, ...
        raise OSError(5, one_line(error)[:200], str(place)) from error
