"""Assessments of a service: bounded in number and time, none kept; their counters."""

import asyncio
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from program.agent.assessment import Assessment
from program.agent.comparison import Comparison, compare_images
from program.agent.loop import AgenticIQA
from program.common.request import Request
from program.running.runner import one_image
from program.service.requests import Refused, open_images

T = TypeVar("T")
W = TypeVar("W")

_RETRY_AFTER_S = 2
_RETRY = {"Retry-After": str(_RETRY_AFTER_S)}
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_STAGES = ("planner", "executor", "tools", "summarizer", "total")


class Metrics:
    """What Prometheus scrapes; labels come from closed sets, which no client extends."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace="agenticiqa", registry=self.registry)
        seconds = partial(Histogram, namespace="agenticiqa", registry=self.registry, buckets=_SECONDS)
        self.requests = counter("requests_total", "Requests answered", ["route", "status"])
        self.seconds = seconds("request_seconds", "Seconds from request to answer", ["route"])
        self.refused = counter("refused_total", "Requests refused, by reason", ["reason"])
        self.admitted = Gauge(
            "admitted", "Requests being worked on or waiting", namespace="agenticiqa", registry=self.registry
        )
        self.assessments = counter("assessments_total", "Assessments, by status", ["status"])
        self.stage_seconds = seconds("stage_seconds", "Seconds of an assessment's stages", ["stage"])
        self.lm_calls = counter("lm_calls_total", "Questions put to a model", ["answered_by"])
        self.tokens = counter("tokens_total", "Tokens of model calls", ["direction"])
        self.cost = counter("cost_usd_total", "Cost of model calls where prices are known")
        self.readings = counter("tool_readings_total", "Tool readings", ["outcome"])
        self.replans = counter("replans_total", "Times a plan was made again")

    def count(self, result: Assessment) -> None:
        """Count one assessment and what it cost."""
        usage = result.usage
        self.assessments.labels(result.status).inc()
        for stage in _STAGES:
            if stage in usage.seconds:
                self.stage_seconds.labels(stage).observe(usage.seconds[stage])
        self.lm_calls.labels("cache").inc(usage.lm_cache_hits)
        self.lm_calls.labels("model").inc(usage.lm_calls)
        self.tokens.labels("input").inc(usage.input_tokens)
        self.tokens.labels("output").inc(usage.output_tokens)
        self.cost.inc(usage.cost_usd or 0.0)
        self.replans.inc(usage.replans)
        for log in result.state.evidence.tool_logs:
            self.readings.labels("failed" if log.error else "cached" if log.cached else "measured").inc()

    def page(self) -> bytes:
        """Return the text that Prometheus reads."""
        return generate_latest(self.registry)


@dataclass
class Ticket:
    """A request's place, held until the request is over and no thread works for it any more."""

    uses: int = 1
    work: list[Future[Any]] = field(default_factory=list)


class Assessor:
    """Runs a program in threads, for an event loop."""

    def __init__(self, program: AgenticIQA) -> None:
        self.program, self.settings, self.metrics = program, program.resources.settings.serve, Metrics()
        self._threads = ThreadPoolExecutor(self.settings.concurrency, thread_name_prefix="assess")
        self._lock = threading.Lock()
        self.busy = 0
        """How many requests are being worked on or waiting."""

    def check_room(self) -> None:
        """Raise Refused with 503 where all places are taken."""
        limit = self.settings.concurrency + self.settings.queue
        if self.busy >= limit:
            text = f"{limit} requests are being worked on; try again in {_RETRY_AFTER_S} s"
            raise Refused(503, "busy", text, _RETRY)

    @contextmanager
    def admit(self) -> Iterator[Ticket]:
        """Yield a place for a request that has arrived; Refused with 503 where all are taken."""
        with self._lock:
            self.check_room()
            self.busy += 1
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
            self.busy -= 1
        self.metrics.admitted.dec()

    async def run_jobs(
        self, ticket: Ticket, work: Callable[[W], T], jobs: Sequence[W | Refused]
    ) -> "list[T | BaseException]":
        """Return what the work makes of each job, or its error; Refused (504) when time is up.

        A job that was refused is its own error. A thread cannot be stopped: work begun is finished
        and thrown away, and its place stays taken till then.
        """

        def worked(job: W | Refused) -> T:
            if isinstance(job, Refused):
                raise job
            with one_image():
                return work(job)

        for job in jobs:
            ticket.work.append(self._threads.submit(worked, job))
            with self._lock:
                ticket.uses += 1
            ticket.work[-1].add_done_callback(lambda _: self._end_use(ticket))
        waiting = [asyncio.wrap_future(future) for future in ticket.work]
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                made: list[T | BaseException] = await asyncio.gather(*waiting, return_exceptions=True)
                return made
        except TimeoutError:
            text = f"no answer within {self.settings.timeout_s:g} s; send a smaller image or fewer"
            raise Refused(504, "timeout", text, _RETRY) from None

    async def one(self, ticket: Ticket, work: Callable[[W], T], job: W | Refused) -> T:
        """Return what the work makes of one job; see `run_jobs`. Raises its error."""
        (made,) = await self.run_jobs(ticket, work, [job])
        if isinstance(made, BaseException):
            raise made
        return made

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def assess(self, request: Request) -> Assessment:
        """Assess one image, and count it. Raises InputError."""
        result = self.program(**self._opened(request).arguments())
        self.metrics.count(result)
        return result

    def draw(self, request: Request) -> bytes:
        """Return the map of where one image loses quality, as PNG. Raises InputError."""
        file, shown = io.BytesIO(), self._opened(request)
        self.program.heatmap(shown.image, shown.reference).save(file, "PNG")
        return file.getvalue()

    def compare(self, pair: tuple[Request, Request]) -> Comparison:
        """Say which of two images is better, beside the first one's reference; or InputError."""
        first, second = self._opened(pair[0]), self._opened(pair[1].model_copy(update={"reference": None}))
        return compare_images(self.program, first.image, second.image, first.reference)

    def _opened(self, request: Request) -> Request:
        return open_images(request, self.settings.max_megapixels)
