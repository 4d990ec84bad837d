"""Work over many items with threads, and keys that one thread works on at a time."""

import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypeVar
from weakref import WeakValueDictionary

__all__ = ("completed", "in_order", "single_flight")

T = TypeVar("T")
R = TypeVar("R")

_FLIGHTS: "WeakValueDictionary[Hashable, threading.Lock]" = WeakValueDictionary()
_LOCK = threading.Lock()


def completed(work: Callable[[T], R], items: Iterable[T], *, workers: int) -> Iterator[tuple[T, R]]:
    """Yield (item, work(item)) as results come; of a stream of items, two for each worker are read ahead.

    Each call runs in a copy of the caller's context. An exception of `work`, Ctrl-C and SIGTERM begin nothing else:
    what is in flight is waited for and yielded, as it may be paid for, and then the exception is raised.
    """
    pending: dict[Future[R], T] = {}
    pool = ThreadPoolExecutor(workers, thread_name_prefix="work")

    def finished() -> Iterator[tuple[T, R]]:
        done = wait(pending, return_when=FIRST_COMPLETED).done
        for future in sorted(done, key=lambda each: each.exception() is not None):  # a fault costs no result beside it
            result = future.result()
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
                yield item, future.result()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _tell(stop: BaseException, pending: Iterable[Future[Any]]) -> None:
    """Say at once, on Ctrl-C, what the end waits for."""
    if isinstance(stop, KeyboardInterrupt) and any(future.running() for future in pending):
        sys.stderr.write("stopping: what is in flight is waited for, as it may be paid for\n")


def in_order(work: Callable[[T], R], items: Iterable[T], *, workers: int) -> list[R]:
    """Return `work(item)` for each item, in the items' order; see `completed`."""
    finished = completed(lambda pair: work(pair[1]), enumerate(items), workers=workers)
    results = {place: result for (place, _), result in finished}
    return [results[place] for place in range(len(results))]


@contextmanager
def single_flight(key: Hashable) -> Iterator[None]:
    """Let one thread at a time work on the same key, so that the others find its result in a cache."""
    with _LOCK:
        lock = _FLIGHTS.setdefault(key, threading.Lock())
    with lock:
        yield
