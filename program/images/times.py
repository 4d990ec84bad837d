"""When photographs were taken, and which of them in one burst."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

_ORIGINAL, _DIGITIZED, _CHANGED, _FRACTION = 36867, 36868, 306, 37521
"""EXIF's times, and the fraction of a second of the first."""


def taken_at(tags: Mapping[int, object]) -> str | None:
    """Return when a picture was taken, as EXIF's tags say: ISO 8601, the camera's local time.

    >>> taken_at({36867: "2026:05:01 10:20:30", 37521: "25"}), taken_at({306: "0000:00:00 00:00:00"})
    ('2026-05-01T10:20:30.250000', None)
    """
    for tag in (_ORIGINAL, _DIGITIZED, _CHANGED):
        text = str(tags.get(tag, "")).strip("\0 ")
        fraction = str(tags.get(_FRACTION, "")).strip("\0 ") if tag == _ORIGINAL else ""
        text += f".{fraction[:6]}" if fraction.isascii() and fraction.isdigit() else ""
        for form in ("%Y:%m:%d %H:%M:%S.%f", "%Y:%m:%d %H:%M:%S"):
            with suppress(ValueError):
                return datetime.strptime(text, form).isoformat()
    return None


def bursts(times: Sequence[datetime | None], gap_s: float) -> NDArray[np.intp]:
    """Return the number of each picture's burst: none is more than `gap_s` after another.

    -1 for one without a time.

    >>> at = datetime(2026, 5, 1)
    >>> bursts([at, None, at.replace(second=2), at.replace(second=9)], 3.0).tolist()
    [0, -1, 0, 1]
    """
    known = [(time, place) for place, time in enumerate(times) if time is not None]
    numbers = np.full(len(times), -1, dtype=np.intp)
    number, before = -1, None
    for time, place in sorted(known):
        number += before is None or (time - before).total_seconds() > gap_s
        numbers[place], before = number, time
    return numbers
