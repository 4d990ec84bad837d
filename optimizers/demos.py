"""Demos of predictors: a question with its right answer; which of them are shown, and in which form."""

import base64
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from optimizers.student import Student
from program.agent.loop import AgenticIQA
from program.common.settings import RecipeSettings
from program.images.store import HOST, IMAGES

__all__ = ("STRATEGIES", "LabelledDemo", "Places", "as_references", "choose_demos", "demo_count", "image_url",
           "showable_demos", "with_demos")  # fmt: skip

Places = dict[str, tuple[int, ...]]
"""By predictor, which of its labelled demos are shown, by place."""

STRATEGIES = ("ends", "spread", "thirds", "random")


@dataclass(frozen=True)
class LabelledDemo:
    """One demo of one predictor, its answer given by rules, known distortions, measured strengths or people."""

    predictor: str
    sample: str
    """Id of the sample it came from."""
    key: str
    """Equal for equal questions."""
    value: float | str
    """What a set of demos is spread over: the human score, the answer, the distortion."""
    demo: dspy.Example


def demo_count(name: str, demos: Sequence[LabelledDemo], budget: RecipeSettings) -> int:
    """Return how many demos a predictor is shown: `demos` for the Summarizer, `role_demos` for the other roles."""
    wanted = budget.demos if name.startswith("summarizer.") else budget.role_demos
    return len(demos) if wanted is None else min(wanted, len(demos))


def choose_demos(demos: Sequence[LabelledDemo], count: int, strategy: str, rng: random.Random) -> tuple[int, ...]:
    """Return `count` places of demos: spread over their values, from both ends of them, or at random.

    Demos with words for values are spread evenly over the distinct ones, whatever the strategy but "random".
    """
    places = list(range(len(demos)))
    if count >= len(places):
        return tuple(places)
    if strategy == "random":
        return tuple(rng.sample(places, count))
    if isinstance(demos[0].value, str):
        return _evenly(demos, count, rng)
    ordered = sorted(places, key=lambda i: (float(demos[i].value), i))
    if strategy == "spread":
        bins = [ordered[len(ordered) * b // count : len(ordered) * (b + 1) // count] for b in range(count)]
        return tuple(rng.choice(members) for members in bins)
    share = len(ordered) // (8 if strategy == "ends" else 3)
    share = min(max(share, (count + 1) // 2), len(ordered) // 2)
    low, high = ordered[:share], ordered[-share:]
    half = min(count // 2, len(low))
    return tuple(rng.sample(low, half) + rng.sample(high, min(count - half, len(high))))


def with_demos(student: Student, demos: Mapping[str, Sequence[LabelledDemo]], places: Places) -> Student:
    """Return a copy of the student that is shown the demos at these places."""
    copy: Student = student.deepcopy()
    for name, predictor in copy.named_parameters():
        if name in places:
            predictor.demos = [demos[name][i].demo for i in places[name]]
    return copy


def showable_demos(program: AgenticIQA) -> None:
    """Keep, in place, the demos that answer their predictor's question, images as references."""
    for predictor in program.predictors():
        predictor.lm = None
        inputs, outputs = predictor.signature.input_fields, predictor.signature.output_fields
        demos = [
            dspy.Example(**{n: as_references(v) for n, v in demo.items() if n in inputs | outputs and v is not None})
            for demo in predictor.demos
        ]
        needed = [*outputs, *(name for name in ("image",) if name in inputs)]
        predictor.demos = [demo for demo in demos if all(demo.get(name) is not None for name in needed)]


def as_references(value: Any) -> Any:
    """Return an image that was inlined for a model as a reference to the same bytes; other values as they are."""
    url = value.get("url") if isinstance(value, Mapping) else getattr(value, "url", value)
    if not isinstance(url, str):
        return value
    if url.startswith(HOST):
        return dspy.Image(url)
    inlined = re.fullmatch(r"data:image/[\w.+-]+;base64,([A-Za-z0-9+/=]+)", url)
    return dspy.Image(IMAGES.add(base64.b64decode(inlined[1])).url) if inlined else value


def image_url(demo: Mapping[str, Any]) -> str | None:
    """Return the reference that stands for a demo's image, or None where it has none."""
    return getattr(demo.get("image"), "url", None)


def _evenly(demos: Sequence[LabelledDemo], count: int, rng: random.Random) -> tuple[int, ...]:
    by_value: dict[str, list[int]] = {}
    for place, demo in enumerate(demos):
        by_value.setdefault(str(demo.value), []).append(place)
    groups = list(by_value.values())
    rng.shuffle(groups)
    for members in groups:
        rng.shuffle(members)
    turns = [members[turn] for turn in range(max(map(len, groups))) for members in groups if turn < len(members)]
    return tuple(turns[:count])
