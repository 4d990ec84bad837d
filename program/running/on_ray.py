"""A run in Ray Data's actors, which share one budget and one gate a host; all travels as JSON."""

import argparse
import logging
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import methodcaller
from typing import Any, Literal

import dspy

from program.common.errors import InputError, UnreadError, one_line
from program.common.pool import map_unordered
from program.common.request import Request
from program.common.settings import WireSettings
from program.lms.limits import Budget, BudgetSpent, Gate, current_budget, gates_made_by
from program.running.row import Row
from program.running.runner import Asking, Engine, Placed

_WAITING, _QUICK = "waiting", "quick"
_WAITING_CALLS, _QUICK_CALLS = 512, 8
"""At once, to the limits. Many may wait: what makes room for them has a queue of its own."""
_CALL = "a call in flight"


class Limits:
    """What a job's workers share: its budget, its gates, how often each row was begun. Thread-safe.

    What a worker holds (calls that are not settled, places in a gate) is free again when it starts
    again after a kill.
    """

    def __init__(self, **limits: float | None) -> None:
        self._budget: Budget | None = None
        if limits:  # those of `Budget.limits`
            self._budget = Budget(**limits)  # type: ignore[arg-type]
        self._gates: dict[str, Gate] = {}
        self._held: defaultdict[str, list[tuple[str, Callable[[], object]]]] = defaultdict(list)
        """By worker: each call in flight and each place at a host, with what frees it."""
        self._begun: dict[str, int] = {}
        self._lock = threading.Lock()
        self._stopped = ""

    def enter(self, worker: str) -> bool:
        """Take in a worker that starts, perhaps again; tell whether there is a budget."""
        with self._lock:
            held = self._held.pop(worker, [])
        for _, free in held:
            free()
        return self._budget is not None

    def begin(self, work: str) -> tuple[int, str]:
        """Count that a piece of work begins; return how often it has, and why the job ends, if it does."""
        with self._lock:
            self._begun[work] = self._begun.get(work, 0) + 1
            return self._begun[work], self._stopped

    def end(self, work: str) -> None:
        """Forget a piece of work that is finished."""
        with self._lock:
            self._begun.pop(work, None)

    def stop(self, reason: str) -> None:
        """Let no worker begin anything else."""
        self._stopped = self._stopped or reason

    def charge(self, worker: str) -> str:
        """Charge one call once the budget admits it; return why it is spent, or ""."""
        if self._budget is None:
            return ""
        try:
            self._budget.charge()
        except BudgetSpent as error:
            return str(error)
        # It was counted as a call; what it cost nobody knows should the worker be killed.
        self._hold(worker, _CALL, partial(self._budget.settle, 0.0, 0, ""))
        return ""

    def refund(self, worker: str) -> None:
        """Take back one charge."""
        if self._budget is not None and self._let_go(worker, _CALL):
            self._budget.refund()

    def settle(self, worker: str, cost_usd: float | None, tokens: int | None, model: str) -> None:
        """Add what a charged call cost."""
        if self._budget is not None and self._let_go(worker, _CALL):
            self._budget.settle(cost_usd, tokens, model)

    def admit(self, worker: str, host: str, limits: WireSettings) -> None:
        """Take a place in a host's gate once there is one."""
        with self._lock:
            gate = self._gates.setdefault(host, Gate(limits))
            gate.limits = limits
        place = gate.admit()
        place.__enter__()
        self._hold(worker, host, partial(place.__exit__, None, None, None))

    def leave(self, worker: str, host: str) -> None:
        """Give one such place back."""
        if free := self._let_go(worker, host):
            free()

    def tell(self, host: str, what: Literal["count_tokens", "pause"], amount: float) -> None:
        """Have a host's gate count the tokens of an answer, or start no call for some seconds."""
        with self._lock:
            gate = self._gates.get(host)
        if gate is not None and amount:
            getattr(gate, what)(amount)

    def _hold(self, worker: str, what: str, free: Callable[[], object]) -> None:
        with self._lock:
            self._held[worker].append((what, free))

    def _let_go(self, worker: str, what: str) -> Callable[[], object] | None:
        """Forget one thing of a kind that a worker holds, and return what frees it, if any."""
        with self._lock:
            held = self._held[worker]
            for place, (kind, free) in enumerate(held):
                if kind == what:
                    del held[place]
                    return free
        return None


class Shared:
    """A worker's side of the limits."""

    def __init__(self, actor: Any, worker: str) -> None:
        self._actor = actor
        self.worker = worker
        """The worker's name; it keeps it when it starts again."""
        self.budget: AbstractContextManager[object] = nullcontext()
        """The context in which this process's calls are charged to the shared budget."""
        if self.ask("enter", worker):
            self.budget = _SharedBudget(self)
        gates_made_by(lambda host, limits: _SharedGate(self, host, limits))

    def ask(self, name: str, *values: Any, wait: bool = False) -> Any:
        """Call a method of the limits and return its answer; `wait` where that may take long."""
        import ray

        return ray.get(self.tell(name, *values, wait=wait))

    def tell(self, name: str, *values: Any, wait: bool = False) -> Any:
        """Call a method of the limits, and go on with what stands for its answer."""
        group = _WAITING if wait else _QUICK
        return getattr(self._actor, name).options(concurrency_group=group).remote(*values)


class _SharedBudget(Budget):
    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self._shared = shared

    def charge(self) -> None:
        if reason := self._shared.ask("charge", self._shared.worker, wait=True):
            raise BudgetSpent(reason)

    def refund(self) -> None:
        self._shared.tell("refund", self._shared.worker)

    def settle(self, cost_usd: float | None, tokens: int | None, model: str) -> None:
        self._shared.tell("settle", self._shared.worker, cost_usd, tokens, model)


class _SharedGate(Gate):
    def __init__(self, shared: Shared, host: str, limits: WireSettings) -> None:
        super().__init__(limits)
        self._shared, self._host = shared, host

    @contextmanager
    def admit(self) -> Iterator[None]:
        self._shared.ask("admit", self._shared.worker, self._host, self.limits, wait=True)
        try:
            yield
        finally:
            self._shared.tell("leave", self._shared.worker, self._host)

    def count_tokens(self, tokens: int) -> None:
        self._shared.tell("tell", self._host, "count_tokens", tokens)

    def pause(self, seconds: float) -> None:
        self._shared.tell("tell", self._host, "pause", seconds)


_AT_ONCE = 2000
"""Items of one object in Ray's store."""
_TRIES = 3
"""So many times a row may take its worker with it, once its block is watched row by row."""
_ENDS: dict[str, type[Exception]] = {"budget": BudgetSpent, "unread": UnreadError, "model": dspy.LMError}
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
    write: Callable[[Any], str] = methodcaller("line"),
) -> Engine:
    """Return what answers requests in the workers of a cluster, each with its own `make`.

    Rows travel as the text that `write` makes of them; `read` makes them again.
    """
    work = partial(Work, make, requests, write)

    def engine(placed: Iterable[Placed]) -> Iterator[tuple[Placed, Any]]:
        texts = ((place, _text(request)) for place, request in placed)
        for place, request, row in completed_on_ray(work, texts, cluster):
            yield (place, requests.from_json(request)), read(row)

    return engine


class Work:
    """What a worker does: from a request to its row, both as JSON; thread-safe."""

    def __init__(
        self,
        make: Callable[[], Asking[Any]],
        requests: type[Request],
        write: Callable[[Any], str],
    ) -> None:
        self._ask, self._requests, self._write = make(), requests, write

    def __call__(self, item: str) -> str:
        """Return the row of a request.

        Raises BudgetSpent, UnreadError or dspy.LMError where the whole job is to end.
        """
        return self._write(self._ask(self._requests.from_json(item)))

    def failed_row(self, item: str, error: str) -> str:
        """Return the row of a request that cannot be worked on."""
        request = self._requests.from_json(item)
        return self._write(self._ask.failed_row(request, f"image {request.id!r}: {error}"))


def completed_on_ray(
    make: Callable[[], Work], items: Iterable[tuple[int, str]], cluster: Cluster
) -> Iterator[tuple[int, str, str]]:
    """Yield (place, item, result) of (place, item) as results come, each once.

    Items are read to their end at first; `make` is called in each worker. The cluster is that of
    RAY_ADDRESS, else Ray is started on this machine. The budget in force and the gates of model
    hosts are shared by all workers. Raises BudgetSpent, UnreadError or dspy.LMError as `Work` does,
    after what was finished until then; InputError where Ray is not installed.
    """
    with _ray_held(cluster) as ray:
        tables = list(_tables(ray, items))
        if not tables:
            return
        calls = {_WAITING: _WAITING_CALLS, _QUICK: _QUICK_CALLS}
        actor = ray.remote(num_cpus=0, concurrency_groups=calls)(Limits)
        budget = current_budget()
        limits = actor.remote() if budget is None else actor.remote(**budget.limits)
        rows = max(cluster.block, cluster.threads)
        dataset = ray.data.from_arrow_refs(tables).repartition(target_num_rows_per_block=rows)
        results = dataset.map_batches(
            _RayWorker,
            batch_size=rows if cluster.gpus else None,  # Ray refuses a GPU without it
            batch_format="pyarrow",
            fn_constructor_args=(make, limits, cluster.threads),
            compute=ray.data.ActorPoolStrategy(size=cluster.workers),
            num_cpus=1,
            num_gpus=cluster.gpus or None,
        )
        stopped: dict[str, str] = {}
        for batch in results.iter_batches(batch_size=None, batch_format="pyarrow"):
            for row in batch.to_pylist():
                if row["place"] == _STOP:
                    stopped[row["item"]] = row["result"]
                else:
                    yield row["place"], row["item"], row["result"]
            if len(stopped) >= cluster.workers:
                break
        if stopped:
            kind, _, reason = next(iter(stopped.values())).partition(" ")
            raise _ENDS[kind](reason)


class _RayWorker:
    def __init__(self, make: Callable[[], Work], limits: Any, threads: int) -> None:
        import ray

        self._shared = Shared(limits, ray.get_runtime_context().get_actor_id())
        self._threads, self._work = threads, make()

    def __call__(self, table: Any) -> Any:
        """Return a block's results, without items that were not begun when the job ended."""
        import pyarrow

        rows, results = table.to_pylist(), []
        block = f"block {rows[0]['place']}" if rows else ""
        tries, stopped = self._shared.ask("begin", block)
        work = self._watched if tries > 1 else self._result
        left = [] if stopped else rows
        try:
            with self._shared.budget:
                for row, result in map_unordered(work, left, workers=self._threads):
                    results.append({**row, "result": result})
        except tuple(_ENDS.values()) as error:
            kind = next(name for name, each in _ENDS.items() if isinstance(error, each))
            stopped = f"{kind} {one_line(error)}"
            self._shared.ask("stop", stopped)
        self._shared.tell("end", block)
        if stopped:
            results.append({"place": _STOP, "item": self._shared.worker, "result": stopped})
        text = pyarrow.string()
        schema = pyarrow.schema({"place": pyarrow.int64(), "item": text, "result": text})
        return pyarrow.Table.from_pylist(results, schema)

    def _result(self, row: dict[str, Any]) -> str:
        return self._work(row["item"])

    def _watched(self, row: dict[str, Any]) -> str:
        """Work on an item of a block whose worker was killed; give up one that keeps killing it."""
        name = f"row {row['place']}"
        tries, _ = self._shared.ask("begin", name)
        if tries > _TRIES:
            fault = f"killed its worker {_TRIES} times (out of memory, or a crash)"
            result = self._work.failed_row(row["item"], fault)
        else:
            result = self._result(row)
        self._shared.tell("end", name)
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
