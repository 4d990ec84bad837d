"""Assessments of a service: so many at a time, so many waiting, each within its time, none kept afterwards."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from program.agent import AgenticIQA
from program.serving.incoming import Job
from program.serving.metrics import Metrics
from program.serving.refusals import Refused
from program.settings import ServeSettings
from program.state import Assessment

__all__ = ("Assessor", "Ticket")

_RETRY_AFTER_S = 2


class Ticket:
    """A request's admission: holds its place until its work is over, though the client may be gone."""

    def __init__(self, assessor: "Assessor") -> None:
        self._assessor = assessor
        self.pending: list[Future[Assessment]] = []

    def work_ends(self) -> None:
        """Give the place back once no thread works for this request any more."""
        running = [future for future in self.pending if not (future.cancel() or future.done())]
        if not running:
            self._assessor.leave()
            return
        left = threading.Semaphore(len(running) - 1)

        def done(_: Future[Assessment]) -> None:
            if not left.acquire(blocking=False):
                self._assessor.leave()

        for future in running:
            future.add_done_callback(done)


class Assessor:
    """Runs a program in threads, for an event loop."""

    def __init__(self, program: AgenticIQA, settings: ServeSettings, metrics: Metrics) -> None:
        self.program, self.settings, self.metrics = program, settings, metrics
        self._threads = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="assess")
        self._lock = threading.Lock()
        self._admitted = 0

    @contextmanager
    def admitted(self) -> Iterator[Ticket]:
        """Yield a place; Refused with 503 where all are taken. Taken before a body is read, so that bodies are few."""
        limit = self.settings.concurrency + self.settings.queue
        with self._lock:
            if self._admitted >= limit:
                raise Refused(
                    503, "busy", f"{limit} requests are being worked on; try again in {_RETRY_AFTER_S} s",
                    {"Retry-After": str(_RETRY_AFTER_S)},
                )  # fmt: skip
            self._admitted += 1
        self.metrics.admitted.inc()
        ticket = Ticket(self)
        try:
            yield ticket
        finally:
            ticket.work_ends()

    def leave(self) -> None:
        """Take one place back."""
        with self._lock:
            self._admitted -= 1
        self.metrics.admitted.dec()

    @property
    def busy(self) -> int:
        """How many requests are being worked on or waiting."""
        return self._admitted

    async def assess(self, ticket: Ticket, jobs: Sequence[Job]) -> "list[Assessment | BaseException]":
        """Return each job's assessment or its error; Refused with 504 when time is up.

        A thread cannot be stopped: work begun is finished and thrown away, and its place stays taken till then.
        """
        ticket.pending = [self._threads.submit(self._run, job) for job in jobs]
        waiting = [asyncio.wrap_future(future) for future in ticket.pending]
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                return await asyncio.gather(*waiting, return_exceptions=True)
        except TimeoutError:
            raise Refused(
                504, "timeout", f"no answer within {self.settings.timeout_s:g} s; send a smaller image or fewer",
                {"Retry-After": str(_RETRY_AFTER_S)},
            ) from None  # fmt: skip

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, job: Job) -> Assessment:
        result = job.run(self.program, self.settings.max_megapixels)
        self.metrics.assessed(result)
        return result
