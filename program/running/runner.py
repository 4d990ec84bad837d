"""A program over many requests, in threads or elsewhere; and the border at which a fault of one becomes its row.

One policy for all: a fault of one image (unreadable, refused by its rules, a bug) is its row's error and ends nothing.
A spent budget, an address that answers no request and a model service that fails several times in a row end the run:
the next thousand images would fail too. What was finished until then is kept, and the same command goes on with it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeAlias, TypeVar

import dspy
from dspy.utils.exceptions import is_retryable_lm_error

from program.agent.assessment import Assessment
from program.common.errors import EndpointError, ImageError, InputError
from program.common.pool import map_unordered
from program.common.pool import progress as progress_bar
from program.images.store import IMAGES
from program.lms.limits import BudgetSpent
from program.running.journal import Journal
from program.running.request import Request
from program.running.row import Row

__all__ = ("Asking", "Engine", "Placed", "one_image", "run")

logger = logging.getLogger(__name__)

_MODEL_FAULTS = 3
"""So many answers of a model service that fail in a row end the run, and two where no repeat mends it, as of a refused
key."""

R = TypeVar("R", bound=Row)
Placed: TypeAlias = tuple[int, Request]
Engine: TypeAlias = Callable[[Iterable[Placed]], Iterator[tuple[Placed, Any]]]
"""Answers placed requests and yields each with its row as they come."""


@contextmanager
def one_image() -> Iterator[None]:
    """Ask a program inside the block; of a run of any length, or a service, neither images nor prompts pile up."""
    with IMAGES.borrowing(), dspy.context(disable_history=True, trace=None):
        yield


class Asking(Generic[R]):
    """From a request to its row, one after the other, in any number of threads; subclasses say which kind of row."""

    def __init__(self, program: Callable[..., Assessment]) -> None:
        self.program, self._faults = program, 0

    def __call__(self, request: Any) -> R:
        """Return a request's row. Raises what ends a run: BudgetSpent, EndpointError, LMError."""
        if request.error or request.image is None:
            return self.failed(request, request.error or "names no image")
        try:
            with one_image():
                row = self.row(request)
        except dspy.LMError as error:
            self._faults += 1
            if self._faults >= _MODEL_FAULTS or (self._faults > 1 and not is_retryable_lm_error(error)):
                raise
            return self.failed(request, f"language model: {error}")
        except BudgetSpent:
            raise
        except InputError as error:
            if isinstance(error, EndpointError) and error.is_repeated:
                raise
            if not isinstance(error, ImageError):
                logger.warning("%s: %s", request.id, error)
            return self.failed(request, str(error))
        except Exception as error:  # the sample border: one bad image must not end the run
            logger.info("%s failed", request.id, exc_info=True)
            return self.failed(request, f"image {request.id!r}: could not be judged ({type(error).__name__}: {error})")
        self._faults = 0
        return row

    def row(self, request: Any) -> R:
        """Ask the program, and return what is kept of its answer."""
        raise NotImplementedError

    def failed(self, request: Any, error: str) -> R:
        """Return the row of a request that got no answer."""
        raise NotImplementedError


def run(
    work: Callable[[Any], R],
    requests: Iterable[Request],
    take: Callable[[int, R], str | None],
    *,
    workers: int = 2,
    engine: Engine | None = None,
    journal: Journal[R] | None = None,
    label: str = "judging",
    total: int | None = None,
    progress: bool = True,
) -> None:
    """Have every request answered, in threads or by an `engine`; of requests and rows no more than a few are held.

    `take` gets each row with its request's place, in the order they come, those that the journal has too; what it
    returns stands behind the progress. What ends the run is raised once what was in flight is finished and kept.
    """
    engine = engine or (lambda placed: map_unordered(lambda pair: work(pair[1]), placed, workers=workers))
    with progress_bar(label, total, shown=progress) as advance:

        def unfinished() -> Iterator[Placed]:
            for place, request in enumerate(requests):
                row = None if journal is None else journal.find(request, place)
                if row is None:
                    yield place, request
                else:
                    advance(facts=take(place, row) or "")

        for (place, request), row in engine(unfinished()):
            if journal is not None:
                journal.keep(request, place, row)
            advance(facts=take(place, row) or "")
