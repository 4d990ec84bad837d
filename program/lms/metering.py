"""What an assessment's model calls cost, by stage: whoever asks a question books it here."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import dspy
from dspy.streaming import StatusMessage, StatusMessageProvider

from program.lms.dspy_private import sync_send_to_stream
from program.lms.usage import StageUsage, Usage, WireImage

__all__ = ("book", "metered", "note_change", "note_image", "stage")

_USAGE: ContextVar[Usage | None] = ContextVar("agentic_iqa_usage", default=None)
_STAGE: ContextVar[str | None] = ContextVar("agentic_iqa_stage", default=None)
_DOING = {
    "planner": "reading the question",
    "executor": "looking for distortions",
    "tools": "measuring",
    "summarizer": "answering",
}


@contextmanager
def metered() -> Iterator[Usage]:
    """Collect what the questions asked inside cost."""
    usage = Usage()
    token = _USAGE.set(usage)
    started = time.perf_counter()
    try:
        yield usage
    finally:
        usage.seconds["total"] = time.perf_counter() - started
        _USAGE.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Book the wall time, and the calls, of what runs inside under a stage; `dspy.streamify` tells of it."""
    started = time.perf_counter()
    _announce(name)
    token = _STAGE.set(name)
    try:
        yield
    finally:
        _STAGE.reset(token)
        usage = _USAGE.get()
        if usage is not None:
            usage.seconds[name] = usage.seconds.get(name, 0.0) + time.perf_counter() - started


def _announce(name: str) -> None:
    stream = dspy.settings.send_stream
    if stream is None:
        return
    providers = [getattr(callback, "status_message_provider", None) for callback in dspy.settings.callbacks]
    if all(type(p) in {type(None), StatusMessageProvider} for p in providers):  # else the user's own decides
        sync_send_to_stream(stream, StatusMessage(f"{name}: {_DOING[name]}"))


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


def note_image(image: WireImage) -> None:
    """Record an image that goes over the wire, once for each way it is sent."""
    usage = _USAGE.get()
    if usage is not None and all((i.sha256, i.change) != (image.sha256, image.change) for i in usage.wire_images):
        usage.wire_images.append(image)


def note_change(note: str) -> None:
    """Record, once, what a service was sent otherwise than asked."""
    usage = _USAGE.get()
    if usage is not None and note not in usage.wire_notes:
        usage.wire_notes.append(note)
