"""A program over many requests, and the border at which a fault of one becomes its row.

A fault of one image (unreadable, refused by its rules, a bug) is its row's error and ends nothing.
A spent budget, an address that answers no request and a model service that fails several times in a
row, or cannot be understood, end the run: the next images would fail too. What was finished is
kept, and the same command goes on with it. `AgenticIQA.batch` and the service end on nothing.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import dspy
from dspy.utils.exceptions import is_retryable_lm_error

from program.agent.state import SummarizerOutput
from program.common.errors import EndpointError, ImageError, InputError, UnreadError
from program.common.pool import map_unordered
from program.common.pool import progress as progress_bar
from program.common.request import Request
from program.images.store import IMAGES
from program.lms.limits import BudgetSpent
from program.running.row import Row

logger = logging.getLogger(__name__)

_MODEL_FAULTS, _LASTING_MODEL_FAULTS = 3, 2
"""So many answers of a model service that fail in a row end the run; the second where no repeat
mends it, as of a refused key."""

R = TypeVar("R")
Placed: TypeAlias = tuple[int, Request]
Engine: TypeAlias = Callable[[Iterable[Placed]], Iterator[tuple[Placed, Any]]]
"""Answers placed requests and yields each with its row as they come."""


class Log(Protocol[R]):
    """Where a run keeps its rows; see `running.journal`."""

    def find(self, request: Request, place: int) -> R | None:
        """Return the row of a request that was finished before."""

    def keep(self, request: Request, place: int, row: R) -> None:
        """Write down the row of a request."""


without_history = partial(dspy.context, disable_history=True, trace=None)
"""A block in which DSPy's histories and trace keep no prompt: those of a long run would pile up."""


@contextmanager
def one_image() -> Iterator[None]:
    """Ask a program inside the block: of a long run neither images nor prompts pile up."""
    with IMAGES.borrow(), without_history():
        yield


class Asking(Generic[R]):
    """From a request to its row, in any number of threads; subclasses say which kind of row."""

    kind: Any
    """The kind of row; its `failed_row` makes the row of a request that got no answer."""
    context: Callable[[], AbstractContextManager[None]] = staticmethod(one_image)
    """What a program is asked in."""

    def __init__(self, program: Callable[..., Any]) -> None:
        self.program: Any = program
        self._faults = 0
        self._end: Exception | None = None

    def __call__(self, request: Any) -> R:
        """Return a request's row; BudgetSpent, EndpointError, LMError and UnreadError end a run."""
        if self._end is not None:
            raise self._end
        try:
            return self._row_or_end(request)
        except (BudgetSpent, EndpointError, dspy.LMError, UnreadError) as error:
            self._end = error
            raise

    def _row_or_end(self, request: Any) -> R:
        if request.error or request.image is None:
            return self.failed_row(request, request.error or "names no image")
        try:
            with self.context():
                row = self.row(request)
        except dspy.LMError as error:
            self._faults += 1
            most = _MODEL_FAULTS if is_retryable_lm_error(error) else _LASTING_MODEL_FAULTS
            if self._faults >= most:
                raise
            return self.failed_row(request, f"language model: {error}")
        except BudgetSpent:
            raise
        except InputError as error:
            if isinstance(error, EndpointError) and error.is_repeated:
                raise
            if not isinstance(error, ImageError):
                logger.warning("%s: %s", request.id, error)
            return self.failed_row(request, str(error))
        except Exception as error:  # the sample border: one bad image must not end the run
            logger.info("%s failed", request.id, exc_info=True)
            fault = f"could not be judged ({type(error).__name__}: {error})"
            return self.failed_row(request, f"image {request.id!r}: {fault}")
        self._count(row)
        return row

    def _count(self, row: R) -> None:
        """Count an answer that could not be read as a fault of the service; UnreadError for the last."""
        answer = self.answer_in(row)
        if answer is None or not answer.is_unread:
            self._faults = 0
            return
        self._faults += 1
        if self._faults >= _MODEL_FAULTS:
            fault = f"no answer could be read, {_MODEL_FAULTS} times in a row ({answer.error})"
            raise UnreadError(f"language model: {fault}")

    def answer_in(self, row: R) -> Row | SummarizerOutput | None:
        """Return what a row says of the program's answer; None where it was not asked."""
        return row if isinstance(row, Row) else None

    def row(self, request: Any) -> R:
        """Ask the program, and return what is kept of its answer."""
        raise NotImplementedError

    def failed_row(self, request: Any, error: str) -> R:
        """Return the row of a request that got no answer."""
        row: R = self.kind.failed_row(request, error)
        return row


def run(
    work: Callable[[Any], R],
    requests: Iterable[Any],
    take: Callable[[int, R], str | None],
    *,
    workers: int = 2,
    engine: Engine | None = None,
    journal: Log[R] | None = None,
    label: str = "judging",
    total: int | None = None,
    progress: bool = True,
) -> None:
    """Have every request answered, in threads or by an `engine`; no more than a few are held.

    `take` gets each row with its request's place, in the order they come, those that the journal
    has too; what it returns stands behind the progress. What ends the run is raised once what was
    in flight is finished and kept.
    """
    if engine is None:
        engine = partial(map_unordered, lambda placed: work(placed[1]), workers=workers)
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
