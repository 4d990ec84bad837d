"""Many samples through one program: threads, results in the samples' order, and failures as values."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, Literal

from program.agent.assessment import Assessment
from program.common.errors import InputError
from program.common.pool import completed
from program.common.progress import progress as progress_bar
from program.images.store import IMAGES

__all__ = ("BatchInterrupted", "FailedSample", "assess_all", "call_arguments")

logger = logging.getLogger(__name__)

_FIELDS = ("image", "query", "reference", "options", "regions")


@dataclass(frozen=True)
class FailedSample:
    """A sample without an assessment, and why."""

    index: int
    """Its place among the samples."""
    error: str
    """One line."""
    exception: Exception = field(repr=False, compare=False)
    status: Literal["failed"] = "failed"


class BatchInterrupted(KeyboardInterrupt):
    """Ctrl-C during a batch; `results` holds what was finished, None where nothing was."""

    def __init__(self, results: list[Assessment | FailedSample | None]) -> None:
        super().__init__(f"{sum(r is not None for r in results)} samples were finished")
        self.results = results


def assess_all(
    program: Callable[..., Assessment], samples: Iterable[Any], *, workers: int = 8, progress: bool = False
) -> list[Assessment | FailedSample]:
    """Run `program` over samples with `workers` threads and return a result for each, in their order.

    A sample is an image as the program takes it, a mapping of its arguments, or an object with them as attributes
    (`image`, and any of `query`, `reference`, `options`, `regions`). Each call runs in a copy of the caller's context,
    so `dspy.context` and a `Budget` hold inside. Samples may be a stream; two per worker are read ahead, and no image
    is held beyond its own sample. Ctrl-C finishes the samples in flight and raises BatchInterrupted. Raises InputError
    for fewer than one worker.
    """
    if workers < 1:
        raise InputError(f"workers: {workers} is too few; give 1 or more")
    results: dict[int, Assessment | FailedSample] = {}
    total = len(samples) if isinstance(samples, Sized) else None
    with progress_bar("assessing", total, shown=progress) as advance:
        try:
            work = completed(lambda pair: _assessed(program, *pair), enumerate(samples), workers=workers)
            for (index, _), result in work:
                results[index] = result
                advance()
        except KeyboardInterrupt:
            raise BatchInterrupted([results.get(index) for index in range(max(results, default=-1) + 1)]) from None
    return [results[index] for index in range(len(results))]


def call_arguments(sample: Any) -> dict[str, Any]:
    """Return the program's arguments for a sample given in any of the three ways."""
    if isinstance(sample, Mapping):
        return dict(sample)
    if hasattr(sample, "image") and not hasattr(sample, "mode"):  # a PIL image has a mode and is the image itself
        known = {name: getattr(sample, name, None) for name in _FIELDS}
        return {name: value for name, value in known.items() if value is not None}
    return {"image": sample}


def _assessed(program: Callable[..., Assessment], index: int, sample: Any) -> Assessment | FailedSample:
    try:
        # Arrays given and crops made would pile up over a stream of any length.
        with IMAGES.borrowing():
            return program(**call_arguments(sample))
    except Exception as error:  # the sample border: one bad sample must not end the batch
        logger.warning("sample %d failed: %s", index, " ".join(str(error).split()))
        return FailedSample(index, " ".join(f"{type(error).__name__}: {error}".split())[:300], error)
