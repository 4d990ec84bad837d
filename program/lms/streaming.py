"""A whole answer as the events of a stream."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dspy import lm15

__all__ = ("events_of",)


def events_of(response: lm15.Response) -> Iterator[Any]:
    """Return an answer's events, its text word by word: DSPy's `StreamListener` takes one long piece for a cache's."""
    for event in lm15.response_to_events(response):
        if event.type == "delta" and event.delta.type == "text":
            for word in re.findall(r"\s*\S+|\s+$", event.delta.text):
                yield replace(event, delta=replace(event.delta, text=word))
        else:
            yield event
