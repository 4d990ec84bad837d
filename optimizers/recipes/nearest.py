"""The labelled photographs that look most like the one in question: their levels, in words, are evidence on it.

Nearest neighbours as context (kNN-ICL, Liu et al. 2022), by what the embedded expert measures of an image anyway. How
many are asked is chosen from labels and likeness alone: the count whose mean label comes nearest to a training
photograph's own, neighbours of its own group left out. Whether they are taken is decided on validation.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from optimizers.recipes import Bound, Recipe
from optimizers.search import Candidate, Search
from optimizers.student import role_of
from program.agent.neighbours import Neighbour, Neighbours
from program.expert import View, likeness
from program.images.refs import parse_url

__all__ = ("chosen_count",)

COUNTS = (4, 8, 16)
_LEAST = 30
"""Labelled photographs below which the nearest are not near."""


def chosen_count(photographs: Sequence[Neighbour], vectors: NDArray[np.float16], views: Sequence[View]) -> int:
    """Return the count whose mean label has the smallest squared error over the photographs themselves."""
    most = Neighbours(max(COUNTS), photographs, vectors)
    errors = dict.fromkeys(COUNTS, 0.0)
    for photograph, view in zip(photographs, views, strict=True):
        labels = [each.label for each in most.nearest(view)]
        for count in COUNTS:
            errors[count] += float((np.mean(labels[:count]) - photograph.label) ** 2) if labels else 0.0
    return min(COUNTS, key=errors.__getitem__)


def _run(search: Search) -> list[Candidate]:
    program = search.base.program
    if all(role_of(name) != "summarizer" for name in search.student.names):
        search.note = "nearest: teaches the summarizer alone, which --roles leaves as it is"
        return []
    if program.resources.known("summarizer").weighs_demos:
        search.note = "nearest: the embedded expert weighs its demos by likeness already; random-search chooses them"
        return []
    photographs, views = [], []
    for example in search.train.examples:
        if example.get("quality") is not None:
            search.advance()
            view = program.resources.viewer.view(example.image, example.get("reference"))
            sha256, _ = parse_url(example.image.url)
            label = min(5.0, max(1.0, float(example.quality)))
            photographs.append(Neighbour(sha256=sha256, group=example.group, kind=view.model.kind, label=label))
            views.append(view)
    if len(photographs) < _LEAST:
        search.note = f"nearest: {len(photographs)} labelled training photographs; {_LEAST} are needed"
        return []
    vectors = np.stack([likeness(view) for view in views])
    count = chosen_count(photographs, vectors, views)
    copy = program.deepcopy()
    copy.summarizer.neighbours = Neighbours(count, photographs, vectors)
    search.note = f"nearest: the levels of the {count} most similar of {len(photographs)} photographs"
    return [Candidate(search.named("nearest"), copy)]


RECIPE = Recipe(
    name="nearest",
    run=_run,
    bound=lambda budget, sizes: Bound(sizes.train),
    teaches="evidence",
    fits_scores=True,
    least=lambda budget: _LEAST,
)
