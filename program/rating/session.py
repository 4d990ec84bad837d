"""What a rater is shown, in which order, and what becomes of each answer."""

import hashlib
import json
import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.ratings import RatingLine, both_times, last_answers
from data.ratings import Shown as ShownLine
from program.common.errors import ImageError, InputError
from program.rating.choosing import next_place, repeats_due, split_of
from program.rating.pictures import Picture, Screen, Unit
from program.rating.store import RatingFile
from program.rating.worth import Worth

Kind = Literal["score", "pair", "question"]
_LEVELS = {1: "bad", 2: "poor", 3: "fair", 4: "good", 5: "excellent"}
_SIDES = {"left": "left", "equal": "the same", "right": "right"}
_TITLES = {"score": "How good does it look?", "pair": "Which looks better?", "question": ""}
_AHEAD = 2
"""Pictures that a page holds: the one that is shown, and the one that is loaded meanwhile."""
_ROUNDS = 3
"""Pairs for each picture. A round is a ring of all pictures, so that votes connect them."""
_LEAST_DIVIDED = 100
"""Pictures from which pairs are drawn inside a split: scores of two parts without a vote between do not compare."""
UNSURE, TAKEN_BACK = "unsure", None
_NOTHING = {"mos": None, "preferred": None, "answer": None, "unsure": False}


class Task(NamedTuple):
    """A unit for the first time or for the second."""

    unit: int
    repeat: bool


@dataclass(frozen=True)
class Asked:
    """Whom and what is asked."""

    kind: Kind
    rater: str
    seed: int


@dataclass
class Learned:
    """What is known of pictures, by their places, and of the labels."""

    inputs: dict[int, NDArray[np.float16]] = field(default_factory=dict)
    """What a correction of its readings is fitted to: `inputs_of`."""
    readings: dict[int, float] = field(default_factory=dict)
    """What the embedded expert says: 1 .. 5."""
    worth: Worth | None = None
    labels: int = 0
    """Of which the worth was worked out."""


def pairs_of(pictures: Sequence[Picture], splits: Sequence[str | None], seed: int) -> list[Unit]:
    """Return pairs of pictures inside a split, in random order and on random sides; none is there twice."""
    rng, pairs = random.Random(seed), list[Unit]()
    drawn: set[frozenset[int]] = set()
    for _ in range(_ROUNDS):
        ring: list[tuple[int, int]] = []
        for split in sorted({str(each) for each in splits}):
            order = [place for place, own in enumerate(splits) if str(own) == split]
            rng.shuffle(order)
            ring += zip(order, order[1:] + order[:1], strict=True)
        rng.shuffle(ring)
        for left, right in ring:
            if left != right and frozenset((left, right)) not in drawn:
                drawn.add(frozenset((left, right)))
                pairs.append(Unit(pictures[left].id, (left, right), pictures[left].group))
    return pairs


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


class Session:
    """One rater's answers. Thread-safe; pages in several tabs are shown different pictures where there are enough."""

    def __init__(
        self, asked: Asked, pictures: Sequence[Picture], units: Sequence[Unit], screen: Screen, file: RatingFile
    ) -> None:
        """Take up the answers that are in the file. Raises InputError where they are of another kind."""
        self.asked, self.pictures, self.screen, self.learned = asked, pictures, screen, Learned()
        self._file, self._lock = file, threading.RLock()
        self.lines = list(file.lines_before)
        if any(line.kind != asked.kind for line in self.lines):
            kind = next(line.kind for line in self.lines if line.kind != asked.kind)
            raise InputError(f"ratings {str(file.path)!r}: hold {kind}s, not {asked.kind}s; give another --out")
        self._splits = self._drawn_splits(units)
        self.units = list(units)
        if asked.kind == "pair":
            if len(pictures) < _LEAST_DIVIDED:
                self._splits = [None for _ in pictures]
            self.units = pairs_of(pictures, self._splits, asked.seed)
        tasks = (Task(unit, again) for unit in range(len(self.units)) for again in (False, True))
        self._task_of = {self._id(task): task for task in tasks}
        self._done: dict[Task, RatingLine] = {}
        self._history: list[Task] = []
        self._pending: defaultdict[str, list[Task]] = defaultdict(list)
        self.failed: dict[int, str] = {}
        """Why pictures cannot be shown, by their places."""
        self._owner: dict[str, int] = {}
        self._resume()

    def _drawn_splits(self, units: Sequence[Unit]) -> list[str | None]:
        """Return each picture's split: as before, as the manifest says, or drawn by group."""
        known = {line.group: line.split for line in self.lines if line.split and line.group}
        stated = {self.pictures[place].group: unit.split for unit in units for place in unit.pictures if unit.split}
        groups = [picture.group for picture in self.pictures]
        if self.asked.kind == "question":
            return [stated.get(group) for group in groups]
        drawn = split_of(groups, self.asked.seed)
        return [known.get(group) or own for group, own in zip(groups, drawn, strict=True)]

    def _resume(self) -> None:
        unit_of = {self._key_of_unit(unit): n for n, unit in enumerate(self.units)}
        place_of = {picture.id: place for place, picture in enumerate(self.pictures)}
        for line in last_answers(self.lines).values():
            unit = unit_of.get((line.id, line.other.id if line.other else ""))
            if unit is not None and line.value is not None:
                self._follow(line, self.units[unit])
        for line in self.lines:
            other = line.other.id if line.other else ""
            unit = unit_of.get((line.id, other))
            if line.id in place_of:
                self._owner[line.sha256] = place_of[line.id]
            if unit is not None and line.rater == self.asked.rater:
                self._enter(Task(unit, line.repeat), line)

    def _follow(self, line: RatingLine, unit: Unit) -> None:
        """Write an answer anew with where its pictures lie now, where they were moved since."""
        before = [each for each in (line, line.other) if each is not None]
        if all((self._file.path.parent / each.image).exists() for each in before):
            return
        try:
            now = [self._shown_line(place) for place in unit.pictures]
        except ImageError:  # said when it is to be shown
            return
        if [each.sha256 for each in now] == [each.sha256 for each in before]:
            other = line.other and line.other.model_copy(update={"image": now[-1].image})
            self._keep(line.model_copy(update={"image": now[0].image, "other": other}))

    def _key_of_unit(self, unit: Unit) -> tuple[str, str]:
        other = self.pictures[unit.pictures[1]].id if len(unit.pictures) > 1 else ""
        return unit.id, other

    def _id(self, task: Task) -> str:
        """Return what stands for a task in addresses: the same after a restart, and nothing of the file's name."""
        key = json.dumps([self.asked.rater, *self._key_of_unit(self.units[task.unit]), task.repeat])
        return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    # What is shown

    def queue(self, tab: str) -> dict[str, Any]:
        """Return what a page shows now and next, and how far the rater is."""
        with self._lock:
            waiting = self._pending[tab]
            waiting[:] = [task for task in waiting if task not in self._done and self._is_shown(task)]
            while len(waiting) < _AHEAD and (task := self._next(tab)) is not None:
                waiting.append(task)
            return {"queue": [self._as_shown(task) for task in waiting], **self.progress()}

    def _next(self, tab: str) -> Task | None:
        """Return what is to be shown next and can be; None where all is rated."""
        while True:
            taken = {task for tasks in self._pending.values() for task in tasks}
            task = self._due(taken) or self._fresh(taken) or self._held_elsewhere(tab)
            if task is None or self._is_shown(task):
                return task

    def _due(self, taken: set[Task]) -> Task | None:
        firsts = [task.unit for task in self._history if not task.repeat and not self._has_failed(task.unit)]
        again = {task.unit for task in {*self._done, *taken} if task.repeat}
        unit = repeats_due(firsts, again, self.asked.seed)
        return None if unit is None else Task(unit, True)

    def _fresh(self, taken: set[Task]) -> Task | None:
        over = {task.unit for task in {*self._done, *taken} if not task.repeat}
        open_units = [n for n in range(len(self.units)) if n not in over and not self._has_failed(n)]
        if not open_units:
            return None
        if self.asked.kind != "score":
            return Task(open_units[0], False)
        able = [n for n in range(len(self.units)) if not self._has_failed(n)]
        groups, splits = [self.units[n].group for n in able], [self._splits[n] or "train" for n in able]
        rated = [place for place, n in enumerate(able) if n in over]
        place = next_place(groups, splits, rated, self.asked.seed)
        return None if place is None else Task(able[place], False)

    def _held_elsewhere(self, tab: str) -> Task | None:
        """Return what another page was shown and has not answered: it may be closed."""
        others = (task for tasks in self._pending.values() for task in tasks if task not in self._done)
        return next((task for task in others if task not in self._pending[tab]), None)

    def _has_failed(self, unit: int) -> bool:
        return any(place in self.failed for place in self.units[unit].pictures)

    def _is_shown(self, task: Task) -> bool:
        """Tell whether a task's pictures can be shown; one that is the same file as another is shown once."""
        for place in self.units[task.unit].pictures:
            try:
                sha256 = self.screen.show(place).sha256
            except ImageError as error:
                self.failed[place] = str(error)
                continue
            first = self._owner.setdefault(sha256, place)
            if first != place:
                self.failed[place] = f"image {self.pictures[place].id!r}: is the same as {self.pictures[first].id!r}"
        return not self._has_failed(task.unit)

    def _as_shown(self, task: Task) -> dict[str, Any]:
        unit, line = self.units[task.unit], self._done.get(task)
        answers = [{"value": value, "label": label} for value, label in self._answers(unit).items()]
        given = None if line is None else UNSURE if line.unsure else self._as_sent(line)
        return {
            "id": self._id(task), "sides": len(unit.pictures), "given": given, "answers": answers,
            "title": unit.query or _TITLES[self.asked.kind],
        }  # fmt: skip

    def _as_sent(self, line: RatingLine) -> int | str | None:
        return int(line.mos) if line.mos is not None else line.preferred or line.answer

    def _answers(self, unit: Unit) -> Mapping[Any, str]:
        if self.asked.kind == "question":
            return unit.options or {}
        return _LEVELS if self.asked.kind == "score" else _SIDES

    def png(self, name: str, side: int) -> bytes:
        """Return a task's picture. Raises InputError for none, ImageError where it cannot be shown."""
        task = self._task(name)
        if not 0 <= side < len(self.units[task.unit].pictures):
            raise InputError(f"side {side}: there is none; give 0")
        return self.screen.show(self.units[task.unit].pictures[side]).png

    def _task(self, name: object) -> Task:
        if not isinstance(name, str) or name not in self._task_of:
            raise InputError(f"picture {str(name)[:40]!r}: is none of this session; load the page again")
        return self._task_of[name]

    # What is answered

    def answer(self, tab: str, name: object, value: object) -> dict[str, Any]:
        """Keep an answer (None takes an earlier one back), and return what `queue` does.

        The same answer again writes nothing: a page that heard of none sends it once more. Raises InputError.
        """
        task = self._task(name)
        allowed = self._answers(self.units[task.unit])
        is_plain = value is None or type(value) in {int, str}
        if not is_plain or value not in {UNSURE, TAKEN_BACK, *allowed}:
            raise InputError(f"answer {str(value)[:40]!r}: give {', '.join(map(str, allowed))}, or {UNSURE}")
        with self._lock:
            before = self._done.get(task)
            is_there = self._as_shown(task)["given"] == value
            if not is_there and not (before is None and value is TAKEN_BACK):
                if before is not None and value is TAKEN_BACK:  # also of a picture that is gone by now
                    line = before.model_copy(update={**_NOTHING, "at": _now()})
                else:
                    line = self._line(task, value)
                self._keep(line)
                self._enter(task, line)
                if value is TAKEN_BACK:
                    self._pending[tab].insert(0, task)
            return self.queue(tab)

    def _line(self, task: Task, value: Any) -> RatingLine:
        unit = self.units[task.unit]
        shown = [self._shown_line(place) for place in unit.pictures]
        said: dict[str, Any] = {"unsure": True}
        if value != UNSURE:
            said = {{"score": "mos", "pair": "preferred", "question": "answer"}[self.asked.kind]: value}
        if self.asked.kind == "question":
            said |= {"query": unit.query, "options": unit.options, "regions": unit.regions}
        return RatingLine(
            **{**shown[0].model_dump(), "id": unit.id}, other=shown[1] if len(shown) > 1 else None,
            split=self._splits[unit.pictures[0]], rater=self.asked.rater, repeat=task.repeat,
            at=_now(), **said,
        )  # fmt: skip

    def _keep(self, line: RatingLine) -> None:
        self._file.add(line)
        self.lines.append(line)

    def _shown_line(self, place: int) -> ShownLine:
        picture, folder = self.pictures[place], self._file.path.resolve().parent
        path = picture.place.absolute()
        name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
        return ShownLine(id=picture.id, image=name, sha256=self.screen.show(place).sha256, group=picture.group)

    def _enter(self, task: Task, line: RatingLine) -> None:
        if line.value is None and not line.unsure:
            self._done.pop(task, None)
            if task in self._history:
                self._history.remove(task)
            return
        self._done[task] = line
        if task not in self._history:
            self._history.append(task)

    def before(self, name: object) -> dict[str, Any]:
        """Return what was answered before a task, or last, as `task`; None where nothing was."""
        with self._lock:
            at = len(self._history)
            if name is not None and (task := self._task(name)) in self._history:
                at = self._history.index(task)
            return {"task": self._as_shown(self._history[at - 1]) if at else None}

    # How far it is

    def progress(self) -> dict[str, Any]:
        """Return counts: what is rated, shown again, unsure, open, and left out as it cannot be shown."""
        with self._lock:
            firsts = [line for task, line in self._done.items() if not task.repeat]
            left = [n for n in range(len(self.units)) if Task(n, False) not in self._done]
            left_out = sum(map(self._has_failed, left))
            return {
                "rated": len(firsts), "open": len(left) - left_out, "repeats": len(self._done) - len(firsts),
                "unsure": sum(line.unsure for line in firsts), "left_out": left_out,
            }  # fmt: skip

    def own_repeats(self) -> list[tuple[RatingLine, RatingLine]]:
        """Return what this rater answered both times."""
        with self._lock:
            return both_times(line for line in self.lines if line.rater == self.asked.rater)

    def scores(self) -> Iterator[tuple[int, float]]:
        """Yield the units with a score, and this rater's mean of both times."""
        with self._lock:
            given: defaultdict[int, list[float]] = defaultdict(list)
            for task, line in self._done.items():
                if line.mos is not None:
                    given[task.unit].append(line.mos)
        yield from ((unit, float(np.mean(each))) for unit, each in sorted(given.items()))
