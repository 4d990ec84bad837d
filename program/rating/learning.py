"""What is learned of the pictures and of the ratings while they are rated, in a thread of its own."""

import statistics
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from program.common.errors import ImageError
from program.evaluation.agreement import LEAST_REPEATS, agreement_words
from program.rating.session import Session
from program.rating.worth import labels_for, worth_of

_EVERY, _GAIN = 25, 0.02
"""Labels after which the worth is worked out again, and the gain in SRCC whose price is told."""


class Learner:
    """Reads the pictures one by one, and works out the worth of the labels every 25 of them."""

    def __init__(self, session: Session, kept: Path | None, max_pixels: int) -> None:
        """Take a session, the folder where measurements are kept, and the bound of a picture in pixels."""
        self._session, self._kept, self._max_pixels = session, kept, max_pixels
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the picture that is being read."""
        self._end.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        reading = self._read()
        while not self._end.is_set():
            if not self._work_out() and next(reading, None) is None:
                self._end.wait(1)

    def _read(self) -> Iterator[int]:
        """Read the pictures; yields each one's place."""
        from program.expert import Viewer, inputs_of
        from program.images.store import IMAGES

        viewer, learned = Viewer(self._kept), self._session.learned
        for place, picture in enumerate(self._session.pictures):
            with IMAGES.borrow():
                try:
                    view = viewer.view(IMAGES.add(picture.place, max_pixels=self._max_pixels))
                    learned.readings[place], learned.inputs[place] = view.prior.mean, inputs_of(view)
                except ImageError:  # the page says so when it is to be shown
                    continue
            yield place

    def _work_out(self) -> bool:
        """Work out the worth of the labels where there are 25 more than before; tell whether that was done."""
        learned = self._session.learned
        rated = [(unit, score) for unit, score in self._session.scores() if unit in learned.inputs]
        if len(rated) < learned.labels + _EVERY:
            return False
        units, labels = zip(*rated, strict=True)
        inputs = np.stack([learned.inputs[unit] for unit in units])
        readings = [learned.readings[unit] for unit in units]
        learned.worth = worth_of(inputs, readings, labels, [self._session.units[unit].group for unit in units])
        learned.labels = len(rated)
        return True


def agreement_text(session: Session) -> str:
    """Say how well the rater agrees with himself, and the most that a program can reach."""
    both = [(first.value, second.value) for first, second in session.own_repeats()]
    if session.asked.kind == "score" or len(both) < LEAST_REPEATS:
        return agreement_words([(float(first or 0), float(second or 0)) for first, second in both])
    same = statistics.fmean(first == second for first, second in both)
    return f"you gave the same answer to {same:.0%} of {len(both)} repeats"


def worth_text(session: Session) -> str:
    """Say what a program learns from the labels; empty where that is not known yet."""
    worth = session.learned.worth
    if worth is None:
        return ""
    text = f"the program has {worth.before} (SRCC), and a quick fit to your {worth.after.n} labels {worth.after}"
    more = labels_for(_GAIN, worth)
    return text if more is None else f"{text}; about {more} more labels for {_GAIN:g} more"
