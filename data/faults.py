"""What is wrong with a line of a manifest, in words: what each key wants, and which one a misspelt key meant."""

import json
import math
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

__all__ = ("WANTED", "close_field", "fault_of", "shortened")

WANTED = {
    "id": "a non-empty text",
    "image": "a path as text",
    "reference": "a path as text, or null",
    "query": "a text",
    "options": 'an object of letters and texts, as {"A": "Yes", "B": "No"}',
    "answer": "one of the options' letters",
    "mos": "a finite number",
    "mos_std": "a finite number from 0",
    "mos_range": "two finite numbers, [lowest, highest]",
    "higher_is_better": "true or false",
    "distortion": "a text",
    "group": "a text",
    "split": '"train", "validation" or "test"',
    "regions": 'an object of names and boxes, as {"car": [left, top, right, bottom]}',
    "metadata": "an object",
}
"""What each key of a manifest holds, in words."""


@lru_cache(maxsize=1024)
def close_field(key: str) -> str | None:
    """Return the manifest's key that an unknown one was probably meant to be, or None.

    >>> close_field("MOS"), close_field("groups"), close_field("level")
    ('mos', 'group', None)
    """
    return next(iter(get_close_matches(key.strip().casefold(), WANTED, n=1, cutoff=0.85)), None)


def fault_of(error: ValidationError) -> str:
    """Return what is wrong with a sample, and the mend, in a few words."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    field = str(first["loc"][0])
    if first["type"] == "missing" and len(first["loc"]) == 1:
        return f'"{field}" is missing; add it'
    found, inside = shortened(first["input"]), first["loc"][1:]
    if inside:
        found += f" for {inside[0]!r}" if isinstance(inside[0], str) else ""
    return f'"{field}" {"holds" if inside else "is"} {found}, not {WANTED[field]}; correct it'


def shortened(value: Any) -> str:
    """Return a value as JSON of 60 characters at most."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
