"""Assessments of a service: so many at a time, so many waiting, each within its time, none kept afterwards."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.common.settings import ServeSettings
from program.service.incoming import Job
from program.service.metrics import Metrics
from program.service.refusals import Refused

__all__ = ("Assessor", "Ticket")

_RETRY_AFTER_S = 2


@dataclass
class Ticket:
    """A request's place, held until the request is over and no thread works for it any more."""

    uses: int = 1
    work: list[Future[Assessment]] = field(default_factory=list)


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
        ticket = Ticket()
        try:
            yield ticket
        finally:
            for future in ticket.work:
                future.cancel()
            self._end_use(ticket)

    def _end_use(self, ticket: Ticket) -> None:
        with self._lock:
            ticket.uses -= 1
            if ticket.uses:
                return
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
        for job in jobs:
            ticket.work.append(self._threads.submit(self._run, job))
            with self._lock:
                ticket.uses += 1
            ticket.work[-1].add_done_callback(lambda _: self._end_use(ticket))
        waiting = [asyncio.wrap_future(future) for future in ticket.work]
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
