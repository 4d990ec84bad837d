"""What DSPy's histories (`inspect_history`) keep of the calls."""

from collections import deque
from typing import Any

import dspy

from program.lms.build import resolves_references

__all__ = ("KEPT", "remember")

KEPT = 100
"""Calls of the program's own models that are kept whole: DSPy keeps ten thousand, 30 KB each."""

_WHOLE: deque[dict[str, Any]] = deque()
_LEFT_OUT = "(left out: only the last calls are kept whole)"


def remember(lm: dspy.BaseLM, entry: dict[str, Any]) -> None:
    """Add a call to DSPy's histories; of a user's own LM they keep as many as DSPy's settings say."""
    if resolves_references(lm):
        _WHOLE.append(entry)
        while len(_WHOLE) > KEPT:
            # The histories of models and modules hold the entry itself: its place stays, without its bulk.
            oldest = _WHOLE.popleft()
            oldest.update(
                messages=[{"role": "user", "content": _LEFT_OUT}], outputs=[_LEFT_OUT], response=None, kwargs={}
            )
    lm.update_history(entry)
