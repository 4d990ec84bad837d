"""A model's errors without keys: cleared before a log, a trace or a record can see them."""

from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from program.redaction import keys_among, scrub

__all__ = ("Unquoting",)


class Unquoting(BaseCallback):
    """Takes the environment's keys, and those of one LM, out of what it raises. Goes before every other callback."""

    def __init__(self, lm: dspy.BaseLM) -> None:
        self._secrets = keys_among(lm.kwargs)

    def on_lm_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        """Clear the error of a call that failed, as it leaves the LM."""
        if exception is not None:
            scrub(exception, self._secrets)
