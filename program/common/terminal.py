"""What a command writes steers no terminal, whatever stands in names, answers and errors."""

import contextlib
import sys
import traceback
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TextIO

from program.common.errors import UNSHOWABLE


class ShowableStream:
    r"""A stream of text that writes what steers a terminal by its code, as JSON does: \u001b."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """Where rich writes its colours, past this; our console keeps foreign marks out."""

    def write(self, text: str) -> int:
        """Write a text, and return its length."""
        self.rich_proxied_file.write(UNSHOWABLE.sub(lambda mark: rf"\u{ord(mark[0]):04x}", text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextlib.contextmanager
def showable_output() -> Iterator[None]:
    """Let nothing that is written inside the block, or its traceback, steer the terminal."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (ShowableStream(stream) for stream in streams)
    try:
        yield
    except Exception:
        sys.excepthook = _write_traceback
        raise
    finally:
        sys.stdout, sys.stderr = streams


def _write_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    ShowableStream(sys.stderr).writelines(traceback.format_exception(kind, error, trace))
