"""What the commands of this package share: one-line errors, exit codes, a progress bar on stderr."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from data.errors import DataError

__all__ = ("EXIT_PROBLEMS", "EXIT_UNUSABLE", "progress_bar", "run_command")

EXIT_PROBLEMS = 1
EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130


def run_command(body: Callable[[], int]) -> int:
    """Run a command's body and return its exit code: input errors become one line on stderr and 2."""
    # Bars of libraries would tear the progress shown here.
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        code = body()
        sys.stdout.flush()
        return code
    except DataError as error:
        return _complain(str(error))
    except BrokenPipeError:  # who read our output has stopped, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PROBLEMS
    except OSError as error:
        return _complain(
            f"{str(error.filename or 'file')!r}: {error.strerror or error}; check the path, permissions and free space"
        )
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was written\n")
        return EXIT_INTERRUPTED


@contextmanager
def progress_bar(what: str, total: int | None, *, shown: bool | None = None) -> Iterator[Callable[[int], None]]:
    """Give a function that moves a bar on stderr by so many steps; without a terminal there is no bar."""
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps: bar.advance(task, steps)


def _complain(message: str) -> int:
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
    return EXIT_UNUSABLE
