"""Search over sets of demos: varied starts, then the best one changed a little, and a little less each time.

Scored on the training samples whose photograph no demo of the candidate shows, so the validation samples stay fresh for
choosing. Where most samples share their photographs, too few would be left, and the validation samples score instead.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import dspy

from optimizers.lessons import Lesson, image_url
from optimizers.memory import Memory
from optimizers.scoring import Ledger, Memo, Outcome, run_all, set_score
from optimizers.taught import TaughtProgram
from optimizers.teaching import Course
from program.saving import program_sha256
from program.settings import RecipeSettings

__all__ = ("DemoSearch", "Found", "chosen_lessons", "with_demos")

Chosen = dict[str, tuple[int, ...]]
"""By predictor, which of its lessons are shown, by place."""

_STRATEGIES = ("ends", "spread", "thirds", "random")


@dataclass(frozen=True)
class Found:
    """One candidate of a search."""

    name: str
    program: TaughtProgram
    chosen: Chosen
    score: float
    """Set score on the search's samples, -1..1."""


class DemoSearch:
    """One seeded search; `run` returns every distinct candidate, best first."""

    def __init__(
        self, student: TaughtProgram, course: Course, validation: Sequence[dspy.Example], ledger: Ledger, *,
        budget: RecipeSettings, kind: str, seed: int, workers: int, known: Mapping[str, float],
        memory: Memory | None = None,
    ) -> None:  # fmt: skip
        self._student, self._ledger, self._known = student, ledger, known
        self._earlier = memory if memory is not None else Memory(None)
        self._budget, self._kind, self._workers = budget, kind, workers
        self._lessons = {name: course.lessons[name] for name in student.names if course.lessons.get(name)}
        self._sizes = {name: size_of(name, lessons, budget) for name, lessons in self._lessons.items()}
        self._rng = random.Random(seed)
        self._memo = Memo()
        self._groups = {example.image.url: example.group for example in course.examples}
        fresh = not course.shares_content and len(course.examples) >= 2 * max(self._sizes.values(), default=0) + 10
        pool = list(course.examples if fresh else validation)
        self._rng.shuffle(pool)
        self._pool = pool[: budget.search_samples]

    def run(self, on_candidate: Callable[[Found], None], begun: Sequence[TaughtProgram] = ()) -> list[Found]:
        """Return the candidates, `begun` ones among them, best first. `on_candidate` hears of each as it is scored."""
        found: dict[str, Found] = {}

        def consider(chosen: Chosen, name: str, candidate: TaughtProgram | None = None) -> None:
            candidate = candidate or with_demos(self._student, self._lessons, chosen)
            digest = candidate.digest()
            if digest not in found:
                score = self._known[digest] if digest in self._known else self._score(candidate)
                found[digest] = Found(name, candidate, chosen, score)
                on_candidate(found[digest])

        for number, program in enumerate(begun):
            consider({}, f"given/{number}", program)
        for number in range(self._budget.starts):
            strategy = _STRATEGIES[number % len(_STRATEGIES)]
            chosen = {n: chosen_lessons(ls, self._sizes[n], strategy, self._rng) for n, ls in self._lessons.items()}
            consider(chosen, f"{strategy}/{number}")
        for step in range(self._budget.steps):
            best = max((c for c in found.values() if c.chosen), key=lambda c: c.score, default=None)
            if best is None:
                break
            consider(self._changed(best.chosen, step), f"changed/{step}")
        return sorted(found.values(), key=lambda c: -c.score)

    def _changed(self, chosen: Chosen, step: int) -> Chosen:
        """Return a set with some demos of one predictor exchanged: a quarter of them at first, one in the end."""
        movable = [n for n, ls in self._lessons.items() if 0 < len(chosen[n]) < len(ls)]
        if not movable:
            return chosen
        name = self._rng.choice(movable)
        kept, spare = list(chosen[name]), [i for i in range(len(self._lessons[name])) if i not in chosen[name]]
        left = 1 - step / max(1, self._budget.steps)
        count = min(max(1, round(len(kept) / 4 * left)), len(spare))
        for place, other in zip(self._rng.sample(range(len(kept)), count), self._rng.sample(spare, count), strict=True):
            kept[place] = other
        return {**chosen, name: tuple(kept)}

    def _score(self, candidate: TaughtProgram) -> float:
        shown = {image_url(demo) for _, p in candidate.named_parameters() for demo in p.demos}
        photographs = {group for url, group in self._groups.items() if url in shown}
        examples = [example for example in self._pool if example.group not in photographs]
        weights = dict(self._ledger.objective.weights)
        what = ["score", program_sha256(candidate.program), candidate.names, self._kind, weights, examples]
        known = self._earlier.get(*what)
        if known is not None:
            return float(known)
        outcomes: list[Outcome] = run_all(candidate, examples, self._ledger, self._memo, workers=self._workers)
        score = set_score(outcomes, "mean" if self._kind == "mean" else "rank")
        if all(outcome.predicted is not None for outcome in outcomes):
            self._earlier.put(*what, value=score)
        return score


def size_of(name: str, lessons: Sequence[Lesson], budget: RecipeSettings) -> int:
    """Return how many demos a predictor is shown: `demos` for the Summarizer, `role_demos` for the other roles."""
    wanted = budget.demos if name.startswith("summarizer.") else budget.role_demos
    return len(lessons) if wanted is None else min(wanted, len(lessons))


def chosen_lessons(lessons: Sequence[Lesson], count: int, strategy: str, rng: random.Random) -> tuple[int, ...]:
    """Return `count` places of lessons: spread over their values, from both ends of them, or at random.

    Lessons with words for values are spread evenly over the distinct ones, whatever the strategy but "random".
    """
    places = list(range(len(lessons)))
    if count >= len(places):
        return tuple(places)
    if strategy == "random":
        return tuple(rng.sample(places, count))
    if isinstance(lessons[0].value, str):
        return _evenly(lessons, count, rng)
    ordered = sorted(places, key=lambda i: (float(lessons[i].value), i))
    if strategy == "spread":
        bins = [ordered[len(ordered) * b // count : len(ordered) * (b + 1) // count] for b in range(count)]
        return tuple(rng.choice(members) for members in bins)
    share = len(ordered) // (8 if strategy == "ends" else 3)
    share = min(max(share, (count + 1) // 2), len(ordered) // 2)
    low, high = ordered[:share], ordered[-share:]
    half = min(count // 2, len(low))
    return tuple(rng.sample(low, half) + rng.sample(high, min(count - half, len(high))))


def with_demos(student: TaughtProgram, lessons: Mapping[str, Sequence[Lesson]], chosen: Chosen) -> TaughtProgram:
    """Return a copy of the student that is shown the chosen lessons."""
    program: TaughtProgram = student.deepcopy()
    for name, predictor in program.named_parameters():
        if name in chosen:
            predictor.demos = [lessons[name][i].demo for i in chosen[name]]
    return program


def _evenly(lessons: Sequence[Lesson], count: int, rng: random.Random) -> tuple[int, ...]:
    by_value: dict[str, list[int]] = {}
    for place, lesson in enumerate(lessons):
        by_value.setdefault(str(lesson.value), []).append(place)
    groups = list(by_value.values())
    rng.shuffle(groups)
    for members in groups:
        rng.shuffle(members)
    turns = [members[turn] for turn in range(max(map(len, groups))) for members in groups if turn < len(members)]
    return tuple(turns[:count])
