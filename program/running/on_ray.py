"""A run in Ray Data's actors; all travels as JSON."""

import argparse
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import dspy

from program.common.errors import EndpointError, InputError, UnreadError, one_line
from program.common.pool import map_unordered
from program.common.request import Request
from program.common.settings import Settings
from program.lms.limits import current_budget
from program.running.row import Row
from program.running.runner import Asking, Engine, Placed

_AT_ONCE = 2000
"""Items of one object in Ray's store."""
_TRIES = 3
"""So many times a row may take its worker with it, once its block is watched row by row."""
_ENDS: dict[str, type[Exception]] = {
    "endpoint": EndpointError,
    "unread": UnreadError,
    "model": dspy.LMError,
}
"""What ends a job, by its name in a result."""
_STOP = -1
"""In place of a row's place: why a worker begins nothing else."""
_ERROR_LENGTH = 200


@dataclass(frozen=True)
class Cluster:
    """How many processes work, on what."""

    workers: int = 2
    threads: int = 1
    """Items at a time in each worker: more where it waits for a model service."""
    gpus: float = 0.0
    """Of a GPU, for each worker."""
    block: int = 8
    """Items that a worker takes at a time, at least one for each thread: so many are done again when
    it is killed."""

    def share_of(self, settings: Settings) -> Settings:
        """Return the settings of one worker, with its part of what a model's host may be asked."""
        wire = settings.wire
        parts = {"concurrency": max(1, wire.concurrency // self.workers)}
        if wire.requests_per_minute is not None:
            parts["requests_per_minute"] = max(1, wire.requests_per_minute // self.workers)
        return settings.model_copy(update={"wire": wire.model_copy(update=parts)})


def cluster_from(arguments: argparse.Namespace, workers: int) -> Cluster | None:
    """Return the processes that a command's flags ask for; None for threads."""
    if arguments.engine != "ray":
        return None
    return Cluster(workers, arguments.threads, arguments.gpus)


def _text(request: Request) -> str:
    if str(request.image).startswith("data:"):
        fault = "is held in memory, as a streamed dataset's are"
        raise InputError(f"image {request.id!r}: {fault}; --engine ray takes paths and URIs")
    return request.to_json()


def ray_engine(
    make: Callable[[], Asking[Any]],
    cluster: Cluster,
    requests: type[Request] = Request,
    read: Callable[[str], Any] = Row.model_validate_json,
) -> Engine:
    """Return what answers requests in the workers of a cluster, each with its own `make`.

    Rows travel as lines of JSON, of which `read` makes rows again. Raises InputError inside a
    `Budget`, which the workers do not share.
    """
    if current_budget() is not None:
        fault = "its workers share no --max-calls, --max-cost and --max-tokens"
        mend = "leave them out, or --engine: threads ask a model as fast"
        raise InputError(f"--engine ray: {fault}; {mend}")
    work = partial(Work, make, requests)

    def engine(placed: Iterable[Placed]) -> Iterator[tuple[Placed, Any]]:
        texts = ((place, _text(request)) for place, request in placed)
        for place, request, row in completed_on_ray(work, texts, cluster):
            yield (place, requests.from_json(request)), read(row)

    return engine


class Work:
    """What a worker does: from a request to its row, both as JSON; thread-safe."""

    def __init__(self, make: Callable[[], Asking[Any]], requests: type[Request]) -> None:
        self._ask, self._requests = make(), requests

    def __call__(self, item: str) -> str:
        """Return the row of a request; one of `_ENDS` where the whole job is to end."""
        line: str = self._ask(self._requests.from_json(item)).line()
        return line

    def failed_row(self, item: str, error: str) -> str:
        """Return the row of a request that cannot be worked on."""
        request = self._requests.from_json(item)
        line: str = self._ask.failed_row(request, f"image {request.id!r}: {error}").line()
        return line


def completed_on_ray(
    make: Callable[[], Work], items: Iterable[tuple[int, str]], cluster: Cluster
) -> Iterator[tuple[int, str, str]]:
    """Yield (place, item, result) of (place, item) as results come, each once.

    Items are read to their end at first; `make` is called in each worker. The cluster is that of
    RAY_ADDRESS, else Ray is started on this machine. Raises what ends the job as `Work` does, in
    the first worker that meets it; InputError where Ray is not installed.
    """
    with _ray_held(cluster) as ray:
        tables = list(_tables(ray, items))
        if not tables:
            return
        rows = max(cluster.block, cluster.threads)
        dataset = ray.data.from_arrow_refs(tables).repartition(target_num_rows_per_block=rows)
        results = dataset.map_batches(
            _RayWorker,
            batch_size=rows if cluster.gpus else None,  # Ray refuses a GPU without it
            batch_format="pyarrow",
            fn_constructor_args=(make, ray.remote(num_cpus=0)(Tries).remote(), cluster.threads),
            compute=ray.data.ActorPoolStrategy(size=cluster.workers),
            num_cpus=1,
            num_gpus=cluster.gpus or None,
        )
        for batch in results.iter_batches(batch_size=None, batch_format="pyarrow"):
            for row in batch.to_pylist():
                if row["place"] == _STOP:
                    raise _ENDS[row["item"]](row["result"])
                yield row["place"], row["item"], row["result"]


class Tries:
    """How often each piece of work was begun: a worker that was killed cannot tell."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()

    def begin(self, work: str) -> int:
        """Count that a piece of work begins, and return how often it has."""
        self._begun[work] += 1
        return self._begun[work]

    def end(self, work: str) -> None:
        """Forget a piece of work that is finished."""
        self._begun.pop(work, None)


class _RayWorker:
    def __init__(self, make: Callable[[], Work], tries: Any, threads: int) -> None:
        self._work, self._tries, self._threads = make(), tries, threads

    def __call__(self, table: Any) -> Any:
        """Return a block's results, and at last what ends the job, if anything does."""
        import pyarrow

        rows, results = table.to_pylist(), []
        block = f"block {rows[0]['place']}" if rows else ""
        work = self._watched if self._begin(block) > 1 else self._result
        try:
            for row, result in map_unordered(work, rows, workers=self._threads):
                results.append({**row, "result": result})
        except tuple(_ENDS.values()) as error:
            kind = next(name for name, each in _ENDS.items() if isinstance(error, each))
            results.append({"place": _STOP, "item": kind, "result": one_line(error)})
        self._tries.end.remote(block)
        text = pyarrow.string()
        schema = pyarrow.schema({"place": pyarrow.int64(), "item": text, "result": text})
        return pyarrow.Table.from_pylist(results, schema)

    def _begin(self, work: str) -> int:
        import ray

        tries: int = ray.get(self._tries.begin.remote(work))
        return tries

    def _result(self, row: dict[str, Any]) -> str:
        return self._work(row["item"])

    def _watched(self, row: dict[str, Any]) -> str:
        """Work on an item of a block whose worker was killed; give up one that keeps killing it."""
        name = f"row {row['place']}"
        if self._begin(name) > _TRIES:
            fault = f"killed its worker {_TRIES} times (out of memory, or a crash)"
            result = self._work.failed_row(row["item"], fault)
        else:
            result = self._result(row)
        self._tries.end.remote(name)
        return result


def _tables(ray: Any, items: Iterable[tuple[int, str]]) -> Iterator[Any]:
    """Put the items into Ray's store, which spills to disk what memory does not hold."""
    import pyarrow

    left = iter(items)
    while some := list(islice(left, _AT_ONCE)):
        places, texts = zip(*some, strict=True)
        yield ray.put(pyarrow.table({"place": places, "item": texts}))


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Leave SIGTERM to who handled it before, if anybody did."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and callable(before):
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _ray_held(cluster: Cluster) -> Iterator[Any]:
    """Use one start of Ray for all work inside; InputError where it cannot be started."""
    # Ray reports use to its makers unless told otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data
    except ImportError as error:
        fault = f"Ray is not installed ({error})"
        raise InputError(f"--engine ray: {fault}; pip install 'agentic-iqa[ray]'") from error
    is_own = not ray.is_initialized()
    if is_own:
        _start(ray, cluster)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # the job has a bar of its own
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        if cluster.gpus and not ray.cluster_resources().get("GPU"):  # Ray would wait for one
            raise InputError(f"--gpus {cluster.gpus:g}: the cluster has no GPU; leave --gpus out")
        yield ray
    finally:
        if is_own:
            ray.shutdown()


def _start(ray: Any, cluster: Cluster) -> None:
    """Join the cluster of RAY_ADDRESS, or start Ray on this machine. Raises InputError."""
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {}
    mend = "check RAY_ADDRESS"
    if not address:
        # One CPU more than the workers: reading and cutting the items takes one, too.
        cpus = max(os.cpu_count() or 1, cluster.workers + 1)
        options = {"num_cpus": cpus, "include_dashboard": False}
        mend = "is another Ray starting here?"
    try:
        with _own_sigterm():  # Ray would end the process without a word
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        fault = f"cannot be started ({one_line(error)[:_ERROR_LENGTH]})"
        raise InputError(f"--engine ray: {fault}; {mend}") from error
