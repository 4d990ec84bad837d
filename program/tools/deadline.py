"""A time limit for work that cannot be interrupted: it runs on a thread that can be left behind.

Python cannot stop a thread. Work that runs over its time goes on where it is, with whatever it holds, while the caller
goes on without it. Its thread is a daemon: it never keeps the process from ending, and takes no further work.
"""

import contextvars
import math
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

__all__ = ("Overdue", "within")

_T = TypeVar("_T")


class Overdue(Exception):  # noqa: N818 - it says what the work is
    """The work did not end in time; it may still be running."""


class _Job:
    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._context = contextvars.copy_context()
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.value = self._context.run(self._work)
        except BaseException as error:  # Border: it is raised again on the caller's thread.
            self.error = error
        self.done.set()


class _Worker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="agentic-iqa-tool", daemon=True)
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            job.run()
            # Else its result lives until the next one.
            del job


_idle: list[_Worker] = []
# A forked child has none of its parent's threads.
os.register_at_fork(after_in_child=_idle.clear)


def within(seconds: float, work: Callable[[], _T]) -> _T:
    """Return what `work` returns, or raise what it raises; Overdue when it takes longer than `seconds`.

    It runs on another thread, one of a few that are kept: as many as there ever were calls at once. Work that never
    lets go of the interpreter (a loop in C code that holds the GIL) cannot be left behind. Thread-safe.
    """
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    job = _Job(work)
    worker.jobs.put(job)
    try:
        if not job.done.wait(seconds if math.isfinite(seconds) else None):
            raise Overdue
    finally:
        if job.done.is_set():
            _idle.append(worker)
        else:
            worker.jobs.put(None)
    if job.error is not None:
        raise job.error
    return cast(_T, job.value)
