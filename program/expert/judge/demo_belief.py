"""The quality believed in after demos (labelled images) and a rubric in words."""

from collections.abc import Sequence
from threading import Lock

import numpy as np
from cachetools import LRUCache, cached

from program.expert.judge.faults import KINDS, kind_of
from program.expert.judge.quality import Belief, Evidence, Features, believe, most_telling, weigh
from program.expert.judge.views import View, population, reading, share_below
from signatures.rubric import PLAIN, TRAITS, Rubric, rubric_in

__all__ = ("EVIDENCE_SETS", "belief", "telling", "traits_of")

EVIDENCE_SETS = 32
"""Sets of demos kept worked out: about 75 KB a demo, so 75 MB for sets of 32."""


def belief(view: View, demos: Sequence[tuple[View, float]] = (), instructions: str = "") -> Belief:
    """Return the quality believed in after demos of the same kind (all or none with a reference), each labelled.

    The rubric in the instructions goes before the demos: these correct what it leaves.
    """
    rubric = rubric_in(instructions)
    seen = _seen(view, rubric)
    if view.difference is None and not KINDS[kind_of(view)]:  # people scored photographs
        seen = seen._replace(novelty=np.ones(1))
    return believe(view.model, seen, _evidence(demos, instructions if rubric else "") if demos else None)


def telling(labelled: Sequence[tuple[View, float]], count: int, seed: int, instructions: str = "") -> tuple[int, ...]:
    """Return the places of the `count` labelled images, fewer than all, that as demos say most of the others."""
    rubric = rubric_in(instructions)
    labels = np.array([label for _, label in labelled])
    return most_telling([_seen(view, rubric) for view, _ in labelled], labels, count, np.random.default_rng(seed))


def traits_of(view: View) -> dict[str, float]:
    """Return where an image stands among natural photographs in each of the rubric's `TRAITS`, 0 .. 1."""
    known = population()
    return {name: share_below(reading(view, name), known[name]) for name in TRAITS}


def _seen(view: View, rubric: Rubric) -> Features:
    if rubric is PLAIN:
        return view.seen
    traits = traits_of(view) if rubric.likes else {}
    return view.seen._replace(quality=rubric.judged(view.seen.quality, view.severities, traits))


@cached(
    LRUCache(EVIDENCE_SETS), lock=Lock(),
    key=lambda demos, instructions: (instructions, *((view.key, label) for view, label in demos)),
)  # fmt: skip
def _evidence(demos: Sequence[tuple[View, float]], instructions: str) -> Evidence:
    rubric = rubric_in(instructions)
    return weigh(demos[0][0].model, [_seen(view, rubric) for view, _ in demos], np.array([label for _, label in demos]))
