"""Decoding in a process of its own, bounded in processor time, memory and waiting.

A worker starts with the first image and stays for the next ones; one that was ended is replaced. It
is sent a file's bytes and sends back pixels. No key of the environment reaches it, and it ends with
the program.
"""

import atexit
import contextlib
import functools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from program.common import give_back_memory
from program.common.errors import ImageError
from program.images.decoding import MAX_PIXELS, DecodedImage, decode, tags_of
from program.images.detail import Detail
from program.images.refs import Area

logger = logging.getLogger(__name__)

_MEMORY = 7 * 2**28
"""Bytes of address space, in proportion for images over MAX_PIXELS: a WebP takes 25 a pixel, others
4 to 8."""
_PER_PIXEL_S = 120e-9
_COUNTS = hasattr(signal, "setitimer")
"""Whether a worker ends itself by the processor time that it took."""
_STUCK_S = 900.0
"""Waiting after which such a worker is ended: beside 25 busy processes one of low priority got 1 %
of a core."""
_MOST_WORKERS = 4
_PIPE_BYTES = 2**20
_LARGE = 2**22
"""Bytes of pixels after which a worker gives back what it no longer needs."""
_ENVIRONMENT = {"DYLD_LIBRARY_PATH", "LD_LIBRARY_PATH", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "SYSTEMROOT"}


def seconds_for(data: bytes, pixels: int) -> float:
    """Return the processor time for so many pixels: over twice what any format needs.

    Measured at 3 GHz: PNG 42, WebP 36, progressive JPEG 20 ns a pixel, PPM in digits 152 ns a byte.
    """
    per_byte = 300e-9 if data[:2] in {b"P1", b"P2", b"P3"} else 30e-9
    return 0.5 + per_byte * len(data) + _PER_PIXEL_S * pixels


def decode_bounded(
    data: bytes, name: str, *, at_most: int | None = None, area: Area | None = None, detailed: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> DecodedImage:  # fmt: skip
    """Decode as `decode` does, in a worker; ImageError also for what ends the worker.

    Where no interpreter can be started, as in a program that embeds one, that is said once and
    nothing is bounded.
    """
    options: dict[str, Any] = {"at_most": at_most, "area": area, "detailed": detailed, "max_pixels": max_pixels}
    try:
        head, pixels = _answer_apart(data, name, options)
    except (FileNotFoundError, PermissionError) as error:
        _tell_once(error.strerror)
        return decode(data, name, **options)
    sharp, *rest = head["detail"] or [None]
    detail = Detail(tuple(sharp), *rest) if rest else None
    return DecodedImage(pixels, head["suffix"], head["width"], head["height"], tuple(head["notes"]), detail)


def tags_bounded(data: bytes, pixels: int) -> tuple[dict[int, float | str], bytes]:
    """Return an image's tags and its XMP packet as `tags_of` does, in a worker."""
    try:
        head, packet = _answer_apart(data, "", {"tags_only": True, "max_pixels": pixels})
    except (FileNotFoundError, PermissionError):  # no worker can be started
        return tags_of(data)
    except ImageError:
        return {}, b""
    return {int(tag): value for tag, value in head["tags"].items()}, packet.tobytes()


@functools.cache
def _tell_once(reason: str) -> None:
    logger.warning("images are decoded without a bound on time and memory: no process can be started (%s)", reason)


def _answer_apart(data: bytes, name: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    request = {"size": len(data), "name": name, **options}
    longest = _STUCK_S if _COUNTS else 10 + 4 * seconds_for(data, options["max_pixels"])
    with _WORKERS.one(name) as worker:
        timer = threading.Timer(longest, worker.process.kill)
        timer.daemon = True
        begun = time.monotonic()  # before the timer's: a process of low priority may be held up between them
        timer.start()
        try:
            head, pixels = worker.answer(request, data)
        except (OSError, ValueError):  # it ended before it had answered
            code = worker.end()
            late = code in _OUT_OF_TIME or time.monotonic() - begun >= longest
            fault = "takes too long to decode" if late else f"ends its decoder (exit code {code})"
            raise ImageError(f"image {name!r}: {fault}; save it again as a plain PNG") from None
        finally:
            timer.cancel()
    if "error" in head:
        raise ImageError(head["error"])
    return head, pixels


def start_early() -> None:
    """Start a worker while the command loads other things."""
    with contextlib.suppress(ImageError, OSError), _WORKERS.one(""):
        pass


class _Worker:
    """One process, for one caller at a time."""

    def __init__(self) -> None:
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from program.images.decode_worker import serve_decoding as s; s()"
        )
        kept = {name: value for name, value in os.environ.items() if name.upper() in _ENVIRONMENT}
        self.process = subprocess.Popen(  # noqa: S603 - this very interpreter
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**kept, "OPENBLAS_NUM_THREADS": "1"}, pipesize=_PIPE_BYTES,
            start_new_session=True,  # Ctrl-C is meant for the program
        )  # fmt: skip
        self._requests = cast("IO[bytes]", self.process.stdin)
        self._answers = cast("IO[bytes]", self.process.stdout)

    def answer(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], NDArray[np.uint8]]:
        """Return an answer's head and its pixels; OSError or ValueError where the process ended."""
        self._requests.write(json.dumps(request).encode() + b"\n")
        self._requests.write(data)
        self._requests.flush()
        head = json.loads(self._answers.readline())
        pixels = np.empty(head["shape"], np.uint8)
        if self._answers.readinto(pixels.data) != pixels.nbytes:  # type: ignore[attr-defined]
            raise ValueError("cut off")
        return head, pixels

    def end(self) -> int:
        """End it now; return its exit code."""
        self.process.kill()
        code = self.process.wait()
        for pipe in (self._requests, self._answers):
            with contextlib.suppress(OSError):  # what was not sent is lost
                pipe.close()
        return code


class _Workers:
    """At most so many at a time, started as needed. Thread-safe; a fork begins with none."""

    def __init__(self) -> None:
        self._begin()
        atexit.register(self._end)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    @contextlib.contextmanager
    def one(self, name: str) -> Iterator[_Worker]:
        """Yield a worker that nobody else uses, ended where the block raises; or ImageError."""
        with self._room:
            worker = self._free(name)
            try:
                yield worker
            except BaseException:  # Ctrl-C too: half an answer would be taken for the next one
                worker.end()
                raise
            self._idle.append(worker)

    def _begin(self) -> None:
        for worker in getattr(self, "_idle", ()):  # a parent's, and not to be waited for here
            worker.process.returncode = 0
        self._room = threading.BoundedSemaphore(min(_MOST_WORKERS, os.cpu_count() or 1))
        self._idle: list[_Worker] = []

    def _free(self, name: str) -> _Worker:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread was faster
                worker = self._idle.pop()
                if worker.process.poll() is None:
                    return worker
                worker.end()
        try:
            return _Worker()
        except (FileNotFoundError, PermissionError):
            raise
        except OSError as error:
            text = f"image {name!r}: no process can be started to decode it ({error.strerror}); end others"
            raise ImageError(text) from error

    def _end(self) -> None:
        while self._idle:
            self._idle.pop().end()


_WORKERS = _Workers()
_OUT_OF_TIME = {-getattr(signal, name) for name in ("SIGPROF", "SIGXCPU") if hasattr(signal, name)}


def serve_decoding() -> None:
    """Decode what standard input asks for, until it ends: the worker's own side."""
    Image.init()  # what a first image would wait for
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    while line := requests.readline():
        request = json.loads(line)
        data = requests.read(request.pop("size"))
        head, pixels = _decoded(data, request)
        _limit_seconds(0)
        answers.write(json.dumps({**head, "shape": pixels.shape}).encode() + b"\n")
        answers.write(pixels.data)
        answers.flush()
        is_large = pixels.nbytes >= _LARGE
        del data, pixels
        if is_large:
            give_back_memory()  # 150 MB after an image of 24 megapixels


def _decoded(data: bytes, request: dict[str, Any]) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    _limit_memory(_MEMORY * max(1, request["max_pixels"] // MAX_PIXELS))
    _limit_seconds(seconds_for(data, 0))
    if request.pop("tags_only", False):
        tags, packet = tags_of(data, _allow_pixels)
        return {"tags": tags}, np.frombuffer(packet, np.uint8)
    area = tuple(request.pop("area") or ()) or None
    try:
        image = decode(data, area=area, opened=_allow_pixels, **request)
    except ImageError as error:
        return {"error": str(error)}, np.empty(0, np.uint8)
    head = {name: getattr(image, name) for name in ("suffix", "width", "height", "notes", "detail")}
    return head, np.ascontiguousarray(image.pixels)


def _limit_seconds(seconds: float) -> None:
    """End this process when it has computed so long from now on; 0: never."""
    if _COUNTS:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _allow_pixels(count: int) -> None:
    if _COUNTS:
        _limit_seconds(signal.getitimer(signal.ITIMER_PROF)[0] + _PER_PIXEL_S * count)


def _limit_memory(size: int) -> None:
    """Let allocations fail beyond so many bytes in all, where the system can."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size if most < 0 else min(size, most), most))
