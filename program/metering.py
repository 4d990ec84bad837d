"""What an assessment's model calls cost, by stage: whoever asks a question books it here."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from program.lms.wire_images import recording
from program.state import StageUsage, Usage

__all__ = ("book", "metered", "stage")

_USAGE: ContextVar[Usage | None] = ContextVar("agentic_iqa_usage", default=None)
_STAGE: ContextVar[str | None] = ContextVar("agentic_iqa_stage", default=None)


@contextmanager
def metered() -> Iterator[Usage]:
    """Collect what the questions asked inside cost."""
    usage = Usage()
    token = _USAGE.set(usage)
    started = time.perf_counter()
    try:
        with recording(usage.wire_images, usage.wire_notes):
            yield usage
    finally:
        usage.seconds["total"] = time.perf_counter() - started
        _USAGE.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Book the wall time, and the calls, of what runs inside under a stage."""
    started = time.perf_counter()
    token = _STAGE.set(name)
    try:
        yield
    finally:
        _STAGE.reset(token)
        usage = _USAGE.get()
        if usage is not None:
            usage.seconds[name] = usage.seconds.get(name, 0.0) + time.perf_counter() - started


def book(*, cached: bool, input_tokens: int = 0, output_tokens: int = 0, cost_usd: float | None = None) -> None:
    """Count one call in the collecting usage, as a whole and for its stage; `cost_usd` None is unknown."""
    usage = _USAGE.get()
    if usage is None:
        return
    name = _STAGE.get()
    kept: list[Usage | StageUsage] = [usage]
    if name is not None:
        kept.append(usage.stages.setdefault(name, StageUsage()))
    for entry in kept:
        entry.lm_calls += 1
        entry.lm_cache_hits += cached
        entry.input_tokens += input_tokens
        entry.output_tokens += output_tokens
        if cost_usd is not None:
            entry.cost_usd = (entry.cost_usd or 0.0) + cost_usd
