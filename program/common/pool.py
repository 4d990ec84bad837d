"""Work over many items with threads, one thread for a key, and progress on stderr."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    from program.common.console import Console

_LINE_EVERY_S = 15.0


@contextmanager
def progress(
    label: str, total: int | None, *, shown: bool = True, console: "Console | None" = None
) -> Iterator[Callable[..., None]]:
    """Yield what moves the progress on; `total` None is unknown.

    It takes `steps` that are done (1 by default) and `facts`, a few words that stand behind the
    count (none). Without a terminal a line is written every 15 s, and a last one where there were
    any or there are facts.
    """
    if not shown or total == 0:
        yield lambda steps=1, facts="": None
        return
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    from program.common.console import Console

    console = console or Console(stderr=True)
    if console.is_terminal:
        counted = TextColumn("{task.completed}" if total is None else "{task.completed}/{task.total}")
        more = (counted, TextColumn("{task.fields[facts]}"), TimeElapsedColumn())
        with Progress(*Progress.get_default_columns(), *more, console=console) as bar:
            task = bar.add_task(label, total=total, facts="")
            yield lambda steps=1, facts="": bar.update(task, advance=steps, facts=facts)
        return
    done, line, last, said = 0, "", time.monotonic(), False

    def count(steps: int = 1, facts: str = "") -> None:
        nonlocal done, line, last, said
        done += steps
        said = said or bool(facts)
        line = f"{label}: {done}{'' if total is None else f'/{total}'}{facts and f' · {facts}'}"
        if time.monotonic() - last > _LINE_EVERY_S:
            last, said = time.monotonic(), True
            console.print(line, highlight=False, soft_wrap=True)

    try:
        yield count
    finally:
        if said:
            console.print(line, highlight=False, soft_wrap=True)


@contextmanager
def time_phase(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add the wall time of the block to a phase."""
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] = round(seconds.get(phase, 0.0) + time.perf_counter() - started, 2)


T = TypeVar("T")
R = TypeVar("R")

_FLIGHTS: "WeakValueDictionary[Hashable, threading.Lock]" = WeakValueDictionary()
_LOCK = threading.RLock()  # the garbage collector may end an abandoned stream while this thread holds it
_LIMITS: list[threadpool_limits] = []


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS calls in the threads that make them, until the last such block ends.

    BLAS's own threads spin while they wait: beside threads that judge images they took a sixth of
    the processor.
    """
    with _LOCK:
        _LIMITS.append(threadpool_limits(1, user_api="blas"))
    try:
        yield
    finally:
        with _LOCK:  # the first limit goes last, whichever block ends first: it knows how many threads there were
            _LIMITS.pop().restore_original_limits()


_INTERRUPTS = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP wait for the end of the block, in the main thread."""
    handlers: dict[int, Any] = {}
    came: list[int] = []
    is_held = True

    def note(number: int, frame: FrameType | None) -> None:
        if is_held:
            came.append(number)
        else:  # of a stream that another thread ended
            handlers[number](number, frame)

    names = _INTERRUPTS if threading.current_thread() is threading.main_thread() else ()
    try:
        for number in (getattr(signal, name) for name in names if hasattr(signal, name)):
            handler = signal.getsignal(number)
            if callable(handler):  # the system's own handling, and who ignores a signal, stay
                handlers[number] = handler
                signal.signal(number, note)
        yield
    finally:
        is_held = False
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def map_unordered(work: Callable[[T], R], items: Iterable[T], *, workers: int) -> Iterator[tuple[T, R]]:
    """Yield (item, work(item)) as results come; two items for each worker are read ahead.

    Each call runs in a copy of the caller's context. An exception of `work`, Ctrl-C and SIGTERM
    begin nothing else: what is in flight is waited for and yielded, as it may be paid for, and then
    the exception is raised. A signal that comes while the caller works on a result waits for that.
    """
    with one_blas_thread():
        yield from _map_unordered(work, items, workers)


def _map_unordered(work: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[tuple[T, R]]:
    pending: dict[Future[R], T] = {}
    pool = ThreadPoolExecutor(workers, thread_name_prefix="work")

    def finished() -> Iterator[tuple[T, R]]:
        done = wait(pending, return_when=FIRST_COMPLETED).done
        for future in sorted(done, key=lambda each: each.exception() is not None):  # a fault costs no result beside it
            result = future.result()
            with interrupts_held():
                yield pending.pop(future), result

    try:
        for item in items:
            # Threads start with an empty context: the copy carries dspy.context and the budget into the call.
            pending[pool.submit(copy_context().run, work, item)] = item
            if len(pending) >= 2 * workers:
                yield from finished()
        while pending:
            yield from finished()
    except GeneratorExit:  # the caller looks no further
        raise
    except BaseException as stop:
        _tell(stop, pending)
        for future, item in [(f, i) for f, i in pending.items() if not f.cancel()]:
            if future.exception() is None:
                with interrupts_held():
                    yield item, future.result()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _tell(stop: BaseException, pending: Iterable[Future[Any]]) -> None:
    """Say at once, on Ctrl-C, what the end waits for."""
    if isinstance(stop, KeyboardInterrupt) and any(future.running() for future in pending):
        sys.stderr.write("stopping: waiting for what is in flight, which may be paid for\n")


def in_order(work: Callable[[T], R], items: Iterable[T], *, workers: int) -> list[R]:
    """Return `work(item)` for each item, in the items' order; see `map_unordered`."""
    finished = map_unordered(lambda pair: work(pair[1]), enumerate(items), workers=workers)
    results = {place: result for (place, _), result in finished}
    return [results[place] for place in range(len(results))]


@contextmanager
def single_flight(key: Hashable) -> Iterator[None]:
    """Let one thread at a time work on the same key; the others find its result in a cache."""
    with _LOCK:
        lock = _FLIGHTS.setdefault(key, threading.Lock())
    with lock:
        yield
